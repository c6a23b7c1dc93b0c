"""Pins: what a pipeline keeps for its clones, and how a clone lets it go.

    parent manifest   pins[] {id, clone, checkpoint}       of a clone: its lineage, its address
    clone manifest    parent {store, lineage, pin, ...}    pin: its lineage, None once it is free

A pin is made and freed by compare-and-swap in the parent's manifest, by whoever makes or destroys
the clone, without disturbing the parent's writer. Its id is the clone's own, so that a clone which
is made in several attempts, or by two processes, never has two.

Id *and* address say whose pin it is. A clone that was copied by hand has the lineage of the
original, so by the id alone destroying or detaching the copy would free the original's pin
(scenario 97). A copy knows the address of its original (`state/places`), frees nothing under it,
and gets a pin under its own when it is adopted.

The parent's is freed first, then the clone forgets it. A crash in between leaves a clone that says
it has a pin and has none; freeing it again finishes that. The other way round would leave a pin
that nobody remembers.

A clone has a manifest before it has a pin, and its lineage is never given again. So a pin whose
clone is not there is of no use to anybody, now or later: the clone was deleted by hand, or it was
destroyed and whoever was making it, and pinned late, was killed before noticing. Such a pin is not
freed by itself: a disk that is not mounted looks as empty as a clone that is gone. `gc` names it,
and `gc --forget` frees it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from stepwell.env import Env, made_at
from stepwell.errors import CheckpointMissing, InvalidError, StepwellError
from stepwell.state.checkpoint import read_checkpoint
from stepwell.state.manifest import CheckpointRef, Manifest, Manifests, Parent, Pin, Run, Status
from stepwell.state.places import Standing, address_of, standing
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


def drop_pin(parent: Manifests, id: str, clone: str) -> None:
    """Take the pin of a clone at an address out of its parent."""
    parent.amend(lambda manifest: _unpinned(manifest, id, clone), "free a pin")


def release(parent: Manifests, manifest: Manifest, store: Store) -> None:
    """Free what a parent keeps for the clone in a store, and nothing that it keeps for another.

    Of the original, that is also the checkpoint taken for a clone that never came to pin it.
    """
    original = standing(manifest, store) is Standing.HERE
    address = address_of(manifest, store)

    def change(found: Manifest) -> Manifest:
        found = _unpinned(found, manifest.lineage, address)
        kept = _without(found, checkpoint_name(manifest.lineage))
        return replace(found, checkpoints=kept) if original else found

    parent.amend(change, "free a pin")


def _unpinned(manifest: Manifest, id: str, clone: str) -> Manifest:
    kept = tuple(pin for pin in manifest.pins if (pin.id, pin.clone) != (id, clone))
    return replace(manifest, pins=kept)


@dataclass(frozen=True, slots=True)
class Clone:
    """A pin, and what became of the clone it is for."""

    pin: Pin
    there: bool | None
    """Whether the clone is where it was made; None: its store could not be asked."""
    said: str
    """What was found instead, or why nothing was."""

    @property
    def since(self) -> datetime:
        """When the clone was begun."""
        return made_at(self.pin.id)


def look_at(pin: Pin, env: Env) -> Clone:
    """Is the clone of a pin still there? Any of its states counts, also one being destroyed."""
    try:
        found = Manifests(open_store(pin.clone, env), env).latest()
    except (StepwellError, OSError) as error:
        return Clone(pin, None, str(getattr(error, "message", error)))
    if found is None:
        return Clone(pin, False, "there is no pipeline")
    if found.manifest.lineage != pin.id:
        return Clone(pin, False, f"there is another pipeline, {found.manifest.lineage}")
    return Clone(pin, True, found.manifest.status.value)


def forgettable(parent: Manifests, names: Collection[str], env: Env) -> tuple[Clone, ...]:
    """The pins of clones that are said to be gone, by address or id. One that is there is refused.

    Changes nothing: free them with `drop_pin`.
    """
    found = parent.latest()
    pins = () if found is None else found.manifest.pins
    chosen: list[Clone] = []
    for name in names:
        named = [pin for pin in pins if name in (pin.id, pin.clone)]
        if not named:
            known = ", ".join(pin.clone for pin in pins)
            raise InvalidError(
                f"{parent.store.uri} has no clone {name}",
                hint=f"it has: {known}" if known else "it has none",
            )
        looked = [look_at(pin, env) for pin in named]
        # Two of one address: a clone that is there, and one that was there before it.
        gone = [clone for clone in looked if not clone.there]
        if not gone:
            raise InvalidError(
                f"the clone in {looked[0].pin.clone} is there ({looked[0].said}), and needs files "
                f"of {parent.store.uri}",
                hint="destroy it, or let it need its parent no more: stepwell compact --detach",
            )
        chosen += gone
    return tuple(chosen)


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
        release(at, found.manifest, clone.store)
    if parent.pin is not None:
        clone.amend(_forgetting, "free a pin")
    return True


def needed_runs(store: Store, manifest: Manifest) -> Iterator[Run]:
    """The runs of a manifest, of its checkpoints, and of those that its own clones need.

    A checkpoint that cannot be read is an error: what it needs is not known (K3).
    """
    yield from manifest.all_runs
    for item in manifest.checkpoints:
        yield from read_checkpoint(store, item.id, item).state.all_runs
    for id in {pin.checkpoint for pin in manifest.pins} - {c.id for c in manifest.checkpoints}:
        yield from read_checkpoint(store, id).state.all_runs


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
