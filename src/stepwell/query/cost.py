"""What keeping a block costs, and what computing it anew would: rows handled, roughly.

Computing anew reads every relation once. Keeping reads the change, and looks up what each of its
rows meets in the other relations; a row that is looked up and joined costs as much as several that
are only read past. While changes are small the difference is so large that none of this matters;
near the border it is a rule of thumb, measured by `benchmarks/views.py --only shares`.
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
    moved = sum(changed.get(name, 0) for name in read)
    if moved < WORTH_ASKING:
        return None
    anew = sum(rows.get(name, 0) for name in read) + rows.get(block.relation, 0)
    return Costs(keep=moved * (1 + LOOK_UP * (len(read) - 1)), anew=anew)
