"""Making the manifest hold what is in memory, so that replay need not.

    1 runs               of what no run holds yet
    2 outbox files       of output that a sink does not hold yet
    3 manifest commit    runs, replay position, transaction, progress: all of it, or nothing
    4 files of the outbox that no manifest names any more are removed

A crash, or an error, before 3 leaves files that nothing refers to: the journal still has all of it.
Memory forgets that something is unflushed only after 3, so the two agree after every error (K1).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from stepwell.engine.events import Flushed
from stepwell.engine.transaction import State
from stepwell.errors import StepwellError, UnknownOutcomeError, ensure
from stepwell.journal.entry import Cursor
from stepwell.state.manifest import Change, Manifest, Stored
from stepwell.state.progress import DeadLetters, Progress, SourceAt, Undelivered
from stepwell.store.base import Store

Commit = Callable[[Change, str], Stored]


def flush(state: State, store: Store, before: Manifest, cursor: Cursor, commit: Commit) -> bool:
    """Flush everything up to a place in the journal; False if the manifest has it all.

    `cursor` is the end of a transaction, and the last that memory holds.
    """
    state.check()
    ensure(state.open is None, "a flush comes between two transactions")
    progress = _progress(state)
    if _holds(before, state, cursor, progress):
        return False
    runs = state.executor.flush()

    def change(manifest: Manifest) -> Manifest:
        return replace(
            manifest,
            runs=runs,
            replay=cursor,
            transaction=state.transaction,
            progress=progress,
        )

    after = commit(change, "flush").manifest
    try:
        state.executor.flushed(runs)
    except BaseException as error:
        state.broken = UnknownOutcomeError(
            f"the manifest was committed, but memory was not told: {error}",
            hint="open the pipeline again",
        )
        raise
    _remove(store, before.progress.outbox, after)
    state.events.emit(Flushed(state.transaction, cursor.position, len(runs)))
    return True


def _progress(state: State) -> Progress:
    kept = [outbox.keep(state.transaction) for outbox in state.outboxes if not outbox.new]
    return Progress(
        sources=tuple(SourceAt(*item) for item in sorted(state.positions.items())),
        sinks=tuple(at for at, _ in kept),
        outbox=tuple(item for _, files in kept for item in files),
        dead_letters=tuple(DeadLetters(*item) for item in sorted(state.dead_letters.items())),
    )


def _holds(before: Manifest, state: State, cursor: Cursor, progress: Progress) -> bool:
    return (before.replay, before.transaction, before.progress) == (
        cursor,
        state.transaction,
        progress,
    )


def _remove(store: Store, before: tuple[Undelivered, ...], after: Manifest) -> None:
    """What a checkpoint may still need is left to collection."""
    if after.checkpoints:
        return
    named = {item.path for item in after.progress.outbox}
    for item in before:
        if item.path not in named:
            with suppress(StepwellError):  # It costs space only, and is found by collection.
                store.delete(item.path)
