"""A journal entry as a value: what one step took in, and where it stands in the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from stepwell.errors import CorruptError
from stepwell.model import NO_CHECKSUM, Bytes, Checksum, Epoch, Position, Transaction


class Kind(str, Enum):
    STEP = "step"
    """Input taken at once; `closes` says whether its transaction ends here."""
    CLOSE = "close"
    """Ends an explicit transaction without input."""
    ABORT = "abort"
    """Takes back an explicit transaction."""
    BARRIER = "barrier"
    """The empty entry with which a new writer takes the next position."""


@dataclass(frozen=True, slots=True)
class Input:
    """What one source gave to a step: a reference to read it again by, or the data itself."""

    source: str
    table: str
    rows: int
    checksum: Checksum
    """Of the rows, independent of their order."""
    reference: str | None = None
    """JSON: files, or offset ranges."""
    data: Bytes | None = None
    """An Arrow IPC stream: only what cannot be read again."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What the engine wants recorded; the journal decides where."""

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
    """The checksum of the object before this one: the log is a chain."""
    draft: Draft

    @property
    def is_barrier(self) -> bool:
        return self.draft.kind is Kind.BARRIER


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry that is in the journal, with the checksum of its bytes."""

    entry: Entry
    checksum: Checksum
    void: bool = False
    """A barrier put above an entry of a higher epoch, by a writer that had lost already."""

    @property
    def cursor(self) -> Cursor:
        """The place just after this entry: what a flush that holds it makes the replay position."""
        return Cursor(self.entry.position, self.checksum, self.entry.epoch)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the chain: the entry just passed, its checksum, the highest epoch up to it."""

    position: Position = Position(0)
    checksum: Checksum = NO_CHECKSUM
    epoch: Epoch = Epoch(0)

    @property
    def next(self) -> Position:
        return Position(self.position + 1)

    def advance(self, found: Recorded, object: str) -> tuple[Cursor, Recorded]:
        """Pass the next entry, checking that it belongs here.

        A barrier of a lower epoch than an entry before it was put by a writer that had lost the
        pipeline already and did not know: it is void, passed, and not given to anybody. Its place
        in the chain is not checked, for its author could not know the entry before it. But an entry
        with data cannot come to lie there; if one does, the entry between was lost, and another
        writer's barrier has taken its place.
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
