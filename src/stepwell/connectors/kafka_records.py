"""Decoding Kafka records into operations, by the same rules as the lines of files.

The value of a record is one JSON object, one line of CSV without a header, or one Avro record. A
null value is a tombstone: it deletes the row of its key, if the source knows what the key holds.
Whatever a record contains, it becomes rows or a dead letter: decoding never raises, unless a schema
registry does not answer.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.csv_lines import decode_csv
from stepwell.connectors.file_parts import no_rows
from stepwell.connectors.folding import operations_schema
from stepwell.connectors.formats import (
    Batch,
    ChangeFormat,
    Records,
    batch_of,
    operations_of,
    operations_table,
)
from stepwell.connectors.json_lines import RECORD_BYTES_MAX, decode_json, joined, read_record
from stepwell.connectors.kafka import Record
from stepwell.connectors.lines import NEVER_CLOSED, hide_quoted_line_ends
from stepwell.connectors.shape import Row, Shape, ShapeColumn, Text
from stepwell.connectors.values import Unfit
from stepwell.errors import ConfigError, StepwellError
from stepwell.lsm.dead_letter import TEXT_MAX, BadRow, own_text
from stepwell.sql.statements import fold

if TYPE_CHECKING:
    # They need an optional package, which other formats do not.
    from stepwell.connectors.avro import AvroSchema
    from stepwell.connectors.avro_records import AvroLayout, StepSchemas

METADATA = {
    "_topic": ("string",),
    "_partition": ("int", "bigint"),
    "_offset": ("bigint",),
    "_timestamp": ("timestamp",),
    "_key": ("binary", "string"),
    "_headers": ("array",),
}
"""Columns that hold where a record comes from, and the types that they may have."""
_HEADERS = "array<struct<key:string,value:binary>>"
_FEW_ROWS = 16
"""Up to this many rows, Python is faster than setting up Arrow."""


@dataclass(frozen=True, slots=True)
class Found:
    """A record, and the partition it is from."""

    topic: str
    partition: int
    record: Record
    binary: bool = False
    """Whether the value is not a text."""

    @property
    def where(self) -> str:
        return f"{self.topic} [{self.partition}], offset {self.record.offset}"

    @property
    def text(self) -> str:
        value = self.record.value
        if value is None:
            return own_text(self.record.key or b"")
        return base64.b64encode(value[:TEXT_MAX]).decode() if self.binary else own_text(value)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the records of a source look like."""

    changes: ChangeFormat
    key: tuple[str, ...] = ()
    """The columns that the key of a record holds."""
    metadata: tuple[str, ...] = ()
    """The columns of the table that hold metadata."""
    delimiter: str | None = None
    """Of CSV; None for JSON."""
    columns: tuple[str, ...] = ()
    """The columns of CSV, in order."""
    avro: AvroLayout | None = None
    """If the values are Avro."""


