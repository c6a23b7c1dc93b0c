"""An entry as bytes: an Arrow IPC file that any Arrow reader opens, sealed by a checksum.

What the log needs stands in the schema's metadata, as text; one row per source holds the inputs:

    metadata   checksum format lineage epoch position put_id
               kind transaction step closes time previous
    columns    source table rows checksum reference data

An IPC file holds its schema twice, in the first message and in the footer, so the checksum stands
twice as well: `xxh3-128:` and 32 hex digits, once within the first 4096 bytes and once within the
last. It is computed over the whole file with zeros in place of both. So a byte flipped, cut off or
added anywhere is found before Arrow parses anything; and since that seal is the same in every
version to come, an unknown format is told apart from damage (J12).

Encoding copies no data: it yields parts, to be written one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from stepwell.errors import CorruptError
from stepwell.journal.entry import Draft, Entry, Input, Kind
from stepwell.model import (
    NO_CHECKSUM,
    Bytes,
    Checksum,
    Epoch,
    Position,
    Transaction,
    checksum,
    format_time,
    is_checksum,
    is_ulid,
    parse_time,
)
from stepwell.store.sealed import check_format

FORMAT = "stepwell-journal/1"

_SEAL = b"xxh3-128:"
_DIGITS = len(NO_CHECKSUM)
_ZEROS = NO_CHECKSUM.encode()
_WINDOW = 4096
_COPY_MAX = 256 * 1024
"""Above this the data is handed on as it is; below, one copy costs less than many small parts."""

_COLUMNS = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("reference", pa.string()),
        pa.field("data", pa.large_binary()),
    ]
)

_VALUES = ("epoch", "position", "put_id", "transaction", "step", "time", "previous")
"""The metadata that changes with every entry."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The parts to write, and the checksum that the next entry will name."""

    parts: tuple[Bytes, ...]
    checksum: Checksum


def encode(entry: Entry) -> Encoded:
    draft = entry.draft
    values = (
        str(entry.epoch),
        str(entry.position),
        entry.put_id,
        str(draft.transaction),
        str(draft.step),
        format_time(draft.time),
        entry.previous,
    )
    batch = _batch(draft.inputs)
    if sum([len(item.data) for item in draft.inputs if item.data is not None]) > _COPY_MAX:
        fixed = _fixed(entry.lineage, draft.kind, draft.closes)
        return _seal(_serialize(_schema(fixed, values), batch))
    frame = _frame(entry.lineage, draft.kind, draft.closes, tuple(map(len, values)))
    return frame.fill(values, batch)


def _batch(inputs: tuple[Input, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            _names(tuple([item.source for item in inputs])),
            _names(tuple([item.table for item in inputs])),
            _integers([item.rows for item in inputs]),
            _text([item.checksum for item in inputs]),
            _text([item.reference for item in inputs]),
            _binary([item.data for item in inputs]),
        ],
        schema=_COLUMNS,
    )


def _fixed(lineage: str, kind: Kind, closes: bool) -> dict[str, str]:
    """The metadata that stays the same from one entry to the next."""
    flag = "true" if closes else "false"
    return {"format": FORMAT, "lineage": lineage, "kind": kind.value, "closes": flag}


def _schema(fixed: dict[str, str], values: Sequence[str]) -> pa.Schema:
    seal = {"checksum": _SEAL + _ZEROS}
    return _COLUMNS.with_metadata({**seal, **fixed, **dict(zip(_VALUES, values, strict=True))})


def decode(data: bytes, object: str) -> tuple[Entry, Checksum]:
    """Check the seal, then the format, then every field. `object` names the bytes in errors."""
    sealed = _unseal(data, object)
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        metadata = {k.decode(): v.decode() for k, v in (reader.schema.metadata or {}).items()}
        fields = _Metadata(metadata, object)
        check_format(fields.text("format"), FORMAT, object)
        if not reader.schema.equals(_COLUMNS, check_metadata=False):
            raise CorruptError(object, f"expected {_COLUMNS.names}", field="columns")
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptError(object, f"not an Arrow IPC file: {error}") from error
    entry = Entry(
        lineage=fields.id("lineage"),
        epoch=Epoch(fields.number("epoch")),
        position=Position(fields.number("position")),
        put_id=fields.id("put_id"),
        previous=fields.checksum("previous"),
        draft=Draft(
            kind=fields.kind("kind"),
            transaction=Transaction(fields.number("transaction")),
            step=fields.number("step"),
            closes=fields.flag("closes"),
            time=fields.time("time"),
            inputs=tuple(item for batch in batches for item in _inputs(batch)),
        ),
    )
    return entry, sealed


