"""Where the barriers are that trimming left, so that none of them is read again (F8).

    <journal store>/journal/barriers.json     {journal, up_to, positions}

Whether an entry is a barrier is known by reading it. Entries never change, so one look is enough:
a collector notes up to where it has looked, and which barriers were to stay. It does so before it
moves the boundary to `up_to`, and the note counts only once the boundary is there. Below the
boundary nobody appends any more, and so a note that counts cannot miss a barrier that came later:

* a journal put back from a backup has an earlier boundary; the note is replaced before that moves;
* another journal in the same place has another id;
* what a stalled writer puts into a hole that trimming left was never acknowledged, fences nobody
  who was not fenced without it, and goes with the next trim.

A note that is lost, damaged or does not count means that entries are read again, nothing else. Any
number of collectors may write it, by compare-and-swap, and who loses leaves it at that. It is not
part of `watch.json`: to write that one anew would begin to count the age of barriers anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from stepwell.errors import ConflictError, CorruptError
from stepwell.journal import paths
from stepwell.model import Position
from stepwell.store.base import Listed, Store
from stepwell.store.sealed import read_sealed, seal

FORMAT = "stepwell-barriers/1"


@dataclass(frozen=True, slots=True)
class Barriers:
    """What is known about the entries up to a position, and the etag of the note that says so."""

    up_to: Position = Position(0)
    positions: frozenset[Position] = frozenset()
    """Those that are barriers, or cannot be told from one; the other entries up to there may go."""
    etag: str | None = None
    """Of the stored note, also if it does not count; None: there is none."""


def read_barriers(
    store: Store, listing: Sequence[Listed], journal: str, trimmed: Position
) -> Barriers:
    """What is known about the journal of that id; `trimmed` is its boundary, read before."""
    if not any(item.path == paths.BARRIERS for item in listing):
        return Barriers()
    try:
        found = read_sealed(store, paths.BARRIERS, FORMAT)
        if found is None:
            return Barriers()
        fields, etag = found
        up_to = Position(fields.number("up_to"))
        positions = fields.numbers("positions")
        if fields.text("journal") != journal or up_to > trimmed:
            return Barriers(etag=etag)
    except CorruptError:
        damaged = store.get(paths.BARRIERS)
        return Barriers(etag=damaged.etag if damaged else None)
    return Barriers(up_to, frozenset(map(Position, positions)), etag)


def write_barriers(
    store: Store, journal: str, up_to: Position, positions: Sequence[Position], before: Barriers
) -> None:
    """Store what is known now; nothing if the note before says as much, or another was first."""
    if up_to <= before.up_to:
        return
    fields = {"journal": journal, "up_to": int(up_to), "positions": sorted(map(int, positions))}
    with suppress(ConflictError):
        if before.etag is None:
            store.put_new(paths.BARRIERS, seal(FORMAT, fields))
        else:
            store.replace_if(paths.BARRIERS, seal(FORMAT, fields), before.etag)
