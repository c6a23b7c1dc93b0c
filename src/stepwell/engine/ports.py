"""The ports of the engine: sources and sinks. The executor's is `execution/executor.py`.

    Source    poll -> Intake (rows, and how to read the same rows again)
    Sink      last -> the mark it holds; write one transaction, atomically with its mark

Connectors implement these protocols, and the engine imports none of them. Rows are Arrow tables,
bounded by `Limits`: no value here is larger than one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa

from stepwell.lsm.bulk import Decode, Staged
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import BadRow
from stepwell.lsm.large_change import LargeChange
from stepwell.manifest.progress import Delivered as Delivered
from stepwell.store.sealed import Json


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one step."""

    rows_max: int = 100_000
    bytes_max: int = 256 * 1024 * 1024
    bulk_bytes: int | None = None
    """If as much input is waiting, a source that `BulkReads` may return a `BulkRead` of it, to
    which the other bounds do not apply. None: it must not."""


Told = Callable[[Sequence[int]], Sequence[tuple[str, str | None]]]
"""Maps row numbers in `Change.delete` to the position of each record and its text, if known.

Called only for rejected deletes, so it may read them again. It is deterministic and never raises.
"""


@dataclass(frozen=True, slots=True)
class Intake:
    """Input of one source, or of one push, for one table, as a single change."""

    source: str
    """The name of the source, or `payload.PUSHED`."""
    table: str
    change: Change
    """The rows in the order in which they happened, folded."""
    rows: int
    """Rows read, bad ones included."""
    position: Json
    """The position of the source after these rows; passed to the next `poll`."""
    reference: Json
    """From which `read` returns the same rows; None: the rows themselves must be journaled."""
    bad: tuple[BadRow, ...] = ()
    """Input that could not be decoded."""
    deleted: Told | None = field(default=None, compare=False, repr=False)
    """Describes rows to be deleted, for the dead letters of those that do not exist."""
    names: tuple[str, ...] = ()
    """Of a `Naming` source: the names it took, which it must never take again."""
    key: str | None = None
    """The key of a push, by which it can be repeated safely."""


@dataclass(frozen=True, slots=True)
class BulkRead:
    """A step of input that executors decode, instead of the source."""

    decode: Decode
    intake: Callable[[Staged], Intake]
    """Makes the intake once all of it is decoded: with positions, dead letters and a reference as
    if the source had decoded it. Raises `UnavailableError` if the input changed meanwhile."""
    aligned: BulkRead | None = None
    """The same step with tasks that certainly begin and end between records, if these may not."""


@runtime_checkable
class BulkReads(Protocol):
    """A source whose polls may return a `BulkRead` (see `Limits.bulk_bytes`)."""

    @property
    def table(self) -> str: ...

    def read_bulk(self, reference: Json, bytes_min: int) -> BulkRead | None:
        """Like `Source.read`, by executors; None if the reference is of less than `bytes_min`, or
        of input that has to be read step by step."""


class Source(Protocol):
    """Fills one table. Positions and references are JSON, and must stay readable for years."""

    name: str
    table: str

    def poll(self, after: Json, limits: Limits) -> Intake | BulkRead | None:
        """The next rows after a position (None: the start); None if there are none now."""

    def read(self, reference: Json) -> Intake:
        """Read the same rows again; `ReplayMismatchError` if an object changed or is gone."""

    def close(self) -> None: ...


class Names(Protocol):
    """The names that a source has taken up to the position from which it is polled."""

    @property
    def count(self) -> int: ...

    def digest(self) -> int:
        """A checksum of the set (`engine/taken_names.digest_of`)."""

    def missing(self, names: Sequence[str]) -> list[str]:
        """The given names that were never taken, in their order. Exact."""

    def forget_others(self, names: Collection[str]) -> None:
        """Drop cached knowledge of all other names: the source holds only these now."""


@runtime_checkable
class Naming(Protocol):
    """A source that takes objects by name, each once, without a bound on their number.

    The engine stores the names, so that positions need not: the journal has those of each step, and
    runs in the store have all. It polls such a source by `poll_new`.
    """

    def poll_new(self, after: Json, limits: Limits, taken: Names) -> Intake | BulkRead | None:
        """Like `Source.poll`, without names in `taken`. `Intake.names` are the new ones."""


@runtime_checkable
class Lags(Protocol):
    """A source that knows how far it lags."""

    def waiting(self) -> str | None:
        """Describe the input that the last poll saw and did not return; None if there is none.

        Called from any thread.
        """


@runtime_checkable
class MeasuresLag(Protocol):
    """A source that can say as a number how far it lags."""

    def lag(self) -> Mapping[str, int]:
        """What the last poll saw and did not return, in the source's own unit (files, offsets).

        By part of the source, such as a partition, or under "" if it has none. A part that may be
        left out lags by 0. Called from any thread.
        """


@runtime_checkable
class Settles(Protocol):
    """A source that holds back input that may be incomplete."""

    def settles_in_s(self, since: float) -> float | None:
        """Seconds until another poll may return input held back; None if there is none.

        `since` is the uptime at which the caller began: what was looked for after it need not be
        looked for again. Bounded: input that keeps changing is not waited for.
        """


@runtime_checkable
class Expires(Protocol):
    """A source whose input may expire before it is read.

    It then raises `ReplayMismatchError`, until it is told to continue.
    """

    def skip_expired(self) -> None:
        """From now on, continue behind expired input, and record each loss as a dead letter."""


class Sink(Protocol):
    """Receives one view's changes, one batch per transaction that changed it."""

    name: str
    view: str

    def last(self) -> Delivered | None:
        """The mark of the last transaction it holds; None if it holds no pipeline's output.

        Read from the sink on each call, never cached.
        """

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        """Write a change (the view's columns, then `_w`), atomically with its mark.

        `previous` is the mark that the engine believes the sink to hold. The sink compares it with
        its own mark, in the same atomic step that replaces it. If they differ, it changes nothing
        and raises `ConflictError`: a fenced writer is late, or the sink was restored from a backup.

        `UnavailableError`: retry later. A write that failed may have happened, so the engine calls
        `last` before it retries. `InvalidError`: retrying does not help, and the pipeline stops.
        """

    def close(self) -> None: ...


@runtime_checkable
class BulkWrites(Protocol):
    """A sink to which executors write large changes."""

    def write_bulk(self, previous: Delivered | None, mark: Delivered, change: LargeChange) -> None:
        """Like `write`: executors write the rows, and this process commits them with the mark.

        Nothing that a task has written may count if this raises, nor if the attempt of a task whose
        report was not used is still running. `NotInBulkError`: nothing was written, and the change
        has to be passed to `write`.
        """


@runtime_checkable
class Coalesces(Protocol):
    """A sink that can commit several transactions at once, to catch up when it lags.

    It then holds what it would hold after the single commits, under the last mark. The grouping is
    not part of the contract: after a crash, or from another writer, it may be different.
    """

    @property
    def coalesces(self) -> bool:
        """Whether this sink coalesces, given its options."""

    def write_together(
        self, previous: Delivered | None, changes: Sequence[tuple[Delivered, pa.Table]]
    ) -> None:
        """Like `write`, for consecutive transactions in order, all with the same columns.

        Their changes may cancel out; the last mark is committed anyway.
        """
