"""Pushed rows in a journal entry: what is read is what was written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stepwell.engine.payload import PUSHED, decode_data, encode_rows, input_line, read_again
from stepwell.engine.ports import Intake
from stepwell.errors import CorruptError, InvalidError, ReplayMismatchError
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import BadRow

PUT = pa.table({"id": [1, 2], "name": ["a", None]})
GONE = pa.table({"id": pa.array([3], pa.int32())})
BAD = BadRow("orders.json, line 7", "not JSON", "{\udcff")


def pushed(change: Change, *bad: BadRow) -> Intake:
    return Intake(PUSHED, "t", change, 4, None, None, bad)


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
    item = input_line(taken)
    assert item.reference is None
    again = read_again(item, None)
    assert again.change == Change(put, delete, discard)
    assert [row.where for row in again.bad] == [row.where for row in bad]
    assert input_line(again) == item


def test_a_row_that_is_discarded_counts_as_one_that_is_deleted() -> None:
    """J5: what came in is the same, so entries of before there were discards still agree."""
    deleted, discarded = (
        input_line(Intake("files", "t", change, 1, 1, "r"))
        for change in (Change(PUT, GONE), Change(PUT, None, GONE))
    )
    assert deleted == discarded


def test_every_arrow_reader_opens_the_first_part() -> None:
    """J8: a journal can be repaired by hand without our code."""
    with pa.ipc.open_stream(encode_rows(pushed(Change(PUT, GONE)))) as stream:
        assert stream.schema.metadata == {b"part": b"put"}
        assert stream.read_all().to_pylist() == PUT.to_pylist()


def test_a_reference_is_recorded_with_the_position_after_it() -> None:
    """J8: replaying the journal is enough to know where a source stands."""
    item = input_line(Intake("files", "t", Change(PUT), 2, {"line": 2}, {"file": "a", "to": 2}))
    assert item.data is None
    assert item.reference == '{"position":{"line":2},"reference":{"file":"a","to":2}}'
    with pytest.raises(ReplayMismatchError, match="no such source"):
        read_again(item, None)


def test_a_source_that_cannot_be_read_again_stores_its_position_with_its_data() -> None:
    """J8: a socket has a position, but no way back."""
    item = input_line(Intake("socket", "t", Change(PUT), 2, 17, None))
    assert item.reference == '{"position":17,"reference":null}'
    again = read_again(item, None)
    assert again.position == 17
    assert again.change.put == PUT


def test_positions_are_json() -> None:
    """J8: what could not be read back is refused before anything is recorded."""
    with pytest.raises(InvalidError, match="must be JSON"):
        input_line(Intake("files", "t", Change(PUT), 2, float("nan"), "r"))


@pytest.mark.parametrize("cut", [1, 100, 300])
def test_damaged_data_is_named(cut: int) -> None:
    """K2: never a traceback of Arrow."""
    data = encode_rows(pushed(Change(PUT, GONE)))
    with pytest.raises(CorruptError, match="the data of x"):
        decode_data(data[: len(data) - cut] + b"?", "the data of x")
    twice = encode_rows(pushed(Change(PUT))) * 2
    with pytest.raises(CorruptError, match="holds a part 'put'"):
        decode_data(twice, "x")
