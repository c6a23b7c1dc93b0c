"""Relations and their parts: the LSM tree of one relation.

A relation is a list of parts. A part is immutable: an Arrow table in memory, or a run, which is a
list of Parquet files. Parts have the columns c0, c1, ... and the weight w. Rows of several parts
can cancel out; only readers that need consolidated rows sum the weights. A change set is a part as
well: a relation stores the change sets that transactions compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from stepwell.lsm.run_file import RunFiles, sortable
from stepwell.manifest.manifest import Run


@dataclass(slots=True, eq=False)
class Part:
    """One immutable part of a relation, or a change set."""

    types: tuple[str, ...]
    rows: int
    table: pa.Table | None = None
    """The rows, if they are in memory."""
    run: RunFiles | None = None
    """The rows in files, sorted like the relation."""
    shipped: RunFiles | None = None
    """The rows in files that only Spark reads."""
    shown: object = field(default=None, repr=False)
    """The DataFrame, once Spark has read the part. Only `execution.spark` uses it."""
    stored: tuple[Run, ...] = ()
    """The runs of the manifest that hold these rows; empty until they are flushed."""
    once: bool | None = None
    """Whether this is a run in which every row has weight one; None if not checked yet."""


@dataclass(slots=True)
class Relation:
    """A stored relation of one pipeline."""

    name: str
    types: tuple[str, ...]
    key: tuple[int, ...]
    parts: list[Part] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Total rows of the parts; an upper bound, because rows of several parts may cancel out."""
        return sum(part.rows for part in self.parts)

    @property
    def sort(self) -> tuple[int, ...]:
        """The columns by which the runs are sorted."""
        return self.key if sortable(self.types, self.key) else ()
