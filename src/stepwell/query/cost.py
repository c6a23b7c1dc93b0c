"""What keeping a block costs, and what computing it anew would: rows handled, roughly.

Computing anew reads every relation once. Keeping reads each change, and looks up what its rows meet
in the other relations. A row that is looked up and joined costs as much as several that are only
read past; but to meet all of a small relation costs no more than to read it. While changes are
small the difference is so large that none of this matters; near the border it is a rule of thumb,
measured by `benchmarks/views.py --only shares`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepwell.query.algebra import Scan, walk
from stepwell.query.program import Block, Full, Top

LOOK_UP = 8
"""Rows that are read past in the time in which one is looked up and joined."""
WORTH_ASKING = 100_000
"""With fewer changed rows keeping is never dear enough to think about it."""


@dataclass(frozen=True, slots=True)
class Costs:
    keep: int
    anew: int

    @property
    def cheaper_anew(self) -> bool:
        return self.keep > self.anew


def costs(block: Block, rows: Mapping[str, int], changed: Mapping[str, int]) -> Costs | None:
    """Both estimates for a block; None if there is no choice, or nothing to choose."""
    if isinstance(block, Full | Top):
        return None
    read = [node.relation for node in walk(block.input) if isinstance(node, Scan)]
    moved = [changed.get(name, 0) for name in read]
    if sum(moved) < WORTH_ASKING:
        return None
    there = [rows.get(name, 0) for name in read]
    keep = sum(moved)
    for i, change in enumerate(moved):
        keep += sum(min(LOOK_UP * change, all_of) for all_of in there[:i] + there[i + 1 :])
    return Costs(keep=keep, anew=sum(there) + rows.get(block.relation, 0))
