"""The bytes of an entry's file, learned from Arrow's own writer and then filled in.

Writing a small file through Arrow costs as much as a third of making it durable. But entries are
all alike: with as many inputs, and metadata values as long, all that changes are the values
themselves, the columns, and a few numbers that say how long those are. So the first entry of a
shape is written by Arrow, several times, to see where these things lie; every one after it is
filled in. The result is the same to the byte, which a test checks. No data is copied on the way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
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

Shape = tuple[tuple[bool, bool], ...]
"""Of each input, whether it has a reference, and whether it has data."""


class Frame:
    """One shape of entry.

    A file is four stretches of bytes with values to be filled in. Between them lie the first seal,
    the columns, and the second seal.
    """

    def __init__(
        self,
        fixed: dict[str, str],
        names: tuple[str, ...],
        lengths: tuple[int, ...],
        sample: list[Input],
    ) -> None:
        batch = _batch(sample)
        message = batch.serialize().to_pybytes()
        header = int.from_bytes(message[4:8], "little") + 8
        plain = tuple([b"0" * length for length in lengths])
        whole = _write(fixed, names, plain, batch)
        self._start, self._header = whole.index(message), header
        body, end = self._start + header, self._start + len(message)
        places: dict[int, tuple[int, int]] = {}
        for index, length in enumerate(lengths):
            changed = (*plain[:index], b"1" * length, *plain[index + 1 :])
            other = _write(fixed, names, changed, batch)
            differ = [at for at, (x, y) in enumerate(zip(whole, other, strict=True)) if x != y]
            ensure(len(differ) == 2 * length, "a metadata value stands in a file twice")
            places |= dict.fromkeys(differ[::length], (index, length))
        # The numbers, which count as further values: how long each column is and where it lies, how
        # long all are, and where the batch lies. Without inputs none of them ever changes.
        self._empty = message[header:] if not sample else None
        if sample:
            columns = Columns(sample)
            ensure(columns.joined() == message[header:], "columns lie as Arrow lays them")
            start = self._start
            places[_only(whole, columns.places, start, body)] = (len(lengths), len(columns.places))
            places[_only(whole, columns.size, start, body, columns.places)] = (len(lengths) + 1, 8)
            block = self._block(columns.size)
            places[_only(whole, block, end, len(whole))] = (len(lengths) + 2, len(block))
        first, last = whole.index(SEAL) + len(SEAL), whole.rindex(SEAL) + len(SEAL)
        self._stretches = [
            _Stretch(whole, low, high, places)
            for low, high in (
                (0, first),
                (first + len(ZEROS), body),
                (end, last),
                (last + len(ZEROS), len(whole)),
            )
        ]

        parts, digest = self.fill(plain, sample)
        ensure(b"".join(parts).replace(digest.encode(), ZEROS) == whole, "a frame fits its sample")

    def fill(
        self, values: Sequence[bytes], inputs: Sequence[Input]
    ) -> tuple[tuple[Bytes, ...], Checksum]:
        """The parts of a file, and their checksum."""
        filling = [*values]
        body: list[Bytes]
        if self._empty is None:
            columns = Columns(inputs)
            body = columns.parts
            filling += [columns.places, columns.size, self._block(columns.size)]
        else:
            body = [self._empty]
        head, before, after, tail = [stretch.fill(filling) for stretch in self._stretches]
        digest = checksum([head, ZEROS, before, *body, after, ZEROS, tail])
        digits = digest.encode()
        return (head, digits, before, *body, after, digits, tail), digest

    def _block(self, size: bytes) -> bytes:
        """How the footer says where the batch lies."""
        return struct.pack("<qi4x8s", self._start, self._header, size)


def learn(
    fixed: dict[str, str], names: tuple[str, ...], lengths: tuple[int, ...], shape: Shape
) -> Frame:
    """The frame for values of these names and lengths, and inputs of this shape."""
    # The long name makes the length of the columns a number that stands nowhere else.
    sample = [
        Input("s" * 1237, "t", 1, NO_CHECKSUM, "r" if reference else None, b"d" if data else None)
        for reference, data in shape
    ]
    return Frame(fixed, names, lengths, sample)


class Columns:
    """The columns of a batch as Arrow lays them out: buffer after buffer, each padded to 8 bytes.

    `places` are the offset and length of each buffer, `size` the length of all; both as stored.
    """

    __slots__ = ("parts", "places", "size")

    def __init__(self, inputs: Sequence[Input]) -> None:
        datas = [_flat(item.data) for item in inputs]
        ends = [0, *accumulate([0 if data is None else len(data) for data in datas])]
        small = (
            *_names(tuple([(item.source, item.table) for item in inputs])),
            struct.pack(f"<{len(inputs)}q", *[item.rows for item in inputs]),
            *_texts([item.checksum.encode() for item in inputs]),
            *_references(tuple([item.reference for item in inputs])),
            _validity(datas),
            struct.pack(f"<{len(ends)}q", *ends),
        )
        format, places, offset = _layout(tuple(map(len, small)))
        length = ends[-1]
        padded = (length + 7) & -8
        self.places = places + struct.pack("<2q", offset, length)
        self.size = struct.pack("<q", offset + padded)
        self.parts: list[Bytes] = [format % small, *[data for data in datas if data is not None]]
        if padded > length:
            self.parts.append(bytes(padded - length))

    def joined(self) -> bytes:
        return b"".join(self.parts)


@lru_cache(maxsize=256)
def _layout(lengths: tuple[int, ...]) -> tuple[bytes, bytes, int]:
    """How buffers of these lengths lie: a format that pads them, their places, their end.

    The columns that hold no nulls have an empty buffer first, where others say which are null.
    """
    numbers: list[int] = []
    offset = 0
    format = b""
    for index, length in enumerate(lengths):
        if index in _WITHOUT_NULLS:
            numbers += (offset, 0)
        numbers += (offset, length)
        offset += (length + 7) & -8
        format += b"%b" + bytes(-length % 8)
    return format, struct.pack(f"<{len(numbers)}q", *numbers), offset


_WITHOUT_NULLS = (0, 2, 4, 5)
"""Where, among the buffers of `Columns`, those of source, table, rows and checksum begin."""


@lru_cache(maxsize=256)
def _names(names: tuple[tuple[str, str], ...]) -> tuple[bytes, ...]:
    """Sources and tables: the same few, again and again."""
    sources, tables = zip(*names, strict=True)
    return *_texts([name.encode() for name in sources]), *_texts([name.encode() for name in tables])


def _references(references: tuple[str | None, ...]) -> tuple[bytes, bytes, bytes]:
    if not any(references):
        return _absent(references)
    encoded = [None if item is None else item.encode() for item in references]
    return _validity(encoded), *_texts([item or b"" for item in encoded])


@lru_cache(maxsize=256)
def _absent(references: tuple[str | None, ...]) -> tuple[bytes, bytes, bytes]:
    """Where no input has one, as when all data was pushed."""
    encoded = [None if item is None else b"" for item in references]
    return _validity(encoded), *_texts([b""] * len(encoded))


def _texts(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Where each text ends, and the texts."""
    if len(values) == 1:
        return _TWO.pack(0, len(values[0])), values[0]
    ends = accumulate([len(value) for value in values], initial=0)
    return struct.pack(f"<{len(values) + 1}i", *ends), b"".join(values)