class RecordDecoder:
    def __init__(self, what: str, shape: Shape, layout: Layout) -> None:
        self._shape = shape
        self._layout = layout
        self._metadata = _metadata_columns(what, shape, layout)
        self._required = tuple(n for n in layout.metadata if not _column(shape, n).nullable)
        self._inner = _without(shape, frozenset(self._metadata))
        self._key = _key_columns(what, shape, layout)

    def decode(self, found: Sequence[Found], schemas: StepSchemas | None = None) -> Batch:
        """Operations, in order, each with the index of its record. `schemas` are those of Avro."""
        plain = [at for at, item in enumerate(found) if self._is_plain(item, schemas is not None)]
        batches: list[Batch] = []
        if schemas is not None:
            batches, plain = self._avro(found, plain, schemas)
        elif plain:
            batches = [self._plain(found, plain)]
        if len(plain) < len(found):
            taken = set(plain)
            rest = [at for at in range(len(found)) if at not in taken]
            batches.append(self._one_by_one(found, rest, schemas))
        if not batches:
            return no_rows(self._shape)
        batch = joined(batches, self._inner)
        numbers = batch.operations.column(batch.operations.num_columns - 1)
        operations = batch.operations
        if len(batches) > 1:
            # Stable: a record may delete one row and put another.
            operations = operations.take(pc.sort_indices(numbers))
        return Batch(self._complete(operations, found), len(found), batch.bad)

    def _is_plain(self, item: Found, is_avro: bool) -> bool:
        """Whether a value can be decoded together with others, as one of several lines."""
        value = item.record.value
        if self._required and self._lacking(item) is not None:
            return False
        if value is None or len(value) > RECORD_BYTES_MAX:
            return False
        if is_avro:
            return True
        if b"\n" in value or not value.strip():
            return False
        # An open quote would reach into the next record; Arrow takes a carriage return for an end.
        return self._layout.delimiter is None or not (b'"' in value or b"\r" in value)

    def _plain(self, found: Sequence[Found], places: Sequence[int]) -> Batch:
        """Decode plain values together; if a library fails, one by one."""
        data = b"\n".join(found[at].record.value or b"" for at in places)
        try:
            batch = self._lines(data, lambda line: found[places[line]].where)
        except Exception:  # noqa: BLE001 - libraries may raise anything on malformed bytes
            return self._one_by_one(found, places)
        if batch.rows != len(places):
            return self._one_by_one(found, places)
        if len(places) == len(found):
            return batch
        last = batch.operations.num_columns - 1
        numbers = pa.chunked_array([pa.array(places, pa.int64())]).take(
            batch.operations.column(last)
        )
        field = batch.operations.schema.field(last)
        return replace(batch, operations=batch.operations.set_column(last, field, numbers))

    def _avro(
        self, found: Sequence[Found], places: Sequence[int], schemas: StepSchemas
    ) -> tuple[list[Batch], list[int]]:
        """Decode values with the same schema together; returns the places of those that were."""
        groups: dict[int | None, list[int]] = {}
        for at in places:
            with suppress(Unfit):
                groups.setdefault(schemas.id_of(found[at].record.value or b""), []).append(at)
        made: list[Batch] = []
        taken: list[int] = []
        for id, group in groups.items():
            if len(group) <= _FEW_ROWS:
                continue
            with suppress(Unfit):
                decoded = self._avro_group(found, group, schemas, schemas.writer(id))
                if decoded is not None:
                    made.append(decoded[0])
                    taken += decoded[1]
        return made, taken

    def _avro_group(
        self, found: Sequence[Found], group: Sequence[int], schemas: StepSchemas, writer: AvroSchema
    ) -> tuple[Batch, list[int]] | None:
        """Decode values of one schema column by column, except for invalid ones."""
        types = (schemas.reader or writer).columns()
        if types is None:
            return None
        values: list[object] = []
        places: list[int] = []
        for at in group:
            with suppress(Unfit):
                values.append(schemas.decode(found[at].record.value or b"", writer))
                places.append(at)
        columns = writer.table(values, types)
        if columns is None:
            return None
        records = Records(
            columns,
            text=False,
            record=lambda at: values[at],
            where=lambda at: found[places[at]].where,
            shown=lambda at: found[places[at]].text,
            number=lambda at: places[at],
            number_puts=True,
        )
        try:
            return batch_of(records, self._inner, self._layout.changes), places
        except Exception:  # noqa: BLE001 - see above
            return None

    def _lines(self, data: bytes, where: Callable[[int], str]) -> Batch:
        layout = self._layout
        if layout.delimiter is None:
            return decode_json(
                data, self._inner, layout.changes, first_line=0, where=where, number_puts=True
            )
        return decode_csv(
            data,
            layout.columns,
            self._inner,
            layout.changes,
            delimiter=layout.delimiter,
            first_line=0,
            where=where,
            number_puts=True,
        )

    def _one_by_one(
        self, found: Sequence[Found], places: Sequence[int], schemas: StepSchemas | None = None
    ) -> Batch:
        rows: list[Row] = []
        puts: list[bool] = []
        numbers: list[int | None] = []
        bad: list[BadRow] = []
        for at in places:
            item = found[at]
            try:
                operations = self._operations(item.record, schemas)
                lacking = self._lacking(item) if any(put for put, _ in operations) else None
                if lacking is not None:
                    raise Unfit(f"the column {lacking} is NULL")
                for put, row in operations:
                    rows.append(row)
                    puts.append(put)
                    numbers.append(at)
            except Unfit as unfit:
                bad.append(BadRow(item.where, str(unfit), item.text))
            except StepwellError:
                raise  # A registry that does not answer says nothing about the record.
            except Exception as error:  # noqa: BLE001 - see above
                reason = f"cannot be read: {type(error).__name__}: {error}"
                bad.append(BadRow(item.where, reason, item.text))
        table = operations_table(rows, puts, self._inner, numbers)
        return Batch(table, len(places), tuple(bad))

    def _operations(self, record: Record, schemas: StepSchemas | None) -> list[tuple[bool, Row]]:
        layout, value = self._layout, record.value
        if value is None:
            return self._tombstone(record, schemas)
        if len(value) > RECORD_BYTES_MAX:
            raise Unfit(f"a record of {len(value)} bytes is longer than {RECORD_BYTES_MAX}")
        if schemas is not None:
            return operations_of(schemas.value(value), self._inner, layout.changes)
        if layout.delimiter is None:
            return operations_of(read_record(value), self._inner, layout.changes)
        return self._csv_operations(value)

    def _csv_operations(self, value: bytes) -> list[tuple[bool, Row]]:
        """The operations of a value that may hold quotes or line ends."""
        if hide_quoted_line_ends(value, str(self._layout.delimiter))[1] is not None:
            raise Unfit(NEVER_CLOSED)
        batch = self._lines(value, lambda line: "")
        if batch.bad:
            raise Unfit(batch.bad[0].reason)
        if batch.rows != 1:
            raise Unfit(f"expected one line of CSV, found {batch.rows}")
        width = len(self._inner.columns)
        return [
            (bool(values[width]), list(values[:width]))
            for values in zip(*(c.to_pylist() for c in batch.operations.columns), strict=True)
        ]

    def _tombstone(self, record: Record, schemas: StepSchemas | None) -> list[tuple[bool, Row]]:
        layout = self._layout
        if layout.changes is ChangeFormat.DEBEZIUM:
            return []
        if not self._key:
            raise Unfit("a tombstone, and the source has no option key")
        if record.key is None:
            raise Unfit("a tombstone without a key")
        key = self._key_of(record.key, schemas)
        return [(False, self._inner.row_of(key, put=False))]

    def _key_of(self, key: bytes, schemas: StepSchemas | None) -> Mapping[str, object]:
        """The key columns that a record's key holds: an object, or the value of a single one."""
        layout = self._layout
        value: object
        if schemas is not None and schemas.keys:
            if len(key) > RECORD_BYTES_MAX:
                raise Unfit(f"a key of {len(key)} bytes is longer than {RECORD_BYTES_MAX}")
            value = schemas.key(key)
        elif layout.delimiter is not None or self._inner.columns[self._only()].kind.name in _TEXTS:
            value = self._text_key(key)
        else:
            value = read_record(key)
        if isinstance(value, Mapping):
            wanted = {fold(name) for name in self._key}
            return {name: v for name, v in value.items() if fold(str(name)) in wanted}
        if len(self._key) > 1:
            raise Unfit(f"the key is not an object with {', '.join(self._key)}")
        return {self._key[0]: value}

    def _text_key(self, key: bytes) -> object:
        """A key that is text: an object, a JSON string, or the text itself."""
        try:
            value = read_record(key)
        except Unfit:
            value = None
        if isinstance(value, Mapping) or (isinstance(value, str) and key.strip()[:1] == b'"'):
            return value
        try:
            return Text(key.decode())
        except UnicodeDecodeError:
            raise Unfit("the key is not UTF-8") from None

    def _only(self) -> int:
        """The place of the first key column."""
        return self._inner.places[fold(self._key[0])]

    def _lacking(self, item: Found) -> str | None:
        """A column of metadata that must not be NULL, and is."""
        return next((n for n in self._required if self._metadata[n](item) is None), None)

    def _complete(self, operations: pa.Table, found: Sequence[Found]) -> pa.Table:
        """The operations with the columns of metadata at their places."""
        if not self._metadata:
            return operations
        width = len(self._inner.columns)
        numbers = operations.column(width + 1)
        columns, inner = [], iter(operations.columns)
        for column in self._shape.columns:
            name = fold(column.name)
            if name not in self._metadata:
                columns.append(next(inner))
                continue
            values = pa.array([self._metadata[name](item) for item in found], column.arrow)
            columns.append(pa.chunked_array([values]).take(numbers))
        columns += operations.columns[width:]
        return pa.Table.from_arrays(columns, schema=operations_schema(self._shape))


