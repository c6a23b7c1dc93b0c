"""Timelines: the history that a transaction number belongs to (F13).

    timelines   [{id, since, resumed}]     oldest first; the last one is the present

A lineage names a pipeline, and each transaction number is used only once, as long as there is one
store. A store that is restored from a backup, or copied, reuses the same numbers for other
contents; a restore abandons a history that it does not continue. Each of these begins a timeline.
Transaction N belongs to the last timeline whose `since` is below N, and a timeline that is not the
last ended at the `since` of the next.

Timelines show where numbers are missing, which checkpoints must stay because of that, and, to
people, what a sink holds. They do not decide whether a sink's mark is accepted, because marks name
their entry. The oldest timelines that skipped no numbers may therefore be forgotten, so the list
does not grow with restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.model import Transaction

RESUMED_MAX = 16
"""Maximum number of timelines not begun by a restore."""


@dataclass(frozen=True, slots=True)
class Timeline:
    id: str
    since: Transaction = Transaction(0)
    """The last transaction before this timeline."""
    resumed: bool = False
    """Whether it continues where the previous one ended, without a restore or missing numbers."""


Timelines = tuple[Timeline, ...]


def diverged(timelines: Timelines, new: Timeline) -> Timelines:
    """The timelines with a new one added.

    Timelines without a transaction of their own are dropped, as are the oldest of many resumed
    ones, except the very first. Opening and copying repeatedly therefore does not make the list
    longer.
    """
    found = (*(item for item in timelines if item.since < new.since), new)
    resumed = [item for item in found[1:] if item.resumed]
    forgotten = resumed[: max(0, len(resumed) - RESUMED_MAX)]
    return tuple(item for item in found if item not in forgotten)


def timeline_of(timelines: Timelines, transaction: int) -> str:
    """The timeline of a past or future transaction of this pipeline.

    >>> timeline_of((Timeline("A"), Timeline("B", Transaction(3))), 3)
    'A'
    >>> timeline_of((Timeline("A"), Timeline("B", Transaction(3))), 4)
    'B'
    """
    before = [item for item in timelines if item.since < transaction]
    return (before or timelines)[-1 if before else 0].id


def is_history(timelines: Timelines, id: str, transaction: int) -> bool:
    """Whether a transaction of a timeline belongs to this pipeline's history.

    For the present timeline, this is true of every number after its beginning; the caller knows how
    far it has come.

    >>> two = (Timeline("A"), Timeline("B", Transaction(3)))
    >>> [is_history(two, "A", 3), is_history(two, "A", 4), is_history(two, "B", 4)]
    [True, False, True]
    """
    return any(item.id == id for item in timelines) and timeline_of(timelines, transaction) == id
