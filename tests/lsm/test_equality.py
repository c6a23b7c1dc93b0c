"""Which of several rows with one key is the last, and which rows are equal, as Spark has it."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.lsm.equality import groups_of, last_of_each, only_last

NUMBERS = st.integers(-3, 3)
VALUES = {
    pa.int64(): NUMBERS,
    pa.int16(): NUMBERS,
    pa.uint8(): st.integers(0, 5),
    pa.string(): st.sampled_from(["", "a", "b"]),
    pa.float64(): st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5]),
    pa.list_(pa.int64()): st.lists(NUMBERS, max_size=2),
}


def same(value: object) -> object:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("null", [False, True], ids=["filled", "with NULL"])
@pytest.mark.parametrize("type_", VALUES, ids=str)
@given(data=st.data())
def test_the_last_of_each(type_: pa.DataType, null: bool, data: st.DataObject) -> None:
    strategy = VALUES[type_] | st.none() if null else VALUES[type_]
    values = data.draw(st.lists(strategy, max_size=12))
    others = data.draw(st.lists(NUMBERS, min_size=len(values), max_size=len(values)))
    half = len(values) // 2
    column = pa.chunked_array([pa.array(v, type_) for v in (values[:half], values[half:])])
    rows = pa.table({"key": column, "other": pa.array(others, pa.int64())})
    for columns in ([0], [0, 1]):
        keys = [(same(v), o if 1 in columns else 0) for v, o in zip(values, others, strict=True)]
        last = sorted({key: place for place, key in enumerate(keys)}.values())
        assert last_of_each(rows, columns).to_pylist() == last
        assert only_last(rows, columns).column("other").to_pylist() == [others[i] for i in last]
        groups = groups_of(rows, columns).to_pylist()
        for i, a in enumerate(keys):
            assert [g == groups[i] for g in groups] == [b == a for b in keys]


def test_numbers_in_order_stay_as_they_are() -> None:
    rows = pa.table({"key": [1, 2, 5], "v": ["a", "b", "c"]})
    assert only_last(rows, [0]) is rows
