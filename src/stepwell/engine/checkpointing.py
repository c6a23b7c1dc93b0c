"""Move the state of an open pipeline into the store: flush, checkpoint, compact.

Each happens between two transactions, in one commit to the manifest. A crash before the commit
leaves unreferenced files; the journal still holds every transaction that is not flushed.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwell.engine.background import BackgroundTasks
from stepwell.engine.events import Checkpointed, FlushFailed
from stepwell.engine.flush import CheckpointSpec, flush
from stepwell.engine.open import Writer
from stepwell.engine.settings import Settings
from stepwell.engine.transaction import State
from stepwell.env import Env
from stepwell.errors import BugError
from stepwell.manifest.checkpoint import dropping
from stepwell.manifest.manifest import CheckpointRef, Stored
from stepwell.store.base import Store


class Checkpointer:
    """Part of a `WriterSession`, and used by the thread that holds the pipeline."""

    def __init__(
        self,
        state: State,
        writer: Writer,
        store: Store,
        env: Env,
        settings: Settings,
        background: BackgroundTasks,
        reach_boundary: Callable[[], None],
    ) -> None:
        """`reach_boundary` closes the transaction that the ingest loop left open, if any."""
        self._state = state
        self._writer = writer
        self._store = store
        self._env = env
        self._settings = settings
        self._background = background
        self._reach_boundary = reach_boundary
        self._last_checkpoint = env.uptime()

    def flush(self) -> bool:
        """Flush everything to the manifest; False if it was up to date."""
        return self._flush() is not None

    def checkpoint(self, name: str | None = None, keep_s: float | None = None) -> CheckpointRef:
        """Flush, and keep that state as a checkpoint, in one commit (C1, J9)."""
        settings = self._settings
        reach_s = settings.collect.journal_keep_s
        stored = self._flush(CheckpointSpec(name, keep_s, settings.checkpoint_keep, reach_s))
        if stored is None:
            raise BugError("a flush with a checkpoint commits")
        self._last_checkpoint = self._env.uptime()
        self._writer.raise_high_water_mark()
        ref = stored.manifest.checkpoints[-1]
        self._state.events.emit(Checkpointed(ref.id, ref.transaction, ref.name))
        return ref

    def compact(self, *, detach: bool = False) -> bool:
        """Compact each relation to one run; False if each had one. Its own commit.

        With `detach`, compact a clone's runs in its parent's store, too, and take a checkpoint, so
        that older checkpoints, which need the parent, may be deleted.
        """
        manifest = self._writer.manifest
        runs = {(run.relation, run.group or run.path) for run in manifest.runs}
        foreign = detach and any(run.root for run in manifest.all_runs)
        if len({relation for relation, _ in runs}) == len(runs) and not foreign:
            return False
        self._reach_boundary()
        self._background.finish()
        self._state.executor.compact(own=detach)
        self._state.pushes.compact()
        if detach:
            for names in self._state.taken.values():
                names.compact()
            self.checkpoint()
        else:
            self._flush(always=True)
        return True

    def delete_checkpoint(self, id_or_name: str) -> None:
        self._writer.commit(dropping(id_or_name, self._store.uri), "delete a checkpoint")

    def flush_if_due(self) -> None:
        """Flush or checkpoint if memory or time requires it, and advance the background tasks.

        An error is reported and retried later: the journal holds everything that is not flushed.
        """
        state = self._state
        if state.open is not None or state.broken is not None:
            return
        self._background.advance(state.executor)
        if self._env.uptime() - self._last_checkpoint >= self._settings.checkpoint_every_s:
            self._last_checkpoint = self._env.uptime()
            if not self.is_current:
                self.attempt(self.checkpoint)
        elif state.unflushed_bytes() >= self._settings.memory_bytes_max:
            self.attempt(self.flush)

    @property
    def is_current(self) -> bool:
        """Whether the last checkpoint holds every transaction, or there is none to hold."""
        checkpoints = self._writer.manifest.checkpoints
        return self._state.transaction == (checkpoints[-1].transaction if checkpoints else 0)

    def attempt(self, act: Callable[[], object]) -> None:
        """Flush or checkpoint; report an error instead of raising it."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - must not fail a transaction that is recorded
            self._state.events.emit(FlushFailed(str(getattr(error, "message", error))))

    def _flush(
        self, checkpoint: CheckpointSpec | None = None, *, always: bool = False
    ) -> Stored | None:
        self._reach_boundary()
        return flush(
            self._state,
            self._store,
            self._env,
            self._writer.manifest,
            self._writer.journal.tip,
            self._writer.commit,
            checkpoint,
            always=always,
        )
