"""Adopting a store that is not at the location its manifest names: history and pins (F13).

    1 mark       write a mark file into the directory, if there is none
    2 pin        for a clone: add a pin for this address in its parent, next to existing ones
    3 manifest   record the location, and a timeline after the journal's last transaction
    4 unpin      if it was moved: free the pin of the old address

Opening does 1 to 3 by itself if no other pipeline can be under this address, because the files were
restored or the directory was renamed; `adopt --moved` does the same there. A copy is refused until
a person says what it is (`adopt`). Either it was *moved*, and is the pipeline itself. Or it is a
*copy*: its sinks are off, because the original continues to write to them, and it keeps nothing for
clones, because they read the original's files. Only a copy may lose these: the original would lose
them for good.

A crash before 3 leaves a pin that the next attempt finds. A crash after 3 leaves a pin that only
costs space, and that `gc` reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stepwell.env import Env
from stepwell.errors import CheckpointMissing, InvalidError, StepwellError
from stepwell.journal.entry import Cursor
from stepwell.journal.log import JournalReader, Log
from stepwell.manifest.layout import Standing, mark_place, standing
from stepwell.manifest.manifest import Manifest, Manifests, Pin, Place, Status
from stepwell.manifest.pins import drop_pin, make_pin, needed_runs, parent_of
from stepwell.manifest.timeline import Timeline, diverged
from stepwell.model import Transaction
from stepwell.store.base import Store
from stepwell.store.locate import open_store


@dataclass(frozen=True, slots=True)
class Adopted:
    manifest: Manifest
    before: str
    """The address recorded before."""
    changed: bool = True
    """False if the store is at its recorded location and nothing was done."""


def adopt(store: Store, env: Env, *, copy: bool, journal_store: Store | None = None) -> Adopted:
    """Declare a manually copied store to be a pipeline of its own, or the moved original.

    `journal_store` is None if the journal is in the same store and so was copied with it.
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
            hint=f"complete the operation in {before} first, then copy; this one can be destroyed",
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
    """A change that lets a pipeline continue at a location, on a timeline of its own."""

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
    """Pin the files that a clone needs under its present address; no-op if it needs none."""
    parent = manifest.parent
    if parent is None or parent.pin is None:
        return
    at = parent_of(manifest, env)
    if at is None:
        return
    try:
        make_pin(at, Pin(manifest.lineage, address, parent.checkpoint))
    except CheckpointMissing:
        # The pin was freed after the copy or backup was made; fail only if its files are needed.
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
    """Refuse to strip an original of its sinks and pins: it would lose them for good."""
    if how is not Standing.COPIED:
        raise InvalidError(
            f"{store.uri} is not a copy, it was {how.value}: it is the pipeline itself, and was "
            f"not changed",
            hint=(
                "open it, or stepwell adopt --moved: it continues as it is. For a second pipeline: "
                "stepwell clone"
            ),
        )


def _refuse_shared_journal(store: Store, journal_store: Store | None) -> None:
    if journal_store is not None and journal_store.uri != store.uri:
        raise InvalidError(
            f"the journal of {store.uri} is in {journal_store.uri}, and belongs to the original",
            hint="make a clone of the original instead: stepwell clone SRC DST --copy",
        )


def _refuse_if_there(manifest: Manifest, before: str, env: Env) -> None:
    """Refuse a move if the pipeline is still at its old address."""
    try:
        found = Manifests(open_store(before, env), env).latest()
    except (StepwellError, OSError):
        return  # The old address cannot be reached; trust the user's word.
    if found is not None and found.manifest.lineage == manifest.lineage:
        raise InvalidError(
            f"it was not moved: the pipeline is still in {before}",
            hint="stepwell adopt --copy makes this a separate pipeline",
        )
