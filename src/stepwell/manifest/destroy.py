"""Destroying a pipeline: everything it stored, and nothing else.

    1 refuse     no pipeline there, another pipeline's journal, or clones that need its files (C7)
    2 mark       the next epoch, status `deleting`: fences its writer and prevents opening
    3 unpin      for a clone: free its own pin in its parent, by lineage and address
    4 delete     the journal, then all other objects, the boundary, and last of all the marker

The marker is the latest manifest, and is deleted last. A crash at any point after 2 therefore
leaves a store that is marked as being destroyed, with fewer objects than before; destroying it
again continues. After the last delete nothing is left to do.

Only names that `journal/paths` knows are deleted; other objects are left alone and counted. A
deploy's lease is also left: the caller may hold it, and a new pipeline may begin next to it. In a
manually copied store, a journal in another store belongs to the original and is left too.

An active writer may notice only after 4, and leave objects of a last flush or append in the empty
location. These are orphans, and no pipeline can begin there until they are removed by hand; so stop
the writer first.
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
from stepwell.manifest import invariants
from stepwell.manifest.layout import Standing, standing
from stepwell.manifest.manifest import Manifest, Manifests, Pin, Status
from stepwell.manifest.pins import parent_of, release
from stepwell.model import Claim, Epoch
from stepwell.store.base import Listed, Store, batched
from stepwell.store.locate import open_store

_TRIES = 100
_SPARED = ("unknown", "lease")
_IN_NO_ORDER = ("run", "outbox", "checkpoint", "entry", "probe")


@dataclass(frozen=True, slots=True)
class Destroyed:
    """The objects that were deleted, or would be."""

    objects: int
    left: tuple[str, ...]
    """Addresses of objects that do not belong to Stepwell."""
    forgotten: tuple[Pin, ...] = ()
    """Clones that needed files of this pipeline but were to be ignored."""


def destroy_pipeline(
    store: Store,
    journal_store: Store | None,
    env: Env,
    *,
    forget: Collection[str] = (),
    dry_run: bool = False,
    deleted: Callable[[int, int], None] = lambda done, total: None,
) -> Destroyed:
    """Delete a pipeline, or continue deleting it.

    `journal_store` is None if the journal is in the same store. `forget` names clones, by pin or
    address, to ignore: they are gone, though their pins are not. With `dry_run` nothing is changed,
    but the same refusals apply. `deleted` receives the number of objects deleted so far and the
    total.

    A crash leaves the pipeline unchanged, or marked as being destroyed: it then cannot be opened,
    and the same call continues destroying it. A lease held on the store is kept.
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
        # A journal that was not copied along belongs to the original.
        journal_store = None
    _check_journal(store, journal_store, manifest)
    _check_clones(store, manifest, forget)
    objects, left = _survey(store, journal_store)
    result = Destroyed(len(objects), left, manifest.pins)
    if dry_run:
        return result
    _mark(manifests, env, forget)
    parent = parent_of(manifest, env)
    if parent is not None:
        release(parent, manifest, store)
    # Survey again, to include objects that the old writer added before it was fenced.
    objects, _ = _survey(store, journal_store)
    done = 0
    for place, items in _at_once(objects):
        place.delete(*(item.path for item in items))
        done += len(items)
        deleted(done, len(objects))
    return result


def _at_once(
    objects: Sequence[tuple[Store, Listed]],
) -> Iterator[tuple[Store, Sequence[Listed]]]:
    """Batches of objects whose order does not matter; the others one by one."""

    def together(entry: tuple[Store, Listed]) -> tuple[int, str]:
        place, item = entry
        kind = paths.parse(item.path).kind
        return id(place), "" if kind in _IN_NO_ORDER else item.path

    for _, group in groupby(objects, together):
        for some in batched(group):
            yield some[0][0], [item for _, item in some]


def _check_journal(store: Store, journal_store: Store | None, manifest: Manifest) -> None:
    """Refuse the journal of another pipeline. A missing journal is ignored."""
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
            hint=(
                "destroy the clones first. For a clone that was deleted by hand: --forget "
                f"{needing[0].clone}"
            ),
        )


def _mark(manifests: Manifests, env: Env, forget: Collection[str]) -> None:
    """Claim the pipeline for good, checking the clones once more in the same commit."""
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
    """All objects to delete, in order, and the objects to leave alone."""
    objects: list[tuple[Store, Listed]] = []
    left: list[str] = []
    if journal_store is not None and journal_store.uri != store.uri:
        # The identity last: without it, the rest would have no owner.
        journal = sorted(journal_store.list(paths.JOURNAL), key=_is_identity)
        objects += [(journal_store, item) for item in journal if _is_ours(item)]
        left += [f"{journal_store.uri}/{item.path}" for item in journal if not _is_ours(item)]
    listing = store.list()
    left += [
        f"{store.uri}/{item.path}" for item in listing if paths.parse(item.path).kind == "unknown"
    ]
    manifests = [item for item in listing if paths.parse(item.path).kind == "manifest"]
    boundary = [item for item in listing if item.path == paths.BOUNDARY]
    marker = [*manifests[:-1], *boundary, *manifests[-1:]]
    rest = [item for item in listing if _is_ours(item) and item not in marker]
    # In reverse order: a deploy log without its beginning or its record would look damaged.
    objects += [(store, item) for item in reversed(rest)]
    objects += [(store, item) for item in marker]
    return objects, tuple(left)


def _is_ours(item: Listed) -> bool:
    return paths.parse(item.path).kind not in _SPARED


def _is_identity(item: Listed) -> bool:
    return item.path == paths.IDENTITY
