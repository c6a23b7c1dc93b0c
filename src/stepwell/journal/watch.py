"""How long a barrier has been there, by three clocks that must agree (F8, F12).

    <journal store>/journal/watch.json     {boot, uptime_s, time, position}

A collector notes up to which position it has seen the journal, and what its two clocks said. The
time at which the storage says the note was written is the third. A barrier that the note saw is old
once each of the three has counted `barrier_keep_s` since: the collector's clock since boot, which
never jumps, its wall clock, and the storage's. So no clock alone makes a barrier old, however wrong
it is, nor do two of them.

The clock since boot means something on one machine only, until it is started again. A collector on
another one leaves the note alone, and barriers with it, until the note looks abandoned; then it
writes its own, and time is counted from there. Any number of collectors may write it: the note is
replaced by compare-and-swap, and who loses leaves it at that. To lose the note costs time only.
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
    """What the clocks say: two of this machine, and the storage's, as far as a listing shows it."""

    boot: str
    """On which machine, since which start."""
    uptime_s: float
    wall: datetime
    storage: datetime | None
    """The youngest time in the listing; the storage's clock is not behind it."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a collector wrote down."""

    boot: str
    uptime_s: int
    wall: datetime
    position: Position
    """Every entry up to here that was not deleted was there."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A note as it is stored. `note` is None if it is damaged."""

    note: Note | None
    stored: datetime
    etag: str

    def old(self, now: Clocks, keep_s: float) -> Position:
        """Up to which position barriers have been there for so long; 0: of none that is certain."""
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
        """Whether it is time for another note: this one has served, or will not, or is damaged."""
        note = self.note
        if note is None or self.old(now, keep_s):
            return True
        since = now.storage - self.stored if now.storage is not None else timedelta(0)
        if note.boot != now.boot:
            return since >= timedelta(seconds=2 * keep_s)
        # A clock that went back would have to catch up first.
        return now.uptime_s < note.uptime_s or now.wall < note.wall


def clocks(env: Env, listing: Sequence[Listed]) -> Clocks:
    """The clocks now; `listing` is of the journal, and was made before."""
    youngest = max((item.modified for item in listing), default=None)
    return Clocks(env.process.boot or env.host, env.uptime(), env.now(), youngest)


def read_watch(store: Store, listing: Sequence[Listed]) -> Watch | None:
    """The note that a listing of the journal shows; None if there is none."""
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
        # Nothing depends on it but when barriers go: it is replaced, and time is counted anew.
        damaged = store.get(paths.WATCH)
        return None if damaged is None else Watch(None, listed.modified, damaged.etag)
    return Watch(note, listed.modified, etag)


def next_note(
    watch: Watch | None, now: Clocks, listing: Sequence[Listed], keep_s: float
) -> Note | None:
    """The note to write now, of what a listing showed; None: there is one that still serves."""
    numbers = [
        name.number
        for item in listing
        if (name := paths.parse(item.path)).kind == "entry" and name.number is not None
    ]
    if not numbers or (watch is not None and not watch.over(now, keep_s)):
        return None
    # Rounded up, so that no time is counted which has not passed.
    return Note(now.boot, math.ceil(now.uptime_s), now.wall, Position(max(numbers)))


def write_watch(store: Store, note: Note, before: Watch | None) -> None:
    """Store a note in the place of the one before; another collector may be first."""
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
