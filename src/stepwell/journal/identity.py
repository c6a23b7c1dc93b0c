"""The identity of a journal store: one sealed object next to the entries.

    <journal store>/journal/identity.json      {lineage, id}

The manifest records the id. A journal store that was lost, or swapped for another, is therefore
detected when the pipeline is opened and before anything is written, not when an entry is missed
later.
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
    """Write the identity unless one exists; read it back to see which one won.

    A crash leaves it written or not.
    """
    with suppress(ConflictError):
        fields = {"lineage": identity.lineage, "id": identity.id}
        store.put_new(paths.IDENTITY, seal(FORMAT, fields))


def check_identity(
    store: Store, found: Identity | None, *, lineage: str, id: str | None, closed: bool
) -> None:
    """Refuse a journal store that cannot hold the entries this pipeline has yet to replay.

    `id` and `closed` come from the manifest: the journal it knows, and whether its last writer left
    nothing unreplayed, so that the journal may be wiped or replaced.
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
        "restore that store from a backup; it holds acknowledged rows",
    )
