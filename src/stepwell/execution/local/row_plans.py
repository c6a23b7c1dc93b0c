"""Run plans row by row, in plain Python, for changes of few rows.

A plan is compiled once into steps with the positions of columns resolved, and kept with the plan.
A step returns rows as tuples, the weight last. Joins are index look-ups: the rows so far are joined
with the next input by looking up their values there, so an empty change ends a plan at once and
nothing is read that does not match. For a few rows that takes microseconds, where the same plan
over Arrow columns (`operators`, `joins`) takes milliseconds.

    known    the columns of a node whose values are known when it runs: `semi_join` in one pass
    needed   the columns that the node's consumer reads

What this runs, the operators over columns run as well, with the same result; expressions have the
rules of `row_expressions`. `NotSupported` and `TooManyRowsError` leave a plan to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.local.expressions import SURE_DIGITS, ExpressionEvaluator
from stepwell.execution.local.operators import compared_call
from stepwell.execution.local.row_expressions import RowExpressions
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.row_lookup import Row, RowReader, TooManyRowsError
from stepwell.lsm.values import comparable
from stepwell.plan.conditions import equal_columns
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
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
    Scan,
    Side,
    Union,
    When,
    children,
)
from stepwell.plan.numbers import INTEGER_BITS, decimal_width
from stepwell.plan.sums import Accumulator

_INT_MAX = 2**63 - 1
_INDEX_FAN_OUT = 1000
"""If the best index finds more rows, another column is indexed as well."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a plan reads: the rows of this transaction, and the changes so far."""

    reader: RowReader
    deltas: Mapping[str, Part]
    rows_max: int
    """Intermediate results with more rows are left to columns."""

    def check(self, rows: Sequence[Row]) -> list[Row]:
        if len(rows) > self.rows_max:
            raise TooManyRowsError
        return rows  # type: ignore[return-value]


Values: TypeAlias = "Mapping[str, Collection[Any]]"
"""The values of the known columns. NULL is among them only if it equals NULL there."""
Run: TypeAlias = "Callable[[Reading, Values], list[Row]]"


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled node: the columns of its rows, their types, and what computes them."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    run: Run

    def place(self, column: str) -> int:
        return self.columns.index(column)

    def type(self, column: str) -> str:
        return self.types[self.columns.index(column)]


_NONE: frozenset[str] = frozenset()


