"""The rows of data files of a lakehouse table, and the net difference that a version makes.

A version that rewrites files (an update without a change data feed, a merge) removes and adds many
equal rows. If its files are small enough they are read as a whole, and equal rows cancel out.
Otherwise all rows of removed files are retracted before those of added files are inserted. Which of
the two applies is part of a reference, so the bounds may change between releases.

Rows are numbered in the order of the files; a number is all that is needed to continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stepwell.connectors.lake import LakeColumn, LakeFile, LakeTable
from stepwell.connectors.shape import Shape
from stepwell.connectors.values import Unfit, read_text
from stepwell.lsm.equality import groups_of
from stepwell.sql.statements import fold

NET_ROWS_MAX = 1_000_000
NET_BYTES_MAX = 64 * 1024 * 1024
"""Bounds of a version of which the net difference is taken, in bytes of its files."""
_BATCH_ROWS = 8_192
_CHANGE_TYPE = "_change_type"
_RETRACTING = ("delete", "update_preimage")
_INSERTING = ("insert", "update_postimage")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a data file."""

    file: LakeFile
    rows: pa.Table
    """The columns, then the number of each row in the file, from 0 on."""
    start: int
    """How many rows of the file that count come before them."""

    @property
    def columns(self) -> pa.Table:
        return self.rows.select(range(self.rows.num_columns - 1))

    def where(self, version: object, place: int) -> str:
        name = self.file.path.rsplit("/", 1)[-1]
        number = self.rows.column(self.rows.num_columns - 1)[place].as_py()
        return f"version {version}, {name}, row {number + 1}"

    def slice(self, start: int, count: int) -> Chunk:
        return Chunk(self.file, self.rows.slice(start, count), self.start + start)


class RowReader:
    """Reads rows of files, with the columns of a shape."""

    def __init__(self, table: LakeTable, shape: Shape) -> None:
        self._table = table
        self._shape = shape

    def can_net(self, files: Sequence[LakeFile]) -> bool:
        """Whether equal rows among these files should cancel out before the rest is taken."""
        paths = {file.path: file for file in files}.values()
        if len({file.retracts for file in files}) < 2:
            return False
        if sum(file.size for file in paths) > NET_BYTES_MAX:
            return False
        return sum(self._count(file) for file in paths) <= NET_ROWS_MAX

    def _count(self, file: LakeFile) -> int:
        if file.rows is not None:
            return file.rows
        with self._table.open(file.path) as opened:
            return int(pq.read_metadata(opened).num_rows)

    def chunks(
        self, files: Sequence[LakeFile], columns: Sequence[LakeColumn], start: int = 0
    ) -> Iterator[Chunk]:
        """The rows of all files, one after the other, from a row on."""
        for file in files:
            if start and not file.is_feed:
                count = self._count(file)
                if count <= start:
                    start -= count
                    continue
            end = 0
            for chunk in self.file(file, columns, start):
                end = chunk.start + chunk.rows.num_rows
                if start < end:
                    first = max(0, start - chunk.start)
                    yield chunk.slice(first, chunk.rows.num_rows - first)
            start = max(0, start - end)

    def net(self, files: Sequence[LakeFile], columns: Sequence[LakeColumn]) -> list[Chunk]:
        """The rows of all files without those that are retracted and inserted again."""
        every = list(self.chunks(files, columns))
        sides = [[c for c in every if c.file.retracts], [c for c in every if not c.file.retracts]]
        kept = _uncancelled([chunk.columns for chunk in sides[0] + sides[1]], len(sides[0]))
        if kept is None:
            return sides[0] + sides[1]
        found = []
        for chunk, mask in zip(sides[0] + sides[1], kept, strict=True):
            rows = chunk.rows.filter(mask)
            if rows.num_rows:
                found.append(Chunk(chunk.file, rows, chunk.start))
        return found

    def file(
        self, file: LakeFile, columns: Sequence[LakeColumn], first: int = 0
    ) -> Iterator[Chunk]:
        """The rows of a file that count, from the row group on that holds a row."""
        values = dict(file.values)
        with self._table.open(file.path) as opened:
            parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            schema = parquet.schema_arrow
            by_id = self._table.field_ids(schema)
            names = [
                column.name if by_id is None else by_id.get(column.id or -1) for column in columns
            ]
            read = [name for name in names if name is not None and name in schema.names]
            if file.is_feed:
                read.append(_CHANGE_TYPE)
            # Which rows of a feed count is not known before they are read.
            groups, at = _groups_from(parquet.metadata, 0 if file.is_feed else first)
            start = at
            for batch in parquet.iter_batches(_BATCH_ROWS, groups, sorted(set(read))):
                found = _plain(pa.Table.from_batches([batch]))
                count = batch.num_rows
                made = [
                    found.column(name)
                    if name in found.column_names
                    else self._constant(column.name, values, count)
                    for column, name in zip(columns, names, strict=True)
                ]
                made.append(pa.chunked_array([np.arange(at, at + count)]))
                rows = pa.table(made, names=[*(column.name for column in columns), ""])
                at += count
                if file.is_feed:
                    rows = rows.filter(_counts(found.column(_CHANGE_TYPE), file.retracts))
                if rows.num_rows:
                    yield Chunk(file, rows, start)
                    start += rows.num_rows

    def _constant(self, name: str, values: dict[str, str | None], count: int) -> Any:
        """A partition value, or NULL for a column that was added after the file was written."""
        value = values.get(name)
        if value is None:
            return pa.nulls(count)
        column = self._shape.columns[self._shape.places[fold(name)]]
        try:
            made = pa.scalar(read_text(value, column.kind), column.arrow)
        except (Unfit, pa.ArrowException):
            made = pa.scalar(value)  # Each row becomes a dead letter, or is a text.
        return pa.repeat(made, count)


