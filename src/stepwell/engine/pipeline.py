"""The object users hold: push rows, run the loop, query, flush, close.

    with Pipeline(store, env, executor=..., sources=[...], sinks=[...]) as pipeline:
        pipeline.push("orders", rows)            # durable, and visible, when it returns
        with pipeline.transaction() as t:        # all of it or nothing
            t.push("orders", a)
            t.push("items", b)
        pipeline.run(once=True)

Safe to use from several threads, also while `run` is going in one of them. They take turns, in the
order in which they come; a turn is one transaction. Rows that several threads push at the same
moment are committed together, in one entry, and each caller gets an answer of its own. While an
explicit transaction is open, everybody else waits for its end (J3); whoever holds it must use it,
or would wait for itself. `status` and `deliver` never wait for a turn.

Once the pipeline is fenced, poisoned or closed, every call raises why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime

import pyarrow as pa

from stepwell.engine.collecting import Collecting, collect_once
from stepwell.engine.core import Core
from stepwell.engine.deliverers import Deliverers
from stepwell.engine.events import Listener, Stopped, Waiting
from stepwell.engine.explicit import ExplicitTransaction
from stepwell.engine.open import Seen
from stepwell.engine.payload import Intake, digest_of
from stepwell.engine.ports import BadRow, ExecutorFactory, Sink, Source, lost
from stepwell.engine.push_keys import Accepted, PushKey, check_key
from stepwell.engine.push_queue import Committer, PushQueue
from stepwell.engine.pushed import Push, Receipt, Rows, pushed_intake
from stepwell.engine.run import Loop
from stepwell.engine.settings import Settings
from stepwell.engine.status import Status, status_of
from stepwell.engine.stopping import Stop
from stepwell.engine.tail import Tail
from stepwell.engine.target import Goal, Target
from stepwell.engine.transaction import Done
from stepwell.engine.turns import Turns
from stepwell.env import Env
from stepwell.errors import ExecutorLostError, InvalidError, StepwellError
from stepwell.model import Transaction
from stepwell.state.checkpoint import check_name
from stepwell.state.clone import Cloned, clone
from stepwell.state.manifest import CheckpointRef
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
        create: bool = True,
        program: Json = None,
        base: Target | None = None,
        seen: Seen | None = None,
    ) -> None:
        """Open for writing, which is itself a write: whoever had the pipeline is fenced.

        Brings it up to date from the journal before it returns. Without `create` there must be a
        pipeline already. `program` says what is computed; once recorded, no other is let in.
        Sources and sinks are closed together with the pipeline, and if it cannot be opened. `base`
        is for `restore.py`. `seen`: open it only if nobody else has claimed it since.
        """
        self.writer_id = env.new_id()
        """In every claim of this handle, and in no other's."""
        self._stores = store, journal_store
        self._turns = Turns()
        self._current: ExplicitTransaction | None = None
        self._pushes = PushQueue(
            Committer(
                rows_max=lambda: self._core.settings.limits.rows_max,
                ensure_executor=self._ensure_executor,
                executor_is_lost=lambda: lost(self._core.state.executor) is not None,
                answer=self._answer,
                commit=self._commit,
                after=self._after,
            )
        )
        self._tails: list[Tail] = []
        self._stop = Stop(env, (settings or Settings()).sink_grace_s)
        self._wanted_at_end: list[Callable[[], object]] = []
        self._deliverers: Deliverers | None = None
        self._running = False
        self._closed = False
        self._failure: BaseException | None = None
        self._standing: Status | None = None
        """The status while the core is exchanged, when there is none to ask."""
        with ExitStack() as unless_open:
            for close in [source.close for source in sources] + [sink.close for sink in sinks]:
                unless_open.callback(_quietly, close)
            self._core = Core(
                store,
                env,
                executor,
                sources,
                sinks,
                journal_store=journal_store,
                settings=settings,
                listener=listener,
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
        """Put rows into a table, and delete some first; the number of the transaction.

        A key that is deleted and is not there is a dead letter; one that is discarded is not.

        Durable and visible when it returns. When it raises, nothing was taken in, unless it is
        `UnknownOutcomeError`: then open the pipeline again, and push once more with the same `key`.
        A push whose key is known returns the number of the first one, and takes nothing in (J14).
        `bad` is for whoever reads rows from a file: what cannot be read goes to the dead letters.
        """
        pushed = Push(self._intake(table, rows, delete, discard, bad, key))
        if not pushed.intake.taken.rows:
            with self._turn("push"):
                known = self._answer(pushed.intake)
                last = self._core.state.transaction
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
        return pushed_intake(self._core.sources, table, rows, delete, discard, bad, key)

    def transaction(self, *, key: str | None = None) -> ExplicitTransaction:
        """Begin an explicit transaction: what is pushed through it becomes visible at once.

        Waits until no other is open. As a context it commits at the end, and aborts when its body
        raises. What it took in is durable step by step, but counts only once it is committed. With
        a `key` it can be repeated as a push can: the same pushes in the same order.
        """
        if key is not None:
            check_key(key)
        self._take_turn("transaction")
        try:
            self._ensure_executor()
            self._core.make_room(self._stop)
            self._core.boundary()
            if key is None or not self._core.is_known(key):
                self._core.begin(explicit=True)
            self._current = ExplicitTransaction(
                self._core, self._intake, self._transaction_ended, self._turns.give_back, key
            )
            return self._current
        except BaseException:
            self._turns.give_back()
            raise

    def run(self, *, once: bool = False, max_transactions: int | None = None) -> int:
        """Take in what the sources have, transaction by transaction; how many there were.

        `once`: until no source has anything more. Otherwise until `stop` is called. Ends at a
        boundary, flushed. Other threads may push meanwhile; they take turns.
        """
        if self._running:
            raise InvalidError("run: the loop of this pipeline is running", hint="stop it first")
        self._running = True
        loop = Loop(self._core, self._stop, once=once, transactions_max=max_transactions)
        if self._stop.asked:
            self._core.outages.hurry()
        try:
            return self._run(loop, once)
        finally:
            self._running = False
            self._stop.answer()
            self._core.outages.relax()

    def _run(self, loop: Loop, once: bool) -> int:
        background = self._core.settings.background_delivery and not once
        self._deliverers = self._begin_delivering() if background else None
        core = self._core
        every_s = core.settings.collect_every_s
        collecting = None if once else Collecting(core.collector(), core.events, every_s, self.fail)
        try:
            while not loop.ended and not self._stop.asked:
                with self._turn("run"):
                    if self._failure is not None:
                        break  # What there is now may be of no use; why is what it ends with.
                    self._ensure_executor()
                    loop.go_on_with(self._core)
                    try:
                        done = loop.turn()
                    except Exception:
                        if lost(self._core.state.executor) is None:
                            raise
                        done = None  # The next turn goes on with another.
                    if done is not None:
                        self._after(done)
                if loop.rest_s:
                    self._core.env.sleep(loop.rest_s)
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
            loop.go_on_with(self._core)
            closed = loop.finish()
            if closed is not None:
                self._after(closed)
            self._core.events.emit(Stopped(self._core.state.transaction, loop.transactions))
        if once and core.tidied:
            # A pipeline that only ever runs for moments is collected now and then as well.
            collect_once(core.collector(), core.events)
        return loop.transactions

    def stop(self) -> None:
        """Ask `run` to end: it finishes its transaction and flushes. From any thread or signal.

        What a sink that lags has not taken soon after stays in the outbox, for the next run.
        """
        self._stop.ask()
        if self._running:  # Else nothing ends yet: the next `run` does, at once.
            self._core.outages.hurry()  # What is recorded is in the journal, store or no store.

    @property
    def stopping(self) -> bool:
        """Whether `run` was asked to end, and has not yet."""
        return self._stop.asked

    def fail(self, error: BaseException) -> None:
        """End `run` with this error: a thread that it needs has died. From any thread."""
        if self._failure is None:
            self._failure = error
        self.stop()

    def _begin_delivering(self) -> Deliverers:
        return Deliverers(self._core.state.outboxes, self._stop, self.fail)

    def exchange(self, make: Callable[[Core], Core]) -> None:
        """Go on with another core in the place of this one, between two transactions.

        `make` gets the one there is, and may raise or give it back. A loop goes on with what it
        gives; tails stay.
        """
        with self._turn("deploy"):
            self._core.boundary()
            self._standing = self.status()
            self._swap(make)

    def _swap(self, make: Callable[[Core], Core]) -> None:
        deliverers, self._deliverers = self._deliverers, None
        if deliverers is not None:
            deliverers.end(at_once=True)
        try:
            self._core = make(self._core)
        except BaseException as error:
            if self._core.left:
                # There is nothing to go on with, and this is why.
                self.fail(error)
            raise
        finally:
            self._standing = None
            if deliverers is not None and not self._core.left:
                self._deliverers = self._begin_delivering()

    def _ensure_executor(self) -> None:
        """With the turn: go on with another executor, if this one was lost."""
        why = lost(self._core.state.executor)
        if why is not None and self._failure is None:
            self._replace_executor(why)

    def _replace_executor(self, why: str) -> None:
        """For a pipeline that knows how to open itself again; any other is of no use any more."""
        raise ExecutorLostError(why, hint="open the pipeline again: nothing is lost")

    # Looking

    def query(self, sql: str) -> pa.Table:
        """The answer to one SELECT over tables and views, as of the last transaction."""
        with self._look("query"):
            return self._core.state.executor.query(sql)

    def read(self, relation: str) -> pa.Table:
        """The rows of a table, a view, or the dead letters of a table, `<table>$errors`."""
        with self._look("read"):
            return self._core.state.executor.read(relation)

    def tail(self, view: str) -> Tail:
        """Follow the changes of a view, from the next transaction on."""
        with self._look("tail"):
            tail = Tail(view, self._forget)
            self._tails = [*self._tails, tail]
            return tail

    @property
    def transaction_number(self) -> Transaction:
        """The last transaction; what `query` answers as of."""
        return self._core.state.transaction

    def status(self) -> Status:
        """Where everything stands. Waits for nobody, so it may be a moment behind."""
        while True:
            core = self._core
            try:
                return status_of(core)
            except StepwellError:
                standing = self._standing
                if standing is not None:
                    return standing
                if core is self._core:
                    raise

    # Keeping

    def flush(self) -> bool:
        """Make the manifest hold everything, so that opening need not replay it.

        Inside an explicit transaction it waits for the boundary, and says so (J9): another thread
        waits here; the one that holds the transaction gets False, and the flush is made when it
        ends.
        """
        if self._current is not None and self._turns.mine:
            self._wanted_at_end.append(self._core.flush)
            self._core.events.emit(Waiting("flush", "the end of the open transaction"))
            return False
        with self._turn("flush"):
            return self._core.flush()

    def checkpoint(
        self, name: str | None = None, *, keep_s: float | None = None
    ) -> CheckpointRef | None:
        """Flush, and keep that state: until it is deleted, or for a time.

        Inside an explicit transaction it waits for the boundary, as a flush does (J9); the thread
        that holds the transaction gets None.
        """
        if name is not None:
            check_name(name)
        if self._current is not None and self._turns.mine:
            self._wanted_at_end.append(lambda: self._core.checkpoint(name, keep_s))
            self._core.events.emit(Waiting("checkpoint", "the end of the open transaction"))
            return None
        with self._turn("checkpoint"):
            return self._core.checkpoint(name, keep_s)

    def compact(self, *, detach: bool = False) -> bool:
        """Make one of the runs of each relation, and let what cancels out go; False if it was so.

        Happens by itself as runs gather; afterwards a query and an opening read the least. With
        `detach` a clone also writes anew what lies in its parent's store. The parent is let go by
        collection, once no checkpoint of the clone needs it any more.
        """
        with self._turn("compact"):
            return self._core.compact(detach=detach)

    def checkpoints(self) -> tuple[CheckpointRef, ...]:
        """Those that are kept, oldest first."""
        return self._core.manifest.checkpoints

    def delete_checkpoint(self, id_or_name: str) -> None:
        """Let a checkpoint go; its files go when they are collected."""
        with self._turn("checkpoint"):
            self._core.delete_checkpoint(id_or_name)

    def restore(
        self,
        checkpoint: str | None = None,
        *,
        transaction: int | None = None,
        time: datetime | None = None,
    ) -> CheckpointRef:
        """Go back to a checkpoint, a transaction, or a time; the checkpoint of that new state.

        Transactions after it are undone: by a new one, of which every sink gets the difference.
        What sources can read again comes in again; rows that were pushed do not.
        """
        goal = Goal(checkpoint, transaction, time)
        if goal.repairs:
            raise InvalidError("restore: to which checkpoint, transaction or time?")
        with self._turn("restore"):
            return self._go_back(self._core.choose(goal))

    def go_back(self, target: Target) -> CheckpointRef:
        """The same, to where `choose` has found."""
        with self._turn("restore"):
            return self._go_back(target)

    def _go_back(self, target: Target) -> CheckpointRef:
        ref = self._core.go_back(target)
        for tail in list(self._tails):
            tail.close()  # What it has shown is not so any more; whoever follows begins anew.
        return ref

    def clone(
        self,
        destination: Store | str,
        *,
        checkpoint: str | None = None,
        journal_store: Store | str | None = None,
        copy: bool = False,
    ) -> Cloned:
        """Make a second pipeline that begins where this one is; see `state/clone`.

        Waits for nobody: what is recorded when it begins is in it. It is not opened; its sinks are
        off, and a checkpoint's are as of that checkpoint. Interrupted, call it again.
        """
        self._check_closed()
        env = self._core.env
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
        """Send what waits for sinks now; whether nothing waits any more."""
        self._check_closed()
        return self._core.deliver()

    def close(self) -> None:
        """Flush, and let go. An explicit transaction that is open is taken back.

        A loop that runs in another thread should be asked to `stop` first; else its next turn
        raises.
        """
        if self._closed:
            return
        self._core.outages.hurry()
        current = self._current
        if current is not None and current.take_back():
            self._current = None
        else:
            self._turns.take("close")
        try:
            if not self._closed:
                self._closed = True
                for tail in list(self._tails):
                    tail.close()
                why = lost(self._core.state.executor)
                if why is not None:
                    self._core.abandon(ExecutorLostError(why))
                elif not self._core.left:
                    self._core.close(self._stop)
        finally:
            self._turns.give_back()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Taking turns

    @contextmanager
    def _turn(self, what: str) -> Iterator[None]:
        """Be the only one, between two transactions."""
        self._take_turn(what)
        try:
            yield
        finally:
            self._turns.give_back()

    @contextmanager
    def _look(self, what: str) -> Iterator[None]:
        """Look at what is committed; also from inside an explicit transaction, which is not."""
        if self._current is not None and self._turns.mine:
            self._core.check()
            yield
            return
        with self._turn(what):
            self._ensure_executor()
            self._core.check()
            try:
                yield
            except Exception as error:
                why = lost(self._core.state.executor)
                if why is None:
                    raise
                raise ExecutorLostError(why) from error

    def _take_turn(self, what: str) -> None:
        if self._current is not None and not self._turns.mine:
            self._core.events.emit(Waiting(what, "the end of the open transaction"))
        self._turns.take(what)
        try:
            self._check_closed()
        except InvalidError:
            self._turns.give_back()
            raise

    def _check_closed(self) -> None:
        if self._closed:
            raise InvalidError("this pipeline was closed", hint="open it again")

    def _after(self, done: Done) -> None:
        """What follows a transaction. It is recorded, so nothing here may fail its caller."""
        for tail in self._tails:
            tail.offer(done)
        if self._deliverers is None:
            self._core.deliver_briefly()
        else:
            self._deliverers.wake()
        self._core.flush_if_due()

    def _transaction_ended(self, done: Done | None) -> None:
        self._current = None
        if done is not None:
            self._after(done)
        wanted, self._wanted_at_end = self._wanted_at_end, []
        for act in wanted:
            self._core.attempt(act)

    def _answer(self, intake: Intake) -> Accepted | None:
        if intake.key is None:
            return None
        return self._core.answer(PushKey(intake.key, digest_of(intake)))

    def _commit(self, intakes: Sequence[Intake]) -> Done:
        self._core.make_room(self._stop)
        self._core.boundary()
        return self._core.commit(intakes)

    def _forget(self, tail: Tail) -> None:
        self._tails = [other for other in self._tails if other is not tail]


def _quietly(close: Callable[[], None]) -> None:
    """Why the pipeline was not opened is what its caller wants to know."""
    with suppress(Exception):
        close()
