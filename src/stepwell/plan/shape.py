"""Building blocks for plans, each preserving the meaning of the whole.

Conditions are pushed down as far as possible, so that they prune before a join. Inner joins are
merged into one `Inner` with many inputs, so that a change can start the join at any changed input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepwell.plan.conditions import equality
from stepwell.plan.expressions import Expr, column
from stepwell.plan.nodes import (
    Aggregate,
    Filter,
    Generate,
    Inner,
    Item,
    Join,
    Leaf,
    Names,
    Negate,
    Node,
    Project,
    Restrict,
    Side,
    TopN,
    Union,
    When,
    Window,
    children,
    walk,
    with_children,
)


def unresolved(node: Node) -> frozenset[str]:
    """Columns that some part of the node references and none of that part's inputs provides."""
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
                used |= {key.column for key in part.order}
            case _:
                continue
        missing |= used.difference(*(child.columns for child in children(part)))
    return frozenset(missing)


def extend(node: Node, items: tuple[Item, ...]) -> Node:
    """The node with more columns. A column over a single join input is computed in that input."""
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


def typed(node: Node, types: Mapping[str, str]) -> Node:
    """The node, with the type of each computed column set on its expression.

    `types` are the known types of the node's columns. They also apply below the node, wherever a
    column is passed through.
    """
    match node:
        case Filter():
            condition = replace(node.condition, type="boolean")
            return Filter(typed(node.input, types), condition)
        case Project():
            below = {e.column: types[n] for n, e in node.items if n in types and e.column}
            return Project(typed(node.input, below), typed_items(node.items, types))
        case Aggregate() | Window():
            calls = typed_items(node.calls, types)
            return replace(node, input=typed(node.input, types), calls=calls)
        case Inner():
            on = tuple(replace(condition, type="boolean") for condition in node.on)
            inputs = tuple(typed(child, types) for child in node.inputs)
            return replace(node, inputs=inputs, on=on)
        case Join() | Generate() | TopN() | Negate():
            inputs = tuple(typed(child, types) for child in children(node))
            return with_children(node, inputs)
        case Union():
            parts = []
            for child in node.inputs:
                names = zip(node.columns, child.columns, strict=True)
                parts.append(typed(child, {mine: types[c] for c, mine in names if c in types}))
            return replace(node, inputs=tuple(parts))
        case _:
            return node


def typed_items(items: tuple[Item, ...], types: Mapping[str, str]) -> tuple[Item, ...]:
    return tuple((name, replace(expr, type=types.get(name, expr.type))) for name, expr in items)


def narrow(node: Node, columns: tuple[str, ...]) -> Node:
    """The node with exactly these columns, in this order."""
    if node.columns == columns:
        return node
    return Project(node, tuple((c, column(c)) for c in columns))


def inner(inputs: tuple[Node, ...], on: tuple[Expr, ...] = ()) -> Node:
    """The inner join; inner joins among the inputs are merged into it."""
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
        joined = filtered(joined, condition)
    return joined


def filtered(node: Node, condition: Expr) -> Node:
    """The rows that satisfy the condition, which is pushed down as far as possible."""
    match node:
        case Inner():
            for i, source in enumerate(node.inputs):
                if condition.columns <= set(source.columns) and condition.columns:
                    kept = filtered(source, condition)
                    return inner((*node.inputs[:i], kept, *node.inputs[i + 1 :]), node.on)
            return replace(node, on=(*node.on, condition))
        case Join(side=Side.LEFT | Side.SEMI | Side.ANTI):
            if condition.columns <= set(node.left.columns):
                return replace(node, left=filtered(node.left, condition))
        case Project():
            passed = {name: expr.column for name, expr in node.items}
            if all(passed.get(name) == name for name in condition.columns):
                return replace(node, input=filtered(node.input, condition))
        case Generate():
            if condition.columns <= set(node.input.columns):
                return replace(node, input=filtered(node.input, condition))
        case _:
            pass
    return Filter(node, condition)


def join(side: Side, left: Node, right: Node, on: list[Expr], names: Names) -> Node:
    """A join that is not linear, with its equalities separated from its other conditions."""
    equal: list[tuple[str, str]] = []
    also: list[Expr] = []
    for condition in on:
        if side is not Side.FULL and condition.columns and condition.columns <= set(right.columns):
            right = filtered(right, condition)
            continue
        if side is Side.SEMI and condition.columns and condition.columns <= set(left.columns):
            left = filtered(left, condition)
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


def over(node: Node, source: Node) -> Node:
    """The same operator over another input."""
    match node:
        case Filter():
            return Filter(source, node.condition)
        case Project():
            return Project(source, node.items)
        case Generate():
            return Generate(source, node.generator, node.outer, node.made)
        case Negate():
            return Negate(source)
        case Window():
            return Window(source, node.partition, node.calls)
        case TopN():
            return TopN(source, node.order, node.limit, node.offset)
        case _:
            raise TypeError(f"{type(node).__name__} has no single input")


def is_linear(node: Node) -> bool:
    """Whether a change of the inputs passes through without reading other rows."""
    return not any(isinstance(part, Window | Join) for part in walk(node))


def is_cheap(node: Node) -> bool:
    """Whether computing a node twice costs less than storing its result."""
    return all(
        not isinstance(part, Inner | Join | Window | Restrict)
        and not (isinstance(part, Leaf) and part.when is not When.DELTA)
        for part in walk(node)
    )


def is_paired(node: Node) -> bool:
    """Whether the rows of a node are pairs, which a stage cannot hold."""
    return any(isinstance(part, Leaf) and part.when is When.BOTH for part in walk(node))
