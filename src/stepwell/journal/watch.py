"""The age of barriers, measured by three clocks that must agree (F8, F12).

    <journal store>/journal/watch.json     {boot, uptime_s, time, position}

A collector notes the position up to which it has seen the journal, and the readings of its two
clocks. The storage's modification time of the note is the third clock. A barrier covered by the
note is old once each of the three clocks has counted `barrier_keep_s` since: the collector's clock
since boot, which never jumps, its wall clock, and the storage's clock. So no single clock can make
a barrier old, however wrong it is, nor can two of them.

The clock since boot is meaningful only on one machine, until that machine restarts. A collector on
another machine leaves the note and the barriers alone until the note looks abandoned; then it
writes its own note, and counting starts again. Any number of collectors may write the note: it is
replaced by compare-and-swap, and a loser does not retry. Losing the note only costs time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from stepwell.env import Env
from stepwell.errors import ConflictError, CorruptError
from stepwell.journal import paths
from stepwell.model import Position, format_time
from stepwell.store.base import Listed, Store
from stepwell.store.sealed import read_sealed, seal

FORMAT = "stepwell-watch/1"


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clock readings: two of this machine, and the storage's, as far as a listing shows it."""

    boot: str
    """The machine and its current boot."""
    uptime_s: float
    wall: datetime
    storage: datetime | None
    """The latest time in the listing; the storage's clock is not behind it."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note written by a collector."""

    boot: str
    uptime_s: int
    wall: datetime
    position: Position
    """The note covers every entry up to here that has not been deleted."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A note as stored. `note` is None if it is damaged."""

    note: Note | None
    stored: datetime
    etag: str

    def old(self, now: Clocks, keep_s: float) -> Position:
        """The position up to which barriers are certainly older than `keep_s`; 0 if none is."""
        note = self.note
        if note is None or note.boot != now.boot or now.storage is None:
            return Position(0)
        keep = timedelta(seconds=keep_s)
        elapsed = (
            timedelta(seconds=now.uptime_s - note.uptime_s),
            now.wall - note.wall,
            now.storage - self.stored,
        )
        return note.position if min(elapsed) >= keep else Position(0)

    def over(self, now: Clocks, keep_s: float) -> bool:
        """Whether to write another note: this one has expired, can never expire, or is damaged."""
        note = self.note
        if note is None or self.old(now, keep_s):
            return True
        since = now.storage - self.stored if now.storage is not None else timedelta(0)
        if note.boot != now.boot:
            return since >= timedelta(seconds=2 * keep_s)
        # A clock that went back would have to catch up first.
        return now.uptime_s < note.uptime_s or now.wall < note.wall


def clocks(env: Env, listing: Sequence[Listed]) -> Clocks:
    """The current clock readings; `listing` is a listing of the journal made before."""
    youngest = max((item.modified for item in listing), default=None)
    return Clocks(env.process.boot or env.host, env.uptime(), env.now(), youngest)


def read_watch(store: Store, listing: Sequence[Listed]) -> Watch | None:
    """Read the note if a listing of the journal shows it; None if there is none."""
    listed = next((item for item in listing if item.path == paths.WATCH), None)
    if listed is None:
        return None
    try:
        found = read_sealed(store, paths.WATCH, FORMAT)
        if found is None:
            return None
        fields, etag = found
        note = Note(
            boot=fields.text("boot"),
            uptime_s=fields.number("uptime_s"),
            wall=fields.time("time"),
            position=Position(fields.number("position")),
        )
    except CorruptError:
        # The note only decides when barriers are deleted: replace it and count again.
        damaged = store.get(paths.WATCH)
        return None if damaged is None else Watch(None, listed.modified, damaged.etag)
    return Watch(note, listed.modified, etag)


def next_note(
    watch: Watch | None, now: Clocks, listing: Sequence[Listed], keep_s: float
) -> Note | None:
    """The note to write for a listing; None if the existing one is still in use."""
    numbers = [
        name.number
        for item in listing
        if (name := paths.parse(item.path)).kind == "entry" and name.number is not None
    ]
    if not numbers or (watch is not None and not watch.over(now, keep_s)):
        return None
    # Rounded up, so that time is not counted before it has passed.
    return Note(now.boot, math.ceil(now.uptime_s), now.wall, Position(max(numbers)))


def write_watch(store: Store, note: Note, before: Watch | None) -> None:
    """Replace the previous note, unless another collector was first."""
    body = seal(
        FORMAT,
        {
            "boot": note.boot,
            "uptime_s": note.uptime_s,
            "time": format_time(note.wall),
            "position": int(note.position),
        },
    )
    with suppress(ConflictError):
        if before is None:
            store.put_new(paths.WATCH, body)
        else:
            store.replace_if(paths.WATCH, body, before.etag)
