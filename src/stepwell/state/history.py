"""Superseded manifest versions: how many stay, and the collection of the rest.

Every opening and every commit supersedes a version. Nothing needs an old one: a checkpoint is an
object of its own. Only people may want to see what happened; yet each name in the listing costs
time. So whoever opens a pipeline for writing collects, now and then, what lies behind the last few.

* No clock is looked at: an author that stalled is stopped by the boundary, which every create
  reads, and not by the age of anything (F8).

A crash leaves the boundary moved and some versions still there; the next collection deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.state.manifest import Manifests, Stored


@dataclass(frozen=True, slots=True)
class History:
    """How many superseded versions stay, and how many are collected at a time."""

    versions: int = 50
    slack: int = 50
    """How many more may gather before they are collected, so that not every opening collects."""
    collected_max: int = 200
    """How far one collection goes: an opening must not wait for thousands of deletes."""


def collect_history(manifests: Manifests, held: Stored, history: History) -> tuple[int, ...]:
    """Collect what the holder of a version finds superseded, if enough has gathered; say what.

    Asks the store nothing while the pipeline is young, and then one question, the boundary, until
    there is something to collect.
    """
    enough = history.versions + history.slack
    if held.id <= enough:
        return ()
    boundary = manifests.boundary.read("manifest")
    if held.id - boundary <= enough:
        return ()
    up_to = min(held.id - 1 - history.versions, boundary + history.collected_max)
    return manifests.collect(up_to)
