"""The places of a pipeline: free to begin in? where it was last? is a journal store its own?

    manifest.place {uri, mark}     where the pipeline was last opened for writing

A store is compared with the place that its manifest names (`standing`). One that was copied by hand
is told from the original before anything is written to it (F13).
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum

from stepwell.errors import ConflictError, InvalidError
from stepwell.journal import paths
from stepwell.journal.identity import Identity, check_identity, read_identity
from stepwell.state.manifest import Manifest, Place
from stepwell.store.base import Store
from stepwell.store.mark import mark_of, same_directory

_LOOK = 1000
_BEFORE = ("probe", "lease", "deploy_log", "spill", "place")
"""What may lie where a pipeline is about to begin."""
_NOTE = b"This file tells its directory from a copy. Do not change or remove it.\n"


class Standing(Enum):
    """How a store relates to the place that its manifest names."""

    HERE = "here"
    """It is that place, perhaps under another name: a link, another mount."""
    REPLACED = "replaced"
    """That place, too, but other files: put back from a backup, or their owner was changed."""
    MOVED = "moved"
    """The same files, and the address they had is empty."""
    COPIED = "copied"
    """Neither: a copy, or moved in a way that cannot be told from one."""


def standing(manifest: Manifest, store: Store) -> Standing:
    recorded, mark = manifest.place, mark_of(store.uri, paths.PLACE)
    # Before the marks: of the original under another name, whose owner was changed, they differ.
    if recorded.uri == store.uri or same_directory(recorded.uri, store.uri):
        return Standing.HERE if recorded.mark == mark else Standing.REPLACED
    if mark is None or recorded.mark != mark:
        return Standing.COPIED
    # A snapshot of a file system has the same marks in both places.
    left = mark_of(recorded.uri, paths.PLACE) is None
    return Standing.MOVED if left else Standing.COPIED


def check_standing(manifest: Manifest, store: Store) -> Standing:
    """Refuse a copy: it would share the original's sinks and pins without anybody knowing."""
    found = standing(manifest, store)
    if found is Standing.COPIED:
        raise InvalidError(
            f"{store.uri} is a copy of the pipeline in {manifest.place.uri}, or was moved from "
            "there; it was not changed",
            hint=f"if nothing is left in {manifest.place.uri}: stepwell adopt --moved. If both "
            "are to live on: stepwell adopt --copy",
        )
    return found


def address_of(manifest: Manifest, store: Store) -> str:
    """The address under which other pipelines may know this one: that of a copy is its own."""
    here = standing(manifest, store) in (Standing.HERE, Standing.REPLACED)
    return manifest.place.uri if here else store.uri


def mark_place(store: Store, manifest: Manifest | None = None) -> Place:
    """Where a store is; in a directory, by a file that is put there once and never changed.

    What is in the place that `manifest` names keeps that address, whatever it was opened under:
    pins are known by it. A crash leaves the file, which belongs to the directory and to no
    pipeline in it.
    """
    if store.uri.startswith("file://") and mark_of(store.uri, paths.PLACE) is None:
        with suppress(ConflictError):
            store.put_new(paths.PLACE, _NOTE)
    uri = store.uri if manifest is None else address_of(manifest, store)
    return Place(uri, mark_of(store.uri, paths.PLACE))


def in_the_way(store: Store) -> list[str]:
    """What lies there and keeps a pipeline from beginning: only an empty place is new (K4)."""
    return [
        listed.path
        for listed in store.list(limit=_LOOK)
        if paths.parse(listed.path).kind not in _BEFORE
    ]


def own_journal(store: Store, manifest: Manifest) -> Identity | None:
    """Whose journal lies there; refused unless it is this pipeline's, or it needs none."""
    identity = read_identity(store)
    check_identity(
        store,
        identity,
        lineage=manifest.lineage,
        id=manifest.journal.id,
        closed=manifest.journal.closed,
    )
    return identity
