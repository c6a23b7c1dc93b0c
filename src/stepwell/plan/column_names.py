"""Names for the columns of plans that users recognize: their own columns, and expressions of them.

A plan names its columns `_c1`, `_c2`, ... Here each of them is traced back to the columns of tables
and views, so that `explain` and reasons show `l_extendedprice * (1 - l_discount)`. A column that
several scans of a plan have is qualified: `nation.n_name` and `nation_2.n_name`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from stepwell.plan.expressions import DIALECT, Expr, SortKey, column
from stepwell.plan.identity import by_identity
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
    Filter,
    Generate,
    Inner,
    Join,
    Keys,
    Leaf,
    Node,
    Project,
    Scan,
    SetOp,
    Side,
    Union,
    Values,
    Window,
    children,
    walk,
)
from stepwell.plan.program import Block, Full, Groups, Program, Sums
from stepwell.plan.sums import Accumulator

LENGTH_MAX = 500
"""A column whose expression is longer keeps the name that the plan gives it."""

Meaning = Mapping[str, exp.Expr]
"""What each column of a node is, in the user's names."""
_SIMPLE = (
    exp.Column,
    exp.Func,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.Dot,
    exp.Filter,
    exp.Window,
    exp.Star,
)
"""Expressions that need no parentheses inside others."""
_CONNECTED = (exp.And, exp.Or)
"""Functions in sqlglot's eyes, but written as operators."""


@dataclass(slots=True)
class ColumnNames:
    """The column names of all relations of a pipeline."""

    _relations: dict[str, tuple[exp.Expr, ...]] = field(default_factory=dict)
    _outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    """By relation: the columns of the view that shows it, by what they are."""
    _passed: dict[str, dict[int, str]] = field(default_factory=dict)
    """By relation: the positions that are columns of the view as they are."""

    def add_table(self, name: str, columns: Iterable[str]) -> None:
        self._relations[name] = tuple(_named(column) for column in columns)

    def add_program(self, program: Program) -> None:
        """Name the columns of each relation that is stored for a view."""
        for block in program.blocks:
            self._relations[block.relation] = self._stored(block)
        shown = program.shown.relation
        if isinstance(program.shown, Full):
            self.add_table(shown, program.columns)
        else:
            tracing = Tracing(self, program.output)
            known = tracing.of(program.output)
            pairs = zip(program.output.columns, program.columns, strict=False)
            self._outputs[shown] = {text_of(known[name]): given for name, given in pairs}
            self._passed[shown] = _passed(program)

    def of(self, relation: str, count: int) -> tuple[exp.Expr, ...]:
        """The columns of a relation; those of an unknown one are numbered."""
        known = self._relations.get(relation, ())
        return known if len(known) == count else tuple(_named(f"c{i}") for i in range(count))

    def texts(self, relation: str, count: int) -> tuple[str, ...]:
        """The names of a relation's columns, by position."""
        passed = self._passed.get(relation, {})
        trees = enumerate(self.of(relation, count))
        return tuple(passed.get(place) or text_of(tree) for place, tree in trees)

    def view_column(self, relation: str, tree: exp.Expr) -> exp.Expr:
        """What another view calls this: the column of the view that shows the relation."""
        name = self._outputs.get(relation, {}).get(text_of(tree))
        return tree if name is None else _named(name)

    def _stored(self, block: Block) -> tuple[exp.Expr, ...]:
        if isinstance(block, Full):
            return tuple(_named(f"c{i}") for i in range(len(block.fields)))
        tracing = Tracing(self, block.input)
        known = tracing.of(block.input)
        match block:
            case Sums():
                sums = (tracing.accumulator(a, known) for a in block.accumulators)
                return (*(known[key] for key in block.keys), _count(), *sums)
            case Groups():
                calls = (tracing.expression(call, known) for _, call in block.calls)
                return (*(known[key] for key in block.keys), *calls)
            case _:
                return tuple(known[name] for name in block.input.columns)


