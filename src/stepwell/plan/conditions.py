"""Analysis of join conditions over plan columns: find equalities between two sides."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

from sqlglot import exp

from stepwell.plan.expressions import Expr


def sides(condition: Expr) -> tuple[Expr, Expr] | None:
    """Both sides of `a = b`."""
    tree = condition.tree.unnest()
    if not isinstance(tree, exp.EQ):
        return None
    return condition.part(tree.left), condition.part(tree.right)


def equality(
    condition: Expr, left: Collection[str], right: Collection[str]
) -> tuple[Expr, Expr] | None:
    """`a = b` as (a, b), with a over left columns and b over right ones, swapped if necessary."""
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


@lru_cache(maxsize=10_000)
def equal_columns(condition: Expr) -> tuple[str, str, bool] | None:
    """The two columns of `a = b` or `a <=> b`, and whether NULL equals NULL in it.

    None if either side is anything but a single column.
    """
    tree = condition.tree.unnest()
    if not isinstance(tree, exp.EQ | exp.NullSafeEQ):
        return None
    a, b = (Expr(side, condition.columns).column for side in (tree.left, tree.right))
    return None if a is None or b is None else (a, b, isinstance(tree, exp.NullSafeEQ))


def equals(conditions: Iterable[Expr]) -> dict[str, set[str]]:
    """For each column, the columns that a join compares it with.

    Equality is not transitive: `'1' = 1` and `'01' = 1` do not make the two strings equal.
    """
    equals: dict[str, set[str]] = {}
    for condition in conditions:
        pair = equality(condition, condition.columns, condition.columns)
        if pair is None or pair[0].column is None or pair[1].column is None:
            continue
        a, b = pair[0].column, pair[1].column
        equals.setdefault(a, {a}).add(b)
        equals.setdefault(b, {b}).add(a)
    return equals