class RowCompiler:
    """Compiles plans. The types of its relations must stay the same."""

    def __init__(
        self,
        expressions: ExpressionEvaluator,
        relations: Callable[[str], Relation | None],
        types: Callable[[str], tuple[str, ...]],
    ) -> None:
        self._expressions = expressions
        self._relation = relations
        """The stored relation of a name, if there is one."""
        self._types = types
        """The types of a relation or a stage."""

    def rows(self, node: Node, *, shown: bool = False) -> Step:
        """The consolidated rows of a plan, with its columns in order. Raises `NotSupported`.

        Only rows that are shown, not stored, may hold floating point.
        """
        source = node.input if isinstance(node, Consolidate) else node
        step = _arranged(self._of(source, frozenset(node.columns), _NONE), node.columns)
        for type_ in step.types:
            if not comparable(type_) and not (shown and type_ == "double"):
                raise NotSupported(f"{type_.upper()} is compared by Spark")
        run = step.run
        return Step(step.columns, step.types, lambda r, v: consolidated(run(r, v)))

    def added(self, node: Accumulate) -> Step:
        """The change of sums: keys, number of rows, accumulators, and a weight of one."""
        used = [e.columns for _, a in node.sums for e in (a.argument, a.present) if e is not None]
        step = self._of(node.input, frozenset(node.keys).union(*used), _NONE)
        code = RowExpressions(self._expressions, step.columns, step.types)
        items = [f"r[{step.place(key)}]" for key in node.keys] + ["r[-1]"]
        items += [_contribution(code, accumulator) for _, accumulator in node.sums]
        contributions = code.function(f"[({', '.join(items)},) for r in rows]")
        keys, width = len(node.keys), len(items)
        limits = [_INT_MAX, *(_limit(a.type) for _, a in node.sums)]
        add = "; ".join(f"g[{at}] += r[{at}]" for at in range(keys, width))
        scope: dict[str, Any] = {}
        exec(_GROUPING.format(keys=keys, add=add), scope)
        group, run = scope["group"], step.run

        def added(reading: Reading, values: Values) -> list[Row]:
            rows = run(reading, values)
            if not rows:
                return []
            made = contributions(rows)
            for at, limit in enumerate(limits, keys):
                # A sum that came near overflow would be reported by Spark.
                if max(abs(r[at]) for r in made) * len(made) > limit:
                    raise Declined(Fallback.ARITHMETIC)
            return [(*row, 1) for row in group(made)]

        types = [step.type(key) for key in node.keys]
        return Step(node.columns, (*types, "bigint", *(a.type for _, a in node.sums)), added)

    # Nodes

    def _of(self, node: Node, needed: frozenset[str], known: frozenset[str]) -> Step:
        match node:
            case Leaf() | Scan():
                return self._leaf(node, needed, known)
            case Filter():
                condition = node.condition
                step = self._of(node.input, needed | condition.columns, known)
                code = RowExpressions(self._expressions, step.columns, step.types)
                keep = code.function(f"[r for r in rows if {code.condition(condition)}]")
                return _then(step, keep)
            case Project():
                return self._project(node, needed, known)
            case Union():
                return self._union(node, needed, known)
            case Negate():
                step = self._of(node.input, needed, known)
                return _then(step, lambda rows: [(*r[:-1], -r[-1]) for r in rows])
            case Inner():
                return self._inner(node, needed, known)
            case Join():
                return self._join(node, needed, known)
            case Restrict():
                return self._restrict(node, needed, known)
            case Keys():
                return self._keys(node, known)
            case Aggregate():
                return self._aggregate(node, known)
            case Consolidate():
                return self._of(node.input, needed, known)
            case _:
                raise NotSupported(f"{type(node).__name__} is computed by columns")

    def _leaf(self, node: Leaf | Scan, needed: frozenset[str], known: frozenset[str]) -> Step:
        all_types = self._types(node.relation)
        places = [i for i, c in enumerate(node.columns) if c in needed or c in known]
        columns = tuple(node.columns[i] for i in places)
        types = tuple(all_types[i] for i in places)
        if not all(map(comparable, types)):
            raise NotSupported("a column has no row kernel")
        name = node.relation
        when = node.when if isinstance(node, Leaf) else When.DELTA
        if when is When.BOTH:
            raise NotSupported("pairs are computed by columns")
        sought = {c: i for i, c in enumerate(node.columns) if c in known}
        column = Choice(sought)

        def run(reading: Reading, values: Values) -> list[Row]:
            rows: list[Row] = []
            by = None
            relation = None if when is When.DELTA else self._relation(name)
            if relation is not None and relation.parts:
                if sought:
                    by = column.of(reading.reader, relation, values)
                    rows = reading.reader.look_up(relation, sought[by], values[by], places)
                else:
                    rows = reading.reader.whole(relation, places)
            if when is not When.OLD:
                delta = reading.deltas.get(name)
                if delta is not None and delta.rows:
                    more = reading.reader.rows(delta, places)
                    if by is not None:
                        # Restricted like the stored rows, or a retraction would refer to a row
                        # that seems never to have existed.
                        at, among = columns.index(by), values[by]
                        more = [r for r in more if r[at] in among]
                    rows = rows + more
            return rows

        return Step(columns, types, run)

    def _project(self, node: Project, needed: frozenset[str], known: frozenset[str]) -> Step:
        items = [(name, expr) for name, expr in node.items if name in needed or name in known]
        inside = {name: expr.column for name, expr in items if name in known}
        passed = {name: column for name, column in inside.items() if column is not None}
        below = frozenset[str]().union(*(expr.columns for _, expr in items))
        step = self._of(node.input, below, frozenset(passed.values()))
        columns = tuple(name for name, _ in items)
        run = step.run
        if all(expr.column in step.columns for _, expr in items):
            places = [step.columns.index(e.column) for _, e in items if e.column is not None]
            types = tuple(step.types[place] for place in places)
            pick = _picking(places, len(step.columns))
        else:
            code = RowExpressions(self._expressions, step.columns, step.types)
            made = [code.value(expr) for _, expr in items]
            types = tuple(value.type for value in made)
            texts = [*(value.text for value in made), "r[-1]"]
            pick = code.function(f"[({', '.join(texts)},) for r in rows]")
        if not passed:
            return Step(columns, types, lambda r, v: pick(run(r, {})))

        def projected(reading: Reading, values: Values) -> list[Row]:
            return pick(run(reading, {passed[name]: values[name] for name in passed}))

        return Step(columns, types, projected)

    def _union(self, node: Union, needed: frozenset[str], known: frozenset[str]) -> Step:
        wanted = needed | known
        at = [i for i, c in enumerate(node.columns) if c in wanted]
        columns = tuple(node.columns[i] for i in at)
        steps: list[tuple[Step, dict[str, str]]] = []
        for child in node.inputs:
            names = tuple(child.columns[i] for i in at)
            inside = {c: n for c, n in zip(columns, names, strict=True) if c in known}
            step = self._of(child, frozenset(names), frozenset(inside.values()))
            steps.append((_arranged(step, names), inside))
        types = steps[0][0].types
        if any(step.types != types for step, _ in steps):
            raise NotSupported("the branches of a UNION differ in type")

        def run(reading: Reading, values: Values) -> list[Row]:
            rows: list[Row] = []
            for step, inside in steps:
                rows = rows + step.run(reading, {n: values[c] for c, n in inside.items()})
            return rows

        return Step(columns, types, run)

    def _keys(self, node: Keys, known: frozenset[str]) -> Step:
        """The distinct keys, and perhaps keys of rows that cancel out."""
        inside = dict(node.items)
        below = tuple(column for _, column in node.items)
        step = self._of(node.input, frozenset(below), frozenset(inside[c] for c in known))
        step = _arranged(step, below)

        def run(reading: Reading, values: Values) -> list[Row]:
            rows = step.run(reading, {inside[c]: values[c] for c in known})
            return [(*key, 1) for key in dict.fromkeys([r[:-1] for r in rows])]

        return Step(node.columns, step.types, run)

    def _restrict(self, node: Restrict, needed: frozenset[str], known: frozenset[str]) -> Step:
        keys = _arranged(
            self._of(node.keys, frozenset(k for _, k in node.on), _NONE),
            tuple(k for _, k in node.on),
        )
        mine = tuple(c for c, _ in node.on)
        step = self._of(node.input, needed | set(mine), known | set(mine))
        for column, kind in zip(mine, keys.types, strict=True):
            _check_alike(step.type(column), kind)
        key, width = _key_of([step.place(c) for c in mine]), len(mine)

        def run(reading: Reading, values: Values) -> list[Row]:
            found = keys.run(reading, {})
            if not found:
                return []
            more = {c: {r[i] for r in found} for i, c in enumerate(mine)}
            rows = step.run(reading, {**values, **more})
            among = {r[0] for r in found} if width == 1 else {r[:-1] for r in found}
            return [r for r in rows if key(r) in among]

        return Step(step.columns, step.types, run)

    def _inner(self, node: Inner, needed: frozenset[str], known: frozenset[str]) -> Step:
        """Join the inputs one by one, each with the rows that the values so far lead to."""
        wanted = needed.union(known, *(condition.columns for condition in node.on))
        pairs = [pair for pair in map(equal_columns, node.on) if pair is not None]
        waiting = list(range(len(node.inputs)))
        reached = (i for i in waiting if known & set(node.inputs[i].columns))
        place = next(reached, 0)
        waiting.remove(place)
        first = self._input(node.inputs[place], wanted, known)
        columns, types = list(first.columns), list(first.types)
        joins: list[_Join] = []
        tested = set[int]()
        filters: list[tuple[int, Callable[[Any], Any]]] = []
        while True:
            self._filters(node, columns, types, tested, len(joins), filters)
            if not waiting:
                break
            place, on = self._next(node, waiting, columns, pairs, known)
            waiting.remove(place)
            child = node.inputs[place]
            outer = known & set(child.columns)
            step = self._input(child, wanted, outer | {theirs for _, theirs, _ in on})
            for at, theirs, _ in on:
                _check_alike(types[at], step.type(theirs))
            tested |= {i for i, condition in enumerate(node.on) if _is_pair(condition, columns, on)}
            joins.append(_Join(step, tuple(on), tuple(outer - {theirs for _, theirs, _ in on})))
            columns += step.columns
            types += step.types
        return Step(tuple(columns), tuple(types), _joining(first, known, joins, filters))

    def _input(self, child: Node, wanted: frozenset[str], known: frozenset[str]) -> Step:
        mine = frozenset(child.columns)
        return self._of(child, wanted & mine, known & mine)

    def _next(
        self,
        node: Inner,
        waiting: Sequence[int],
        columns: Sequence[str],
        pairs: Sequence[tuple[str, str, bool]],
        known: frozenset[str],
    ) -> tuple[int, list[tuple[int, str, bool]]]:
        """The next input that an equality connects, and what must be equal."""
        for place in waiting:
            theirs = node.inputs[place].columns
            on = [
                (columns.index(a), b, null_safe)
                for one, two, null_safe in pairs
                for a, b in ((one, two), (two, one))
                if a in columns and b in theirs
            ]
            if on:
                return place, on
        reached = (i for i in waiting if known & set(node.inputs[i].columns))
        return next(reached, waiting[0]), []

    def _filters(
        self,
        node: Inner,
        columns: Sequence[str],
        types: Sequence[str],
        tested: set[int],
        after: int,
        filters: list[tuple[int, Callable[[Any], Any]]],
    ) -> None:
        """Add the conditions that can be tested now."""
        there = set(columns)
        for number, condition in enumerate(node.on):
            if number in tested or not condition.columns <= there:
                continue
            tested.add(number)
            code = RowExpressions(self._expressions, columns, types)
            text = code.condition(condition)
            filters.append((after, code.function(f"[r for r in rows if {text}]")))

    def _join(self, node: Join, needed: frozenset[str], known: frozenset[str]) -> Step:
        """A left, semi or anti join."""
        if node.side is Side.FULL or not node.equal:
            raise NotSupported("this join is computed by columns")
        also = frozenset[str]().union(*(condition.columns for condition in node.also))
        mine, theirs = tuple(a for a, _ in node.equal), tuple(b for _, b in node.equal)
        left = self._input(node.left, needed | also | set(mine) | known, known)
        wanted = (needed | also | set(theirs)) & set(node.right.columns)
        right = self._of(node.right, frozenset(wanted), frozenset(theirs))
        for a, b in node.equal:
            _check_alike(left.type(a), right.type(b))
        key, other = _key_of(list(map(left.place, mine))), _key_of(list(map(right.place, theirs)))
        places = [left.place(a) for a in mine]
        keep = None
        if node.also:
            code = RowExpressions(
                self._expressions, (*left.columns, *right.columns), (*left.types, *right.types)
            )
            tests = " and ".join(code.condition(condition) for condition in node.also)
            keep = code.function(f"[r for r in rows if {tests}]")
        side, null_safe, nothing = node.side, node.null_safe, (None,) * len(right.columns)
        passed = tuple(known & set(node.left.columns))

        def run(reading: Reading, values: Values) -> list[Row]:
            rows = left.run(reading, {c: values[c] for c in passed})
            if not rows:
                return []
            sought = {c: _values(rows, at, null_safe) for c, at in zip(theirs, places, strict=True)}
            found = consolidated(right.run(reading, sought))
            if any(r[-1] < 0 for r in found):
                raise Declined(Fallback.ROWS_ELSEWHERE)
            by_key: dict[Any, list[Row]] = {}
            for r in found:
                k = other(r)
                if null_safe or not _has_null(k):
                    by_key.setdefault(k, []).append(r)
            made: list[Row] = []
            for row in rows:
                matches: Sequence[Row] = by_key.get(key(row), ())
                if keep is not None and matches:
                    matches = keep([(*row[:-1], *r) for r in matches])
                    matches = [r[len(row) - 1 :] for r in matches]
                if side is Side.LEFT:
                    weight, most = row[-1], row[:-1]
                    made += [(*most, *r[:-1], weight * r[-1]) for r in matches]
                    if not matches:
                        made.append((*most, *nothing, weight))
                elif (side is Side.SEMI) == bool(matches):
                    made.append(row)
            return reading.check(made)

        columns, types = left.columns, left.types
        if side is Side.LEFT:
            columns, types = columns + right.columns, types + right.types
        return Step(columns, types, run)

    def _aggregate(self, node: Aggregate, known: frozenset[str]) -> Step:
        """Aggregates that depend only on the set of values, not on their multiplicities."""
        if not node.keys:
            raise NotSupported("an aggregate of all rows is computed by columns")
        calls = [compared_call(expr) for _, expr in node.calls]
        used = tuple(dict.fromkeys([*node.keys, *(column for _, column in calls)]))
        step = self._of(node.input, frozenset(used), known & set(node.keys))
        step = _arranged(step, used)
        made = [(_AGGREGATES[function], used.index(column)) for function, column in calls]
        types = [step.type(key) for key in node.keys]
        types += [
            "bigint" if function == "count_distinct" else step.type(column)
            for function, column in calls
        ]
        width, passed = len(node.keys), tuple(known & set(node.keys))

        def run(reading: Reading, values: Values) -> list[Row]:
            bag = consolidated(step.run(reading, {c: values[c] for c in passed}))
            groups: dict[Row, list[Row]] = {}
            for row in bag:
                if row[-1] < 0:
                    raise Declined(Fallback.ROWS_ELSEWHERE)
                groups.setdefault(row[:width], []).append(row)
            return [
                (*key, *(call([r[at] for r in rows if r[at] is not None]) for call, at in made), 1)
                for key, rows in groups.items()
            ]

        return Step(node.columns, tuple(types), run)


_AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "max": lambda values: max(values, default=None),
    "min": lambda values: min(values, default=None),
    "count_distinct": lambda values: len(set(values)),
}
_GROUPING = """
def group(rows):
    groups = {{}}
    for r in rows:
        g = groups.get(key := r[:{keys}])
        if g is None:
            groups[key] = list(r)
        else:
            {add}
    return groups.values()
"""


@dataclass(frozen=True, slots=True)
class _Join:
    """One more input of a join."""

    step: Step
    on: tuple[tuple[int, str, bool], ...]
    """The position in the rows so far, the input's column, and whether NULL equals NULL."""
    outer: tuple[str, ...]
    """Columns of the input whose values are known from outside."""


class Choice:
    """Which of several columns to look rows up by: the one that finds the fewest.

    Counted at first, and again from time to time.
    """

    def __init__(self, sought: Mapping[str, int]) -> None:
        self._sought = sought
        self._best: tuple[str, int] | None = None
        """The column chosen, and how many times it will be used before choosing again."""

    def of(self, reader: RowReader, relation: Relation, values: Values) -> str:
        if len(self._sought) == 1:
            return next(iter(self._sought))
        if self._best is None or not self._best[1]:
            self._best = self._chosen(reader, relation, values), 64
        self._best = self._best[0], self._best[1] - 1
        return self._best[0]

    def _chosen(self, reader: RowReader, relation: Relation, values: Values) -> str:
        counts = {c: reader.count(relation, at, values[c]) for c, at in self._sought.items()}
        known = {c: count for c, count in counts.items() if count is not None}
        others = [c for c in counts if c not in known]
        others.sort(key=lambda c: not reader.is_cheap(relation, self._sought[c]))
        best = min(known, key=lambda c: known[c], default=None)
        for other in others:
            if best is not None and known[best] <= _INDEX_FAN_OUT:
                break
            reader.index(relation, self._sought[other])
            known[other] = reader.count(relation, self._sought[other], values[other]) or 0
            best = min(known, key=lambda c: known[c])
        return best if best is not None else next(iter(self._sought))


