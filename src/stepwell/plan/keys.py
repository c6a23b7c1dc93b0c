"""Key sets: the values of some columns in a change, used to restrict the other inputs.

A key set may be a superset of the actual values. Rows are compared before and after for every key
in the set, so a surplus key only costs time, while a missing key would give a wrong result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepwell.plan.nodes import (
    Filter,
    Join,
    Keys,
    Names,
    Negate,
    Node,
    Project,
    Side,
    Union,
    Window,
    walk,
)
from stepwell.plan.shape import narrow


@dataclass(frozen=True, slots=True)
class KeySet:
    """A set of keys; `on` maps columns of the restricted node to columns of the keys."""

    node: Node
    on: tuple[tuple[str, str], ...]
    """(column of the restricted node, column of the keys)"""

    def renamed(self, columns: Mapping[str, str]) -> KeySet | None:
        """The keys under other column names, without unmapped columns; None if none is left."""
        on = tuple((columns[c], k) for c, k in self.on if c in columns)
        return KeySet(self.node, on) if on else None

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(c for c, _ in self.on)


def keys_of(node: Node, columns: tuple[str, ...], names: Names, *, nulls: bool = True) -> KeySet:
    """The values of some columns of a node; if `nulls` is False, NULL may be missing."""
    source, found = _source(node, columns, nulls, names)
    items = tuple((names.new(), c) for c in found)
    return KeySet(Keys(source, items), tuple(zip(columns, (k for k, _ in items), strict=True)))


def _source(
    node: Node, columns: tuple[str, ...], nulls: bool, names: Names
) -> tuple[Node, tuple[str, ...]]:
    """A smaller node, and columns of it, whose values are a superset of the requested values.

    A join that only adds columns need not be evaluated to know the values of the others. Without
    this rule a plan would double with each such join. Weights are ignored here, and the result must
    not be consolidated below: a retraction and an insertion of the same key would cancel out, and
    the key would be lost.
    """
    match node:
        case Join(side=Side.LEFT | Side.SEMI | Side.ANTI) if set(columns) <= set(node.left.columns):
            return _source(node.left, columns, nulls, names)
        case Join(side=Side.LEFT) if not nulls and set(columns) <= set(node.right.columns):
            return _source(node.right, columns, nulls, names)
        case Project():
            items = dict(node.items)
            inside = [items[c].column for c in columns]
            known = tuple(c for c in inside if c is not None)
            if len(known) == len(inside):
                return _source(node.input, known, nulls, names)
        case Negate():
            return _source(node.input, columns, nulls, names)
        case Filter():
            source, found = _source(node.input, columns, nulls, names)
            if _joins(source) < _joins(node.input):
                return source, found
        case Window() if set(columns) <= set(node.input.columns):
            return _source(node.input, columns, nulls, names)
        case Union():
            sources: list[tuple[Node, tuple[str, ...]]] = []
            for child in node.inputs:
                mine = tuple(child.columns[node.columns.index(c)] for c in columns)
                each = _source(child, mine, nulls, names)
                # A side that is joined again occurs twice, as an insertion and as a retraction.
                sources += [each] if each not in sources else []
            if len(sources) == 1:
                return sources[0]
            fresh = names.several(len(columns))
            return Union(tuple(narrow(*each) for each in sources), fresh), fresh
        case _:
            pass
    return node, columns


def _joins(node: Node) -> int:
    """Count joins and windows. A filter is skipped only to save some of them: it drops values."""
    return sum(isinstance(part, Join | Window) for part in walk(node))
