"""Joins of many inputs as a few parts: the arms of a star, and halves along an equality.

The change of a join has a term for each input that changes, and each term reads all other inputs.
For a join of n inputs that all change, that is n * n inputs to read. Two shapes need fewer:

    ((base LEFT JOIN a ON ..) LEFT JOIN b ON ..)   each arm depends on the base alone, so arms that
                                                   are joined by the same columns change together
    a JOIN b JOIN c JOIN d                         halves: the change of each half is computed once
                                                   and joined with the other half, n * log(n)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.plan.conditions import equality
from stepwell.plan.expressions import Expr
from stepwell.plan.nodes import Inner, Join, Node, Side

TERMS_MAX = 6
"""The number of changing inputs up to which a join has one term for each."""
_HALF_MIN = 2


@dataclass(frozen=True, slots=True)
class Star:
    """Left joins of which each reads nothing but the base on its left."""

    base: Node
    arms: tuple[Join, ...]
    """From the inside out."""

    def groups(self) -> dict[tuple[str, ...], list[Join]]:
        """The arms by the columns of the base that they are joined by."""
        found: dict[tuple[str, ...], list[Join]] = {}
        for arm in self.arms:
            found.setdefault(tuple(a for a, _ in arm.equal), []).append(arm)
        return found


def star_of(node: Join) -> Star | None:
    """A stack of left joins as a star; None if there are not at least two arms."""
    arms: list[Join] = []
    used: set[str] = set()
    base: Node = node
    while isinstance(base, Join) and base.side is Side.LEFT and base.equal:
        if not used <= set(base.left.columns):
            break
        arms.append(base)
        also = frozenset[str]().union(*(condition.columns for condition in base.also))
        used |= {a for a, _ in base.equal} | (also - set(base.right.columns))
        base = base.left
    return Star(base, tuple(reversed(arms))) if len(arms) > 1 else None


@dataclass(frozen=True, slots=True)
class Halves:
    """An inner join as the join of two inner joins."""

    left: Inner
    right: Inner
    on: tuple[Expr, ...]
    """The conditions over both."""


def halves_of(node: Inner) -> Halves | None:
    """Cut a join at the equality that leaves the most equal halves, each of them connected.

    None if every cut leaves a single input on one side, as in a join of one table with many.
    """
    edges = _edges(node)
    best: frozenset[int] | None = None
    count = len(node.inputs)
    for number in range(len(edges)):
        side = _reached(edges[:number] + edges[number + 1 :], edges[number][0])
        size = min(len(side), count - len(side))
        if size >= _HALF_MIN and (best is None or size > min(len(best), count - len(best))):
            best = side
    if len(edges) < count - 1 or best is None:
        return None
    parts = [
        [child for i, child in enumerate(node.inputs) if (i in best) is inside]
        for inside in (True, False)
    ]
    made, rest = [], list(node.on)
    for part in parts:
        columns = {name for child in part for name in child.columns}
        mine = tuple(c for c in rest if c.columns <= columns)
        rest = [c for c in rest if c not in mine]
        made.append(Inner(tuple(part), mine))
    return Halves(made[0], made[1], tuple(rest))


def _edges(node: Inner) -> list[tuple[int, int]]:
    """Equalities that connect all inputs without a cycle, as pairs of inputs."""
    place = {name: i for i, child in enumerate(node.inputs) for name in child.columns}
    group = list(range(len(node.inputs)))
    edges: list[tuple[int, int]] = []
    for condition in node.on:
        pair = equality(condition, condition.columns, condition.columns)
        sides = [{place[name] for name in side.columns} for side in pair or ()]
        if any(len(side) != 1 for side in sides) or len(sides) != 2:
            continue
        [a], [b] = sides
        if group[a] == group[b]:
            continue
        edges.append((a, b))
        group = [group[a] if mine == group[b] else mine for mine in group]
    return edges


def _reached(edges: Sequence[tuple[int, int]], start: int) -> frozenset[int]:
    """The inputs that these edges connect with one of them."""
    found, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        for a, b in edges:
            for one, other in ((a, b), (b, a)):
                if one == here and other not in found:
                    found.add(other)
                    waiting.append(other)
    return frozenset(found)
