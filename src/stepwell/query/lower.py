"""From what a view computes to what is kept for it.

The algebra of a query is brought down to a few operators whose changes are easy to compute. What
has memory becomes a stored relation of its own (a block), and stands in the tree as a `Scan` of it.

    Aggregate        a block: sums where all calls have accumulators, else groups
    Distinct         sums without calls: how often is each row there
    set operations   sums over both sides: how often on the left, how often on the right
    semi join        inner join with the distinct keys of the right side
    anti join        the left side less the semi join
    full join        inner join, and the anti joins of both sides with NULLs
    first rows       a block over a block

So only two operators are left that are not linear: `Window`, and `Join`, for left joins and where a
match depends on more than equality. Nothing is stored for them unless an inner join or a third
window above needs all of their rows. A left join beneath an inner join is made after it, or, if
that looks at its right side, taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

from stepwell.query import sums
from stepwell.query.algebra import (
    Aggregate,
    Distinct,
    Expr,
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
    column,
    walk,
)
from stepwell.query.conditions import substitute
from stepwell.query.program import Block, Ending, Field, Groups, Rows, Sums, Top
from stepwell.query.prune import prune
from stepwell.query.reasons import Code, Unsupported
from stepwell.query.running import call_of, running
from stepwell.query.running import number as numbered
from stepwell.query.shape import inner, keep, narrow
from stepwell.query.types import (
    adds_exactly,
    contains_floating,
    one_to_one,
    parse_type,
    why_not_kept,
)

WINDOWS_MAX = 2
"""Windows over one another, with nothing stored between them. What changes in the uppermost depends
on what changes in all below it, and its plan more than doubles with each."""

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
"""Types that Arrow orders as Spark does; strings only without a collation."""

Types = Callable[[Node], tuple[str, ...]]
"""The Spark types of a node's columns."""


