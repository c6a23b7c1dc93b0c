"""What the engine asks of others: sources that give, sinks that take, an executor that computes.

    Source    poll -> Taken (rows, and how to read the same rows again)
    Executor  execute -> Executed (the change of every view), keep it, flush it to runs
    Sink      last -> the mark it holds; write one transaction, atomically with its mark

The engine knows no Spark and no connector; they implement these protocols. Rows are Arrow tables,
bounded by `Limits`; nothing here is larger than one transaction, but for `read` and `query`, which
give whoever asks all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from stepwell.env import Env
from stepwell.query.lineage import Bound, Columns
from stepwell.state.manifest import Run
from stepwell.state.progress import Delivered as Delivered
from stepwell.store.base import Store
from stepwell.store.sealed import Json

WEIGHT = "_w"
"""The last column of a view's change: how often the row comes (> 0) or goes (< 0)."""
ERRORS = "$errors"
"""What is added to a table's name to name its dead letters."""
TEXT_MAX = 10_000
"""How much of a record a dead letter keeps, in characters."""
CUT = "… (cut)"
"""Ends a text of which only the beginning is kept."""


class Letter(NamedTuple):
    """A dead letter: a row of the relation `<table>$errors`."""

    time: datetime
    """When the transaction was committed, as the journal has it."""
    transaction: int
    source: str
    """The name of the source; `push` for rows that were pushed."""
    position: str
    """Where the record stood: `orders-1.json, line 7`."""
    reason: str
    text: str
    """The record's own text; where that is not known, the row as JSON."""


LETTER = Letter._fields
LETTER_TYPES = ("timestamp", "bigint", "string", "string", "string", "string")
"""The columns of dead letters, and their types in SQL."""
PartName = Literal["put", "delete", "discard"]


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one table, one row after another: discards, then deletes, then puts.

    In a table with a key a put replaces the row with that key, the last put of a key wins, and
    deletes and discards need the key's columns only. Without a key a delete takes away one equal
    row, and nothing is discarded.

    A delete that finds nothing is rejected, the second of two as well. A discard takes a row away
    if it is there, and does not mind if it is not: it stands for a key that was put and deleted
    again, whose delete did find a row when it happened.
    """

    put: pa.Table | None = None
    delete: pa.Table | None = None
    discard: pa.Table | None = None

    @property
    def parts(self) -> tuple[pa.Table, ...]:
        """The parts that hold rows, in the order in which they happen."""
        every = (self.discard, self.delete, self.put)
        return tuple(part for part in every if part is not None and part.num_rows)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that was not taken, and why."""

    table: str
    row: tuple[object, ...]
    reason: str
    part: PartName = "delete"
    at: int = 0
    """Its place in that part of the change that was executed."""


Letters = Callable[[Sequence[Rejected]], Mapping[str, Sequence[Letter]]]
"""The dead letters of a transaction, by table, once it is known what the executor rejects."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Input that is not a row of its table: it goes to the dead letters.

    Its texts are valid Unicode and of bounded length, whatever was found: a dead letter can be
    stored.
    """

    where: str
    """Its place in the source: `orders-1.json, line 7`."""
    reason: str
    text: str
    """What stood there, cut to `TEXT_MAX`."""

    def __post_init__(self) -> None:
        for name, length_max in (("where", 5_000), ("reason", 1_000), ("text", TEXT_MAX)):
            text = getattr(self, name)
            sound = cut(text, length_max)
            if not sound.isascii():
                # A lone surrogate is in no encoding; JSON and names of files may hold one. Cut once
                # more, or the text that is read from the journal would be cut for the first time.
                sound = cut(sound.encode("utf-8", "backslashreplace").decode(), length_max)
            if sound != text:
                object.__setattr__(self, name, sound)


def cut(text: str, length_max: int) -> str:
    """A text of at most so many characters, which says so if it is not all of it."""
    return text if len(text) <= length_max else text[: length_max - len(CUT)] + CUT


def own_text(record: bytes) -> str:
    """What a dead letter tells of a record: its bytes as text, cut."""
    # Four bytes a character at the most, and one more to see that there are more.
    return cut(record[: 4 * (TEXT_MAX + 1)].decode(errors="replace"), TEXT_MAX)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one step may take."""

    rows_max: int = 100_000
    bytes_max: int = 256 * 1024 * 1024


Told = Callable[[Sequence[int]], Sequence[tuple[str, str | None]]]
"""By their places in `Change.delete`: where records stood, and their own text (None: not known).

