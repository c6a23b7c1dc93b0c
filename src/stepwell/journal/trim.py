"""Removing what lies behind the replay position, without opening a way past a fence (F8).

The caller vouches that no manifest, checkpoint or clone needs an entry at or below `up_to`. The
boundary is moved first, so readers that are still behind find out. Two rules keep barriers, so that
a writer which stalled before one of them still runs into it:

* The last `barriers_kept` stay whatever their age: no clock decides about them.
* The others stay until three clocks agree that they were there for `barrier_keep_s` (`watch.py`).

Each entry is read once at most: which of them are barriers is noted (`barriers.py`). A crash leaves
the rest to the next trim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell.env import Env
from stepwell.errors import CorruptError
from stepwell.journal import paths
from stepwell.journal.barriers import Barriers, read_barriers, write_barriers
from stepwell.journal.log import Log
from stepwell.journal.watch import Note, Watch, clocks, next_note, read_watch, write_watch
from stepwell.model import Position
from stepwell.store.base import Listed, Store

BARRIERS_KEPT = 32
_BARRIER_BYTES_MAX = 3328
"""No barrier is as large; larger entries need not be read to know that they are none."""


@dataclass(frozen=True, slots=True)
class Trim:
    """What a trim does: `begin`, then whoever made it deletes `doomed`, then `end`."""

    journal: str
    """The journal's id."""
    up_to: Position = Position(0)
    doomed: tuple[Listed, ...] = ()
    kept: tuple[Position, ...] = ()
    """Barriers up to there that stay."""
    known: Barriers = field(default_factory=Barriers)
    watch: tuple[Note, Watch | None] | None = None
    """What to note about the age of barriers, and in the place of which note."""

    def begin(self, store: Store) -> None:
        """Before the first delete: note the barriers, and then move the boundary."""
        if self.doomed:
            write_barriers(store, self.journal, self.up_to, self.kept, self.known)
            Log(store).boundary.advance("journal", int(self.up_to))

    def end(self, store: Store) -> None:
        """After the last one: begin to count the age of what stays."""
        if self.watch is not None:
            write_watch(store, *self.watch)


def plan_trim(
    store: Store,
    env: Env,
    journal: str,
    up_to: Position,
    trimmed: Position,
    listing: Sequence[Listed],
    *,
    barrier_keep_s: float,
    barriers_kept: int,
) -> Trim:
    """What goes of the journal of that id. Reads only.

    `trimmed` is the boundary, which was read before `listing`, a listing of the journal, was made.
    """
    watch, now = read_watch(store, listing), clocks(env, listing)
    note = next_note(watch, now, listing, barrier_keep_s)
    noted = None if note is None else (note, watch)
    if up_to <= 0:
        return Trim(journal, watch=noted)
    old = watch.old(now, barrier_keep_s) if watch else Position(0)
    known = read_barriers(store, listing, journal, trimmed)
    log = Log(store)
    doomed: list[Listed] = []
    kept: list[Position] = []
    for listed in sorted(listing, key=lambda item: item.path, reverse=True):
        name = paths.parse(listed.path)
        # Not up to wherever another collector may have moved the boundary: it vouches for that.
        if name.kind != "entry" or name.number is None or name.number > up_to:
            continue
        position = Position(name.number)
        if position <= old and len(kept) >= barriers_kept:
            doomed.append(listed)
        elif _may_be_barrier(log, position, listed, known):
            kept.append(position)
        else:
            doomed.append(listed)
    return Trim(journal, up_to, tuple(reversed(doomed)), tuple(kept), known, noted)


def _may_be_barrier(log: Log, position: Position, listed: Listed, known: Barriers) -> bool:
    if position <= known.up_to:
        return position in known.positions
    if listed.size > _BARRIER_BYTES_MAX:
        return False
    try:
        found = log.read(position)
    except CorruptError:
        return True  # It cannot be told; keeping it as long as one does no harm.
    return found is not None and found.entry.is_barrier
