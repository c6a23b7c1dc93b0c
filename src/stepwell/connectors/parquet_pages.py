"""Page headers of Parquet files: an upper bound on a row group's memory, before decoding it.

A page is decompressed and decoded as a whole, and 20 KB of a file may become gigabytes. The header
gives the page size, so a row group is judged by its headers alone. The result depends only on the
bytes of the file, so replay comes to the same result.

The reader here is bounded: it reads headers of at most 16 MiB and always moves forward. Whatever
bytes it is given, it raises only `PageHeaderError`; disk errors propagate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import BinaryIO

import pyarrow.parquet as pq

from stepwell.connectors.json_lines import RECORD_BYTES_MAX

PAGE_BYTES_MAX = 64 << 20
"""Maximum decompressed size of a page. Most writers end a page at 1 MiB."""
FULL_PAGE_BYTES_MAX = 256 << 20
"""The same for a page of many values: Arrow's writer ends pages at 1,024 values of any size."""
FULL_PAGE_VALUES_MIN = 128
PAGES_BYTES_MAX = 512 << 20
"""Maximum total of the largest page of each column, held in memory together; ignores small ones."""
PAGE_VALUES_MAX = 16 << 20
"""Maximum list and map values in a page: equal values take no space in a file, but 8 bytes here."""
WINDOW_ROWS = 65_536
WINDOW_BYTES = 32 << 20
_DENSE_BYTES = 128 << 20
"""Upper bound for the heaviest rows of a row group, if they are all in one window."""

_PAGES_MAX = 1_000_000
_HEADER_BYTES_MAX = 16 << 20
_FIRST_READ = 1 << 12
_DEPTH_MAX = 16


class PageHeaderError(ValueError):
    """A page header that cannot be read."""


class PageKind(IntEnum):
    DATA = 0
    INDEX = 1
    DICTIONARY = 2
    DATA_V2 = 3


@dataclass(frozen=True, slots=True)
class Page:
    kind: int
    size: int
    """Decompressed size in bytes."""
    stored: int
    """Size in the file in bytes, without the header."""
    values: int


@dataclass(frozen=True, slots=True)
class GroupPages:
    """The result of reading the headers of a row group."""

    refusal: str | None
    """The reason why it cannot be read in bounded memory, if it cannot."""
    window_rows: int
    """The number of rows that may be in memory at once."""
    dictionaries: tuple[str, ...]
    """String and binary columns that have a dictionary, whatever the file's metadata says."""


