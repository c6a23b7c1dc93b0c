"""A witness of the latest manifest: a version that is known to exist, noted beside the journal.

Losing the last object of a sequence leaves no trace by itself. `journal/boundary.json` therefore
holds the number `manifest`, besides the number below which entries are gone. It is raised after a
commit, never before. A crash in between leaves it lower than it could be, which is never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepwell.errors import TruncatedError
from stepwell.journal.log import Log
from stepwell.model import Position
from stepwell.state.manifest import Manifests, Stored

_NAME = "manifest"


def raise_witness(log: Log, id: int) -> None:
    """Note that this version was committed."""
    log.boundary.advance(_NAME, id)


def mark_fresh(log: Log, id: int, replay: Position) -> None:
    """Before a journal gets its identity: a version there is, and the entries it does not hold.

    So where there is an identity, a boundary that is missing is a loss, as is an entry above it.
    """
    raise_witness(log, id)
    log.boundary.advance("journal", int(replay))


def check_witness(manifests: Manifests, log: Log, found: Stored) -> Stored:
    """`TruncatedError` if a version was lost that came after the latest one there is.

    Gives back the latest: one that somebody has committed since `found` was read is no loss.
    """
    return compare(manifests, log, found, log.boundary.numbers())


def compare(manifests: Manifests, log: Log, found: Stored, numbers: Mapping[str, int]) -> Stored:
    """The same, where the caller has read the numbers beside the journal."""
    witness = numbers.get(_NAME, 0)
    if found.id >= witness:
        return found
    latest = manifests.latest()
    if latest is not None and latest.id >= witness:
        return latest
    raise TruncatedError(
        manifests.where(witness),
        f"the manifest is lost: {log.store.uri} knows of version {witness}, and the latest one "
        f"there is {found.id}",
        hint="restore the manifest/ objects from a backup; or go on from the newest whole "
        "checkpoint: stepwell restore",
    )