_TWO = struct.Struct("<2i")


def _flat(data: Bytes | None) -> Bytes | None:
    """As single bytes: a view of numbers has fewer items than bytes."""
    return memoryview(data).cast("B") if isinstance(data, memoryview) else data


def _validity(values: Sequence[Bytes | None]) -> bytes:
    """A bit for each value that is there; nothing if all are."""
    if None not in values:
        return b""
    bits = sum([1 << index for index, value in enumerate(values) if value is not None])
    return bits.to_bytes((len(values) + 7) // 8, "little")


class _Stretch:
    """Bytes with places to be filled in, as a format of Python's own: the quickest way to do it."""

    def __init__(
        self, whole: bytes, low: int, high: int, places: dict[int, tuple[int, int]]
    ) -> None:
        indexes = []
        format = []
        for place in sorted(place for place in places if low <= place < high):
            index, length = places[place]
            indexes.append(index)
            format += [whole[low:place].replace(b"%", b"%%"), b"%b"]
            low = place + length
        self._format = b"".join([*format, whole[low:high].replace(b"%", b"%%")])

        # A pick of one is no tuple, but fills a format with one place just as well.
        self._pick = itemgetter(*indexes) if indexes else _nothing

    def fill(self, values: Sequence[bytes]) -> bytes:
        return self._format % self._pick(values)


def _nothing(values: Sequence[bytes]) -> tuple[bytes, ...]:
    return ()


def _only(whole: bytes, wanted: bytes, low: int, high: int, beside: bytes = b"") -> int:
    """The one place where some bytes stand, not counting those within others."""
    searched = whole[low:high]
    if beside:
        searched = searched.replace(beside, b"\xff" * len(beside))
    ensure(searched.count(wanted) == 1, "a number of the batch stands in one place")
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
