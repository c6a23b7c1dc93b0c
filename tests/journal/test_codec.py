"""Entries as bytes: any Arrow reader opens them, and no damage passes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import CorruptError, InvalidError
from stepwell.journal import codec
from stepwell.journal.entry import Draft, Entry, Input, Kind
from stepwell.journal.frame import COLUMNS
from stepwell.model import (
    NO_CHECKSUM,
    Checksum,
    Epoch,
    Position,
    Transaction,
    checksum,
    format_time,
    parse_time,
)

LINEAGE = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
WHERE = "memory://test/journal/7"


def entry(*inputs: Input, kind: Kind = Kind.STEP) -> Entry:
    time = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    return Entry(
        lineage=LINEAGE,
        epoch=Epoch(3),
        position=Position(7),
        put_id="01BX5ZZKBKACTAV9WEVGEMMVRZ",
        previous=checksum([b"six"]),
        draft=Draft(kind, Transaction(4), 2, True, time, inputs),
    )


def push(data: bytes | None, reference: str | None = None, source: str = "push") -> Input:
    return Input(source, "orders", 3, checksum([b"rows"]), reference, data)


def encoded(item: Entry) -> bytes:
    return b"".join(codec.encode(item).parts)


SMALL = encoded(entry(push(b"some rows"), push(None, '{"files": []}', "files")))

inputs = st.builds(
    Input,
    source=st.text(),
    table=st.text(),
    rows=st.integers(0, 2**63 - 1),
    checksum=st.binary(max_size=8).map(lambda data: checksum([data])),
    reference=st.none() | st.text(),
    data=st.none() | st.binary(),
)


@given(st.lists(inputs, max_size=12), st.sampled_from(Kind), st.booleans())
def test_every_entry_comes_back_as_it_was(items: list[Input], kind: Kind, closes: bool) -> None:
    """J12: what a version of the format writes it reads back, whatever the users' names and rows
    are.
    """
    written = entry(*items, kind=kind)
    written = replace(written, draft=replace(written.draft, closes=closes))
    read, digest = codec.decode(encoded(written), WHERE)
    assert read == written
    assert digest == codec.encode(written).checksum


@pytest.mark.parametrize("size", [0, 1, 100_000, 300_000, 5_000_000])
def test_data_of_any_size_comes_back_as_it_was(size: int) -> None:
    """J12: data is handed on without a copy, whatever its size, alone or with others."""
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for items in ([push(data)], [push(data), push(b"second"), push(None, "{}")]):
        read, _ = codec.decode(encoded(entry(*items)), WHERE)
        assert [item.data for item in read.draft.inputs] == [item.data for item in items]


@given(
    st.lists(inputs, max_size=12),
    st.sampled_from(Kind),
    st.booleans(),
    st.tuples(*[st.integers(0, 10**19)] * 4),
)
def test_the_quick_way_of_writing_gives_the_bytes_of_arrows_own_writer(
    items: list[Input], kind: Kind, closes: bool, numbers: tuple[int, int, int, int]
) -> None:
    """J12: filling in a learned frame is an optimisation, and not a second format."""
    epoch, position, transaction, step = numbers
    written = replace(entry(*items, kind=kind), epoch=Epoch(epoch), position=Position(position))
    changed = replace(written.draft, closes=closes, transaction=Transaction(transaction), step=step)
    written = replace(written, draft=changed)
    metadata = {
        "checksum": "xxh3-128:" + NO_CHECKSUM,
        "format": "stepwell-journal/2",
        "lineage": written.lineage,
        "kind": kind.value,
        "closes": "true" if closes else "false",
        "epoch": str(epoch),
        "position": str(position),
        "put_id": written.put_id,
        "transaction": str(transaction),
        "step": str(step),
        "time": format_time(changed.time),
        "previous": written.previous,
    }
    columns = {name: [getattr(item, name) for item in items] for name in COLUMNS.names}
    batch = pa.RecordBatch.from_pydict(columns, schema=COLUMNS.with_metadata(metadata))
    assert encoded(written) == sealed(batch)


def sealed(batch: pa.RecordBatch) -> bytes:
    """What Arrow's own writer makes of a batch, with the checksum put in by hand."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    plain = sink.getvalue().to_pybytes()
    digest = checksum([plain]).encode()
    seal = b"xxh3-128:" + NO_CHECKSUM.encode()
    first, last = plain.index(seal) + 9, plain.rindex(seal) + 9
    return plain[:first] + digest + plain[first + 32 : last] + digest + plain[last + 32 :]


