"""Drop casts of columns to the type that they have.

Projects that rename and cast the columns of every table cast most of them to their own types. Such
a column is the table's column, so it can be looked up by an index, and joined without Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlglot import exp

from stepwell.plan.expressions import DIALECT, Expr, column
from stepwell.plan.nodes import Item, Node, Project, children, with_children
from stepwell.plan.numbers import INTEGER_BITS
from stepwell.plan.shape import narrow

_PLAIN = frozenset({*INTEGER_BITS, "boolean", "date", "double", "float", "string"})
"""Types of which the name says everything; decimals besides."""


def without_casts(node: Node, types: Callable[[Node], tuple[str, ...]]) -> Node:
    """The same plan, in which no column is cast to its own type."""
    node = with_children(node, tuple(without_casts(child, types) for child in children(node)))
    if not isinstance(node, Project):
        return node
    source = node.input
    casts = {name: cast for name, expr in node.items if (cast := _cast(expr)) is not None}
    if not casts:
        return node
    columns = tuple(dict.fromkeys(name for name, _ in casts.values()))
    known = dict(zip(columns, types(narrow(source, columns)), strict=True))

    def kept(item: Item) -> Item:
        name, expr = item
        before, target = casts.get(name, ("", ""))
        return (name, column(before)) if known.get(before) == target else (name, expr)

    return replace(node, items=tuple(map(kept, node.items)))


def _cast(expr: Expr) -> tuple[str, str] | None:
    """The column that an expression casts, and the type it casts to; None for any other one."""
    tree = expr.tree
    if not isinstance(tree, exp.Cast):
        return None
    before = expr.part(tree.this).column
    target = tree.to.sql(dialect=DIALECT).lower().replace(" ", "")
    if before is None or not (target in _PLAIN or target.startswith("decimal(")):
        return None
    return before, target