class Tracing:
    """Traces the columns of one plan.

    `stages` are further relations that it reads. A column of another view has the name that the
    view gives it; `view` is the one that the plan belongs to, whose columns are spelled out.
    """

    def __init__(
        self,
        names: ColumnNames,
        plan: Node,
        *,
        view: Program | None = None,
        stages: Mapping[str, Sequence[exp.Expr]] | None = None,
    ) -> None:
        self._names = names
        self._own = frozenset(block.relation for block in view.blocks) if view else frozenset()
        self._stages = stages or {}
        self._known: dict[int, tuple[Node, Meaning]] = {}
        self._aliases: dict[tuple[str, tuple[str, ...]], str] = {}
        self._several: set[str] = set()
        self._name_scans(plan)

    def _name_scans(self, plan: Node) -> None:
        """Give each scan a name of its own, and find the columns that several scans have."""
        scans = {(n.relation, n.columns): n for n in walk(plan) if isinstance(n, Scan | Leaf)}
        counts: dict[str, int] = {}
        seen: set[str] = set()
        for key, scan in scans.items():
            number = counts[scan.relation] = counts.get(scan.relation, 0) + 1
            self._aliases[key] = scan.relation if number == 1 else f"{scan.relation}_{number}"
            here = {text_of(tree).lower() for tree in self._columns(scan)}
            self._several |= here & seen
            seen |= here

    def _columns(self, scan: Scan | Leaf) -> Sequence[exp.Expr]:
        stage = self._stages.get(scan.relation)
        return self._names.of(scan.relation, len(scan.columns)) if stage is None else stage

    def alias(self, scan: Scan | Leaf) -> str:
        """The name that qualifies the columns of a scan."""
        return self._aliases[scan.relation, scan.columns]

    def of(self, node: Node) -> Meaning:
        """What the columns of a node are."""
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = (node, self._trace(node))
        return known[1]

    def _trace(self, node: Node) -> Meaning:
        match node:
            case Scan() | Leaf():
                columns = zip(node.columns, self._columns(node), strict=False)
                return {name: self._qualified(node, tree) for name, tree in columns}
            case Values():
                return {name: _named(f"col{i + 1}") for i, name in enumerate(node.columns)}
            case Project():
                below = self.of(node.input)
                relation = _base(node)
                return {n: self._given(relation, self._short(n, e, below)) for n, e in node.items}
            case Inner() | Join():
                sides = children(node)
                if isinstance(node, Join) and node.side in (Side.SEMI, Side.ANTI):
                    sides = (node.left,)
                return {name: tree for side in sides for name, tree in self.of(side).items()}
            case Union() | SetOp():
                first = children(node)[0]
                below = self.of(first)
                pairs = zip(node.columns, first.columns, strict=True)
                return {name: below[other] for name, other in pairs}
            case Aggregate():
                below = self.of(node.input)
                calls = {name: self._short(name, call, below) for name, call in node.calls}
                return {**{key: below[key] for key in node.keys}, **calls}
            case Accumulate():
                below = self.of(node.input)
                sums = {name: self.accumulator(a, below) for name, a in node.sums}
                return {**{key: below[key] for key in node.keys}, node.rows: _count(), **sums}
            case Window():
                below = self.of(node.input)
                return {**below, **{n: self._short(n, call, below) for n, call in node.calls}}
            case Generate():
                below = self.of(node.input)
                made: dict[str, exp.Expr] = {name: _named(name) for name in node.made}
                if len(made) == 1:
                    made = {node.made[0]: self._short(node.made[0], node.generator, below)}
                return {**below, **made}
            case Keys():
                below = self.of(node.input)
                return {name: below[old] for name, old in node.items}
            case _:
                return self.of(children(node)[0])

    def _qualified(self, scan: Scan | Leaf, tree: exp.Expr) -> exp.Expr:
        plain = isinstance(tree, exp.Column) and not tree.table
        if not plain or text_of(tree).lower() not in self._several:
            return tree
        return exp.column(tree.this.copy(), table=exp.to_identifier(self.alias(scan)))

    def _given(self, relation: str | None, tree: exp.Expr) -> exp.Expr:
        known = relation is not None and relation not in self._own
        return self._names.view_column(relation, tree) if known and relation else tree

    def _short(self, name: str, expr: Expr, known: Meaning) -> exp.Expr:
        if expr.column is not None and expr.column in known:
            return known[expr.column]
        tree = self.expression(expr, known)
        return tree if len(text_of(tree)) <= LENGTH_MAX else _named(name)

    def accumulator(self, accumulator: Accumulator, known: Meaning) -> exp.Expr:
        """A stored count or sum, as the aggregate that it is."""
        present = accumulator.present
        if accumulator.argument is not None:
            call: exp.Expr = exp.Sum(this=self.expression(accumulator.argument, known))
        else:
            counted = None if present is None else _not_null(present.tree)
            if counted is not None and present is not None:
                return exp.Count(this=self.expression(present.part(counted), known), big_int=True)
            call = _count()
        if present is None:
            return call
        return exp.Filter(this=call, expression=exp.Where(this=self.expression(present, known)))

    def expression(self, expr: Expr, known: Meaning) -> exp.Expr:
        """An expression over the columns of a node, in the user's names."""
        return _replaced(expr.tree.copy(), expr.columns, known)

    def conjunct(self, expr: Expr, known: Meaning) -> exp.Expr:
        """One of several conditions, in parentheses if it is a disjunction."""
        tree = self.expression(expr, known)
        return exp.Paren(this=tree) if isinstance(tree, exp.Or) else tree

    def text(self, expr: Expr, node: Node) -> str:
        return text_of(self.expression(expr, self.of(node)))

    def texts(self, names: Iterable[str], node: Node) -> list[str]:
        """The columns of a node with these names."""
        return [self.text(column(name), node) for name in names]

    def sort_key(self, key: SortKey, node: Node) -> str:
        direction = " DESC" if key.descending else ""
        usual = key.nulls_first is not key.descending
        nulls = "" if usual else f" NULLS {'FIRST' if key.nulls_first else 'LAST'}"
        return f"{self.text(column(key.column), node)}{direction}{nulls}"


