"""`window(ts, '10 minutes')`: the time windows that contain a row.

The call is not a scalar expression. Spark repeats a row for each window that contains it, drops a
row without a time, and does so once for all calls in one clause. It is therefore a generator: the
clause is computed over the generator's output, and each call in it becomes the generated column:

    SELECT window(ts, '10 minutes').start, x FROM t
    SELECT w.start, x FROM (SELECT *, window(ts, '10 minutes') AS w FROM t)
"""

from __future__ import annotations

from sqlglot import exp

from stepwell.plan import functions
from stepwell.plan.nodes import Generate, Names, Node
from stepwell.plan.reasons import Code, Unsupported
from stepwell.sql.scope import DIALECT, Rewriter, our_column, to_expr, transform


def in_select(
    node: Node,
    group: exp.Group | None,
    parts: list[exp.Expr],
    rewrite: Rewriter,
    names: Names,
) -> tuple[Node, exp.Group | None, list[exp.Expr]]:
    """Convert calls in SELECT and GROUP BY, unless one is itself a key (see `aggregation`)."""
    keys = group.expressions if group is not None else []
    found = [call for part in (*parts, *keys) for call in functions.own_time_windows(part)]
    if not found or any(functions.is_time_window(key) for key in keys):
        return node, group, parts
    for part in parts:
        if part.find(exp.Window) or any(map(functions.is_generator, part.walk())):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "window(...) next to OVER or explode(...)")
        if isinstance(part, exp.Ordered) and functions.own_time_windows(part):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "window(...) in ORDER BY")
    node, made = as_column(node, [*parts, *map(rewrite.columns, keys)], names)
    if group is not None:
        group = group.copy()
        group.set("expressions", made[len(parts) :])
        if functions.has_time_window(group):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "window(...) in grouping sets")
    return node, group, made[: len(parts)]


def as_column(node: Node, parts: list[exp.Expr], names: Names) -> tuple[Node, list[exp.Expr]]:
    """The node with the single time window that the parts call, and the parts over its column."""
    calls = {
        call.sql(dialect=DIALECT, comments=False): call
        for part in parts
        for call in functions.own_time_windows(part)
    }
    if len(calls) > 1:
        raise Unsupported(Code.UNSUPPORTED_OPERATOR, "two time windows in one SELECT")
    (call,) = calls.values()
    expr = to_expr(call, names)
    if not expr.columns <= set(node.columns) or call.find(exp.Query):
        raise Unsupported(Code.UNSUPPORTED_OPERATOR, "window(...) of another query's columns")
    made = names.new()

    def visit(part: exp.Expr) -> exp.Expr:
        if not functions.is_time_window(part):
            return part
        # The parentheses keep a field of it from being read as a column of a table.
        field = isinstance(part.parent, exp.Dot)
        return exp.Paren(this=our_column(made)) if field else our_column(made)

    return Generate(node, expr, False, (made,)), [transform(part, visit) for part in parts]
