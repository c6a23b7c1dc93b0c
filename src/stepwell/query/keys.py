"""Which values of some columns a change has: keys, by which the rest is cut down to what matters.

Keys may be more than the values there are. Whoever compares rows before and after does so for every
key there is, so one too many only costs time; one too few would be a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepwell.query.algebra import (
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
from stepwell.query.shape import narrow


@dataclass(frozen=True, slots=True)
class KeySet:
    """Values of some columns; `on` says which column of a node each column of the keys is."""

    node: Node
    on: tuple[tuple[str, str], ...]
    """(column of the node restricted, column of the keys)"""

    def renamed(self, columns: Mapping[str, str]) -> KeySet | None:
        """The keys that remain when columns are known under other names; None: none does."""
        on = tuple((columns[c], k) for c, k in self.on if c in columns)
        return KeySet(self.node, on) if on else None

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(c for c, _ in self.on)


def keys_of(node: Node, columns: tuple[str, ...], names: Names, *, nulls: bool = True) -> KeySet:
    """The values of columns of a node; without `nulls`, NULL may be missing."""
    source, found = _source(node, columns, nulls, names)
    items = tuple((names.new(), c) for c in found)
    return KeySet(Keys(source, items), tuple(zip(columns, (k for k, _ in items), strict=True)))


def _source(
    node: Node, columns: tuple[str, ...], nulls: bool, names: Names
) -> tuple[Node, tuple[str, ...]]:
    """A smaller node and columns of it that have all these values, and maybe more.

    Joins that only add columns to a row need not be made to know the others. Without this, a
    plan would double with each of them. Weights do not count here, and nothing may be summed up
    below: a row that is replaced by one with the same key would be gone.
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
                # What is joined again stands there as it comes and as it goes.
                sources += [each] if each not in sources else []
            if len(sources) == 1:
                return sources[0]
            fresh = names.several(len(columns))
            return Union(tuple(narrow(*each) for each in sources), fresh), fresh
        case _:
            pass
    return node, columns


def _joins(node: Node) -> int:
    """How much there is to leave out; without, a filter leaves fewer values than what it reads."""
    return sum(isinstance(part, Join | Window) for part in walk(node))
