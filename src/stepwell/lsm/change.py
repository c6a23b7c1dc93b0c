"""Incoming changes to one table: puts, deletes and discards, and rejected rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.lsm.staged import StagedRows

WEIGHT = "_w"

"""The last column of a view's change set: the weight of the row, negative for a retraction."""

PartName = Literal["put", "delete", "discard"]


@dataclass(frozen=True, slots=True)
class Change:
    """A batch of changes to one table, applied in this order: discards, deletes, puts.

    In a table with a key, a put replaces the row with the same key, the last put of a key wins, and
    deletes and discards need only the key columns. In a table without a key, a delete removes one
    equal row, and discards are not allowed.

    A delete that matches no row is rejected, and so is the second of two deletes of one row. A
    discard removes a row if it exists and is never rejected: it stands for a key that was put and
    deleted again, whose delete did match a row at the time.
    """

    put: pa.Table | None = None
    delete: pa.Table | None = None
    discard: pa.Table | None = None
    staged: StagedRows | None = None
    """Puts that are in files; then there are no other rows."""

    @property
    def parts(self) -> tuple[pa.Table, ...]:
        """The non-empty parts in memory, in the order in which they are applied."""
        every = (self.discard, self.delete, self.put)
        return tuple(part for part in every if part is not None and part.num_rows)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rejected row and the reason."""

    table: str
    row: tuple[object, ...]
    reason: str
    part: PartName = "delete"
    at: int = 0
    """Position of the row in that part of the executed change."""


def net_rows(change: pa.Table) -> int:
    """The number of rows that a view's change set adds, less those that it retracts."""
    return int(pc.sum(change.column(WEIGHT)).as_py() or 0)


def changed_rows(change: pa.Table) -> int:
    """The number of rows that a view's change set adds and retracts."""
    return int(pc.sum(pc.abs(change.column(WEIGHT))).as_py() or 0)


def added_rows(change: pa.Table) -> pa.Table:
    """The rows that a view's change set adds, with their weights."""
    return change.filter(pc.greater(change.column(WEIGHT), 0))
