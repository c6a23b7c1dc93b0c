"""Pushed rows, from a file, standard input or Python.

They cannot be read again, so the engine journals them with their data (J8). Large input comes in
several pieces, each small enough for one transaction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.csv_lines import read_header
from stepwell.connectors.file_parts import COMPRESSIONS, TextParts, no_rows, place_of
from stepwell.connectors.folding import fold_numbered
from stepwell.connectors.formats import Batch, ChangeFormat
from stepwell.connectors.lines import Stream, cut_records, skip_line, take_cut
from stepwell.connectors.parquet_parts import read_pushed_parquet
from stepwell.connectors.shape import Shape, shape_of
from stepwell.connectors.values import Unfit
from stepwell.connectors.writing import FileFormat
from stepwell.engine.payload import POSITION
from stepwell.engine.ports import Limits
from stepwell.errors import InvalidError
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import BadRow, own_text
from stepwell.sql.statements import Table


@dataclass(frozen=True, slots=True)
class Pushed:
    """Some of the pushed rows."""

    change: Change
    rows: int
    bad: tuple[BadRow, ...]


def read_pushed(
    stream: BinaryIO,
    table: Table,
    *,
    format: FileFormat = FileFormat.JSON,
    changes: ChangeFormat = ChangeFormat.ROWS,
    delimiter: str = ",",
    ignore_unknown: bool = False,
    name: str = "",
    limits: Limits | None = None,
) -> Iterator[Pushed]:
    """Read a whole stream, piece by piece. Dead letters refer to it as `name`."""
    limits = limits or Limits()
    shape = shape_of(table, ignore_unknown=ignore_unknown)
    if format is FileFormat.PARQUET:
        batches = _parquet_batches(stream, shape, changes, name, limits)
        unit = "row"
    else:
        separator = delimiter if format is FileFormat.CSV else None
        batches = _text_batches(stream, shape, changes, separator, name, limits)
        unit = "line"
    place = f"{name}, {unit}" if name else unit
    for batch in batches:
        change, numbers = fold_numbered(shape, batch.operations)
        yield Pushed(_with_positions(change, place, numbers), batch.rows, batch.bad)


def _with_positions(change: Change, place: str, numbers: pa.ChunkedArray) -> Change:
    """The change with the position of each deleting record, for its dead letter."""
    if change.delete is None:
        return change
    positions = pc.binary_join_element_wise(place, numbers.cast(pa.string()), " ")
    return replace(change, delete=change.delete.append_column(POSITION, positions))


def format_of(name: str) -> FileFormat:
    """The format of a file by its suffix."""
    path = Path(name)
    ending = Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix
    endings = {".json": "json", ".jsonl": "json", ".ndjson": "json"}
    try:
        return FileFormat(endings.get(ending, ending[1:]))
    except ValueError:
        raise InvalidError(
            f"the name {name} does not show its format", hint="add --format json, csv or parquet"
        ) from None


def _text_batches(
    opened: BinaryIO,
    shape: Shape,
    changes: ChangeFormat,
    delimiter: str | None,
    name: str,
    limits: Limits,
) -> Iterator[Batch]:
    reader = TextParts(shape, changes, delimiter=delimiter)
    header: tuple[str, ...] = ()
    stream, line = Stream(opened), 1
    if stream.look(3).startswith(b"\xef\xbb\xbf"):
        stream.take(3)
    if delimiter is not None:
        first = take_cut(stream, cut_records(stream, 1, limits.bytes_max, delimiter=delimiter))
        try:
            header, line = read_header(first, delimiter), 2
        except Unfit as unfit:
            raise InvalidError(f"{name or 'the input'} is not CSV with a header: {unfit}") from None
    while True:
        cut = cut_records(stream, limits.rows_max, limits.bytes_max, delimiter=delimiter)
        data = take_cut(stream, cut)
        if stream.error is not None:
            raise InvalidError(f"{name or 'the input'} cannot be read: {stream.error}")
        if not data:
            return
        if cut.wrong is not None:
            bad = BadRow(place_of(name, reader.unit, line), cut.wrong, own_text(data))
            yield no_rows(shape, bad)
        else:
            yield reader.decode_safely(name, line, header, data)
        line += cut.lines
        if cut.inside:
            # The rest of an overlong record is not a record of its own.
            for _ in skip_line(stream, sys.maxsize):
                pass
            line += 1


def _parquet_batches(
    opened: BinaryIO, shape: Shape, changes: ChangeFormat, name: str, limits: Limits
) -> Iterator[Batch]:
    try:
        yield from read_pushed_parquet(pa.py_buffer(opened.read()), shape, changes, name, limits)
    except Exception as error:
        # The library may raise anything on malformed bytes.
        raise InvalidError(f"{name or 'the input'} is not Parquet: {error}") from error
