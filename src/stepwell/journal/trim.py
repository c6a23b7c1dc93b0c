"""Trimming the journal behind the replay position without opening a way past a fence (F8).

The caller guarantees that no manifest, checkpoint or clone needs an entry at or below `up_to`. The
boundary moves first, so that readers still behind it find out. Two rules keep barriers, so that a
writer that stalled before one of them still runs into it:

* The last `barriers_kept` stay whatever their age, independent of any clock.
* The others stay until three clocks agree that they have existed for `barrier_keep_s` (`watch.py`).

Each entry is read at most once, because the barriers among them are noted (`barriers.py`). After a
crash, the next trim deletes the rest.
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
"""All barriers are smaller; a larger entry is known not to be a barrier without reading it."""


@dataclass(frozen=True, slots=True)
class Trim:
    """A planned trim: call `begin`, delete the `garbage` objects, then call `end`."""

    journal: str
    """The journal's id."""
    up_to: Position = Position(0)
    garbage: tuple[Listed, ...] = ()
    kept: tuple[Position, ...] = ()
    """The barriers up to `up_to` that stay."""
    known: Barriers = field(default_factory=Barriers)
    watch: tuple[Note, Watch | None] | None = None
    """The new note on the age of barriers, and the note that it replaces."""

    def begin(self, store: Store) -> None:
        """Before the first delete: write the note of barriers, then move the boundary."""
        if self.garbage:
            write_barriers(store, self.journal, self.up_to, self.kept, self.known)
            Log(store).boundary.advance("journal", int(self.up_to))

    def end(self, store: Store) -> None:
        """After the last delete: start counting the age of the barriers that stay."""
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
    """Plan the trim of the journal with this id. Read-only.

    `trimmed` is the boundary. It was read before `listing`, a listing of the journal, was made.
    """
    watch, now = read_watch(store, listing), clocks(env, listing)
    note = next_note(watch, now, listing, barrier_keep_s)
    noted = None if note is None else (note, watch)
    if up_to <= 0:
        return Trim(journal, watch=noted)
    old = watch.old(now, barrier_keep_s) if watch else Position(0)
    known = read_barriers(store, listing, journal, trimmed)
    log = Log(store)
    garbage: list[Listed] = []
    kept: list[Position] = []
    for listed in sorted(listing, key=lambda item: item.path, reverse=True):
        name = paths.parse(listed.path)
        # Another collector may have moved the boundary further; only that one vouches for the rest.
        if name.kind != "entry" or name.number is None or name.number > up_to:
            continue
        position = Position(name.number)
        if position <= old and len(kept) >= barriers_kept:
            garbage.append(listed)
        elif _may_be_barrier(log, position, listed, known):
            kept.append(position)
        else:
            garbage.append(listed)
    return Trim(journal, up_to, tuple(reversed(garbage)), tuple(kept), known, noted)


def _may_be_barrier(log: Log, position: Position, listed: Listed, known: Barriers) -> bool:
    if position <= known.up_to:
        return position in known.positions
    if listed.size > _BARRIER_BYTES_MAX:
        return False
    try:
        found = log.read(position)
    except CorruptError:
        return True  # Undecidable; keeping it as long as a barrier does no harm.
    return found is not None and found.entry.is_barrier
