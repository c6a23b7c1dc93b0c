"""Decoding CSV with a header into operations.

An empty field is NULL; a quoted empty field is the empty string. Quoted fields may contain line
ends. Arrow splits the fields; a line with too many or too few of them is a dead letter.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as arrow_csv

from stepwell.connectors.columns import is_utf8
from stepwell.connectors.formats import Batch, ChangeFormat, Records, batch_of
from stepwell.connectors.json_lines import Where
from stepwell.connectors.lines import (
    check_utf8,
    hide_quoted_line_ends,
    records_of,
    without_quoted,
)
from stepwell.connectors.shape import Shape, Text
from stepwell.connectors.values import Unfit
from stepwell.lsm.dead_letter import BadRow, own_text


def read_header(line: bytes, delimiter: str) -> tuple[str, ...]:
    """The column names in the first line of a file; raises `Unfit` if they cannot name columns."""
    try:
        names = next(csv.reader([check_utf8(line).strip("\r\n")], delimiter=delimiter), [])
    except csv.Error as error:
        raise Unfit(f"the header cannot be read: {error}") from None
    names = [name.strip() for name in names]
    if not names or not all(names):
        raise Unfit("the header has a column without a name")
    folded = [name.lower() for name in names]
    twice = [name for name in names if folded.count(name.lower()) > 1]
    if twice:
        raise Unfit(f"the header names {twice[0]} twice")
    return tuple(names)


def decode_csv(
    data: bytes,
    header: tuple[str, ...],
    shape: Shape,
    format: ChangeFormat,
    *,
    delimiter: str = ",",
    name: str = "",
    first_line: int = 2,
    where: Where | None = None,
    number_puts: bool = False,
) -> Batch:
    """Decode complete records, without the header, into operations.

    `where` says instead of `name` where a line comes from; with `number_puts`, rows that are put
    are numbered, too.
    """
    lines = _Lines(data, delimiter, f"{name}, " if name else "", first_line)
    told = lines.where if where is None else lambda at: where(lines.number(at))
    given = _read(data, header, delimiter, lines)
    if given is None:
        given = _read_sound(header, delimiter, lines)
    columns, places, wrong = given.columns, given.places, given.wrong

    def record(at: int) -> object:
        row = zip(header, columns.slice(at, 1).columns, strict=True)
        values = {name: value[0].as_py() for name, value in row}
        return {n: None if v is None else Text(v) for n, v in values.items()}

    records = Records(
        columns,
        text=True,
        record=record,
        where=lambda at: told(places[at]),
        shown=lambda at: lines.text(places[at]),
        number=lambda at: lines.number(places[at]),
        number_puts=number_puts,
    )
    batch = batch_of(records, shape, format)
    bad = [BadRow(told(at), reason, lines.text(at)) for at, reason in wrong]
    return Batch(batch.operations, columns.num_rows + len(wrong), (*batch.bad, *bad))


@dataclass(frozen=True, slots=True)
class _Given:
    """The fields of some records, the index of each record, and the invalid ones."""

    columns: pa.Table
    places: Sequence[int]
    wrong: list[tuple[int, str]]


def _read(data: bytes, header: tuple[str, ...], delimiter: str, lines: _Lines) -> _Given | None:
    """Read all records at once; None if they are not UTF-8, or if Arrow finds different records.

    Unlike this module, Arrow takes a lone carriage return for a line end.
    """
    wrong: list[tuple[int, str]] = []
    if not is_utf8(data):
        return None
    try:
        columns = _split(data, header, delimiter, wrong)
    except (pa.ArrowException, ValueError):
        return None
    rows = columns.num_rows + len(wrong)
    if rows != lines.count():
        return None
    numbers = {number for number, _ in wrong}
    places = [at for at in range(rows) if at not in numbers] if wrong else range(rows)
    return _Given(columns, places, wrong)


def _read_sound(header: tuple[str, ...], delimiter: str, lines: _Lines) -> _Given:
    """Read without records that Arrow may split differently; failing that, one at a time."""
    wrong: list[tuple[int, str]] = []
    sound: list[int] = []
    for at in range(lines.count()):
        reason = _unsound(lines.record(at), delimiter)
        if reason is None:
            sound.append(at)
        else:
            wrong.append((at, reason))
    data = b"\n".join(lines.record(at) for at in sound)
    inner = _read(data, header, delimiter, _Lines(data, delimiter, "", 0))
    if inner is not None:
        wrong += [(sound[at], reason) for at, reason in inner.wrong]
        return _Given(inner.columns, [sound[at] for at in inner.places], wrong)
    tables, places = [pa.schema({n: pa.string() for n in header}).empty_table()], []
    for at in sound:
        record = lines.record(at)
        alone = _read(record, header, delimiter, _Lines(record, delimiter, "", 0))
        if alone is None:
            wrong.append((at, "cannot be split into fields"))
        else:
            wrong += [(at, reason) for _, reason in alone.wrong]
            tables.append(alone.columns)
            places += [at] * alone.columns.num_rows
    return _Given(pa.concat_tables(tables), places, wrong)


def _unsound(record: bytes, delimiter: str) -> str | None:
    if b"\r" in without_quoted(record, delimiter).rstrip(b"\r\n"):
        return "a carriage return without a line feed, outside of quotes"
    try:
        check_utf8(record)
    except Unfit as unfit:
        return str(unfit)
    return None


def _split(
    data: bytes, header: tuple[str, ...], delimiter: str, wrong: list[tuple[int, str]]
) -> pa.Table:
    """The fields as strings. Lines with a different number of fields are skipped and noted."""

    def note(row: arrow_csv.InvalidRow) -> str:
        reason = f"expected {row.expected_columns} fields, found {row.actual_columns}"
        wrong.append((row.number - 1, reason))
        return "skip"

    schema = {name: pa.string() for name in header}
    if not data.strip(b"\r\n"):
        return pa.schema(schema).empty_table()
    return arrow_csv.read_csv(
        pa.BufferReader(data),
        # Only a single thread that sees all the data at once can number the lines.
        arrow_csv.ReadOptions(column_names=header, use_threads=False, block_size=len(data) + 1),
        arrow_csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note
        ),
        arrow_csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


class _Lines:
    """The records in some data: their number, and the text of the bad ones."""

    def __init__(self, data: bytes, delimiter: str, place: str, first: int) -> None:
        self._data = data
        self._delimiter = delimiter
        self._place = place
        self._first = first
        self._filled: list[tuple[int, bytes]] | None = None
        self._dense: bool | None = None

    def count(self) -> int:
        """Number of records; empty lines do not count."""
        if self._filled is None and self._is_dense():
            seen, _ = hide_quoted_line_ends(self._data, self._delimiter)
            return seen.count(b"\n") + (not seen.endswith(b"\n"))
        return len(self._records())

    def record(self, at: int) -> bytes:
        return self._records()[at][1]

    def where(self, at: int) -> str:
        return f"{self._place}line {self.number(at)}"

    def number(self, at: int) -> int:
        # Without empty lines, the index of a record determines its line number.
        return self._first + (at if self._is_dense() else self._records()[at][0])

    def _is_dense(self) -> bool:
        """Whether every line belongs to a record."""
        if self._dense is None:
            data = self._data
            suspect = b"\n\n" in data or b"\n\r" in data or data[:1] in (b"\n", b"\r")
            self._dense = not (suspect and _EMPTY_LINE.search(data))
        return self._dense

    def text(self, at: int) -> str:
        return own_text(self.record(at))

    def _records(self) -> list[tuple[int, bytes]]:
        if self._filled is None:
            self._filled = list(records_of(self._data, self._delimiter))
        return self._filled


_EMPTY_LINE = re.compile(rb"(?:\A|\n)\r*\n|(?:\A|\n)\r+\Z")
