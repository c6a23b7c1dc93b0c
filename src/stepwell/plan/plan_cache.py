"""Maintenance plans, kept from one transaction to the next.

The plan of a block depends on which of its inputs changed, and the order of its joins on their
sizes. Sizes are compared by their power of two, so a block is planned again only when an input has
doubled or halved, and not for a change of few rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stepwell.plan.join_order import Estimates
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import Names, Scan, walk
from stepwell.plan.program import Block, Full

_PLANS_MAX = 5_000
_FEW_ROWS = 63
"""Changes of at most as many rows share a plan: they are small against any table."""


@dataclass(slots=True)
class PlanCache:
    """The plans of all blocks of a pipeline."""

    names: Names
    unique: Callable[[], Mapping[str, tuple[int, ...]]]
    """Returns the columns that are unique together, by relation."""
    _known: OrderedDict[object, tuple[Block, Maintenance]] = field(default_factory=OrderedDict)
    _reads: dict[int, tuple[Block, frozenset[str]]] = field(default_factory=dict)

    def maintenance(
        self, block: Block, rows: Mapping[str, int], deltas: Mapping[str, int]
    ) -> Maintenance:
        """The maintenance of a block, given the rows of all relations and of those that changed."""
        reads = self._inputs(block)
        changed = reads & deltas.keys()
        sizes = tuple(rows[name].bit_length() for name in sorted(reads))
        changes = tuple(
            (name, max(deltas[name], _FEW_ROWS).bit_length()) for name in sorted(changed)
        )
        key = (id(block), rows[block.relation].bit_length(), sizes, changes)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known[1]
        estimates = Estimates(dict(rows), dict(deltas), self.unique())
        maintenance = Maintenance(self.names, changed, estimates)
        # The block is held together with its plan, so no other block can get its id.
        self._known[key] = block, maintenance
        if len(self._known) > _PLANS_MAX:
            self._known.popitem(last=False)
        return maintenance

    def _inputs(self, block: Block) -> frozenset[str]:
        known = self._reads.get(id(block))
        if known is None:
            nodes = () if isinstance(block, Full) else walk(block.input)
            inputs = frozenset(n.relation for n in nodes if isinstance(n, Scan))
            known = self._reads[id(block)] = block, inputs
        return known[1]
