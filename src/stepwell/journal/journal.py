"""The writer's end of the journal: take the next position with a barrier, append, be fenced.

Invariants:

* A position is taken by put-if-absent and by nothing else (F1). An append is one PUT (F4).
* One append at a time: the position a stalled writer would take next is therefore exactly where
  its successor's barrier lies, and it cannot get past it (F3).
* An append that returned is durable, and whoever opens next replays it.
* An error is a claim (F11). `FencedError`, `UnavailableError` and `InvalidError` of an append mean
  that the entry is nowhere, and that nobody will ever replay it. Any other error may have left it
  there: the handle is poisoned, and whoever opens next sees which (F7).
* A handle that is fenced or poisoned stays so: every later write and read on it fails.
* A writer that was silent for long asks the manifest before it writes, when "not written" is still
  true. After a PUT that took long it looks at the journal's boundary, which tells whether the entry
  counts (F8).

A crash leaves an entry, whole, or none. Opening leaves at most a barrier, which holds no data and
counts for no transaction (F5).
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
    """How long a barrier outlives its use. A writer silent for half of it asks before it writes.
    """
    retry: Retry = Retry()


class Guard(Protocol):
    """Knows who holds the pipeline; the manifest does."""

    def check(self, undone: str) -> None:
        """Ask the store. `FencedError` if another writer has claimed the pipeline.

        `undone` says, for the message, what this writer did not do.
        """


class Journal:
    """One writer's handle. Safe to use from several threads; they take turns."""

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
        """Does nothing yet: `take_over` makes it usable.

        `replayed` is the place in the chain up to which the manifest holds everything. `seen` is a
        position known to be taken, if one above it is, to search for the end from.
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
        # One for all: a handle puts at most one entry to a position, and is poisoned if it does not
        # know what became of it. So this and the position tell its entries from anybody else's.
        self._put_id = env.new_id()
        self._seen = max(seen, replayed.position)
        self._limit = timedelta(seconds=self._settings.barrier_keep_s / 2)
        self._confirmed = self._clocks()
        self._doubtful: Position | None = None
        self._ended: StepwellError | None = UnknownOutcomeError(
            "this journal was not opened", hint="call take_over first"
        )

    @property
    def log(self) -> Log:
        """The entries as they lie in the store."""
        return self._log

    @property
    def tip(self) -> Cursor:
        """The last entry this writer knows to be in the journal."""
        return self._tip

    def take_over(self) -> Position:
        """Put a barrier at the first free position (F2). From then on the old writer is fenced.

        Entries that the old writer adds meanwhile are stepped over, and will be replayed; at each
        step, and once more at the end, our own epoch is checked: if a third writer has claimed the
        pipeline since, it is not ours to take.
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

        Barriers and void entries are passed over (F5). An entry that is not there means that
        another writer took over and collected it, or that data is lost; the two are told apart.
        """
        self.check()
        cursor, barrier = self._replayed, self._barrier.entry.position
        while cursor.next < barrier:
            self.check()
            found = self._log.read(cursor.next)
            if found is None:
                self._guard.check("the journal was not replayed")
                raise self._missing(cursor.next)
            cursor, found = cursor.advance(found, self._log.where(cursor.next))
            if not found.void and not found.entry.is_barrier:
                yield found
        cursor.advance(self._barrier, self._log.where(barrier))

    def append(self, draft: Draft) -> Recorded:
        """Make a draft durable at the next position. THE commit point of a transaction.

        `UnavailableError` and `InvalidError`: for certain it was not written, and the handle can
        still be used. `FencedError`: for certain it was not written.
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
                    # Also an interrupt from the keyboard: the PUT may be on its way.
                    self._ended = self._unknown(entry.position, error)
                    raise
                if recorded is not None:
                    # A barrier that fences us was put after this entry, and so after `began`.
                    self._confirmed = began
                    return recorded
                # A void barrier lay there; the next position is as good.

    def check(self) -> None:
        """Raise what ended this handle, if anything did."""
        if self._ended is not None:
            # Without the traceback of the last time, which would keep its frames alive.
            raise self._ended.with_traceback(None)

    def end(self, error: StepwellError) -> None:
        """Refuse further use, for this reason. Writes nothing; the first reason stays."""
        if self._ended is None:
            self._ended = error

    def close(self, error: StepwellError) -> Cursor:
        """Wait for an append under way, refuse further use, and say where the journal ends."""
        with self._lock:
            self.check()
            self._ended = error
            return self._tip

    def _prepare(self, draft: Draft) -> tuple[Entry, Encoded]:
        """What is to be written next; nothing is yet."""
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
        """Put an entry to its position, however often it takes.

        None: another entry lies there, of a writer before us; the tip has passed it, and the caller
        decides whether to go on. `FencedError`: the entry there is of a writer after us.
        """
        found = self._patience.run(
            lambda: self._put_once(entry, encoded),
            lambda: f"{self._log.where(entry.position)} may or may not have been written",
        )
        if found.put_id != entry.put_id:
            if found.epoch >= self._epoch:
                raise self._not_ours(found)
            return None
        self._tip = Cursor(entry.position, encoded.checksum, self._epoch)
        return Recorded(entry, encoded.checksum)

    def _not_ours(self, found: Entry) -> StepwellError:
        """Why an entry of our epoch or a later one, written by somebody else, stops us."""
        where = self._log.where(found.position)
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
            # The manifest would tell who it was. That it was somebody is certain without it.
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
        """Create the entry, or say which one lies there; one of a writer before us is passed."""
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
                # Somebody trimmed it after we lost to it. It may have been our own, for a client
                # below may have sent it twice.
                if self._doubtful is None:
                    self._doubtful = entry.position
                self._guard.check(f"entry {entry.position} of epoch {self._epoch} was not written")
                raise self._missing(entry.position) from None
            if found.entry.epoch < self._epoch:
                self._tip, _ = self._tip.advance(found, self._log.where(entry.position))
            return found.entry
        return entry

    def _clocks(self) -> tuple[float, datetime]:
        """The clock that counts time asleep and never jumps, and the wall clock."""
        return self._env.uptime(), self._env.now()

    def _long_since_confirmed(self, now: tuple[float, datetime]) -> bool:
        """Whether either clock says that a barrier put since then may be gone (F8).

        A barrier is kept for `barrier_keep_s`. If the last entry was confirmed less than half of
        that ago, no barrier that was put since can be gone, and being able to write proves that
        there is none. Neither clock is enough: the wall clock may be set back, and a machine whose
        hypervisor paused it learns of the time it lost from nothing else.
        """
        up, wall = self._confirmed
        limit = self._limit
        return now[0] - up >= limit.total_seconds() or now[1] - wall >= limit

    def _ask(self, now: tuple[float, datetime]) -> None:
        """Before an append after a long silence: does another writer have the pipeline?

        Asked before the PUT, because until then it is certain that nothing was written. That nobody
        has claimed the pipeline proves that a barrier which fences us is put later than now.
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
        """After a PUT that took long: does the entry count, or lie in a hole of a collector? (F8)

        The boundary moves before anything is deleted, and only up. If it lies below our position
        now, nothing was ever deleted there, so our entry is the first that lay there and follows
        upon our last one: any barrier comes after it, and its writer replays it, even if it has
        claimed the pipeline already. Otherwise ours may fill a hole that a barrier left; or it was
        there first, was replayed, flushed and trimmed. The two look the same from here.
        """
        if not self._long_since_confirmed(self._clocks()):
            return
        where = self._log.where(position)
        numbers = self._patience.run(
            self._log.boundary.numbers, lambda: f"{where} was written, but may not count"
        )
        # A journal has a boundary from its beginning on. One without was wiped under us.
        if not numbers or numbers.get("journal", 0) >= position:
            raise UnknownOutcomeError(
                f"{where} may or may not count: the journal was trimmed up to position "
                f"{numbers.get('journal', 0)} while it was written",
                hint="open the pipeline again: it will see whether the entry counts",
            )

    def _may_be_there(self) -> bool:
        """Whether an attempt that we know nothing of may have left the entry we call not written.

        While the boundary lies below its position nothing was ever deleted there; so what lies
        there, which is not ours, was there first, and our PUT is refused whenever it arrives.
        """
        if self._doubtful is None:
            return False
        try:
            return self._log.trimmed() >= self._doubtful
        except StepwellError:
            return True

    def _unknown(self, position: Position, error: BaseException) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"an append at {self._log.where(position)} has an unknown outcome: "
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
            # Another writer may have taken over and collected it; then it is not lost.
            self._guard.check("the pipeline was not opened")
            raise
        if found.entry.epoch > self._epoch:
            raise self._not_ours(found.entry)
        return Cursor(last, found.checksum)

    def _catch_up(self) -> None:
        """Pass, by reading alone, what the old writer has added.

        Reading is quicker than its appending, so the end is reached, and the next attempt to put
        the barrier follows at once upon an empty position. Else a writer that never pauses could
        be ahead of us for ever.
        """
        while (found := self._log.read(self._tip.next)) is not None:
            if found.entry.epoch >= self._epoch:
                raise self._not_ours(found.entry)
            self._tip, _ = self._tip.advance(found, self._log.where(self._tip.next))

    def _missing(self, position: Position) -> TruncatedError:
        return TruncatedError(
            self._log.where(position),
            "the entry is missing, and no other writer took over",
            hint="restore the object from a backup",
        )