_TEXTS = ("string", "varchar", "char")
_TIMES_MS = (-62_135_596_800_000, 253_402_300_799_999)
"""The first and the last millisecond that a TIMESTAMP can hold."""


def _timestamp(item: Found) -> object:
    given = item.record.timestamp_ms
    if given is None or not _TIMES_MS[0] <= given <= _TIMES_MS[1]:
        return None  # Producers may set any number.
    return given * 1000


def _key_text(item: Found) -> object:
    key = item.record.key
    return None if key is None else key.decode(errors="replace")


def _headers(item: Found) -> object:
    given = item.record.headers
    return None if not given else [{"key": key, "value": value} for key, value in given]


_VALUES: Mapping[str, Callable[[Found], object]] = {
    "_topic": lambda item: item.topic,
    "_partition": lambda item: item.partition,
    "_offset": lambda item: item.record.offset,
    "_timestamp": _timestamp,
    "_key": lambda item: item.record.key,
    "_headers": _headers,
}


def _metadata_columns(
    what: str, shape: Shape, layout: Layout
) -> dict[str, Callable[[Found], object]]:
    """The functions that give the columns of metadata; raises `ConfigError` for a wrong column."""
    for name in layout.metadata:
        if name not in METADATA:
            raise ConfigError(
                f"{what}: option metadata has no column {name}",
                hint="its columns are: " + ", ".join(METADATA),
            )
        place = shape.places.get(name)
        if place is None:
            raise ConfigError(
                f"{what}: the table {shape.table} has no column {name}",
                hint=f"declare it: {name} {_type_of(name)}",
            )
        column = shape.columns[place]
        wrong = column.kind.name not in METADATA[name]
        if wrong or (name == "_headers" and str(column.kind) != _HEADERS):
            raise ConfigError(
                f"{what}: the column {name} cannot be {str(column.kind).upper()}",
                hint=f"declare it: {name} {_type_of(name)}",
            )
    keyed = [name for name in layout.metadata if shape.places[name] in shape.key]
    if layout.metadata and layout.changes is not ChangeFormat.ROWS and (keyed or not shape.key):
        raise ConfigError(
            f"{what}: a delete cannot name {(keyed or layout.metadata)[0]} of the row it deletes",
            hint="use changes: rows, or give the table a key without columns of metadata",
        )
    made = dict(_VALUES)
    if "_key" in layout.metadata and _column(shape, "_key").kind.name == "string":
        made["_key"] = _key_text
    return {name: made[name] for name in layout.metadata}


