"""Bulk reads of files: which part of which file each task decodes, and how.

A task decodes whole files, or whole row groups of Parquet files, with the `PartReader` that the
source uses itself. So rows, dead letters, parts and their checksums are those that polling step by
step produces; only where one part ends and the next begins may differ.

Workers read the files at the paths at which the driver sees them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from stepwell.connectors.file_parts import (
    COMPRESSIONS,
    FileListed,
    NotReadyError,
    Part,
    PartReader,
    Place,
    TextParts,
    Undecoded,
)
from stepwell.connectors.formats import Batch, ChangeFormat
from stepwell.connectors.parquet_parts import ParquetParts
from stepwell.connectors.shape import Shape
from stepwell.connectors.writing import FileFormat
from stepwell.env import SystemEnv
from stepwell.lsm.bulk import Decoded, NotInBulkError

PARTS_MAX = 2_000
"""Parts of one bulk read, as estimated: each takes some 150 bytes of its reference."""
READ_BYTES_MAX = 64 * 2**30
"""A bulk read of more bytes is continued by the next one."""
_PART_ROWS = 128 * 1024
_PART_BYTES = 64 * 2**20
_TASK_BYTES = (16 * 2**20, 128 * 2**20)
_TASKS = 16
"""Tasks of a read are within those bounds, and so many if possible."""
_LINE_BYTES = 32
"""A low estimate of the bytes of a record in a text."""
_ROW_BYTES = 100
"""A rough estimate of the bytes of a row in Parquet."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the files of a source are read."""

    format: FileFormat
    shape: Shape
    changes: ChangeFormat
    delimiter: str

    def reader(self, *, prefixes: bool) -> PartReader:
        """A new reader. Without `prefixes` it cannot be asked whether a file has changed."""
        if self.format is FileFormat.PARQUET:
            return ParquetParts(self.shape, self.changes, prefixes=prefixes)
        separator = self.delimiter if self.format is FileFormat.CSV else None
        return TextParts(self.shape, self.changes, delimiter=separator, prefixes=prefixes)


@dataclass(frozen=True, slots=True)
class Span:
    """A portion of a file, from an offset up to another; None is its end."""

    file: FileListed
    settled: bool
    start: int = 0
    end: int | None = None
    size: int = 0
    """About how many bytes it has."""
    parts: tuple[Part, ...] = ()
    """The parts to read again, if it was taken before."""


@dataclass(frozen=True, slots=True)
class FilesDecode:
    """Implements `Decode`."""

    reading: Reading
    shares: tuple[tuple[Span, ...], ...]

    @property
    def tasks(self) -> int:
        return len(self.shares)

    def __call__(self, task: int) -> Iterator[Decoded]:
        reader = self.reading.reader(prefixes=False)
        try:
            for span in self.shares[task]:
                _check_seen(span.file)
                for part, item in _again(reader, span) if span.parts else _taken(reader, span):
                    for _, batch in reader.decode([item]):
                        width = batch.operations.num_columns - 2
                        rows = batch.operations.select(range(width))
                        yield Decoded(rows, batch.rows, batch.bad)
                    yield Decoded(self.reading.shape.schema.empty_table(), 0, (), part.to_json())
        finally:
            reader.close()


def _taken(reader: PartReader, span: Span) -> Iterator[tuple[Part, Batch | Undecoded]]:
    at, end = span.start, span.end
    place: Place | None = Place(at, at + 1) if at else Place()
    try:
        while place is not None and (end is None or place.at < end):
            rows = _PART_ROWS if end is None else min(_PART_ROWS, end - place.at)
            piece = reader.take(span.file, place, rows, _PART_BYTES, settled=span.settled)
            yield piece.part, piece.batch
            place = piece.next
    except (NotReadyError, OSError) as error:
        raise NotInBulkError(f"{span.file.name} cannot be read now: {error!r}") from error


def _again(reader: PartReader, span: Span) -> Iterator[tuple[Part, Batch | Undecoded]]:
    for part in span.parts:
        yield part, reader.again(part, span.file.path)


def _check_seen(file: FileListed) -> None:
    """Check that this process sees a file as the driver does: a worker may have other disks."""
    try:
        status = file.path.stat()
    except OSError:
        status = None
    if status is None or (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
        raise NotInBulkError(
            f"a Spark worker ({SystemEnv().host}) does not see {file.path} as the driver does",
            hint="put files under a path that is shared with all workers",
        )


def spans_of(file: FileListed, reading: Reading, *, settled: bool) -> tuple[Span, ...] | None:
    """The spans of a whole file; None if only a step can tell what is wrong with it."""
    if reading.format is not FileFormat.PARQUET:
        return (Span(file, settled, size=file.size),)
    try:
        metadata = pq.read_metadata(file.path)
    except (OSError, pa.ArrowException):
        return None
    spans, start = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        end = start + group.num_rows
        size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
        spans.append(Span(file, settled, start, end, size))
        start = end
    # A file without rows is a part as well.
    return tuple(spans) if start else (Span(file, settled),)


def parts_in(spans: Iterable[Span]) -> int:
    """About how many parts spans are."""
    return sum(
        1 + (span.size // _LINE_BYTES if span.end is None else span.end - span.start) // _PART_ROWS
        for span in spans
    )


def spans_again(parts: Sequence[Part], files: Sequence[FileListed], text: bool) -> tuple[Span, ...]:
    """The spans of recorded parts, of the files with these properties."""
    spans: list[Span] = []
    for part, file in zip(parts, files, strict=True):
        size = part.end - part.start if text else (part.end - part.start) * _ROW_BYTES
        last = spans[-1] if spans else None
        packed = file.path.suffix in COMPRESSIONS
        # A compressed file is read from its start.
        if last is not None and last.file == file and (packed or last.size < _TASK_BYTES[0]):
            spans[-1] = Span(file, True, size=last.size + size, parts=(*last.parts, part))
        else:
            spans.append(Span(file, True, size=size, parts=(part,)))
    return tuple(spans)


def shares_of(spans: Sequence[Span]) -> tuple[tuple[Span, ...], ...]:
    """Distribute spans over tasks, in order."""
    least, most = _TASK_BYTES
    wanted = min(most, max(least, sum(span.size for span in spans) // _TASKS))
    shares: list[list[Span]] = []
    size = wanted
    for span in spans:
        if size >= wanted:
            shares.append([])
            size = 0
        shares[-1].append(span)
        size += span.size
    return tuple(map(tuple, shares))
