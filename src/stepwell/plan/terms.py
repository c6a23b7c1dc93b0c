"""Plans as sums of plans, over which joins are distributed."""

from __future__ import annotations

from stepwell.plan.expressions import column
from stepwell.plan.nodes import Inner, Item, Negate, Node, Project, Union


def terms(node: Node, used: frozenset[str]) -> list[tuple[Node, bool, tuple[Item, ...]]]:
    """Expand a node into a sum: each term, its sign, and the columns to compute after the join."""
    match node:
        case Union():
            found = []
            for child in node.inputs:
                for term, negative, items in terms(child, frozenset(child.columns) & used):
                    # A union matches columns by position.
                    if child.columns != node.columns:
                        return [(node, False, tuple((c, column(c)) for c in node.columns))]
                    found.append((term, negative, items))
            return found
        case Negate():
            return [
                (term, not negative, items) for term, negative, items in terms(node.input, used)
            ]
        case Project():
            if isinstance(node.input, Union | Negate | Inner | Project) and all(
                expr.column == name for name, expr in node.items if name in used
            ):
                outer = dict(node.items)
                found = []
                for term, negative, items in terms(node.input, used):
                    inside = dict(items)
                    if any(
                        inside[c].column != c
                        for expr in outer.values()
                        for c in expr.columns
                        if expr.column is None
                    ):
                        return [(node, False, tuple((c, column(c)) for c in node.columns))]
                    items = tuple(
                        (name, inside.get(expr.column or "", expr)) for name, expr in node.items
                    )
                    found.append((term, negative, items))
                return found
        case _:
            pass
    return [(node, False, tuple((c, column(c)) for c in node.columns))]