def _column(shape: Shape, name: str) -> ShapeColumn:
    return shape.columns[shape.places[name]]


def _type_of(name: str) -> str:
    return _HEADERS.upper() if name == "_headers" else METADATA[name][0].upper()


def _without(shape: Shape, names: frozenset[str]) -> Shape:
    """The shape of the columns that the record itself holds."""
    if not names:
        return shape
    columns = tuple(column for column in shape.columns if fold(column.name) not in names)
    places = {fold(column.name): place for place, column in enumerate(columns)}
    kept = [fold(shape.columns[place].name) for place in shape.key]
    key = () if set(kept) & names else tuple(places[name] for name in kept)
    schema = pa.schema([pa.field(column.name, column.arrow) for column in columns])
    return replace(shape, columns=columns, places=places, key=key, schema=schema)


def _key_columns(what: str, shape: Shape, layout: Layout) -> tuple[str, ...]:
    if not layout.key:
        return ()
    of_table = [shape.columns[place].name for place in shape.key]
    if {fold(name) for name in layout.key} != {fold(name) for name in of_table}:
        told = f"is ({', '.join(of_table)})" if of_table else "has none"
        raise ConfigError(
            f"{what}: option key is ({', '.join(layout.key)}), but the key of the table "
            f"{shape.table} {told}",
            hint="a tombstone deletes the row with the key of the record, so both must be the same",
        )
    return layout.key