def _inputs(batch: pa.RecordBatch) -> Iterator[Input]:
    small = batch.select(_COLUMNS.names[:-1]).to_pylist()
    for row, data in zip(small, batch.column("data"), strict=True):
        yield Input(
            source=row["source"],
            table=row["table"],
            rows=row["rows"],
            checksum=Checksum(row["checksum"]),
            reference=row["reference"],
            data=memoryview(data.as_buffer()).cast("B") if data.is_valid else None,
        )


def _serialize(schema: pa.Schema, batch: pa.RecordBatch) -> list[memoryview]:
    """The bytes of the file, in as few parts as can be had without copying large data."""
    parts = _Parts()
    with pa.RecordBatchFileWriter(pa.PythonFile(parts, "w"), schema) as writer:
        writer.write_batch(batch)
    return parts.finish()


class _Parts:
    """A file object that collects what is written: small pieces joined, large ones as they are."""

    closed = False

    def __init__(self) -> None:
        self._done: list[memoryview] = []
        self._small: list[Bytes] = []

    def write(self, piece: Any) -> int:
        view = memoryview(piece).cast("B")
        if len(view) <= _COPY_MAX // 4:
            self._small.append(view)
        else:
            self._join()
            self._done.append(view)
        return len(view)

    def finish(self) -> list[memoryview]:
        self._join()
        return self._done

    def _join(self) -> None:
        if self._small:
            self._done.append(memoryview(b"".join(self._small)))
            self._small = []

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Frame:
    """What Arrow's writer puts around a batch, made once and filled in for every entry after.

    Writing a file through Arrow costs as much as a quarter of making it durable, most of it for the
    schema. But with metadata values of given lengths the schema's bytes always lie the same way. So
    they are learned from Arrow's own writer, by writing files that differ in one value and seeing
    where the bytes differ. The result is the same to the byte, which a test checks.
    """

    def __init__(self, fixed: dict[str, str], lengths: tuple[int, ...]) -> None:
        batch = _batch(())
        message = batch.serialize().to_pybytes()
        plain = ["0" * length for length in lengths]
        whole = self._write(fixed, plain, batch)
        self._start = whole.index(message)
        end = self._start + len(message)
        # What changes are the values, before the batch and again after it, and what the footer
        # says of the batch, which counts as the last value.
        block = self._block(message)
        places = {whole.rindex(block): (len(lengths), len(block))}
        for index, length in enumerate(lengths):
            other = [v.replace("0", "1") if i == index else v for i, v in enumerate(plain)]
            written = self._write(fixed, other, batch)
            differ = [i for i, (x, y) in enumerate(zip(whole, written, strict=True)) if x != y]
            places |= dict.fromkeys(differ[::length], (index, length))
        # Between these four stretches lie the first seal, the batch, and the second seal.
        first, last = (place + len(_SEAL) for place in (whole.index(_SEAL), whole.rindex(_SEAL)))
        self._stretches = [
            _Stretch(whole, low, high, places)
            for low, high in (
                (0, first),
                (first + _DIGITS, self._start),
                (end, last),
                (last + _DIGITS, len(whole)),
            )
        ]

    @staticmethod
    def _write(fixed: dict[str, str], values: Sequence[str], batch: pa.RecordBatch) -> bytes:
        return b"".join(_serialize(_schema(fixed, values), batch))

    def _block(self, message: Bytes) -> bytes:
        """Where the batch lies, as the footer says it: offset, length of header, of body."""
        header = int.from_bytes(message[4:8], "little") + 8
        return struct.pack("<qi4xq", self._start, header, len(message) - header)

    def fill(self, values: Sequence[str], batch: pa.RecordBatch) -> Encoded:
        message = memoryview(batch.serialize()).cast("B")
        filling = [*[value.encode() for value in values], self._block(message)]
        head, before, after, tail = [stretch.fill(filling) for stretch in self._stretches]
        digest = checksum([head, _ZEROS, before, message, after, _ZEROS, tail])
        digits = digest.encode()
        return Encoded((head, digits, before, message, after, digits, tail), digest)


class _Stretch:
    """Bytes with places to be filled in, as a format of Python's own: the quickest way to do it."""

    def __init__(
        self, whole: bytes, low: int, high: int, places: dict[int, tuple[int, int]]
    ) -> None:
        self._indexes = []
        format = []
        for place in sorted(place for place in places if low <= place < high):
            index, length = places[place]
            self._indexes.append(index)
            format += [whole[low:place].replace(b"%", b"%%"), b"%b"]
            low = place + length
        self._format = b"".join([*format, whole[low:high].replace(b"%", b"%%")])

    def fill(self, values: Sequence[bytes]) -> bytes:
        return self._format % tuple([values[index] for index in self._indexes])


@lru_cache(maxsize=64)
def _frame(lineage: str, kind: Kind, closes: bool, lengths: tuple[int, ...]) -> _Frame:
    return _Frame(_fixed(lineage, kind, closes), lengths)


