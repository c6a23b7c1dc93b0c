"""The writer's side of the journal: takeover with a barrier, append, fencing.

Invariants:

* A position is taken only by put-if-absent (F1). An append is one PUT (F4).
* Only one append runs at a time. The next position of a stalled writer is therefore exactly the
  position of its successor's barrier, and the writer cannot get past it (F3).
* An append that returned is durable, and the next writer replays it.
* An error is a claim (F11). If an append raises `FencedError`, `UnavailableError` or
  `InvalidError`, the entry does not exist and will never be replayed. After any other error the
  entry may exist: the handle is poisoned, and the next open finds out (F7).
* A handle that is fenced or poisoned stays so: every later write and read on it fails.
* A writer that was idle for long checks the manifest before it writes, while "not written" is still
  true. After a PUT that took long, it reads the journal's boundary, which shows whether the entry
  is valid (F8).

A crash leaves a complete entry or none. Opening leaves at most a barrier, which holds no data and
belongs to no transaction (F5).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from stepwell.env import Env
from stepwell.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    StepwellError,
    TruncatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.journal import paths
from stepwell.journal.codec import Encoded, encode
from stepwell.journal.entry import Cursor, Draft, Entry, Kind, Recorded
from stepwell.journal.log import Log
from stepwell.model import Epoch, Position, Transaction, format_time
from stepwell.store.base import Store
from stepwell.store.patient import patience_of
from stepwell.store.retry import Retry

BARRIER_KEEP_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    barrier_keep_s: float = BARRIER_KEEP_S
    """How long a barrier outlives its use. A writer idle for half of it checks before it writes."""
    retry: Retry = Retry()


class Guard(Protocol):
    """Knows which writer holds the pipeline; implemented by the manifest."""

    def check(self, undone: str) -> None:
        """Ask the store; raises `FencedError` if another writer has claimed the pipeline.

        `undone` says, for the message, what this writer did not do.
        """


class Journal:
    """One writer's handle. Thread-safe: calls are serialized."""

    def __init__(
        self,
        store: Store,
        env: Env,
        *,
        lineage: str,
        epoch: Epoch,
        replayed: Cursor,
        guard: Guard,
        settings: Settings | None = None,
        seen: Position = Position(0),
    ) -> None:
        """Create a handle, which is not usable before `take_over`.

        `replayed` is the point in the chain up to which the manifest holds everything. `seen` is a
        position known to be taken if any above `replayed` is; the search for the end starts from
        it.
        """
        self._log = Log(store, lineage)
        self._env = env
        self._lineage = lineage
        self._epoch = epoch
        self._replayed = replayed
        self._guard = guard
        self._settings = settings or Settings()
        self._patience = patience_of(store, env, self._settings.retry)
        self._lock = threading.Lock()
        self._tip = replayed
        # One id for all entries: a handle puts at most one entry to a position, and is poisoned if
        # the outcome is unknown. Id and position therefore distinguish its entries from all others.
        self._put_id = env.new_id()
        self._seen = max(seen, replayed.position)
        self._limit = timedelta(seconds=self._settings.barrier_keep_s / 2)
        self._confirmed = self._clocks()
        self._doubtful: Position | None = None
        self._written_bytes = 0
        self._ended: StepwellError | None = UnknownOutcomeError(
            "this journal was not opened", hint="call take_over first"
        )

    @property
    def log(self) -> Log:
        """The entries as stored."""
        return self._log

    @property
    def tip(self) -> Cursor:
        """The last entry that this writer knows to be in the journal."""
        return self._tip

    @property
    def written_bytes(self) -> int:
        """The size of the entries that this handle has written, its barrier included."""
        return self._written_bytes

    def take_over(self) -> Position:
        """Put a barrier at the first free position (F2), which fences the old writer.

        Entries that the old writer adds meanwhile are skipped here and replayed later. At each
        step, and once more at the end, our own epoch is checked: if a third writer has claimed the
        pipeline since, the takeover fails.
        """
        with self._lock:
            self._tip = self._find_end()
            barrier = Draft(Kind.BARRIER, Transaction(0), 0, False, self._env.now())
            recorded = self._put(*self._prepare(barrier))
            while recorded is None:
                self._guard.check(f"the barrier at position {self._tip.next} was not written")
                self._catch_up()
                recorded = self._put(*self._prepare(barrier))
            self._barrier = recorded
            self._guard.check("the pipeline was not opened")
            self._ended = None
            return self._tip.position

    def replay(self) -> Iterator[Recorded]:
        """The entries above the replay position up to our barrier, checked, in order.

        Barriers and void entries are skipped (F5). If an entry is missing, either another writer
        took over and collected it, or data is lost; the manifest distinguishes the two.
        """
        self.check()
        cursor, barrier = self._replayed, self._barrier.entry.position
        while cursor.next < barrier:
            self.check()
            found = self._log.read(cursor.next)
            if found is None:
                self._guard.check("the journal was not replayed")
                raise self._missing(cursor.next)
            cursor, found = cursor.advance(found, self._log.full_name(cursor.next))
            if not found.void and not found.entry.is_barrier:
                yield found
        cursor.advance(self._barrier, self._log.full_name(barrier))

    def append(self, draft: Draft) -> Recorded:
        """Make a draft durable at the next position. THE commit point of a transaction.

        After `UnavailableError` or `InvalidError` the draft was certainly not written, and the
        handle is still usable. After `FencedError` it was certainly not written.
        """
        if draft.kind is Kind.BARRIER:
            raise InvalidError("a barrier cannot be appended: it holds nothing and is not replayed")
        with self._lock:
            self.check()
            began = self._clocks()
            if self._long_since_confirmed(began):
                self._ask(began)
            self._doubtful = None
            while True:
                entry, encoded = self._prepare(draft)
                try:
                    recorded = self._put(entry, encoded)
                    if recorded is not None:
                        self._confirm(entry.position)
                except FencedError as error:
                    self._ended = error
                    if self._may_be_there():
                        self._ended = self._unknown(entry.position, error)
                        raise self._ended from error
                    raise
                except UnavailableError:
                    raise
                except BaseException as error:
                    # This includes KeyboardInterrupt: the PUT may be in flight.
                    self._ended = self._unknown(entry.position, error)
                    raise
                if recorded is not None:
                    # A barrier that fences us was put after this entry, and so after `began`.
                    self._confirmed = began
                    return recorded
                # A void barrier has this position; try the next one.

    def check(self) -> None:
        """Raise the error that ended this handle, if there is one."""
        if self._ended is not None:
            # Drop the traceback of the last time, which would keep its frames alive.
            raise self._ended.with_traceback(None)

    def end(self, error: StepwellError) -> None:
        """Refuse further use with this error. Writes nothing; the first error wins."""
        if self._ended is None:
            self._ended = error

    def close(self, error: StepwellError) -> Cursor:
        """Wait for an append in progress, refuse further use, and return the end of the journal."""
        with self._lock:
            self.check()
            self._ended = error
            return self._tip

    def _prepare(self, draft: Draft) -> tuple[Entry, Encoded]:
        """The next entry and its bytes; writes nothing."""
        entry = Entry(
            lineage=self._lineage,
            epoch=self._epoch,
            position=self._tip.next,
            put_id=self._put_id,
            previous=self._tip.checksum,
            draft=draft,
        )
        try:
            return entry, encode(entry)
        except (TypeError, ValueError, struct.error) as error:
            raise InvalidError(f"this cannot be written to the journal: {error}") from error

    def _put(self, entry: Entry, encoded: Encoded) -> Recorded | None:
        """Put an entry to its position, retrying as needed.

        Returns None if an entry of an earlier writer has the position; the tip has passed it, and
        the caller decides whether to continue. Raises `FencedError` if an entry of a later writer
        has it.
        """
        found = self._patience.run(
            lambda: self._put_once(entry, encoded),
            lambda: f"{self._log.full_name(entry.position)} may or may not have been written",
        )
        if found.put_id != entry.put_id:
            if found.epoch >= self._epoch:
                raise self._not_ours(found)
            return None
        self._tip = Cursor(entry.position, encoded.checksum, self._epoch)
        self._written_bytes += sum(len(part) for part in encoded.parts)
        return Recorded(entry, encoded.checksum)

    def _not_ours(self, found: Entry) -> StepwellError:
        """The error for an entry of our epoch or a later one that another writer wrote."""
        where = self._log.full_name(found.position)
        if found.epoch == self._epoch:
            return CorruptError(
                where,
                f"another writer wrote it in our own epoch {self._epoch}",
                field="epoch",
                hint="a store was copied or is shared by two pipelines: `stepwell inspect journal`",
            )
        undone = f"entry {found.position} of epoch {self._epoch} was not written"
        try:
            self._guard.check(undone)
        except FencedError as error:
            return error
        except UnavailableError:
            # The manifest would name the other writer, which certainly exists.
            return FencedError(
                f"another writer took over at {where} (epoch {found.epoch}); {undone}",
                epoch=found.epoch,
                time=format_time(found.draft.time),
                hint="stop this process: the new writer has everything acknowledged here",
            )
        return CorruptError(
            where,
            f"has epoch {found.epoch}, but the latest manifest says {self._epoch}",
            field="epoch",
            hint="the store of the manifest went back in time: see `stepwell inspect manifest`",
        )

    def _put_once(self, entry: Entry, encoded: Encoded) -> Entry:
        """Create the entry, or return the existing one; the tip passes one of an earlier writer."""
        path = paths.entry(entry.position)
        try:
            self._log.store.put_new(path, encoded.parts)
        except UnavailableError as error:
            if not error.not_applied and self._doubtful is None:
                self._doubtful = entry.position
            raise
        except ConflictError:
            found = self._log.read(entry.position)
            if found is None:
                # The entry was trimmed after we lost to it. It may have been our own, because a
                # lower-level client may have sent it twice.
                if self._doubtful is None:
                    self._doubtful = entry.position
                self._guard.check(f"entry {entry.position} of epoch {self._epoch} was not written")
                raise self._missing(entry.position) from None
            if found.entry.epoch < self._epoch:
                self._tip, _ = self._tip.advance(found, self._log.full_name(entry.position))
            return found.entry
        return entry

    def _clocks(self) -> tuple[float, datetime]:
        """The clock that never jumps and includes sleep, and the wall clock."""
        return self._env.uptime(), self._env.now()

    def _long_since_confirmed(self, now: tuple[float, datetime]) -> bool:
        """Whether, by either clock, a barrier put since the last confirmation may be gone (F8).

        A barrier is kept for `barrier_keep_s`. If the last entry was confirmed less than half of
        that ago, no barrier put since can be gone, and a successful write proves that there is
        none. Neither clock is enough alone: the wall clock may be set back, and only the wall clock
        shows a machine the time for which its hypervisor paused it.
        """
        up, wall = self._confirmed
        limit = self._limit
        return now[0] - up >= limit.total_seconds() or now[1] - wall >= limit

    def _ask(self, now: tuple[float, datetime]) -> None:
        """Check, before an append after a long idle time, whether another writer has the pipeline.

        The check comes before the PUT, because until then it is certain that nothing was written.
        If no writer has claimed the pipeline, any barrier that fences us is put later than `now`.
        """
        undone = f"entry {self._tip.next} of epoch {self._epoch} was not written"
        try:
            self._patience.run(lambda: self._guard.check(undone), lambda: "it cannot be read")
        except UnknownOutcomeError as error:
            raise UnavailableError(
                f"{undone}: after a long silence the manifest must be read first: {error.message}",
                hint="check the storage, then try again",
                not_applied=True,
            ) from error
        except (FencedError, CorruptError) as error:
            self._ended = error
            raise
        self._confirmed = now

    def _confirm(self, position: Position) -> None:
        """Check, after a long PUT, that the entry did not land in a collector's hole (F8).

        The boundary moves before anything is deleted, and only up. If it is now below our position,
        nothing was ever deleted there. Our entry is then the first at this position and follows our
        last one: any barrier comes after it, and the writer of that barrier replays it, even if
        that writer has already claimed the pipeline. Otherwise our entry may fill the hole of a
        deleted barrier, or it was there first and was replayed, flushed and trimmed. The two look
        the same from here.
        """
        if not self._long_since_confirmed(self._clocks()):
            return
        where = self._log.full_name(position)
        numbers = self._patience.run(
            self._log.boundary.numbers, lambda: f"{where} was written, but may not count"
        )
        # A journal has a boundary from the start. A journal without one was wiped under us.
        if not numbers or numbers.get("journal", 0) >= position:
            raise UnknownOutcomeError(
                f"{where} may or may not count: the journal was trimmed up to position "
                f"{numbers.get('journal', 0)} while it was written",
                hint="open the pipeline again: it will see whether the entry counts",
            )

    def _may_be_there(self) -> bool:
        """Whether an attempt of unknown outcome may have left the entry reported as not written.

        While the boundary is below its position, nothing was ever deleted there. The foreign entry
        at this position was therefore there first, and our PUT is refused whenever it arrives.
        """
        if self._doubtful is None:
            return False
        try:
            return self._log.trimmed() >= self._doubtful
        except StepwellError:
            return True

    def _unknown(self, position: Position, error: BaseException) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"an append at {self._log.full_name(position)} has an unknown outcome: "
            f"{getattr(error, 'message', error)}",
            hint="open the pipeline again: it will see whether the entry is there",
        )

    def _find_end(self) -> Cursor:
        try:
            last = self._log.last(self._seen)
            if last == self._replayed.position:
                return self._replayed
            found = self._log.read(last)
            if found is None:
                raise self._missing(last)
        except TruncatedError:
            # Another writer may have taken over and collected the entry; then it is not lost.
            self._guard.check("the pipeline was not opened")
            raise
        if found.entry.epoch > self._epoch:
            raise self._not_ours(found.entry)
        return Cursor(last, found.checksum)

    def _catch_up(self) -> None:
        """Pass the entries that the old writer has added, by reading only.

        Reading is faster than the old writer's appends, so this reaches the end, and the next
        attempt to put the barrier immediately follows a read of a free position. Otherwise a writer
        that never pauses could stay ahead of us forever.
        """
        while (found := self._log.read(self._tip.next)) is not None:
            if found.entry.epoch >= self._epoch:
                raise self._not_ours(found.entry)
            self._tip, _ = self._tip.advance(found, self._log.full_name(self._tip.next))

    def _missing(self, position: Position) -> TruncatedError:
        return TruncatedError(
            self._log.full_name(position),
            "the entry is missing, and no other writer took over",
            hint="restore the object from a backup",
        )