def consolidated(rows: list[Row]) -> list[Row]:
    """Sum the weights of equal rows, and drop those of weight zero."""
    if len(rows) == 1 and rows[0][-1]:
        return rows
    weights: dict[Row, int] = {}
    for row in rows:
        key = row[:-1]
        weights[key] = weights.get(key, 0) + row[-1]
    return [(*key, weight) for key, weight in weights.items() if weight]


def changed_relations(node: Node) -> frozenset[str]:
    """The relations whose change a plan reads."""
    if isinstance(node, Leaf):
        return frozenset() if node.when is When.OLD else frozenset({node.relation})
    return frozenset[str]().union(*map(changed_relations, children(node)))


def _then(step: Step, keep: Callable[[Any], Any]) -> Step:
    run = step.run
    return Step(step.columns, step.types, lambda r, v: keep(run(r, v)))


def _arranged(step: Step, columns: tuple[str, ...]) -> Step:
    """The same rows with exactly these columns."""
    if step.columns == columns:
        return step
    places = [step.place(column) for column in columns]
    types = tuple(step.types[place] for place in places)
    pick, run = _picking(places, len(step.columns)), step.run
    return Step(columns, types, lambda r, v: pick(run(r, v)))


def _picking(places: Sequence[int], width: int) -> Callable[[list[Row]], list[Row]]:
    """Columns at these positions, and the weight."""
    if not places:
        return lambda rows: [(r[-1],) for r in rows]
    pick = itemgetter(*places, width)
    return lambda rows: list(map(pick, rows))


