"""A journal entry as a value: the input of one step, and its position in the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from stepwell.errors import CorruptError
from stepwell.model import NO_CHECKSUM, Bytes, Checksum, Epoch, Position, Transaction


class Kind(StrEnum):
    STEP = "step"
    """Input of one step; `closes` says whether its transaction ends here."""
    CLOSE = "close"
    """Ends an explicit transaction without input."""
    ABORT = "abort"
    """Rolls back an explicit transaction."""
    BARRIER = "barrier"
    """The empty entry with which a new writer takes the next position."""


@dataclass(frozen=True, slots=True)
class Input:
    """The input of a step from one source: a reference for reading it again, or the data itself."""

    source: str
    table: str
    rows: int
    checksum: Checksum
    """The checksum of the rows, independent of their order."""
    reference: str | None = None
    """JSON: files, or offset ranges."""
    data: Bytes | None = None
    """An Arrow IPC stream, only for input that cannot be read again."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Content to be recorded by the engine; the journal assigns the position."""

    kind: Kind
    transaction: Transaction
    step: int
    closes: bool
    time: datetime
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of the journal."""

    lineage: str
    epoch: Epoch
    position: Position
    put_id: str
    previous: Checksum
    """The checksum of the preceding entry: the log is a chain."""
    draft: Draft

    @property
    def is_barrier(self) -> bool:
        return self.draft.kind is Kind.BARRIER


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry in the journal, with the checksum of its bytes."""

    entry: Entry
    checksum: Checksum
    void: bool = False
    """A barrier written after an entry of a higher epoch, by a writer that was already fenced."""

    @property
    def cursor(self) -> Cursor:
        """The point just after this entry: the replay position of a flush that includes it."""
        return Cursor(self.entry.position, self.checksum, self.entry.epoch)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A point in the chain: the last entry passed, its checksum, the highest epoch up to it."""

    position: Position = Position(0)
    checksum: Checksum = NO_CHECKSUM
    epoch: Epoch = Epoch(0)

    @property
    def next(self) -> Position:
        return Position(self.position + 1)

    def advance(self, found: Recorded, object: str) -> tuple[Cursor, Recorded]:
        """Pass the next entry, checking that it belongs here.

        A barrier of a lower epoch than an earlier entry was written by a writer that had already
        lost the pipeline without knowing it. The barrier is void: it is passed and not returned to
        any reader. Its link in the chain is not checked, because its author could not know the
        entry before it. An entry with data cannot legitimately follow in this way; if one does, the
        entry in between was lost and another writer's barrier has taken its position.
        """
        entry = found.entry
        if entry.epoch < self.epoch:
            if not entry.is_barrier:
                raise CorruptError(
                    object,
                    f"has epoch {entry.epoch}, but an entry before it has epoch {self.epoch}",
                    field="epoch",
                    hint="an entry before it was lost or replaced: see `stepwell inspect journal`",
                )
            void = Recorded(entry, found.checksum, void=True)
            return Cursor(entry.position, found.checksum, self.epoch), void
        if entry.previous != self.checksum:
            raise CorruptError(
                object,
                f"names {entry.previous} as the entry before it, which is {self.checksum}",
                field="previous",
                hint="an entry was replaced or is missing: see `stepwell inspect journal`",
            )
        return Cursor(entry.position, found.checksum, entry.epoch), found
