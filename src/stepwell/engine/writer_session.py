"""A writer session: an open pipeline, for one thread at a time. `Pipeline` adds the locking.

    opening   check program and sinks -> claim and fence (`open.py`) -> load runs -> ask the sinks
              -> replay -> settle the transaction inside which the journal ends (J4) -> begin new
              sinks -> serve
    input     poll, begin, add, commit, abort
    parts     `checkpointer` flushes, checkpoints and compacts; `delivery` sends to sinks

Every call leaves memory and store in agreement, or sets the error that ends the session: then every
later call raises it, and the pipeline has to be opened again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import overload

from stepwell.engine.background import BackgroundTasks
from stepwell.engine.checkpointing import Checkpointer
from stepwell.engine.delivery import Delivery
from stepwell.engine.events import (
    Events,
    Listener,
    Opened,
    OpeningAt,
    RolledBack,
    Settled,
    SinkFailed,
    all_of,
)
from stepwell.engine.flush import flush
from stepwell.engine.metrics import EventMetrics, Metrics
from stepwell.engine.open import Opening, Seen, Writer, take_over
from stepwell.engine.outages import Outages
from stepwell.engine.outbox import Outbox
from stepwell.engine.outbox_files import read_outbox_file
from stepwell.engine.ports import Limits, Sink, Source
from stepwell.engine.profile import Profiles
from stepwell.engine.progress import Work
from stepwell.engine.push_keys import Accepted, PushKey, PushKeys
from stepwell.engine.replay import Replay
from stepwell.engine.restore_request import RestorePoint
from stepwell.engine.settings import Settings
from stepwell.engine.sink_history import is_recorded
from stepwell.engine.sources import Sources
from stepwell.engine.stopping import Stop
from stepwell.engine.transaction import (
    Done,
    Gathered,
    Open,
    Step,
    closing,
    committed,
    load_state,
    settle,
    step_entry,
    transact,
)
from stepwell.env import Env, MonotonicIds
from stepwell.errors import (
    BugError,
    ConfigError,
    CorruptError,
    FencedError,
    InvalidError,
    StepwellError,
    UnavailableError,
    UnknownOutcomeError,
    UserCodeError,
    ensure,
)
from stepwell.execution.executor import Executor, ExecutorFactory, report_to
from stepwell.journal.entry import Cursor, Draft, Kind
from stepwell.journal.log import Log
from stepwell.lsm.sorted_runs import run_reader
from stepwell.manifest.gc import Collector
from stepwell.manifest.manifest import Manifest
from stepwell.manifest.progress import NO_PROGRESS, Undelivered
from stepwell.manifest.timeline import Timeline
from stepwell.model import Transaction
from stepwell.store.base import Store
from stepwell.store.sealed import Json


class WriterSession:
    def __init__(
        self,
        store: Store,
        env: Env,
        executor: ExecutorFactory,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        *,
        journal_store: Store | None = None,
        settings: Settings | None = None,
        listener: Listener | None = None,
        metrics: Metrics | None = None,
        create: bool = True,
        program: Json = None,
        base: RestorePoint | None = None,
        writer: str | None = None,
        seen: Seen | None = None,
    ) -> None:
        """Open for writing: fence the previous writer, and replay the journal.

        `base`: start from a checkpoint instead of the manifest's runs, for they are damaged. If it
        also says how far to go, everything after is undone, and sinks are detached.
        `writer` is the id of the handle, for its claim; `seen` makes the claim conditional.
        """
        self.left = False
        """Whether it was closed or abandoned; only another session can continue."""
        self.refused: StepwellError | None = None
        """Why the loop's transaction was rolled back when another thread needed a boundary."""
        ids = env if isinstance(env, MonotonicIds) else MonotonicIds(env)
        self.env: Env = ids
        self.settings = settings or Settings()
        reported = None if metrics is None else EventMetrics(metrics)
        self.profiles = Profiles(env, metrics)
        self.events = Events(all_of(self.profiles.published, listener, reported))
        self._store = store
        self.background = BackgroundTasks(self.events)
        self._journal_store = journal_store or store
        self.outages = Outages((store, self._journal_store), self.events)
        self._make = executor
        self._sinks = tuple(sinks)
        made = executor(store, self.env)
        self._work = Work(self.events, env)
        report_to(made, self._work.report)
        self.events.emit(OpeningAt("claiming", 30))
        waits = self.settings.source_wait_s_first, self.settings.source_wait_s_max
        self.sources = Sources(sources, tuple(made.tables()), env, waits, self.events)
        _check_names(sinks)
        goes_back = base is not None and base.transaction is not None

        def consider(found: Manifest | None) -> None:
            """Refuse before the claim, so that a refusal does not fence the current writer."""
            _check_program(found, program)
            for sink in () if goes_back else sinks:
                self._outbox(sink, found, Events()).ask()

        opening = take_over(
            store,
            self.env,
            journal_store=journal_store,
            settings=self.settings.journal,
            history=self.settings.history,
            create=create,
            repair=base is not None,
            replay_from=None if base is None else base.replay_from,
            consider=consider,
            writer=writer,
            seen=seen,
        )
        self.events.emit(OpeningAt("loading", 40))
        _agree(opening, program, made)
        manifest = opening.manifest
        ids.above(manifest.floor)
        lost = () if base is None else self._lost(manifest)
        outboxes = tuple(
            self._outbox(sink, manifest, self.events, lost) for sink in (() if goes_back else sinks)
        )
        begin = manifest if base is None else base.checkpoint.state
        read, tests = run_reader(store, self.env), self.settings.tests
        self.state = load_state(
            made, begin, self.push_keys(begin), outboxes, self.events, tests, read
        )
        self.state.bulk_bytes = self.settings.bulk_bytes
        if base is not None:
            self.state.origin = base.checkpoint
        for outbox in outboxes:
            outbox.ask()
        replayed, present = self._replay(opening, base)
        self.state.outboxes = tuple(outbox for outbox in outboxes if self._is_whole(outbox))
        # Only now: recorded input was accepted under the rules of its time.
        self.state.on_error = self.settings.on_error
        self.state.gated = True
        self.state.profiles = self.profiles
        self._writer = opening.serve()
        self._work.opening = False
        self.checkpointer = Checkpointer(
            self.state,
            self._writer,
            store,
            self.env,
            self.settings,
            self.background,
            self.reach_boundary,
        )
        self.delivery = Delivery(self.state, self._writer, self.env, self.settings)
        if goes_back:
            self.state.open = None
            self.state.diverged = Timeline(self.env.new_id(), present)
            self.state.transaction = Transaction(present + 1)
        self._begin_serving(replayed)
        if base is not None:
            self.checkpointer.checkpoint()

    def _replay(self, opening: Opening, base: RestorePoint | None) -> tuple[int, Transaction]:
        """Replay; return the number of transactions, and the last one in the journal."""
        replay = Replay(
            self.state,
            self.sources,
            rows_max=self.settings.replay_rows_max,
            fed=lambda cursor: self._flush_on_the_way(opening, cursor),
        )
        goal = None if base is None else base.transaction
        if base is not None and goal == base.checkpoint.state.transaction:
            goal = Transaction(0)  # There is nothing to replay.
        present = opening.manifest.transaction
        first, told = opening.manifest.replay.position, 0
        for recorded in opening.replay():
            done = recorded.entry.position - first
            percent = 50 + 45 * done // max(1, opening.barrier - first)
            if percent > told:
                left = opening.barrier - first
                self.events.emit(OpeningAt("replaying", percent, done, left, "entry"))
                told = percent
            draft = recorded.entry.draft
            if draft.closes:
                present = max(present, draft.transaction)
            if goal is None or draft.transaction <= goal:
                replay.feed(recorded)
        self.state.open = replay.finish()
        return replay.transactions, present

    def _lost(self, manifest: Manifest) -> tuple[Undelivered, ...]:
        """Undelivered output whose files can no longer be read; used by a repair."""
        lost = []
        for item in manifest.progress.outbox:
            try:
                read_outbox_file(self._store, item)
            except CorruptError:
                lost.append(item)
        return tuple(lost)

    def _is_whole(self, outbox: Outbox) -> bool:
        """Whether replay has offered the output of every lost file; if not, drop the sink."""
        missing = outbox.missing
        if missing:
            why = "output it has not received was lost; empty it, and it receives the whole view"
            name = outbox.sink.name
            self.events.emit(SinkFailed(name, missing[0], len(missing), why, 0.0, stops=True))
        return not missing

    def _outbox(
        self,
        sink: Sink,
        manifest: Manifest | None,
        events: Events,
        lost: Sequence[Undelivered] = (),
    ) -> Outbox:
        """The outbox of a sink. Without a manifest: of a pipeline that does not exist yet."""
        progress = NO_PROGRESS if manifest is None else manifest.progress
        # Without one of its files, the output of a transaction is lost.
        again = {item.mark for item in lost if item.sink == sink.name}
        waiting = [item for item in progress.outbox if item.sink == sink.name]
        lineage = "none yet" if manifest is None else manifest.lineage
        log = Log(self._journal_store, lineage)
        return Outbox(
            sink,
            lineage,
            self._store,
            self.env,
            timelines=() if manifest is None else manifest.timelines,
            at=next((at for at in progress.sinks if at.name == sink.name), None),
            kept=[item for item in waiting if item.mark not in again],
            again=again,
            since=Transaction(0) if manifest is None else manifest.transaction,
            recorded=lambda mark: is_recorded(log, mark),
            settings=self.settings.outbox,
            events=events,
        )

    def _flush_on_the_way(self, opening: Opening, cursor: Cursor) -> None:
        """Flush during a long replay, so that a crash does not restart it from the beginning."""
        if self.state.origin is not None:
            return  # The manifest is ahead of this state, and is committed once, at the end.
        if self.state.unflushed_bytes() >= self.settings.memory_bytes_max:
            flush(self.state, self._store, self.env, opening.manifest, cursor, opening.commit)

    def _begin_serving(self, replayed: int) -> None:
        open = self.state.open
        if open is not None:
            closes = settle(open) is Kind.CLOSE
            if closes:
                try:
                    self.commit()
                except (InvalidError, UserCodeError):
                    # It was rolled back and its sources rewound. The loop will read the same input
                    # and raise the error; opening must succeed, so that the user can fix it.
                    closes = False
            else:
                self.abort()
            self.events.emit(Settled(open.transaction, len(open.steps), closes))
        transaction = self.state.transaction
        for outbox in self.state.outboxes:
            outbox.settle(transaction)
        if self._begin_sinks():
            # Before anything is sent: once a sink holds the current view, the manifest must record
            # the sink and the transaction that it starts from.
            self.checkpointer.flush()
        manifest = self._writer.manifest
        self.events.emit(
            Opened(manifest.lineage, manifest.claim.epoch, self.state.transaction, replayed)
        )
        self.delivery.deliver_briefly()

    def _begin_sinks(self) -> bool:
        new = [outbox for outbox in self.state.outboxes if outbox.new]
        for outbox in new:
            if outbox.stopped is None and not outbox.certain:
                # What it receives depends on whether it is empty, so it must answer.
                raise UnavailableError(
                    f"sink {outbox.sink.name} is new to the pipeline and does not answer",
                    hint="open the pipeline again once the sink can be reached, or without it",
                )
        for outbox in new:
            rows_max = self.settings.outbox.part_rows_max
            view = self.state.executor.pieces(outbox.sink.view, rows_max)
            while -(-view.rows // rows_max) > self.state.transaction:
                # Every part needs a number of its own, and there are too few: even an empty
                # pipeline may have a view with rows, and a view may grow large in few transactions.
                self._append(Draft(Kind.STEP, self.state.next, 1, True, self.env.now()))
                self.state.transaction = self.state.next
            outbox.begin(self.state.transaction, view, self.tip)
        return bool(new)

    # Reading

    @property
    def store(self) -> Store:
        return self._store

    @property
    def writer(self) -> Writer:
        """The claim, the journal and the manifest; for changes of the pipeline itself."""
        return self._writer

    @property
    def manifest(self) -> Manifest:
        return self._writer.manifest

    @property
    def log(self) -> Log:
        return Log(self._journal_store, self.manifest.lineage)

    def new_executor(self) -> Executor:
        """Make another executor for this program; it holds nothing yet."""
        return self._make(self._store, self.env)

    def push_keys(self, manifest: Manifest) -> PushKeys:
        """The keys of pushes that a manifest holds."""
        keep_s = self.settings.push_keep_s
        return PushKeys(self._store, self.env, manifest.runs, keep_s=keep_s)

    def collector(self) -> Collector:
        """A garbage collector for this pipeline, safe to use from any thread."""
        settings = replace(
            self.settings.collect,
            barrier_keep_s=self.settings.journal.barrier_keep_s,
            history=self.settings.history,
        )
        return Collector(
            self._store, self.env, journal_store=self._journal_store, settings=settings
        )

    @property
    def tip(self) -> Cursor:
        """The last entry of the journal."""
        return self._writer.journal.tip

    def check(self) -> None:
        """Raise the error that ended this session, if there is one."""
        self.state.check()
        self._writer.journal.check()

    # Input

    def poll(self, rows_max: int | None = None) -> Step | None:
        """Poll the sources within the limits; nothing is recorded yet."""
        limits = self.settings.limits
        if rows_max is not None:
            limits = Limits(rows_max, limits.bytes_max)
        if self.state.open is None:
            self.profiles.begin()
        lap = self.state.profiles.start()
        # A bulk read is a transaction of its own.
        bulk = self.state.bulk if self.state.open is None else None
        with self._work.polling():
            intakes = self.sources.poll(self.state.position, limits, self.state.names, bulk)
        if not intakes:
            return None
        lap("poll")
        return Step.of(intakes)

    def answer(self, key: PushKey) -> Accepted | None:
        """The answer to an earlier push with the same key; None if the key is new.

        An answer repeats a promise, so this checks that the session is not fenced: another writer
        may have undone that transaction.
        """
        self.check()
        known = self.state.pushes.answer(key, self.env.now())
        if known is not None:
            self._writer.check("nothing was committed")
        return known

    def is_known(self, key: str) -> bool:
        """Whether a push with this key is remembered."""
        self.check()
        return self.state.pushes.find(key, self.env.now()) is not None

    def begin(self, *, explicit: bool) -> Open:
        """Begin a transaction of several steps. An explicit one begins with a journal entry."""
        self.check()
        ensure(self.state.open is None, "a transaction begins after the one before it has ended")
        open = Open(self.state.next, explicit)
        if explicit:
            self._append(step_entry(open, None, self.env.now()))
        self.state.open = open
        return open

    def add(self, step: Step) -> None:
        """Record a step of the open transaction: durable, and not visible yet."""
        self.check()
        open = self._opened()
        self._append(step_entry(open, step, self.env.now()))
        open.recorded += 1
        open.steps.append(step)

    @overload
    def commit(self, last: Step) -> Done: ...

    @overload
    def commit(self, last: None = None) -> Done | None: ...

    def commit(self, last: Step | None = None) -> Done | None:
        """Compute and commit the open transaction, or one that consists of `last` alone.

        `last` is a step that is not recorded yet. None is returned for a transaction without input,
        which leaves no trace. A transaction that cannot be computed, because a view fails on it or
        a row is refused, is rolled back: its entries would fail every later replay.
        """
        self.check()
        open = self.state.open
        if open is None:
            ensure(last is not None, "a transaction that was not opened has a step to commit")
            return None if last is None else self._transact((last,))
        ensure(not open.failed, "a transaction that is to be aborted is not committed")
        steps = tuple(open.steps) if last is None else (*open.steps, last)
        if not steps:
            if open.explicit:
                self.abort()
            self.state.open = None
            return None
        try:
            return self._transact(steps, len(open.steps), open.key)
        except (InvalidError, UserCodeError):
            if open.recorded and self.state.open is open:
                with suppress(StepwellError):  # The next transaction tries the abort again.
                    self.abort()
            raise

    def abort(self) -> None:
        """Roll back the open transaction, of which nothing was computed, and rewind its sources."""
        self.check()
        open = self._opened()
        open.failed = True
        self._append(Draft(Kind.ABORT, open.transaction, open.recorded + 1, False, self.env.now()))
        self.state.open = None
        self.events.emit(RolledBack(open.transaction, len(open.steps)))

    def reach_boundary(self) -> None:
        """Get between two transactions: commit the loop's open one, or finish an abort.

        If the loop's transaction is refused, the loop gets the error, not the caller.
        """
        self.check()
        open = self.state.open
        if open is None:
            return
        if open.failed:
            self.abort()
        elif not open.explicit:
            try:
                self.commit()
            except (InvalidError, UserCodeError) as error:
                if self.state.open is not None:
                    raise  # The abort failed, and is tried again.
                self.refused = error

    def _opened(self) -> Open:
        if self.state.open is None:
            raise InvalidError("there is no open transaction")
        return self.state.open

    def _append(self, draft: Draft) -> Cursor:
        return self._writer.append(draft).cursor

    def _transact(
        self, steps: tuple[Step, ...], recorded: int = 0, key: PushKey | None = None
    ) -> Done:
        """Gather, execute, record, apply and publish; `recorded` steps are in the journal."""

        def gather() -> Gathered:
            return Gathered(self.state.next, self.env.now(), steps, key=key)

        rows = sum(step.rows for step in steps)
        with self._work.transaction(self.state.next, rows) as seconds:
            try:
                done = transact(
                    self.state, gather, lambda gathered: self._append(closing(gathered, recorded))
                )
            except BaseException:
                self.profiles.begin()
                raise
            took = seconds()
        if done is None:
            raise BugError("a transaction with steps is committed")
        self.profiles.committed(done.transaction, done.time, done.rows, took, done.executed)
        self.events.emit(committed(done, took))
        return done

    # Closing

    def abandon(self, error: StepwellError) -> None:
        """Leave at once, as a crash would: the journal holds what is not flushed."""
        self.left = True
        self._writer.journal.end(error)
        with ExitStack() as whatever_happens:
            for sink in self._sinks:
                whatever_happens.callback(sink.close)
            for source in self.sources.all():
                whatever_happens.callback(source.close)
            self.background.end()

    def close(self, stop: Stop | None = None) -> None:
        """Take a checkpoint, then release the pipeline, sources and sinks.

        An open explicit transaction is rolled back. Output that sinks have not received within the
        grace period stays in the outbox.
        """
        self.left = True
        with ExitStack() as whatever_happens:
            for sink in self._sinks:
                whatever_happens.callback(sink.close)
            for source in self.sources.all():
                whatever_happens.callback(source.close)
            whatever_happens.callback(self._writer.close)
            with suppress(FencedError, UnknownOutcomeError):  # The pipeline is not ours.
                self.background.end()
                open = self.state.open
                if open is not None and open.explicit:
                    self.abort()
                stop = stop or Stop(self.env, self.settings.sink_grace_s)
                stop.begin_grace()
                self.delivery.deliver(stop.allows)
                if self.checkpointer.is_current:
                    self.checkpointer.flush()
                else:
                    self.checkpointer.checkpoint()


def _agree(opening: Opening, program: Json, executor: Executor) -> None:
    """Check that the state belongs to this program; record the program if there is none, with the
    description that holds the decisions on its backends.

    This comes before loading and replay: rows stored for one query do not answer another.
    """
    _check_program(opening.manifest, program)
    if program is not None and opening.manifest.program is None:
        described = executor.described()
        opening.commit(
            lambda m: replace(m, program=program, described=described), "record the program"
        )


def _check_program(manifest: Manifest | None, program: Json) -> None:
    known = None if manifest is None else manifest.program
    if program is not None and known is not None and known != program:
        raise InvalidError(
            "the pipeline holds the state of another program than the one that opens it",
            hint="open it with the tables and views it was deployed with",
        )


def _check_names(sinks: Sequence[Sink]) -> None:
    if len({sink.name for sink in sinks}) < len(sinks):
        raise ConfigError("two sinks have the same name")
