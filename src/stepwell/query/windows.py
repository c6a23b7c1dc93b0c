"""Window functions: each OVER clause becomes a call of a `Window` node, by its partition.

A function that tells rows apart which its ORDER BY does not (row_number, lag, a frame of ROWS)
would be answered by chance; all columns of the row are added to the order, so that there is one
answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from stepwell.query import functions
from stepwell.query.algebra import Names, Node, Window
from stepwell.query.reasons import Code, Unsupported
from stepwell.query.running import running
from stepwell.query.scope import (
    DIALECT,
    Rewriter,
    name,
    our_column,
    shorten,
    to_expr,
    transform,
)
from stepwell.query.shape import extend

_WRAPPERS = exp.Filter | exp.IgnoreNulls | exp.RespectNulls
_BY_ROW = frozenset({"row_number", "ntile", "lag", "lead"})


def windows(
    node: Node,
    parts: list[exp.Expr],
    named: Mapping[str, exp.Window],
    rewrite: Rewriter,
    names: Names,
    apart: tuple[str, ...] = (),
) -> tuple[Node, list[exp.Expr]]:
    """The node with a column for every window function, and the parts over those columns.

    `named` are the definitions of the WINDOW clause, `apart` are more columns to partition by.
    """
    found: dict[str, tuple[str, exp.Window]] = {}

    def visit(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Window):
            window = _resolved(part, named, rewrite)
            text = window.sql(dialect=DIALECT)
            if text not in found:
                found[text] = (names.new(), window)
            return our_column(found[text][0])
        return part

    replaced = [transform(part, visit) for part in parts]
    calls: dict[tuple[str, ...], list[tuple[str, exp.Window]]] = {}
    for new, window in found.values():
        node, partition, ready = _by_columns(node, window, names, apart)
        calls.setdefault(partition, []).append((new, ready))
    for partition, group in calls.items():
        items = tuple((new, to_expr(_total(w, node.columns), names)) for new, w in group)
        node = Window(node, partition, items)
        if not partition and running(node) is None:
            raise Unsupported(Code.WINDOW_WITHOUT_PARTITION, shorten(items[0][1].sql))
    return node, replaced


def _resolved(part: exp.Window, named: Mapping[str, exp.Window], rewrite: Rewriter) -> exp.Window:
    """OVER w with the definition of w."""
    alias = part.args.get("alias")
    if alias is None:
        return part
    definition = named.get(name(alias.name))
    if definition is None or part.args.get("partition_by") or part.args.get("order"):
        raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{part.sql(DIALECT)}")
    resolved = rewrite.columns(definition)
    made = exp.Window(this=part.this.copy(), over="OVER")
    for key in ("partition_by", "order", "spec"):
        if resolved.args.get(key):
            made.set(key, resolved.args[key])
    return made


def _by_columns(
    node: Node, window: exp.Window, names: Names, apart: tuple[str, ...]
) -> tuple[Node, tuple[str, ...], exp.Window]:
    """Partition keys as columns of the input."""
    window = window.copy()
    keys: list[exp.Expr] = []
    for key in window.args.get("partition_by") or []:
        expr = to_expr(key, names)
        if not expr.columns:
            continue
        if expr.column is None:
            made = names.new()
            node = extend(node, ((made, expr),))
            keys.append(our_column(made))
        else:
            keys.append(key)
    keys += [our_column(c) for c in apart if c not in {key.name for key in keys}]
    window.set("partition_by", keys or None)
    return node, tuple(sorted({key.name for key in keys})), window


def _total(window: exp.Window, columns: tuple[str, ...]) -> exp.Window:
    """With ties broken by all columns, where rows that tie would be told apart at random."""
    function = window.this
    while isinstance(function, _WRAPPERS):
        function = function.this
    kind = functions.name_of(function)
    spec = window.args.get("spec")
    by_rows = spec is not None and (spec.args.get("kind") or "").upper() == "ROWS"
    order = window.args.get("order")
    if order is None or not (by_rows or kind in _BY_ROW):
        return window
    window = window.copy()
    sorted_by = {o.this.name for o in order.expressions if isinstance(o.this, exp.Column)}
    more = [
        exp.Ordered(this=our_column(c), desc=False, nulls_first=True)
        for c in columns
        if c not in sorted_by
    ]
    window.args["order"].set("expressions", [*window.args["order"].expressions, *more])
    return window
