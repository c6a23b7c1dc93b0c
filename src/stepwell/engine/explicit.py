"""Explicit transactions: begin, push, take, commit, abort (J10).

An explicit transaction keeps its turn of the pipeline from its beginning to its end: nobody else
takes anything in meanwhile. Its steps are recorded as they come, and nothing is computed from them
before `commit`, whose entry makes them count. A crash before that entry rolls all of it back (J4).

The key of a transaction stands in the entry that commits it, with a digest of all that was pushed.
Where the key is known already, nothing is recorded: the pushes are only compared, and `commit`
gives the number of the first one (J14).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

from stepwell.engine.core import Core
from stepwell.engine.payload import Intake, digest_of
from stepwell.engine.ports import BadRow
from stepwell.engine.push_keys import PushKey
from stepwell.engine.pushed import Rows
from stepwell.engine.transaction import Done, Step
from stepwell.errors import InvalidError, StepwellError
from stepwell.model import NO_CHECKSUM, Checksum, Transaction, checksum

Read = Callable[[str, Rows | None, Rows | None, Rows | None, Sequence[BadRow]], Intake]


class ExplicitTransaction:
    """Safe to use from several threads; their steps follow each other."""

    def __init__(
        self,
        core: Core,
        read: Read,
        ended: Callable[[Done | None], None],
        give_back: Callable[[], None],
        key: str | None = None,
    ) -> None:
        """`read` makes an intake of what is pushed. `ended` is called once it has ended, still in
        its turn, with what it committed.
        """
        self._core = core
        self._read = read
        self._ended_by = ended
        self._give_back = give_back
        self._key = key
        self._digest: Checksum = NO_CHECKSUM
        """Of all that was pushed so far, in order."""
        self._repeats = core.state.open is None
        self._lock = threading.RLock()
        self._over = False

    def push(
        self,
        table: str,
        rows: Rows | None = None,
        *,
        delete: Rows | None = None,
        discard: Rows | None = None,
        bad: Sequence[BadRow] = (),
    ) -> None:
        """Add rows, and before them deletes. Durable, and not visible before the commit."""
        with self._mine():
            intake = self._read(table, rows, delete, discard, bad)
            if not intake.taken.rows:
                return
            if not self._repeats:
                self._core.add(Step.of([intake]))
            if self._key is not None:
                together = self._digest + digest_of(intake)
                self._digest = checksum([together.encode()])

    def take(self, rows_max: int | None = None) -> int:
        """Add what the sources have now, within limits; how many rows. Abort rewinds them."""
        with self._mine():
            if self._key is not None:
                raise InvalidError(
                    "a transaction with a key takes in what is pushed only: sources are not "
                    "repeated",
                    hint="begin it without a key",
                )
            step = self._core.poll(rows_max)
            if step is None:
                return 0
            self._core.add(step)
            return step.rows

    def commit(self) -> Transaction:
        """Make all of it visible at once; the number of the transaction.

        When it raises, the transaction was taken back, unless it is `UnknownOutcomeError`.
        """
        with self._mine():
            try:
                known, done = self._close()
            except BaseException:
                with suppress(StepwellError):  # Why it was not committed counts.
                    self._abort()
                raise
            self._end(done)
            return self._core.state.transaction if known is None else known

    def _close(self) -> tuple[Transaction | None, Done | None]:
        """Commit it, or find the transaction that it repeats."""
        key = None if self._key is None else PushKey(self._key, self._digest)
        if self._repeats and key is not None:
            known = self._core.answer(key)
            if known is None:
                raise InvalidError(
                    f"the key {key.key!r} has expired while this transaction was open; nothing "
                    "was taken in",
                    hint="begin it again",
                )
            return known.transaction, None
        if self._core.state.open is not None:
            self._core.state.open.key = key
        return None, self._core.close_open()

    def abort(self) -> None:
        """Take all of it back: no trace in tables, views and sinks; sources are rewound."""
        with self._mine():
            self._abort()

    def take_back(self) -> bool:
        """For a pipeline that is closed: end this, and leave the turn to the caller.

        False: it has ended already, and given its turn back.
        """
        with self._lock:
            was_open, self._over = not self._over, True
            return was_open

    def _abort(self) -> None:
        try:
            if self._core.state.open is not None:
                self._core.abort()
        finally:
            # Even if the journal does not take the entry now: it will before the next one.
            self._end(None)

    def _end(self, done: Done | None) -> None:
        self._over = True
        try:
            self._ended_by(done)
        finally:
            self._give_back()

    @contextmanager
    def _mine(self) -> Iterator[None]:
        with self._lock:
            if self._over:
                raise InvalidError("this transaction has ended", hint="begin another one")
            yield

    def __enter__(self) -> ExplicitTransaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._over:
            return
        if error is None:
            self.commit()
            return
        with suppress(StepwellError):  # Why the body failed is what its caller wants to know.
            self.abort()
