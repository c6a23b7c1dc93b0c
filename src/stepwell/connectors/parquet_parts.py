"""Parts of Parquet files: ranges of rows, each inside one row group.

A row group is read window by window, so memory grows neither with its rows, nor with strings that
its dictionary holds once and its rows a million times. A record above the maximum size is a dead
letter. A row group with a page that is too large to decode is one dead letter, decided from page
headers (`parquet_pages`). The checksum of a part covers the bytes of its row group and the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stepwell.connectors.file_parts import (
    FileListed,
    NotReadyError,
    Part,
    Piece,
    Place,
    Undecoded,
    changed,
    no_rows,
    place_of,
    unavailable,
)
from stepwell.connectors.formats import Batch, ChangeFormat, Records, batch_of
from stepwell.connectors.json_lines import RECORD_BYTES_MAX, joined
from stepwell.connectors.lines import TOO_LONG
from stepwell.connectors.parquet_footer import Footer, footer_of, read_footer
from stepwell.connectors.parquet_pages import GroupPages, group_pages
from stepwell.connectors.shape import Shape
from stepwell.connectors.thrift_compact import ThriftError
from stepwell.connectors.values import Unfit
from stepwell.engine.ports import Limits
from stepwell.lsm.dead_letter import TEXT_MAX, BadRow, cut
from stepwell.lsm.json_rows import json_row
from stepwell.model import checksum

_MAGIC = b"PAR1"
_BLOCK = 1 << 20
_OFFSET_BYTES = 4
_TEXTS = (pa.StringArray, pa.BinaryArray, pa.LargeStringArray, pa.LargeBinaryArray)


@dataclass(slots=True)
class _Group:
    """A row group being read; the rows in memory start at `first`."""

    file: FileListed
    number: int
    start: int
    """Its first row, counted from the start of the file."""
    end: int
    first: int
    rows: pa.Table
    checksum: str
    total: int
    """Number of rows in the whole file."""
    windows: Iterator[pa.RecordBatch]
    opened: pq.ParquetFile | None
    refusal: str | None = None
    """The reason why it cannot be read in bounded memory, if it cannot."""

    def advance(self, row: int) -> None:
        """Advance to the window that holds a row."""
        while row >= self.first + self.rows.num_rows:
            self.first += self.rows.num_rows
            batch = next(self.windows, None)
            if batch is None:
                raise pa.ArrowInvalid(f"row group {self.number} ends at row {self.first}")
            self.rows = pa.Table.from_batches([batch])

    def between(self, start: int, end: int) -> pa.Table:
        """Rows of this group, from several windows if windows were larger when they were taken."""
        found = []
        while start < end:
            self.advance(start)
            found.append(self.rows.slice(start - self.first, end - start))
            start += found[-1].num_rows
        return pa.concat_tables(found) if found else self.rows.slice(0, 0)

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


class ParquetParts:
    unit = "row"

    def __init__(self, shape: Shape, changes: ChangeFormat, *, prefixes: bool = True) -> None:
        """Without `prefixes` no piece has one, so that nothing before it is read."""
        self._prefixes = prefixes
        self._shape = shape
        self._changes = changes
        self._group: _Group | None = None
        self._footer: Footer | None = None
        """The last footer that was read."""
        self._sums: tuple[str, list[str]] = ("", [])
        """A file, and the checksums of its row groups from the first one on, as they were taken."""

    def ends_whole(self, file: FileListed) -> bool:
        with open(file.path, "rb") as opened:
            opened.seek(max(0, file.size - len(_MAGIC)))
            return opened.read() == _MAGIC

    def proves_whole(self, file: FileListed) -> bool:
        return True  # The end of a Parquet file is written last, and only once.

    def take(
        self, file: FileListed, place: Place, rows_max: int, bytes_max: int, *, settled: bool
    ) -> Piece:
        start = place.at
        try:
            group = self._load(file, start)
        except Exception as error:
            # The library may raise anything on malformed bytes.
            if getattr(error, "errno", None) is not None:
                raise
            if not settled:
                raise NotReadyError from error
            part = _part(file, start, start, "", f"not Parquet: {error}")
            return Piece(part, self._decode(part, None), None, 0)
        if group.refusal is not None:
            return self._refused(file, start, group)
        rows = group.rows.slice(start - group.first, rows_max)
        sizes = np.cumsum(_sizes(rows))
        fitting = int(np.searchsorted(sizes, bytes_max, side="right"))
        rows = rows.slice(0, max(1, fitting))
        end = start + rows.num_rows
        part = _part(file, start, end, group.checksum)
        following = None if end >= group.total else Place(end, end + 1)
        prefix = self._extend_sums(file, group)
        size = int(sizes[rows.num_rows - 1]) if rows.num_rows else 0
        return Piece(part, self._decode(part, rows), following, size, prefix)

    def _refused(self, file: FileListed, start: int, group: _Group) -> Piece:
        """One dead letter for the rest of a row group; the file continues after it."""
        part = _part(file, start, group.end, group.checksum, group.refusal)
        following = None if group.end >= group.total else Place(group.end, group.end + 1)
        return Piece(part, self._decode(part, None), following, 0, self._extend_sums(file, group))

    def _extend_sums(self, file: FileListed, group: _Group) -> str:
        """The checksum of the row groups of a file up to this one."""
        if not self._prefixes:
            return ""
        name, sums = self._sums
        if group.number == 0:
            sums = []
        elif name != file.name or len(sums) < group.number:
            sums = _sums(file.path, group.number)
        sums = [*sums[: group.number], group.checksum]
        self._sums = (file.name, sums)
        return _joined(sums)

    def decode(self, found: Sequence[Batch | Undecoded]) -> list[tuple[int, Batch]]:
        return [(part, item) for part, item in enumerate(found) if isinstance(item, Batch)]

    def prefix(self, file: FileListed, end: int) -> str:
        groups, count, first = footer_of(file.path).groups, 0, 0
        while first < end and count < len(groups):
            first += groups[count].rows
            count += 1
        sums = _sums(file.path, count)
        self._sums = (file.name, sums)
        return _joined(sums)

    def again(self, part: Part, path: Path) -> Batch:
        if part.wrong is not None:
            return self._decode(part, None)
        return self._decode(part, self._rows_again(part, path))

    def texts(self, part: Part, path: Path, numbers: Sequence[int]) -> list[str | None]:
        rows = self._rows_again(part, path)
        return [_shown(rows, number - 1 - part.start) for number in numbers]

    def _rows_again(self, part: Part, path: Path) -> pa.Table:
        try:
            file = FileListed.at(part.name, path)
            group = self._load(file, part.start)
        except FileNotFoundError:
            raise changed(part, "is gone") from None
        except OSError as error:
            if error.errno is None:
                raise changed(part, f"can no longer be read ({error})") from error
            raise unavailable(part.name, error) from error
        except Exception as error:
            raise changed(part, f"can no longer be read ({error})") from error
        if group.checksum != part.checksum:
            raise changed(part, "was changed")
        return group.between(part.start, part.end)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None

    def _load(self, file: FileListed, row: int) -> _Group:
        """The row group that holds a row, at its window; an empty one after the last."""
        group = self._group
        if (
            group is None
            or group.file != file
            or not group.first <= row < group.end
            or group.opened is None
        ):
            self.close()
            group = self._open(file, row)
            self._group = group
        if row < group.end and group.refusal is None:
            group.advance(row)
        return group

    def _open(self, file: FileListed, row: int) -> _Group:
        metadata = pq.read_metadata(file.path)
        self._footer = footer = footer_of(file.path, self._footer)
        first = 0
        for number, group in enumerate(footer.groups):
            size = group.rows
            if first <= row < first + size:
                with open(file.path, "rb") as stream:
                    judged = group_pages(stream, footer, number)
                opened = _opened(file.path, metadata, footer, judged)
                digest = _checksum(file.path, metadata, footer, number)
                bounds = (number, first, first + size, first)
                return _Group(
                    *(file, *bounds, opened.schema_arrow.empty_table(), digest, footer.rows),
                    *(_windows(opened, judged, number), opened),
                    _described(judged, number, first, size),
                )
            first += size
        bounds = (len(footer.groups), first, first, first)
        schema = metadata.schema.to_arrow_schema().empty_table()
        return _Group(file, *bounds, schema, "", footer.rows, iter(()), None)

    def _decode(self, part: Part, rows: pa.Table | None) -> Batch:
        if rows is None:
            return no_rows(self._shape, BadRow(part.name, str(part.wrong), ""))
        return self.decode_safely(part.name, part.start, rows)

    def decode_safely(self, name: str, start: int, rows: pa.Table) -> Batch:
        """Decode rows from an offset on, with dead letters for invalid ones. Never raises."""
        if not rows.num_rows:
            return no_rows(self._shape)
        large = np.flatnonzero(_sizes(rows) > RECORD_BYTES_MAX)
        if len(large):
            every = self._decode_between(name, start, rows, large.tolist())
            return joined(list(every), self._shape)
        try:
            return self._decode_rows(name, start + 1, rows)
        except Exception:  # noqa: BLE001 - libraries may raise anything on malformed values
            return joined(list(self._decode_each(name, start, rows)), self._shape)

    def _decode_between(
        self, name: str, start: int, rows: pa.Table, large: list[int]
    ) -> Iterator[Batch]:
        """Decode the rows between those that are too large, which become dead letters."""
        first = 0
        for at in [*large, rows.num_rows]:
            yield self.decode_safely(name, start + first, rows.slice(first, at - first))
            if at < rows.num_rows:
                # Not shown, because that would load it into memory.
                where = place_of(name, self.unit, start + at + 1)
                yield no_rows(self._shape, BadRow(where, TOO_LONG, ""))
            first = at + 1

    def _decode_each(self, name: str, start: int, rows: pa.Table) -> Iterator[Batch]:
        """Decode row by row after the decoder failed; a row on which it fails again is bad."""
        for at in range(rows.num_rows):
            try:
                yield self._decode_rows(name, start + at + 1, rows.slice(at, 1))
            except Exception as error:  # noqa: BLE001 - see above
                reason = f"cannot be read: {type(error).__name__}: {error}"
                where = place_of(name, self.unit, start + at + 1)
                yield no_rows(self._shape, BadRow(where, reason, _shown(rows, at)))

    def _decode_rows(self, name: str, first: int, rows: pa.Table) -> Batch:
        return decode_parquet(rows, self._shape, self._changes, name=name, first_row=first)


def read_pushed_parquet(
    data: pa.Buffer, shape: Shape, changes: ChangeFormat, name: str, limits: Limits
) -> Iterator[Batch]:
    """Decode a file in memory, window by window; a refused row group becomes a dead letter.

    Raises whatever the library raises on malformed bytes.
    """
    reader, first = ParquetParts(shape, changes), 0
    source = pa.BufferReader(data)
    metadata, footer = pq.read_metadata(source), read_footer(pa.BufferReader(data))
    for number, group in enumerate(footer.groups):
        judged = group_pages(pa.BufferReader(data), footer, number)
        refusal = _described(judged, number, first, group.rows)
        if refusal is not None:
            yield no_rows(shape, BadRow(name, refusal, ""))
        else:
            start = first
            with _opened(pa.BufferReader(data), metadata, footer, judged) as opened:
                for batch in _windows(opened, judged, number):
                    rows = pa.Table.from_batches([batch])
                    for piece in _pieces(rows, limits):
                        yield reader.decode_safely(name, start, piece)
                        start += piece.num_rows
        first += group.rows


def _pieces(rows: pa.Table, limits: Limits) -> Iterator[pa.Table]:
    """A window in slices that are small enough once dictionary-encoded strings are expanded."""
    sizes = np.cumsum(_sizes(rows))
    start = 0
    while start < rows.num_rows:
        before = int(sizes[start - 1]) if start else 0
        fitting = int(np.searchsorted(sizes, before + limits.bytes_max, side="right"))
        end = min(max(start + 1, fitting), start + limits.rows_max)
        yield rows.slice(start, end - start)
        start = end


def _opened(
    source: Path | pa.BufferReader,
    metadata: pq.FileMetaData,
    footer: Footer,
    judged: GroupPages,
) -> pq.ParquetFile:
    # Keep dictionary-encoded strings encoded: a row of eight bytes may stand for megabytes.
    packed = footer.dictionaries()
    return pq.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=sorted(packed | set(judged.dictionaries)),
        pre_buffer=False,
        page_checksum_verification=True,
    )


def _windows(opened: pq.ParquetFile, judged: GroupPages, number: int) -> Iterator[pa.RecordBatch]:
    yield from opened.iter_batches(judged.window_rows, row_groups=[number], use_threads=False)


def _described(judged: GroupPages, number: int, first: int, size: int) -> str | None:
    if judged.refusal is None:
        return None
    rows = f"rows {first + 1} to {first + size}"
    return f"row group {number + 1}, {rows}, cannot be read in bounded memory: {judged.refusal}"


def decode_parquet(
    rows: pa.Table, shape: Shape, changes: ChangeFormat, *, name: str = "", first_row: int = 1
) -> Batch:
    """The operations in rows that already have types of their own."""
    place = f"{name}, " if name else ""
    records = Records(
        rows,
        text=False,
        record=lambda at: record_at(rows, at),
        where=lambda at: f"{place}row {first_row + at}",
        shown=lambda at: _shown(rows, at),
        number=lambda at: first_row + at,
    )
    return batch_of(records, shape, changes)


def record_at(rows: pa.Table, at: int) -> dict[str, object]:
    """A row as Python values; raises `Unfit` if one is invalid, such as text that is not UTF-8."""
    made: dict[str, object] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            made[name] = column[at].as_py()
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            reason = f"not UTF-8: byte {error.start + 1} is {byte:#04x}"
            raise Unfit(f"{name}: {reason}") from None
        except (ValueError, OverflowError, ArithmeticError, pa.ArrowException) as error:
            raise Unfit(f"{name}: {error}") from None
    return made


def _shown(rows: pa.Table, at: int) -> str:
    """A row as JSON, even if a value cannot be read."""
    return cut(json_row(rows, at, TEXT_MAX), TEXT_MAX)


def _part(file: FileListed, start: int, end: int, digest: str, wrong: str | None = None) -> Part:
    return Part(file.name, file.size, file.mtime_ns, start, end, start + 1, digest, wrong)


def _sizes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Approximate size of each row in bytes, once dictionary-encoded strings are expanded."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        for start, chunk in _chunks(column):
            sizes[start : start + len(chunk)] += _chunk_sizes(chunk)
    return sizes


def _chunks(column: pa.ChunkedArray) -> Iterator[tuple[int, pa.Array]]:
    start = 0
    for chunk in column.chunks:
        yield start, chunk
        start += len(chunk)


def _chunk_sizes(values: pa.Array) -> npt.NDArray[np.int64]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        written = np.append(_chunk_sizes(values.dictionary), 0)  # The last one is for NULL.
        places = pc.fill_null(values.indices, -1).to_numpy(zero_copy_only=False)
        return np.take(written, np.asarray(places, np.int64))
    if pa.types.is_struct(kind):
        fields = (_chunk_sizes(values.field(i)) for i in range(kind.num_fields))
        return sum(fields, np.zeros(len(values), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _list_sizes(values)
    if isinstance(values, _TEXTS):
        lengths = pc.fill_null(pc.binary_length(values), 0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    # Fixed-width values.
    return np.full(len(values), -(-values.nbytes // max(1, len(values))), np.int64)


def _list_sizes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Sizes of lists. A dictionary-encoded string counts in full each time it occurs."""
    offsets = np.asarray(values.offsets.to_numpy(zero_copy_only=False), np.int64)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    items = _chunk_sizes(values.values.slice(first, last - first))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(items)])
    sizes: npt.NDArray[np.int64] = np.diff(ends[offsets - first]) + _OFFSET_BYTES
    return sizes


def _sums(path: Path, count: int) -> list[str]:
    """The checksums of the first row groups of a file."""
    metadata, footer = pq.read_metadata(path), footer_of(path)

    def of(number: int) -> str:
        try:
            return _checksum(path, metadata, footer, number)
        except ThriftError:
            return ""  # Nothing of it was read.

    return [of(number) for number in range(count)]


def _joined(sums: list[str]) -> str:
    return checksum(["".join(sums).encode()])


def _checksum(path: Path, metadata: pq.FileMetaData, footer: Footer, number: int) -> str:
    starts, ends = [], []
    for _, chunk in footer.chunks(number):
        start = chunk.data if chunk.dictionary is None else min(chunk.data, chunk.dictionary)
        starts.append(start)
        ends.append(start + chunk.stored)
    start, end = min(starts, default=0), max(ends, default=0)

    def blocks() -> Iterator[bytes]:
        yield str(metadata.schema.to_arrow_schema()).encode()
        with open(path, "rb") as opened:
            opened.seek(start)
            for at in range(start, end, _BLOCK):
                yield opened.read(min(_BLOCK, end - at))

    return checksum(blocks())
