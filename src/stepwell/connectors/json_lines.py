"""Decoding JSON lines into operations.

Arrow's reader decodes a thousand records in the time Python needs for twenty. But it stops at the
first record that does not fit, ignores line boundaries, and crashes the process on a `null` between
objects. So it is only given text that is certainly one object per line. If it rejects a large
piece, it is given smaller ones, and Python reads the pieces it still rejects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.json as arrow_json

from stepwell.connectors.columns import is_utf8, raw_type
from stepwell.connectors.folding import operations_schema
from stepwell.connectors.formats import (
    Batch,
    ChangeFormat,
    Records,
    batch_of,
    read_one_by_one,
)
from stepwell.connectors.shape import Shape
from stepwell.connectors.values import Unfit
from stepwell.lsm.dead_letter import own_text
from stepwell.sql.statements import fold

RECORD_BYTES_MAX = 8 * 1024 * 1024
_FEW_LINES = 16
"""Up to this many lines, Python is faster than setting up Arrow's reader."""
_PIECE_LINES = 1_000
_STRAY = re.compile(rb"\}[ \t\r]*[^ \t\r\n,}\]]")
"""Text after an object that can be neither the rest of a larger object nor the end of a line."""
_DEPTH_MAX = 500
"""Arrow's reader overflows its stack on objects nested some ten thousand deep."""


Where = Callable[[int], str]
"""The position of a record in messages, by the number of its line."""