def _key_of(places: Sequence[int]) -> Callable[[Row], Any]:
    return itemgetter(*places)


def _has_null(key: Any) -> bool:
    return key is None or (isinstance(key, tuple) and None in key)


def _values(rows: Sequence[Row], place: int, null_safe: bool) -> set[Any]:
    found = {r[place] for r in rows}
    if not null_safe:
        found.discard(None)
    return found


def _check_alike(one: str, other: str) -> None:
    """Raise `NotSupported` unless equal values of two types have the same form."""
    if one != other and not (one in INTEGER_BITS and other in INTEGER_BITS):
        raise NotSupported("columns that differ in type are compared by columns")


def _is_pair(condition: Any, columns: Sequence[str], on: Sequence[tuple[int, str, bool]]) -> bool:
    """Whether a condition is one of these equalities."""
    pair = equal_columns(condition)
    if pair is None:
        return False
    made = {(columns[at], theirs, null_safe) for at, theirs, null_safe in on}
    return pair in made or (pair[1], pair[0], pair[2]) in made


def _joining(
    first: Step,
    known: frozenset[str],
    joins: Sequence[_Join],
    filters: Sequence[tuple[int, Callable[[Any], Any]]],
) -> Run:
    mine = tuple(known & set(first.columns))
    after: list[list[Callable[[Any], Any]]] = [[] for _ in range(len(joins) + 1)]
    for place, keep in filters:
        after[place].append(keep)
    steps = [_joined(join) for join in joins]

    def run(reading: Reading, values: Values) -> list[Row]:
        rows = first.run(reading, {c: values[c] for c in mine})
        for keep in after[0]:
            rows = keep(rows)
        for step, filtering in zip(steps, after[1:], strict=True):
            if not rows:
                return rows
            rows = reading.check(step(reading, values, rows))
            for keep in filtering:
                rows = keep(rows)
        return rows

    return run


