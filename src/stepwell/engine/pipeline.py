"""The pipeline as users see it: push rows, run the loop, query, flush, close.

    with Pipeline(store, env, executor=..., sources=[...], sinks=[...]) as pipeline:
        pipeline.push("orders", rows)            # durable, and visible, when it returns
        with pipeline.transaction() as t:        # all of it or nothing
            t.push("orders", a)
            t.push("items", b)
        pipeline.run(once=True)

Thread-safe, also while `run` is active in one thread. Threads take turns in the order in which they
arrive; a turn is one transaction. Rows that several threads push at the same time are committed
together, in one entry, and each caller gets its own answer. While an explicit transaction is open,
other threads wait for its end (J3); the thread that holds it must use it, or it would wait for
itself. `status` and `deliver` never wait for a turn.

Once the pipeline is fenced, poisoned or closed, every call raises the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime

import pyarrow as pa

from stepwell.engine.answer import Answer
from stepwell.engine.events import Listener, Stopped, Waiting
from stepwell.engine.explicit import ExplicitTransaction
from stepwell.engine.fair_lock import FairLock
from stepwell.engine.gc_thread import GcThread, collect_once
from stepwell.engine.ingest_loop import IngestLoop
from stepwell.engine.metrics import Metrics
from stepwell.engine.open import Seen
from stepwell.engine.payload import digest_of
from stepwell.engine.ports import Intake, Sink, Source
from stepwell.engine.push_keys import Accepted, PushKey, check_key
from stepwell.engine.push_queue import Committer, PushQueue
from stepwell.engine.pushed import Push, Receipt, Rows, pushed_intake
from stepwell.engine.restore_request import RestorePoint, RestoreRequest
from stepwell.engine.rewind import choose_point, rewind
from stepwell.engine.settings import Settings
from stepwell.engine.sink_threads import SinkThreads
from stepwell.engine.status import Status, status_of
from stepwell.engine.stopping import Stop
from stepwell.engine.tail import Tail
from stepwell.engine.transaction import Done, Step
from stepwell.engine.writer_session import WriterSession
from stepwell.env import Env
from stepwell.errors import ExecutorLostError, InvalidError, StepwellError, ensure
from stepwell.execution.executor import ExecutorFactory, lost
from stepwell.lsm.dead_letter import BadRow
from stepwell.manifest.checkpoint import check_name
from stepwell.manifest.clone import Cloned, clone
from stepwell.manifest.manifest import CheckpointRef
from stepwell.model import Transaction
from stepwell.store.base import Store
from stepwell.store.locate import open_store
from stepwell.store.sealed import Json


class Pipeline:
    def __init__(
        self,
        store: Store,
        env: Env,
        *,
        executor: ExecutorFactory,
        sources: Sequence[Source] = (),
        sinks: Sequence[Sink] = (),
        journal_store: Store | None = None,
        settings: Settings | None = None,
        listener: Listener | None = None,
        metrics: Metrics | None = None,
        create: bool = True,
        program: Json = None,
        base: RestorePoint | None = None,
        seen: Seen | None = None,
    ) -> None:
        """Open for writing, which fences the previous writer, and replay the journal.

        Without `create` the pipeline must exist. `program` identifies what is computed; once it is
        recorded, another program is refused. Sources and sinks are closed with the pipeline, and
        if it cannot be opened. `base` is for `restore.py`. With `seen`, open only if no other
        process has claimed the pipeline since.
        """
        self.writer_id = env.new_id()
        """Identifies the claims of this object."""
        self._stores = store, journal_store
        self._turns = FairLock()
        self._current: ExplicitTransaction | None = None
        self._pushes = PushQueue(
            Committer(
                rows_max=lambda: self._session.settings.limits.rows_max,
                ensure_executor=self._ensure_executor,
                executor_is_lost=lambda: lost(self._session.state.executor) is not None,
                answer=self._answer,
                commit=self._commit,
                after=self._after,
            )
        )
        self._tails: list[Tail] = []
        self._stop = Stop(env, (settings or Settings()).sink_grace_s)
        self._wanted_at_end: list[Callable[[], object]] = []
        self._deliverers: SinkThreads | None = None
        self._running = False
        self._closed = False
        self._failure: BaseException | None = None
        self._standing: Status | None = None
        """The status while the session is exchanged, when there is none to ask."""
        with ExitStack() as unless_open:
            for close in [source.close for source in sources] + [sink.close for sink in sinks]:
                unless_open.callback(_quietly, close)
            self._session = WriterSession(
                store,
                env,
                executor,
                sources,
                sinks,
                journal_store=journal_store,
                settings=settings,
                listener=listener,
                metrics=metrics,
                create=create,
                program=program,
                base=base,
                writer=self.writer_id,
                seen=seen,
            )
            unless_open.pop_all()

    # Taking in

    def push(
        self,
        table: str,
        rows: Rows | None = None,
        *,
        delete: Rows | None = None,
        discard: Rows | None = None,
        bad: Sequence[BadRow] = (),
        key: str | None = None,
    ) -> Receipt:
        """Delete rows, then insert or replace rows; return the number of the transaction.

        A deleted key that does not exist becomes a dead letter; a discarded one does not.

        Durable and visible when this returns. If it raises, nothing was committed, unless it raises
        `UnknownOutcomeError`: then open the pipeline again, and push again with the same `key`. A
        push whose key is known adds nothing, and returns the number of the first one (J14).
        `bad` are the unreadable records of a file, which become dead letters.
        """
        pushed = Push(self._intake(table, rows, delete, discard, bad, key))
        if not pushed.intake.rows:
            with self._turn("push"):
                known = self._answer(pushed.intake)
                last = self._session.state.transaction
                return Receipt(last if known is None else known.transaction, 0, 0)
        self._pushes.append(pushed)
        try:
            with self._turn("push"):
                while not pushed.done:
                    self._pushes.commit()
        except StepwellError:
            # Another thread may have committed it, and closed the pipeline since.
            if not pushed.done:
                raise
        finally:
            self._pushes.withdraw(pushed)
        if pushed.error is not None:
            raise pushed.error
        return pushed.receipt

    def _intake(
        self,
        table: str,
        rows: Rows | None,
        delete: Rows | None,
        discard: Rows | None,
        bad: Sequence[BadRow],
        key: str | None = None,
    ) -> Intake:
        return pushed_intake(self._session.sources, table, rows, delete, discard, bad, key)

    def transaction(self, *, key: str | None = None) -> ExplicitTransaction:
        """Begin an explicit transaction: all its pushes become visible at once.

        Waits until no other is open. As a context manager it commits at the end, and aborts if its
        body raises. Its steps are durable one by one, but count only after the commit. With a `key`
        it can be repeated like a push: the same pushes in the same order.
        """
        if key is not None:
            check_key(key)
        self._take_turn("transaction")
        try:
            self._ensure_executor()
            self._session.delivery.make_room(self._stop)
            self._session.reach_boundary()
            if key is None or not self._session.is_known(key):
                self._session.begin(explicit=True)
            self._current = ExplicitTransaction(
                self._session, self._intake, self._transaction_ended, self._turns.release, key
            )
            return self._current
        except BaseException:
            self._turns.release()
            raise

    def run(self, *, once: bool = False, max_transactions: int | None = None) -> int:
        """Ingest input from the sources; return the number of transactions.

        With `once`, until no source has more input; otherwise until `stop` is called. Ends between
        two transactions, and flushes. Other threads may push in the meantime.
        """
        if self._running:
            raise InvalidError("run: the loop of this pipeline is running", hint="stop it first")
        self._running = True
        loop = IngestLoop(self._session, self._stop, once=once, transactions_max=max_transactions)
        if self._stop.asked:
            self._session.outages.hurry()
        try:
            return self._run(loop, once)
        finally:
            self._running = False
            self._stop.end_loop()
            self._session.outages.relax()

    def _run(self, loop: IngestLoop, once: bool) -> int:
        background = self._session.settings.background_delivery and not once
        self._deliverers = self._begin_delivering() if background else None
        session = self._session
        every_s = session.settings.collect_every_s
        collecting = (
            None if once else GcThread(session.collector(), session.events, every_s, self._fail)
        )
        try:
            while not loop.ended and not self._stop.asked:
                with self._turn("run"):
                    if self._failure is not None:
                        break  # The session may be unusable; `run` ends with the failure.
                    self._ensure_executor()
                    loop.continue_with(self._session)
                    try:
                        done = loop.turn()
                    except Exception:
                        if lost(self._session.state.executor) is None:
                            raise
                        done = None  # The next turn continues with another.
                    if done is not None:
                        self._after(done)
                if loop.rest_s:
                    self._session.env.sleep(loop.rest_s)
        finally:
            if not loop.ended:
                self._stop.begin_grace()
            deliverers, self._deliverers = self._deliverers, None
            if deliverers is not None:
                deliverers.end(at_once=False)
            if collecting is not None:
                collecting.end()
        if self._failure is not None:
            raise self._failure
        with self._turn("run"):
            loop.continue_with(self._session)
            closed = loop.finish()
            if closed is not None:
                self._after(closed)
            self._session.events.emit(Stopped(self._session.state.transaction, loop.transactions))
        if once and session.writer.tidied:
            # Collect now, because a pipeline that only runs briefly has no collector thread.
            collect_once(session.collector(), session.events)
        return loop.transactions

    def stop(self) -> None:
        """Ask `run` to end after its transaction and a flush. From any thread or signal handler.

        Output that a lagging sink has not received within the grace period stays in the outbox.
        """
        self._stop.ask()
        if self._running:  # Otherwise the next `run` ends at once.
            self._session.outages.hurry()  # Recorded input is in the journal.

    @property
    def stopping(self) -> bool:
        """Whether `run` was asked to end and has not ended."""
        return self._stop.asked

    def _fail(self, error: BaseException) -> None:
        """End `run` with an error, because a thread it needs has died. From any thread."""
        if self._failure is None:
            self._failure = error
        self.stop()

    def _begin_delivering(self) -> SinkThreads:
        return SinkThreads(self._session.state.outboxes, self._stop, self._fail)

    def _exchange(self, make: Callable[[WriterSession], WriterSession]) -> None:
        """Replace the session between two transactions.

        `make` gets the current session, and may return it or raise. The loop continues with the
        session that it returns; tails stay.
        """
        with self._turn("deploy"):
            self._session.reach_boundary()
            self._standing = self.status()
            self._swap(make)

    def _swap(self, make: Callable[[WriterSession], WriterSession]) -> None:
        deliverers, self._deliverers = self._deliverers, None
        if deliverers is not None:
            deliverers.end(at_once=True)
        try:
            self._session = make(self._session)
        except BaseException as error:
            if self._session.left:
                # There is no session to continue with.
                self._fail(error)
            raise
        finally:
            self._standing = None
            if deliverers is not None and not self._session.left:
                self._deliverers = self._begin_delivering()

    def _ensure_executor(self) -> None:
        """Replace a lost executor. Requires the lock."""
        why = lost(self._session.state.executor)
        if why is not None and self._failure is None:
            self._replace_executor(why)

    def _replace_executor(self, why: str) -> None:
        """Raise; overridden by pipelines that can open themselves again."""
        raise ExecutorLostError(why, hint="open the pipeline again: nothing is lost")

    # Reading

    def query(self, sql: str) -> Answer:
        """Answer one SELECT over tables and views, as of the last transaction."""
        with self._reading("query"):
            state = self._session.state
            return Answer(state.transaction, state.executor.query(sql))

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table, a view, or the dead letters `<table>$errors`, as Arrow."""
        with self._reading("table"):
            return self._session.state.executor.read(name)

    def tail(self, view: str) -> Tail:
        """Follow the changes of a view from the next transaction on, as a `Tail` to iterate."""
        with self._reading("tail"):
            tail = Tail(view, self._forget)
            self._tails = [*self._tails, tail]
            return tail

    @property
    def transaction_number(self) -> Transaction:
        """The last transaction, whose state `query` reads."""
        return self._session.state.transaction

    def status(self) -> Status:
        """Return the current status. Never waits, so it may be slightly out of date."""
        while True:
            session = self._session
            try:
                return status_of(session)
            except StepwellError:
                standing = self._standing
                if standing is not None:
                    return standing
                if session is self._session:
                    raise

    # State

    def flush(self) -> bool:
        """Flush everything to the manifest, so that opening need not replay it.

        While an explicit transaction is open, the flush waits for its end, and reports that (J9):
        another thread waits here; the thread that holds the transaction gets False.
        """
        if self._current is not None and self._turns.is_mine:
            self._wanted_at_end.append(self._session.checkpointer.flush)
            self._session.events.emit(Waiting("flush", "the end of the open transaction"))
            return False
        with self._turn("flush"):
            return self._session.checkpointer.flush()

    def checkpoint(
        self, name: str | None = None, *, keep_s: float | None = None
    ) -> CheckpointRef | None:
        """Flush, and keep that state as a checkpoint until it is deleted, or for `keep_s`.

        While an explicit transaction is open, it waits for its end like a flush (J9); the thread
        that holds the transaction gets None.
        """
        if name is not None:
            check_name(name)
        if self._current is not None and self._turns.is_mine:
            self._wanted_at_end.append(lambda: self._session.checkpointer.checkpoint(name, keep_s))
            self._session.events.emit(Waiting("checkpoint", "the end of the open transaction"))
            return None
        with self._turn("checkpoint"):
            return self._session.checkpointer.checkpoint(name, keep_s)

    def compact(self, *, detach: bool = False) -> bool:
        """Compact each relation to one run; False if each had one.

        Background tasks compact in tiers; after this, queries and opening read the least. With
        `detach` a clone rewrites runs in its parent's store, too. Garbage collection releases the
        parent once no checkpoint of the clone needs it.
        """
        with self._turn("compact"):
            return self._session.checkpointer.compact(detach=detach)

    def checkpoints(self) -> tuple[CheckpointRef, ...]:
        """Return all checkpoints, oldest first."""
        return self._session.manifest.checkpoints

    def delete_checkpoint(self, id_or_name: str) -> None:
        """Delete a checkpoint; garbage collection removes its files."""
        with self._turn("checkpoint"):
            self._session.checkpointer.delete_checkpoint(id_or_name)

    def restore(
        self,
        checkpoint: str | None = None,
        *,
        transaction: int | None = None,
        time: datetime | None = None,
    ) -> CheckpointRef:
        """Restore a checkpoint, a transaction or a time; return the checkpoint of the new state.

        A new transaction undoes all later ones, and every sink receives the difference. Sources
        read their input again; pushed rows do not come back.
        """
        request = RestoreRequest(checkpoint, transaction, time)
        if request.repairs:
            raise InvalidError("restore needs a checkpoint, a transaction or a time")
        with self._turn("restore"):
            return self._rewind(choose_point(self._session, request))

    def _restore_to(self, point: RestorePoint) -> CheckpointRef:
        """Restore to a restore point that `preview` has found."""
        with self._turn("restore"):
            return self._rewind(point)

    def _rewind(self, point: RestorePoint) -> CheckpointRef:
        ref = rewind(self._session, point)
        for tail in list(self._tails):
            tail.close()  # Its changes were undone: a reader has to start again.
        return ref

    def clone(
        self,
        destination: Store | str,
        *,
        checkpoint: str | None = None,
        journal_store: Store | str | None = None,
        copy: bool = False,
    ) -> Cloned:
        """Clone this pipeline into another store, as it is now or as of a checkpoint.

        Never waits: the clone has everything recorded when the call begins. It is not opened, and
        its sinks are off. If the call is interrupted, call it again.
        """
        self._check_closed()
        env = self._session.env
        store, journal = self._stores

        def at(place: Store | str) -> Store:
            return open_store(place, env) if isinstance(place, str) else place

        return clone(
            store,
            at(destination),
            env,
            source_journal=journal,
            journal_store=None if journal_store is None else at(journal_store),
            checkpoint=checkpoint,
            copy=copy,
        )

    def deliver(self) -> bool:
        """Send pending output to sinks; return whether nothing is pending."""
        self._check_closed()
        return self._session.delivery.deliver()

    def close(self) -> None:
        """Flush, and release the pipeline. An open explicit transaction is rolled back.

        `stop` a loop in another thread first; otherwise its next turn raises.
        """
        if self._closed:
            return
        self._session.outages.hurry()
        current = self._current
        if current is not None and current._take_back():
            self._current = None
        else:
            self._turns.acquire("close")
        try:
            if not self._closed:
                self._closed = True
                for tail in list(self._tails):
                    tail.close()
                why = lost(self._session.state.executor)
                if why is not None:
                    self._session.abandon(ExecutorLostError(why))
                elif not self._session.left:
                    self._session.close(self._stop)
        finally:
            self._turns.release()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Locking

    @contextmanager
    def _turn(self, what: str) -> Iterator[None]:
        """Hold the pipeline for one turn."""
        self._take_turn(what)
        try:
            yield
        finally:
            self._turns.release()

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Read the committed state, also from inside an explicit transaction."""
        if self._current is not None and self._turns.is_mine:
            self._session.check()
            yield
            return
        with self._turn(what):
            self._ensure_executor()
            self._session.check()
            try:
                yield
            except Exception as error:
                why = lost(self._session.state.executor)
                if why is None:
                    raise
                raise ExecutorLostError(why) from error

    def _take_turn(self, what: str) -> None:
        if self._current is not None and not self._turns.is_mine:
            self._session.events.emit(Waiting(what, "the end of the open transaction"))
        self._turns.acquire(what)
        try:
            self._check_closed()
        except InvalidError:
            self._turns.release()
            raise

    def _check_closed(self) -> None:
        if self._closed:
            raise InvalidError("this pipeline was closed", hint="open it again")

    def _after(self, done: Done) -> None:
        """Work after a transaction. The transaction is recorded, so nothing here may raise."""
        for tail in self._tails:
            tail.offer(done)
        if self._deliverers is None:
            self._session.delivery.deliver_briefly()
        else:
            self._deliverers.wake()
        self._session.checkpointer.flush_if_due()

    def _transaction_ended(self, done: Done | None) -> None:
        self._current = None
        if done is not None:
            self._after(done)
        wanted, self._wanted_at_end = self._wanted_at_end, []
        for act in wanted:
            self._session.checkpointer.attempt(act)

    def _answer(self, intake: Intake) -> Accepted | None:
        if intake.key is None:
            return None
        return self._session.answer(PushKey(intake.key, digest_of(intake)))

    def _commit(self, intakes: Sequence[Intake]) -> Done:
        self._session.delivery.make_room(self._stop)
        self._session.reach_boundary()
        ensure(self._session.state.open is None, "a push comes between two transactions")
        return self._session.commit(Step.of(intakes))

    def _forget(self, tail: Tail) -> None:
        self._tails = [other for other in self._tails if other is not tail]


def _quietly(close: Callable[[], None]) -> None:
    """Close without raising: the error of the opening matters."""
    with suppress(Exception):
        close()