class Lowering:
    """Lowers the query of one view, collecting its blocks."""

    def __init__(
        self,
        view: str,
        names: Names,
        types: Types,
        *,
        ansi: bool,
        unique: Mapping[str, tuple[int, ...]],
        views: Mapping[str, Node] | None = None,
    ) -> None:
        self._view = view
        self._keys = dict(unique)
        """Of relations outside this view: positions of columns that are unique together."""
        self._names = names
        self._types = types
        self._ansi = ansi
        self._views = views or {}
        """Other materialized views, as what gives them from their stored relations."""
        self._apart = False
        """Whether a join above would have to store what is not linear."""
        self.blocks: list[Block] = []

    def view(self, node: Node) -> Node:
        """The whole query: the node that gives the view from its blocks."""
        lowered = self.lower(prune(node))
        under = _under(lowered)
        if isinstance(under, Scan) and any(b.relation == under.relation for b in self.blocks):
            return lowered
        return self._rows(narrow(lowered, node.columns))

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
                # Of a long list of unions each holds the one before it.
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
        """Lowered, and stored if it is not linear: a join may need all of its rows."""
        before, self._apart = self._apart, True
        lowered = self.lower(node)
        self._apart = before
        return lowered if is_linear(lowered) else self._rows(lowered)

    # Blocks

    def _name(self) -> str:
        return f"{self._view}${len(self.blocks) + 1}"

    def _rows(self, node: Node, again: tuple[str, ...] | None = None) -> Node:
        relation = self._name()
        fields = tuple(map(Field, self._types(node)))
        self.blocks.append(Rows(relation, fields, node, again))
        # A node of the same columns: whatever stands above need not know.
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
        fields = (*keys, "bigint", *(a.type for a in accumulators))
        relation = self._name()
        self.blocks.append(
            Sums(relation, tuple(map(Field, fields)), source, node.keys, tuple(accumulators))
        )
        stored = self._names.several(1 + len(accumulators))
        columns = dict(zip(accumulators, stored[1:], strict=True))
        results: list[Item] = []
        for (name, _), part in zip(node.calls, parts, strict=True):
            used = [columns[a] for a in part.accumulators]
            results.append((name, Expr(part.result.format(*used), frozenset(used))))
        passed = tuple((key, column(key)) for key in node.keys)
        return Project(Scan(relation, (*node.keys, *stored)), (*passed, *results) or passed)

    def _groups(self, node: Aggregate) -> Node:
        source = self.lower(node.input)
        relation = self._name()
        self.blocks.append(
            Groups(relation, tuple(map(Field, self._types(node))), source, node.keys, node.calls)
        )
        return Scan(relation, node.columns)

    def _top(self, node: TopN) -> Node:
        source = self.lower(node.input)
        if not isinstance(_under(source), Scan):
            source = self._rows(source)
        kinds = dict(zip(source.columns, self._types(source), strict=True))
        for text in node.order:
            if "map<" in kinds[text.split(" ", 1)[0]]:
                raise Unsupported(Code.LIMIT_WITHOUT_ORDER, "LIMIT over a MAP, which has no order")
        lowered = replace(node, input=source)
        relation = self._name()
        self.blocks.append(Top(relation, tuple(map(Field, self._types(lowered))), lowered))
        return Scan(relation, node.columns)

    def _running(self, node: Window) -> Node:
        """A window without PARTITION BY, and the last of its rows."""
        how = running(node)
        number = self._names.new()
        below = self.lower(node.input)
        key = self._types(narrow(below, (how.column,)))[0] if how is not None else ""
        if how is None or not _is_ordered(key) or not self._exact(node, below):
            detail = "a window whose earlier rows may change, or over inexact numbers"
            raise Unsupported(Code.WINDOW_WITHOUT_PARTITION, detail)
        made = Window(below, (), (*node.calls, (number, numbered(how.total))))
        fields = tuple(map(Field, self._types(made)))
        relation = self._name()
        ending = Ending(f"{self._view}${len(self.blocks) + 2}", number, how.column, how.descending)
        rule = "2 rows at the end, else all"
        self.blocks.append(Rows(relation, fields, made, (), ending, rule))
        stored = Scan(relation, made.columns)
        last = TopN(stored, (f"{number} DESC NULLS LAST",), how.rows)
        self.blocks.append(Top(ending.relation, fields, last))
        return narrow(stored, node.columns)

    def _exact(self, node: Window, below: Node) -> bool:
        """Whether what a row adds to can be told from the row before it."""
        calls = tuple((name, column(name)) for name, _ in node.calls)
        types = self._types(Project(replace(node, input=below), calls))
        for (_, expr), type_ in zip(node.calls, types, strict=True):
            call = call_of(expr)
            if call is None or (call.kind != "lag" and contains_floating(type_)):
                return False
            if call.kind == "sum" and not (self._ansi and adds_exactly(type_)):
                # A sum that overflows would be NULL, and so would be those after it.
                return False
        return True

    # Operators that become others

    def _set_operation(self, node: SetOp) -> Node:
        """Count how often each row is on the left and on the right."""
        mark = self._names.new()
        sides = []
        for side, flag in ((node.left, "TRUE"), (node.right, "FALSE")):
            passed = tuple((c, column(c)) for c in side.columns)
            sides.append(Project(side, (*passed, (self._names.new(), Expr(flag)))))
        both = Union(tuple(sides), (*node.columns, mark))
        left, right = self._names.several(2)
        used = frozenset({mark})
        counted = Aggregate(
            both,
            node.columns,
            (
                (left, Expr(f"count_if({mark})", used)),
                (right, Expr(f"count_if(NOT {mark})", used)),
            ),
        )
        counts = frozenset({left, right})
        found = self._aggregate(counted)
        match node.kind:
            case SetKind.EXCEPT:
                made = Filter(found, Expr(f"{left} > 0 AND {right} = 0", counts))
            case SetKind.INTERSECT:
                made = Filter(found, Expr(f"{left} > 0 AND {right} > 0", counts))
            case SetKind.EXCEPT_ALL:
                return self._repeat(found, f"greatest({left} - {right}, 0)", counts, node.columns)
            case SetKind.INTERSECT_ALL:
                return self._repeat(found, f"least({left}, {right})", counts, node.columns)
        return narrow(made, node.columns)

    def _repeat(
        self, node: Node, times: str, used: frozenset[str], columns: tuple[str, ...]
    ) -> Node:
        again = Expr(f"explode(array_repeat(0, CAST({times} AS INT)))", used)
        return narrow(Generate(node, again, False, (self._names.new(),)), columns)

    def check(self, left: Node, right: Node, equal: tuple[tuple[str, str], ...]) -> None:
        """Refuse a subquery that was grouped by what several values of the query may equal."""
        unlike = self._unlike(left, right, equal)
        if unlike:
            types = " with ".join(type_.upper() for type_ in unlike[0][2])
            raise Unsupported(
                Code.UNSUPPORTED_SUBQUERY, f"a correlated subquery that compares {types}"
            )

    def _unlike(
        self, left: Node, right: Node, equal: tuple[tuple[str, str], ...]
    ) -> list[tuple[str, str, tuple[str, str]]]:
        """The pairs of columns of which several values of one may equal one of the other."""
        columns = tuple(dict.fromkeys(c for pair in equal for c in pair))
        if not columns:
            return []
        found = self._types(narrow(Inner((left, right)), columns))
        types = dict(zip(columns, found, strict=True))
        pairs = [(a, b, (types[a], types[b])) for a, b in equal]
        return [(a, b, kinds) for a, b, kinds in pairs if not one_to_one(*kinds)]

    def _join(self, node: Join) -> Node:
        # Rows with the same key must match the same rows; what does not say that is no key.
        for a, b, _ in self._unlike(node.left, node.right, node.equal):
            sign = "<=>" if node.null_safe else "="
            also = (*node.also, Expr(f"{a} {sign} {b}", frozenset({a, b})))
            node = replace(node, equal=tuple(p for p in node.equal if p != (a, b)), also=also)
        left, right = self.lower(node.left), self.lower(node.right)
        on_left = [c for c in node.also if c.columns <= set(node.left.columns)]
        simple = len(on_left) == len(node.also) and node.equal and not node.null_safe
        simple = simple and (not on_left or node.side is not Side.FULL)
        # A left join is linear in its left side as it is.
        simple = simple and (self._apart or node.side is not Side.LEFT)
        if simple and is_linear(left) and is_linear(right) and not (_branches(left, right)):
            return self._decompose(node, left, right, on_left)
        return replace(node, left=left, right=right)

    def _decompose(self, node: Join, left: Node, right: Node, on_left: list[Expr]) -> Node:
        able = left
        for condition in on_left:
            able = keep(able, condition)
        lost = Union((left, Negate(self._matched(able, right, node.equal))), left.columns)
        match node.side:
            case Side.SEMI:
                return self._matched(able, right, node.equal)
            case Side.ANTI:
                return lost
            case _:
                pass
        on = tuple(Expr(f"{a} = {b}", frozenset({a, b})) for a, b in node.equal)
        found = narrow(inner((able, right), on), node.columns)
        parts = [found, self._padded(lost, right, node.columns)]
        if node.side is Side.FULL:
            turned = tuple((b, a) for a, b in node.equal)
            alone = Union((right, Negate(self._matched(right, left, turned))), right.columns)
            parts.append(self._padded(alone, left, node.columns))
        return Union(tuple(parts), node.columns)

    def _matched(self, left: Node, right: Node, equal: tuple[tuple[str, str], ...]) -> Node:
        """The rows of the left side which have a match, each as often as it is there."""
        keys = tuple(dict.fromkeys(b for _, b in equal))
        if self._unique(right, keys):
            # Each row has one match at most: the join itself says which have one.
            distinct = right
        else:
            distinct = self._distinct(narrow(right, keys), keys)
        fresh = {k: self._names.new() for k in keys}
        renamed = Project(distinct, tuple((fresh[k], column(k)) for k in keys))
        on = tuple(Expr(f"{a} = {fresh[b]}", frozenset({a, fresh[b]})) for a, b in equal)
        return narrow(self._inner((left, renamed), on), left.columns)

    def _unique(self, node: Node, keys: tuple[str, ...]) -> bool:
        """Whether there is at most one row for each value of the keys."""
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
        if not isinstance(node, Scan):
            return False
        known = dict(self._keys)
        known.update({b.relation: b.key for b in self.blocks if isinstance(b, Sums | Groups)})
        unique = known.get(node.relation, ())
        return bool(unique) and {node.columns[i] for i in unique} <= set(passed.values())

    def _distinct(self, node: Node, keys: tuple[str, ...]) -> Node:
        for block in self.blocks:
            if isinstance(block, Sums) and block.input == node and not block.accumulators:
                return Scan(block.relation, (*keys, self._names.new()))
        relation = self._name()
        fields = (*self._types(node), "bigint")
        self.blocks.append(Sums(relation, tuple(map(Field, fields)), node, keys, ()))
        return Scan(relation, (*keys, self._names.new()))

    def _padded(self, node: Node, other: Node, columns: tuple[str, ...]) -> Node:
        types = dict(zip(other.columns, self._types(other), strict=True))
        items = tuple(
            (c, Expr(f"CAST(NULL AS {types[c]})") if c in types else column(c)) for c in columns
        )
        return Project(node, items)

    def _inner(self, inputs: tuple[Node, ...], on: tuple[Expr, ...]) -> Node:
        """The inner join, spread over unions among its inputs, so that it is a sum of joins."""
        used = frozenset().union(*(condition.columns for condition in on))
        choices: list[list[tuple[Node, bool, tuple[Item, ...]]]] = []
        for node in inputs:
            choices.append(_terms(node, used))
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


