"""Cost model: rough estimates, in rows handled, of maintaining a block and of recomputing it.

Recomputing reads every relation once. Incremental maintenance reads each change and looks up its
matches in the other relations. A row that is looked up and joined costs as much as several rows
that are only scanned, but matching all of a small relation costs no more than scanning it. For
small changes the difference is too large for the details to matter; near the break-even point this
is a rule of thumb, measured by `benchmarks/views.py --only shares`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepwell.plan.identity import by_identity
from stepwell.plan.nodes import Scan, walk
from stepwell.plan.program import Block, Full, Groups, Rows, Sums, Top


@dataclass(frozen=True, slots=True)
class CostModel:
    look_up: int = 8
    """The cost of looking up and joining one row."""
    scan: int = 1
    """The cost of scanning one row."""
    changed_rows_min: int = 100_000
    """With fewer changed rows, only the size of a plan can make recomputing cheaper."""
    operator: int = 1_000
    """The cost of one more operator in a query that Spark has to plan."""
    operators_min: int = 150
    """With fewer operators, the plan of a change is always cheap enough."""


DEFAULT = CostModel()


@dataclass(frozen=True, slots=True)
class Costs:
    incremental: int
    recompute: int

    @property
    def recompute_is_cheaper(self) -> bool:
        return self.incremental > self.recompute


def costs(
    block: Block,
    rows: Mapping[str, int],
    changed: Mapping[str, int],
    model: CostModel = DEFAULT,
) -> Costs | None:
    """Both estimates for a block; None if it has no alternative or too few rows changed."""
    if isinstance(block, Full | Top):
        return None
    read = _reads(block)
    moved = [changed.get(name, 0) for name in read]
    if sum(moved) < model.changed_rows_min:
        return None
    there = [rows.get(name, 0) for name in read]
    incremental = sum(moved)
    for i, change in enumerate(moved):
        others = there[:i] + there[i + 1 :]
        incremental += sum(min(model.look_up * change, model.scan * all_of) for all_of in others)
    return Costs(
        incremental=incremental, recompute=model.scan * (sum(there) + rows.get(block.relation, 0))
    )


def rows_to_recompute(incremental: int, recompute: int, model: CostModel = DEFAULT) -> int:
    """The number of rows up to which Spark recomputes a block for a change of any size.

    Given are the operators of both plans. With few rows, planning a query is nearly all of its
    cost. 0 means never.
    """
    if incremental < model.operators_min:
        return 0
    return max(0, model.operator * (incremental - recompute) // max(model.scan, 1))


def rows_of(block: Sums | Groups | Rows, rows: Mapping[str, int]) -> int:
    """The rows that recomputing a block reads."""
    return sum(rows.get(name, 0) for name in _reads(block)) + rows.get(block.relation, 0)


@by_identity
def _reads(block: Sums | Groups | Rows) -> list[str]:
    """The relations that a block reads, each as often as it is read."""
    return [node.relation for node in walk(block.input) if isinstance(node, Scan)]
