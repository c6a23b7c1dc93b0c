"""A pipeline at work, for one thread at a time: open, take in, commit, abort, deliver, flush.

`Pipeline` is this with locks. Everything here leaves memory and store in agreement, or sets what
ends the handle: then every later call raises it, and opening again is the way on.

    opening   look whether program or sinks are refused -> claim and fence (`open.py`) -> load runs
              -> ask the sinks -> replay -> settle the transaction inside which the journal ends
              (J4) -> begin new sinks -> serve
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from stepwell.engine.chores import Chores
from stepwell.engine.events import (
    Events,
    Listener,
    Opened,
    OpeningAt,
    RolledBack,
    Settled,
    SinkFailed,
    Waiting,
)
from stepwell.engine.flush import flush
from stepwell.engine.keeping import Keeping
from stepwell.engine.kept import read_kept
from stepwell.engine.open import Opening, Seen, Writer, take_over
from stepwell.engine.outages import Outages
from stepwell.engine.outbox import Outbox
from stepwell.engine.payload import Intake
from stepwell.engine.ports import ExecutorFactory, Limits, Sink, Source, report_to
from stepwell.engine.push_keys import Accepted, PushKey
from stepwell.engine.replay import Replay
from stepwell.engine.settings import Settings
from stepwell.engine.sink_history import is_recorded
from stepwell.engine.sources import Sources
from stepwell.engine.stopping import Stop
from stepwell.engine.taken_names import reading
from stepwell.engine.target import Target
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
from stepwell.engine.working import Work
from stepwell.env import Env, Rising
from stepwell.errors import (
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
from stepwell.journal.entry import Cursor, Draft, Kind
from stepwell.journal.log import Log
from stepwell.model import Transaction
from stepwell.state.manifest import Manifest
from stepwell.state.progress import NO_PROGRESS, Undelivered
from stepwell.state.timeline import Timeline
from stepwell.store.base import Store
from stepwell.store.sealed import Json


class Core(Keeping):
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
        create: bool = True,
        program: Json = None,
        base: Target | None = None,
        writer: str | None = None,
        seen: Seen | None = None,
    ) -> None:
        """Opening for writing: fences whoever had the pipeline, and brings it up to date.

        `base`: start from a checkpoint instead of the manifest's runs, for they are damaged. If it
        also says how far to go, everything after is undone, and sinks are let go.
        `writer` is the id of the handle, for its claim; `seen` makes the claim conditional.
        """
        self.left = False
        """Whether it was closed: another one has to be opened to go on."""
        self.refused: StepwellError | None = None
        """Why the loop's last transaction was taken back when somebody else needed a boundary."""
        ids = env if isinstance(env, Rising) else Rising(env)
        self.env: Env = ids
        self.settings = settings or Settings()
        self.events = Events(listener)
        self._store = store
        self._chores = Chores(self.events)
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
            """Before the claim: who would be refused must not fence whoever has the pipeline."""
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
        _agree(opening, program)
        manifest = opening.manifest
        ids.above(manifest.floor)
        lost = () if base is None else self._lost(manifest)
        outboxes = tuple(
            self._outbox(sink, manifest, self.events, lost) for sink in (() if goes_back else sinks)
        )
        begin = manifest if base is None else base.checkpoint.state
        read, tests = reading(store, self.env), self.settings.tests
        self.state = load_state(
            made, begin, self._push_keys(begin), outboxes, self.events, tests, read
        )
        if base is not None:
            self.state.origin = base.checkpoint
        for outbox in outboxes:
            outbox.ask()
        replayed, present = self._replay(opening, base)
        self.state.outboxes = tuple(outbox for outbox in outboxes if self._is_whole(outbox))
        # Only now: what is recorded was taken in under the rules of its time.
        self.state.on_error = self.settings.on_error
        self.state.gated = True
        self._writer = opening.serve()
        self._work.opening = False
        self._last_checkpoint = env.uptime()
        if goes_back:
            self.state.open = None
            self.state.diverged = Timeline(self.env.new_id(), present)
            self.state.transaction = Transaction(present + 1)
        self._begin_serving(replayed)
        if base is not None:
            self.checkpoint()

    def _replay(self, opening: Opening, base: Target | None) -> tuple[int, Transaction]:
        """How many transactions were replayed, and the last one that the journal has."""
        replay = Replay(
            self.state,
            self.sources,
            rows_max=self.settings.replay_rows_max,
            fed=lambda cursor: self._flush_on_the_way(opening, cursor),
        )
        goal = None if base is None else base.transaction
        if base is not None and goal == base.checkpoint.state.transaction:
            goal = Transaction(0)  # There is nothing to feed.
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
        """Output that waits for a sink, in files that cannot be read any more: for a repair."""
        lost = []
        for item in manifest.progress.outbox:
            try:
                read_kept(self._store, item)
            except CorruptError:
                lost.append(item)
        return tuple(lost)

    def _is_whole(self, outbox: Outbox) -> bool:
        """Whether replay has made up for every file that was lost; else the sink is let go."""
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
        """Without a manifest: of a pipeline that is yet to begin."""
        progress = NO_PROGRESS if manifest is None else manifest.progress
        lineage = "none yet" if manifest is None else manifest.lineage
        log = Log(self._journal_store, lineage)
        return Outbox(
            sink,
            lineage,
            self._store,
            self.env,
            timelines=() if manifest is None else manifest.timelines,
            at=next((at for at in progress.sinks if at.name == sink.name), None),
            kept=[item for item in progress.outbox if item.sink == sink.name and item not in lost],
            again=[item.mark for item in lost if item.sink == sink.name],
            since=Transaction(0) if manifest is None else manifest.transaction,
            recorded=lambda mark: is_recorded(log, mark),
            settings=self.settings.outbox,
            events=events,
        )

    def _flush_on_the_way(self, opening: Opening, cursor: Cursor) -> None:
        """A long replay is flushed as it goes, or a crash would begin it anew."""
        if self.state.origin is not None:
            return  # The manifest is further than this; it is told once, at the end.
        if self.state.unflushed_bytes() >= self.settings.memory_bytes_max:
            flush(self.state, self._store, self.env, opening.manifest, cursor, opening.commit)

    def _begin_serving(self, replayed: int) -> None:
        open = self.state.open
        if open is not None:
            closes = settle(open) is Kind.CLOSE
            if closes:
                try:
                    self.close_open()
                except (InvalidError, UserCodeError):
                    # It was taken back, and its sources rewound: whoever runs the pipeline meets
                    # the same input again, and the error with it, and can open it to mend that.
                    closes = False
            else:
                self.abort()
            self.events.emit(Settled(open.transaction, len(open.steps), closes))
        transaction = self.state.transaction
        for outbox in self.state.outboxes:
            outbox.settle(transaction)
        if self._begin_sinks():
            # Before anything is sent: once a sink holds the view as it is now, the manifest must
            # know that the sink is ours and from which transaction on.
            self.flush()
        manifest = self._writer.manifest
        self.events.emit(
            Opened(manifest.lineage, manifest.claim.epoch, self.state.transaction, replayed)
        )
        self.deliver_briefly()

    def _begin_sinks(self) -> bool:
        new = [outbox for outbox in self.state.outboxes if outbox.new]
        for outbox in new:
            if outbox.stopped is None and not outbox.certain:
                # Whether it is empty decides what it receives, so it must say so.
                raise UnavailableError(
                    f"sink {outbox.sink.name} is new to the pipeline and does not answer",
                    hint="open the pipeline again once the sink can be reached, or without it",
                )
        for outbox in new:
            rows_max = self.settings.outbox.part_rows_max
            view = self.state.executor.pieces(outbox.sink.view, rows_max)
            while -(-view.rows // rows_max) > self.state.transaction:
                # Every part is sent under a number of its own, and there are too few yet: a count
                # of nothing is a row, and a view may grow large in few transactions.
                self._append(Draft(Kind.STEP, self.state.next, 1, True, self.env.now()))
                self.state.transaction = self.state.next
            outbox.begin(self.state.transaction, view, self.tip)
        return bool(new)

    # Looking

    @property
    def store(self) -> Store:
        return self._store

    @property
    def writer(self) -> Writer:
        """For what changes the pipeline itself, between two transactions."""
        return self._writer

    @property
    def tip(self) -> Cursor:
        """The last entry of the journal."""
        return self._writer.journal.tip

    def check(self) -> None:
        """Raise what ended this handle, if anything did."""
        self.state.check()
        self._writer.journal.check()

    # Taking in

    def poll(self, rows_max: int | None = None) -> Step | None:
        """What the sources have now, within the limits; nothing is recorded yet."""
        limits = self.settings.limits
        if rows_max is not None:
            limits = Limits(rows_max, limits.bytes_max)
        with self._work.polling():
            intakes = self.sources.poll(self.state.position, limits, self.state.names)
        return Step.of(intakes) if intakes else None

    def commit(self, intakes: Sequence[Intake]) -> Done:
        """A transaction of one step, closed at once."""
        return self.commit_step(Step.of(intakes))

    def commit_step(self, step: Step) -> Done:
        ensure(self.state.open is None, "a transaction begins after the one before it has ended")
        return self._transact((step,), 0)

    def answer(self, key: PushKey) -> Accepted | None:
        """What became of a push that is repeated with its key; None: it is new.

        To answer is to promise once more, so the store is asked whether the pipeline is still ours:
        another writer may have undone that transaction.
        """
        self.check()
        known = self.state.pushes.answer(key, self.env.now())
        if known is not None:
            self._writer.check("nothing was taken in")
        return known

    def is_known(self, key: str) -> bool:
        """Whether something was pushed with a key, and is remembered."""
        self.check()
        return self.state.pushes.find(key, self.env.now()) is not None

    def begin(self, *, explicit: bool) -> Open:
        """Open a transaction of several steps. Of an explicit one the journal is told."""
        self.check()
        ensure(self.state.open is None, "a transaction begins after the one before it has ended")
        open = Open(self.state.next, explicit)
        if explicit:
            self._append(step_entry(open, None, self.env.now()))
        self.state.open = open
        return open

    def add(self, step: Step) -> None:
        """Record a step of the open transaction. It is durable, and not visible yet."""
        self.check()
        open = self._opened()
        self._append(step_entry(open, step, self.env.now()))
        open.recorded += 1
        open.steps.append(step)

    def close_open(self, last: Step | None = None) -> Done | None:
        """Compute the open transaction and commit it, with a last step that is not recorded yet.

        One without any input leaves no trace. One that cannot be computed, because a view fails on
        it or a row is refused, is taken back: a record of it would be in the way for ever.
        """
        self.check()
        open = self._opened()
        ensure(not open.doomed, "a transaction that is to be aborted is not committed")
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
                with suppress(StepwellError):  # It is tried again before the next transaction.
                    self.abort()
            raise

    def abort(self) -> None:
        """Take the open transaction back: sources are rewound, and nothing of it was computed."""
        self.check()
        open = self._opened()
        open.doomed = True
        self._append(Draft(Kind.ABORT, open.transaction, open.recorded + 1, False, self.env.now()))
        self.state.open = None
        self.events.emit(RolledBack(open.transaction, len(open.steps)))

    def boundary(self) -> None:
        """Be between two transactions: close what the loop left open, finish what was aborted.

        If what the loop left open is refused, the loop is told, and not whoever is next.
        """
        self.check()
        open = self.state.open
        if open is None:
            return
        if open.doomed:
            self.abort()
        elif not open.explicit:
            try:
                self.close_open()
            except (InvalidError, UserCodeError) as error:
                if self.state.open is not None:
                    raise  # It could not be taken back yet.
                self.refused = error

    def _opened(self) -> Open:
        if self.state.open is None:
            raise InvalidError("there is no open transaction")
        return self.state.open

    def _append(self, draft: Draft) -> Cursor:
        return self._writer.append(draft).cursor

    def _transact(self, steps: tuple[Step, ...], recorded: int, key: PushKey | None = None) -> Done:
        def gather() -> Gathered:
            return Gathered(self.state.next, self.env.now(), steps, key=key)

        rows = sum(step.rows for step in steps)
        with self._work.transaction(self.state.next, rows) as seconds:
            done = transact(
                self.state, gather, lambda gathered: self._append(closing(gathered, recorded))
            )
            took = seconds()
        if done is None:
            raise UnknownOutcomeError("a transaction with steps is done")
        self.events.emit(committed(done, took))
        return done

    # Giving out

    def deliver(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Send what waits for sinks; whether nothing waits any more. Never raises for a sink.

        `go_on` is asked before each commit.
        """
        left = [outbox for outbox in self.state.outboxes if not outbox.deliver(go_on)]
        return not left

    def deliver_briefly(self) -> None:
        """Send what waits for sinks, to each for `sink_grace_s`: one that lags holds nobody up."""
        for outbox in self.state.outboxes:
            until = self.env.uptime() + self.settings.sink_grace_s
            outbox.deliver(partial(self._is_before, until))

    def _is_before(self, until: float) -> bool:
        return self.env.uptime() < until

    def room(self, wait_s_max: float, stop: Stop | None = None, *, deliver: bool = True) -> bool:
        """Whether every sink can take another transaction; waits for those that cannot.

        Raises what a sink said that trying again does not mend: the pipeline stops before it takes
        anything more in. False: an outbox is still full, and the time is over or a stop was asked
        for. With `deliver` it sends what waits for a sink until there is room, and no longer.
        """
        until = self.env.uptime() + wait_s_max
        said = False
        while True:
            self.check()
            for outbox in self.state.outboxes:
                if outbox.stopped is not None:
                    # A sink that knows more than we do was perhaps written to by our successor.
                    self._writer.check("nothing was taken in")
                    raise outbox.stopped.with_traceback(None)
            full = [outbox for outbox in self.state.outboxes if outbox.full]
            if full and deliver:
                for outbox in full:
                    outbox.deliver(lambda outbox=outbox: outbox.full)  # type: ignore[misc]
                full = [outbox for outbox in full if outbox.full and outbox.stopped is None]
            if not full:
                if any(outbox.stopped is not None for outbox in self.state.outboxes):
                    continue
                return True
            left = until - self.env.uptime()
            if left <= 0 or (stop is not None and stop.asked):
                return False
            if not said:
                self.events.emit(Waiting("input", f"sink {full[0].sink.name} takes its outbox"))
                said = True
            soonest = min(outbox.retry_in_s for outbox in full)
            self.env.sleep(min(left, max(soonest, 0.01)))

    def make_room(self, stop: Stop) -> None:
        """Wait until every sink can take another transaction; raise if that takes too long."""
        if not self.room(self.settings.sink_wait_s_max, stop):
            raise self.full()

    def full(self) -> UnavailableError:
        """What to raise when there is no room."""
        every = [outbox.status() for outbox in self.state.outboxes]
        status = next((item for item in every if item.full), every[0])
        why = f"the last attempt failed with: {status.error}" if status.error else "it is slow"
        return UnavailableError(
            f"sink {status.name} has not taken {status.pending} transactions, and its outbox is "
            f"full; {why}",
            hint="nothing was taken in. Bring the sink back, or remove it from the pipeline",
            not_applied=True,
        )

    # Leaving

    def abandon(self, error: StepwellError) -> None:
        """Leave at once, as a crash would: what is not flushed is in the journal."""
        self.left = True
        self._writer.journal.end(error)
        with ExitStack() as whatever_happens:
            for sink in self._sinks:
                whatever_happens.callback(sink.close)
            for source in self.sources.all():
                whatever_happens.callback(source.close)
            self._chores.end()

    def close(self, stop: Stop | None = None) -> None:
        """Leave in good order: a checkpoint, then let go of the pipeline, sources and sinks.

        An explicit transaction that is still open is taken back. What sinks have not taken within
        their grace stays in the outbox.
        """
        self.left = True
        with ExitStack() as whatever_happens:
            for sink in self._sinks:
                whatever_happens.callback(sink.close)
            for source in self.sources.all():
                whatever_happens.callback(source.close)
            whatever_happens.callback(self._writer.close)
            with suppress(FencedError, UnknownOutcomeError):  # There is nothing of ours to leave.
                self._chores.end()
                open = self.state.open
                if open is not None and open.explicit:
                    self.abort()
                stop = stop or Stop(self.env, self.settings.sink_grace_s)
                stop.begin_grace()
                self.deliver(stop.allows)
                if self._kept:
                    self.flush()
                else:
                    self.checkpoint()


def _agree(opening: Opening, program: Json) -> None:
    """The state is that of this program, or nobody has said whose it is: then it is from now on.

    Before anything is loaded or replayed: rows stored for one query are no answer to another.
    """
    _check_program(opening.manifest, program)
    if program is not None and opening.manifest.program is None:
        opening.commit(lambda m: replace(m, program=program), "record the program")


def _check_program(manifest: Manifest | None, program: Json) -> None:
    known = None if manifest is None else manifest.program
    if program is not None and known is not None and known != program:
        raise InvalidError(
            "the pipeline was made by another program than the one that opens it",
            hint="open it with the tables and views it was made with",
        )


def _check_names(sinks: Sequence[Sink]) -> None:
    if len({sink.name for sink in sinks}) < len(sinks):
        raise ConfigError("two sinks have the same name")
