"""Name resolution: the columns visible to a query, and the rewriting of names to plan columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.errors import SqlglotError

from stepwell.plan.expressions import DIALECT as DIALECT
from stepwell.plan.expressions import Expr, number, parse
from stepwell.plan.nodes import Names, Node
from stepwell.plan.reasons import Code, Unsupported

ONE_ROW = ((number(1),),)
"""The input of a SELECT without FROM."""
Output = tuple[str, str]
"""A column of a query's result: the user's name and the plan's name."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A converted query: a node, and the result's columns with their names.

    The node may have more columns than the result.
    """

    node: Node
    outputs: tuple[Output, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for _, column in self.outputs)


@dataclass(slots=True)
class Scope:
    """The tables in the FROM of one SELECT, nested in the scopes of the outer queries."""

    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    outer: Scope | None = None

    def add(self, alias: str, columns: Mapping[str, str]) -> None:
        self.tables[alias] = dict(columns)

    def find(self, alias: str, name: str) -> str | None:
        table = self.tables.get(alias)
        if table is not None:
            return table.get(name)
        return self.outer.find(alias, name) if self.outer else None


def name(identifier: str) -> str:
    """The form in which names are compared: case-insensitively, as Spark does by default."""
    return identifier.lower()


def our_column(ours: str) -> exp.Column:
    """A sqlglot node for one of the plan's columns."""
    return exp.column(exp.to_identifier(ours))


def is_ours(node: exp.Expr, names: Names) -> bool:
    return isinstance(node, exp.Column) and not node.table and names.is_generated(node.name)


class Rewriter:
    """Rewrites the expressions of one SELECT."""

    def __init__(self, names: Names, scope: Scope) -> None:
        self._names = names
        self._scope = scope
        self._written: dict[str, str] = {}
        """What the query calls the plan columns it names."""

    def shown(self, node: exp.Expr) -> str:
        """A rewritten expression in the names of the query."""

        def visit(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and not part.table and part.name in self._written:
                return exp.column(self._written[part.name])
            return part

        return transform(node, visit).sql(DIALECT)

    def columns(self, node: exp.Expr) -> exp.Expr:
        """A copy in which every column is a plan column. Columns inside subqueries stay."""

        def visit(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column):
                if not part.table:
                    return part  # A plan column already, or a lambda's parameter.
                if part.args.get("db"):
                    raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"the name {part.sql(DIALECT)}")
                found = self._scope.find(name(part.table), name(part.name))
                if found is None:
                    raise Unsupported(Code.PARSE_MISMATCH, f"the column {part.sql(DIALECT)}")
                self._written[found] = part.name
                return our_column(found)
            return part

        return transform(node, visit)

    def expr(self, node: exp.Expr) -> Expr:
        """The node as an expression over plan columns."""
        rewritten = self.columns(node)
        if rewritten.find(exp.Query):
            raise Unsupported(
                Code.UNSUPPORTED_SUBQUERY, f"a subquery in {shorten(node.sql(DIALECT))}"
            )
        return to_expr(rewritten, self._names)


def to_expr(node: exp.Expr, names: Names) -> Expr:
    """The expression of a node that references only plan columns.

    It is the tree of the text that Spark will read. The node itself may lack parentheses where a
    column or a subquery was replaced, and so differ in meaning from its text.
    """
    text = node.sql(dialect=DIALECT, comments=False)
    try:
        return parse(text, our_columns(node, names))
    except SqlglotError as error:
        raise Unsupported(Code.PARSE_MISMATCH, shorten(text)) from error


def our_columns(node: exp.Expr, names: Names) -> frozenset[str]:
    """The plan columns that a node references."""
    return frozenset(part.name for part in node.find_all(exp.Column) if is_ours(part, names))


Visit = Callable[[exp.Expr], exp.Expr]


def transform(node: exp.Expr, visit: Visit) -> exp.Expr:
    """A copy with every part replaced by the result of `visit`; subqueries are left alone.

    The replacement that `visit` returns is not visited again.
    """
    made = visit(node)
    if made is not node:
        return made
    if isinstance(node, exp.Query):
        return node.copy()
    copy = node.__class__()
    copy.comments = None
    copy._type = node._type
    for key, value in node.args.items():
        if isinstance(value, list):
            copy.set(
                key,
                [transform(v, visit) if isinstance(v, exp.Expr) else v for v in value],
            )
        elif isinstance(value, exp.Expr):
            copy.set(key, transform(value, visit))
        else:
            copy.set(key, value)
    return copy


def shorten(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """The parts of a condition joined by AND.

    Conditions common to all branches of an OR are factored out: `a = b AND x OR a = b AND y` is a
    join.
    """
    if node is None:
        return []
    if isinstance(node, exp.Paren):
        return conjuncts(node.this)
    if isinstance(node, exp.And):
        return conjuncts(node.left) + conjuncts(node.right)
    if isinstance(node, exp.Or) and node.find(exp.Query) is None:
        return _factored(node)
    return [node]


def _factored(node: exp.Or) -> list[exp.Expr]:
    # Compare Spark's text, which is what runs: another dialect's text may omit what matters.
    branches = [
        {c.sql(dialect="spark", comments=False): c for c in conjuncts(branch)}
        for branch in _disjuncts(node)
    ]
    common = [text for text in branches[0] if all(text in branch for branch in branches)]
    if not common:
        return [node]
    shared = [branches[0][text] for text in common]
    rests = [[c for text, c in branch.items() if text not in common] for branch in branches]
    if not all(rests):
        return shared
    return [*shared, exp.or_(*(exp.and_(*rest) for rest in rests))]


def _disjuncts(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Paren):
        return _disjuncts(node.this)
    if isinstance(node, exp.Or):
        return _disjuncts(node.left) + _disjuncts(node.right)
    return [node]
