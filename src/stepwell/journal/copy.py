"""Copying the tail of one pipeline's journal as the beginning of another pipeline's journal.

Every entry keeps its position, its author's epoch and its recorded content. Its lineage is that of
the new pipeline, and it refers to the entry before it in the new chain. That chain starts from the
point of the old chain where the copy begins. Equal entries give equal bytes, so a repeated copy
recognises existing entries. A crash leaves the first entries of the copy, each complete.

Entries may be missing only at the beginning, and only if they provably held no data: the first
entry with data must begin the very next transaction (C4). Transactions are numbered without gaps,
so none was lost in between. The `begin` of an explicit transaction must not be among the missing
entries either: without it, a transaction that is still open would look like an automatic one, and
half of it would be committed (scenario 106). Any other missing entry is lost data and raises an
error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepwell.errors import ConflictError, TruncatedError
from stepwell.journal import paths
from stepwell.journal.codec import encode
from stepwell.journal.entry import Cursor, Kind, Recorded
from stepwell.journal.log import Log
from stepwell.model import Position, Transaction

_BATCH = 16
"""Number of entries to read before the boundary is checked and they are written."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A part of a journal: the entries after a point at which `transaction` was the last one."""

    after: Cursor
    transaction: Transaction
    until: Position


def last_entry(log: Log, after: Position) -> Position:
    """The last position taken above `after`, with or without gaps before it; `after` if none is."""
    listing = log.store.list(paths.JOURNAL, after=paths.entry(after))
    names = [paths.parse(item.path) for item in listing]
    taken = [name.number for name in names if name.kind == "entry" and name.number is not None]
    return Position(max([int(after), *taken]))


def copy_tail(source: Log, copy: Log, lineage: str, tail: Tail) -> tuple[Cursor, int]:
    """Start or resume a copy; returns where the copy begins and its number of entries."""
    return _Copying(source, copy, lineage, tail).run()


class _Copying:
    def __init__(self, source: Log, copy: Log, lineage: str, tail: Tail) -> None:
        self._source = source
        self._copy = copy
        self._lineage = lineage
        self._tail = tail
        self._first: tuple[Recorded, bool] | None = None
        # Entries behind the boundary are not read: a stalled writer may have filled a hole that the
        # collector left, and its entry there was never acknowledged (F8).
        self._trimmed = source.trimmed()

    def run(self) -> tuple[Cursor, int]:
        begin = self._begin()
        theirs: Cursor | None = begin if begin == self._tail.after else None
        ours = begin
        while ours.position < self._tail.until:
            last = Position(min(ours.position + _BATCH, self._tail.until))
            batch: list[Recorded] = []
            for number in range(ours.next, last + 1):
                found, copied = self._read(Position(number))
                # Entries that only the copy still has were checked when they were copied.
                theirs = None if copied else self._follow(theirs, found)
                batch.append(found)
            self._check_not_trimmed(ours.next)
            for found in batch:
                ours = self._write(ours, found)
        return begin, self._tail.until - begin.position

    def _begin(self) -> Cursor:
        """The point before the first existing entry, if no entry before it held data."""
        after, first = self._tail.after, self._tail.after.next
        while first <= self._tail.until:
            self._first = self._find(first)
            if self._first is not None:
                break
            first = Position(first + 1)
        if first == after.next:
            return after
        for number in range(first, self._tail.until + 1):
            found = self._find(Position(number))
            if found is None or found[0].entry.is_barrier:
                continue
            draft = found[0].entry.draft
            if (
                draft.kind is Kind.STEP
                and draft.step <= 1
                and draft.transaction == self._tail.transaction + 1
                and (draft.step == 0 or self._ends(Position(number)))
            ):
                return Cursor(Position(first - 1), after.checksum, after.epoch)
            break
        raise self._lost(after.next)

    def _ends(self, first: Position) -> bool:
        """Whether the transaction with this first step ends within the tail.

        If so, a missing `begin` does not matter. An open transaction is rolled back if it is
        explicit and committed if it is not (J4); with an entry missing before it, the two cannot be
        distinguished.
        """
        for number in range(first, self._tail.until + 1):
            found = self._find(Position(number))
            if found is None:
                return False
            if found[0].entry.draft.closes or found[0].entry.draft.kind is Kind.ABORT:
                return True
        return False

    def _find(self, position: Position) -> tuple[Recorded, bool] | None:
        """An entry, and whether it comes from the copy because the source no longer has it."""
        if self._first is not None and self._first[0].entry.position == position:
            return self._first
        found = None if position <= self._trimmed else self._source.read(position)
        if found is not None:
            return found, False
        found = self._copy.read(position)
        return None if found is None else (found, True)

    def _read(self, position: Position) -> tuple[Recorded, bool]:
        found = self._find(position)
        if found is None:
            raise self._lost(position)
        return found

    def _follow(self, cursor: Cursor | None, found: Recorded) -> Cursor:
        entry = found.entry
        before = cursor or Cursor(Position(entry.position - 1), entry.previous)
        return before.advance(found, self._source.full_name(entry.position))[0]

    def _check_not_trimmed(self, first: Position) -> None:
        trimmed = self._source.trimmed()
        if trimmed > self._trimmed and trimmed >= first:
            raise TruncatedError(
                self._source.full_name(first),
                f"the journal was trimmed up to position {trimmed} while it was copied",
                hint="run the same command again: it continues if it can",
            )

    def _write(self, cursor: Cursor, found: Recorded) -> Cursor:
        entry = replace(found.entry, lineage=self._lineage, previous=cursor.checksum)
        encoded = encode(entry)
        where = self._copy.full_name(entry.position)
        try:
            self._copy.store.put_new(paths.entry(entry.position), encoded.parts)
        except ConflictError:
            there = self._copy.read(entry.position)
            if there is None or there.checksum != encoded.checksum:
                raise ConflictError(f"{where} is not the entry that was to be copied there") from (
                    None
                )
        return cursor.advance(Recorded(entry, encoded.checksum), where)[0]

    def _lost(self, position: Position) -> TruncatedError:
        return TruncatedError(
            self._source.full_name(position),
            f"the entry is missing, and positions up to {self._tail.until} were to be copied",
            hint="the chosen checkpoint does not include it: choose a later one, or restore "
            "the object from a backup",
        )
