"""Change formats: how the records of a source change its table.

    rows            a record is a row: it replaces the one with its key, or adds one to a bag
    insert_delete   {"insert": row} or {"delete": row}; in CSV and Parquet a column `_op` says which
    debezium        Debezium events (`debezium.py`)

Each format is implemented twice. `operations_of` takes one decoded record and knows every rule.
`batch_of` takes whole columns, handles the certain cases, and passes each doubtful row to
`operations_of`. An invalid record never stops the others: it becomes a `BadRow`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.columns import either, fit_column
from stepwell.connectors.debezium import PUTS, debezium_operations
from stepwell.connectors.folding import operations_schema
from stepwell.connectors.shape import Row, Shape
from stepwell.connectors.values import Unfit, shown
from stepwell.lsm.dead_letter import BadRow
from stepwell.sql.statements import fold

OPERATION = "_op"
"""The column of a CSV or Parquet file that holds the operation."""


class ChangeFormat(Enum):
    ROWS = "rows"
    INSERT_DELETE = "insert_delete"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of some records: operations in order (`folding.py`), and the bad records."""

    operations: pa.Table
    rows: int
    """Number of records read, including bad ones."""
    bad: tuple[BadRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Records:
    """Records as columns, with access to single records that need a closer look."""

    columns: pa.Table
    text: bool
    """Whether they come from a format in which every value is text."""
    record: Callable[[int], object]
    """The record at an index as a decoded value; raises `Unfit` if it is invalid."""
    where: Callable[[int], str]
    shown: Callable[[int], str]
    """The record's own text, truncated."""
    number: Callable[[int], int]
    """The line, or row, number of the record at an index."""
    doubt: pa.Array | None = None
    """Records that are doubtful from the start."""
    number_puts: bool = False
    """Whether operations that put a row have the number of their record, too."""


def batch_of(records: Records, shape: Shape, format: ChangeFormat) -> Batch:
    """Turn records into operations, column by column, and one by one where doubtful."""
    count = records.columns.num_rows
    sides, doubt = _sides(records.columns, shape, format)
    doubt = either(doubt, records.doubt)
    parts = []
    for side in sides:
        fitted, side_doubt = _fitted(side, shape, text=records.text)
        parts.append((side, fitted))
        if side_doubt is not None:
            places = _places(side, count).filter(side_doubt)
            doubt = either(doubt, pc.is_in(pa.array(range(count), pa.int64()), places))
    if doubt is None and len(parts) == 1 and sides[0].places is None:
        put = parts[0][1]
        return Batch(
            _with_numbers(put, range(count), records) if records.number_puts else put, count
        )
    again = [] if doubt is None else pc.indices_nonzero(pc.fill_null(doubt, False)).to_pylist()
    doubtful = pa.array(again, pa.int64())
    tables, order = [], []
    for side, fitted in parts:
        places = _places(side, count)
        sure = pc.invert(pc.is_in(places, doubtful))
        fitted = fitted.filter(sure)
        if (records.number_puts or not side.put) and fitted.num_rows:
            fitted = _with_numbers(fitted, places.filter(sure).to_pylist(), records)
        tables.append(fitted)
        # A record that deletes one row and puts another does so in this order.
        order.append(pc.add(pc.multiply(places.filter(sure), 2), int(side.put)))
    alone, bad, spots = read_one_by_one(records, again, shape, format)
    tables.append(alone)
    order.append(spots)
    operations = pa.concat_tables(tables)
    return Batch(operations.take(pc.sort_indices(pa.chunked_array(order))), count, bad)


def read_one_by_one(
    records: Records, places: list[int], shape: Shape, format: ChangeFormat
) -> tuple[pa.Table, tuple[BadRow, ...], pa.Array]:
    """The operations of some records, the bad records, and the sort key of each operation."""
    rows: list[Row] = []
    puts: list[bool] = []
    numbers: list[int | None] = []
    order: list[int] = []
    bad: list[BadRow] = []
    for place in places:
        try:
            for put, row in operations_of(records.record(place), shape, format):
                rows.append(row)
                puts.append(put)
                unnumbered = put and not records.number_puts
                numbers.append(None if unnumbered else records.number(place))
                order.append(2 * place + put)
        except Unfit as unfit:
            bad.append(BadRow(records.where(place), str(unfit), records.shown(place)))
    table = operations_table(rows, puts, shape, numbers)
    return table, tuple(bad), pa.array(order, pa.int64())


def _with_numbers(operations: pa.Table, places: Sequence[int], records: Records) -> pa.Table:
    """The operations with the numbers of their records, which are at these places."""
    numbers = pa.array([records.number(place) for place in places], pa.int64())
    last = operations.num_columns - 1
    return operations.set_column(last, operations.schema.field(last), numbers)


def operations_table(
    rows: list[Row], puts: list[bool], shape: Shape, numbers: Sequence[int | None] | None = None
) -> pa.Table:
    columns = [pa.array([r[i] for r in rows], c.arrow) for i, c in enumerate(shape.columns)]
    columns.append(pa.array(puts, pa.bool_()))
    columns.append(pa.array([None] * len(rows) if numbers is None else numbers, pa.int64()))
    return pa.Table.from_arrays(columns, schema=operations_schema(shape))


def operations_of(record: object, shape: Shape, format: ChangeFormat) -> list[tuple[bool, Row]]:
    """The operations of one record, in order; raises `Unfit` if it is invalid."""
    if format is ChangeFormat.DEBEZIUM:
        return debezium_operations(record, shape)
    if format is ChangeFormat.ROWS:
        return [(True, shape.row_of(record))]
    if not isinstance(record, Mapping):
        raise Unfit("not an object")
    if OPERATION in record:  # From CSV or Parquet: in JSON, the operation encloses the row.
        put = _IS_PUT.get(str(getattr(record[OPERATION], "text", record[OPERATION])).lower())
        if put is None:
            raise Unfit(f"{OPERATION} is neither insert nor delete")
        row = {name: value for name, value in record.items() if name != OPERATION}
        return [(put, shape.row_of(row, put=put))]
    if len(record) != 1 or not set(record) <= {"insert", "delete"}:
        names = ", ".join(map(str, record))
        raise Unfit(f"expected an object with insert or delete alone, found {shown(names)}")
    ((name, row),) = record.items()
    return [(name == "insert", shape.row_of(row, put=name == "insert"))]


_IS_PUT = {"insert": True, "i": True, "delete": False, "d": False}


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows that are all put, or all deleted."""

    put: bool
    columns: pa.Table
    places: pa.Array | None = None
    """The index of each row's record; None if the rows are all records in order."""


def _places(side: _Side, count: int) -> pa.Array:
    return pa.array(range(count), pa.int64()) if side.places is None else side.places


def _sides(
    columns: pa.Table, shape: Shape, format: ChangeFormat
) -> tuple[list[_Side], pa.Array | None]:
    """The rows to put and to delete, and the records that are doubtful from the start."""
    if format is ChangeFormat.ROWS:
        return [_Side(True, columns)], None
    if format is ChangeFormat.DEBEZIUM:
        return _debezium_sides(columns, shape)
    if OPERATION in columns.column_names:
        given = columns.column(OPERATION).combine_chunks()
        if pa.types.is_dictionary(given.type):
            given = given.dictionary_decode()
        if not pa.types.is_string(given.type):
            return [], pa.array([True] * columns.num_rows, pa.bool_())
        operation = pc.ascii_lower(given)  # It may not be UTF-8; then it is doubtful, too.
        rest = columns.drop_columns([OPERATION])
        put = pc.is_in(operation, pa.array(["insert", "i"]))
        delete = pc.is_in(operation, pa.array(["delete", "d"]))
        sides = [_chosen(True, rest, put), _chosen(False, rest, delete)]
        return sides, pc.invert(pc.or_(put, delete))
    if not {"insert", "delete"} & set(columns.column_names):
        return [], pa.array([True] * columns.num_rows, pa.bool_())
    put, delete = _present(columns, "insert"), _present(columns, "delete")
    sides = [_chosen(True, _inner(columns, "insert"), put)]
    sides.append(_chosen(False, _inner(columns, "delete"), delete))
    return sides, pc.invert(pc.xor(put, delete))


def _debezium_sides(columns: pa.Table, shape: Shape) -> tuple[list[_Side], pa.Array | None]:
    operation = columns.column("op").combine_chunks()
    before, after = _present(columns, "before"), _present(columns, "after")
    update = pc.fill_null(pc.equal(operation, "u"), False)
    put = pc.and_(pc.or_(pc.is_in(operation, pa.array(PUTS)), update), after)
    delete = pc.and_(pc.fill_null(pc.equal(operation, "d"), False), before)
    if shape.key:
        clear = pc.or_(pc.invert(update), pc.or_(pc.invert(before), _keeps_key(columns, shape)))
    else:
        delete = pc.or_(delete, pc.and_(update, before))
        clear = pc.or_(pc.invert(update), before)
    clear = pc.and_(pc.and_(clear, pc.or_(put, delete)), pc.or_(pc.invert(update), after))
    sides = [_chosen(False, _inner(columns, "before"), delete)]
    sides.append(_chosen(True, _inner(columns, "after"), put))
    return sides, pc.invert(clear)


def _keeps_key(columns: pa.Table, shape: Shape) -> pa.Array:
    """Where `before` and `after` certainly have the same key, so that the row is replaced."""
    before, after = (
        {fold(name): side.column(name) for name in side.column_names}
        for side in (_inner(columns, "before"), _inner(columns, "after"))
    )
    keeps = pa.array([True] * columns.num_rows, pa.bool_())
    for name in (fold(shape.columns[place].name) for place in shape.key):
        if name not in before or name not in after or before[name].type != after[name].type:
            return pa.array([False] * columns.num_rows, pa.bool_())
        same = pc.fill_null(pc.equal(before[name], after[name]), False)
        keeps = pc.and_(keeps, same.combine_chunks())
    return keeps


def _chosen(put: bool, columns: pa.Table, mask: pa.Array) -> _Side:
    mask = pc.fill_null(mask, False)
    if not pc.any(mask).as_py():
        return _Side(put, columns.slice(0, 0), pa.array([], pa.int64()))
    return _Side(put, columns.filter(mask), pc.indices_nonzero(mask).cast(pa.int64()))


def _present(columns: pa.Table, name: str) -> pa.Array:
    if name not in columns.column_names:
        return pa.array([False] * columns.num_rows, pa.bool_())
    return columns.column(name).combine_chunks().is_valid()


def _inner(columns: pa.Table, name: str) -> pa.Table:
    """The fields of a struct column, as columns."""
    if name not in columns.column_names:
        return pa.Table.from_arrays([], names=[])
    objects = columns.column(name).combine_chunks()
    return pa.Table.from_arrays(objects.flatten(), names=[field.name for field in objects.type])


def _fitted(side: _Side, shape: Shape, *, text: bool) -> tuple[pa.Table, pa.Array | None]:
    """The columns of the table, converted from the given ones, and the doubtful rows."""
    count = side.columns.num_rows
    given = {fold(name): i for i, name in enumerate(side.columns.column_names)}
    doubt = None
    if count and not shape.ignore_unknown and set(given) - set(shape.places):
        doubt = pa.array([True] * count, pa.bool_())
    made = []
    for place, column in enumerate(shape.columns):
        found = given.get(fold(column.name))
        if place not in shape.wanted(side.put):
            made.append(pa.nulls(count, column.arrow))
        elif found is None:
            try:
                value = pa.scalar(column.missing(), column.arrow)
                made.append(pa.repeat(value, count))
            except Unfit:
                made.append(pa.nulls(count, column.arrow))
                doubt = pa.array([True] * count, pa.bool_())
        else:
            values = side.columns.column(found).combine_chunks()
            fitted, column_doubt = fit_column(values, column, text=text)
            made.append(fitted)
            doubt = either(doubt, column_doubt)
    made.append(pa.repeat(pa.scalar(side.put), count))
    made.append(pa.nulls(count, pa.int64()))
    return pa.Table.from_arrays(made, schema=operations_schema(shape)), doubt
