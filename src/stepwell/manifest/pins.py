"""Pins: the files that a pipeline keeps for its clones, and how a clone frees them.

    parent manifest   pins[] {id, clone, checkpoint}       the clone's lineage and address
    clone manifest    parent {store, lineage, pin, ...}    pin: its lineage, None once it is free

A pin is made and freed by compare-and-swap in the parent's manifest, by the process that makes or
destroys the clone, without disturbing the parent's writer. Its id is the clone's own, so a clone
made in several attempts, or by two processes, never has two pins.

Id *and* address identify a pin. A manually copied clone has the lineage of its original, so with
the id alone, destroying or detaching the copy would free the original's pin (scenario 97). A copy
knows the address of its original (`manifest/layout`), frees nothing under that address, and gets a
pin under its own address when it is adopted.

The pin is first freed in the parent; then the clone forgets it. A crash in between leaves a clone
that claims a pin it does not have; freeing it again completes this. The reverse order would leave a
pin with no record of it.

A clone has a manifest before it has a pin, and its lineage is never reused. A pin without its clone
is therefore useless, now and later: either the clone was deleted by hand, or it was destroyed while
another process was making it, and that process pinned late and was killed before noticing. Such a
pin is not freed automatically, because an unmounted disk looks as empty as a deleted clone. `gc`
reports it, and `gc --forget` frees it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from stepwell.env import Env, made_at
from stepwell.errors import CheckpointMissing, InvalidError, StepwellError
from stepwell.manifest.checkpoint import read_checkpoint
from stepwell.manifest.layout import Standing, address_of, standing
from stepwell.manifest.manifest import CheckpointRef, Manifest, Manifests, Parent, Pin, Run, Status
from stepwell.store.base import Store
from stepwell.store.locate import open_store


def checkpoint_name(lineage: str) -> str:
    """The name of a checkpoint taken for a clone, which the parent drops once it is pinned."""
    return f"clone {lineage}"


def make_pin(parent: Manifests, pin: Pin) -> None:
    """Protect a checkpoint's files for a clone; no-op if they are already protected.

    The change applies only to a manifest that still names the checkpoint, because a collector first
    removes it from the manifest and then deletes it. Otherwise `CheckpointMissing` is raised.
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
    """Remove the pin of a clone at an address from its parent."""
    parent.amend(lambda manifest: _unpinned(manifest, id, clone), "free a pin")


def release(parent: Manifests, manifest: Manifest, store: Store) -> None:
    """Free the files that a parent keeps for the clone in a store, but none kept for another.

    For the original this includes the checkpoint of a clone that never pinned it.
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
    """A pin, and the state of its clone."""

    pin: Pin
    there: bool | None
    """Whether the clone is still at its location; None if its store could not be reached."""
    message: str
    """What was found instead, or the reason why the store could not be read."""

    @property
    def since(self) -> datetime:
        """The time at which the clone was begun."""
        return made_at(self.pin.id)


def look_at(pin: Pin, env: Env) -> Clone:
    """Check whether the clone of a pin exists, in any state, even one being destroyed."""
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
    """The pins of clones declared to be gone, by address or id; refuses a clone that exists.

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
        # Two pins may have one address: that of an existing clone, and that of an earlier one.
        gone = [clone for clone in looked if not clone.there]
        if not gone:
            raise InvalidError(
                f"the clone in {looked[0].pin.clone} is there ({looked[0].message}), and needs "
                f"files of {parent.store.uri}",
                hint="destroy it, or detach it from its parent: stepwell compact --detach",
            )
        chosen += gone
    return tuple(chosen)


def free_pin(clone: Manifests, env: Env) -> bool:
    """Free the parent if the clone no longer needs it; returns whether it has no pin now.

    No new need can arise meanwhile: states are made from the manifest and the checkpoints it lists,
    and none of them names a file in another store. Called after a full copy, and by collection once
    compaction has replaced the last of the parent's files.
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

    An unreadable checkpoint is an error, because its files are unknown (K3).
    """
    yield from manifest.all_runs
    for item in manifest.checkpoints:
        yield from read_checkpoint(store, item.id, item).state.all_runs
    for id in {pin.checkpoint for pin in manifest.pins} - {c.id for c in manifest.checkpoints}:
        yield from read_checkpoint(store, id).state.all_runs


def parent_of(manifest: Manifest, env: Env) -> Manifests | None:
    """The pipeline that a clone came from; None if it is no longer at its address."""
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
