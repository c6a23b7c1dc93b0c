"""The bytes of an entry's file, learned from Arrow's own writer and then filled in.

Writing a small file through Arrow costs up to a third of the time it takes to make it durable. But
all entries have the same structure. A `Frame` holds the bytes that Arrow writes around the values,
learned once from its own writer. A `Form` also holds the values that entries of the same sources
share. Only an entry's own values are filled in each time. The result is byte-for-byte the same,
which a test checks, and no data is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import itemgetter

import pyarrow as pa

from stepwell.errors import ensure
from stepwell.journal.entry import Input
from stepwell.model import NO_CHECKSUM, Bytes, Checksum, checksum

COLUMNS = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("reference", pa.string()),
        pa.field("data", pa.large_binary()),
    ]
)
SEAL = b"xxh3-128:"
ZEROS = NO_CHECKSUM.encode()

Alike = tuple[str, str, int, int | None, bool]
"""The properties that an input shares with others of its form: source, table, the lengths of its
checksum and of its reference, whether it has data.
"""
Shape = tuple[tuple[bool, bool], ...]
"""For each input, whether it has a reference and data. A frame knows nothing else."""

_Piece = bytes | int
"""Literal bytes of a file, or the index of the value to insert."""
_SIZE, _LENGTH, _ROWS, _CHECKSUMS, _REFERENCES, _ENDS = range(-6, 0)
"""The values after the metadata: total length of the columns, length of the data, then columns."""
_BUFFERS, _FOOTER = -7, -8
"""The values that a frame leaves to its forms: the location of each column and of the batch."""
_NUMBER = struct.Struct("<q")


class Form:
    """A file without the entry's own values, as two templates: before the data, and after it."""

    __slots__ = ("_ends", "_first", "_head", "_last", "_offset", "_rows", "_tail")

    def __init__(
        self,
        head: list[_Piece],
        tail: list[_Piece],
        seals: tuple[slice, slice],
        columns: _Columns,
    ) -> None:
        self._head = _Template(head)
        self._tail = _Template(tail)
        self._first, self._last = seals
        self._offset = columns.offset
        self._rows = struct.Struct(f"<{columns.count}q")
        self._ends = struct.Struct(f"<{columns.count + 1}q")

    def fill(
        self,
        metadata: tuple[bytes, ...],
        inputs: Sequence[Input],
        checksums: list[bytes],
        references: list[bytes],
    ) -> tuple[tuple[Bytes, ...], Checksum]:
        """The parts of the file, and their checksum."""
        datas: list[Bytes] = []
        end = 0
        ends = [end]
        for item in inputs:
            data = item.data
            if data is not None:
                if isinstance(data, memoryview):
                    data = data.cast("B")  # A view of numbers has fewer items than bytes.
                datas.append(data)
                end += len(data)
            ends.append(end)
        padding = -end % 8
        values = (
            *metadata,
            _NUMBER.pack(self._offset + end + padding),
            _NUMBER.pack(end),
            self._rows.pack(*[item.rows for item in inputs]),
            b"".join(checksums),
            b"".join(references),
            self._ends.pack(*ends),
        )
        head = bytearray(self._head.fill(values))
        tail = bytearray(bytes(padding) + self._tail.fill(values))
        parts = (head, *datas, tail)
        digest = checksum(parts)  # Computed with zeros in place of the checksum.
        head[self._first] = tail[self._last] = digest.encode()
        return parts, digest


class Frame:
    """The bytes around the values, for given metadata names and lengths and a shape of inputs."""

    def __init__(
        self, fixed: dict[str, str], names: tuple[str, ...], lengths: tuple[int, ...], shape: Shape
    ) -> None:
        # The long name makes the total length of the columns a number that occurs nowhere else.
        source = "s" * 1237
        sample = [
            Input(source, "t", 1, NO_CHECKSUM, "r" if reference else None, b"d" if data else None)
            for reference, data in shape
        ]
        batch = _batch(sample)
        message = batch.serialize().to_pybytes()
        header = int.from_bytes(message[4:8], "little") + 8
        plain = tuple([b"0" * length for length in lengths])
        whole = _write(fixed, names, plain, batch)
        start = whole.index(message)
        body, end = start + header, start + len(message)
        places: dict[int, tuple[int, int]] = {}
        for index, length in enumerate(lengths):
            changed = (*plain[:index], b"1" * length, *plain[index + 1 :])
            other = _write(fixed, names, changed, batch)
            differ = [at for at, (x, y) in enumerate(zip(whole, other, strict=True)) if x != y]
            ensure(len(differ) == 2 * length, "a metadata value occurs twice in a file")
            places |= dict.fromkeys(differ[::length], (index, length))
        # The numbers to find: length and offset of each column, their total length, and the
        # location of the batch. Without inputs, neither these numbers nor the columns ever change.
        self._empty = b"" if sample else message[header:]
        self._block = struct.pack("<qi4x", start, header)
        alike = tuple([(source, "t", len(ZEROS), 1 if r else None, d) for r, d in shape])
        if sample:
            columns = _Columns(alike)
            data = sum([d for _, d in shape])
            size = _NUMBER.pack(columns.offset + data + -data % 8)
            buffers, block = columns.places + _NUMBER.pack(data), self._block + size
            places[_only(whole, buffers, start, body)] = (_BUFFERS, len(buffers))
            places[_only(whole, size, start, body, buffers)] = (_SIZE, len(size))
            places[_only(whole, block, end, len(whole))] = (_FOOTER, len(block))
        self._head = list(_cut(whole, 0, body, places))
        self._tail = list(_cut(whole, end, len(whole), places))
        # One is counted from the beginning, the other from the end: the data may have any length.
        first, last = whole.index(SEAL) + len(SEAL), whole.rindex(SEAL) + len(SEAL) - len(whole)
        self._seals = slice(first, first + len(ZEROS)), slice(last, last + len(ZEROS))

        checksums, references = [ZEROS] * len(shape), [b"r" for reference, _ in shape if reference]
        parts, digest = self.form(alike).fill(plain, sample, checksums, references)
        ensure(b"".join(parts).replace(digest.encode(), ZEROS) == whole, "a frame fits its sample")

    def form(self, inputs: tuple[Alike, ...]) -> Form:
        """Fill in the values that these inputs share with others."""
        columns = _Columns(inputs)
        known: dict[_Piece, list[_Piece]] = {
            _BUFFERS: [columns.places, _LENGTH],
            _FOOTER: [self._block, _SIZE],
        }
        head = [part for piece in self._head for part in known.get(piece, [piece])]
        tail = [part for piece in self._tail for part in known.get(piece, [piece])]
        head += columns.pieces if inputs else [self._empty]
        return Form(head, tail, self._seals, columns)


