"""In which order a change meets the other inputs of a join, and which side is small.

A term of a change starts with few rows. It is joined with one input after another, always one that
an equality connects it with, small ones first, so that it stays small and each large relation is
read once, past a broadcast of what was found so far. Nothing here decides what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepwell.query.algebra import Expr, Filter, Inner, Keys, Leaf, Node, When, column, walk
from stepwell.query.conditions import equal_columns, sides

BROADCAST_ROWS_MAX = 1_000_000
_SELECTIVITY = 0.2
_STAGED_ROWS = 10_000


@dataclass(slots=True)
class Estimates:
    """How many rows there are: of relations as stored, and of their changes."""

    rows: Mapping[str, int] = field(default_factory=dict)
    deltas: Mapping[str, int] = field(default_factory=dict)
    unique: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Positions of columns that are unique together."""
    _stages: set[str] = field(default_factory=set)

    def staged(self, relation: str) -> None:
        self._stages.add(relation)

    def of(self, node: Node) -> float:
        """Roughly how many rows a node has."""
        leaves = [n for n in walk(node) if isinstance(n, Leaf)]
        if not leaves:
            return 1.0
        filters = sum(isinstance(n, Filter) for n in walk(node))
        most = max(self._leaf(leaf) for leaf in leaves)
        if any(leaf.when is When.DELTA for leaf in leaves) and not isinstance(node, Leaf):
            most = min(most, sum(self._leaf(leaf) for leaf in leaves if leaf.when is When.DELTA))
        return float(most * _SELECTIVITY**filters)

    def _leaf(self, leaf: Leaf) -> int:
        if leaf.relation in self._stages:
            return _STAGED_ROWS
        if leaf.when is When.DELTA:
            return self.deltas.get(leaf.relation, 1000)
        return self.rows.get(leaf.relation, 1_000_000)

    def total(self, node: Node) -> float:
        """How many rows the relation has of which this node is a change."""
        leaves = [n for n in walk(node) if isinstance(n, Leaf)]
        return float(max((self.rows.get(leaf.relation, 0) for leaf in leaves), default=0))


def in_order(
    start: Node, others: Sequence[Node], on: tuple[Expr, ...], estimates: Estimates
) -> Node:
    """The inner join of a change with other inputs, one after another."""
    if not others:
        return start if not on else Inner((start,), on)
    joined: list[Node] = [start]
    seen = set(start.columns)
    left = list(others)
    size = max(estimates.of(start), 1.0)
    whole = max(estimates.total(start), 1.0)
    small: list[bool | None] = []
    while left:
        best = min(left, key=lambda node: _rank(node, seen, on, estimates))
        rows = estimates.of(best)
        connected = _connected(best, seen, on)
        if size <= rows:
            small.append(True if size <= BROADCAST_ROWS_MAX else None)
        else:
            small.append(False if rows <= BROADCAST_ROWS_MAX else None)
        if not connected:
            size *= max(rows, 1.0)
        elif not _unique(best, seen, on, estimates):
            size *= max(1.0, rows / whole)
        joined.append(best)
        seen |= set(best.columns)
        left.remove(best)
    return Inner(tuple(joined), on, tuple(small))


def _rank(
    node: Node, seen: set[str], on: tuple[Expr, ...], estimates: Estimates
) -> tuple[bool, float]:
    return not _connected(node, seen, on), estimates.of(node)


def _joining(node: Node, seen: set[str], on: tuple[Expr, ...]) -> set[str]:
    """Columns of the node that an equality ties to what is joined already."""
    found: set[str] = set()
    mine = set(node.columns)
    for condition in on:
        both = _sides(condition)
        if both is None:
            continue
        for a, b in (both, both[::-1]):
            if a.columns and b.columns and a.columns <= seen and b.columns <= mine:
                found |= b.columns
    return found


def _sides(condition: Expr) -> tuple[Expr, Expr] | None:
    pair = equal_columns(condition)
    return sides(condition) if pair is None else (column(pair[0]), column(pair[1]))


def _connected(node: Node, seen: set[str], on: tuple[Expr, ...]) -> bool:
    return bool(_joining(node, seen, on))


def _unique(node: Node, seen: set[str], on: tuple[Expr, ...], estimates: Estimates) -> bool:
    joining = _joining(node, seen, on)
    if isinstance(node, Keys):
        return set(node.columns) <= joining
    leaf = next((n for n in walk(node) if isinstance(n, Leaf)), None)
    if leaf is None:
        return False
    key = estimates.unique.get(leaf.relation, ())
    return bool(key) and {leaf.columns[i] for i in key} <= joining
