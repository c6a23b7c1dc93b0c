"""Join folding: join small tables in this process, so that Spark gets one table and no join.

After `plan/semi_join` most leaves of a plan are small tables in this process. Spark would broadcast
each of them in a job of its own. Equalities between plain columns do not need Spark, so such joins
run on Arrow. Filters and expressions, which only Spark understands, go on top:

    Inner(Filter(a), Project(b)) on x = y  ->  Filter(Project(joined rows of a and b))
    Join(Filter(a), b) on x = y            ->  Filter(rows of a with those of b, or without)
    Restrict(a, keys)                      ->  the rows of a among the keys
    Keys(a)                                ->  the distinct values, or a superset

Filters and projections are linear, so joining first makes no difference. Joins that do not fit
(other conditions, values that Arrow compares differently, too many rows) are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.local.conditions import fulfilling
from stepwell.execution.local.expressions import Value
from stepwell.execution.local.join_inputs import (
    WEIGHTS,
    Chain,
    Columns,
    JoinInput,
    columns_below,
    taken,
)
from stepwell.execution.local.join_kernels import (
    among_rows,
    comparable_pair,
    joined_rows,
    matched,
    pairs_of,
    product_of,
)
from stepwell.execution.local.lookup import LookUps
from stepwell.execution.local.operators import PlanEvaluator
from stepwell.lsm.consolidate import grouped
from stepwell.lsm.run_file import WEIGHT
from stepwell.lsm.values import comparable
from stepwell.plan.conditions import equal_columns
from stepwell.plan.expressions import Expr, column
from stepwell.plan.nodes import (
    Consolidate,
    Filter,
    Inner,
    Join,
    Keys,
    Leaf,
    Negate,
    Node,
    Project,
    Restrict,
    Side,
    Union,
    When,
    children,
    with_children,
)

ROWS_MAX = 1_000_000
FAN_OUT = 10
"""A join that multiplies the number of rows by more than this is postponed."""
_BEFORE, _AFTER = WEIGHTS


def fold_joins(node: Node, lookups: LookUps, evaluator: PlanEvaluator) -> Node:
    """An equivalent plan with fewer joins for Spark."""
    return _JoinFolding(lookups, evaluator).of(node, None)


class _JoinFolding:
    def __init__(self, lookups: LookUps, evaluator: PlanEvaluator) -> None:
        self._lookups = lookups
        self._evaluator = evaluator
        self._known: dict[int, tuple[Node, dict[Columns, Node]]] = {}
        """The results for the nodes of this plan, by the columns that are read. The same node may
        occur often."""

    def of(self, node: Node, read: Columns) -> Node:
        """The plan without joins that can be folded; columns that are not read may be NULL."""
        # The node is held as well, so no other one can get its id.
        results = self._known.setdefault(id(node), (node, {}))[1]
        for columns, result in results.items():
            if columns is None or (read is not None and read <= columns):
                return result
        result = results[read] = self._of(node, read)
        return result

    def _of(self, node: Node, read: Columns) -> Node:
        inputs = zip(children(node), columns_below(node, read), strict=True)
        node = with_children(node, tuple(self.of(child, columns) for child, columns in inputs))
        made: Node | None = None
        match node:
            case Inner():
                made = self._inner(node, read)
            case Join():
                made = self._join(node)
            case Restrict():
                made = self._restrict(node)
            case Keys():
                made = self._keys(node)
            case _:
                pass
        return node if made is None else made

    def _keys(self, node: Keys) -> Node | None:
        """The keys, or a superset of them.

        Rows are compared before and after for every key, so a superfluous key only costs time. The
        same node gives the same keys wherever it occurs.
        """
        found = self._values(node.input, tuple(c for _, c in node.items))
        if found is None:
            return None
        rows, kinds = found
        if not all(map(comparable, kinds)):
            return None
        names = rows.column_names
        distinct = grouped(rows, names).aggregate([]).select(names)
        ones = pa.repeat(pa.scalar(1, pa.int64()), distinct.num_rows)
        made = self._lookups.add(distinct.append_column(WEIGHT, ones), kinds)
        return Leaf(made, node.columns, When.DELTA)

    def _values(
        self, node: Node, columns: tuple[str, ...]
    ) -> tuple[pa.Table, tuple[str, ...]] | None:
        """At least the rows of some columns, without their weights, and the types of these."""
        match node:
            case Leaf():
                both = self._lookups.tables(node)
                if both is None:
                    return None
                places = [node.columns.index(name) for name in columns]
                types = self._lookups.types(node)
                picked = [_picked(t, places) for t in both if t is not None]
                return pa.concat_tables(picked), tuple(types[p] for p in places)
            case Filter():
                used = tuple(dict.fromkeys((*columns, *sorted(node.condition.columns))))
                here = node.condition.columns <= set(node.columns)
                found = self._values(node.input, used) if here else None
                if found is None:
                    return self._values(node.input, columns)
                kept = fulfilling(found[0], used, found[1], node.condition)
                places = [used.index(name) for name in columns]
                return _picked(kept, places), tuple(found[1][p] for p in places)
            case Project():
                items = dict(node.items)
                inside = [items[name].column for name in columns]
                known = tuple(c for c in inside if c is not None)
                return self._values(node.input, known) if len(known) == len(inside) else None
            case Union():
                places = [node.columns.index(name) for name in columns]
                each = [
                    self._values(child, tuple(child.columns[p] for p in places))
                    for child in node.inputs
                ]
                found_all = [values for values in each if values is not None]
                if len(found_all) < len(each) or len({types for _, types in found_all}) != 1:
                    return None
                return pa.concat_tables([rows for rows, _ in found_all]), found_all[0][1]
            case _:
                return None

    def _restrict(self, node: Restrict) -> Node | None:
        chain = Chain.of(node.input)
        if chain is None or not isinstance(node.keys, Leaf) or not node.on:
            return None
        keys = self._rows(node.keys)
        places = [chain.place(c) for c, _ in node.on]
        known = [p for p in places if p is not None]
        if keys is None or len(known) < len(places):
            return None
        types = self._lookups.types(chain.leaf)
        if not all(comparable(types[p]) for p in known):
            return None
        values = [keys.column(node.keys.columns.index(k)) for _, k in node.on]
        both = self._lookups.tables(chain.leaf)
        if both is None:
            return None
        kept: list[pa.Table | None] = []
        for table in both:
            if table is None:
                kept.append(None)
                continue
            mask = among_rows([table.column(p) for p in known], values)
            if mask is None:
                return None
            kept.append(table if pc.all(mask).as_py() else table.filter(mask))
        made = self._lookups.put(chain.leaf, kept[0], kept[1])
        return chain.over(replace(chain.leaf, relation=made))

    def _inner(self, node: Inner, read: Columns) -> Node | None:
        chains = [Chain.of(child) for child in node.inputs]
        known = [chain for chain in chains if chain is not None]
        if len(known) < len(chains) or not known:
            return None
        paired = any(chain.leaf.when is When.BOTH for chain in known)
        tables = [self._versions(chain.leaf) for chain in known]
        rows = [table for table in tables if table is not None]
        if len(rows) < len(tables):
            return None
        types = [self._lookups.types(chain.leaf) for chain in known]
        inputs = [JoinInput(*each) for each in zip(known, rows, types, strict=True)]
        if not all(table.num_rows for table in rows):
            # Filters are left, so that `support`, which runs plans over no rows, sees them.
            nothing = [np.zeros(0, np.int64)] * len(rows)
            return self._joined(node, inputs, nothing, paired, node.on, read)
        used = columns_below(node, read)[0]
        inputs = [each.settled(used, self._evaluator) for each in inputs]
        equal = {on: pair for on in node.on if (pair := equal_columns(on)) is not None}
        places = [np.arange(inputs[0].rows.num_rows)]
        joined, waiting, left = [0], list(range(1, len(inputs))), list(node.on)
        while waiting:
            # Follow the planned order, but postpone a table that would give many rows: joining
            # another table first may reduce them.
            few = min(ROWS_MAX, FAN_OUT * len(places[0]))
            for i, most in [*((i, few) for i in waiting), *((i, ROWS_MAX) for i in waiting)]:
                found = self._match(inputs, joined, places, i, equal, most)
                if found is not None:
                    places, tested = found
                    left = [on for on in left if on not in tested]
                    break
            else:
                i = min(waiting, key=lambda i: inputs[i].rows.num_rows)
                product = product_of(places, inputs[i].rows.num_rows)
                if product is None:
                    self._lookups.decline(Fallback.TOO_MANY_ROWS)
                    return None
                places = product
            joined.append(i)
            waiting.remove(i)
        return self._joined(node, [inputs[i] for i in joined], places, paired, left, read)

    def _join(self, node: Join) -> Node | None:
        """A left, semi or anti join, which is linear in its left side."""
        if node.side is Side.FULL or not node.equal:
            return None
        try:
            # The rows present decide which rows have a match, so they must be exact.
            right, types = self._evaluator.changes(Consolidate(node.right))
        except NotSupported:
            return None
        except Declined as declined:
            self._lookups.decline(declined.fallback)
            return None
        if right.num_rows and pc.min(right.column(WEIGHT)).as_py() < 0:
            self._lookups.decline(Fallback.ROWS_ELSEWHERE)
            return None
        made: list[Node] = []
        for negative, left in _terms(node.left):
            joined = self._join_rows(replace(node, left=left), right, types)
            if joined is None:
                return None
            made.append(Negate(joined) if negative else joined)
        return made[0] if len(made) == 1 else Union(tuple(made), node.columns)

    def _join_rows(self, node: Join, right: pa.Table, types: tuple[str, ...]) -> Node | None:
        """Join a chain with these consolidated rows."""
        left = Chain.of(node.left)
        rows = None if left is None else self._rows(left.leaf)
        if left is None or rows is None:
            return None
        kinds = self._lookups.types(left.leaf)
        keys = []
        for a, b in node.equal:
            one, two = left.place(a), node.right.columns.index(b)
            if one is None:
                return None
            pair = rows.column(one), right.column(two)
            keys.append(comparable_pair(*pair, (kinds[one], types[two])))
        known = [both for both in keys if both is not None]
        if len(known) < len(keys):
            return None
        sides = [one for one, _ in known], [two for _, two in known]
        if node.side is Side.LEFT or node.also:
            pairs = pairs_of(*sides, ROWS_MAX, [node.null_safe] * len(known))
            if pairs is None:
                self._lookups.decline(Fallback.TOO_MANY_ROWS)
                return None
        else:
            at = np.flatnonzero(matched(*sides, null_safe=node.null_safe))
            pairs = at, at
        if node.also:
            columns = {
                c: Value(right.column(i), types[i]) for i, c in enumerate(node.right.columns)
            }
            agreed = self._agreed(node, left, rows, columns, pairs)
            if agreed is None:
                return None
            pairs = agreed
        places, matches = joined_rows(node.side, rows.num_rows, *pairs)
        found = rows.take(pa.array(places))
        made = {left.leaf.columns[p]: (found.column(p), kinds[p]) for p in left.used}
        weight = found.column(WEIGHT)
        if node.side is Side.LEFT:
            others = right.take(pa.array(matches, mask=matches < 0))
            made |= {c: (others.column(p), types[p]) for p, c in enumerate(node.right.columns)}
            weight = pc.multiply(weight, pc.fill_null(others.column(WEIGHT), 1))
        stored = [*(f"c{i}" for i in range(len(made))), WEIGHT]
        table = pa.table([*(data for data, _ in made.values()), weight], names=stored)
        name = self._lookups.add(table, tuple(kind for _, kind in made.values()))
        joined = left.beside(Leaf(name, tuple(made), When.DELTA))
        return Project(joined, tuple((c, column(c)) for c in node.columns))

    def _agreed(
        self,
        node: Join,
        left: Chain,
        rows: pa.Table,
        right: Mapping[str, Value],
        pairs: tuple[np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The pairs of rows that satisfy the other conditions of a join; None if not supported."""
        kinds = self._lookups.types(left.leaf)
        columns: dict[str, Value] = {}
        for name in frozenset[str]().union(*(condition.columns for condition in node.also)):
            if name in right:
                known, at = right[name], pairs[1]
            else:
                place = left.place(name)
                if place is None:
                    return None
                known, at = Value(rows.column(place), kinds[place]), pairs[0]
            columns[name] = replace(known, data=known.data.take(pa.array(at)))
        try:
            kept = self._evaluator.holds(node.also, columns, len(pairs[0]))
        except NotSupported:
            return None
        except Declined as declined:
            self._lookups.decline(declined.fallback)
            return None
        return pairs[0][kept], pairs[1][kept]

    def _match(
        self,
        inputs: Sequence[JoinInput],
        joined: list[int],
        places: list[np.ndarray],
        i: int,
        equal: Mapping[Expr, tuple[str, str, bool]],
        most: int,
    ) -> tuple[list[np.ndarray], set[Expr]] | None:
        """Join one more input: the positions in each joined input, and the conditions tested."""
        left, right = [], []
        tested: dict[Expr, bool] = {}
        for condition, (a, b, null_safe) in equal.items():
            for here, there in ((a, b), (b, a)):
                mine = inputs[i].chain.place(there)
                theirs = [(j, inputs[j].chain.place(here)) for j in joined]
                other = next(((j, p) for j, p in theirs if p is not None), None)
                if mine is None or other is None:
                    continue
                j, place = other
                one, two = inputs[j].rows.column(place), inputs[i].rows.column(mine)
                kinds = inputs[j].types[place], inputs[i].types[mine]
                both = comparable_pair(one, two, kinds)
                if both is None:
                    continue
                left.append(taken(both[0], places[joined.index(j)]))
                right.append(both[1])
                tested[condition] = null_safe
                break
        if not left:
            return None
        safe = tuple(tested.values())
        pairs = self._lookups.memo.of(
            ("pairs", most, len(left), safe),
            [*left, *right],
            lambda: pairs_of(left, right, most, safe),
        )
        if pairs is None:
            return None
        at_left, at_right = pairs
        return [*(p[at_left] for p in places), at_right], set(tested)

    def _joined(
        self,
        node: Inner,
        inputs: Sequence[JoinInput],
        places: list[np.ndarray],
        paired: bool,
        on: Sequence[Expr],
        read: Columns,
    ) -> Node:
        """The joined rows, with the operators of the inputs and the conditions left above them."""
        if read is not None:
            read = read.union(*(condition.columns for condition in on))
        columns: list[pa.ChunkedArray] = []
        names: list[str] = []
        types: list[str] = []
        before = after = pa.scalar(1, pa.int64())
        count = len(places[0])
        for each, at in zip(inputs, places, strict=True):
            chain = each.chain
            for place in chain.used:
                name, type_ = chain.leaf.columns[place], each.types[place]
                is_read = bool(chain.ops) or read is None or name in read
                values = each.rows.column(place)
                columns.append(taken(values, at) if is_read else pa.nulls(count, values.type))
                names.append(name)
                types.append(type_)
            for name, (type_, kind) in each.unread.items():
                columns.append(pa.nulls(count, kind))
                names.append(name)
                types.append(type_)
            before = pc.multiply(before, taken(each.rows.column(_BEFORE), at))
            after = pc.multiply(after, taken(each.rows.column(_AFTER), at)) if paired else before
        stored = [f"c{i}" for i in range(len(columns))]
        if paired:
            old = pa.table([*columns, before], names=[*stored, WEIGHT])
            new = pa.table([*columns, pc.subtract(after, before)], names=[*stored, WEIGHT])
            name = self._lookups.pair(_there(old), _there(new), tuple(types))
        else:
            name = self._lookups.add(
                pa.table([*columns, before], names=[*stored, WEIGHT]), tuple(types)
            )
        made: Node = Leaf(name, tuple(names), When.BOTH if paired else When.DELTA)
        for each in inputs:
            made = each.chain.beside(made)
        for condition in on:
            made = Filter(made, condition)
        if made.columns == node.columns:
            return made
        return Project(made, tuple((c, column(c)) for c in node.columns))

    def _versions(self, leaf: Leaf) -> pa.Table | None:
        """All rows of a leaf, with their weights before and after."""
        if leaf.when is not When.BOTH:
            rows = self._rows(leaf)
            if rows is None:
                return None
            return rows.append_column(_BEFORE, rows.column(WEIGHT)).append_column(
                _AFTER, rows.column(WEIGHT)
            )
        both = self._lookups.tables(leaf)
        if both is None:
            return None
        parts = []
        for table, old in zip(both, (True, False), strict=True):
            if table is not None:
                weight = table.column(WEIGHT)
                was = weight if old else pc.multiply(weight, 0)
                parts.append(table.append_column(_BEFORE, was).append_column(_AFTER, weight))
        whole = pa.concat_tables(parts)
        if whole.num_rows > ROWS_MAX:
            self._lookups.decline(Fallback.TOO_MANY_ROWS)
            return None
        return whole

    def _rows(self, leaf: Leaf) -> pa.Table | None:
        """All rows of a leaf, if it is one version and in memory."""
        if leaf.when is When.BOTH:
            return None
        both = self._lookups.tables(leaf)
        if both is None:
            return None
        tables = [t for t in both if t is not None]
        if sum(t.num_rows for t in tables) > ROWS_MAX:
            self._lookups.decline(Fallback.TOO_MANY_ROWS)
            return None
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def _terms(node: Node) -> list[tuple[bool, Node]]:
    """The nodes whose sum equals a node, each with whether it is negated."""
    match node:
        case Negate():
            return [(not negative, term) for negative, term in _terms(node.input)]
        case Filter() | Project():
            return [(negative, replace(node, input=term)) for negative, term in _terms(node.input)]
        case Union():
            found: list[tuple[bool, Node]] = []
            for child in node.inputs:
                items = tuple(
                    (name, column(c)) for name, c in zip(node.columns, child.columns, strict=True)
                )
                found += [(negative, Project(term, items)) for negative, term in _terms(child)]
            return found
        case _:
            return [(False, node)]


def _picked(rows: pa.Table, places: Iterable[int]) -> pa.Table:
    """Some columns of a table, named by their order."""
    columns = [rows.column(place) for place in places]
    return pa.table(columns, names=[f"c{i}" for i in range(len(columns))])


def _there(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.not_equal(rows.column(WEIGHT), 0))
