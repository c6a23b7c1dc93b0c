"""Which journal store this is: one sealed object beside the entries.

    <journal store>/journal/identity.json      {lineage, id}

The manifest records the id. So a journal store that was lost, or swapped for another, is noticed
when the pipeline is opened and before anything is written, not when an entry is missed later.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from stepwell.errors import ConflictError, JournalStoreMismatch
from stepwell.journal import paths
from stepwell.store.base import Store
from stepwell.store.sealed import read_sealed, seal

FORMAT = "stepwell-identity/1"


@dataclass(frozen=True, slots=True)
class Identity:
    lineage: str
    id: str


def read_identity(store: Store) -> Identity | None:
    found = read_sealed(store, paths.IDENTITY, FORMAT)
    return None if found is None else Identity(found[0].id("lineage"), found[0].id("id"))


def write_identity(store: Store, identity: Identity) -> None:
    """Put it there unless one is; a crash leaves it there or not. Read it to know which won."""
    with suppress(ConflictError):
        fields = {"lineage": identity.lineage, "id": identity.id}
        store.put_new(paths.IDENTITY, seal(FORMAT, fields))


def check_identity(
    store: Store, found: Identity | None, *, lineage: str, id: str | None, closed: bool
) -> None:
    """Refuse a journal store that cannot hold what this pipeline has yet to replay.

    `id` and `closed` are the manifest's: the journal it knows, and whether its last writer left it
    with nothing unreplayed, so that it may be wiped or replaced.
    """
    if found is not None and found.lineage != lineage:
        raise JournalStoreMismatch(
            f"{store.uri} holds the journal of another pipeline: expected lineage {lineage}, "
            f"found {found.lineage}",
            hint="open the pipeline with its own journal store",
        )
    if id is None or closed or (found is not None and found.id == id):
        return
    what = "no journal" if found is None else f"journal {found.id}"
    raise JournalStoreMismatch(
        f"{store.uri} holds {what}, but this pipeline's unreplayed entries are in journal {id}",
        hint="nothing was written: open the pipeline with the journal store that has it, or "
        "restore that store from a backup; what was acknowledged is in there",
    )
