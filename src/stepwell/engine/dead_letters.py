"""Dead letters: rejected input, stored in `<table>$errors`.

A letter has the time and transaction of a record, its source and position there, the reason of the
rejection, and its text. Time and transaction come from the journal, and the rest is a function of
the recorded input, so that replay produces the same letters (J6), even if it computes many
transactions as one: each row is traced back to its intake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from stepwell.engine.ports import Intake
from stepwell.lsm.change import PartName, Rejected
from stepwell.lsm.dead_letter import BadRow, Letter, place_text, row_text
from stepwell.lsm.fold import Folded
from stepwell.model import Transaction


@dataclass(frozen=True, slots=True)
class Arrival:
    """An intake, and the transaction it belongs to."""

    intake: Intake
    transaction: Transaction
    time: datetime

    def letter(self, bad: BadRow) -> Letter:
        return Letter(
            self.time, self.transaction, self.intake.source, bad.where, bad.reason, bad.text
        )


class GatheredLetters:
    """The dead letters of a transaction: bad rows, and rows that the executor rejects."""

    def __init__(self, arrivals: Sequence[Arrival], tables: Mapping[str, Folded]) -> None:
        self._arrivals = arrivals
        self._tables = tables

    def __call__(self, rejected: Sequence[Rejected]) -> dict[str, list[Letter]]:
        letters: dict[str, list[Letter]] = {}
        for arrival in self._arrivals:
            if arrival.intake.bad:
                made = letters.setdefault(arrival.intake.table, [])
                made += [arrival.letter(bad) for bad in arrival.intake.bad]
        by_intake: dict[int, list[tuple[PartName, int, str]]] = {}
        for row in rejected:
            number, part, at = self._origin(row)
            by_intake.setdefault(number, []).append((part, at, row.reason))
        for number, rows in sorted(by_intake.items()):
            arrival = self._arrivals[number]
            made = letters.setdefault(arrival.intake.table, [])
            made += [arrival.letter(bad) for bad in _rejected_rows(arrival.intake, rows)]
        return letters

    def counts(self, rejected: Sequence[Rejected]) -> tuple[int, ...]:
        """The number of letters of each intake."""
        counts = Counter(self._origin(row)[0] for row in rejected)
        return tuple(
            len(arrival.intake.bad) + counts[number]
            for number, arrival in enumerate(self._arrivals)
        )

    def _origin(self, row: Rejected) -> tuple[int, PartName, int]:
        return self._tables[row.table].origin(row.part, row.at)


def _rejected_rows(intake: Intake, rows: Sequence[tuple[PartName, int, str]]) -> list[BadRow]:
    """Rejected rows of an intake, given as (part, row in it, reason)."""
    told: dict[int, tuple[str, str | None]] = {}
    deletes = [at for part, at, _ in rows if part == "delete"]
    if intake.deleted is not None and deletes:
        told = dict(zip(deletes, intake.deleted(deletes), strict=True))
    made = []
    for part, at, reason in rows:
        where, text = told.get(at, ("", None)) if part == "delete" else ("", None)
        if text is None or intake.reference is None:
            # The journal holds the rows of such an intake, but not the text they came from.
            text = row_text(intake.change, part, at)
        made.append(BadRow(where or place_text(part, at), reason, text))
    return made
