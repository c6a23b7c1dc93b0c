"""Bulk reads of files: which part of which file each task decodes, and how.

A task decodes whole files, whole row groups of Parquet files, or ranges of a large text, with the
`PartReader` that the source uses itself. So rows, dead letters, parts and their checksums are those
that polling step by step produces; only where one part ends and the next begins may differ.

    driver   cuts a text at line ends, at equal distances      reads a few kilobytes at each
    task     decodes its range, numbers lines from `_RELATIVE`, and has to end where the range does
    driver   adds up the lines of ranges; renumbers parts and dead letters

A line end of CSV may be inside of quotes. But the first range begins with a record; and if a range
begins with one, and reading it record by record ends exactly at its end, the next one begins with
one, too. So if all ranges end where they should, each was read as one reader of the whole file
would have read it. If one does not (`MisalignedError`), a second job reads texts unsplit.

Workers read the files at the paths at which the driver sees them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO

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
    renumbered,
)
from stepwell.connectors.formats import Batch, ChangeFormat
from stepwell.connectors.parquet_footer import footer_of
from stepwell.connectors.parquet_parts import ParquetParts
from stepwell.connectors.shape import Shape
from stepwell.connectors.thrift_compact import ThriftError
from stepwell.connectors.values import Unfit
from stepwell.connectors.writing import FileFormat
from stepwell.env import SystemEnv
from stepwell.lsm.bulk import Decoded, MisalignedError, NotInBulkError, Staged
from stepwell.lsm.dead_letter import BadRow
from stepwell.store.sealed import Json

PARTS_MAX = 2_000
"""Parts of one bulk read, as estimated: each takes some 150 bytes of its reference."""
READ_BYTES_MAX = 64 * 2**30
"""A bulk read of more bytes is continued by the next one."""
_PART_ROWS = 128 * 1024
_PART_BYTES = 64 * 2**20
_TASK_BYTES = (16 * 2**20, 128 * 2**20)
_TASKS = 16
"""Number of tasks of a read, as far as their sizes stay within `_TASK_BYTES`."""
_LINE_BYTES = 32
"""A low estimate of the bytes of a record in a text."""
_ROW_BYTES = 100
"""A rough estimate of the bytes of a row in Parquet."""
_RELATIVE = 2
"""The number of the first line of a range until its true number is known."""
_NEXT_LINE = "next_line"
"""The note of a task with the number of the line after it."""
_LINE_BYTES_MAX = 1 << 20
"""A text is not cut where no line ends within this many bytes."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the files of a source are read."""

    format: FileFormat
    shape: Shape
    changes: ChangeFormat
    delimiter: str

    @property
    def text(self) -> bool:
        """Whether files are lines; otherwise, they are Parquet."""
        return self.format is not FileFormat.PARQUET

    def reader(self, *, prefixes: bool) -> PartReader:
        """A new reader. Without `prefixes` it cannot be asked whether a file has changed."""
        if self.text:
            return self.text_reader(prefixes=prefixes)
        return ParquetParts(self.shape, self.changes, prefixes=prefixes)

    def text_reader(self, *, prefixes: bool) -> TextParts:
        separator = self.delimiter if self.format is FileFormat.CSV else None
        return TextParts(self.shape, self.changes, delimiter=separator, prefixes=prefixes)


