"""The outbox of one sink: the output it has yet to receive, in order, each transaction once.

                offer                        write ok
    (nothing) --------> pending, in order ------------> delivered
                          |       ^
             write failed |       | last() answered: drop what it holds, send the rest
                          v       |
                        uncertain, waiting

* A write that failed may have happened. So after a failure, and when a pipeline is opened, the
  outbox asks the sink for its mark before it sends anything (J7).
* Every write carries the mark that the sink is believed to hold, and the sink compares (J16). If it
  holds another mark, the outbox asks for it, and `sink_history` decides whether this pipeline can
  have caused it.
* A sink that is down fills its outbox and delays no other sink. When the outbox is full, the
  pipeline takes in no more input, and its status says so.
* A sink that lags and supports it (`Coalesces`) receives several transactions in one commit,
  bounded in rows and bytes. They stay separate in the outbox: the sink may hold any of their marks,
  because another writer of this history may have grouped them differently.
* Transactions are offered in rising order; a guard checks it. A sink that holds output of another
  pipeline or of a copy, lost output, or is ahead of its pipeline, stops the pipeline before it
  takes in more; nothing is ever dropped silently.

* A large change (`LargeChange`) stays in files. Executors write it to the sink, alone, if the sink
  supports it (`BulkWrites`).

A flush writes pending output to files that the manifest names (`write_files`, `outbox_files.py`).
The alternative, not to flush past output that a sink lacks, would let a sink that is down for a day
make the journal, and the next opening, a day long.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from stepwell.durations import backoff_s
from stepwell.engine.events import Events, Published, SinkFailed
from stepwell.engine.evolution import columns_before
from stepwell.engine.outbox_files import (
    read_outbox_files,
    write_large_change,
    write_outbox_file,
    write_outbox_files,
)
from stepwell.engine.ports import BulkWrites, Coalesces, Sink
from stepwell.engine.sink_history import refusal, refuse_foreign, refuse_new
from stepwell.env import Env
from stepwell.errors import (
    BugError,
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    StepwellError,
    ensure,
)
from stepwell.journal.entry import Cursor
from stepwell.lsm.bulk import NotInBulkError
from stepwell.lsm.change import changed_rows
from stepwell.lsm.large_change import AnyChange, LargeChange, as_table
from stepwell.lsm.table_diff import Pieces, in_parts, weighted
from stepwell.manifest.progress import Delivered, SinkAt, Undelivered, mark_without_entry
from stepwell.manifest.timeline import Timeline, Timelines, diverged, timeline_of
from stepwell.model import Transaction
from stepwell.store.base import Store

_STOPS = (InvalidError, CorruptError, BugError, FencedError)
"""Errors of a sink that retrying does not fix."""


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """How much may wait for a sink, and how it is retried."""

    transactions_max: int = 1000
    bytes_max: int = 64 * 1024 * 1024
    wait_s_first: float = 0.1
    wait_s_max: float = 30.0
    commit_rows_max: int = 500_000
    commit_bytes_max: int = 64 * 1024 * 1024
    """How much goes to a sink in one commit; a larger transaction goes alone."""
    part_rows_max: int = 500_000
    """Larger changes are sent in parts: the view that a new sink starts with, and the difference
    of a restore or of a program swap.
    """


@dataclass(frozen=True, slots=True)
class SinkStatus:
    name: str
    view: str
    delivered: Transaction
    """The last transaction that the sink is known to hold; 0 if none."""
    pending: int
    pending_bytes: int
    full: bool
    error: str | None
    """Why the last attempt failed; None if it succeeded."""
    retry_in_s: float
    stopped: bool


@dataclass(slots=True, eq=False)
class _Parcel:
    """One transaction's change for the sink; in memory, in files, or both."""

    mark: Delivered
    size: int
    change: AnyChange | None
    kept: tuple[Undelivered, ...] = ()

    @property
    def transaction(self) -> Transaction:
        return self.mark.transaction

    @property
    def large(self) -> bool:
        """Whether its rows are too many for memory."""
        return isinstance(self.change, LargeChange) or len(self.kept) > 1


