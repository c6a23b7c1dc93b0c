"""The order in which a change joins the other inputs, and the choice of the broadcast side.

A delta term starts with few rows. It is joined with one input after another. An input connected by
an equality comes before one that is not, and a small one before a large one, so the intermediate
result stays small and each large relation is scanned once against a broadcast of it. Nothing here
affects the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.plan.conditions import equal_columns, sides
from stepwell.plan.expressions import Expr, column
from stepwell.plan.nodes import Filter, Inner, Keys, Leaf, Node, When, walk

BROADCAST_ROWS_MAX = 1_000_000
_SELECTIVITY = 0.2
_STAGED_ROWS = 10_000


@dataclass(slots=True)
class Estimates:
    """Row estimates for stored relations and for their changes."""

    rows: Mapping[str, int] = field(default_factory=dict)
    deltas: Mapping[str, int] = field(default_factory=dict)
    unique: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each relation, the positions of columns that are unique together."""
    _stages: set[str] = field(default_factory=set)

    def add_stage(self, relation: str) -> None:
        self._stages.add(relation)

    def of(self, node: Node) -> float:
        """Rough row estimate for a node."""
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
        """Row count of the relation that this node is a change of."""
        leaves = [n for n in walk(node) if isinstance(n, Leaf)]
        return float(max((self.rows.get(leaf.relation, 0) for leaf in leaves), default=0))


def in_order(
    start: Node, others: Sequence[Node], on: tuple[Expr, ...], estimates: Estimates
) -> Node:
    """The inner join of a change with the other inputs, in the estimated best order."""
    if not others:
        return start if not on else Inner((start,), on)
    size = max(estimates.of(start), 1.0)
    whole = max(estimates.total(start), 1.0)
    small: list[bool | None] = []
    joined: list[Node] = [start]
    for best, seen in _along(start, others, on, estimates.of):
        rows = estimates.of(best)
        if size <= rows:
            small.append(True if size <= BROADCAST_ROWS_MAX else None)
        else:
            small.append(False if rows <= BROADCAST_ROWS_MAX else None)
        if not _connected(best, seen, on):
            size *= max(rows, 1.0)
        elif not _unique(best, seen, on, estimates):
            size *= max(1.0, rows / whole)
        joined.append(best)
    return Inner(tuple(joined), on, tuple(small))


def all_in_order(inputs: Sequence[Node], on: tuple[Expr, ...], estimates: Estimates) -> Node:
    """The inner join of whole inputs: the largest first, then those that leave the fewest rows.

    Spark joins in the given order, and would build the product of two adjacent tables even if a
    third one connects them. The broadcast side is left to Spark here: Spark knows the file sizes,
    and our estimate could be far too low.
    """
    largest = max(inputs, key=estimates.total)
    others = [node for node in inputs if node is not largest]

    def left_over(node: Node) -> tuple[float, float]:
        # The most selectively filtered inputs first, the smallest of them before the others.
        return estimates.of(node) / max(estimates.total(node), 1.0), estimates.of(node)

    order = [largest, *(node for node, _ in _along(largest, others, on, left_over))]
    return Inner(tuple(order), on)


def _along(
    start: Node,
    others: Sequence[Node],
    on: tuple[Expr, ...],
    size: Callable[[Node], Any],
) -> Iterator[tuple[Node, set[str]]]:
    """The other inputs by size, but those connected by an equality to earlier inputs first.

    Each comes with the set of columns joined before it.
    """
    seen = set(start.columns)
    left = list(others)
    while left:
        best = min(left, key=lambda node: (not _connected(node, seen, on), size(node)))
        yield best, seen
        seen = seen | set(best.columns)
        left.remove(best)


def _joining(node: Node, seen: set[str], on: tuple[Expr, ...]) -> set[str]:
    """Columns of the node that an equality ties to inputs joined already."""
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