@dataclass(frozen=True, slots=True)
class Span:
    """A portion of a file, from an offset up to another; None is its end."""

    file: FileListed
    settled: bool
    start: int = 0
    end: int | None = None
    line: int | None = 0
    """The number of its first line, or row; None if it follows that of the span before it."""
    size: int = 0
    """About how many bytes it has."""
    rows: int = 0
    """About how many rows it has, or more."""
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
        line = _RELATIVE
        try:
            for span in self.shares[task]:
                _check_seen(span.file)
                if span.parts:
                    for part, item in _again(reader, span):
                        yield from self._decoded(reader, part, item)
                else:
                    line = yield from self._taken(reader, span, line)
            yield self._note({_NEXT_LINE: line})
        finally:
            reader.close()

    def _taken(self, reader: PartReader, span: Span, line: int) -> Generator[Decoded, None, int]:
        """Decode a span; returns the number of the line after it. `line` is that of its first."""
        end, text = span.end, self.reading.text
        place: Place | None = Place(span.start, line if span.line is None else span.line)
        try:
            while place is not None and (end is None or place.at < end):
                left = _PART_BYTES if end is None else end - place.at
                rows = _PART_ROWS if text else min(_PART_ROWS, left)
                size = min(_PART_BYTES, left) if text else _PART_BYTES
                piece = reader.take(span.file, place, rows, size, settled=span.settled)
                if text and end is not None and piece.part.wrong is not None:
                    # How much of it is not a record may depend on where reading began.
                    raise MisalignedError(f"{span.file.name} has text that is not a record")
                yield from self._decoded(reader, piece.part, piece.batch)
                place = piece.next
        except (NotReadyError, OSError) as error:
            raise NotInBulkError(f"{span.file.name} cannot be read now: {error!r}") from error
        if text and end is not None and (place is None or place.at != end):
            raise MisalignedError(f"in {span.file.name} a record crosses byte {end}")
        return _RELATIVE if place is None else place.line

    def _decoded(
        self, reader: PartReader, part: Part, item: Batch | Undecoded
    ) -> Iterator[Decoded]:
        for _, batch in reader.decode([item]):
            rows = batch.operations.select(range(batch.operations.num_columns - 2))
            yield Decoded(rows, batch.rows, batch.bad)
        yield self._note(part.to_json())

    def _note(self, note: Json) -> Decoded:
        return Decoded(self.reading.shape.schema.empty_table(), 0, (), note)

    def located(self, staged: Staged) -> tuple[tuple[Json, ...], tuple[BadRow, ...]]:
        """The parts and the rejected records, with line numbers counted from the start of files."""
        parts: list[Json] = []
        bad: list[BadRow] = []
        line = _RELATIVE
        for share, told in zip(self.shares, staged.tasks, strict=True):
            first, last = share[0], share[-1]
            by = 0 if first.line is not None else line - _RELATIVE
            for note in told.notes:
                if isinstance(note, dict):
                    line = note[_NEXT_LINE] + (by if last.file == first.file else 0)
                elif note is not None:
                    part = Part.from_json(note)
                    moved = by if part.name == first.file.name else 0
                    parts.append(replace(part, line=part.line + moved).to_json())
            bad += [renumbered(row, first.file.name, "line", by) if by else row for row in told.bad]
        return tuple(parts), tuple(bad)

    def unsplit(self) -> FilesDecode | None:
        """The same files, none of them split inside of a text; None if none is."""
        spans = [span for share in self.shares for span in share]
        if all(span.line is not None for span in spans):
            return None
        sizes = Counter[str]()
        for span in spans:
            sizes[span.file.name] += span.size
        whole = [
            replace(span, end=None, size=sizes[span.file.name])
            for span in spans
            if span.line is not None
        ]
        return FilesDecode(self.reading, shares_of(whole))


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


def spans_of(
    file: FileListed, reading: Reading, wanted: int, *, settled: bool
) -> tuple[Span, ...] | None:
    """The spans of a file, of at least some `wanted` bytes if it can be split anywhere.

    None if only a step can tell what is wrong with it.
    """
    if reading.text:
        rows = file.size // _LINE_BYTES
        whole = Span(file, settled, size=file.size, rows=rows)
        if file.path.suffix in COMPRESSIONS or file.size < 2 * wanted:
            return (whole,)
        return _ranges(whole, reading, wanted)
    try:
        pq.read_metadata(file.path)
        footer = footer_of(file.path)
    except (OSError, pa.ArrowException, ThriftError):
        return None
    spans, start = [], 0
    for group in footer.groups:
        end = start + group.rows
        size = sum(max(0, chunk.stored) for chunk in group.chunks)
        line = start + 1 if start else 0
        spans.append(Span(file, settled, start, end, line, size, group.rows))
        start = end
    # A file without rows is a part as well.
    return tuple(spans) if start else (Span(file, settled),)


def _ranges(whole: Span, reading: Reading, wanted: int) -> tuple[Span, ...]:
    """A text cut at line ends into ranges of some `wanted` bytes."""
    file = whole.file
    try:
        begin = reading.text_reader(prefixes=False).begin(file)
        count = file.size // wanted
        with open(file.path, "rb") as opened:
            found = [_line_end(opened, file.size * n // count) for n in range(1, count)]
    except (Unfit, OSError):
        return (whole,)
    ends = sorted({at for at in found if at is not None and begin.at < at < file.size})
    spans = []
    for start, end in pairwise([begin.at, *ends, file.size]):
        size, first = end - start, start == begin.at
        span = replace(whole, start=start, end=end, line=begin.line if first else None)
        spans.append(replace(span, size=size, rows=size // _LINE_BYTES))
    # The last one reads to the end, whatever it holds.
    return (*spans[:-1], replace(spans[-1], end=None))


def _line_end(file: BinaryIO, at: int) -> int | None:
    """The offset behind the first line end at or after an offset; None if that is far."""
    file.seek(at)
    line = file.readline(_LINE_BYTES_MAX)
    return at + len(line) if line.endswith(b"\n") else None


def parts_in(spans: Iterable[Span]) -> int:
    """About how many parts spans are."""
    return sum(1 + span.rows // _PART_ROWS for span in spans)


def task_bytes(size: int) -> int:
    """About how many bytes each task of a read of `size` bytes reads."""
    least, most = _TASK_BYTES
    return min(most, max(least, size // _TASKS))


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
    wanted = task_bytes(sum(span.size for span in spans))
    shares: list[list[Span]] = []
    size = wanted
    for span in spans:
        if size >= wanted:
            shares.append([])
            size = 0
        shares[-1].append(span)
        size += span.size
    return tuple(map(tuple, shares))
