"""Pushed rows: their conversion to Arrow, and the receipt for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import pyarrow as pa

from stepwell.engine.payload import PUSHED, split_positions
from stepwell.engine.ports import Intake
from stepwell.engine.push_keys import check_key
from stepwell.engine.sources import Sources
from stepwell.errors import InvalidError, StepwellError
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import BadRow
from stepwell.model import Transaction


class ArrowStream(Protocol):
    """Anything that exports itself through the Arrow PyCapsule interface, such as a data frame."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


Rows: TypeAlias = (
    Iterable[Mapping[str, object]]
    | Mapping[str, Sequence[object]]
    | pa.Table
    | pa.RecordBatch
    | ArrowStream
)
"""A list of mappings, a mapping of columns to lists, or anything that Arrow reads: a table, a
batch, a data frame.
"""


NOT_ARROW = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""Errors of values that Arrow cannot hold."""


class Receipt(int):
    """The number of a push's transaction, with the number of rows that were rejected.

    An `int`, because most callers need only the number.
    """

    rows: int
    """The number of pushed rows."""
    rejected: int
    """The number of rows that became dead letters."""

    def __new__(cls, transaction: int, rows: int, rejected: int) -> Receipt:
        made = super().__new__(cls, transaction)
        made.rows, made.rejected = rows, rejected
        return made

    @property
    def taken(self) -> int:
        """How many rows were taken in."""
        return self.rows - self.rejected


class Push:
    """A pending push, resolved by the thread that commits it."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.done = False
        self.receipt = self._receipt(Transaction(0), None)
        self.error: StepwellError | None = None

    def succeed(self, transaction: Transaction, rejected: int | None = None) -> None:
        """Resolve the push. `rejected` defaults to the rows that could not be decoded."""
        self.done, self.receipt = True, self._receipt(transaction, rejected)

    def _receipt(self, transaction: Transaction, rejected: int | None) -> Receipt:
        intake = self.intake
        return Receipt(transaction, intake.rows, len(intake.bad) if rejected is None else rejected)

    def fail(self, error: StepwellError) -> None:
        """Resolve the push with an error, unless it is committed already."""
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
    """The intake of a push, with the declared spelling of the table."""
    if key is not None:
        check_key(key)
    parts = Change(as_table(rows), as_table(delete), as_table(discard))
    change, deleted = split_positions(parts)
    count = sum(part.num_rows for part in change.parts)
    rows_read = count + len(bad)
    name = sources.table(table)
    return Intake(PUSHED, name, change, rows_read, None, None, tuple(bad), deleted, key=key)


def as_table(rows: Rows | None) -> pa.Table | None:
    """Convert rows in any form to Arrow, or raise `InvalidError`; None if there are no rows."""
    found = [] if rows is None else table_or_list(rows)
    if isinstance(found, list):
        with _unreadable_is_invalid():
            found = pa.Table.from_pylist(list(_mappings(found)))
    return found if found.num_rows else None


def table_or_list(rows: Rows) -> pa.Table | list[object]:
    """Rows in any form as an Arrow table, or as a list if they are neither Arrow nor columns that
    Arrow can hold. `InvalidError` if they are not rows.
    """
    with _unreadable_is_invalid():
        if isinstance(rows, pa.Table):
            return rows
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.table(rows)
        if isinstance(rows, Mapping):
            return _of_columns(rows)
        if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
            raise TypeError(f"expected a list of mappings, found {type(rows).__name__}")
        return list(rows)


@contextmanager
def _unreadable_is_invalid() -> Iterator[None]:
    try:
        yield
    except NOT_ARROW as error:
        raise InvalidError(f"these rows cannot be read: {error}") from error


def _of_columns(columns: Mapping[str, Sequence[object]]) -> pa.Table | list[object]:
    try:
        return pa.table(columns)
    except NOT_ARROW:
        # A column may hold values of several types, or these are not columns.
        values = {str(name): list(column) for name, column in columns.items()}
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _mappings(rows: Iterable[object]) -> Iterator[dict[str, object]]:
    """Rows with the union of all columns, because Arrow takes the columns of the first row."""
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