def group_pages(file: BinaryIO, metadata: pq.FileMetaData, number: int) -> GroupPages:
    """Judge a row group by its page headers."""
    group = metadata.row_group(number)
    size, total, largest, pages_left = group.num_rows, 0, 0, _PAGES_MAX
    flat: list[list[Page]] = []
    window = WINDOW_ROWS
    dictionaries: list[str] = []
    for i in range(group.num_columns):
        column, kind = group.column(i), metadata.schema.column(i)
        name = column.path_in_schema
        found = list(islice(_chunk_pages(file, column), pages_left + 1))
        pages_left -= len(found)
        if pages_left < 0:
            raise PageHeaderError(f"row group {number + 1} has more than {_PAGES_MAX:,} pages")
        if column.physical_type == "BYTE_ARRAY" and any(
            page.kind == PageKind.DICTIONARY for page in found
        ):
            dictionaries.append(name)
        repeated = kind.max_repetition_level > 0
        data = [page for page in found if page.kind in (PageKind.DATA, PageKind.DATA_V2)]
        values = sum(page.values for page in data)
        width = kind.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else 8
        refusal = _refusal(name, found, data, repeated=repeated, width=width)
        if refusal is not None:
            return GroupPages(refusal, 1, ())
        heaviest = max((page.size for page in found), default=0)
        largest += heaviest if heaviest > RECORD_BYTES_MAX else 0
        total += sum(page.size for page in found)
        if repeated:
            window = min(window, WINDOW_BYTES * size // max(1, values * width))
        else:
            window = min(window, WINDOW_BYTES // max(1, width))
            flat.append(data)
    if largest > PAGES_BYTES_MAX:
        sizes = f"{largest:,} bytes, more than {PAGES_BYTES_MAX:,}"
        refusal = f"the largest pages of its columns have {sizes}"
        return GroupPages(refusal, 1, ())
    total = max(total, group.total_byte_size)
    window = min(window, WINDOW_BYTES * size // max(1, total))
    return GroupPages(None, _without_dense_windows(flat, max(1, window)), tuple(dictionaries))


def pages(file: BinaryIO, start: int, length: int, values: int) -> Iterator[Page]:
    """The pages of a column chunk, until all its values have been seen."""
    at, end, seen = start, start + length, 0
    while at < end and seen < values:
        page, header = _page_at(file, at)
        yield page
        if page.kind in (PageKind.DATA, PageKind.DATA_V2):
            seen += page.values
        at += header + page.stored


def _chunk_pages(file: BinaryIO, column: pq.ColumnChunkMetaData) -> Iterator[Page]:
    # Finds the first page as Arrow does.
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    return pages(file, start, column.total_compressed_size, column.num_values)


def _refusal(
    name: str, found: Sequence[Page], data: Sequence[Page], *, repeated: bool, width: int
) -> str | None:
    for page in found:
        is_dictionary = page.kind == PageKind.DICTIONARY
        is_full = page.values >= FULL_PAGE_VALUES_MIN and not is_dictionary
        bound = FULL_PAGE_BYTES_MAX if is_full else PAGE_BYTES_MAX
        if page.size > bound:
            kind = "dictionary page" if is_dictionary else "page"
            return f"column {name} has a {kind} of {page.size:,} bytes, more than {bound:,}"
    if width > RECORD_BYTES_MAX:
        return f"values of column {name} have {width:,} bytes, more than {RECORD_BYTES_MAX:,}"
    if repeated and any(page.values > PAGE_VALUES_MAX for page in data):
        most = max(page.values for page in data)
        return f"column {name} has a page of {most:,} values, more than {PAGE_VALUES_MAX:,}"
    return None


def _without_dense_windows(columns: Sequence[Sequence[Page]], rows: int) -> int:
    """Halve a window until its rows fit, even if they are the heaviest of all."""
    ordered = [
        sorted(column, key=lambda page: page.size / max(1, page.values), reverse=True)
        for column in columns
    ]
    while rows > 1 and sum(_heaviest(column, rows) for column in ordered) > _DENSE_BYTES:
        rows //= 2
    return rows


def _heaviest(column: Sequence[Page], rows: int) -> float:
    """Bytes of the heaviest rows of a column. A page cut by a window has its own upper bound."""
    size, left = 0.0, rows
    for page in column:
        if left <= 0:
            break
        size += page.size * min(1.0, left / max(1, page.values))
        left -= page.values
    return size


def _page_at(file: BinaryIO, at: int) -> tuple[Page, int]:
    """The page at an offset in a file, and the length of its header."""
    length = _FIRST_READ
    while True:
        try:
            file.seek(at)
        except (OSError, ValueError, OverflowError) as error:
            raise PageHeaderError(f"no page can begin at byte {at}") from error
        data = file.read(length)
        try:
            return read_page_header(data)
        except _TooShortError as error:
            if len(data) < length or length >= _HEADER_BYTES_MAX:
                raise PageHeaderError(f"the page header at byte {at} has no end") from error
            length *= 16


def read_page_header(data: bytes) -> tuple[Page, int]:
    """Parse a page header, a struct in Thrift's compact protocol; also returns its length."""
    reader = _Compact(data)
    numbers = dict.fromkeys((1, 2, 3), -1)
    counts: dict[int, int] = {}
    for field, kind in reader.fields():
        if field in numbers and kind == _I32:
            numbers[field] = reader.integer()
        elif field in _COUNTS.values() and kind == _STRUCT:
            counts[field] = reader.first_integer()
        else:
            reader.skip(kind)
    page_kind, size, stored = numbers.values()
    count = {int(kind): counts.get(field, -1) for kind, field in _COUNTS.items()}
    values = count.get(page_kind, 0)
    if page_kind < 0 or size < 0 or stored < 0 or values < 0:
        raise PageHeaderError("a page header lacks its kind or a size")
    return Page(page_kind, size, stored, values), reader.at


_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(
    1, 14
)
_WIDTHS = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
"""Widths of fixed-width values; the type of a field encodes whether it is true or false."""
_COUNTS = {PageKind.DATA: 5, PageKind.DICTIONARY: 7, PageKind.DATA_V2: 8}
"""For each kind of page, the field whose struct holds the number of values."""


class _TooShortError(PageHeaderError):
    """The data ends inside the header."""


class _Compact:
    """Reads the compact protocol. Every value takes at least one byte, so all loops end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and type of each field of a struct; the caller reads or skips its value."""
        field = 0
        while True:
            byte = self._byte()
            if byte & 0x0F == 0:
                return
            delta = byte >> 4
            field = field + delta if delta else self.integer()
            yield field, byte & 0x0F

    def integer(self) -> int:
        number = self._varint() & 0xFFFFFFFF
        return (number >> 1) ^ -(number & 1)

    def first_integer(self) -> int:
        """Field 1 of a struct, skipping the other fields; -1 if it is absent."""
        found = -1
        for field, kind in self.fields():
            if field == 1 and kind == _I32:
                found = self.integer()
            else:
                self.skip(kind)
        return found

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEPTH_MAX:
            raise PageHeaderError("a page header is nested too deeply")
        if kind in _WIDTHS:
            self._pass(_WIDTHS[kind])
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind in (_LIST, _SET):
            self._skip_list(depth)
        elif kind == _MAP:
            self._skip_map(depth)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        else:
            raise PageHeaderError(f"a page header has a field of type {kind}")

    def _skip_list(self, depth: int) -> None:
        byte = self._byte()
        count = byte >> 4 if byte >> 4 < 15 else self._varint()
        self._skip_items(count, (byte & 0x0F,), depth)

    def _skip_map(self, depth: int) -> None:
        count = self._varint()
        if count:
            byte = self._byte()
            self._skip_items(count, (byte >> 4, byte & 0x0F), depth)

    def _skip_items(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                # Unlike a field, a boolean item takes a byte.
                self.skip(_BYTE if kind in (_TRUE, _FALSE) else kind, depth + 1)

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise PageHeaderError("a page header has a number of more than ten bytes")

    def _byte(self) -> int:
        self._pass(1)
        return self._data[self.at - 1]

    def _pass(self, count: int) -> None:
        if self.at + count > len(self._data):
            raise _TooShortError
        self.at += count