class _Columns:
    """The columns of a batch in Arrow's layout: one buffer after another, each padded to 8 bytes.

    `pieces` are the buffers before the data and `offset` is their total length. `places` holds the
    offset and length of each buffer as stored, except for the length of the last one, the data.
    """

    def __init__(self, inputs: tuple[Alike, ...]) -> None:
        self.count = count = len(inputs)
        sources = [source.encode() for source, *_ in inputs]
        tables = [table.encode() for _, table, *_ in inputs]
        references = [item[3] for item in inputs]
        buffers: tuple[tuple[int, _Piece], ...] = (
            _NO_NULLS,
            *_strings(list(map(len, sources)), b"".join(sources)),
            _NO_NULLS,
            *_strings(list(map(len, tables)), b"".join(tables)),
            _NO_NULLS,
            (8 * count, _ROWS),
            _NO_NULLS,
            *_strings([item[2] for item in inputs], _CHECKSUMS),
            _nulls([reference is None for reference in references]),
            *_strings([reference or 0 for reference in references], _REFERENCES),
            _nulls([not data for *_, data in inputs]),
            (8 * count + 8, _ENDS),
        )
        numbers: list[int] = []
        self.pieces: list[_Piece] = []
        self.offset = 0
        for length, piece in buffers:
            numbers += (self.offset, length)
            self.offset += (length + 7) & -8
            self.pieces += (piece, bytes(-length % 8))
        self.places = struct.pack(f"<{len(numbers) + 1}q", *numbers, self.offset)


_NO_NULLS: tuple[int, _Piece] = (0, b"")
"""The validity buffer of a column without nulls."""


def _nulls(absent: list[bool]) -> tuple[int, _Piece]:
    """A validity bitmap; empty if no value is null."""
    if not any(absent):
        return _NO_NULLS
    bits = sum([1 << index for index, null in enumerate(absent) if not null])
    length = (len(absent) + 7) // 8
    return length, bits.to_bytes(length, "little")


def _strings(lengths: list[int], texts: _Piece) -> tuple[tuple[int, _Piece], ...]:
    """The end offset of each text, and the texts."""
    ends = list(accumulate(lengths, initial=0))
    return (4 * len(ends), struct.pack(f"<{len(ends)}i", *ends)), (ends[-1], texts)


class _Template:
    """Bytes with placeholders, as a Python format string: the fastest way to fill them in."""

    __slots__ = ("_format", "_pick")

    def __init__(self, pieces: list[_Piece]) -> None:
        self._format = b"".join(
            [b"%b" if isinstance(piece, int) else piece.replace(b"%", b"%%") for piece in pieces]
        )
        # Every file has metadata, so there are several placeholders; with only one, itemgetter
        # would not return a tuple.
        self._pick = itemgetter(*[piece for piece in pieces if isinstance(piece, int)])

    def fill(self, values: tuple[bytes, ...]) -> bytes:
        filled: bytes = self._format % self._pick(values)
        return filled


def _cut(whole: bytes, low: int, high: int, places: dict[int, tuple[int, int]]) -> Iterator[_Piece]:
    """Part of a file as pieces."""
    for place in sorted(place for place in places if low <= place < high):
        index, length = places[place]
        yield whole[low:place]
        yield index
        low = place + length
    yield whole[low:high]


def _only(whole: bytes, wanted: bytes, low: int, high: int, around: bytes = b"") -> int:
    """The only offset of some bytes, ignoring occurrences inside `around`."""
    searched = whole[low:high]
    if around:
        searched = searched.replace(around, b"\xff" * len(around))
    ensure(searched.count(wanted) == 1, "a number of the batch has one place")
    return low + searched.index(wanted)


def _write(
    fixed: dict[str, str], names: tuple[str, ...], values: tuple[bytes, ...], batch: pa.RecordBatch
) -> bytes:
    metadata = {"checksum": SEAL + ZEROS, **fixed, **dict(zip(names, values, strict=True))}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, COLUMNS.with_metadata(metadata)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _batch(inputs: Sequence[Input]) -> pa.RecordBatch:
    columns = [[getattr(item, name) for item in inputs] for name in COLUMNS.names]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, COLUMNS.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)
