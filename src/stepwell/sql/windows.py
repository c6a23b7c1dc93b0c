"""Window functions: each OVER clause becomes a call of a `Window` node, grouped by partition.

Some functions distinguish rows that tie in their ORDER BY (row_number, lag, a ROWS frame), so their
result would be arbitrary. For these, all columns of the row are appended to the order, which makes
the result deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from stepwell.plan import functions
from stepwell.plan.nodes import Names, Node, Window
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.running import running
from stepwell.plan.shape import extend
from stepwell.sql.scope import (
    DIALECT,
    Rewriter,
    name,
    our_column,
    shorten,
    to_expr,
    transform,
)

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

    `named` holds the definitions of the WINDOW clause, `apart` further columns to partition by.
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
            shown = shorten(rewrite.shown(group[0][1]))
            raise Unsupported(Code.WINDOW_WITHOUT_PARTITION, shown)
    return node, replaced


def _resolved(part: exp.Window, named: Mapping[str, exp.Window], rewrite: Rewriter) -> exp.Window:
    """Replace OVER w with the definition of w."""
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
    """Turn partition keys into columns of the input."""
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
    """Break ties by all columns if the function would otherwise pick among tied rows at random."""
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
