"""Destroying a pipeline: everything it stored, and nothing else.

    1 refuse     no pipeline there, another pipeline's journal, or clones that need its files (C7)
    2 mark       the next epoch, status `deleting`: its writer is fenced, nobody opens it any more
    3 unpin      a clone's pin, in its parent: its own, by lineage and address
    4 delete     the journal, then all other objects, the boundary, and last of all the marker

The marker is the latest manifest, and goes last. So a crash leaves, at any point after 2, a store
that says it is being destroyed, with fewer objects than before; destroying it again goes on. After
the last delete there is nothing left to go on with, and nothing to do.

Only names that `journal/paths` knows are deleted; what else lies there is left, and counted. So is
a deploy's lease: whoever destroys may hold it, and a new pipeline may begin beside it. Of a store
that was copied by hand, a journal in another store is the original's, and left, too.

A writer that was at work may notice only after 4, and leave objects of a last flush or append in
the empty place. They are nobody's, and a pipeline will not begin there until they are removed by
hand; so stop the writer first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from stepwell.env import Env
from stepwell.errors import ConflictError, InvalidError, JournalStoreMismatch
from stepwell.journal import paths
from stepwell.journal.identity import read_identity
from stepwell.model import Claim, Epoch
from stepwell.state import invariants
from stepwell.state.manifest import Manifest, Manifests, Pin, Status
from stepwell.state.pins import parent_of, release
from stepwell.state.places import Standing, standing
from stepwell.store.base import Listed, Store, batched
from stepwell.store.locate import open_store

_TRIES = 100
_SPARED = ("unknown", "lease")
_IN_NO_ORDER = ("run", "outbox", "checkpoint", "entry", "probe")


@dataclass(frozen=True, slots=True)
class Destroyed:
    """What is, or would be, deleted."""

    lineage: str
    objects: int
    bytes: int
    left: tuple[str, ...]
    """Objects that are none of ours, by their addresses."""
    forgotten: tuple[Pin, ...] = ()
    """Clones that needed files of it, and were said not to count."""


def destroy_pipeline(
    store: Store,
    journal_store: Store | None,
    env: Env,
    *,
    forget: Collection[str] = (),
    dry_run: bool = False,
    deleted: Callable[[int, int], None] = lambda done, total: None,
) -> Destroyed:
    """Delete a pipeline, or go on deleting it. `journal_store`: None if the journal lies beside.

    `forget` names clones, by pin or address, that do not count: they are gone, though their pins
    are not. With `dry_run` nothing is changed, and what would be refused is. `deleted` hears of how
    many objects are gone, and how many there are.

    A crash leaves the pipeline as it was, or one that says it is being destroyed, cannot be opened,
    and is destroyed by the same call again. Whoever holds a lease on the store keeps it.
    """
    manifests = Manifests(store, env)
    found = manifests.latest()
    if found is None:
        raise InvalidError(
            f"{store.uri} holds no pipeline: nothing was deleted",
            hint="check the address: it is the directory or prefix that holds manifest/",
        )
    manifest = found.manifest
    if journal_store is None and manifest.journal.store is not None:
        journal_store = open_store(manifest.journal.store, env)
    if standing(manifest, store) is Standing.COPIED:
        # A journal that was not copied along is the original's.
        journal_store = None
    _check_journal(store, journal_store, manifest)
    _check_clones(store, manifest, forget)
    doomed, left = _survey(store, journal_store)
    result = Destroyed(
        manifest.lineage,
        len(doomed),
        sum(item.size for _, item in doomed),
        left,
        manifest.pins,
    )
    if dry_run:
        return result
    _mark(manifests, env, forget)
    parent = parent_of(manifest, env)
    if parent is not None:
        release(parent, manifest, store)
    # Surveyed again: what the old writer added before it was fenced belongs to it as well.
    doomed, _ = _survey(store, journal_store)
    done = 0
    for place, items in _at_once(doomed):
        place.delete(*(item.path for item in items))
        done += len(items)
        deleted(done, len(doomed))
    return result


def _at_once(
    doomed: Sequence[tuple[Store, Listed]],
) -> Iterator[tuple[Store, Sequence[Listed]]]:
    """Many at a time where their order does not matter; the others one by one."""

    def together(entry: tuple[Store, Listed]) -> tuple[int, str]:
        place, item = entry
        kind = paths.parse(item.path).kind
        return id(place), "" if kind in _IN_NO_ORDER else item.path

    for _, group in groupby(doomed, together):
        for some in batched(group):
            yield some[0][0], [item for _, item in some]


def _check_journal(store: Store, journal_store: Store | None, manifest: Manifest) -> None:
    """The journal of another pipeline is not touched. One that is gone already is no obstacle."""
    place = journal_store or store
    identity = read_identity(place)
    if identity is not None and identity.lineage != manifest.lineage:
        raise JournalStoreMismatch(
            f"{place.uri} holds the journal of another pipeline: expected lineage "
            f"{manifest.lineage}, found {identity.lineage}; nothing was deleted",
            hint="give the pipeline's own journal store",
        )


def _check_clones(store: Store, manifest: Manifest, forget: Collection[str]) -> None:
    needing = [pin for pin in manifest.pins if not {pin.id, pin.clone} & set(forget)]
    if needing:
        names = ", ".join(pin.clone for pin in needing)
        raise InvalidError(
            f"{store.uri} has clones that need its files: {names}; nothing was deleted",
            hint="destroy the clones first. One that is gone without having been destroyed: "
            f"--forget {needing[0].clone}",
        )


def _mark(manifests: Manifests, env: Env, forget: Collection[str]) -> None:
    """Claim the pipeline for good. The clones are looked at once more, in the same commit."""
    for _ in range(_TRIES):
        found = manifests.latest()
        if found is None or found.manifest.status is Status.DELETING:
            return
        before = found.manifest
        _check_clones(manifests.store, before, forget)
        claim = Claim.by(Epoch(found.epoch + 1), env.process, env.now(), None)
        invariants.check_claim(before, replace(before, claim=claim))
        with suppress(ConflictError):
            manifests.create(found.id + 1, replace(before, claim=claim, status=Status.DELETING))
            return
    raise ConflictError(f"destroy: {_TRIES} attempts in a row were lost to other commits")


def _survey(
    store: Store, journal_store: Store | None
) -> tuple[list[tuple[Store, Listed]], tuple[str, ...]]:
    """Everything to delete, in order, and what is left alone."""
    doomed: list[tuple[Store, Listed]] = []
    left: list[str] = []
    if journal_store is not None and journal_store.uri != store.uri:
        # The identity last: without it, the rest would be nobody's.
        journal = sorted(journal_store.list(paths.JOURNAL), key=_is_identity)
        doomed += [(journal_store, item) for item in journal if _is_ours(item)]
        left += [f"{journal_store.uri}/{item.path}" for item in journal if not _is_ours(item)]
    listing = store.list()
    left += [
        f"{store.uri}/{item.path}" for item in listing if paths.parse(item.path).kind == "unknown"
    ]
    manifests = [item for item in listing if paths.parse(item.path).kind == "manifest"]
    boundary = [item for item in listing if item.path == paths.BOUNDARY]
    marker = [*manifests[:-1], *boundary, *manifests[-1:]]
    rest = [item for item in listing if _is_ours(item) and item not in marker]
    # From the end: a log of a deploy without its beginning, or without its record, would be damage.
    doomed += [(store, item) for item in reversed(rest)]
    doomed += [(store, item) for item in marker]
    return doomed, tuple(left)


def _is_ours(item: Listed) -> bool:
    return paths.parse(item.path).kind not in _SPARED


def _is_identity(item: Listed) -> bool:
    return item.path == paths.IDENTITY
