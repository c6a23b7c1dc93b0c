"""Flush: write the state in memory to the store, so that opening need not replay it.

    1 outbox files       for output that a sink does not hold yet
    2 runs               for rows, push keys and taken names that are in no run yet
    3 checkpoint         if requested: an object with the state that the next step commits
    4 manifest commit    runs, replay position, transaction, progress, checkpoint: all or nothing

A crash or an error before 4 leaves unreferenced files; the journal still holds everything. Memory
counts as flushed only after 4, so the two agree after every error (K1). A flush reaches the end of
the journal, barriers included, so the replay range is empty afterwards (C1). A checkpoint is taken
even if there is nothing else to write.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from stepwell.engine.events import Flushed
from stepwell.engine.transaction import State
from stepwell.env import Env
from stepwell.errors import UnknownOutcomeError, ensure
from stepwell.journal.entry import Cursor
from stepwell.manifest.checkpoint import (
    KEEP,
    adding,
    find_checkpoint,
    write_checkpoint,
)
from stepwell.manifest.manifest import Change, Manifest, Stored
from stepwell.manifest.progress import DeadLetters, Progress, SourceAt, Violations
from stepwell.manifest.timeline import diverged
from stepwell.store.base import Store


class Commit(Protocol):
    """Commits a change to the manifest; see `Holder.commit`."""

    def __call__(
        self, change: Change, doing: str, revived: Collection[str] = frozenset()
    ) -> Stored: ...


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """The checkpoint to take, and which unnamed checkpoints to keep besides."""

    name: str | None = None
    keep_s: float | None = None
    keep: int = KEEP
    reach_s: float = 0.0
    """For how long every past transaction must be reachable from a checkpoint."""


def flush(
    state: State,
    store: Store,
    env: Env,
    before: Manifest,
    cursor: Cursor,
    commit: Commit,
    checkpoint: CheckpointSpec | None = None,
    *,
    always: bool = False,
) -> Stored | None:
    """Flush everything up to a cursor; None if the manifest is up to date.

    `cursor` is the end of the last transaction in memory. `env` generates ids above the floor, in
    rising order. A checkpoint becomes the last one in the manifest. `always`: commit even if only
    the runs changed, as after a compaction.
    """
    state.check()
    ensure(state.open is None, "a flush comes between two transactions")
    progress = _progress(state, store, env)
    # None if nothing was computed: the manifest's description still fits the runs.
    described = state.executor.described()
    is_described = described in (None, before.described)
    held = is_described and _holds(before, state, cursor, progress)
    if checkpoint is None and not always and held:
        return None
    lap = state.profiles.start()
    stored = state.executor.flush()
    runs = (*stored, *state.pushes.flush())
    origin = state.origin
    # This commit names them again.
    revived = frozenset(run.path for run in origin.state.all_runs) if origin else frozenset()
    # Every file this writer has written is named in `runs` or is garbage, except for those of a
    # running background task.
    floor = state.executor.id_floor() or env.new_id()
    begun = state.diverged

    def change(manifest: Manifest) -> Manifest:
        if origin is not None and not origin.is_beginning:
            # If it was deleted in the meantime, its files may have been collected.
            find_checkpoint(manifest, origin.id, store.uri)
        timelines = manifest.timelines
        if begun is not None:
            timelines = diverged(timelines, begun)
        return replace(
            manifest,
            timelines=timelines,
            runs=runs,
            replay=cursor,
            transaction=state.transaction,
            progress=progress,
            floor=floor,
            described=described or manifest.described,
        )

    if checkpoint is None:
        after = commit(change, "flush", revived)
    else:
        ref = write_checkpoint(
            store, env, change(before), name=checkpoint.name, keep_s=checkpoint.keep_s
        )
        add = adding(ref, checkpoint.keep, checkpoint.reach_s)
        after = commit(lambda manifest: add(change(manifest)), "checkpoint", revived)
    state.origin = state.diverged = None
    try:
        for names in state.taken.values():
            names.on_flushed()
        state.executor.on_flushed(stored)
        state.pushes.on_flushed()
    except BaseException as error:
        state.broken = UnknownOutcomeError(
            f"the manifest was committed, but memory was not updated: {error}",
            hint="open the pipeline again",
        )
        raise
    seconds = lap("flush")
    state.events.emit(Flushed(state.transaction, cursor.position, len(runs), seconds))
    return after


def _progress(state: State, store: Store, env: Env) -> Progress:
    kept = [outbox.write_files() for outbox in state.outboxes if not outbox.new]
    names = {source: taken.flush(store, env) for source, taken in sorted(state.taken.items())}
    return Progress(
        sources=tuple(
            SourceAt(source, position, names.get(source, ()))
            for source, position in sorted(state.positions.items())
        ),
        sinks=tuple(at for at, _ in kept),
        outbox=tuple(item for _, files in kept for item in files),
        dead_letters=tuple(DeadLetters(*item) for item in sorted(state.dead_letters.items())),
        violations=tuple(Violations(*item) for item in sorted(state.violations.items())),
    )


def _holds(before: Manifest, state: State, cursor: Cursor, progress: Progress) -> bool:
    return (before.replay, before.transaction, before.progress) == (
        cursor,
        state.transaction,
        progress,
    )
