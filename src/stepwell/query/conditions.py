"""Conditions over our own columns, looked into: which are equalities between two sides?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from sqlglot import exp, parse_one

from stepwell.query.algebra import Expr

_DIALECT = "spark"


@lru_cache(maxsize=10_000)
def parse_scalar(sql: str) -> exp.Expr:
    """The tree of a text over our columns. Shared: do not change it."""
    return parse_one(sql, dialect=_DIALECT)


def sides(condition: Expr) -> tuple[Expr, Expr] | None:
    """Both sides of `a = b`."""
    node = parse_scalar(condition.sql)
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.EQ):
        return None
    return _side(node.left, condition), _side(node.right, condition)


def equality(
    condition: Expr, left: Collection[str], right: Collection[str]
) -> tuple[Expr, Expr] | None:
    """`a = b` with a from the left columns and b from the right ones, in this order."""
    both = sides(condition)
    if both is None:
        return None
    a, b = both
    if not a.columns or not b.columns:
        return None
    if a.columns <= set(left) and b.columns <= set(right):
        return a, b
    if b.columns <= set(left) and a.columns <= set(right):
        return b, a
    return None


def equal_columns(condition: Expr) -> tuple[str, str, bool] | None:
    """The two columns of `a = b` or `a <=> b`, and whether NULL equals NULL in it.

    Nothing else may stand on either side. `<=>` is only what maintenance writes, plainly.
    """
    if " <=> " in condition.sql and len(condition.columns) == 2:
        a, b = condition.sql.split(" <=> ", 1)
        return (a, b, True) if {a, b} == condition.columns else None
    both = sides(condition)
    if both is None or both[0].column is None or both[1].column is None:
        return None
    return both[0].column, both[1].column, False


def _side(node: exp.Expr, condition: Expr) -> Expr:
    return Expr(node.sql(dialect=_DIALECT), columns_in(node) & condition.columns)


def columns_in(node: exp.Expr) -> frozenset[str]:
    """The columns that an expression over our columns names; of a field of one, that one.

    >>> sorted(columns_in(parse_scalar("_c1 + _c2.`start`")))
    ['_c1', '_c2']
    """
    return frozenset(c.parts[0].name for c in node.find_all(exp.Column))


def substitute(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The expression over other names for its columns."""
    if expr.column is not None:
        new = names[expr.column]
        return Expr(new, frozenset({new}))
    tree = parse_scalar(expr.sql).copy()
    for part in list(tree.find_all(exp.Column)):
        first = part.parts[0]
        if first.name in expr.columns:
            first.replace(exp.to_identifier(names[first.name]))
    return Expr(tree.sql(dialect=_DIALECT), frozenset(names[c] for c in expr.columns))