def test_any_arrow_reader_opens_an_entry() -> None:
    """J12: an entry is a plain Arrow IPC file, with what it is in the schema's metadata."""
    reader = pa.ipc.open_file(pa.BufferReader(SMALL))
    metadata = {key.decode(): value.decode() for key, value in reader.schema.metadata.items()}
    assert metadata["format"] == "stepwell-journal/2"
    assert (metadata["position"], metadata["epoch"], metadata["kind"]) == ("7", "3", "step")
    table = reader.read_all()
    assert table.column_names == ["source", "table", "rows", "checksum", "reference", "data"]
    assert table.column("data").to_pylist() == [b"some rows", None]
    table.validate(full=True)


def test_data_that_looks_like_a_seal_confuses_nothing() -> None:
    """K2: what users push cannot pass for the checksum of the entry."""
    seal = b"xxh3-128:" + b"0" * 32
    for data in (seal, seal * 1000, b"x" * 5000 + seal + b"x" * 5000, seal * 20_000):
        item = entry(push(data, seal.decode(), seal.decode()))
        assert codec.decode(encoded(item), WHERE)[0] == item


def assert_refused(data: bytes) -> None:
    with pytest.raises((CorruptError, InvalidError)) as refused:
        codec.decode(data, WHERE)
    assert WHERE in str(refused.value)


def test_every_flipped_byte_is_found() -> None:
    """K2: no byte of an entry can change unnoticed, and none ends in anything but a typed error."""
    for index in range(len(SMALL)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(SMALL)
            damaged[index] ^= mask
            assert_refused(bytes(damaged))


def test_every_cut_is_found() -> None:
    """K2: an entry cut off anywhere, or with bytes added or removed, is refused by name."""
    for length in range(len(SMALL)):
        assert_refused(SMALL[:length])
        assert_refused(SMALL[length + 1 :])
    assert_refused(SMALL + b"\0")
    assert_refused(SMALL + SMALL)
    for index in range(0, len(SMALL), 7):
        assert_refused(SMALL[:index] + SMALL[index + 1 :])


def resealed(metadata: dict[str, str | None]) -> bytes:
    """An entry with other metadata whose seal is right: written by another version, or by a bug."""
    reader = pa.ipc.open_file(pa.BufferReader(SMALL))
    changed = {key.decode(): value.decode() for key, value in reader.schema.metadata.items()}
    changed["checksum"] = "xxh3-128:" + NO_CHECKSUM
    for key, value in metadata.items():
        changed.pop(key) if value is None else changed.update({key: value})
    batch = reader.read_all().replace_schema_metadata(changed).to_batches()[0]
    return sealed(batch)


def test_an_unknown_version_is_refused_with_both_versions_named() -> None:
    """J12: an entry of a later format is not damage; the message names both formats."""
    with pytest.raises(InvalidError) as refused:
        codec.decode(resealed({"format": "stepwell-journal/3"}), WHERE)
    assert "format 3" in str(refused.value)
    assert "reads format 2" in str(refused.value)
    assert "upgrade" in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "something-else/1"),
        ("format", None),
        ("epoch", None),
        ("epoch", "-1"),
        ("epoch", "²"),
        ("position", "7.0"),
        ("put_id", "short"),
        ("lineage", ""),
        ("kind", "leap"),
        ("transaction", "one"),
        ("step", " 1"),
        ("closes", "yes"),
        ("time", "2026-01-02"),
        ("time", "2026-13-02T03:04:05.000000Z"),
        ("previous", "0" * 31),
        ("previous", None),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(field: str, value: str | None) -> None:
    """K2: a wrong field under a right seal is an error that names object and field, never a
    default.
    """
    with pytest.raises(CorruptError) as refused:
        codec.decode(resealed({field: value}), WHERE)
    assert refused.value.object == WHERE
    assert refused.value.field == field


def test_another_arrow_file_is_not_an_entry() -> None:
    """K2: a file that is not an entry is refused, however valid it is for Arrow."""
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1, 2, 3]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert_refused(sink.getvalue().to_pybytes())
    for data in (b"", b"ARROW1", b"\0" * 5000, b"xxh3-128:" * 3):
        assert_refused(data)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_by_name(data: bytes) -> None:
    """K2: nothing but an entry is taken for one."""
    assert_refused(data)
    spoiled = SMALL[:60] + data + SMALL[60 + len(data) :]
    if spoiled != SMALL:
        assert_refused(spoiled)


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_survive_to_the_microsecond(time: datetime) -> None:
    assert parse_time(format_time(time)) == time
    assert len(format_time(time)) == 27


def test_the_chain_names_the_bytes_not_the_value() -> None:
    """F7: two attempts at one entry differ by put_id, so the chain tells which of them is there."""
    first = codec.encode(entry())
    second = codec.encode(replace(entry(), put_id=LINEAGE))
    assert first.checksum != second.checksum
    assert first.checksum == Checksum(codec.decode(b"".join(first.parts), WHERE)[1])
