"""The journal as it lies in the store: reading entries, following their chain, finding the end.

Nothing here writes. Positions above the replay position have no gaps, so the end is found in
O(log n) requests; what lies at or below it may be trimmed and is never asked for.
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
    """The entries of one journal store. With a lineage given, others' entries are refused."""

    def __init__(self, store: Store, lineage: str | None = None) -> None:
        self.store = store
        self.boundary = Boundary(store, paths.JOURNAL_BOUNDARY)
        self._lineage = lineage

    def where(self, position: Position) -> str:
        """The full name of an entry, for messages."""
        return f"{self.store.uri}/{paths.entry(position)}"

    def read(self, position: Position) -> Recorded | None:
        """One entry, checked; None if there is none at that position."""
        return reread(lambda: self._read(position))

    def _read(self, position: Position) -> Recorded | None:
        found = self.store.get(paths.entry(position))
        if found is None:
            return None
        where = self.where(position)
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
        """The position up to which entries may be gone for good; 0 if none ever went."""
        return Position(self.boundary.read("journal"))

    def last(self, after: Position) -> Position:
        """The last position taken, `after` if none above it is. O(log n) requests."""
        return Position(last_taken(self._exists, int(after)))

    def survey(self, after: Position, trimmed: Position | None = None) -> Position:
        """The same, and refuse a journal of which the part above `after` is not whole.

        An entry that was lost looks like the end, and a barrier in its place would bury those
        behind it. So a few positions beyond are looked at, too: they must be free. (A wider hole is
        met later, when a writer comes to the entry behind it: see `Cursor.advance`.) And what was
        trimmed must lie below: else `after` is older than the journal. `trimmed` is how far, where
        the caller has just read it.
        """
        trimmed = self.trimmed() if trimmed is None else trimmed
        if trimmed > after:
            raise TruncatedError(
                self.where(Position(after + 1)),
                f"the journal was trimmed up to position {trimmed}, but the manifest needs what "
                f"comes after {after}",
                hint="was an old manifest restored from a backup? restore the latest one",
            )
        while True:
            last = self.last(after)
            if not any(self._exists(last + 1 + step) for step in _BEYOND):
                return last
            # Positions are taken in order, so the first must be taken by now, or it was lost.
            if not self._exists(last + 1):
                raise TruncatedError(
                    self.where(Position(last + 1)),
                    "the entry is missing, though there are entries after it",
                    hint="nothing was written there: restore the object from a backup",
                )
            after = Position(last + 1)

    def _exists(self, number: int) -> bool:
        return self.store.exists(paths.entry(Position(number)))


_BEYOND = (1, 2, 8, 64)


class JournalReader:
    """Follows a journal without writing anything, from a place known to be good.

    Sees entries in order, each once; barriers and void entries are passed
    over (F5).
    """

    def __init__(self, log: Log, start: Cursor) -> None:
        self._log = log
        self._cursor = start

    @property
    def cursor(self) -> Cursor:
        """Where it is: a new reader can start here."""
        return self._cursor

    def poll(self, limit: int = 100) -> tuple[Recorded, ...]:
        """What has come since, up to `limit` entries read; empty if nothing has.

        `TruncatedError`: the journal was trimmed past this reader; start again from the manifest.
        """
        first, cursor = self._cursor.next, self._cursor
        passed: list[Recorded] = []
        try:
            for _ in range(limit):
                found = self._log.read(cursor.next)
                if found is None:
                    break
                cursor, found = cursor.advance(found, self._log.where(cursor.next))
                passed.append(found)
        except CorruptError:
            self._check_not_trimmed(first)
            raise
        # Looked at after reading, and always: behind the boundary a stalled writer may have filled
        # a hole that the collector left, and what it wrote there was never acknowledged (F8).
        self._check_not_trimmed(first)
        self._cursor = cursor
        return tuple(item for item in passed if not item.void and not item.entry.is_barrier)

    def _check_not_trimmed(self, first: Position) -> None:
        trimmed = self._log.trimmed()
        if trimmed >= first:
            raise TruncatedError(
                self._log.where(first),
                f"the journal was trimmed up to position {trimmed}",
                hint="read the latest manifest and follow from its replay position",
            )
