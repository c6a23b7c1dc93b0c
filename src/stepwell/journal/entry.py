"""A journal entry as a value: what one step took in, and where it stands in the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from stepwell.model import Bytes, Checksum, Epoch, Position, Transaction


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
