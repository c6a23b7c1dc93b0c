"""Pushed rows in a journal entry: what is read is what was written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stepwell.engine.payload import PUSHED, Intake, decode_data, encode_taken, read_again
from stepwell.engine.ports import BadRow, Change, Taken
from stepwell.errors import CorruptError, InvalidError, ReplayMismatchError

PUT = pa.table({"id": [1, 2], "name": ["a", None]})
GONE = pa.table({"id": pa.array([3], pa.int32())})
BAD = BadRow("orders.json, line 7", "not JSON", "{\udcff")


def pushed(change: Change, *bad: BadRow) -> Taken:
    return Taken(change, 4, None, None, bad)


@pytest.mark.parametrize("put", [None, PUT])
@pytest.mark.parametrize("delete", [None, GONE])
@pytest.mark.parametrize("discard", [None, GONE])
@pytest.mark.parametrize("bad", [(), (BAD,)])
def test_data_survives_being_recorded(
    put: pa.Table | None,
    delete: pa.Table | None,
    discard: pa.Table | None,
    bad: tuple[BadRow, ...],
) -> None:
    """J8: what cannot be read again is in the entry, deletes and bad rows included."""
    taken = pushed(Change(put, delete, discard), *bad)
    item = Intake(PUSHED, "t", taken).record()
    assert item.reference is None
    again = read_again(item, None)
    assert again.taken.change == Change(put, delete, discard)
    assert [row.where for row in again.taken.bad] == [row.where for row in bad]
    assert again.record() == item


def test_a_row_that_is_discarded_counts_as_one_that_is_deleted() -> None:
    """J5: what came in is the same, so entries of before there were discards still agree."""
    deleted, discarded = (
        Intake("files", "t", Taken(change, 1, 1, "r")).record()
        for change in (Change(PUT, GONE), Change(PUT, None, GONE))
    )
    assert deleted == discarded


def test_every_arrow_reader_opens_the_first_part() -> None:
    """J8: whoever repairs a journal by hand needs nothing of ours."""
    with pa.ipc.open_stream(encode_taken(pushed(Change(PUT, GONE)))) as stream:
        assert stream.schema.metadata == {b"part": b"put"}
        assert stream.read_all().to_pylist() == PUT.to_pylist()


def test_a_reference_is_recorded_with_the_position_after_it() -> None:
    """J8: replaying the journal is enough to know where a source stands."""
    item = Intake("files", "t", Taken(Change(PUT), 2, {"line": 2}, {"file": "a", "to": 2})).record()
    assert item.data is None
    assert item.reference == '{"position":{"line":2},"reference":{"file":"a","to":2}}'
    with pytest.raises(ReplayMismatchError, match="no such source"):
        read_again(item, None)


def test_a_source_that_cannot_be_read_again_keeps_its_position_beside_its_data() -> None:
    """J8: a socket has a position, but no way back."""
    item = Intake("socket", "t", Taken(Change(PUT), 2, 17, None)).record()
    assert item.reference == '{"position":17,"reference":null}'
    again = read_again(item, None)
    assert again.taken.position == 17
    assert again.taken.change.put == PUT


def test_positions_are_json() -> None:
    """J8: what could not be read back is refused before anything is recorded."""
    with pytest.raises(InvalidError, match="must be JSON"):
        Intake("files", "t", Taken(Change(PUT), 2, float("nan"), "r")).record()


@pytest.mark.parametrize("cut", [1, 100, 300])
def test_damaged_data_is_named(cut: int) -> None:
    """K2: never a traceback of Arrow."""
    data = encode_taken(pushed(Change(PUT, GONE)))
    with pytest.raises(CorruptError, match="the data of x"):
        decode_data(data[: len(data) - cut] + b"?", "the data of x")
    twice = encode_taken(pushed(Change(PUT))) * 2
    with pytest.raises(CorruptError, match="holds a part 'put'"):
        decode_data(twice, "x")