def _terms(node: Node, used: frozenset[str]) -> list[tuple[Node, bool, tuple[Item, ...]]]:
    """A node as a sum: each term with its sign, and the columns to be made after the join."""
    match node:
        case Union():
            found = []
            for child in node.inputs:
                for term, negative, items in _terms(child, frozenset(child.columns) & used):
                    # The union names columns by position.
                    if child.columns != node.columns:
                        return [(node, False, tuple((c, column(c)) for c in node.columns))]
                    found.append((term, negative, items))
            return found
        case Negate():
            return [
                (term, not negative, items) for term, negative, items in _terms(node.input, used)
            ]
        case Project():
            if isinstance(node.input, Union | Negate | Inner | Project) and all(
                expr.column == name for name, expr in node.items if name in used
            ):
                outer = dict(node.items)
                found = []
                for term, negative, items in _terms(node.input, used):
                    inside = dict(items)
                    if any(
                        inside[c].column != c
                        for expr in outer.values()
                        for c in expr.columns
                        if expr.column is None
                    ):
                        return [(node, False, tuple((c, column(c)) for c in node.columns))]
                    items = tuple(
                        (name, inside.get(expr.column or "", expr)) for name, expr in node.items
                    )
                    found.append((term, negative, items))
                return found
        case _:
            pass
    return [(node, False, tuple((c, column(c)) for c in node.columns))]


