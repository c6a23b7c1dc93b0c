"""Pins: what a pipeline keeps for its clones, and how a clone lets it go.

    parent manifest   pins[] {id, clone, checkpoint}       id: the clone's lineage
    clone manifest    parent {store, lineage, pin, ...}    pin: the same, None once it is free

A pin is made and freed by compare-and-swap in the parent's manifest, by whoever makes or destroys
the clone, without disturbing the parent's writer. Its id is the clone's own, so that a clone which
is made in several attempts, or by two processes, never has two.

The parent's is freed first, then the clone forgets it. A crash in between leaves a clone that says
it has a pin and has none; freeing it again finishes that. The other way round would leave a pin
that nobody remembers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stepwell.env import Env
from stepwell.errors import CheckpointMissing, InvalidError
from stepwell.state.checkpoint import read_checkpoint
from stepwell.state.manifest import CheckpointRef, Manifest, Manifests, Parent, Pin, Run, Status
from stepwell.store.base import Store
from stepwell.store.locate import open_store


def checkpoint_name(lineage: str) -> str:
    """What a checkpoint is called that was taken for a clone, and is the parent's no longer than
    until it is pinned.
    """
    return f"clone {lineage}"


def make_pin(parent: Manifests, pin: Pin) -> None:
    """Protect a checkpoint's files for a clone; nothing happens if they are already.

    The change is made to a manifest that still names the checkpoint (a collector first takes it out
    of the manifest, then deletes): `CheckpointMissing` if none does.
    """

    def change(manifest: Manifest) -> Manifest:
        if pin in manifest.pins:
            return manifest
        if manifest.status is not Status.READY:
            raise InvalidError(
                f"{parent.store.uri} is being destroyed; it cannot be cloned",
                hint="nothing but the unfinished clone was written: destroy that, too",
            )
        listed = {item.id for item in manifest.checkpoints}
        if pin.checkpoint not in listed | {other.checkpoint for other in manifest.pins}:
            raise CheckpointMissing(
                f"{parent.store.uri} has no checkpoint {pin.checkpoint} any more",
                hint=f"destroy the unfinished clone in {pin.clone}, and clone again",
            )
        kept = _without(manifest, checkpoint_name(pin.id))
        return replace(manifest, checkpoints=kept, pins=(*manifest.pins, pin))

    parent.amend(change, "pin a checkpoint")


def drop_pin(parent: Manifests, id: str) -> None:
    """Take a pin out of a parent, and the checkpoint of a clone that never came to pin it."""

    def change(manifest: Manifest) -> Manifest:
        return replace(
            manifest,
            checkpoints=_without(manifest, checkpoint_name(id)),
            pins=tuple(pin for pin in manifest.pins if pin.id != id),
        )

    parent.amend(change, "free a pin")


def free_pin(clone: Manifests, env: Env) -> bool:
    """Let the parent go if the clone needs nothing of it any more; whether it has no pin now.

    Nothing new can come to need it meanwhile: states are made from the manifest and from the
    checkpoints it lists, and none of them names a file that lies elsewhere. For whoever makes a
    copy, and for collection, once compaction has replaced the last of the parent's files.
    """
    found = clone.latest()
    if found is None or found.manifest.status is not Status.READY:
        return False
    parent = found.manifest.parent
    if parent is None:
        return True
    if parent.pin is not None and any(run.root for run in needed_runs(clone.store, found.manifest)):
        return False
    at = parent_of(found.manifest, env)
    if at is not None:
        drop_pin(at, found.manifest.lineage)
    if parent.pin is not None:
        clone.amend(_forgetting, "free a pin")
    return True


def needed_runs(store: Store, manifest: Manifest) -> Iterator[Run]:
    """The runs of a manifest, of its checkpoints, and of those that its own clones need.

    A checkpoint that cannot be read is an error: what it needs is not known (K3).
    """
    yield from manifest.runs
    for item in manifest.checkpoints:
        yield from read_checkpoint(store, item.id, item).state.runs
    for id in {pin.checkpoint for pin in manifest.pins} - {c.id for c in manifest.checkpoints}:
        yield from read_checkpoint(store, id).state.runs


def parent_of(manifest: Manifest, env: Env) -> Manifests | None:
    """The pipeline a clone came from; None if another one, or none, lies there now."""
    if manifest.parent is None:
        return None
    manifests = Manifests(open_store(manifest.parent.store, env), env)
    found = manifests.latest()
    if found is None or found.manifest.lineage != manifest.parent.lineage:
        return None
    return manifests


def _without(manifest: Manifest, name: str) -> tuple[CheckpointRef, ...]:
    return tuple(item for item in manifest.checkpoints if item.name != name)


def _forgetting(manifest: Manifest) -> Manifest:
    parent: Parent | None = manifest.parent
    return manifest if parent is None else replace(manifest, parent=replace(parent, pin=None))
