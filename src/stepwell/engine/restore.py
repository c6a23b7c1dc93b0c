"""Restore a pipeline that no process runs, even if its current state cannot be read.

    repair             start from the newest intact checkpoint, and replay the journal to its end:
                       nothing is undone
    restore            open as usual, and rewind; sinks receive the difference
    restore, damaged   start from the checkpoint itself. Sinks are dropped, because their contents
                       cannot be compared: empty them, and they receive the whole view

Each ends in one commit. After a crash before it the pipeline is as it was: restore again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.restore_request import (
    RestoreImpact,
    RestorePoint,
    RestoreRequest,
    choose,
    undone,
)
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError, ReplayMismatchError
from stepwell.journal.log import Log
from stepwell.manifest.manifest import CheckpointRef, Manifests
from stepwell.store.base import Store

OpenPipeline = Callable[[RestorePoint | None], Pipeline]
"""Opens for writing: from the manifest, or from a restore point."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a restore would do, found without changing anything."""

    point: RestorePoint
    undone: RestoreImpact


@dataclass(frozen=True, slots=True)
class Restored:
    pipeline: Pipeline
    point: RestorePoint
    checkpoint: CheckpointRef
    """The checkpoint of the restored state."""
    damage: str | None = None
    """Why the current state could not be read; if so, the sinks were dropped."""


def preview(request: RestoreRequest, store: Store, journal_store: Store, env: Env) -> Preview:
    found = Manifests(store, env).latest()
    if found is None:
        raise InvalidError(f"there is no pipeline in {store.uri}", hint="check the address")
    log = Log(journal_store, found.manifest.lineage)
    point = choose(request, store, log, found.manifest, env)
    return Preview(point, undone(point, log, found.manifest))


def restore(request: RestoreRequest, point: RestorePoint, open: OpenPipeline) -> Restored:
    """Restore, and leave the pipeline open. `point` is what `preview` found for the request."""
    if request.repairs:
        pipeline = open(point)
        return Restored(pipeline, point, pipeline.checkpoints()[-1])
    try:
        pipeline = open(None)
    except (CorruptError, ReplayMismatchError) as error:
        pipeline = open(point)
        return Restored(pipeline, point, pipeline.checkpoints()[-1], error.message)
    try:
        return Restored(pipeline, point, pipeline._restore_to(point))
    except CorruptError as error:
        # The restore point is intact, so a file that opening did not read is damaged.
        pipeline.close()
        pipeline = open(point)
        return Restored(pipeline, point, pipeline.checkpoints()[-1], error.message)
    except BaseException:
        pipeline.close()
        raise
