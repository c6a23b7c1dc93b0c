"""What one transaction did to the views, and one that has not happened yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from stepwell.engine.ports import WEIGHT as SHOWN_WEIGHT
from stepwell.engine.ports import Rejected
from stepwell.query.cost import Costs
from stepwell.spark.relations import Part


@dataclass(slots=True)
class Outcome:
    """What one transaction did."""

    changes: Mapping[str, pa.Table]
    """For each materialized view that changed: its columns, and last the weight of each row."""
    rejected: tuple[Rejected, ...] = ()
    recomputed: tuple[str, ...] = ()
    """Views of which all or a part was computed anew: always (`explain` says why), because that was
    cheaper, or because the plan of what changed would have been too large for Spark."""
    queries: int = 0
    """Spark queries that were run."""
    queries_of: Mapping[str, int] = field(default_factory=dict)
    """The same for each view."""
    jobs_of: Mapping[str, int] = field(default_factory=dict)
    """Spark jobs for each view: those of its queries, and one for each broadcast in them."""
    rows_of: Mapping[str, int] = field(default_factory=dict)
    """Stored rows that were read for each view."""
    seconds_of: Mapping[str, float] = field(default_factory=dict, compare=False)
    cheaper: Mapping[str, Costs] = field(default_factory=dict)
    """Views of which a part was computed anew because that costs less, with both estimates."""

    WEIGHT = SHOWN_WEIGHT


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction that was computed and has not happened yet."""

    outcome: Outcome
    time: datetime
    deltas: Mapping[str, Part] = field(repr=False)
