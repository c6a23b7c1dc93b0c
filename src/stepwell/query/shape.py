"""Small steps from which queries are put together, each keeping the meaning of the whole.

Conditions sink as far as they can, so that a join sees them where they prune most; inner joins melt
into one `Inner` of many inputs, so that a change can start the join at whichever input changed.
"""

from __future__ import annotations

from dataclasses import replace

from stepwell.query.algebra import (
    Aggregate,
    Expr,
    Filter,
    Generate,
    Inner,
    Item,
    Join,
    Names,
    Node,
    Project,
    Side,
    TopN,
    Window,
    children,
    column,
    walk,
)
from stepwell.query.conditions import equality


def unresolved(node: Node) -> frozenset[str]:
    """Columns that a part of the node names and that none of its inputs has."""
    missing: set[str] = set()
    for part in walk(node):
        used = set[str]()
        match part:
            case Filter():
                used |= part.condition.columns
            case Project():
                used.update(*(expr.columns for _, expr in part.items))
            case Inner():
                used.update(*(condition.columns for condition in part.on))
            case Join():
                used.update(*part.equal, *(condition.columns for condition in part.also))
            case Aggregate():
                used.update(part.keys, *(expr.columns for _, expr in part.calls))
            case Window():
                used.update(part.partition, *(expr.columns for _, expr in part.calls))
            case Generate():
                used |= part.generator.columns
            case TopN():
                used |= {text.split(" ", 1)[0] for text in part.order}
            case _:
                continue
        missing |= used.difference(*(child.columns for child in children(part)))
    return frozenset(missing)


def extend(node: Node, items: tuple[Item, ...]) -> Node:
    """The node with more columns. A column made of one input of a join is made there."""
    for item in items:
        node = _extend(node, item)
    return node


def _extend(node: Node, item: Item) -> Node:
    name, made = item
    if isinstance(node, Inner):
        for i, source in enumerate(node.inputs):
            if made.columns <= set(source.columns) and made.columns:
                grown = _extend(source, item)
                return replace(node, inputs=(*node.inputs[:i], grown, *node.inputs[i + 1 :]))
    if isinstance(node, Project) and all(
        made.columns <= set(node.input.columns) and expr.column == passed
        for passed, expr in node.items
        if passed in made.columns
    ):
        return Project(node.input, (*node.items, item))
    return Project(node, (*((c, column(c)) for c in node.columns), (name, made)))


def narrow(node: Node, columns: tuple[str, ...]) -> Node:
    """Just these columns, in this order."""
    if node.columns == columns:
        return node
    return Project(node, tuple((c, column(c)) for c in columns))


def inner(inputs: tuple[Node, ...], on: tuple[Expr, ...] = ()) -> Node:
    """The inner join; inner joins among the inputs melt into it."""
    flat: list[Node] = []
    conditions: list[Expr] = []
    for node in inputs:
        if isinstance(node, Inner):
            flat += node.inputs
            conditions += node.on
        else:
            flat.append(node)
    joined: Node = Inner(tuple(flat), tuple(conditions)) if len(flat) > 1 else flat[0]
    for condition in on:
        joined = keep(joined, condition)
    return joined


def keep(node: Node, condition: Expr) -> Node:
    """The rows for which the condition holds."""
    match node:
        case Inner():
            for i, source in enumerate(node.inputs):
                if condition.columns <= set(source.columns) and condition.columns:
                    kept = keep(source, condition)
                    return inner((*node.inputs[:i], kept, *node.inputs[i + 1 :]), node.on)
            return replace(node, on=(*node.on, condition))
        case Join(side=Side.LEFT | Side.SEMI | Side.ANTI):
            if condition.columns <= set(node.left.columns):
                return replace(node, left=keep(node.left, condition))
        case Project():
            passed = {name: expr.column for name, expr in node.items}
            if all(passed.get(name) == name for name in condition.columns):
                return replace(node, input=keep(node.input, condition))
        case Generate():
            if condition.columns <= set(node.input.columns):
                return replace(node, input=keep(node.input, condition))
        case _:
            pass
    return Filter(node, condition)


def join(side: Side, left: Node, right: Node, on: list[Expr], names: Names) -> Node:
    """A join that is not linear, with its equalities told apart from its other conditions."""
    equal: list[tuple[str, str]] = []
    also: list[Expr] = []
    for condition in on:
        if side is not Side.FULL and condition.columns and condition.columns <= set(right.columns):
            right = keep(right, condition)
            continue
        if side is Side.SEMI and condition.columns and condition.columns <= set(left.columns):
            left = keep(left, condition)
            continue
        sides = equality(condition, left.columns, right.columns)
        if sides is None:
            also.append(condition)
            continue
        pair = []
        for expr, index in zip(sides, (0, 1), strict=True):
            plain = expr.column
            if plain is None:
                plain = names.new()
                if index == 0:
                    left = extend(left, ((plain, expr),))
                else:
                    right = extend(right, ((plain, expr),))
            pair.append(plain)
        equal.append((pair[0], pair[1]))
    return Join(side, left, right, tuple(equal), also=tuple(also))
