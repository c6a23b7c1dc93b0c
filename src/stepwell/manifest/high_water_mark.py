"""The manifest's high-water mark: a version that is known to exist, recorded next to the journal.

The loss of the last object of a sequence leaves no trace. `journal/boundary.json` therefore holds
the number `manifest`, besides the number below which entries are trimmed. It is raised after a
commit, never before. A crash in between leaves it too low, which is safe.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepwell.errors import TruncatedError
from stepwell.journal.log import Log
from stepwell.manifest.manifest import Manifests, Stored
from stepwell.model import Position

_NAME = "manifest"


def raise_high_water_mark(log: Log, id: int) -> None:
    """Record that this version was committed."""
    log.boundary.advance(_NAME, id)


def mark_fresh(log: Log, id: int, replay: Position) -> None:
    """Record a version and a replay position before a journal gets its identity.

    A journal with an identity but no boundary has therefore lost the boundary.
    """
    raise_high_water_mark(log, id)
    log.boundary.advance("journal", int(replay))


def check_high_water_mark(manifests: Manifests, log: Log, found: Stored) -> Stored:
    """Raise `TruncatedError` if the latest manifest is older than the high-water mark.

    Returns the latest manifest, which may have been committed after `found` was read.
    """
    return compare(manifests, log, found, log.boundary.numbers())


def compare(manifests: Manifests, log: Log, found: Stored, numbers: Mapping[str, int]) -> Stored:
    """Like `check_high_water_mark`, with the numbers of `boundary.json`."""
    mark = numbers.get(_NAME, 0)
    if found.id >= mark:
        return found
    latest = manifests.latest()
    if latest is not None and latest.id >= mark:
        return latest
    raise TruncatedError(
        manifests.full_name(mark),
        f"the manifest is lost: {log.store.uri} recorded version {mark}, but the latest one is "
        f"{found.id}",
        hint="restore the manifest/ objects from a backup; or continue from the newest intact "
        "checkpoint: stepwell restore",
    )
