"""Removing what lies behind the replay position, without opening a way past a fence (F8).

The caller vouches that no manifest, checkpoint or clone needs an entry at or below `up_to`. The
boundary is moved first, so readers that are still behind find out. Barriers stay for
`barrier_keep_s` after they were written: until then a writer that stalled before one of them still
runs into it. A crash leaves the rest to the next trim.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from stepwell.env import Env
from stepwell.errors import CorruptError
from stepwell.journal import paths
from stepwell.journal.journal import BARRIER_KEEP_S
from stepwell.journal.log import Log
from stepwell.model import Position
from stepwell.store.base import Listed, Store

_BARRIER_BYTES_MAX = 16 * 1024
"""No barrier is as large; larger entries need not be read to know that they are none."""


def trim(
    store: Store, env: Env, up_to: Position, *, barrier_keep_s: float = BARRIER_KEEP_S
) -> tuple[Position, ...]:
    """Delete the entries up to a position, but for young barriers; say which were deleted."""
    Log(store).boundary.advance("journal", int(up_to))
    doomed = trimmable(store, env, up_to, store.list(paths.JOURNAL), barrier_keep_s)
    store.delete(*(listed.path for listed in doomed))
    return tuple(Position(paths.parse(listed.path).number or 0) for listed in doomed)


def trimmable(
    store: Store, env: Env, up_to: Position, listing: Sequence[Listed], barrier_keep_s: float
) -> tuple[Listed, ...]:
    """What `trim` would delete, of a listing of the journal. Reads only."""
    # The storage's own clock, as far as it shows, counts more than ours: one that is ahead must not
    # make a barrier old. A boundary just moved is as a rule the youngest object there.
    now = min([env.now(), *sorted([item.modified for item in listing])[-1:]])
    young = now - timedelta(seconds=barrier_keep_s)
    log = Log(store)
    doomed: list[Listed] = []
    for listed in listing:
        name = paths.parse(listed.path)
        # Not up to wherever another collector may have moved the boundary: it vouches for that.
        if name.kind != "entry" or name.number is None or name.number > up_to:
            continue
        if listed.modified <= young or not _may_be_barrier(log, Position(name.number), listed):
            doomed.append(listed)
    return tuple(doomed)


def _may_be_barrier(log: Log, position: Position, listed: Listed) -> bool:
    if listed.size > _BARRIER_BYTES_MAX:
        return False
    try:
        found = log.read(position)
    except CorruptError:
        return True  # It cannot be told; keeping it for a day does no harm.
    return found is not None and found.entry.is_barrier