def _seal(parts: list[memoryview]) -> Encoded:
    first, last = _slots(parts[0], parts[-1])
    if len(parts) == 1:
        whole = parts[0]
        between = [whole[first + _DIGITS : last]]
    else:
        between = [parts[0][first + _DIGITS :], *parts[1:-1], parts[-1][:last]]
    head, tail = parts[0][:first], parts[-1][last + _DIGITS :]
    digest = checksum([head, _ZEROS, *between, _ZEROS, tail])
    digits = digest.encode()
    return Encoded((head, digits, *between, digits, tail), digest)


def _unseal(data: bytes, object: str) -> Checksum:
    view = memoryview(data)
    try:
        first, last = _slots(view, view)
    except ValueError:
        raise CorruptError(
            object, f"not a journal entry: no checksum at both ends of its {len(data)} bytes"
        ) from None
    computed = checksum(
        [view[:first], _ZEROS, view[first + _DIGITS : last], _ZEROS, view[last + _DIGITS :]]
    )
    for slot in (first, last):
        found = data[slot : slot + _DIGITS]
        if found != computed.encode():
            raise CorruptError(
                object,
                f"stored checksum is {found.decode('ascii', 'replace')}, "
                f"computed {computed} over {len(data)} bytes",
                field="checksum",
            )
    return computed


def _slots(head: memoryview, tail: memoryview) -> tuple[int, int]:
    """Where the digits stand: in the first part and in the last. ValueError if they do not."""
    first = bytes(head[:_WINDOW]).index(_SEAL) + len(_SEAL)
    window = max(0, len(tail) - _WINDOW)
    last = window + bytes(tail[window:]).rindex(_SEAL) + len(_SEAL)
    if head is tail and last < first + _DIGITS:
        raise ValueError("only one checksum")
    return first, last


@lru_cache(maxsize=256)
def _names(values: tuple[str, ...]) -> pa.Array:
    """Names of sources and tables: the same few again and again."""
    return _text(values)


def _integers(values: Sequence[int]) -> pa.Array:
    data = pa.py_buffer(struct.pack(f"<{len(values)}q", *values))
    return pa.Array.from_buffers(pa.int64(), len(values), [None, data])


def _text(values: Sequence[str | None]) -> pa.Array:
    return _array(pa.string(), "i", [None if v is None else v.encode() for v in values])


def _binary(values: Sequence[Bytes | None]) -> pa.Array:
    return _array(pa.large_binary(), "q", values)


def _array(kind: pa.DataType, offset: str, values: Sequence[Bytes | None]) -> pa.Array:
    """A column of texts or bytes, built from buffers: several times faster than from objects.

    A single value is not copied.
    """
    count = len(values)
    ends, present = [0], []
    for value in values:
        if value is not None:
            present.append(value)
        ends.append(ends[-1] + (0 if value is None else len(value)))
    validity = None
    if len(present) < count:
        bits = sum(1 << index for index, value in enumerate(values) if value is not None)
        validity = pa.py_buffer(bits.to_bytes((count + 7) // 8, "little"))
    offsets = pa.py_buffer(struct.pack(f"<{count + 1}{offset}", *ends))
    body = pa.py_buffer(present[0] if len(present) == 1 else b"".join(present))
    return pa.Array.from_buffers(kind, count, [validity, offsets, body])


class _Metadata:
    """The metadata read by type; what is wrong is named by object and field (K2)."""

    def __init__(self, values: dict[str, str], object: str) -> None:
        self._values = values
        self._object = object

    def text(self, name: str) -> str:
        if name not in self._values:
            raise CorruptError(self._object, "missing", field=name)
        return self._values[name]

    def number(self, name: str) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdecimal()):
            raise self._wrong(name, "a whole number")
        return int(text)

    def flag(self, name: str) -> bool:
        text = self.text(name)
        if text not in ("true", "false"):
            raise self._wrong(name, "true or false")
        return text == "true"

    def id(self, name: str) -> str:
        text = self.text(name)
        if not is_ulid(text):
            raise self._wrong(name, "a ULID")
        return text

    def checksum(self, name: str) -> Checksum:
        text = self.text(name)
        if not is_checksum(text):
            raise self._wrong(name, "a checksum of 32 hex digits")
        return Checksum(text)

    def kind(self, name: str) -> Kind:
        try:
            return Kind(self.text(name))
        except ValueError:
            raise self._wrong(name, "one of " + ", ".join(k.value for k in Kind)) from None

    def time(self, name: str) -> Any:
        try:
            return parse_time(self.text(name))
        except ValueError:
            raise self._wrong(name, "a UTC time") from None

    def _wrong(self, name: str, expected: str) -> CorruptError:
        return CorruptError(
            self._object, f"expected {expected}, found {self._values[name]!r}", field=name
        )
