"""Lowering: from the query of a view to the relations stored for it.

Lowering reduces the algebra of a query to a few operators whose changes are easy to compute. Each
stateful operator becomes a stored relation of its own (a block), and a `Scan` of that relation
replaces it in the tree.

    Aggregate        a block: sums if all calls have accumulators, else groups
    Distinct         sums without calls: the count of each row
    set operations   sums over both sides: the count of each row on the left and on the right
    semi join        inner join with the distinct keys of the right side
    anti join        the left side minus the semi join
    full join        inner join, plus the anti joins of both sides padded with NULLs
    first rows       a block over a block

Only two operators remain that are not linear: `Window`, and `Join`, for left joins and for matches
that depend on more than equality. Nothing is stored for them unless an inner join or a third window
above needs all of their rows. A left join below an inner join moves above it, or, if the inner join
reads its right side, is decomposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from stepwell.plan import sums
from stepwell.plan.casts import without_casts
from stepwell.plan.expressions import (
    FALSE,
    TRUE,
    Expr,
    SortKey,
    build,
    column,
    equal,
    null,
    row_number,
)
from stepwell.plan.fingerprint import fingerprint, places, spelled
from stepwell.plan.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Inner,
    Item,
    Join,
    Names,
    Negate,
    Node,
    Project,
    Scan,
    SetKind,
    SetOp,
    Side,
    TopN,
    Union,
    Values,
    Window,
    walk,
)
from stepwell.plan.program import Block, Ending, Field, Groups, Rows, Sums, Top
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.running import call_of, running
from stepwell.plan.shape import filtered, inner, is_linear, narrow, typed, typed_items
from stepwell.plan.shared import Shared, pruned_together, renamed, replaced, spelled_out
from stepwell.plan.terms import terms
from stepwell.plan.types import (
    adds_exactly,
    contains_floating,
    one_to_one,
    parse_type,
    why_not_kept,
)

WINDOWS_MAX = 2
"""Maximum number of stacked windows with nothing stored between them. The change of the topmost
window depends on the changes of all windows below it, and its plan more than doubles with each."""

ORDERED = frozenset(
    {
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "decimal",
        "date",
        "timestamp",
        "timestamp_ntz",
        "string",
    }
)
"""Types that Arrow orders the way Spark does; strings only without a collation."""

Types = Callable[[Node], tuple[str, ...]]
"""Returns the Spark types of a node's columns."""


