"""Clones: a second pipeline that starts from the state of another, without copying its files.

    1 begin      the clone's manifest, version 1, `incomplete`: its own lineage, its parent, and
                 the whole state with the `root` of every run, the store that holds it
    2 pin        in the parent, by compare-and-swap: keeps the files for the life of the clone
    3 journal    the parent's entries after that state, up to `parent.until`, are rewritten
    4 complete   the clone's manifest, `ready`

A clone of a named checkpoint is exactly that checkpoint. Otherwise it is the parent as of now: the
flushed state becomes a checkpoint, and the journal after it is copied up to its end at the time the
clone began. A transaction open at that point is resolved when the clone is opened (J4). The
parent's writer is not disturbed, and its later work does not reach the clone.

Version 1 holds all decisions of an attempt, so every later attempt, and every concurrent process,
comes to the same result (C6). A crash before 1 leaves at most a checkpoint in the parent, which
expires. A later crash leaves a clone that cannot be opened; running the same command again
continues with it.

Runs in another kind of store (a directory, a bucket) cannot be read through one session. They are
copied between 3 and 4, and the pin is freed afterwards; `copy` requests the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from stepwell.env import Env
from stepwell.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    JournalStoreMismatch,
    StepwellError,
)
from stepwell.journal import paths
from stepwell.journal.copy import Tail, copy_tail, last_entry
from stepwell.journal.identity import Identity, read_identity, write_identity
from stepwell.journal.log import Log
from stepwell.manifest.checkpoint import (
    Checkpoint,
    checkpoint_as_it_lies,
    dropping,
    find_checkpoint,
    read_checkpoint,
)
from stepwell.manifest.high_water_mark import mark_fresh
from stepwell.manifest.layout import check_standing, mark_place, obstacles, own_journal
from stepwell.manifest.manifest import (
    JournalRef,
    Manifest,
    Manifests,
    Parent,
    Pin,
    Place,
    Run,
    Status,
    Stored,
    with_runs,
)
from stepwell.manifest.pins import checkpoint_name, free_pin, make_pin, release
from stepwell.manifest.run_object import read_run
from stepwell.manifest.timeline import Timeline
from stepwell.model import Claim, Position
from stepwell.store.base import Store
from stepwell.store.locate import open_store
from stepwell.store.probe import probe
from stepwell.store.race import race_new

_KEEP_S = 24 * 3600.0
"""How long a checkpoint taken for a clone stays if the clone is not resumed."""
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Cloned:
    """The result of cloning, and the work it took."""

    manifest: Manifest
    entries: int = 0
    """Number of journal entries copied."""
    files: int = 0
    """Number of files copied; the others stay where they are."""
    bytes: int = 0
    made: bool = True
    """False if the clone already existed and nothing was done."""


def clone(
    source: Store,
    destination: Store,
    env: Env,
    *,
    source_journal: Store | None = None,
    journal_store: Store | None = None,
    checkpoint: str | None = None,
    copy: bool = False,
    copied: Callable[[int, int], None] = lambda done, total: None,
) -> Cloned:
    """Create a clone or resume one; a complete clone is left as it is.

    `journal_store` is the clone's own, by default the same as its state; the parent's is not
    inherited (C3). A different parent or checkpoint than the one the clone began with is refused,
    and nothing is changed. `copied` receives the number of bytes copied so far and the total.
    """
    _refuse_overlap(source, destination)
    parent, clone = Manifests(source, env), Manifests(destination, env)
    begun = clone.latest()
    ours = None
    if begun is None:
        begun, ours = _begin(
            parent, clone, env, source_journal or source, journal_store, destination, checkpoint
        )
    origin = ours or _same(parent, begun, clone, checkpoint, journal_store)
    manifest = begun.manifest
    if manifest.status is Status.READY:
        return Cloned(_free_copied(clone, begun, env), made=False)
    check_standing(manifest, destination)
    make_pin(parent, Pin(manifest.lineage, manifest.place.uri, origin.checkpoint))
    _still_there(parent, clone, manifest)
    journal_store = _journal_of(manifest, destination, journal_store, env)
    manifest, entries = _copy_journal(manifest, source_journal or source, journal_store, env)
    files = bytes = 0
    if copy or _kind(source) != _kind(destination):
        manifest, files, bytes = _copy_files(manifest, destination, env, copied)
    done = clone.amend(_completing(manifest), "complete the clone")
    _not_in_the_void(clone, done)
    return Cloned(_free_copied(clone, done, env), entries, files, bytes)


# 1 begin


def _begin(
    parent: Manifests,
    clone: Manifests,
    env: Env,
    source_journal: Store,
    journal_store: Store | None,
    destination: Store,
    checkpoint: str | None,
) -> tuple[Stored, Parent | None]:
    """Create version 1; returns it, and its parent if this call created it."""
    found = _ready(parent).manifest
    named = None if checkpoint is None else find_checkpoint(found, checkpoint, parent.store.uri)
    occupied = _occupied(destination, journal_store)
    if occupied is not None:
        begun = clone.latest()
        if begun is not None:  # Another process has just begun it.
            return begun, None
        raise occupied
    for each in (destination,) if journal_store is None else (destination, journal_store):
        probe(each, env)
        race_new(each, env)
    lineage = env.new_id()
    if named is None:
        chosen, until, latest = _as_of_now(parent, found, source_journal, env, lineage)
    else:
        chosen = read_checkpoint(parent.store, named.id, named)
        until, latest = chosen.state.replay.position, found
    place = mark_place(destination)
    first = _first(chosen, until, latest, parent.store.uri, lineage, place, env)
    if journal_store is not None and journal_store.uri != destination.uri:
        first = replace(first, journal=JournalRef(store=journal_store.uri))
    try:
        return clone.create(1, first), first.parent
    except ConflictError:
        # Another process has just begun it. Its version is as good as ours, or is refused.
        _drop_taken(parent, lineage)
        begun = clone.latest()
        if begun is None:
            raise
        return begun, None


def _first(
    chosen: Checkpoint,
    until: Position,
    latest: Manifest,
    uri: str,
    lineage: str,
    place: Place,
    env: Env,
) -> Manifest:
    """Version 1: the initial state of the clone, and its origin."""
    state, before = chosen.state, latest.parent.sinks if latest.parent else ()
    sinks = {at.name for at in (*state.progress.sinks, *latest.progress.sinks)}
    sinks |= {*before, *latest.sinks_off}
    # A run that already lies in another store stays there: a clone of a clone needs no extra hop.
    state = with_runs(state, lambda run: replace(run, root=run.root or uri))
    return replace(
        state,
        lineage=lineage,
        # The lineage already distinguishes it from its parent, so one new timeline is enough.
        timelines=(Timeline(env.new_id()),),
        claim=Claim.by(latest.claim.epoch, env.process, env.now(), None),
        place=place,
        status=Status.INCOMPLETE,
        journal=JournalRef(),
        progress=replace(state.progress, sinks=(), outbox=()),
        checkpoints=(),
        pins=(),
        sinks_off=(),
        parent=Parent(
            store=uri,
            lineage=latest.lineage,
            checkpoint=chosen.id,
            pin=lineage,
            sinks=tuple(sorted(sinks)),
            until=until,
        ),
    )


def _as_of_now(
    parent: Manifests, found: Manifest, journal_store: Store, env: Env, lineage: str
) -> tuple[Checkpoint, Position, Manifest]:
    """The flushed state as a checkpoint, the end of the journal after it, and the manifest.

    The manifest is read last. If nothing was flushed in the meantime, then every entry up to that
    end belongs to the state's own program and follows it (a deploy and a restore both flush), no
    entry is trimmed, and the author of each had claimed an epoch that is known here.
    """
    _check_journal(found, journal_store)
    log = Log(journal_store, found.lineage)
    for _ in range(_TRIES):
        ref = checkpoint_as_it_lies(parent, env, name=checkpoint_name(lineage), keep_s=_KEEP_S)
        chosen = read_checkpoint(parent.store, ref.id, ref)
        after = chosen.state.replay.position
        until = last_entry(log, after)
        latest = _ready(parent).manifest
        if (latest.replay, latest.transaction) == (chosen.state.replay, chosen.state.transaction):
            return chosen, until, latest
        _drop_taken(parent, lineage)
    raise ConflictError(f"clone: overtaken by {_TRIES} flushes in a row")


def _check_journal(manifest: Manifest, journal_store: Store) -> None:
    try:
        own_journal(journal_store, manifest)
    except JournalStoreMismatch as error:
        raise JournalStoreMismatch(
            error.message,
            hint=(
                "clone it through its project, which knows its journal store, or clone a "
                "checkpoint, which needs none: --checkpoint ID"
            ),
        ) from error


def _drop_taken(parent: Manifests, lineage: str) -> None:
    """Drop a checkpoint that is not needed after all. If that fails, it expires."""
    with suppress(StepwellError):
        parent.amend(dropping(checkpoint_name(lineage), parent.store.uri), "drop a checkpoint")


# Comparing with an existing clone


def _same(
    parent: Manifests,
    begun: Stored,
    clone: Manifests,
    checkpoint: str | None,
    journal_store: Store | None,
) -> Parent:
    """The origin of the clone at the destination; refused unless it matches the request."""
    origin, uri = begun.manifest.parent, clone.store.uri
    if begun.manifest.status is Status.DELETING:
        raise InvalidError(f"{uri} is being destroyed", hint="destroy it again to finish")
    if origin is None:
        raise InvalidError(f"{uri} holds a pipeline already", hint=_EMPTY)
    if begun.manifest.status is Status.INCOMPLETE or parent.latest_id() is not None:
        found = _ready(parent).manifest
        if (origin.lineage, origin.store) != (found.lineage, parent.store.uri):
            raise InvalidError(
                f"{uri} holds a clone of {origin.store} (lineage {origin.lineage}), not of "
                f"{parent.store.uri} (lineage {found.lineage})",
                hint=_EMPTY,
            )
    if checkpoint is not None and not origin.checkpoint.startswith(checkpoint.upper()):
        wanted = find_checkpoint(_ready(parent).manifest, checkpoint, parent.store.uri)
        if wanted.id != origin.checkpoint:
            raise InvalidError(
                f"{uri} holds a clone of checkpoint {origin.checkpoint}, not of {wanted.id}",
                hint=_EMPTY,
            )
    if begun.manifest.status is Status.INCOMPLETE and journal_store is not None:
        place = begun.manifest.journal.store or uri
        if journal_store.uri != place:
            raise InvalidError(
                f"the clone in {uri} was started with its journal in {place}, not in "
                f"{journal_store.uri}",
                hint="continue with that one, or destroy the unfinished clone",
            )
    return origin


_EMPTY = "nothing was changed: choose an empty location for the clone, or destroy what is there"


def _ready(parent: Manifests) -> Stored:
    found = parent.latest()
    if found is None:
        raise InvalidError(
            f"{parent.store.uri} holds no pipeline",
            hint="check the address of the pipeline to clone",
        )
    if found.manifest.status is not Status.READY:
        raise InvalidError(
            f"{parent.store.uri} cannot be cloned: it is {found.manifest.status.value}"
        )
    return found


def _refuse_overlap(source: Store, destination: Store) -> None:
    one, other = f"{source.uri}/", f"{destination.uri}/"
    if one.startswith(other) or other.startswith(one):
        raise InvalidError(
            f"a clone can be neither inside its parent nor around it: {source.uri} and "
            f"{destination.uri}",
            hint="choose a location next to it",
        )


def _occupied(destination: Store, journal_store: Store | None) -> InvalidError | None:
    """The reason why a clone cannot begin there; the location must be empty (K4)."""
    for place in [destination] if journal_store is None else [destination, journal_store]:
        for path in obstacles(place):
            return InvalidError(
                f"{place.uri} is not empty: it holds {path}",
                hint="choose an empty location for the clone",
            )
    return None


def _still_there(parent: Manifests, clone: Manifests, made: Manifest) -> None:
    """Check that the clone was not destroyed before it was pinned.

    A destroy frees the pin, perhaps before the pin existed. This check runs after the pin was made,
    so a destroy that begins later finds the pin.
    """
    found = clone.latest()
    if (
        found is None
        or found.manifest.lineage != made.lineage
        or found.manifest.status is Status.DELETING
    ):
        release(parent, made, clone.store)
        raise _destroyed(clone)


def _not_in_the_void(clone: Manifests, done: Stored) -> None:
    """Delete a version created just after all earlier ones were destroyed: it is not a clone."""
    if clone.read(1) is None and not clone.boundary.read("manifest"):
        clone.store.delete(paths.manifest(done.id))
        raise _destroyed(clone)


def _destroyed(clone: Manifests) -> ConflictError:
    where = clone.store.uri
    return ConflictError(f"the clone in {where} was destroyed in the meantime", hint="clone again")


# 3 journal, files, 4 complete


def _journal_of(manifest: Manifest, destination: Store, given: Store | None, env: Env) -> Store:
    """The store for the clone's journal."""
    recorded = manifest.journal.store
    if given is not None:
        return given
    return destination if recorded is None else open_store(recorded, env)


