"""The progress of a pipeline with respect to its sources, its sinks and undelivered output.

It is part of the manifest, so it moves in the same commit as the runs: a crash cannot separate a
source's position from the rows taken up to it.

    sources       the position of each after the last transaction in the runs, and the runs with
                  the names it has taken, if it takes things by name
    sinks         the mark of the last transaction each is known to hold
    outbox        files with output that a sink did not hold when the replay position passed it
    dead_letters  number of rejected rows, by table
    violations    number of rows in the views of data tests

The field is absent from a manifest with no progress, as in manifests written before transactions
existed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.manifest.run_ref import RUN, Run
from stepwell.model import Checksum, Position, Transaction, checksum
from stepwell.store import records
from stepwell.store.records import Record, many, nullable, omitted, one
from stepwell.store.sealed import Json


@dataclass(frozen=True, slots=True)
class SourceAt:
    """The position of a source; `position` is the source's own, as JSON."""

    name: str
    position: Json
    taken: tuple[Run, ...] = ()
    """Runs of the names it has taken (`engine/taken_names`), each name in exactly one run."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The mark that a sink stores atomically with the rows of a transaction.

    A number alone does not identify a transaction: a copy of a pipeline, or one restored from a
    backup, uses the same numbers for other output. The mark therefore names the journal entry that
    closed the transaction, by position and checksum. Entries form a chain, so the checksum stands
    for the whole history before it.

    Output that no entry closed (the first load of a sink, the diff of a restore) has a checksum
    derived from the end of the journal: see `mark_without_entry`.
    """

    lineage: str
    timeline: str = field(compare=False)
    """The timeline, for people only: the entry identifies the history for certain."""
    transaction: Transaction
    position: Position
    entry: Checksum

    def __str__(self) -> str:
        return f"transaction {self.transaction} (entry {self.position}, {self.entry[:8]})"


def mark_without_entry(
    lineage: str, timeline: str, transaction: Transaction, tip: tuple[Position, Checksum]
) -> Delivered:
    """The mark of output that has no journal entry of its own.

    `tip` is the end of the journal when the output was produced. Before any such output is sent, a
    manifest names its file together with this mark, so a crash does not produce it again.
    """
    position, end = tip
    entry = checksum([end.encode(), b" without entry ", str(transaction).encode()])
    return Delivered(lineage, timeline, transaction, position, entry)


@dataclass(frozen=True, slots=True)
class SinkAt:
    """A sink of this pipeline, and the mark it is known to hold; None if it holds nothing.

    The mark may be ahead of the manifest's own transaction: a flush during replay records the mark
    that the sink reported, and the rest of the replay leads up to it.
    """

    name: str
    held: Delivered | None = None

    @property
    def delivered(self) -> Transaction:
        """The last transaction the sink is known to hold; 0 if none."""
        return Transaction(0) if self.held is None else self.held.transaction


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Output of one transaction for one sink, stored in a file until the sink holds it.

    The output of a large transaction is stored in several files, in order.
    """

    sink: str
    mark: Delivered
    path: str
    size: int
    checksum: Checksum
    parts: int = 1
    """The number of files with this mark for this sink."""
    rows: int = 0
    """The number of rows in the file, if it is one of several."""

    @property
    def transaction(self) -> Transaction:
        return self.mark.transaction


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The number of rejected rows of a table since the pipeline began."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Violations:
    """The number of rows in the view of a data test."""

    view: str
    rows: int


@dataclass(frozen=True, slots=True)
class Progress:
    sources: tuple[SourceAt, ...] = ()
    sinks: tuple[SinkAt, ...] = ()
    outbox: tuple[Undelivered, ...] = ()
    dead_letters: tuple[DeadLetters, ...] = ()
    violations: tuple[Violations, ...] = ()


NO_PROGRESS = Progress()

MARK = Record(
    Delivered,
    lineage=records.ulid,
    timeline=records.ulid,
    transaction=records.at_least(1),
    position=records.number,
    entry=records.checksum,
)
"""The mark as stored by manifests and sinks."""
PROGRESS = Record(
    Progress,
    sources=many(
        Record(SourceAt, name=records.text, position=records.anything, taken=omitted(many(RUN)))
    ),
    sinks=many(Record(SinkAt, name=records.text, held=nullable(one(MARK)))),
    outbox=many(
        Record(
            Undelivered,
            sink=records.text,
            mark=one(MARK),
            path=records.text,
            size=records.number,
            checksum=records.checksum,
            parts=records.omitted(records.at_least(2)),
            rows=records.omitted(records.number),
        )
    ),
    dead_letters=many(Record(DeadLetters, table=records.text, rows=records.number)),
    violations=many(Record(Violations, view=records.text, rows=records.number)),
)