def renamed(message: str, plan: Node, tracing: Tracing) -> str:
    """A message with the names of a plan's columns replaced by the user's."""
    asked = set(re.findall(r"\b_\w+\b", message))
    known: dict[str, exp.Expr] = {}
    for node in walk(plan) if asked else ():
        known |= {n: tracing.of(node)[n] for n in asked.intersection(node.columns)}
    return re.sub(r"\b_\w+\b", lambda m: text_of(known[m[0]]) if m[0] in known else m[0], message)


def _replaced(tree: exp.Expr, columns: frozenset[str], known: Meaning) -> exp.Expr:
    folded = _folded(tree, known)
    if folded is not None:
        return folded
    if isinstance(tree, exp.Column):
        first, *rest = tree.parts
        if first.name not in columns or first.name not in known:
            return tree
        found = known[first.name].copy()
        return exp.Dot.build([found, *(part.copy() for part in rest)]) if rest else found
    for part in list(tree.iter_expressions()):
        made = _replaced(part, columns, known)
        if made is not part:
            simple = isinstance(made, _SIMPLE) and not isinstance(made, _CONNECTED)
            inside = isinstance(tree, exp.Func) and not isinstance(tree, _CONNECTED)
            plain = simple or inside or isinstance(tree, exp.Paren | exp.Where | exp.Ordered)
            part.replace(made if plain else exp.Paren(this=made))
    return tree


def _folded(tree: exp.Expr, known: Meaning) -> exp.Expr | None:
    """`sum(x)` or `avg(x)` for the expression that computes it from a stored sum and its count.

    See `sums`: CASE WHEN n = 0 THEN NULL ELSE CAST(total AS ...) END, or a quotient.
    """
    if not isinstance(tree, exp.Case) or len(tree.args["ifs"]) != 1:
        return None
    test, default = tree.args["ifs"][0], tree.args.get("default")
    empty = test.this
    if not isinstance(empty, exp.EQ) or not isinstance(test.args["true"], exp.Null):
        return None
    if not isinstance(empty.this, exp.Column) or default is None or default.find(exp.Case):
        return None
    count = empty.this.name
    totals = [known.get(c.name) for c in default.find_all(exp.Column) if c.name != count]
    total = totals[0] if len(totals) == 1 else None
    if total is None or not _calls(total, exp.Sum) or not _calls(known.get(count), exp.Count):
        return None
    if default.find(exp.Div) is None:
        return total.copy() if isinstance(default, exp.Cast) else None
    call = total.this if isinstance(total, exp.Filter) else total
    average = exp.Avg(this=call.this.copy())
    if call is total:
        return average
    return exp.Filter(this=average, expression=total.expression.copy())


def _calls(tree: exp.Expr | None, kind: type[exp.Expr]) -> bool:
    return isinstance(tree.this if isinstance(tree, exp.Filter) else tree, kind)


def _not_null(tree: exp.Expr) -> exp.Expr | None:
    """The x of `x IS NOT NULL`."""
    if not isinstance(tree, exp.Not) or not isinstance(tree.this, exp.Is):
        return None
    test = tree.this
    return test.this.unnest() if isinstance(test.expression, exp.Null) else None


def _passed(program: Program) -> dict[int, str]:
    """The columns of a view that are columns of its relation, by position."""
    found = dict(zip(program.output.columns, program.columns, strict=False))
    node = program.output
    while isinstance(node, Filter | Project):
        if isinstance(node, Project):
            items = [(expr.column, found.get(name)) for name, expr in node.items]
            found = {old: name for old, name in items if old is not None and name is not None}
        node = node.input
    places = {column: place for place, column in enumerate(node.columns)}
    return {places[column]: name for column, name in found.items()}


def _base(node: Node) -> str | None:
    """The relation that a node filters and projects, if it does nothing else."""
    while isinstance(node, Filter | Project):
        node = node.input
    return node.relation if isinstance(node, Scan | Leaf) else None


def _count() -> exp.Expr:
    return exp.Count(this=exp.Star(), big_int=True)


def _named(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name))


@by_identity
def text_of(tree: exp.Expr) -> str:
    """The text of an expression in the user's names."""
    return tree.sql(dialect=DIALECT, comments=False)
