"""Superseded manifest versions: how many stay, and the collection of the rest.

Every opening and every commit supersedes a version. Nothing needs an old one but a checkpoint, and
people who want to see what happened; yet each name in the listing costs time. So whoever opens a
pipeline for writing collects, now and then, what lies behind the last few.

* The version the collector holds stays, with the last few before it and every version that a
  checkpoint names. Those are read first; if one cannot be, nothing is deleted (K3).
* A checkpoint to come does not name what was collected. It is made by a holder and names a version
  of that holder's own time. Holders before the collector are fenced: theirs are in the manifest it
  holds, or are never committed. Its own, and those of holders after it, lie above.
* No clock is looked at: an author that stalled is stopped by the boundary, which every create
  reads, and not by the age of anything (F8).

A crash leaves the boundary moved and some versions still there; the next collection deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.errors import CorruptError, TruncatedError
from stepwell.state.manifest import Manifest, Manifests, Stored


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
    keep = _protected(manifests, held.manifest)
    up_to = min(held.id - 1 - history.versions, boundary + history.collected_max)
    return manifests.collect(up_to, keep)


def _protected(manifests: Manifests, manifest: Manifest) -> frozenset[int]:
    """The versions that checkpoints need, each of them read."""
    versions = {checkpoint.id: checkpoint.manifest for checkpoint in manifest.checkpoints}
    for id, version in versions.items():
        if manifests.read(version) is None:
            raise TruncatedError(
                manifests.where(version),
                f"missing, though checkpoint {id} needs it",
                hint="no manifest was collected. Restore the object from a backup, or delete the "
                "checkpoint",
            )
    for pin in manifest.pins:
        if pin.checkpoint not in versions:
            raise CorruptError(
                manifests.store.uri,
                f"clone {pin.clone} pins checkpoint {pin.checkpoint}, which the manifest does not "
                "list; which version it needs is not known",
                field="pins",
                hint="no manifest was collected",
            )
    return frozenset(versions.values())
