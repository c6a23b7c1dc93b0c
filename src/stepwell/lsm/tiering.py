"""The compaction policy: keep runs few, and garbage small.

A row that is inserted and retracted occupies two runs until they are compacted, because runs never
change. Two rules over the row counts of the runs decide when to compact. The order of the runs does
not matter, because weights are summed:

    garbage   the other runs hold more than a third of the largest: compact all of them
    number    eight runs of like size exist, the smallest ones: compact these

**Space amplification.** A compacted run holds no row twice. Let the largest hold B rows and the
others U together. Each of the U cancels at most one of the B, so at least B - U rows are alive. B +
U are stored, and U is at most B / 3: never more than twice the live rows, whatever the input.

**Write amplification.** A full compaction writes at most B + U rows, after at least B / 3 have
arrived since the last one: at most four for each of them. The second rule rewrites a row only into
a run that is larger by a quarter or more, mostly by eight times; how often depends on the size of
the incoming runs. With incoming runs of a 400th of the largest it is fewer than eight in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

SHARE = 3
"""The largest run holds at least this many times the rows of all others together."""
LIKE_SIZE = 4
"""Runs are of like size if none exceeds this multiple of all smaller ones together."""
LIKE_RUNS = 8
"""Minimum number of runs of like size that are compacted together."""

Tiering = Callable[[Sequence[int]], tuple[int, ...]]
"""Returns the positions of the runs to compact, given the rows of each run."""


def to_merge(rows: Sequence[int]) -> tuple[int, ...]:
    """Positions of the runs to compact, given the rows of each run: none, or at least two."""
    if len(rows) < 2:
        return ()
    if SHARE * (sum(rows) - max(rows)) > max(rows):
        return tuple(range(len(rows)))
    return like_sized(rows)


def like_sized(rows: Sequence[int]) -> tuple[int, ...]:
    """The second rule alone, for callers that leave the largest run aside."""
    if len(rows) < LIKE_RUNS:
        return ()
    by_size = sorted(range(len(rows)), key=lambda place: rows[place])
    like, held = 1, rows[by_size[0]]
    while like < len(rows) and rows[by_size[like]] <= LIKE_SIZE * held:
        held += rows[by_size[like]]
        like += 1
    return tuple(sorted(by_size[:like])) if like >= LIKE_RUNS else ()