def _outer_last(node: Inner) -> Node | None:
    """The same join with a left join among its inputs made after it; None if there is none.

        (a LEFT JOIN b ON a.x = b.x) JOIN c ON a.y = c.y
        (a JOIN c ON a.y = c.y) LEFT JOIN b ON a.x = b.x

    Possible where no condition looks at `b`. Else all rows of the left join would be stored.
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


def is_linear(node: Node) -> bool:
    """Whether a change of the inputs passes through without looking at other rows."""
    return not any(isinstance(part, Window | Join) for part in walk(node))


def _branches(left: Node, right: Node) -> bool:
    """Whether one side is a sum already; taking sums of sums apart would not end well."""
    return any(isinstance(part, Negate) for side in (left, right) for part in walk(side))


def _under(node: Node) -> Node:
    """What lies under filters and projections."""
    while isinstance(node, Filter | Project):
        node = node.input
    return node


def renamed(node: Node, columns: tuple[str, ...], names: Names) -> Node:
    """The output of a view, with these names for its columns and fresh ones below."""
    match node:
        case Scan():
            return Scan(node.relation, columns)
        case Filter():
            inside = dict(zip(node.columns, columns, strict=True))
            return Filter(renamed(node.input, columns, names), substitute(node.condition, inside))
        case Project():
            fresh = names.several(len(node.input.columns))
            inside = dict(zip(node.input.columns, fresh, strict=True))
            items = tuple(
                (new, substitute(expr, inside))
                for new, (_, expr) in zip(columns, node.items, strict=True)
            )
            return Project(renamed(node.input, fresh, names), items)
        case _:
            raise TypeError(f"{type(node).__name__} is not part of an output")
