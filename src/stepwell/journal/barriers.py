"""A note of the barriers that trimming kept, so that no entry is read twice (F8).

    <journal store>/journal/barriers.json     {journal, up_to, positions}

Only reading an entry shows whether it is a barrier. Entries never change, so reading each once is
enough: a collector notes the position up to which it has read, and which barriers were to stay. It
writes the note before it moves the boundary to `up_to`, and the note is valid only once the
boundary is there. No entry is appended below the boundary any more, so a valid note cannot miss a
later barrier:

* A journal restored from a backup has an earlier boundary; the note is replaced before that
  boundary moves.
* Another journal in the same location has another id.
* An entry that a stalled writer puts into a hole left by trimming was never acknowledged. It fences
  no writer that was not fenced without it, and the next trim deletes it.

If a note is lost, damaged or invalid, entries are read again; it has no other effect. Any number of
collectors may write the note by compare-and-swap, and a loser does not retry. The note is not part
of `watch.json`, because rewriting that file would restart the count of the age of barriers.
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
    """The barriers up to a position, and the etag of the note that lists them."""

    up_to: Position = Position(0)
    positions: frozenset[Position] = frozenset()
    """Entries that are barriers or may be; the other entries up to `up_to` may be deleted."""
    etag: str | None = None
    """The etag of the stored note, even of an invalid one; None if there is no note."""


def read_barriers(
    store: Store, listing: Sequence[Listed], journal: str, trimmed: Position
) -> Barriers:
    """Read the note about the journal with this id; `trimmed` is its boundary, read before."""
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
    """Store the note unless `before` covers it; does nothing if another collector was first."""
    if up_to <= before.up_to:
        return
    fields = {"journal": journal, "up_to": int(up_to), "positions": sorted(map(int, positions))}
    with suppress(ConflictError):
        if before.etag is None:
            store.put_new(paths.BARRIERS, seal(FORMAT, fields))
        else:
            store.replace_if(paths.BARRIERS, seal(FORMAT, fields), before.etag)
