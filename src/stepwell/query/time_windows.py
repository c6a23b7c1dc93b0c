"""`window(ts, '10 minutes')`: the time windows in which a row lies.

It is no plain expression. Spark repeats a row for each window that it lies in, drops it if it has
no time, and does so once for all calls in one clause. So it is a generator, the clause is computed
over what that gives, and each call in the clause is the column that it makes:

    SELECT window(ts, '10 minutes').start, x FROM t
    SELECT w.start, x FROM (SELECT *, window(ts, '10 minutes') AS w FROM t)
"""

from __future__ import annotations

from sqlglot import exp

from stepwell.query import functions
from stepwell.query.algebra import Generate, Names, Node
from stepwell.query.reasons import Code, Unsupported
from stepwell.query.scope import DIALECT, Rewriter, our_column, to_expr, transform


def in_select(
    node: Node,
    group: exp.Group | None,
    parts: list[exp.Expr],
    rewrite: Rewriter,
    names: Names,
) -> tuple[Node, exp.Group | None, list[exp.Expr]]:
    """Calls in the SELECT list and in GROUP BY, unless one is a key itself (see `aggregation`)."""
    keys = group.expressions if group is not None else []
    found = [call for part in (*parts, *keys) for call in functions.own_time_windows(part)]
    if not found or any(functions.is_time_window(key) for key in keys):
        return node, group, parts
    for part in parts:
        if part.find(exp.Window) or any(map(functions.is_generator, part.walk())):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "window(...) beside OVER or explode(...)")
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
    """The node with the one time window that the parts call, and the parts over its column."""
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
        # In parentheses a field of it is not taken for a column of a table.
        field = isinstance(part.parent, exp.Dot)
        return exp.Paren(this=our_column(made)) if field else our_column(made)

    return Generate(node, expr, False, (made,)), [transform(part, visit) for part in parts]
