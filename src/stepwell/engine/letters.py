"""Dead letters: what was not taken in, as it is kept in `<table>$errors`.

A letter says when and with which transaction a record came, from which source, where it stood
there, why it was not taken in, and what it was. Time and transaction are those of the journal, and
the rest is a function of what was recorded, so that replay gives the same letters (J6). That holds
although replay feeds many transactions as one: each row is traced back to the intake it came with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from stepwell.engine.fold import FoldedTable
from stepwell.engine.json_rows import json_row
from stepwell.engine.payload import Intake
from stepwell.engine.ports import TEXT_MAX, BadRow, Change, Letter, Letters, PartName, Rejected
from stepwell.model import Transaction


@dataclass(frozen=True, slots=True)
class Came:
    """An intake, and the transaction with which it came."""

    intake: Intake
    transaction: Transaction
    time: datetime

    def letter(self, bad: BadRow) -> Letter:
        return Letter(
            self.time, self.transaction, self.intake.source, bad.where, bad.reason, bad.text
        )


class GatheredLetters:
    """The dead letters of what was gathered: bad rows, and those that the executor rejects."""

    def __init__(self, came: Sequence[Came], tables: Mapping[str, FoldedTable]) -> None:
        self._came = came
        self._tables = tables

    def __call__(self, rejected: Sequence[Rejected]) -> dict[str, list[Letter]]:
        letters: dict[str, list[Letter]] = {}
        for came in self._came:
            if came.intake.taken.bad:
                made = letters.setdefault(came.intake.table, [])
                made += [came.letter(bad) for bad in came.intake.taken.bad]
        by_intake: dict[int, list[tuple[PartName, int, str]]] = {}
        for row in rejected:
            number, part, at = self._origin(row)
            by_intake.setdefault(number, []).append((part, at, row.reason))
        for number, rows in sorted(by_intake.items()):
            came = self._came[number]
            made = letters.setdefault(came.intake.table, [])
            made += [came.letter(bad) for bad in _rejected_rows(came.intake, rows)]
        return letters

    def counts(self, rejected: Sequence[Rejected]) -> tuple[int, ...]:
        """How many letters each intake has."""
        counts = Counter(self._origin(row)[0] for row in rejected)
        return tuple(
            len(came.intake.taken.bad) + counts[number] for number, came in enumerate(self._came)
        )

    def _origin(self, row: Rejected) -> tuple[int, PartName, int]:
        return self._tables[row.table].origin(row.part, row.at)


def letters_of(changes: Mapping[str, Change], time: datetime) -> Letters:
    """The dead letters of changes of which is not known where they come from."""

    def letters(rejected: Sequence[Rejected]) -> dict[str, list[Letter]]:
        made: dict[str, list[Letter]] = {}
        given = {table.lower(): change for table, change in changes.items()}
        for row in rejected:
            change = given[row.table.lower()]
            bad = BadRow(_place(row.part, row.at), row.reason, _row_text(change, row.part, row.at))
            letter = Letter(time, 0, "", bad.where, bad.reason, bad.text)
            made.setdefault(row.table, []).append(letter)
        return made

    return letters


def _rejected_rows(intake: Intake, rows: Sequence[tuple[PartName, int, str]]) -> list[BadRow]:
    """Rows of an intake that were rejected, as (part, place in it, reason)."""
    taken = intake.taken
    told: dict[int, tuple[str, str | None]] = {}
    deletes = [at for part, at, _ in rows if part == "delete"]
    if taken.deleted is not None and deletes:
        told = dict(zip(deletes, taken.deleted(deletes), strict=True))
    made = []
    for part, at, reason in rows:
        where, text = told.get(at, ("", None)) if part == "delete" else ("", None)
        if text is None or taken.reference is None:
            # The journal holds rows that cannot be read again, and not what they were read from.
            text = _row_text(taken.change, part, at)
        made.append(BadRow(where or _place(part, at), reason, text))
    return made


def _place(part: PartName, at: int) -> str:
    return f"row {at + 1}" if part == "put" else f"{part}, row {at + 1}"


def _row_text(change: Change, part: PartName, at: int) -> str:
    rows: pa.Table = getattr(change, part)
    return json_row(rows, at, TEXT_MAX)
