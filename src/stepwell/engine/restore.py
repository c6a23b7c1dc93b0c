"""Restoring a pipeline that nobody runs: repair it, or go back; also when it cannot be read.

    no goal            from the newest whole checkpoint, the journal to its end: nothing is undone
    a goal             open as ever, go back; sinks get the difference
    a goal, damaged    from the checkpoint itself; sinks are let go, for what they hold cannot be
                       compared: they are to be emptied, and then receive the whole view

Every way ends in one commit; a crash before it leaves the pipeline as it was, and restoring again
is the way on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.target import Goal, Target, Undone, choose, undone
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError, ReplayMismatchError
from stepwell.journal.log import Log
from stepwell.state.manifest import CheckpointRef, Manifests
from stepwell.store.base import Store

OpenPipeline = Callable[[Target | None], Pipeline]
"""Opens for writing: from the manifest, or from a target."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a restore would do. Nothing was changed to find out."""

    target: Target
    undone: Undone


@dataclass(frozen=True, slots=True)
class Restored:
    pipeline: Pipeline
    target: Target
    checkpoint: CheckpointRef
    """Of the new state."""
    damage: str | None = None
    """Why the present state could not be read; then sinks were let go."""


def preview(goal: Goal, store: Store, journal_store: Store, env: Env) -> Preview:
    found = Manifests(store, env).latest()
    if found is None:
        raise InvalidError(f"there is no pipeline in {store.uri}", hint="check the address")
    log = Log(journal_store, found.manifest.lineage)
    target = choose(goal, store, log, found.manifest, env)
    return Preview(target, undone(target, log, found.manifest))


def restore(goal: Goal, target: Target, open: OpenPipeline) -> Restored:
    """Do it; the pipeline is open afterwards. `target` is what `preview` found for the goal."""
    if goal.repairs:
        pipeline = open(target)
        return Restored(pipeline, target, pipeline.checkpoints()[-1])
    try:
        pipeline = open(None)
    except (CorruptError, ReplayMismatchError) as error:
        pipeline = open(target)
        return Restored(pipeline, target, pipeline.checkpoints()[-1], error.message)
    try:
        return Restored(pipeline, target, pipeline.go_back(target))
    except CorruptError as error:
        # The target is whole; so the present state is damaged, in a file that opening did not read.
        pipeline.close()
        pipeline = open(target)
        return Restored(pipeline, target, pipeline.checkpoints()[-1], error.message)
    except BaseException:
        pipeline.close()
        raise
