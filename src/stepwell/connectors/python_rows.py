"""Rows pushed from Python, by the same rules as for files.

Each row is accepted or becomes a dead letter on its own. Rows with the same columns are read column
by column, as Arrow arrays; anything that Arrow cannot hold is read row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from functools import lru_cache

import pyarrow as pa

from stepwell.connectors.file_parts import no_rows
from stepwell.connectors.formats import (
    OPERATION,
    Batch,
    ChangeFormat,
    Records,
    batch_of,
    read_one_by_one,
)
from stepwell.connectors.json_lines import joined
from stepwell.connectors.parquet_parts import record_at
from stepwell.connectors.push import Pushed
from stepwell.connectors.shape import Shape, shape_of
from stepwell.engine.payload import POSITION
from stepwell.engine.pushed import NOT_ARROW, Rows, table_or_list
from stepwell.lsm.change import Change, PartName
from stepwell.lsm.dead_letter import TEXT_MAX, BadRow
from stepwell.lsm.json_rows import json_object, json_row
from stepwell.sql.statements import Table

_FEW_ROWS = 16
"""Up to this many rows, Python is faster than setting up Arrow."""
_shape = lru_cache(maxsize=100)(shape_of)
_Where = Callable[[int], str]
_PLAIN = (str, int, float, bool, bytes, Decimal, date)


def pushed_rows(
    table: Table,
    rows: Rows | None = None,
    *,
    delete: Rows | None = None,
    discard: Rows | None = None,
) -> Pushed:
    """Convert pushed input to valid and bad rows; raises `InvalidError` if it is not rows.

    A column `$position` of rows to be deleted holds their positions.
    """
    shape = _shape(table)
    parts = (
        _read(shape, rows, "put"),
        _read(shape, delete, "delete"),
        _read(shape, discard, "discard"),
    )
    change = Change(*(part.operations if part.operations.num_rows else None for part in parts))
    bad = tuple(row for part in parts for row in part.bad)
    return Pushed(change, sum(part.rows for part in parts), bad)


def _read(shape: Shape, rows: Rows | None, part: PartName) -> Batch:
    given = [] if rows is None else table_or_list(rows)
    if isinstance(given, list):
        given = _as_table(given)
    positions: pa.ChunkedArray | None = None
    if isinstance(given, pa.Table) and POSITION in given.column_names[-1:]:
        positions, given = given.column(POSITION), given.drop_columns([POSITION])
    count = given.num_rows if isinstance(given, pa.Table) else len(given)
    if not count:
        return no_rows(shape)

    def where(at: int) -> str:
        if positions is not None:
            return str(positions[at].as_py())
        return f"row {at + 1}" if part == "put" else f"{part}, row {at + 1}"

    batch = _batch(shape, given, part != "put", where)
    width = len(shape.columns)
    made = batch.operations.select(range(width) if part == "put" else list(shape.wanted(put=False)))
    if part == "delete" and (positions is not None or batch.bad):
        # Bad rows are left out, so the indices of the others have shifted.
        numbers = batch.operations.column(width + 1).to_pylist()
        told = pa.array([where(number - 1) for number in numbers], pa.string())
        made = made.append_column(POSITION, told)
    return Batch(made, count, batch.bad)


def _as_table(rows: list[object]) -> pa.Table | list[object]:
    """Many rows with the same columns as an Arrow table, if it can hold them."""
    first = rows[0] if rows else None
    if len(rows) <= _FEW_ROWS or not isinstance(first, dict):
        return rows
    names = first.keys()
    if not all(isinstance(row, dict) and row.keys() == names for row in rows):
        return rows
    try:
        return pa.Table.from_pylist(rows)
    except NOT_ARROW:
        return rows


def _batch(shape: Shape, given: pa.Table | list[object], deletes: bool, where: _Where) -> Batch:
    format = ChangeFormat.INSERT_DELETE if deletes else ChangeFormat.ROWS
    if isinstance(given, pa.Table) and deletes and OPERATION in given.column_names:
        given = given.to_pylist()  # A column of the table has the name of the one that we add.
    if isinstance(given, pa.Table):
        records = _of_table(given, deletes, where)
        if given.num_rows > _FEW_ROWS:
            with suppress(Exception):  # Libraries may raise anything on unusual values.
                return batch_of(records, shape, format)
    else:
        records = _of_list(given, deletes, where)
    places = range(given.num_rows if isinstance(given, pa.Table) else len(given))
    with suppress(Exception):
        operations, bad, _ = read_one_by_one(records, list(places), shape, format)
        return Batch(operations, len(places), bad)
    return joined([_alone(records, at, shape, format) for at in places], shape)


def _alone(records: Records, at: int, shape: Shape, format: ChangeFormat) -> Batch:
    """Read one row on its own; it is bad if that fails."""
    try:
        operations, bad, _ = read_one_by_one(records, [at], shape, format)
        return Batch(operations, 1, bad)
    except Exception as error:  # noqa: BLE001 - see above
        reason = f"cannot be read: {type(error).__name__}: {error}"
        return no_rows(shape, BadRow(records.where(at), reason, records.shown(at)))


def _of_table(rows: pa.Table, deletes: bool, where: _Where) -> Records:
    columns = rows
    if deletes:
        operation = pa.repeat(pa.scalar("delete"), rows.num_rows)
        columns = rows.append_column(OPERATION, operation)
    return Records(
        columns,
        text=False,
        record=lambda at: record_at(columns, at),
        where=where,
        shown=lambda at: json_row(rows, at, TEXT_MAX),
        number=lambda at: at + 1,
    )


def _of_list(rows: list[object], deletes: bool, where: _Where) -> Records:
    return Records(
        pa.Table.from_arrays([], names=[]),
        text=False,
        record=lambda at: {"delete": _plain(rows[at])} if deletes else _plain(rows[at]),
        where=where,
        shown=lambda at: json_object(rows[at]),
        number=lambda at: at + 1,
    )


def _plain(row: object) -> object:
    if not isinstance(row, Mapping):
        return row
    return {name: _plain_value(value) for name, value in row.items()}


def _plain_value(value: object) -> object:
    """A value as JSON, Parquet or Arrow would give it, converted from NumPy for example."""
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        texts = all(isinstance(name, str) for name in value)
        return value if texts else list(value.items())
    if isinstance(value, list | tuple):
        return list(value)
    try:
        return pa.scalar(value).as_py()
    except NOT_ARROW:
        return value
