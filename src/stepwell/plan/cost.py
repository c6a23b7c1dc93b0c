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

from stepwell.plan.nodes import Scan, walk
from stepwell.plan.program import Block, Full, Top

LOOK_UP = 8
"""Number of rows scanned in the time it takes to look up and join one row."""
WORTH_ASKING = 100_000
"""With fewer changed rows, incremental maintenance is always cheap enough."""


@dataclass(frozen=True, slots=True)
class Costs:
    incremental: int
    recompute: int

    @property
    def recompute_is_cheaper(self) -> bool:
        return self.incremental > self.recompute


def costs(block: Block, rows: Mapping[str, int], changed: Mapping[str, int]) -> Costs | None:
    """Both estimates for a block; None if it has no alternative or too few rows changed."""
    if isinstance(block, Full | Top):
        return None
    read = [node.relation for node in walk(block.input) if isinstance(node, Scan)]
    moved = [changed.get(name, 0) for name in read]
    if sum(moved) < WORTH_ASKING:
        return None
    there = [rows.get(name, 0) for name in read]
    incremental = sum(moved)
    for i, change in enumerate(moved):
        incremental += sum(min(LOOK_UP * change, all_of) for all_of in there[:i] + there[i + 1 :])
    return Costs(incremental=incremental, recompute=sum(there) + rows.get(block.relation, 0))