def _groups_from(metadata: pq.FileMetaData, row: int) -> tuple[list[int], int]:
    """The row groups from the one on that holds a row, and the rows before them."""
    before, skipped = 0, 0
    for number in range(metadata.num_row_groups):
        count = metadata.row_group(number).num_rows
        if before + count > row:
            break
        before, skipped = before + count, number + 1
    return list(range(skipped, metadata.num_row_groups)), before


def _plain(rows: pa.Table) -> pa.Table:
    """The same rows without views of texts, which Arrow cannot filter or sort."""
    schema = pa.schema([field.with_type(_plain_type(field.type)) for field in rows.schema])
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


def _counts(types: pa.ChunkedArray, retracts: bool) -> pa.ChunkedArray:
    return pc.is_in(types, pa.array(_RETRACTING if retracts else _INSERTING))


def _uncancelled(tables: Sequence[pa.Table], first: int) -> list[pa.Array] | None:
    """Which rows remain when the retractions in the first tables cancel insertions in the others.

    None if their columns differ in type, so that rows cannot be compared.
    """
    if not tables:
        return []
    try:
        every = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    sizes = [table.num_rows for table in tables]
    border = sum(sizes[:first])
    groups = np.asarray(groups_of(every, range(every.num_columns)))
    _, groups = np.unique(groups, return_inverse=True)
    width = int(groups.max()) + 1 if len(groups) else 0
    gone, come = groups[:border], groups[border:]
    kept = np.concatenate(
        [
            _ranks(gone) >= np.bincount(come, minlength=width)[gone],
            _ranks(come) >= np.bincount(gone, minlength=width)[come],
        ]
    )
    ends = np.cumsum([0, *sizes])
    return [pa.array(kept[a:b]) for a, b in pairwise(ends)]


def _ranks(groups: Any) -> Any:
    """How many equal numbers come before each."""
    if not len(groups):
        return groups
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.r_[0, np.flatnonzero(np.diff(ordered)) + 1]
    lengths = np.diff(np.r_[starts, len(ordered)])
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(ordered)) - np.repeat(starts, lengths)
    return ranks
