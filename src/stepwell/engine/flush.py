"""Making the manifest hold what is in memory, so that replay need not.

    1 outbox files       of output that a sink does not hold yet
    2 runs               of what no run holds yet: rows, keys of pushes, names that were taken
    3 checkpoint         if one is wanted: the state that the next step commits, as an object
    4 manifest commit    runs, replay position, transaction, progress, checkpoint: all, or nothing

A crash, or an error, before 4 leaves files that nothing refers to: the journal still has all of it.
Memory forgets that something is unflushed only after 4, so the two agree after every error (K1).
A flush reaches to the end of the journal, barriers included, so after one the replay range is empty
(C1); a checkpoint is taken even if there was nothing else to write.
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
from stepwell.state.checkpoint import (
    KEEP,
    adding,
    find_checkpoint,
    write_checkpoint,
)
from stepwell.state.manifest import Change, Manifest, Stored
from stepwell.state.progress import DeadLetters, Progress, SourceAt, Violations
from stepwell.state.timeline import diverged
from stepwell.store.base import Store


class Commit(Protocol):
    """Commits a change to the manifest; see `Holder.commit`."""

    def __call__(
        self, change: Change, doing: str, revived: Collection[str] = frozenset()
    ) -> Stored: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A checkpoint that is wanted, and which ones without a name are to stay with it."""

    name: str | None = None
    keep_s: float | None = None
    keep: int = KEEP
    reach_s: float = 0.0
    """How far back every transaction is to be reached from one of them."""


def flush(
    state: State,
    store: Store,
    env: Env,
    before: Manifest,
    cursor: Cursor,
    commit: Commit,
    wanted: Wanted | None = None,
    *,
    always: bool = False,
) -> Stored | None:
    """Flush everything up to a place in the journal; None if the manifest has it all.

    `cursor` is the end of a transaction, and the last that memory holds. `env` draws ids above the
    floor, and in rising order. A checkpoint that is wanted is the last of the manifest's.
    `always`: the runs are others, though they hold the same.
    """
    state.check()
    ensure(state.open is None, "a flush comes between two transactions")
    progress = _progress(state, store, env)
    if wanted is None and not always and _holds(before, state, cursor, progress):
        return None
    stored = state.executor.flush()
    runs = (*stored, *state.pushes.flush())
    # Nothing is said where nothing was computed: the runs are those that were described before.
    described = state.executor.described()
    origin = state.origin
    # They are named again by this commit.
    revived = frozenset(run.path for run in origin.state.all_runs) if origin else frozenset()
    # Whatever this writer has written so far is in `runs`, or is rubbish; but for what a chore
    # writes meanwhile.
    floor = state.executor.below() or env.new_id()
    begun = state.diverged

    def change(manifest: Manifest) -> Manifest:
        if origin is not None and not origin.is_beginning:
            # Whoever let it go meanwhile may have collected its files.
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

    if wanted is None:
        after = commit(change, "flush", revived)
    else:
        ref = write_checkpoint(store, env, change(before), name=wanted.name, keep_s=wanted.keep_s)
        add = adding(ref, wanted.keep, wanted.reach_s)
        after = commit(lambda manifest: add(change(manifest)), "checkpoint", revived)
    state.origin = state.diverged = None
    try:
        for names in state.taken.values():
            names.flushed()
        state.executor.flushed(stored)
        state.pushes.flushed()
    except BaseException as error:
        state.broken = UnknownOutcomeError(
            f"the manifest was committed, but memory was not told: {error}",
            hint="open the pipeline again",
        )
        raise
    state.events.emit(Flushed(state.transaction, cursor.position, len(runs)))
    return after


def _progress(state: State, store: Store, env: Env) -> Progress:
    kept = [outbox.keep() for outbox in state.outboxes if not outbox.new]
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
