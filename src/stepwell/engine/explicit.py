"""Explicit transactions: begin, push, take, commit, abort (J10).

An explicit transaction holds the pipeline from its beginning to its end, so that no other input is
ingested. Its steps are recorded as they arrive, and computed by `commit`, whose entry makes them
count. A crash before that entry rolls back all of it (J4).

The key of a transaction is in the entry that commits it, with a digest of all pushes. If the key is
known already, nothing is recorded: the pushes are only compared, and `commit` returns the receipt
of the first transaction with that key (J14).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

from stepwell.engine.payload import digest_of
from stepwell.engine.ports import Intake
from stepwell.engine.push_keys import PushKey
from stepwell.engine.pushed import Receipt, Rows
from stepwell.engine.transaction import Done, Step
from stepwell.engine.writer_session import WriterSession
from stepwell.errors import InvalidError, StepwellError
from stepwell.lsm.dead_letter import BadRow
from stepwell.model import NO_CHECKSUM, Checksum, checksum

Read = Callable[[str, Rows | None, Rows | None, Rows | None, Sequence[BadRow]], Intake]


class ExplicitTransaction:
    """An explicit transaction: several pushes that become visible together, or not at all.

    Used in a `with`, it commits at the end and rolls back if the body raises. Thread-safe: pushes
    from several threads are serialized.
    """

    def __init__(
        self,
        session: WriterSession,
        read: Read,
        ended: Callable[[Done | None], None],
        release: Callable[[], None],
        key: str | None = None,
    ) -> None:
        """`read` makes an intake of pushed rows. `ended` is called at the end with the committed
        transaction, before `release` releases the pipeline.
        """
        self._session = session
        self._read = read
        self._ended_by = ended
        self._release = release
        self._key = key
        self._digest: Checksum = NO_CHECKSUM
        """Digest of all pushes so far, in order."""
        self._rows = 0
        self._repeats = session.state.open is None
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
        """Add rows, after deletes. Durable when this returns, visible after the commit."""
        with self._mine():
            intake = self._read(table, rows, delete, discard, bad)
            if not intake.rows:
                return
            if not self._repeats:
                self._session.add(Step.of([intake]))
            self._rows += intake.rows
            if self._key is not None:
                together = self._digest + digest_of(intake)
                self._digest = checksum([together.encode()])

    def take(self, rows_max: int | None = None) -> int:
        """Add input from the sources, within limits; return the number of rows. Abort rewinds."""
        with self._mine():
            if self._key is not None:
                raise InvalidError(
                    "a transaction with a key accepts pushed rows only: input from sources cannot "
                    "be repeated",
                    hint="begin it without a key",
                )
            step = self._session.poll(rows_max)
            if step is None:
                return 0
            self._session.add(step)
            self._rows += step.rows
            return step.rows

    def commit(self) -> Receipt:
        """Make all of it visible at once; return the number of the transaction, with its counts.

        Rejected rows are stored as dead letters, and do not make the commit fail.
        If this raises, the transaction was rolled back, unless it raises `UnknownOutcomeError`.
        """
        with self._mine():
            try:
                receipt, done = self._close()
            except BaseException:
                with suppress(StepwellError):  # The first error matters.
                    self._abort()
                raise
            self._end(done)
            return receipt

    def _close(self) -> tuple[Receipt, Done | None]:
        """Commit, or find the transaction that this one repeats."""
        key = None if self._key is None else PushKey(self._key, self._digest)
        if self._repeats and key is not None:
            known = self._session.answer(key)
            if known is None:
                raise InvalidError(
                    f"the key {key.key!r} has expired while this transaction was open; nothing "
                    f"was committed",
                    hint="begin it again",
                )
            return Receipt(known.transaction, self._rows, known.rejected), None
        if self._session.state.open is not None:
            self._session.state.open.key = key
        done = self._session.commit()
        rejected = 0 if done is None else sum(done.rejected)
        return Receipt(self._session.state.transaction, self._rows, rejected), done

    def abort(self) -> None:
        """Roll back: no trace in tables, views and sinks; sources are rewound."""
        with self._mine():
            self._abort()

    def _take_back(self) -> bool:
        """End this transaction without releasing the pipeline, which its closer now holds.

        False if it has ended already and released the pipeline.
        """
        with self._lock:
            was_open, self._over = not self._over, True
            return was_open

    def _abort(self) -> None:
        try:
            if self._session.state.open is not None:
                self._session.abort()
        finally:
            # Even if the append failed: the next transaction tries it again first.
            self._end(None)

    def _end(self, done: Done | None) -> None:
        self._over = True
        try:
            self._ended_by(done)
        finally:
            self._release()

    @contextmanager
    def _mine(self) -> Iterator[None]:
        with self._lock:
            if self._over:
                raise InvalidError("this transaction has ended", hint="begin a new one")
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
        with suppress(StepwellError):  # The error of the body matters.
            self.abort()
