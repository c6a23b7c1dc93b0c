"""Superseded manifest versions: how many stay, and the collection of the rest.

Every open and every commit supersedes a version. Old versions are not needed: a checkpoint is an
object of its own. They only help people see what happened, yet each name in the listing costs time.
So a writer that opens a pipeline occasionally collects all but the last few.

* No clock is used: a stalled author is stopped by the boundary, which every create reads, and not
  by the age of an object (F8).

A crash leaves the boundary moved and some versions not deleted; the next collection deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.manifest.manifest import Manifests, Stored


@dataclass(frozen=True, slots=True)
class History:
    """The number of superseded versions to keep, and to collect at a time."""

    versions: int = 50
    slack: int = 50
    """How many more may accumulate before a collection, so that not every open collects."""
    collected_max: int = 200
    """Upper bound for one collection: an open must not wait for thousands of deletes."""


def collect_history(manifests: Manifests, held: Stored, history: History) -> tuple[int, ...]:
    """Collect superseded versions if enough have accumulated; returns the deleted ones.

    Makes no request while the pipeline is young, and then only one, for the boundary, until there
    is something to collect.
    """
    enough = history.versions + history.slack
    if held.id <= enough:
        return ()
    boundary = manifests.boundary.read("manifest")
    if held.id - boundary <= enough:
        return ()
    up_to = min(held.id - 1 - history.versions, boundary + history.collected_max)
    return manifests.collect(up_to)