def decode_json(
    data: bytes,
    shape: Shape,
    format: ChangeFormat,
    *,
    name: str = "",
    first_line: int = 1,
    where: Where | None = None,
    number_puts: bool = False,
) -> Batch:
    """Decode complete lines into operations. `name` and `first_line` say where they come from.

    `where` says it instead of `name`; with `number_puts`, rows that are put are numbered, too.
    """
    prefix = f"{name}, " if name else ""
    place = _Place(where or (lambda line: f"{prefix}line {line}"), number_puts)
    if data.count(b"\n") <= _FEW_LINES:
        return _decode_slowly(data, shape, format, place, first_line)
    batch = _decode_fast(data, shape, format, place, first_line)
    if batch is not None:
        return batch
    batches = []
    for piece, line in _pieces(data, first_line):
        batch = _decode_fast(piece, shape, format, place, line)
        if batch is None:
            batch = _decode_slowly(piece, shape, format, place, line)
        batches.append(batch)
    return joined(batches, shape)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where records come from, and whether all operations are numbered."""

    where: Where
    number_puts: bool


def joined(batches: list[Batch], shape: Shape) -> Batch:
    """Concatenate batches."""
    if len(batches) == 1:
        return batches[0]
    tables = [operations_schema(shape).empty_table(), *(batch.operations for batch in batches)]
    bad = tuple(row for batch in batches for row in batch.bad)
    return Batch(pa.concat_tables(tables), sum(batch.rows for batch in batches), bad)


def read_record(line: bytes) -> object:
    """Parse a line; raises `Unfit` if it is not JSON. Numbers keep every digit."""
    if len(line) > RECORD_BYTES_MAX:
        raise Unfit(f"a record of {len(line)} bytes is longer than {RECORD_BYTES_MAX}")
    try:
        return json.loads(line.decode(), parse_float=Decimal, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise Unfit(f"not UTF-8: byte {error.start + 1} is {line[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        raise Unfit(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise Unfit(f"not JSON: {error}") from None
    except ArithmeticError:
        raise Unfit("not JSON: the exponent of a number is out of range") from None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _decode_fast(
    data: bytes, shape: Shape, format: ChangeFormat, place: _Place, first_line: int
) -> Batch | None:
    lines = _plain_lines(data)
    schema = _reader_schema(data, shape, format) if lines else None
    if schema is None:
        return None
    # Debezium adds fields next to a row that we ignore; a row itself may have no unknown columns.
    unknown = "ignore" if shape.ignore_unknown else "error"
    if format is ChangeFormat.DEBEZIUM and not shape.ignore_unknown:
        unknown = "infer"
    try:
        columns = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=len(data) > 1 << 20),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior=unknown
            ),
        )
    except pa.ArrowException:
        return None
    if columns.num_rows != lines:
        return None
    if format is ChangeFormat.DEBEZIUM:
        if columns.column_names[0] == "payload":
            objects = columns.column("payload").combine_chunks()
            names = [field.name for field in objects.type]
            columns = pa.Table.from_arrays(objects.flatten(), names=names)
        columns = columns.select(["before", "after", "op"])
    return batch_of(_records(data, columns, place, first_line), shape, format)


def _records(data: bytes, columns: pa.Table, place: _Place, first_line: int) -> Records:
    lines: list[bytes] = []

    def line(at: int) -> bytes:
        if not lines:
            lines.extend(data.split(b"\n"))
        return lines[at]

    return Records(
        columns,
        text=False,
        record=lambda at: read_record(line(at)),
        where=lambda at: place.where(first_line + at),
        shown=lambda at: own_text(line(at)),
        number=lambda at: first_line + at,
        number_puts=place.number_puts,
    )


def _decode_slowly(
    data: bytes, shape: Shape, format: ChangeFormat, place: _Place, first_line: int
) -> Batch:
    records = _records(data, pa.Table.from_arrays([], names=[]), place, first_line)
    filled = [at for at, line in enumerate(data.split(b"\n")) if line.strip()]
    operations, bad, _ = read_one_by_one(records, filled, shape, format)
    return Batch(operations, len(filled), bad)


def _plain_lines(data: bytes) -> int | None:
    """The number of lines, if each is certainly one object and nothing else."""
    end = len(data) - data.endswith(b"\n")
    lines = data.count(b"\n", 0, end) + 1
    if data.startswith(b"{") + data.count(b"\n{", 0, end) != lines:
        return None
    if _STRAY.search(data) or not is_utf8(data):
        return None
    if len(data) > RECORD_BYTES_MAX and max(map(len, data.split(b"\n"))) > RECORD_BYTES_MAX:
        return None
    return lines if _is_flat(data, lines) else None


def _is_flat(data: bytes, lines: int) -> bool:
    opened = data.count(b"{") + data.count(b"[")
    if opened - lines <= _DEPTH_MAX:
        return True
    return all(line.count(b"{") + line.count(b"[") <= _DEPTH_MAX for line in data.split(b"\n"))


def _pieces(data: bytes, first_line: int) -> Iterator[tuple[bytes, int]]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for start in range(0, len(lines), _PIECE_LINES):
        yield b"\n".join(lines[start : start + _PIECE_LINES]), first_line + start


def _reader_schema(data: bytes, shape: Shape, format: ChangeFormat) -> pa.Schema | None:
    """The schema for Arrow's reader, with columns spelled as in the first record."""
    try:
        first = read_record(data[: data.find(b"\n")] if b"\n" in data else data)
    except Unfit:
        return None
    wrapped = isinstance(first, Mapping) and format is ChangeFormat.DEBEZIUM and "payload" in first
    if not isinstance(first, Mapping) or (wrapped and first.get("schema") is not None):
        return None
    event = first["payload"] if wrapped else first
    row = event
    if format is not ChangeFormat.ROWS and isinstance(event, Mapping):
        row = next((event[side] for side in _SIDES[format] if event.get(side)), {})
    if not isinstance(row, Mapping):
        return None
    spelled = {fold(name): name for name in row}
    fields = []
    for column in shape.columns:
        raw = raw_type(column.kind)
        if raw is None:
            return None
        fields.append(pa.field(spelled.get(fold(column.name), column.name), raw))
    if format is ChangeFormat.ROWS:
        return pa.schema(fields)
    sides = [pa.field(side, pa.struct(fields)) for side in _SIDES[format]]
    if format is ChangeFormat.INSERT_DELETE:
        return pa.schema(sides)
    sides.append(pa.field("op", pa.string()))
    return pa.schema([pa.field("payload", pa.struct(sides))] if wrapped else sides)


_SIDES = {
    ChangeFormat.INSERT_DELETE: ("insert", "delete"),
    ChangeFormat.DEBEZIUM: ("before", "after"),
}
