"""What is done to keep a pipeline's state: flush, checkpoint, go back, merge, collect.

All of it between two transactions, each in one commit to the manifest. `Core` is this together with
opening, taking in and giving out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from stepwell.engine.chores import Chores
from stepwell.engine.events import Checkpointed, Events, FlushFailed
from stepwell.engine.flush import Wanted, flush
from stepwell.engine.open import Writer
from stepwell.engine.pieces import difference
from stepwell.engine.ports import ExecutorFactory
from stepwell.engine.push_keys import PushKeys
from stepwell.engine.settings import Settings
from stepwell.engine.sources import Sources
from stepwell.engine.taken_names import reading
from stepwell.engine.target import Goal, Target, choose, replay_to
from stepwell.engine.transaction import State, load_state
from stepwell.env import Env
from stepwell.errors import UnknownOutcomeError
from stepwell.journal.log import Log
from stepwell.model import Transaction
from stepwell.state.checkpoint import dropping
from stepwell.state.collect import Collector
from stepwell.state.manifest import CheckpointRef, Manifest, Stored
from stepwell.state.timeline import Timeline
from stepwell.store.base import Store


class Keeping(ABC):
    env: Env
    events: Events
    settings: Settings
    sources: Sources
    state: State
    _writer: Writer
    _store: Store
    _journal_store: Store
    _make: ExecutorFactory
    _chores: Chores
    _last_checkpoint: float

    @property
    def manifest(self) -> Manifest:
        return self._writer.manifest

    @abstractmethod
    def boundary(self) -> None:
        """Be between two transactions."""

    @abstractmethod
    def deliver_briefly(self) -> None:
        """Send what waits for sinks, but not for long."""

    def flush(self) -> bool:
        """Make the manifest hold everything; False if it did. Only between two transactions."""
        return self._flush() is not None

    def checkpoint(self, name: str | None = None, keep_s: float | None = None) -> CheckpointRef:
        """Flush, and keep that state, in one commit (C1). Only between two transactions (J9)."""
        settings = self.settings
        reach_s = settings.collect.journal_keep_s
        wanted = Wanted(name, keep_s, settings.checkpoint_keep, reach_s)
        held = self._flush(wanted)
        if held is None:
            raise UnknownOutcomeError("a checkpoint that is wanted is taken")
        self._last_checkpoint = self.env.uptime()
        self._writer.bear_witness()
        ref = held.manifest.checkpoints[-1]
        self.events.emit(Checkpointed(ref.id, ref.transaction, ref.name))
        return ref

    def choose(self, goal: Goal) -> Target:
        """Where to go back to."""
        self.boundary()
        log = Log(self._journal_store, self.manifest.lineage)
        return choose(goal, self._store, log, self.manifest, self.env)

    def go_back(self, target: Target) -> CheckpointRef:
        """Make the state that of an earlier transaction, as the next one; sinks get the difference.

        One commit: a crash leaves the pipeline as it was, or all of it done. When it raises, this
        handle may be of no use any more, and opening again is the way on.
        """
        self.boundary()
        state, rows_max = self.state, self.settings.outbox.part_rows_max
        log = Log(self._journal_store, self.manifest.lineage)
        self._chores.end()
        begin, made = target.checkpoint.state, self._make(self._store, self.env)
        read = reading(self._store, self.env)
        past = load_state(made, begin, self._push_keys(begin), tests=state.tests, read=read)
        replay_to(target, past, self.sources, log, self.settings.replay_rows_max)
        try:
            with ExitStack() as stack:
                differences = []
                for outbox in state.outboxes:
                    stack.enter_context(outbox.held_back())
                    view = outbox.sink.view
                    was, now = (x.pieces(view, rows_max) for x in (state.executor, past.executor))
                    differences.append(difference(was, now, rows_max))
                counts = [change.count(rows_max) for change in differences]
                number = Transaction(state.transaction + max([1, *counts]))
                state.diverged = Timeline(self.env.new_id(), state.transaction)
                for outbox, change, count in zip(state.outboxes, differences, counts, strict=True):
                    outbox.diverge(state.diverged)
                    tip = self._writer.journal.tip
                    outbox.offer_parts(number, change.parts(rows_max), count, tip)
                state.executor, state.origin = past.executor, target.checkpoint
                # With the rows of what is undone go its keys.
                state.pushes = past.pushes
                state.positions, state.dead_letters = past.positions, past.dead_letters
                state.violations, state.taken = past.violations, past.taken
                state.transaction = number
                ref = self.checkpoint()
        except BaseException as error:
            state.broken = UnknownOutcomeError(
                f"the pipeline was not restored: {getattr(error, 'message', error)}",
                hint="open the pipeline again: it is as it was, or restored",
            )
            raise
        self.deliver_briefly()
        return ref

    def compact(self, *, detach: bool = False) -> bool:
        """Make one of the runs of each relation; False if each had one. Its own commit.

        `detach`: of a clone, also those that lie in its parent's store, and a checkpoint of that,
        so that older ones, which need the parent, may go.
        """
        runs = {(run.relation, run.group or run.path) for run in self.manifest.runs}
        foreign = detach and any(run.root for run in self.manifest.all_runs)
        if len({relation for relation, _ in runs}) == len(runs) and not foreign:
            return False
        self.boundary()
        self._chores.finish()
        self.state.executor.compact(own=detach)
        self.state.pushes.compact()
        if detach:
            for names in self.state.taken.values():
                names.own()
            self.checkpoint()
        else:
            self._flush(always=True)
        return True

    def _push_keys(self, manifest: Manifest) -> PushKeys:
        keep_s = self.settings.push_keep_s
        return PushKeys(self._store, self.env, manifest.runs, keep_s=keep_s)

    def collector(self) -> Collector:
        """Removes what nothing needs; it needs no turn."""
        settings = replace(
            self.settings.collect,
            barrier_keep_s=self.settings.journal.barrier_keep_s,
            history=self.settings.history,
        )
        return Collector(
            self._store, self.env, journal_store=self._journal_store, settings=settings
        )

    @property
    def tidied(self) -> bool:
        """Whether so much was superseded that opening collected some of it."""
        return self._writer.tidied

    def delete_checkpoint(self, id_or_name: str) -> None:
        self._writer.commit(dropping(id_or_name, self._store.uri), "delete a checkpoint")

    def _flush(self, wanted: Wanted | None = None, *, always: bool = False) -> Stored | None:
        self.boundary()
        return flush(
            self.state,
            self._store,
            self.env,
            self._writer.manifest,
            self._writer.journal.tip,
            self._writer.commit,
            wanted,
            always=always,
        )

    def flush_if_due(self) -> None:
        """An error is told, and tried again later: what is not flushed is in the journal."""
        state = self.state
        if state.open is not None or state.broken is not None:
            return
        self._chores.beat(state.executor)
        if self.env.uptime() - self._last_checkpoint >= self.settings.checkpoint_every_s:
            self._last_checkpoint = self.env.uptime()
            if not self._kept:
                self.attempt(self.checkpoint)
        elif state.unflushed_bytes() >= self.settings.memory_bytes_max:
            self.attempt(self.flush)

    @property
    def _kept(self) -> bool:
        """Whether the last checkpoint holds everything, or there is nothing to hold."""
        checkpoints = self._writer.manifest.checkpoints
        return self.state.transaction == (checkpoints[-1].transaction if checkpoints else 0)

    def attempt(self, act: Callable[[], object]) -> None:
        """Flush or checkpoint; an error is told, and fails nobody."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - what is recorded does not fail because of it
            self.events.emit(FlushFailed(str(getattr(error, "message", error))))
