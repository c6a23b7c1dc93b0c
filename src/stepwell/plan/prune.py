"""Column pruning: drop unused columns where they originate.

A pruned plan reads fewer columns and, where rows are consolidated by value, compares fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from stepwell.plan.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Inner,
    Join,
    Node,
    Project,
    Scan,
    SetOp,
    Side,
    TopN,
    Union,
    Values,
    Window,
    children,
    with_children,
)
from stepwell.plan.shape import narrow

Single = Callable[[Join], bool]
"""Whether a row of the left side has at most one match."""


def unknown(join: Join) -> bool:
    """Nothing is known about the matches of a join."""
    return False


def prune(node: Node, needed: Iterable[str] | None = None, single: Single = unknown) -> Node:
    """The node with at least the needed columns, and few others.

    A left join whose right side is not needed is dropped, if it cannot repeat rows.
    """
    return _Pruning(single).of(node, needed)


class _Pruning:
    def __init__(self, single: Single) -> None:
        self._single = single

    def of(self, node: Node, needed: Iterable[str] | None = None) -> Node:
        wanted = set(node.columns if needed is None else needed)
        match node:
            case Scan() | Values():
                kept = tuple(c for c in node.columns if c in wanted)
                return narrow(node, kept or node.columns[:1])
            case Filter():
                return replace(node, input=self.of(node.input, wanted | node.condition.columns))
            case Project():
                items = tuple(item for item in node.items if item[0] in wanted) or node.items[:1]
                source = self.of(node.input, _used(expr.columns for _, expr in items))
                if isinstance(source, Project) and all(e.column == n for n, e in items):
                    return narrow(source, tuple(n for n, _ in items))
                return Project(source, items)
            case Inner():
                wanted |= _used(condition.columns for condition in node.on)
                inputs = tuple(self._own(child, wanted) for child in node.inputs)
                return replace(node, inputs=inputs)
            case Join():
                if self._idle(node, wanted):
                    return self.of(node.left, wanted)
                wanted |= {c for pair in node.equal for c in pair}
                wanted |= _used(condition.columns for condition in node.also)
                left, right = self._own(node.left, wanted), self._own(node.right, wanted)
                return replace(node, left=left, right=right)
            case Aggregate():
                calls = tuple(call for call in node.calls if call[0] in wanted)
                if not node.keys:
                    calls = calls or node.calls[:1]
                used = set(node.keys) | _used(expr.columns for _, expr in calls)
                return replace(node, input=self.of(node.input, used), calls=calls)
            case Union():
                places = [i for i, c in enumerate(node.columns) if c in wanted] or [0]
                return Union(
                    tuple(
                        narrow(self.of(child, chosen), chosen)
                        for child in node.inputs
                        for chosen in [tuple(child.columns[i] for i in places)]
                    ),
                    tuple(node.columns[i] for i in places),
                )
            case Window():
                calls = tuple(call for call in node.calls if call[0] in wanted)
                if not calls:
                    return self.of(node.input, wanted)
                used = (wanted & set(node.input.columns)) | set(node.partition)
                used |= _used(expr.columns for _, expr in calls)
                return replace(node, input=self.of(node.input, used), calls=calls)
            case Generate():
                used = (wanted & set(node.input.columns)) | node.generator.columns
                return replace(node, input=self.of(node.input, used))
            case TopN():
                used = wanted | {key.column for key in node.order}
                return replace(node, input=self.of(node.input, used))
            case Distinct() | SetOp():
                pass
            case _:
                pass
        return with_children(node, tuple(narrow(self.of(c), c.columns) for c in children(node)))

    def _own(self, node: Node, wanted: set[str]) -> Node:
        return self.of(node, [c for c in node.columns if c in wanted])

    def _idle(self, node: Join, wanted: set[str]) -> bool:
        """Whether a join returns every left row once, and nothing of the right side is needed."""
        if node.side is not Side.LEFT or not wanted.isdisjoint(node.right.columns):
            return False
        return self._single(node)


def _used(parts: Iterable[frozenset[str]]) -> set[str]:
    return set().union(*parts)
