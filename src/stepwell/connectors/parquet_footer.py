"""The footer of a Parquet file: row groups and the location of their column chunks.

Arrow reads the footer, too, but its accessors of a column chunk do not translate exceptions of C++:
`metadata.row_group(0).column(0)` ends the process if, for example, a histogram has the wrong
length. No connector calls them. When it reads rows, Arrow reports such a file as an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from stepwell.connectors.thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Compact,
    ThriftError,
)

BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = 6, 7
"""Physical types of columns, as the format numbers them."""

_REPEATED = 2
_TAIL = 8
_FOOTER_BYTES_MAX = 64 << 20
_CHUNKS_MAX = 1_000_000
_DEPTH_MAX = 1_000


class FooterError(ThriftError):
    """A footer that cannot be read, or contradicts itself or its file."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column that holds values."""

    path: str
    """Its name, after those of the columns it is in."""
    physical: int
    width: int
    """Bytes of a value, if its type says so."""
    repeated: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """The values of a column in a row group."""

    values: int
    stored: int
    """Bytes in the file."""
    data: int
    """Offset of its first data page."""
    dictionary: int | None


@dataclass(frozen=True, slots=True)
class RowGroup:
    rows: int
    size: int
    """Decompressed size in bytes, as the writer states it."""
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    leaves: tuple[Leaf, ...]
    groups: tuple[RowGroup, ...]
    file_size: int
    data: bytes = field(repr=False)

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def chunks(self, number: int) -> tuple[tuple[Leaf, Chunk], ...]:
        """The column chunks of a row group; raises `FooterError` if they cannot be there."""
        group = self.groups[number]
        if len(group.chunks) != len(self.leaves):
            raise FooterError(
                f"row group {number + 1} has {len(group.chunks):,} columns, and the schema "
                f"{len(self.leaves):,}"
            )
        for leaf, chunk in zip(self.leaves, group.chunks, strict=True):
            start = chunk.data if chunk.dictionary is None else min(chunk.data, chunk.dictionary)
            if start < 0 or chunk.stored < 0 or start + chunk.stored > self.file_size:
                raise FooterError(
                    f"column {leaf.path} of row group {number + 1} is not inside of the file"
                )
        return tuple(zip(self.leaves, group.chunks, strict=True))

    def dictionaries(self) -> set[str]:
        """The string and binary columns that have a dictionary anywhere."""
        return {
            leaf.path
            for group in self.groups
            for leaf, chunk in zip(self.leaves, group.chunks, strict=False)
            if leaf.physical == BYTE_ARRAY and chunk.dictionary is not None
        }


def read_footer(file: BinaryIO, known: Footer | None = None) -> Footer:
    """Read the footer of a file; raises only `ThriftError` and errors of the disk.

    Parsing takes longer than reading: if the bytes are those of a `known` footer, that is returned.
    """
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL:
        raise FooterError("the file is too short")
    file.seek(size - _TAIL)
    length = int.from_bytes(file.read(_TAIL)[:4], "little")
    if length > _FOOTER_BYTES_MAX:
        raise FooterError(f"its footer has {length:,} bytes, more than {_FOOTER_BYTES_MAX:,}")
    if length > size - _TAIL:
        raise FooterError("its footer is larger than the file")
    file.seek(size - _TAIL - length)
    data = file.read(length)
    if known is not None and (known.file_size, known.data) == (size, data):
        return known
    leaves, groups = parse_footer(data)
    return Footer(leaves, groups, size, data)


def footer_of(path: Path, known: Footer | None = None) -> Footer:
    with open(path, "rb") as file:
        return read_footer(file, known)


def parse_footer(data: bytes) -> tuple[tuple[Leaf, ...], tuple[RowGroup, ...]]:
    reader = Compact(data)
    leaves: tuple[Leaf, ...] = ()
    groups: list[RowGroup] = []
    for number, kind in reader.fields():
        if number == 2 and kind == LIST:
            leaves = _leaves(reader)
        elif number == 4 and kind == LIST:
            groups, left = [], _CHUNKS_MAX
            for _ in range(_structs(reader)):
                groups.append(_group(reader, left))
                left -= len(groups[-1].chunks)
        else:
            reader.skip(kind)
    return leaves, tuple(groups)


@dataclass(slots=True)
class _Element:
    physical: int = -1
    width: int = 0
    repeated: bool = False
    name: str = ""
    children: int = 0


def _leaves(reader: Compact) -> tuple[Leaf, ...]:
    """The schema is a tree in depth-first order, its root first."""
    found: list[Leaf] = []
    open_: list[tuple[int, str, bool]] = []
    """For each column around the next one: how many are left in it, its path, and whether it, or
    one around it, is repeated."""
    for number in range(_structs(reader)):
        element = _element(reader)
        while open_ and not open_[-1][0]:
            open_.pop()
        path, repeated = element.name, element.repeated
        if open_:
            left, above, inside = open_.pop()
            open_.append((left - 1, above, inside))
            path, repeated = f"{above}.{path}" if above else path, repeated or inside
        elif number:
            raise FooterError("its schema has columns that are in no other")
        if len(open_) > _DEPTH_MAX:
            raise FooterError("its schema is nested too deeply")
        if number == 0:
            open_.append((element.children, "", False))
        elif element.children > 0:
            open_.append((element.children, path, repeated))
        else:
            found.append(Leaf(path, element.physical, element.width, repeated))
    return tuple(found)


def _element(reader: Compact) -> _Element:
    made = _Element()
    for number, kind in reader.fields():
        if number == 1 and kind == I32:
            made.physical = reader.integer()
        elif number == 2 and kind == I32:
            made.width = reader.integer()
        elif number == 3 and kind == I32:
            made.repeated = reader.integer() == _REPEATED
        elif number == 4 and kind == BINARY:
            made.name = reader.text()
        elif number == 5 and kind == I32:
            made.children = reader.integer()
        else:
            reader.skip(kind)
    return made


def _group(reader: Compact, chunks_max: int) -> RowGroup:
    chunks: list[Chunk] = []
    numbers = {2: 0, 3: 0}
    for number, kind in reader.fields():
        if number == 1 and kind == LIST:
            count = _structs(reader)
            if count > chunks_max:
                raise FooterError(f"it has more than {_CHUNKS_MAX:,} column chunks")
            chunks = [_chunk(reader) for _ in range(count)]
        elif number in numbers and kind == I64:
            numbers[number] = reader.long()
        else:
            reader.skip(kind)
    if numbers[3] < 0:
        raise FooterError(f"a row group has {numbers[3]:,} rows")
    return RowGroup(numbers[3], numbers[2], tuple(chunks))


def _chunk(reader: Compact) -> Chunk:
    numbers: dict[int, int] = {}
    for number, kind in reader.fields():
        if number != 3 or kind != STRUCT:
            reader.skip(kind)
            continue
        for inner, type_ in reader.fields():
            if inner in _NUMBERS and type_ == I64:
                numbers[inner] = reader.long()
            else:
                reader.skip(type_)
    values, stored, data = (numbers.get(number, -1) for number in _NUMBERS[:3])
    return Chunk(values, stored, data, numbers.get(_NUMBERS[3]))


_NUMBERS = (5, 7, 9, 11)
"""Fields of a column chunk's metadata: values, compressed size, data page, dictionary page."""


def _structs(reader: Compact) -> int:
    """The number of structs in a list."""
    count, kind = reader.items()
    if kind != STRUCT and count:
        raise FooterError(f"a list of type {kind} where structs are expected")
    return count
