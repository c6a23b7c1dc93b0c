"""Rows that a user pushes: in any of the forms people have them in, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from stepwell.engine.payload import PUSHED, Intake, split_positions
from stepwell.engine.ports import BadRow, Change, Taken
from stepwell.engine.push_keys import check_key
from stepwell.engine.sources import Sources
from stepwell.errors import InvalidError, StepwellError
from stepwell.model import Transaction

Rows: TypeAlias = Any
"""A list of mappings, a mapping of columns to lists, or anything Arrow can read: a table, a batch,
a data frame.
"""


class Receipt(int):
    """The number of the transaction that a push became, and how many of its rows were rejected.

    A number, since that is what most callers want of it.
    """

    rows: int
    """Rows that were pushed."""
    rejected: int
    """How many of them went to the dead letters."""

    def __new__(cls, transaction: int, rows: int, rejected: int) -> Receipt:
        made = super().__new__(cls, transaction)
        made.rows, made.rejected = rows, rejected
        return made

    @property
    def taken(self) -> int:
        return self.rows - self.rejected


class Push:
    """Rows on their way in. Whoever commits them, for whomever, says how it went."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.done = False
        self.receipt = self._receipt(Transaction(0), None)
        self.error: StepwellError | None = None

    def succeed(self, transaction: Transaction, rejected: int | None = None) -> None:
        """It is in; `rejected` is not known if it was before, and is repeated."""
        self.done, self.receipt = True, self._receipt(transaction, rejected)

    def _receipt(self, transaction: Transaction, rejected: int | None) -> Receipt:
        taken = self.intake.taken
        return Receipt(transaction, taken.rows, len(taken.bad) if rejected is None else rejected)

    def fail(self, error: StepwellError) -> None:
        """What is committed stays so, whatever goes wrong afterwards."""
        if not self.done:
            self.done, self.error = True, error


def pushed_intake(
    sources: Sources,
    table: str,
    rows: Rows | None,
    delete: Rows | None,
    discard: Rows | None = None,
    bad: Sequence[BadRow] = (),
    key: str | None = None,
) -> Intake:
    """What was pushed, with the table as it was declared."""
    if key is not None:
        check_key(key)
    parts = Change(as_table(rows), as_table(delete), as_table(discard))
    change, deleted = split_positions(parts)
    count = sum(part.num_rows for part in change.parts)
    taken = Taken(change, count + len(bad), None, None, tuple(bad), deleted)
    return Intake(PUSHED, sources.table(table), taken, key)


def as_table(rows: Rows | None) -> pa.Table | None:
    """Rows in any form as Arrow, or `InvalidError`; None: there are none, whatever columns they
    would have.
    """
    found = None if rows is None else _arrow(rows)
    return found if found is not None and found.num_rows else None


def _arrow(rows: Rows) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    try:
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if isinstance(rows, Mapping) or hasattr(rows, "__arrow_c_stream__"):
            return pa.table(rows)
        return pa.Table.from_pylist(list(_mappings(rows)))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidError(f"these rows cannot be read: {error}") from error


def _mappings(rows: Iterable[object]) -> Iterator[dict[str, object]]:
    """Rows with all columns of all of them, for Arrow takes the columns from the first only."""
    names: dict[str, str] = {}
    listed = []
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"expected a mapping of columns to values, found {row!r}")
        for name in row:
            names.setdefault(str(name).lower(), str(name))
        listed.append({str(name).lower(): value for name, value in row.items()})
    for row in listed:
        yield {spelled: row.get(name) for name, spelled in names.items()}
