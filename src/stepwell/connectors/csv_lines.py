"""CSV with a header: bytes in, operations out.

An empty field is NULL, a quoted empty one the empty text. Fields may hold line ends inside of
quotes. Arrow splits the fields; a line with too many or too few of them is a dead letter.
"""

from __future__ import annotations

import csv

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from stepwell.connectors.columns import either
from stepwell.connectors.formats import TEXT_MAX, Batch, ChangeFormat, Records, batch_of
from stepwell.connectors.lines import check_utf8, hide_quoted_line_ends
from stepwell.connectors.shape import Shape, Text
from stepwell.connectors.values import Unfit
from stepwell.engine.ports import BadRow


def read_header(line: bytes, delimiter: str) -> tuple[str, ...]:
    """The names in the first line of a file; `Unfit` if they cannot name columns."""
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
) -> Batch:
    """The operations in some whole records, without the header."""
    wrong: list[tuple[int, str]] = []
    columns = _split(data, header, delimiter, wrong)
    numbers = {number for number, _ in wrong}
    lines = _Lines(data, delimiter, f"{name}, " if name else "", first_line)
    rows = columns.num_rows + len(wrong)
    places = [at for at in range(rows) if at not in numbers] if wrong else range(rows)
    texts, doubt = _texts(columns)

    def record(at: int) -> object:
        row = zip(header, columns.slice(at, 1).columns, strict=True)
        values = {name: value[0].as_py() for name, value in row}
        return {n: None if v is None else Text(check_utf8(v)) for n, v in values.items()}

    records = Records(
        texts,
        text=True,
        record=record,
        where=lambda at: lines.where(places[at]),
        shown=lambda at: lines.text(places[at]),
        doubt=doubt,
    )
    batch = batch_of(records, shape, format)
    bad = [BadRow(lines.where(at), reason, lines.text(at)) for at, reason in wrong]
    return Batch(batch.operations, rows, (*batch.bad, *bad))


def _split(
    data: bytes, header: tuple[str, ...], delimiter: str, wrong: list[tuple[int, str]]
) -> pa.Table:
    """The fields as bytes. Lines with another number of fields are left out and noted."""

    def note(row: arrow_csv.InvalidRow) -> str:
        reason = f"expected {row.expected_columns} fields, found {row.actual_columns}"
        wrong.append((row.number - 1, reason))
        return "skip"

    schema = {name: pa.binary() for name in header}
    if not data.strip(b"\r\n"):
        return pa.schema(schema).empty_table()
    return arrow_csv.read_csv(
        pa.BufferReader(data),
        # Only a single thread that sees all of it at once can number the lines.
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


def _texts(columns: pa.Table) -> tuple[pa.Table, pa.Array | None]:
    """The fields as texts, and which rows hold a field that is none."""
    made, doubt = [], None
    for values in columns.columns:
        try:
            made.append(values.cast(pa.string()))
        except pa.ArrowInvalid:
            readable = pa.array([value is None or _readable(value) for value in values.to_pylist()])
            nothing = pa.scalar(None, pa.binary())
            made.append(pc.if_else(readable, values, nothing).cast(pa.string()))
            doubt = either(doubt, pc.invert(readable))
    return pa.Table.from_arrays(made, names=columns.column_names), doubt


def _readable(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Lines:
    """Finds the text of a record again; only asked for bad ones."""

    def __init__(self, data: bytes, delimiter: str, place: str, first: int) -> None:
        self._data = data
        self._delimiter = delimiter
        self._place = place
        self._first = first
        self._filled: list[tuple[int, int, int]] = []

    def where(self, at: int) -> str:
        return f"{self._place}line {self._first + self._span(at)[0]}"

    def text(self, at: int) -> str:
        _, start, end = self._span(at)
        return self._data[start:end][: 4 * TEXT_MAX].decode(errors="replace")[:TEXT_MAX]

    def _span(self, at: int) -> tuple[int, int, int]:
        """Number, start and end of the record at a place. Empty lines hold none."""
        if not self._filled:
            seen, _ = hide_quoted_line_ends(self._data, self._delimiter)
            start = 0
            for number, line in enumerate(seen.split(b"\n")):
                if line.strip(b"\r"):
                    self._filled.append((number, start, start + len(line)))
                start += len(line) + 1
        return self._filled[at]
