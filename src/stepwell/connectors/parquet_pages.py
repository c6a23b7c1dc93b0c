"""Page headers of Parquet files: an upper bound on a row group's memory, before decoding it.

A page is decompressed and decoded as a whole, and 20 KB of a file may become gigabytes. The header
gives the page size, so a row group is judged by its headers alone. The result depends only on the
bytes of the file, so replay comes to the same result.

The reader here is bounded: it reads headers of at most 16 MiB and always moves forward. Whatever
bytes it is given, it raises only `ThriftError`; disk errors propagate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import BinaryIO

from stepwell.connectors.json_lines import RECORD_BYTES_MAX
from stepwell.connectors.parquet_footer import BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, Chunk, Footer
from stepwell.connectors.thrift_compact import I32, STRUCT, Compact, ThriftError, TooShortError

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


class PageHeaderError(ThriftError):
    """A page header that cannot be read."""


class PageKind(IntEnum):
    DATA = 0
    INDEX = 1
    DICTIONARY = 2
    DATA_V2 = 3


_COUNTS = {PageKind.DATA: 5, PageKind.DICTIONARY: 7, PageKind.DATA_V2: 8}
"""For each kind of page, the field whose struct holds the number of values."""


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


def group_pages(file: BinaryIO, footer: Footer, number: int) -> GroupPages:
    """Judge a row group by its page headers."""
    group = footer.groups[number]
    size, total, largest, pages_left = group.rows, 0, 0, _PAGES_MAX
    flat: list[list[Page]] = []
    window = WINDOW_ROWS
    dictionaries: list[str] = []
    for leaf, chunk in footer.chunks(number):
        name = leaf.path
        found = list(islice(_chunk_pages(file, chunk), pages_left + 1))
        pages_left -= len(found)
        if pages_left < 0:
            raise PageHeaderError(f"row group {number + 1} has more than {_PAGES_MAX:,} pages")
        if leaf.physical == BYTE_ARRAY and any(page.kind == PageKind.DICTIONARY for page in found):
            dictionaries.append(name)
        data = [page for page in found if page.kind in (PageKind.DATA, PageKind.DATA_V2)]
        values = sum(page.values for page in data)
        width = leaf.width if leaf.physical == FIXED_LEN_BYTE_ARRAY else 8
        refusal = _refusal(name, found, data, repeated=leaf.repeated, width=width)
        if refusal is not None:
            return GroupPages(refusal, 1, ())
        heaviest = max((page.size for page in found), default=0)
        largest += heaviest if heaviest > RECORD_BYTES_MAX else 0
        total += sum(page.size for page in found)
        if leaf.repeated:
            window = min(window, WINDOW_BYTES * size // max(1, values * width))
        else:
            window = min(window, WINDOW_BYTES // max(1, width))
            flat.append(data)
    if largest > PAGES_BYTES_MAX:
        sizes = f"{largest:,} bytes, more than {PAGES_BYTES_MAX:,}"
        refusal = f"the largest pages of its columns have {sizes}"
        return GroupPages(refusal, 1, ())
    total = max(total, group.size)
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


def _chunk_pages(file: BinaryIO, chunk: Chunk) -> Iterator[Page]:
    # Finds the first page as Arrow does.
    start = chunk.data
    if chunk.dictionary is not None and 0 < chunk.dictionary < start:
        start = chunk.dictionary
    return pages(file, start, chunk.stored, chunk.values)


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
        except TooShortError as error:
            if len(data) < length or length >= _HEADER_BYTES_MAX:
                raise PageHeaderError(f"the page header at byte {at} has no end") from error
            length *= 16


def read_page_header(data: bytes) -> tuple[Page, int]:
    """Parse a page header, a struct in Thrift's compact protocol; also returns its length."""
    reader = Compact(data)
    numbers = dict.fromkeys((1, 2, 3), -1)
    counts: dict[int, int] = {}
    for field, kind in reader.fields():
        if field in numbers and kind == I32:
            numbers[field] = reader.integer()
        elif field in _COUNTS.values() and kind == STRUCT:
            counts[field] = reader.first_integer()
        else:
            reader.skip(kind)
    page_kind, size, stored = numbers.values()
    count = {int(kind): counts.get(field, -1) for kind, field in _COUNTS.items()}
    values = count.get(page_kind, 0)
    if page_kind < 0 or size < 0 or stored < 0 or values < 0:
        raise PageHeaderError("a page header lacks its kind or a size")
    return Page(page_kind, size, stored, values), reader.at
