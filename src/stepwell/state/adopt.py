"""Adopting a store that is not where its manifest says: which history it is, and whose pins (F13).

    1 mark       a file in the directory, if there is none
    2 pin        of a clone: one for this address in its parent, beside what is there
    3 manifest   the place, and a timeline that begins after the last transaction of the journal
    4 unpin      of one that was moved: the pin of the address that is gone

Opening does 1 to 3 by itself where no other pipeline can be under this address: the files were put
back, or the directory was renamed; `adopt --moved` does the same there. A copy is refused until a
person says what it is (`adopt`): *moved*, and it is the pipeline; or a *copy*, whose sinks are off,
since the original goes on with them, and which keeps nothing for clones, since they read the
original's files. Only a copy loses these: the original would lose them for good.

A crash before 3 leaves a pin that the next attempt finds; after it, a pin that costs space only,
and that `gc` names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stepwell.env import Env
from stepwell.errors import CheckpointMissing, InvalidError, StepwellError
from stepwell.journal.entry import Cursor
from stepwell.journal.log import JournalReader, Log
from stepwell.model import Transaction
from stepwell.state.manifest import Manifest, Manifests, Pin, Place, Status
from stepwell.state.pins import drop_pin, make_pin, needed_runs, parent_of
from stepwell.state.places import Standing, mark_place, standing
from stepwell.state.timeline import Timeline, diverged
from stepwell.store.base import Store
from stepwell.store.locate import open_store


@dataclass(frozen=True, slots=True)
class Adopted:
    manifest: Manifest
    before: str
    """The address it was known by."""
    changed: bool = True
    """False: it is where it was, and nothing was done."""


def adopt(store: Store, env: Env, *, copy: bool, journal_store: Store | None = None) -> Adopted:
    """Say of a store that was copied by hand what it is: a pipeline of its own, or the moved one.

    `journal_store`: None if the journal lies beside the state, and so was copied with it.
    """
    manifests = Manifests(store, env)
    found = manifests.latest()
    if found is None:
        raise InvalidError(f"there is no pipeline in {store.uri}", hint="check the address")
    manifest, before = found.manifest, found.manifest.place.uri
    how = standing(manifest, store)
    if how is Standing.HERE:
        return Adopted(manifest, before, changed=False)
    if manifest.status is not Status.READY:
        raise InvalidError(
            f"{store.uri} is {manifest.status.value}, and cannot be adopted",
            hint=f"finish in {before} what was begun, then copy; this one can be destroyed",
        )
    if copy:
        _refuse_original(store, how)
        _refuse_shared_journal(store, journal_store)
    elif how is not Standing.REPLACED:
        _refuse_if_there(manifest, before, env)
    log = Log(journal_store or store, manifest.lineage)
    since = last_transaction(log, manifest.replay, manifest.transaction)
    place = mark_place(store, manifest)
    pin_here(manifest, place.uri, store, env)
    id = env.new_id()
    move = settling(place, id, since)

    def change(latest: Manifest) -> Manifest:
        if latest.place == place:
            return latest  # Another process was first.
        after = move(latest)
        return _on_its_own(after) if copy else after

    done = manifests.amend(change, "adopt the store")
    gone = not copy and place.uri != before
    parent = parent_of(manifest, env) if gone and manifest.parent is not None else None
    if parent is not None:
        drop_pin(parent, manifest.lineage, before)
    return Adopted(done.manifest, before)


def settling(place: Place, id: str, since: Transaction) -> Callable[[Manifest], Manifest]:
    """A pipeline goes on in a place, as a history of its own."""

    def change(manifest: Manifest) -> Manifest:
        at = Transaction(max(since, manifest.transaction))
        new = Timeline(id, at, resumed=True)
        return replace(manifest, place=place, timelines=diverged(manifest.timelines, new))

    return change


def last_transaction(log: Log, replay: Cursor, transaction: Transaction) -> Transaction:
    """The last transaction that a journal closes; `transaction` is the one at `replay`."""
    reader = JournalReader(log, replay)
    while entries := reader.poll():
        closed = [item.entry.draft.transaction for item in entries if item.entry.draft.closes]
        transaction = Transaction(max([transaction, *closed]))
    return transaction


def pin_here(manifest: Manifest, address: str, store: Store, env: Env) -> None:
    """Pin what a clone needs for the address it has now; nothing, if it needs nothing."""
    parent = manifest.parent
    if parent is None or parent.pin is None:
        return
    at = parent_of(manifest, env)
    if at is None:
        return
    try:
        make_pin(at, Pin(manifest.lineage, address, parent.checkpoint))
    except CheckpointMissing:
        # Freed since the copy or the backup was made: is anything of it needed?
        if any(run.root for run in needed_runs(store, manifest)):
            raise


def _on_its_own(manifest: Manifest) -> Manifest:
    progress = manifest.progress
    sinks = {*manifest.sinks_off, *(at.name for at in progress.sinks)}
    return replace(
        manifest,
        pins=(),
        sinks_off=tuple(sorted(sinks)),
        progress=replace(progress, sinks=(), outbox=()),
    )


def _refuse_original(store: Store, how: Standing) -> None:
    """Only a copy loses its sinks and pins: the original would lose them for good."""
    if how is not Standing.COPIED:
        raise InvalidError(
            f"{store.uri} is no copy, it was {how.value}: it is the pipeline itself, and was not "
            "changed",
            hint="open it, or stepwell adopt --moved: it goes on as it is. For a second pipeline: "
            "stepwell clone",
        )


def _refuse_shared_journal(store: Store, journal_store: Store | None) -> None:
    if journal_store is not None and journal_store.uri != store.uri:
        raise InvalidError(
            f"the journal of {store.uri} lies in {journal_store.uri}, and is the original's",
            hint="make a clone of the original instead: stepwell clone SRC DST --copy",
        )


def _refuse_if_there(manifest: Manifest, before: str, env: Env) -> None:
    """What is said to have been moved must not be found where it was."""
    try:
        found = Manifests(open_store(before, env), env).latest()
    except (StepwellError, OSError):
        return  # It cannot be asked; the word of whoever says so counts.
    if found is not None and found.manifest.lineage == manifest.lineage:
        raise InvalidError(
            f"it was not moved: the pipeline is still in {before}",
            hint="stepwell adopt --copy makes this a pipeline of its own",
        )