def _copy_journal(
    manifest: Manifest, source: Store, journal_store: Store, env: Env
) -> tuple[Manifest, int]:
    """Copy the journal's tail and record its store; without a tail, an open does so (C3)."""
    origin = manifest.parent
    if origin is None or origin.until <= manifest.replay.position:
        return manifest, 0
    if read_identity(journal_store) is None:
        mark_fresh(Log(journal_store), 1, manifest.replay.position)
        write_identity(journal_store, Identity(manifest.lineage, env.new_id()))
    identity = read_identity(journal_store)
    if identity is None or identity.lineage != manifest.lineage:
        raise JournalStoreMismatch(
            f"{journal_store.uri} holds the journal of another pipeline",
            hint="give the clone an empty journal store",
        )
    replay, entries = copy_tail(
        Log(source, origin.lineage),
        Log(journal_store, manifest.lineage),
        manifest.lineage,
        Tail(manifest.replay, manifest.transaction, origin.until),
    )
    # If entries without data were missing, the copy begins after them.
    Log(journal_store).boundary.advance("journal", int(replay.position))
    journal = replace(manifest.journal, id=identity.id)
    return replace(manifest, journal=journal, replay=replay), entries


def _copy_files(
    manifest: Manifest, destination: Store, env: Env, copied: Callable[[int, int], None]
) -> tuple[Manifest, int, int]:
    """Copy and check the runs; files copied by an earlier attempt are left alone."""
    there = {item.path: item.size for item in destination.list("runs/")}
    missing = [run for run in manifest.all_runs if there.get(run.path) != run.size]
    total, done = sum(run.size for run in missing), 0
    for run in missing:
        _copy_file(run, destination, env)
        done += run.size
        copied(done, total)
    own = with_runs(manifest, lambda run: replace(run, root=None))
    return own, len(missing), total


