"""An entry as bytes: an Arrow IPC file that any Arrow reader opens, sealed by a checksum.

The schema's metadata holds the fields of the log, as text. One row per source holds the inputs:

    metadata   checksum format lineage epoch position put_id
               kind transaction step closes time previous
    columns    source table rows checksum reference data

An IPC file holds its schema twice, in the first message and in the footer, so the checksum also
appears twice: `xxh3-128:` and 32 hex digits, once within the first 4096 bytes and once within the
last. It is computed over the whole file with zeros in place of both. Any byte changed, cut off or
added is therefore detected before Arrow parses anything. The seal stays the same in all future
versions, so an unknown format is distinguished from damage (J12).

Encoding copies no data: it yields parts, to be written one after another. `frame` decides their
layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from stepwell.errors import CorruptError
from stepwell.journal.entry import Draft, Entry, Input, Kind
from stepwell.journal.frame import COLUMNS, SEAL, ZEROS, Alike, Form, Frame, Shape
from stepwell.model import (
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

FORMAT = "stepwell-journal/2"

_WINDOW = 4096

_VALUES = ("epoch", "position", "put_id", "transaction", "step", "time", "previous")
"""The metadata fields that change with every entry."""


class Encoded(NamedTuple):
    """The parts to write, and the checksum that the next entry refers to."""

    parts: tuple[Bytes, ...]
    checksum: Checksum


def encode(entry: Entry) -> Encoded:
    """Encode an entry; raises ValueError or TypeError if it could not be decoded again."""
    draft = entry.draft
    inputs = draft.inputs
    if entry.epoch < 0 or entry.position < 0 or draft.transaction < 0 or draft.step < 0:
        raise ValueError("numbers of an entry are not negative")
    values = (
        b"%d" % entry.epoch,
        b"%d" % entry.position,
        entry.put_id.encode(),
        b"%d" % draft.transaction,
        b"%d" % draft.step,
        format_time(draft.time).encode(),
        entry.previous.encode(),
    )
    alike: list[Alike] = []
    checksums: list[bytes] = []
    references: list[bytes] = []
    for item in inputs:
        digits, length = item.checksum.encode(), None
        if item.reference is not None:
            reference = item.reference.encode()
            length = len(reference)
            references.append(reference)
        checksums.append(digits)
        alike.append((item.source, item.table, len(digits), length, item.data is not None))
    fixed = FORMAT, entry.lineage, draft.kind.value, draft.closes
    form = _form(fixed, tuple(map(len, values)), tuple(alike))
    return Encoded(*form.fill(values, inputs, checksums, references))


_Fixed = tuple[str, str, str, bool]
"""The metadata fields that rarely change: format, lineage, kind, whether the entry closes."""


@lru_cache(maxsize=256)
def _form(fixed: _Fixed, lengths: tuple[int, ...], alike: tuple[Alike, ...]) -> Form:
    shape = tuple([(reference is not None, data) for _, _, _, reference, data in alike])
    return _frame(fixed, lengths, shape).form(alike)


@lru_cache(maxsize=256)
def _frame(fixed: _Fixed, lengths: tuple[int, ...], shape: Shape) -> Frame:
    format, lineage, kind, closes = fixed
    flag = "true" if closes else "false"
    texts = {"format": format, "lineage": lineage, "kind": kind, "closes": flag}
    return Frame(texts, _VALUES, lengths, shape)


def decode(data: bytes, object: str) -> tuple[Entry, Checksum]:
    """Check the seal, then the format, then every field. `object` names the bytes in errors."""
    sealed = _unseal(data, object)
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        metadata = {k.decode(): v.decode() for k, v in (reader.schema.metadata or {}).items()}
        fields = _Metadata(metadata, object)
        check_format(fields.text("format"), FORMAT, object)
        if not reader.schema.equals(COLUMNS, check_metadata=False):
            raise CorruptError(object, f"expected {COLUMNS.names}", field="columns")
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
    small = batch.select(COLUMNS.names[:-1]).to_pylist()
    for row, data in zip(small, batch.column("data"), strict=True):
        yield Input(
            source=row["source"],
            table=row["table"],
            rows=row["rows"],
            checksum=Checksum(row["checksum"]),
            reference=row["reference"],
            data=memoryview(data.as_buffer()).cast("B") if data.is_valid else None,
        )


def _unseal(data: bytes, object: str) -> Checksum:
    view = memoryview(data)
    try:
        first, last = _slots(data)
    except ValueError:
        raise CorruptError(
            object, f"not a journal entry: no checksum at both ends of its {len(data)} bytes"
        ) from None
    computed = checksum(
        [view[:first], ZEROS, view[first + len(ZEROS) : last], ZEROS, view[last + len(ZEROS) :]]
    )
    for slot in (first, last):
        found = data[slot : slot + len(ZEROS)]
        if found != computed.encode():
            raise CorruptError(
                object,
                f"stored checksum is {found.decode('ascii', 'replace')}, "
                f"computed {computed} over {len(data)} bytes",
                field="checksum",
            )
    return computed


def _slots(data: bytes) -> tuple[int, int]:
    """The offsets of the checksum digits near both ends; raises ValueError if they are missing."""
    first = data.index(SEAL, 0, _WINDOW) + len(SEAL)
    last = data.rindex(SEAL, max(0, len(data) - _WINDOW)) + len(SEAL)
    if last < first + len(ZEROS):
        raise ValueError("only one checksum")
    return first, last


class _Metadata:
    """The metadata, read by type; errors name the object and the field (K2)."""

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