Asked only for deletes that were rejected, so it may read them again. It gives the same whenever it
is asked, and never raises.
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a source gave: rows in the order in which they happened, folded into one change."""

    change: Change
    rows: int
    """Rows read, bad ones included."""
    position: Json
    """Where the source stands after them; given to the next `poll`."""
    reference: Json
    """From which `read` gives the same again; None: the rows themselves must be journaled."""
    bad: tuple[BadRow, ...] = ()
    deleted: Told | None = field(default=None, compare=False, repr=False)
    """Tells of rows to be deleted, for the dead letters of those that are not there."""
    names: tuple[str, ...] = ()
    """Of a `Naming` source: what it took, and is never to take again."""


class Source(Protocol):
    """Fills one table. Positions and references are JSON and stay readable for years."""

    name: str
    table: str

    def poll(self, after: Json, limits: Limits) -> Taken | None:
        """The next rows after a position (None: from the start), or None if there are none now."""

    def read(self, reference: Json) -> Taken:
        """The same rows again. `ReplayMismatchError` naming the object that changed or is gone."""

    def close(self) -> None: ...


class Names(Protocol):
    """The names that a source has taken up to the position after which it is polled."""

    @property
    def count(self) -> int: ...

    def digest(self) -> int:
        """A checksum of the set (`engine/taken_names.digest_of`)."""

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of some names that were never taken, in their order. Exact."""

    def forget_others(self, names: Collection[str]) -> None:
        """The source holds these names now: nothing needs to be known by heart of any other."""


@runtime_checkable
class Naming(Protocol):
    """A source that takes things by name, each once, however many there are over the years.

    The engine keeps the names, so that positions need not hold them: the journal has those that
    each step took, and runs in the store have all. It polls such a source by `poll_new`.
    """

    def poll_new(self, after: Json, limits: Limits, taken: Names) -> Taken | None:
        """Like `Source.poll`, without what was `taken`. `Taken.names` is what comes to it."""


@runtime_checkable
class Lags(Protocol):
    """A source that knows what it has not given yet."""

    def waiting(self) -> str | None:
        """What it saw and did not give when it was last polled, in words; None: nothing.

        Asked from any thread.
        """


@runtime_checkable
class Settles(Protocol):
    """A source that holds back what may not be complete yet."""

    def settles_in_s(self) -> float | None:
        """After which time another poll may give what this one held back; None: nothing will.

        Bounded: input that keeps changing is not waited for.
        """


class Sink(Protocol):
    """Receives one view's changes, one batch per transaction that changed it."""

    name: str
    view: str

    def last(self) -> Delivered | None:
        """The mark of the last transaction it holds; None: it holds nothing of any pipeline.

        Read from the sink each time, never remembered.
        """

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        """Write a change (the view's columns, then `_w`), atomically with its mark.

        `previous` is the mark that the engine believes the sink to hold. The sink compares it for
        equality with the one it does hold, in the same atomic step that replaces it. If they
        differ, it changes nothing and raises `ConflictError`: a writer that was fenced is late, or
        the sink was put back from a backup.

        `UnavailableError`: try again later. A write that returned an error may have happened:
        the engine asks `last` before it tries again. `InvalidError`: trying again is of no use,
        and the pipeline stops.
        """

    def close(self) -> None: ...


@runtime_checkable
class Coalesces(Protocol):
    """A sink that can take several transactions as one commit, so that it catches up when it lags.

    It then holds what it would hold had it received them one after another, under the mark of the
    last. Which transactions come together is not part of its contract: after a crash, or from
    another writer, they may come in other groups.
    """

    @property
    def coalesces(self) -> bool:
        """Whether this sink does, with the options it has."""

    def write_together(
        self, previous: Delivered | None, changes: Sequence[tuple[Delivered, pa.Table]]
    ) -> None:
        """Like `write`, for consecutive transactions in order, all of them with the same columns.

        They may cancel out; the mark of the last is committed all the same.
        """


@dataclass(frozen=True, slots=True)
class Pieces:
    """The rows of a relation, to be gone through once; one piece of them is in memory."""

    schema: pa.Schema
    rows: int
    pieces: Iterable[pa.Table]
    inferred: bool = False
    """Whether the types were inferred from the rows, and not from the statement."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What one transaction computed. Nothing has changed yet; `Executor.keep` makes it so."""

    changes: Mapping[str, pa.Table]
    """For each materialized view that changed: its columns, and last the weight of each row."""
    rejected: tuple[Rejected, ...] = ()
    recomputed: tuple[str, ...] = ()
    kept: object = field(default=None, compare=False, repr=False)
    """The executor's own."""