def _joined(join: _Join) -> Callable[[Reading, Values, list[Row]], list[Row]]:
    """Join rows with one more input."""
    on, outer, step = join.on, join.outer, join.step
    if not on:

        def product(reading: Reading, values: Values, rows: list[Row]) -> list[Row]:
            right = step.run(reading, {c: values[c] for c in outer})
            if len(rows) * len(right) > reading.rows_max:
                raise TooManyRowsError
            return [(*a[:-1], *b[:-1], a[-1] * b[-1]) for a in rows for b in right]

        return product
    key = _key_of([at for at, _, _ in on])
    other = _key_of([step.place(theirs) for _, theirs, _ in on])
    strict = [i for i, (_, _, null_safe) in enumerate(on) if not null_safe]
    single = len(on) == 1

    def joined(reading: Reading, values: Values, rows: list[Row]) -> list[Row]:
        sought = {c: values[c] for c in outer}
        for at, theirs, null_safe in on:
            sought[theirs] = _values(rows, at, null_safe)
        right = step.run(reading, sought)
        if not right:
            return []
        by_key: dict[Any, list[Row]] = {}
        for r in right:
            by_key.setdefault(other(r), []).append(r)
        # NULL equals nothing, unless the condition says otherwise.
        if single and strict:
            by_key.pop(None, None)
        elif strict:
            by_key = {k: b for k, b in by_key.items() if all(k[i] is not None for i in strict)}
        return [(*a[:-1], *b[:-1], a[-1] * b[-1]) for a in rows for b in by_key.get(key(a), ())]

    return joined


def _contribution(code: RowExpressions, accumulator: Accumulator) -> str:
    """What a row adds to an accumulator; NULL adds nothing."""
    if accumulator.argument is None:
        text = "r[-1]"
    else:
        made = code.value(accumulator.argument)
        scale, wanted = _scale(made.type), _scale(accumulator.type)
        whole = accumulator.type == "bigint" and scale is None
        if not whole and (scale or 0) != wanted:
            raise NotSupported(f"a sum of {made.type.upper()} has no row kernel")
        if made.repeatable:
            text = f"(0 if {made.text} is None else {made.text} * r[-1])"
        else:
            text = f"(0 if (v := {made.text}) is None else v * r[-1])"
        if accumulator.present is not None and made.fallible:
            raise NotSupported("a conditional sum of this expression is computed by columns")
    if accumulator.present is not None:
        text = f"({text} if {code.condition(accumulator.present)} else 0)"
    return text


def _scale(type_: str) -> int | None:
    width = decimal_width(type_)
    return None if width is None else width[1]


def _limit(type_: str) -> int:
    """The largest sum that Spark certainly computes exactly."""
    return _INT_MAX if type_ == "bigint" else 10**SURE_DIGITS
