"""The location of a pipeline: is it empty, is it the recorded one, is the journal store its own?

    manifest.place {uri, mark}     where the pipeline was last opened for writing

`standing` compares a store with the location that its manifest names. A manual copy is
distinguished from the original before anything is written to it (F13).
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum

from stepwell.errors import ConflictError, InvalidError
from stepwell.journal import paths
from stepwell.journal.identity import Identity, check_identity, read_identity
from stepwell.manifest.manifest import Manifest, Place
from stepwell.store.base import Store
from stepwell.store.mark import mark_of, same_directory

_LOOK = 1000
_BEFORE = ("probe", "lease", "deploy_log", "spill", "place", "last_error")
"""Kinds of objects that may exist where a pipeline is about to begin."""
_NOTE = b"This file tells its directory from a copy. Do not change or remove it.\n"


class Standing(Enum):
    """The relation of a store to the location that its manifest names."""

    HERE = "here"
    """It is that location, perhaps under another name, such as a link or another mount."""
    REPLACED = "replaced"
    """It is that location with other files: restored from a backup, or their owner was changed."""
    MOVED = "moved"
    """The same files, and their recorded address is empty."""
    COPIED = "copied"
    """Neither: a copy, or moved in a way that cannot be distinguished from a copy."""


def standing(manifest: Manifest, store: Store) -> Standing:
    recorded, mark = manifest.place, mark_of(store.uri, paths.PLACE)
    # Compare before the marks, which differ if the original was renamed and its owner changed.
    if recorded.uri == store.uri or same_directory(recorded.uri, store.uri):
        return Standing.HERE if recorded.mark == mark else Standing.REPLACED
    if mark is None or recorded.mark != mark:
        return Standing.COPIED
    # A snapshot of a file system has the same marks in both locations.
    left = mark_of(recorded.uri, paths.PLACE) is None
    return Standing.MOVED if left else Standing.COPIED


def check_standing(manifest: Manifest, store: Store) -> Standing:
    """Refuse a copy: it would silently share the original's sinks and pins."""
    found = standing(manifest, store)
    if found is Standing.COPIED:
        raise InvalidError(
            f"{store.uri} is a copy of the pipeline in {manifest.place.uri}, or was moved from "
            "there; it was not changed",
            hint=(
                f"if nothing is left in {manifest.place.uri}: stepwell adopt --moved. If both "
                f"stay in use: stepwell adopt --copy"
            ),
        )
    return found


def address_of(manifest: Manifest, store: Store) -> str:
    """The address by which other pipelines may know this one; a copy has its own."""
    here = standing(manifest, store) in (Standing.HERE, Standing.REPLACED)
    return manifest.place.uri if here else store.uri


def mark_place(store: Store, manifest: Manifest | None = None) -> Place:
    """The location of a store; a directory is marked by a file that never changes.

    A store at the location that `manifest` names keeps the recorded address, whatever address it
    was opened by, because pins refer to it. A crash leaves the file, which belongs to the directory
    and not to a pipeline in it.
    """
    if store.uri.startswith("file://") and mark_of(store.uri, paths.PLACE) is None:
        with suppress(ConflictError):
            store.put_new(paths.PLACE, _NOTE)
    uri = store.uri if manifest is None else address_of(manifest, store)
    return Place(uri, mark_of(store.uri, paths.PLACE))


def obstacles(store: Store) -> list[str]:
    """Objects that prevent a pipeline from beginning here: only an empty location is new (K4)."""
    return [
        listed.path
        for listed in store.list(limit=_LOOK)
        if paths.parse(listed.path).kind not in _BEFORE
    ]


def own_journal(store: Store, manifest: Manifest) -> Identity | None:
    """The identity of the journal; refused unless it is this pipeline's, or none is needed."""
    identity = read_identity(store)
    check_identity(
        store,
        identity,
        lineage=manifest.lineage,
        id=manifest.journal.id,
        closed=manifest.journal.closed,
    )
    return identity
