"""Removing what lies behind the replay position, without opening a way past a fence (F8).

The caller vouches that no manifest, checkpoint or clone needs an entry at or below `up_to`. The
boundary is moved first, so readers that are still behind find out. Two rules keep barriers, so that
a writer which stalled before one of them still runs into it:

* The last `barriers_kept` stay whatever their age: no clock decides about them.
* The others stay until three clocks agree that they were there for `barrier_keep_s` (`watch.py`).

A crash leaves the rest to the next trim.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.env import Env
from stepwell.errors import CorruptError
from stepwell.journal import paths
from stepwell.journal.journal import BARRIER_KEEP_S
from stepwell.journal.log import Log
from stepwell.journal.watch import clocks, next_note, read_watch, write_watch
from stepwell.model import Position
from stepwell.store.base import Listed, Store

BARRIERS_KEPT = 32
_BARRIER_BYTES_MAX = 3328
"""No barrier is as large; larger entries need not be read to know that they are none."""


def trim(
    store: Store,
    env: Env,
    up_to: Position,
    *,
    barrier_keep_s: float = BARRIER_KEEP_S,
    barriers_kept: int = BARRIERS_KEPT,
) -> tuple[Position, ...]:
    """Delete the entries up to a position, but for barriers that may be needed; say which."""
    Log(store).boundary.advance("journal", int(up_to))
    listing = store.list(paths.JOURNAL)
    watch, now = read_watch(store, listing), clocks(env, listing)
    old = watch.old(now, barrier_keep_s) if watch else Position(0)
    doomed = trimmable(store, up_to, listing, old=old, barriers_kept=barriers_kept)
    store.delete(*(listed.path for listed in doomed))
    note = next_note(watch, now, listing, barrier_keep_s)
    if note is not None:
        write_watch(store, note, watch)
    return tuple(Position(paths.parse(listed.path).number or 0) for listed in doomed)


def trimmable(
    store: Store,
    up_to: Position,
    listing: Sequence[Listed],
    *,
    old: Position,
    barriers_kept: int,
) -> tuple[Listed, ...]:
    """What may go, of a listing of the journal: `old` is up to where barriers are. Reads only."""
    log = Log(store)
    doomed: list[Listed] = []
    kept = 0
    for listed in sorted(listing, key=lambda item: item.path, reverse=True):
        name = paths.parse(listed.path)
        # Not up to wherever another collector may have moved the boundary: it vouches for that.
        if name.kind != "entry" or name.number is None or name.number > up_to:
            continue
        position = Position(name.number)
        if (position <= old and kept >= barriers_kept) or not _may_be_barrier(
            log, position, listed
        ):
            doomed.append(listed)
        else:
            kept += 1
    return tuple(reversed(doomed))


def _may_be_barrier(log: Log, position: Position, listed: Listed) -> bool:
    if listed.size > _BARRIER_BYTES_MAX:
        return False
    try:
        found = log.read(position)
    except CorruptError:
        return True  # It cannot be told; keeping it as long as one does no harm.
    return found is not None and found.entry.is_barrier
