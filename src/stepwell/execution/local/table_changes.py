"""Turn the incoming changes of a table into a change set: retractions and insertions.

In a table with a key a put replaces the row with that key, the last put of a key wins, and a delete
names a key. Without a key, rows are a bag: a put adds a row, and a delete removes one equal row. A
delete that matches nothing is rejected and reported; no count ever goes below zero. A discard
succeeds whether or not its key exists.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.errors import InvalidError
from stepwell.execution.local.join_kernels import among_rows
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.change import Change, Rejected
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.equality import only_last
from stepwell.lsm.fold import check_discards
from stepwell.lsm.run_file import WEIGHT
from stepwell.lsm.values import comparable, key_of
from stepwell.plan.numbers import DIGITS_MAX
from stepwell.plan.types import stored_type
from stepwell.sql.statements import Table
from stepwell.text import quote_name, quote_text

_CHARACTERS = re.compile(r"varchar\((\d+)\)")

Lookup = Callable[[pa.Table, tuple[int, ...]], pa.Table]
"""Returns the stored rows whose columns at these positions have the given values, consolidated."""


def normalise(
    table: Table, key: tuple[int, ...], change: Change, lookup: Lookup
) -> tuple[pa.Table, list[Rejected]]:
    """The change set of a table, and the rejected rows."""
    check_discards(table.name, key, change)
    put = _typed(table, change.put, range(len(table.columns)))
    if key:
        deleted, discarded = _typed(table, change.delete, key), _typed(table, change.discard, key)
        return _keyed(table, key, put, deleted, discarded, lookup)
    deleted = _typed(table, change.delete, range(len(table.columns)))
    return _bag(table, put, deleted, lookup)


def _keyed(
    table: Table,
    key: tuple[int, ...],
    put: pa.Table,
    deleted: pa.Table,
    discarded: pa.Table,
    lookup: Lookup,
) -> tuple[pa.Table, list[Rejected]]:
    names = [f"c{i}" for i in key]
    put = only_last(put, key)
    touched = pa.concat_tables([part.select(names) for part in (put, deleted, discarded)])
    if not touched.num_rows:
        return _weighted(put, 1), []
    old = lookup(touched, key)
    types = [stored_type(table.columns[i].type) for i in key]
    absent = _absent(deleted, discarded, old, types)
    rejected = _rejected(table, "delete of a key that is not there", deleted, absent)
    if not old.num_rows:
        return _weighted(put, 1), rejected
    change = pa.concat_tables([_weighted(old.drop_columns([WEIGHT]), -1), _weighted(put, 1)])
    return consolidated(change), rejected


def _absent(
    deleted: pa.Table, discarded: pa.Table, old: pa.Table, types: Sequence[str]
) -> pa.Array:
    """Positions of keys to delete that do not exist, or no longer."""
    if not deleted.num_rows:
        return pa.array([], pa.int64())
    names = deleted.column_names
    once = not discarded.num_rows and all(map(comparable, types))
    if once and deleted.group_by(names).aggregate([]).num_rows == deleted.num_rows:
        found = among_rows(deleted.columns, old.select(names).columns)
        if found is not None:
            return pc.indices_nonzero(pc.invert(found))
    there = set(_rows(old, names)).difference(_rows(discarded, names))
    absent = []
    for place, row in enumerate(_rows(deleted, names)):
        if row in there:
            there.remove(row)
        else:
            absent.append(place)
    return pa.array(absent, pa.int64())


def _bag(
    table: Table, put: pa.Table, deleted: pa.Table, lookup: Lookup
) -> tuple[pa.Table, list[Rejected]]:
    if not deleted.num_rows:
        return _weighted(put, 1), []
    every = tuple(range(len(table.columns)))
    old = lookup(deleted, every)
    there: Counter[tuple[object, ...]] = Counter()
    names = [f"c{i}" for i in every]
    for row, weight in zip(_rows(old, names), old.column(WEIGHT).to_pylist(), strict=True):
        there[row] += weight
    absent: list[int] = []
    kept: list[int] = []
    for place, row in enumerate(_rows(deleted, names)):
        if there[row] > 0:
            there[row] -= 1
            kept.append(place)
        else:
            absent.append(place)
    missing = pa.array(absent, pa.int64())
    rejected = _rejected(table, "delete of a row that is not there", deleted, missing)
    gone = deleted.take(pa.array(kept, pa.int64()))
    return pa.concat_tables([_weighted(gone, -1), _weighted(put, 1)]), rejected


def _rejected(table: Table, reason: str, deleted: pa.Table, places: pa.Array) -> list[Rejected]:
    rows = zip(places.to_pylist(), _shown(deleted.take(places)), strict=True)
    return [Rejected(table.name, row, reason, "delete", at) for at, row in rows]


def _typed(table: Table, rows: pa.Table | None, columns: Sequence[int]) -> pa.Table:
    """The given rows cast to the table's types, columns c0, c1, ... at these positions."""
    wanted = [table.columns[i] for i in columns]
    schema = arrow_schema(tuple(stored_type(c.type) for c in table.columns))
    fields = [schema.field(i) for i in columns]
    if rows is None:
        return pa.table([pa.array([], f.type) for f in fields], names=[f.name for f in fields])
    given = {name.lower(): i for i, name in enumerate(rows.column_names)}
    made = []
    for column, want in zip(wanted, fields, strict=True):
        place = given.get(column.name.lower())
        if place is None:
            if not column.nullable:
                raise InvalidError(
                    f"{table.name}: the column {column.name} is missing",
                    hint="columns given: " + ", ".join(rows.column_names),
                )
            made.append(pa.nulls(rows.num_rows, want.type))
            continue
        values = rows.column(place)
        if not column.nullable and values.null_count:
            raise InvalidError(f"{table.name}: the column {column.name} is NULL in some rows")
        values = _characters(table, column.name, column.type, values)
        try:
            made.append(_cast(values, want.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidError(
                f"{table.name}: the column {column.name} is {values.type}, "
                f"not {column.type}: {error}"
            ) from error
    unknown = set(given) - {c.name.lower() for c in table.columns}
    if unknown:
        raise InvalidError(
            f"{table.name} has no column {sorted(unknown)[0]}",
            hint="its columns are: " + ", ".join(c.name for c in table.columns),
        )
    return pa.table(made, names=[f.name for f in fields])


def typed_items(table: Table, types: Sequence[str], given: Sequence[str]) -> list[str]:
    """Like `_typed`, as SELECT items for Spark over rows with these columns."""
    columns = {name.lower(): name for name in given}
    items = []
    for i, (column, kind) in enumerate(zip(table.columns, types, strict=True)):
        found = columns.pop(column.name.lower(), None)
        if found is None and not column.nullable:
            raise InvalidError(f"{table.name}: the column {column.name} is missing")
        value = "NULL" if found is None else quote_name(found)
        if not column.nullable:
            message = f"{table.name}: the column {column.name} is NULL in some rows"
            value = f"COALESCE({value}, raise_error({quote_text(message)}))"
        items.append(f"CAST({value} AS {kind}) AS c{i}")
    if columns:
        raise InvalidError(
            f"{table.name} has no column {next(iter(columns.values()))}",
            hint="its columns are: " + ", ".join(c.name for c in table.columns),
        )
    return items


def _cast(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Values cast to another type, if all of them fit."""
    if values.type == type_:
        return values
    if pa.types.is_decimal(type_) and not pa.types.is_decimal(values.type):
        # Arrow requires that every number of that type would fit, not only the actual values.
        values = values.cast(pa.decimal128(DIGITS_MAX, type_.scale))
    return values.cast(type_)


def _characters(table: Table, name: str, type_: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reject values longer than VARCHAR allows."""
    kind = _CHARACTERS.fullmatch(type_)
    if kind is None:
        return values
    values, length = values.cast(pa.string()), int(kind[1])
    if (pc.max(pc.utf8_length(values)).as_py() or 0) > length:
        raise InvalidError(f"{table.name}: a value of the column {name} is too long for {type_}")
    return values


def _weighted(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(WEIGHT, pa.repeat(pa.scalar(weight, pa.int64()), rows.num_rows))


def _rows(table: pa.Table, names: list[str]) -> list[tuple[object, ...]]:
    """Rows as hashable values that are equal where Spark calls the rows equal."""
    columns = []
    for name in names:
        kind = _numbered(table.schema.field(name).type)
        columns.append([key_of(v, kind) for v in table.column(name).cast(kind).to_pylist()])
    return list(zip(*columns, strict=True)) if columns else []


def _shown(table: pa.Table) -> list[tuple[object, ...]]:
    """Rows as values for a message."""
    columns = []
    for column in table.columns:
        try:
            columns.append([key_of(v, column.type) for v in column.to_pylist()])
        except (OverflowError, ValueError):  # A date or time outside Python's range.
            columns.append(column.cast(_numbered(column.type)).to_pylist())
    return list(zip(*columns, strict=True)) if columns else []


def _numbered(kind: pa.DataType) -> pa.DataType:
    """A type with numbers for dates and times, since Python cannot represent all of those."""
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_numbered(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_numbered(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_numbered(kind.key_type), _numbered(kind.item_type))
    return kind
