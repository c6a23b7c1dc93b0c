"""Scalar expressions of a plan, and sort keys.

An `Expr` is a sqlglot tree over the plan's columns. SQL text exists only where a user wrote it and
where `Expr.sql` hands it to Spark; everything in between reads and builds trees. Two rules hold for
every expression, and a test checks them over all fixtures:

    parsing the text of an expression gives its tree: we evaluate what Spark evaluates
    a tree is immutable: several plans may share it

Expressions are built from other expressions by name, from a template in plain SQL:

    build("CASE WHEN found THEN value END", found=column("_c1"), value=total)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sqlglot import exp, parse_one

DIALECT = "spark"
_NOT_ASKED = "<not asked>"
"""Stands for a column name that was not determined yet. It is compared by identity."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expr:
    """An expression over the columns of a node's input. Equal if the SQL text is equal."""

    tree: exp.Expr
    """Shared: never modify it."""
    columns: frozenset[str] = frozenset()
    """The columns it reads."""
    type: str | None = None
    """Its Spark type as canonical text (see `types`), if the compiler knows it."""
    _sql: str | None = field(default=None, kw_only=True)
    _column: str | None = field(default=_NOT_ASKED, kw_only=True)

    @property
    def sql(self) -> str:
        """The expression as Spark SQL."""
        if self._sql is None:
            object.__setattr__(self, "_sql", self.tree.sql(dialect=DIALECT, comments=False))
        return self._sql  # type: ignore[return-value]

    @property
    def column(self) -> str | None:
        """The column name, if the expression is a plain column."""
        if self._column is _NOT_ASKED:
            object.__setattr__(self, "_column", self._plain_column())
        return self._column

    def _plain_column(self) -> str | None:
        tree = self.tree
        if not isinstance(tree, exp.Column) or tree.args.get("table") is not None:
            return None
        name = tree.name
        return name if name in self.columns and not tree.this.args.get("quoted") else None

    def part(self, tree: exp.Expr) -> Expr:
        """A subtree of this expression as an expression of its own."""
        return Expr(tree.copy(), columns_in(tree) & self.columns)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr):
            return NotImplemented
        return self.columns == other.columns and self.sql == other.sql

    def __hash__(self) -> int:
        return hash(self.sql)

    def __repr__(self) -> str:
        return f"Expr({self.sql!r})"


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by, with its direction."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    @property
    def sql(self) -> str:
        direction = "DESC" if self.descending else "ASC"
        return f"{self.column} {direction} NULLS {'FIRST' if self.nulls_first else 'LAST'}"

    @property
    def tree(self) -> exp.Ordered:
        return exp.Ordered(
            this=_column(self.column), desc=self.descending, nulls_first=self.nulls_first
        )


# Expressions from text


def parse(sql: str, columns: Iterable[str] = ()) -> Expr:
    """Parse SQL text over plan columns. Raises SqlglotError."""
    return Expr(_parsed(sql), frozenset(columns), _sql=sql)


@lru_cache(maxsize=10_000)
def _parsed(sql: str) -> exp.Expr:
    return parse_one(sql, dialect=DIALECT)


# Expressions from other expressions


@lru_cache(maxsize=10_000)
def column(name: str) -> Expr:
    return Expr(_column(name), frozenset({name}), _sql=name, _column=name)


def equal(a: str, b: str, *, null_safe: bool = False) -> Expr:
    """`a = b` over two columns, or `a <=> b`, where NULL equals NULL, if `null_safe`."""
    kind, sign = (exp.NullSafeEQ, "<=>") if null_safe else (exp.EQ, "=")
    tree = kind(this=_column(a), expression=_column(b))
    return Expr(tree, frozenset({a, b}), "boolean", _sql=f"{a} {sign} {b}")


def both(a: Expr, b: Expr) -> Expr:
    return build("(a) AND (b)", a=a, b=b)


def is_not_null(expr: Expr) -> Expr:
    return build("(a) IS NOT NULL", a=expr)


def build(template: str, **parts: Expr) -> Expr:
    """Replace each name in the template with an expression.

    >>> build("CASE WHEN n = 0 THEN NULL ELSE total END", n=column("_c1"), total=column("_c2")).sql
    'CASE WHEN _c1 = 0 THEN NULL ELSE _c2 END'
    """
    tree = _parsed(template).copy()
    names = list(tree.find_all(exp.Column))
    if tree in names:
        return parts[tree.name]
    for name in names:
        name.replace(parts[name.name].tree.copy())
    used = (parts[name.name].columns for name in names)
    return Expr(tree, frozenset[str]().union(*used))


def call(function: str, *arguments: Expr) -> Expr:
    """A call of a Spark function, by its Spark name.

    >>> call("max_by", column("_c1"), column("_c2")).sql
    'MAX_BY(_c1, _c2)'
    """
    tree = exp.func(function, *(a.tree.copy() for a in arguments), dialect=DIALECT)
    return Expr(tree, frozenset[str]().union(*(a.columns for a in arguments)))


def cast(expr: Expr, type_: str) -> Expr:
    tree = build("CAST(a AS INT)", a=expr).tree
    tree.set("to", exp.DataType.build(type_, dialect=DIALECT))
    return Expr(tree, expr.columns, type_)


def null(type_: str) -> Expr:
    """NULL of a type, spelled exactly as Spark spells it: sqlglot has no CHAR and no TIME."""
    to = exp.DataType.build(type_, dialect=DIALECT, udt=True)
    return Expr(exp.TryCast(this=exp.Null(), to=to), type=type_, _sql=f"CAST(NULL AS {type_})")


def number(value: int) -> Expr:
    return Expr(exp.Literal.number(value))


def text(value: str) -> Expr:
    return Expr(exp.Literal.string(value), type="string")


def row_number(order: Iterable[SortKey], partition: Iterable[str] = ()) -> Expr:
    """The ROW_NUMBER of each row in an order, within its partition."""
    order, partition = tuple(order), tuple(partition)
    tree = exp.Window(
        this=exp.RowNumber(),
        partition_by=[_column(name) for name in partition] or None,
        order=exp.Order(expressions=[key.tree for key in order]),
        over="OVER",
    )
    return Expr(tree, frozenset({*partition, *(key.column for key in order)}), "int")


def partitioned(window: Expr, by: str) -> Expr:
    """A window function call with one more PARTITION BY column, placed first."""
    tree = window.tree.copy()
    tree.set("partition_by", [_column(by), *(tree.args.get("partition_by") or ())])
    return Expr(tree, window.columns | {by}, window.type)


TRUE = Expr(exp.true(), type="boolean")
FALSE = Expr(exp.false(), type="boolean")
NULL = Expr(exp.null())
COUNT_ROWS = Expr(exp.Count(this=exp.Star(), big_int=True), type="bigint")


def substitute(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with its columns renamed."""
    if not expr.columns:
        return expr
    if expr.column is not None:
        return column(names[expr.column])
    tree = expr.tree.copy()
    for part in list(tree.find_all(exp.Column)):
        first = part.parts[0]
        if first.name in expr.columns:
            first.replace(exp.to_identifier(names[first.name]))
    return Expr(tree, frozenset(names[c] for c in expr.columns), expr.type)


def columns_in(tree: exp.Expr) -> frozenset[str]:
    """The columns that a tree references; a field access counts as its column.

    >>> sorted(columns_in(parse("_c1 + _c2.`start`").tree))
    ['_c1', '_c2']
    """
    return frozenset(c.parts[0].name for c in tree.find_all(exp.Column))


def _column(name: str) -> exp.Column:
    return exp.Column(this=exp.Identifier(this=name, quoted=False))
