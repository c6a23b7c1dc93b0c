"""Timelines: which history a transaction number belongs to (F13).

    timelines   [{id, since, resumed}]     oldest first; the last one is the present

A lineage names a pipeline, and its numbers are given out once. That holds as long as there is one
store. A store that is put back from a backup, or copied, gives the same numbers out again with
other contents; a restore leaves a history that it does not continue. Each begins a timeline.
Transaction N belongs to the last timeline whose `since` is below N, and a timeline that is not the
last ended at the `since` of the next.

They say where numbers are missing, which checkpoints must stay because of it, and to people what a
sink holds. Whether a sink's mark is accepted is not decided by them: marks name their entry. So the
oldest of those that left nothing out may be forgotten, and the list does not grow with restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.model import Transaction

RESUMED_MAX = 16
"""How many timelines stay that a restore did not begin."""


@dataclass(frozen=True, slots=True)
class Timeline:
    id: str
    since: Transaction = Transaction(0)
    """The last transaction before it."""
    resumed: bool = False
    """No restore began it: it goes on where the one before ended, and no number is missing."""


Timelines = tuple[Timeline, ...]


def diverged(timelines: Timelines, new: Timeline) -> Timelines:
    """The timelines with a new one.

    Left out are those without a transaction of their own, and the oldest of many that resumed, but
    for the first of all: opening and copying again and again does not make the list longer.
    """
    found = (*(item for item in timelines if item.since < new.since), new)
    resumed = [item for item in found[1:] if item.resumed]
    forgotten = resumed[: max(0, len(resumed) - RESUMED_MAX)]
    return tuple(item for item in found if item not in forgotten)


def timeline_of(timelines: Timelines, transaction: int) -> str:
    """The timeline of a transaction that this pipeline has, or will have.

    >>> timeline_of((Timeline("A"), Timeline("B", Transaction(3))), 3)
    'A'
    >>> timeline_of((Timeline("A"), Timeline("B", Transaction(3))), 4)
    'B'
    """
    before = [item for item in timelines if item.since < transaction]
    return (before or timelines)[-1 if before else 0].id


def is_history(timelines: Timelines, id: str, transaction: int) -> bool:
    """Whether a transaction of a timeline belongs to this pipeline's history.

    Of the present timeline every number after its beginning does: how far it has come, the caller
    knows.

    >>> two = (Timeline("A"), Timeline("B", Transaction(3)))
    >>> [is_history(two, "A", 3), is_history(two, "A", 4), is_history(two, "B", 4)]
    [True, False, True]
    """
    return any(item.id == id for item in timelines) and timeline_of(timelines, transaction) == id
