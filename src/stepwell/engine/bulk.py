"""Bulk reads: large input that executors decode and store, and that this process never holds.

The journal records such a step like any other: its reference, its number of rows and their
checksum. So either path reads again what the other has taken. A bulk read is a step, and a
transaction, of its own: its rows are not folded with others.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.engine.ports import BulkRead, BulkReads, Intake, Source
from stepwell.execution.executor import Executor, bulk_of
from stepwell.lsm.bulk import Bulk, MisalignedError, NotInBulkError
from stepwell.store.sealed import Json

BULK_BYTES = 256 * 1024 * 1024
"""The usual size from which input is read in bulk."""


@dataclass(frozen=True, slots=True)
class BulkReader:
    """Reads input in bulk for one executor."""

    bulk: Bulk
    bytes_min: int
    """Less input is read by this process."""

    @classmethod
    def of(cls, executor: Executor, bytes_min: int = BULK_BYTES) -> BulkReader | None:
        """The reader for an executor; None if the executor has to be given all rows."""
        bulk = bulk_of(executor)
        return None if bulk is None else cls(bulk, bytes_min)

    def serves(self, source: Source) -> bool:
        return isinstance(source, BulkReads) and self.bulk.accepts(source.table)

    def intake(self, source: Source, read: BulkRead) -> Intake:
        """Read the input; raises `NotInBulkError` if it has to be read step by step."""
        try:
            return read.intake(self.bulk.stage(source.table, read.decode))
        except MisalignedError:
            if read.aligned is None:
                raise
            return self.intake(source, read.aligned)

    def again(self, source: Source, reference: Json) -> Intake | None:
        """Read recorded input again; None if `source.read` has to read it, or may as well.

        Not compared yet, except for what the reference tells.
        """
        if not isinstance(source, BulkReads) or not self.serves(source):
            return None
        read = source.read_bulk(reference, self.bytes_min)
        try:
            return None if read is None else self.intake(source, read)
        except NotInBulkError:
            return None