class Lowering:
    """Lowers the query of one view and collects its blocks."""

    def __init__(
        self,
        view: str,
        names: Names,
        types: Types,
        *,
        ansi: bool,
        unique: Mapping[str, tuple[int, ...]],
        views: Mapping[str, Node] | None = None,
        shared: Sequence[Shared] = (),
    ) -> None:
        self._view = view
        self._keys = dict(unique)
        """For relations outside this view: positions of columns that are unique together."""
        self._names = names
        self._types = types
        self._ansi = ansi
        self._views = views or {}
        """Other materialized views, each as the node that reads it from its stored relations."""
        self._shared = {query.name: query.node for query in shared}
        """The queries that several parts of this one read, each after those that it reads."""
        self._relations: dict[object, str] = {}
        """The relations stored so far, by what they hold."""
        self._apart = False
        """Whether a join above would have to store an input that is not linear."""
        self.blocks: list[Block] = []

    def view(self, node: Node) -> Node:
        """Lower the whole query; returns the node that reads the view from its blocks."""
        queries = tuple(Shared(name, query) for name, query in self._shared.items())
        kept, needed = pruned_together(node, queries, self._single)
        outputs: dict[str, tuple[Node, tuple[int, ...]]] = {}

        def stored(scan: Scan) -> Node:
            output, places = outputs[scan.relation]
            return renamed(output, tuple(scan.columns[place] for place in places), self._names)

        for query in needed:
            made = without_casts(replaced(query.node, stored), self._types)
            outputs[query.name] = self._stored(self.lower(made), made.columns), query.places
        made = without_casts(replaced(kept, stored), self._types)
        return self._stored(self.lower(made), node.columns)

    def _stored(self, lowered: Node, columns: tuple[str, ...]) -> Node:
        """A node that reads its rows from one stored relation of this view."""
        under = _under(lowered)
        if isinstance(under, Scan) and any(b.relation == under.relation for b in self.blocks):
            return lowered
        return self._rows(narrow(lowered, columns))

    def lower(self, node: Node) -> Node:
        match node:
            case Scan():
                if node.relation in self._views:
                    return renamed(self._views[node.relation], node.columns, self._names)
                return node
            case Values():
                return node
            case Filter() | Project() | Generate():
                return replace(node, input=self.lower(node.input))
            case Union():
                first, *rest = (self.lower(c) for c in node.inputs)
                # A long chain of unions nests: the first input of each is the union before it.
                before = first.inputs if isinstance(first, Union) else (first,)
                return replace(node, inputs=(*before, *rest))
            case Inner():
                outer = _outer_last(node)
                if outer is not None:
                    return self.lower(outer)
                return self._inner(tuple(self._linear(c) for c in node.inputs), node.on)
            case Distinct():
                return self._sums(Aggregate(node.input, node.columns, ()), ())
            case Aggregate():
                return self._aggregate(node)
            case SetOp():
                return self._set_operation(node)
            case Join():
                return self._join(node)
            case Window() if not node.partition:
                return self._running(node)
            case Window():
                below = self.lower(node.input)
                windows = sum(isinstance(part, Window) for part in walk(below))
                if windows >= WINDOWS_MAX and not any(map(why_not_kept, self._types(below))):
                    below = self._rows(below)
                lowered = replace(node, input=below)
                made = Project(lowered, tuple((n, column(n)) for n, _ in node.calls))
                if any(contains_floating(t) for t in self._types(made)):
                    return self._rows(lowered, again=node.partition)
                return lowered
            case TopN():
                return self._top(node)
            case _:
                raise TypeError(f"{type(node).__name__} is not part of a query")

    def _linear(self, node: Node) -> Node:
        """Lower a join input, and store it if it is not linear: a join may need all of its rows."""
        before, self._apart = self._apart, True
        lowered = self.lower(node)
        self._apart = before
        return lowered if is_linear(lowered) else self._rows(lowered)

    # Blocks

    def _name(self) -> str:
        return f"{self._view}${len(self.blocks) + 1}"

    def _rows(self, node: Node, again: tuple[str, ...] | None = None) -> Node:
        places = None if again is None else tuple(map(node.columns.index, again))
        made = "rows", fingerprint(node), places
        relation = self._relations.get(made)
        if relation is None:
            relation = self._relations[made] = self._name()
            types = self._types(node)
            kept = typed(node, dict(zip(node.columns, types, strict=True)))
            self.blocks.append(Rows(relation, tuple(map(Field, types)), kept, again))
        # The scan has the columns of the node, so the nodes above it are unaffected.
        return Scan(relation, node.columns)

    def _aggregate(self, node: Aggregate) -> Node:
        arguments = [sums.argument_of(call) for _, call in node.calls]
        asked = {a.sql: a for a in arguments if a is not None}
        made = tuple((self._names.new(), a) for a in asked.values())
        types: dict[str, str] = {}
        if made:
            types = dict(zip(asked, self._types(Project(node.input, made)), strict=True))
        parts = [
            sums.take_apart(call, types[a.sql] if a else None, ansi=self._ansi)
            for (_, call), a in zip(node.calls, arguments, strict=True)
        ]
        apart = [part for part in parts if part is not None]
        if len(apart) == len(parts):
            return self._sums(node, tuple(apart))
        return self._groups(node)

    def _sums(self, node: Aggregate, parts: tuple[sums.Sum, ...]) -> Node:
        source = self.lower(node.input)
        accumulators: list[sums.Accumulator] = []
        for part in parts:
            accumulators += [a for a in part.accumulators if a not in accumulators]
        keys = self._types(narrow(node.input, node.keys)) if node.keys else ()
        relation = self._summed(source, node.keys, keys, tuple(accumulators))
        stored = self._names.several(1 + len(accumulators))
        columns = dict(zip(accumulators, stored[1:], strict=True))
        results: list[Item] = []
        for (name, _), part in zip(node.calls, parts, strict=True):
            used = [columns[a] for a in part.accumulators]
            results.append((name, part.result(used)))
        passed = tuple((key, column(key)) for key in node.keys)
        return Project(Scan(relation, (*node.keys, *stored)), (*passed, *results) or passed)

    def _summed(
        self,
        source: Node,
        keys: tuple[str, ...],
        types: tuple[str, ...],
        accumulators: tuple[sums.Accumulator, ...],
    ) -> str:
        """The relation of the sums of a lowered node."""
        known = places([source])
        texts = tuple(
            (a.type, *(None if e is None else spelled(e, known) for e in (a.argument, a.present)))
            for a in accumulators
        )
        made = "sums", fingerprint(source), tuple(known[key] for key in keys), texts
        if made not in self._relations:
            relation = self._relations[made] = self._name()
            fields = tuple(map(Field, (*types, "bigint", *(a.type for a in accumulators))))
            kept = typed(source, dict(zip(keys, types, strict=True)))
            self.blocks.append(Sums(relation, fields, kept, keys, accumulators))
        return self._relations[made]

    def _groups(self, node: Aggregate) -> Node:
        source = self.lower(node.input)
        known = places([source])
        texts = tuple(spelled(call, known) for _, call in node.calls)
        made = "groups", fingerprint(source), tuple(known[key] for key in node.keys), texts
        relation = self._relations.get(made)
        if relation is None:
            relation = self._relations[made] = self._name()
            types = self._types(node)
            kinds = dict(zip(node.columns, types, strict=True))
            fields, calls = tuple(map(Field, types)), typed_items(node.calls, kinds)
            self.blocks.append(Groups(relation, fields, typed(source, kinds), node.keys, calls))
        return Scan(relation, node.columns)

    def _top(self, node: TopN) -> Node:
        source = self.lower(node.input)
        if not isinstance(_under(source), Scan):
            source = self._rows(source)
        kinds = dict(zip(source.columns, self._types(source), strict=True))
        for key in node.order:
            if "map<" in kinds[key.column]:
                raise Unsupported(Code.LIMIT_WITHOUT_ORDER, "LIMIT over a MAP, which has no order")
        lowered = replace(node, input=typed(source, kinds))
        relation = self._name()
        self.blocks.append(Top(relation, tuple(map(Field, kinds.values())), lowered))
        return Scan(relation, node.columns)

    def _running(self, node: Window) -> Node:
        """Lower a window without PARTITION BY, and store its last rows."""
        how = running(node)
        number = self._names.new()
        below = self.lower(node.input)
        key = self._types(narrow(below, (how.first.column,)))[0] if how is not None else ""
        if how is None or not _is_ordered(key) or not self._exact(node, below):
            detail = "a window whose earlier rows may change, or over inexact numbers"
            raise Unsupported(Code.WINDOW_WITHOUT_PARTITION, detail)
        made = Window(below, (), (*node.calls, (number, row_number(how.total))))
        types = self._types(made)
        fields, kinds = tuple(map(Field, types)), dict(zip(made.columns, types, strict=True))
        relation = self._name()
        last = f"{self._view}${len(self.blocks) + 2}"
        ending = Ending(last, number, how.first.column, how.first.descending)
        rule = "2 rows at the end, else all"
        self.blocks.append(Rows(relation, fields, typed(made, kinds), (), ending, rule))
        stored = Scan(relation, made.columns)
        order = (SortKey(number, descending=True, nulls_first=False),)
        self.blocks.append(Top(ending.relation, fields, TopN(stored, order, how.rows)))
        return narrow(stored, node.columns)

    def _exact(self, node: Window, below: Node) -> bool:
        """Whether the values of a row follow exactly from the values of the row before it."""
        calls = tuple((name, column(name)) for name, _ in node.calls)
        types = self._types(Project(replace(node, input=below), calls))
        for (_, expr), type_ in zip(node.calls, types, strict=True):
            call = call_of(expr)
            if call is None or (call.kind != "lag" and contains_floating(type_)):
                return False
            if call.kind == "sum" and not (self._ansi and adds_exactly(type_)):
                # A sum that overflows would be NULL, and so would all sums after it.
                return False
        return True

    # Operators expressed by other operators

    def _set_operation(self, node: SetOp) -> Node:
        """Count each row on the left and on the right."""
        mark = self._names.new()
        sides = []
        for side, flag in ((node.left, TRUE), (node.right, FALSE)):
            passed = tuple((c, column(c)) for c in side.columns)
            sides.append(Project(side, (*passed, (self._names.new(), flag))))
        both = Union(tuple(sides), (*node.columns, mark))
        left, right = self._names.several(2)
        counted = Aggregate(
            both,
            node.columns,
            (
                (left, build("COUNT_IF(mark)", mark=column(mark))),
                (right, build("COUNT_IF(NOT mark)", mark=column(mark))),
            ),
        )
        found = self._aggregate(counted)
        counts = {"a": column(left), "b": column(right)}
        match node.kind:
            case SetKind.EXCEPT:
                made = Filter(found, build("a > 0 AND b = 0", **counts))
            case SetKind.INTERSECT:
                made = Filter(found, build("a > 0 AND b > 0", **counts))
            case SetKind.EXCEPT_ALL:
                return self._repeat(found, build("GREATEST(a - b, 0)", **counts), node.columns)
            case SetKind.INTERSECT_ALL:
                return self._repeat(found, build("LEAST(a, b)", **counts), node.columns)
        return narrow(made, node.columns)

    def _repeat(self, node: Node, times: Expr, columns: tuple[str, ...]) -> Node:
        again = build("EXPLODE(ARRAY_REPEAT(0, CAST(times AS INT)))", times=times)
        return narrow(Generate(node, again, False, (self._names.new(),)), columns)

    def check(
        self,
        left: Node,
        right: Node,
        equal: tuple[tuple[str, str], ...],
        listed: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Reject a subquery grouped by a column that several outer values may equal.

        `listed` are the equalities of IN; the others are correlated.
        """
        unlike = self._unlike(left, right, equal)
        if unlike:
            *pair, kinds = unlike[0]
            what = "IN inside an expression" if tuple(pair) in listed else "a correlated subquery"
            types = " with ".join(type_.upper() for type_ in kinds)
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, f"{what} that compares {types}")

    def _unlike(
        self, left: Node, right: Node, equal: tuple[tuple[str, str], ...]
    ) -> list[tuple[str, str, tuple[str, str]]]:
        """The pairs of columns where several values of one may equal one value of the other."""
        columns = tuple(dict.fromkeys(c for pair in equal for c in pair))
        if not columns:
            return []
        both = (spelled_out(left, self._shared), spelled_out(right, self._shared))
        found = self._types(narrow(Inner(both), columns))
        types = dict(zip(columns, found, strict=True))
        pairs = [(a, b, (types[a], types[b])) for a, b in equal]
        return [(a, b, kinds) for a, b, kinds in pairs if not one_to_one(*kinds)]

    def _join(self, node: Join) -> Node:
        # Rows with the same key must match the same rows; other pairs become plain conditions.
        for a, b, _ in self._unlike(node.left, node.right, node.equal):
            also = (*node.also, equal(a, b, null_safe=node.null_safe))
            node = replace(node, equal=tuple(p for p in node.equal if p != (a, b)), also=also)
        left, right = self.lower(node.left), self.lower(node.right)
        on_left = [c for c in node.also if c.columns <= set(node.left.columns)]
        simple = len(on_left) == len(node.also) and node.equal and not node.null_safe
        simple = simple and (not on_left or node.side is not Side.FULL)
        # A left join is already linear in its left side.
        simple = simple and (self._apart or node.side is not Side.LEFT)
        if simple and is_linear(left) and is_linear(right) and not (_branches(left, right)):
            return self._decompose(node, left, right, on_left)
        return replace(node, left=left, right=right)

    def _decompose(self, node: Join, left: Node, right: Node, on_left: list[Expr]) -> Node:
        able = left
        for condition in on_left:
            able = filtered(able, condition)
        lost = Union((left, Negate(self._matched(able, right, node.equal))), left.columns)
        match node.side:
            case Side.SEMI:
                return self._matched(able, right, node.equal)
            case Side.ANTI:
                return lost
            case _:
                pass
        on = tuple(equal(a, b) for a, b in node.equal)
        found = narrow(inner((able, right), on), node.columns)
        parts = [found, self._padded(lost, right, node.columns)]
        if node.side is Side.FULL:
            turned = tuple((b, a) for a, b in node.equal)
            alone = Union((right, Negate(self._matched(right, left, turned))), right.columns)
            parts.append(self._padded(alone, left, node.columns))
        return Union(tuple(parts), node.columns)

    def _matched(self, left: Node, right: Node, pairs: tuple[tuple[str, str], ...]) -> Node:
        """The left rows that have a match, with their multiplicities unchanged."""
        keys = tuple(dict.fromkeys(b for _, b in pairs))
        if self._unique(right, keys):
            # Each row has at most one match, so the join itself selects the matched rows.
            distinct = right
        else:
            distinct = self._distinct(narrow(right, keys), keys)
        fresh = {k: self._names.new() for k in keys}
        renamed = Project(distinct, tuple((fresh[k], column(k)) for k in keys))
        on = tuple(equal(a, fresh[b]) for a, b in pairs)
        return narrow(self._inner((left, renamed), on), left.columns)

    def _single(self, node: Join) -> bool:
        """Whether a row on the left of a join in the query has at most one match."""
        keys = tuple(dict.fromkeys(b for _, b in node.equal))
        right = spelled_out(node.right, self._shared)
        return self._unique(right, keys) and not self._unlike(node.left, node.right, node.equal)

    def _unique(self, node: Node, keys: tuple[str, ...]) -> bool:
        """Whether each value of the keys occurs in at most one row."""
        passed = {k: k for k in keys}
        while isinstance(node, Filter | Project):
            if isinstance(node, Project):
                items = dict(node.items)
                for key, name in passed.items():
                    source = items[name].column
                    if source is None:
                        return False
                    passed[key] = source
            node = node.input
        if isinstance(node, Aggregate):
            return bool(node.keys) and set(node.keys) <= set(passed.values())
        if not isinstance(node, Scan):
            return False
        known = dict(self._keys)
        known.update({b.relation: b.key for b in self.blocks if isinstance(b, Sums | Groups)})
        unique = known.get(node.relation, ())
        return bool(unique) and {node.columns[i] for i in unique} <= set(passed.values())

    def _distinct(self, node: Node, keys: tuple[str, ...]) -> Node:
        relation = self._summed(node, keys, self._types(node), ())
        return Scan(relation, (*keys, self._names.new()))

    def _padded(self, node: Node, other: Node, columns: tuple[str, ...]) -> Node:
        types = dict(zip(other.columns, self._types(other), strict=True))
        items = tuple((c, null(types[c]) if c in types else column(c)) for c in columns)
        return Project(node, items)

    def _inner(self, inputs: tuple[Node, ...], on: tuple[Expr, ...]) -> Node:
        """The inner join distributed over unions among its inputs: a sum of joins."""
        used = frozenset().union(*(condition.columns for condition in on))
        choices: list[list[tuple[Node, bool, tuple[Item, ...]]]] = []
        for node in inputs:
            choices.append(terms(node, used))
        columns = tuple(c for node in inputs for c in node.columns)
        made: list[Node] = []
        for choice in product(*choices):
            term = inner(tuple(node for node, _, _ in choice), on)
            items = tuple(item for _, _, given in choice for item in given)
            if any(e.column != n for n, e in items) or term.columns != columns:
                by_name = dict(items)
                term = Project(term, tuple((c, by_name.get(c, column(c))) for c in columns))
            made.append(Negate(term) if sum(negative for _, negative, _ in choice) % 2 else term)
        return made[0] if len(made) == 1 else Union(tuple(made), columns)


def _outer_last(node: Inner) -> Node | None:
    """Move a left join among the inputs above the inner join; None if there is none to move.

        (a LEFT JOIN b ON a.x = b.x) JOIN c ON a.y = c.y
        (a JOIN c ON a.y = c.y) LEFT JOIN b ON a.x = b.x

    This requires that no condition reads `b`. Otherwise all rows of the left join would be stored.
    """
    used = frozenset[str]().union(*(condition.columns for condition in node.on))
    for i, child in enumerate(node.inputs):
        join = child.input if isinstance(child, Project) else child
        if not isinstance(join, Join) or join.side is not Side.LEFT:
            continue
        passed = {n: e.column for n, e in child.items} if isinstance(child, Project) else {}
        mine = used & set(child.columns)
        if not mine <= set(join.left.columns) or any(passed.get(c, c) != c for c in mine):
            continue
        first = inner((*node.inputs[:i], join.left, *node.inputs[i + 1 :]), node.on)
        made: Node = replace(join, left=first)
        if isinstance(child, Project):
            others = [c for j, other in enumerate(node.inputs) if j != i for c in other.columns]
            made = Project(made, (*child.items, *((c, column(c)) for c in others)))
        return narrow(made, node.columns)
    return None


def _is_ordered(type: str) -> bool:
    parsed = parse_type(type)
    return parsed.name in ORDERED and parsed.collation is None


def _branches(left: Node, right: Node) -> bool:
    """Whether one side is a signed sum already; expanding sums of sums would multiply the terms."""
    return any(isinstance(part, Negate) for side in (left, right) for part in walk(side))


def _under(node: Node) -> Node:
    """The node below filters and projections."""
    while isinstance(node, Filter | Project):
        node = node.input
    return node