class Outbox:
    """Thread-safe. While one thread sends, others can offer."""

    def __init__(
        self,
        sink: Sink,
        lineage: str,
        store: Store,
        env: Env,
        *,
        timelines: Timelines = (),
        at: SinkAt | None = None,
        kept: Sequence[Undelivered] = (),
        since: Transaction = Transaction(0),
        recorded: Callable[[Delivered], bool] = lambda mark: False,
        again: Collection[Delivered] = (),
        settings: OutboxSettings | None = None,
        events: Events | None = None,
    ) -> None:
        """`at` and `kept` are the manifest's record of this sink, up to transaction `since`.

        `timelines` are those of the pipeline, the current one last. `recorded` tells for a mark
        after `since` whether the journal has its entry, so that replay will reach it. `again` are
        marks whose file was lost, and which a repair will offer again.
        """
        self.sink = sink
        self.new = at is None
        """Whether the sink is new to the pipeline, and starts with the whole view."""
        self.held = None if at is None else at.held
        """The mark that the sink is believed to hold."""
        self.stopped: StepwellError | None = None
        self._lineage = lineage
        self._timelines = timelines or (Timeline(lineage),)
        self._recorded = recorded
        self._store = store
        self._env = env
        self._settings = settings or OutboxSettings()
        self._events = events or Events()
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        """Held during calls to the sink, which may take long; acquired before `_lock`."""
        parcels = [
            _Parcel(mark, sum(item.size for item in files), None, tuple(files))
            for mark, files in _by_mark(kept).items()
        ]
        self._parcels = deque(sorted(parcels, key=lambda parcel: parcel.transaction))
        self._known = Transaction(0) if self.new else since
        self._offered = self._known
        self._again = {mark.transaction: mark for mark in again}
        self._held_back = False
        self._certain = False
        self._settled = False
        self._failures = 0
        self._until = 0.0
        self._error: str | None = None

    @property
    def delivered(self) -> Transaction:
        """The last transaction that the sink is known to hold; 0 if none."""
        held = self.held
        return Transaction(0) if held is None else held.transaction

    def mark(self, transaction: Transaction, closed: Cursor) -> Delivered:
        """The mark of a transaction whose closing entry ends at `closed`."""
        timeline = timeline_of(self._timelines, transaction)
        return Delivered(self._lineage, timeline, transaction, closed.position, closed.checksum)

    def diverge(self, timeline: Timeline) -> None:
        """Begin a timeline, to which later offers belong."""
        self._timelines = diverged(self._timelines, timeline)

    # Offering

    def wants(self, transaction: Transaction) -> bool:
        """Whether the output of a replayed transaction may have to be sent."""
        wanted = transaction > self._offered or transaction in self._again
        return not self.new and transaction > self.delivered and wanted

    def offer(self, mark: Delivered, change: AnyChange, kept: Undelivered | None = None) -> None:
        """Add a change, unless the sink is known to hold it.

        A change that is in a file already (`kept`) is not held in memory.
        """
        transaction = mark.transaction
        with self._lock:
            if transaction <= self._known:
                # A repair replays this. Its pending output is in files, unless they were lost. A
                # number may also belong to output without an entry: a new sink's first view.
                if self._again.get(transaction) == mark:
                    del self._again[transaction]
                    if transaction > self.delivered:
                        parcels = [*self._parcels, _Parcel(mark, change.nbytes, change)]
                        self._parcels = deque(sorted(parcels, key=lambda item: item.transaction))
                return
            ensure(
                transaction > self._offered,
                f"sink {self.sink.name} is offered transactions in rising order: "
                f"{transaction} came after {self._offered}",
            )
            ensure(change.num_rows > 0, f"sink {self.sink.name} is offered changes with rows")
            self._offered = transaction
            if transaction > self.delivered and kept is not None:
                self._parcels.append(_Parcel(mark, kept.size, None, (kept,)))
            elif transaction > self.delivered:
                self._parcels.append(_Parcel(mark, change.nbytes, change))

    @contextmanager
    def hold_back(self) -> Iterator[None]:
        """Send nothing inside this context, and never again if it raises: what is offered here
        does not count before a manifest names it.
        """
        self._held_back = True
        with self._sending:  # Wait for the commit that is being sent now, and only for that.
            pass
        yield
        self._held_back = False

    def begin(self, transaction: Transaction, view: Pieces, tip: Cursor) -> None:
        """Offer a new sink the whole view, under the number of the last transaction.

        A large view is offered in parts, under the last numbers: the sink need not commit all of it
        at once, and after a crash it continues with the part it lacks.
        """
        rows_max = self._settings.part_rows_max
        with self._lock:
            ensure(self.new, f"sink {self.sink.name} begins once")
            self.new = False
        parts = (weighted(part, 1) for part in in_parts(view.pieces, rows_max))
        self.offer_parts(transaction, parts, -(-view.rows // rows_max), tip)

    def offer_parts(
        self, last: Transaction, parts: Iterable[pa.Table], count: int, tip: Cursor
    ) -> None:
        """Offer a change in `count` parts, under as many numbers up to `last`.

        If there are several, each is written to a file before the next is made, so that only one
        is in memory. The next flush names the files. `tip` is the end of the journal.
        """
        end, timeline = (tip.position, tip.checksum), timeline_of(self._timelines, last)
        number = last - count
        for part in parts:
            number += 1
            kept = None
            mark = mark_without_entry(self._lineage, timeline, Transaction(number), end)
            if count > 1:
                kept = write_outbox_file(self._store, self._env, self.sink.name, mark, part)
            self.offer(mark, part, kept)
        ensure(number == last or not count, f"sink {self.sink.name} is offered {count} parts")

    @property
    def missing(self) -> tuple[Transaction, ...]:
        """Transactions that the sink lacks, whose file is lost and which replay did not offer."""
        return tuple(sorted(number for number in self._again if number > self.delivered))

    @property
    def certain(self) -> bool:
        """Whether the sink has reported its mark, and no call failed since."""
        return self._certain

    @property
    def full(self) -> bool:
        with self._lock:
            return (
                len(self._parcels) >= self._settings.transactions_max
                or self._size() >= self._settings.bytes_max
            )

    @property
    def retry_in_s(self) -> float:
        return max(0.0, self._until - self._env.uptime()) if self._parcels else 0.0

    # Delivering

    def ask(self) -> None:
        """Ask the sink for its mark; used when a pipeline is opened.

        Raises errors that stop a pipeline. A sink that does not answer is asked again before
        anything is sent to it.
        """
        with self._sending:
            self._attempt(self._ask)
            if isinstance(self.stopped, CorruptError):
                # The sink is damaged, not the pipeline.
                raise InvalidError(
                    f"sink {self.sink.name} cannot say how far it got: {self.stopped.message}",
                    hint=self.stopped.hint,
                ) from self.stopped
            if self.stopped is not None:
                raise self.stopped

    def settle(self, transaction: Transaction) -> None:
        """After replay: refuse a sink that is ahead of the pipeline."""
        with self._lock:
            if self.delivered > transaction:
                raise refusal(self.sink.name, self.held, self.held, transaction, self._timelines)
            self._settled = True

    def deliver(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Send pending output until none is left or a call fails. Never raises for a sink.

        `go_on` is called before each commit; False leaves the rest pending. Returns whether
        nothing is pending.
        """
        while go_on():
            with self._sending:
                step = self._send if self._certain else self._ask
                if not self._is_due() or not self._attempt(step):
                    break
        return not self._parcels

    def _is_due(self) -> bool:
        with self._lock:
            if self.stopped is not None or self._held_back or self._env.uptime() < self._until:
                return False
            # A sink that has not answered yet is asked even if nothing is pending: its mark may
            # stop the pipeline, and should do so early.
            return bool(self._parcels) or not self._certain

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except _STOPS as error:
            self.stopped = error
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; the pipeline continues
            self._failed(error)
        else:
            with self._lock:
                self._failures, self._until, self._error = 0, 0.0, None
            return True
        return False

    def _send(self) -> None:
        batch = self._next()
        # Uncertain from here until the sink has answered.
        self._certain = False
        began = self._env.uptime()
        try:
            self._write(batch)
        except ConflictError:
            # The sink holds another mark than expected: of an earlier attempt that landed late, or
            # one that stops the pipeline.
            before = self.held
            self._ask()
            if self.held == before:
                raise
            return
        with self._lock:
            self._certain = True
            self._hold(batch[-1][0])
        rows, seconds = sum(_rows(change) for _, change in batch), self._env.uptime() - began
        self._events.emit(Published(self.sink.name, self.delivered, rows, len(batch), seconds))

    def _write(self, batch: list[tuple[Delivered, AnyChange]]) -> None:
        mark, change = batch[0]
        if len(batch) > 1 and isinstance(self.sink, Coalesces):
            self.sink.write_together(self.held, batch)
            return
        if isinstance(change, LargeChange) and isinstance(self.sink, BulkWrites):
            try:
                self.sink.write_bulk(self.held, mark, change)
                return
            except NotInBulkError:
                pass
        self.sink.write(self.held, mark, as_table(change))

    def _next(self) -> list[tuple[Delivered, AnyChange]]:
        """The transactions of the next commit: one, or several if the sink coalesces."""
        with self._lock:
            first, *rest = self._parcels
        change = self._load(first)
        batch, rows, size = [(first.mark, change)], change.num_rows, change.nbytes
        if first.large or not isinstance(self.sink, Coalesces) or not self.sink.coalesces:
            return batch
        for parcel in rest:
            if parcel.large:
                break
            try:
                more = self._load(parcel)
            except StepwellError:
                break  # The error is raised when this transaction is the first.
            rows, size = rows + more.num_rows, size + more.nbytes
            if rows > self._settings.commit_rows_max or size > self._settings.commit_bytes_max:
                break
            if not more.schema.equals(change.schema) or columns_before(more) is not None:
                break  # The program was swapped in between.
            batch.append((parcel.mark, more))
        return batch

    def _hold(self, found: Delivered | None) -> None:
        """Record the sink's mark, and drop output up to it. Requires the lock."""
        self.held = found
        while self._parcels and self._parcels[0].transaction <= self.delivered:
            self._parcels.popleft()

    def _ask(self) -> None:
        found = self.sink.last()
        refuse_foreign(self.sink.name, self._lineage, found)
        if self.new and found is not None:
            raise refuse_new(self.sink.name, found)
        with self._lock:
            sent = [*(parcel.mark for parcel in self._parcels), *self._again.values()]
            last = max(self._offered, self.delivered)
        if not self._settled and found is not None and found.transaction > self._known:
            # The pipeline is being opened: replay will reach this mark.
            fits = found.transaction >= self.delivered and self._recorded(found)
        else:
            fits = found == self.held or found in sent
        if not fits:
            raise refusal(self.sink.name, found, self.held, last, self._timelines)
        with self._lock:
            self._hold(found)
            self._certain = True

    def _failed(self, error: Exception) -> None:
        settings = self._settings
        with self._lock:
            wait = backoff_s(self._failures, settings.wait_s_first, settings.wait_s_max, self._env)
            self._failures += 1
            self._until = self._env.uptime() + wait
            self._certain = False
            self._error = str(getattr(error, "message", error)) or type(error).__name__
            failed = SinkFailed(
                self.sink.name,
                self._parcels[0].transaction if self._parcels else self.delivered,
                len(self._parcels),
                self._error,
                wait,
                self.stopped is not None,
            )
        self._events.emit(failed)

    # Flushing

    def write_files(self) -> tuple[SinkAt, tuple[Undelivered, ...]]:
        """Write pending output to files; return the manifest's record of this sink."""
        fresh = {p.transaction: p for p in list(self._parcels) if not p.kept}

        def on_written(kept: Undelivered) -> None:
            fresh[kept.transaction].kept = (kept,)

        for parcel in [parcel for parcel in fresh.values() if parcel.large]:
            del fresh[parcel.transaction]
            self._write_large(parcel)

        changes = [(parcel.mark, self._load(parcel)) for parcel in fresh.values()]
        write_outbox_files(self._store, self._env, self.sink.name, changes, on_written)
        with self._lock:
            pending = list(self._parcels)
            at = SinkAt(self.sink.name, self.held)
        return at, tuple(kept for parcel in pending for kept in parcel.kept)

    def _write_large(self, parcel: _Parcel) -> None:
        change = parcel.change
        if isinstance(change, LargeChange):
            name = self.sink.name
            kept, change = write_large_change(self._store, self._env, name, parcel.mark, change)
            parcel.kept, parcel.change = kept, change

    def _load(self, parcel: _Parcel) -> AnyChange:
        if parcel.change is None:
            if not parcel.kept:
                raise BugError("a parcel is in memory or in a file")
            parcel.change = read_outbox_files(self._store, parcel.kept)
        return parcel.change

    # Status

    def status(self) -> SinkStatus:
        with self._lock:
            return SinkStatus(
                self.sink.name,
                self.sink.view,
                self.delivered,
                len(self._parcels),
                self._size(),
                self.full,
                self._error,
                self.retry_in_s,
                self.stopped is not None,
            )

    def _size(self) -> int:
        return sum(parcel.size for parcel in self._parcels)


def _rows(change: AnyChange) -> int:
    return change.num_rows if isinstance(change, LargeChange) else changed_rows(change)


def _by_mark(kept: Sequence[Undelivered]) -> dict[Delivered, list[Undelivered]]:
    found: dict[Delivered, list[Undelivered]] = {}
    for item in kept:
        found.setdefault(item.mark, []).append(item)
    return found
