"""Hashes of values: equal values have equal hashes, wherever they stand."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.lsm.hashing import hash_values

TEXTS = st.text(max_size=20) | st.text("ab\0", max_size=300)
KINDS: dict[str, tuple[tuple[pa.DataType, ...], Any]] = {
    "integers": ((pa.int8(), pa.int16(), pa.int32(), pa.int64()), st.integers(-128, 127)),
    "texts": ((pa.string(), pa.large_string()), TEXTS),
    "bytes": ((pa.binary(), pa.large_binary()), st.binary(max_size=40)),
    "decimals": (
        (pa.decimal128(38, 2),),
        st.integers(-(10**36), 10**36).map(lambda n: Decimal(n).scaleb(-2)),
    ),
    "booleans": ((pa.bool_(),), st.booleans()),
    "dates": ((pa.date32(),), st.dates()),
    "timestamps": ((pa.timestamp("us"),), st.datetimes(datetime.datetime(1, 1, 1))),
}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_a_value_has_one_hash_wherever_it_stands(name: str, data: Any) -> None:
    """X2: alone, in a column, in a slice, and in every width of its type; others have others."""
    kinds, values = KINDS[name]
    column = data.draw(st.lists(values, min_size=1, max_size=20))
    first = data.draw(st.integers(0, len(column) - 1))
    expected = {value: int(hash_values(pa.array([value], kinds[0]))[0]) for value in column}
    for kind in kinds:
        array = pa.array(column, kind)
        assert [int(h) for h in hash_values(array)] == [expected[value] for value in column]
        part = array.slice(first)
        assert [int(h) for h in hash_values(part)] == [expected[value] for value in column[first:]]
    assert len(set(expected.values())) == len(expected)


def test_texts_of_many_lengths_hardly_collide() -> None:
    """X2: collisions cost time, so keys as people write them must have none."""
    texts = [f"{prefix}{n}" for prefix in ("", "customer-", "a" * 250) for n in range(20_000)]
    texts += ["\0" * n for n in range(600)]
    assert len(set(hash_values(pa.array(texts)).tolist())) == len(set(texts))
