"""The reference evaluator: evaluates the algebra on Python counters, row by row, without tricks.

It is the oracle of the property tests and the simulator's stand-in for Spark, so its results must
be easy to trust. A bag maps rows, in the order of the node's columns, to weights; a row of weight
zero is absent. All values are clean (see `spark_values`), so equal rows are one key.

Pairs are two bags at once, before and after, and almost every node treats the two alike. So a node
over pairs is evaluated twice, once per *version*, in which a leaf for BOTH shows one of its two
states. Only `Keys`, `Restrict` and `Diff` look at both versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from stepwell.errors import InvalidError, ensure
from stepwell.execution.reference.bags import Bag, Row, bag, minus, plus, present
from stepwell.execution.reference.operators import combine, keys, restrict
from stepwell.execution.reference.spark_values import clean
from stepwell.plan.nodes import (
    Accumulate,
    Diff,
    Keys,
    Leaf,
    Merge,
    Node,
    Restrict,
    Scan,
    When,
    children,
    label,
)

__all__ = ["Bag", "Pairs", "Row", "bag", "evaluate"]

Pairs: TypeAlias = "dict[Row, tuple[int, int]]"
"""The weight of every row before and after."""

NOTHING: Mapping[str, Bag] = MappingProxyType({})
VERSIONS = (When.OLD, When.NEW)


def evaluate(
    node: Node, old: Mapping[str, Bag], deltas: Mapping[str, Bag] = NOTHING
) -> Bag | Pairs:
    """Evaluate a node: to pairs if it is over leaves for BOTH, else to a bag.

    `old` holds the relations before the transaction, `deltas` their change sets. A relation that
    neither contains is an error, because an oracle that takes a typo for an empty table is blind.
    """
    evaluation = Evaluation(old, deltas)
    if not gives_pairs(node):
        return evaluation.bag(node, When.NEW)
    before, after = (evaluation.bag(node, version) for version in VERSIONS)
    return {row: (before[row], after[row]) for row in {**before, **after}}


def gives_pairs(node: Node) -> bool:
    match node:
        case Leaf():
            return node.when is When.BOTH
        case Keys() | Diff():
            return False
        case Restrict():
            return gives_pairs(node.input)
        case _:
            return any(map(gives_pairs, children(node)))


class Evaluation:
    """One evaluation. A node that occurs in several places is computed once per version."""

    def __init__(self, old: Mapping[str, Bag], deltas: Mapping[str, Bag]) -> None:
        self._old = old
        self._deltas = deltas
        self._known: dict[tuple[int, When], Bag] = {}

    def bag(self, node: Node, version: When) -> Bag:
        key = (id(node), version)
        if key not in self._known:
            self._known[key] = self._compute(node, version)
        return self._known[key]

    def _compute(self, node: Node, version: When) -> Bag:
        match node:
            case Scan():
                return self._relation(node, When.NEW)
            case Leaf():
                return self._relation(node, version if node.when is When.BOTH else node.when)
            case Diff():
                before, after = self._versions(node.input)
                return plus(after, minus(before))
            case Keys():
                return keys(node, self._versions(node.input))
            case Restrict():
                return restrict(node, self.bag(node.input, version), self._versions(node.keys))
            case Accumulate() | Merge():
                ensure(not gives_pairs(node), f"{label(node)} is given changes, not pairs")
        return combine(node, [self.bag(child, version) for child in children(node)])

    def _versions(self, node: Node) -> list[Bag]:
        return [self.bag(node, version) for version in VERSIONS]

    def _relation(self, node: Scan | Leaf, when: When) -> Bag:
        name = node.relation
        if name not in self._old and name not in self._deltas:
            raise InvalidError(f"no rows are given for the relation {name}")
        parts = {
            When.OLD: [self._old],
            When.DELTA: [self._deltas],
            When.NEW: [self._old, self._deltas],
        }
        rows: Bag = Counter()
        for part in parts[when]:
            for row, weight in part.get(name, {}).items():
                ensure(len(row) == len(node.columns), f"{row} has the columns {node.columns}")
                rows[clean(row)] += weight
        return present(rows)