class Chore(Protocol):
    """Work that changes no result, and can be done while transactions go on."""

    def run(self) -> None:
        """Do it; in any thread. When it raises, nothing has happened."""

    def adopt(self) -> None:
        """Use what was done; between two transactions. Does nothing if the state has moved on."""


class Executor(Protocol):
    """Holds the relations of a pipeline and computes what changes them."""

    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Every table by its name, with the columns of its key; a bag has none."""

    def execute(
        self,
        changes: Mapping[str, Change],
        time: datetime,
        letters: Letters | None = None,
    ) -> Executed:
        """Compute one transaction over the state as it is. When it raises, nothing has happened.

        `letters` is given what the executor rejects, and gives all dead letters of the transaction,
        which are kept in the relations `<table>$errors`. None: those of the rejected rows alone
        (`engine/letters.py`).
        """

    def keep(self, executed: Executed) -> None:
        """Make it the state. The next `execute` builds on it."""

    def unflushed_bytes(self) -> int:
        """How large the state is that no run holds yet."""

    def chore(self) -> Chore | None:
        """The next work to be done beside transactions; None: there is none now."""

    def below(self) -> str | None:
        """An id below those of the runs that a chore writes; None: there is none under way.

        A flush leaves the floor there: such a run is named by a later one.
        """

    def compact(self, *, own: bool = False) -> None:
        """Make one of the runs of each relation; the next flush writes it. The state is the same.

        `own`: also of a single run that lies in the store of a clone's parent.

        When it raises, nothing has happened that counts.
        """

    def flush(self) -> tuple[Run, ...]:
        """Write what no run holds to new runs, durably, and return all runs of the state.

        Until `flushed` is called the executor may be asked again, and gives new runs again.
        """

    def described(self) -> str | None:
        """What the runs mean, for whoever reads them without this executor (`query/described`).

        None: there is nothing to say, or nothing new.
        """

    def flushed(self, runs: Sequence[Run]) -> None:
        """The manifest names these runs now."""

    def load(self, runs: Sequence[Run]) -> None:
        """Begin with the state these runs hold, and nothing else."""

    def relations(self) -> Mapping[str, str]:
        """Every relation that runs are written for, with the table or view it belongs to."""

    def build(self, view: str) -> None:
        """Compute a view from what it reads, in the place of whatever is stored for it.

        For a view that is new or has changed, after `load`; the views it reads are built before.
        """

    def fill(self, table: str, rows: pa.Table) -> tuple[Rejected, ...]:
        """Put rows into a table that no view follows yet: those that read it are built afterwards,
        or hold what they hold already. Returns the rows that do not fit, which are left out.
        """

    def bound(self, view: str, tables: Mapping[str, Columns]) -> Bound | None:
        """How a view is kept, to be compared with how another executor keeps it.

        `tables`: what is to be known of some, by their names in lower case. None: it cannot be
        told.
        """

    def read(self, relation: str) -> pa.Table:
        """The rows of a table, a view, or `<table>$errors`."""

    def pieces(self, relation: str, rows_max: int) -> Pieces:
        """The same, at most so many rows at a time; for as long as the state is what it is."""

    def query(self, sql: str) -> pa.Table:
        """The answer to one SELECT over tables, views and `<table>$errors`."""


ExecutorFactory = Callable[[Store, Env], Executor]
"""Makes an executor that writes its runs to a store; the engine then calls `load`."""


Report = Callable[[str, int, int, str], None]
"""Told how far work is that may take long: what it is, how much of how much, and of what."""


def not_reported(what: str, done: int, total: int, unit: str) -> None:
    """Nobody is told."""


def report_to(executor: Executor, report: Report) -> None:
    """From now on an executor says how far it is; only some can."""
    hear: Callable[[Report], None] | None = getattr(executor, "report_to", None)
    if hear is not None:
        hear(report)


def lost(executor: Executor) -> str | None:
    """Why an executor is of no use any more; None: it is. Only some can be lost, and say so."""
    ask: Callable[[], str | None] | None = getattr(executor, "lost", None)
    return None if ask is None else ask()
