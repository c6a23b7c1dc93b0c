"""Which runs of a relation become one: they stay few, and little of what they hold is rubbish.

A row that came and went stays in two runs until they are merged, for runs never change. Two rules
over the rows that each run holds say when that is; order does not matter, for runs are summed up:

    rubbish   those beside the largest hold more than a third of what it holds: all become one
    number    eight of like size have gathered, the smallest there are: these become one

**How much is stored.** A merged run holds no row twice. Let the largest hold B rows and the others
U together. Each of the U cancels at most one of the B, so at least B - U rows are alive. B + U are
stored, and U is at most B / 3: never more than twice what is alive, whatever comes in.

**How much is written.** To make one run of all writes at most B + U rows, after at least B / 3 have
come since it was done last: at most four for each of them. The second rule writes a row again only
into a run that is larger by a quarter or more, mostly by eight times: that depends on how small the
runs are that come in. With such of a 400th of the largest it is fewer than eight in all.
"""

from __future__ import annotations

from collections.abc import Sequence

SHARE = 3
"""The largest run holds at least so many times what the others hold together."""
LIKE_SIZE = 4
"""Runs are of like size unless one is so many times larger than all smaller ones together."""
LIKE_RUNS = 8
"""So many of them become one."""


def to_merge(rows: Sequence[int]) -> tuple[int, ...]:
    """Given the rows of each run: the places of those that become one; none, or two and more."""
    if len(rows) < 2:
        return ()
    if SHARE * (sum(rows) - max(rows)) > max(rows):
        return tuple(range(len(rows)))
    return alike(rows)


def alike(rows: Sequence[int]) -> tuple[int, ...]:
    """The second rule by itself, for runs that are few beside another which is not looked at."""
    if len(rows) < LIKE_RUNS:
        return ()
    by_size = sorted(range(len(rows)), key=lambda place: rows[place])
    like, held = 1, rows[by_size[0]]
    while like < len(rows) and rows[by_size[like]] <= LIKE_SIZE * held:
        held += rows[by_size[like]]
        like += 1
    return tuple(sorted(by_size[:like])) if like >= LIKE_RUNS else ()
