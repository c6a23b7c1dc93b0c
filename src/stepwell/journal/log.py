"""The journal as stored: reading entries, following their chain, finding the end.

Nothing here writes. Positions above the replay position have no gaps. If it is known that no entry
was lost, a search of O(log n) requests therefore finds the end. If it is not known, that is, before
a pipeline is claimed and where a reader takes a free position for the end, a listing shows every
gap. Entries at or below the replay position may be trimmed and are never requested.
"""

from __future__ import annotations

from stepwell.errors import CorruptError, TruncatedError
from stepwell.journal import paths
from stepwell.journal.codec import decode
from stepwell.journal.entry import Cursor, Recorded
from stepwell.model import Position
from stepwell.store.base import Store
from stepwell.store.sealed import reread
from stepwell.store.sequenced import Boundary, last_taken


class Log:
    """The entries of one journal store. If a lineage is given, entries of others are refused."""

    def __init__(self, store: Store, lineage: str | None = None) -> None:
        self.store = store
        self.boundary = Boundary(store, paths.JOURNAL_BOUNDARY)
        self._lineage = lineage

    def full_name(self, position: Position) -> str:
        """The full name of an entry, for messages."""
        return f"{self.store.uri}/{paths.entry(position)}"

    def read(self, position: Position) -> Recorded | None:
        """Read and check one entry; None if the position is free."""
        return reread(lambda: self._read(position))

    def _read(self, position: Position) -> Recorded | None:
        found = self.store.get(paths.entry(position))
        if found is None:
            return None
        where = self.full_name(position)
        entry, checksum = decode(found.data, where)
        if entry.position != position:
            raise CorruptError(
                where, f"holds the entry of position {entry.position}", field="position"
            )
        if self._lineage is not None and entry.lineage != self._lineage:
            raise CorruptError(
                where,
                f"belongs to pipeline {entry.lineage}, not to {self._lineage}",
                field="lineage",
                hint="two pipelines share a journal store: give each its own",
            )
        return Recorded(entry, checksum)

    def trimmed(self) -> Position:
        """The position up to which entries may have been deleted; 0 if none ever was."""
        return Position(self.boundary.read("journal"))

    def last(self, after: Position) -> Position:
        """The last position taken; `after` if none above it is. O(log n) requests."""
        return Position(last_taken(self._exists, int(after)))

    def survey(self, after: Position, trimmed: Position | None = None) -> Position:
        """Like `last`, but refuse a journal that is incomplete above `after`.

        A lost entry looks like the end, and a barrier in its place would bury the entries behind
        it. One listing shows every gap, however wide: no entry may follow a free position. The
        trimmed part must also lie below `after`; otherwise `after` is older than the journal.
        `trimmed` is the boundary, if the caller has just read it.
        """
        trimmed = self.trimmed() if trimmed is None else trimmed
        if trimmed > after:
            raise TruncatedError(
                self.full_name(Position(after + 1)),
                f"the journal was trimmed up to position {trimmed}, but the manifest needs what "
                f"comes after {after}",
                hint="was an old manifest restored from a backup? restore the latest one",
            )
        last, beyond = self._run(after)
        while beyond is not None:
            last, beyond = self._run(self.refuse_hole(last, beyond))
        return last

    def _run(self, after: Position) -> tuple[Position, Position | None]:
        """The last position taken without a gap, and the first one behind the gap, if any."""
        for item in self.store.list(paths.JOURNAL, after=paths.entry(after)):
            name = paths.parse(item.path)
            if name.kind != "entry" or name.number is None:
                continue
            if name.number != after + 1:
                return after, Position(name.number)
            after = Position(name.number)
        return after, None

    def beyond(self, position: Position) -> Position | None:
        """The first position taken above `position`; None if there is none. One request."""
        found = self.store.list(paths.JOURNAL, after=paths.entry(position), limit=1)
        name = paths.parse(found[0].path) if found else None
        if name is None or name.kind != "entry" or name.number is None:
            return None
        return Position(name.number)

    def refuse_hole(self, last: Position, beyond: Position) -> Position:
        """Raise `TruncatedError` if the entry after `last` is lost; return its position if not.

        Positions are taken in order, so an entry at `beyond` proves that all entries before it
        existed. A listing is not a snapshot: it may have passed the position of an entry that was
        put meanwhile.
        """
        first = Position(last + 1)
        if self._exists(first):
            return first
        wide = beyond > first + 1
        span = f"entries {first} to {beyond - 1} are" if wide else "the entry is"
        raise TruncatedError(
            self.full_name(first),
            f"{span} missing, though there is an entry {beyond}",
            hint="nothing was written there: restore what is missing from a backup",
        )

    def _exists(self, number: int) -> bool:
        return self.store.exists(paths.entry(Position(number)))


class JournalReader:
    """Follows a journal from a known good point, without writing anything.

    Returns entries in order, each once; skips barriers and void entries (F5).
    """

    def __init__(self, log: Log, start: Cursor) -> None:
        self._log = log
        self._cursor = start

    def poll(self, limit: int = 100) -> tuple[Recorded, ...]:
        """The next entries, up to `limit`; empty only at the end of the journal.

        Raises `TruncatedError` if the journal was trimmed past this reader, which must then restart
        from the manifest, or if an entry was lost.
        """
        first, cursor = self._cursor.next, self._cursor
        seen: list[Recorded] = []
        try:
            while len(seen) < limit:
                found = self._log.read(cursor.next)
                if found is None:
                    break
                cursor, found = cursor.advance(found, self._log.full_name(cursor.next))
                if not found.void and not found.entry.is_barrier:
                    seen.append(found)
            if not seen and (beyond := self._log.beyond(cursor.next)) is not None:
                # Not the end: an entry was lost, or has just arrived and is left to the next poll.
                self._log.refuse_hole(cursor.position, beyond)
        except CorruptError:
            self._check_not_trimmed(first)
            raise
        # Always checked, and after reading: behind the boundary a stalled writer may have filled a
        # hole that the collector left, and its entry there was never acknowledged (F8).
        self._check_not_trimmed(first)
        self._cursor = cursor
        return tuple(seen)

    def _check_not_trimmed(self, first: Position) -> None:
        trimmed = self._log.trimmed()
        if trimmed >= first:
            raise TruncatedError(
                self._log.full_name(first),
                f"the journal was trimmed up to position {trimmed}",
                hint="read the latest manifest and follow from its replay position",
            )