def _copy_file(run: Run, destination: Store, env: Env) -> None:
    body = read_run(destination, run, env)
    try:
        destination.put_new(run.path, body)
    except ConflictError:
        # Another process is making the same clone, or our own answer was lost.
        there = destination.get(run.path)
        if there is None or there.data != body:
            raise CorruptError(
                f"{destination.uri}/{run.path}",
                f"is not the copy of the run in {run.root}",
                hint="destroy the unfinished clone, and clone again",
            ) from None


def _completing(made: Manifest) -> Callable[[Manifest], Manifest]:
    def change(manifest: Manifest) -> Manifest:
        if manifest.lineage != made.lineage or manifest.status is Status.DELETING:
            raise ConflictError("the clone was destroyed in the meantime")
        if manifest.status is Status.READY:
            return manifest  # Another process was first, and the clone may have been opened since.
        return replace(made, status=Status.READY, claim=manifest.claim)

    return change


def _free_copied(clone: Manifests, done: Stored, env: Env) -> Manifest:
    """Free the pin of a full copy. After a crash before that, the next attempt frees it."""
    if any(run.root for run in done.manifest.all_runs):
        return done.manifest
    found = clone.latest() if free_pin(clone, env) else None
    return (found or done).manifest


def _kind(store: Store) -> str:
    return store.uri.partition("://")[0]
