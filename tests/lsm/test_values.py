"""Everything that compares values without Spark agrees about which of them are equal."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stepwell.execution.reference.spark_values import clean
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.canonical import canonical
from stepwell.lsm.checksum import row_hashes
from stepwell.lsm.equality import groups_of, last_of_each
from stepwell.lsm.values import comparable, key_of, one_form
from tests.lsm.equal_values import EQUAL, numbered


def column_of(type_: str) -> pa.Array:
    return pa.array([value for value, _ in numbered(type_)], arrow_schema((type_,)).field(0).type)


def alike(found: list[Any]) -> list[list[bool]]:
    return [[a == b for b in found] for a in found]


@pytest.mark.parametrize("type_", EQUAL)
def test_every_reader_calls_the_same_values_equal(type_: str) -> None:
    """S4, J5: rows that one part calls equal and another does not come and never go."""
    expected = alike([group for _, group in numbered(type_)])
    column = column_of(type_)
    rows = pa.table({"c0": column})
    assert alike([key_of(value, column.type) for value in column.to_pylist()]) == expected
    assert alike(groups_of(rows, [0]).to_pylist()) == expected
    lanes = row_hashes(rows.append_column("x", pa.array([0] * len(column))))
    assert alike(list(zip(*(lane.to_pylist() for lane in lanes), strict=True))) == expected
    assert len(last_of_each(rows, [0])) == len(EQUAL[type_])


@pytest.mark.parametrize("type_", EQUAL)
def test_equal_values_are_stored_alike(type_: str) -> None:
    """S4: a retraction must equal the inserted row, down to its representation."""
    stored = canonical(pa.table({"c0": column_of(type_)})).column("c0").to_pylist()
    assert alike([repr(value) for value in stored]) == alike([g for _, g in numbered(type_)])


@pytest.mark.parametrize("type_", [type_ for type_ in EQUAL if comparable(type_)])
def test_arrow_compares_what_it_is_trusted_with_as_spark_does(type_: str) -> None:
    """S4: joins and look-ups leave these types to Arrow."""
    codes = pc.dictionary_encode(column_of(type_), null_encoding="encode").indices.to_pylist()
    assert alike(codes) == alike([group for _, group in numbered(type_)])


@pytest.mark.parametrize("type_", ["float", "double"])
def test_floating_point_has_one_form(type_: str) -> None:
    """S4: Arrow hashes bits, of which zero and NaN have several."""
    assert not comparable(type_)
    bits = pa.uint32() if type_ == "float" else pa.uint64()
    found = one_form(column_of(type_)).view(bits).to_pylist()
    assert alike(found) == alike([group for _, group in numbered(type_)])


@pytest.mark.parametrize("type_", [t for t in EQUAL if "map" not in t and "struct" not in t])
def test_the_reference_calls_the_same_values_equal(type_: str) -> None:
    """S4: an oracle with another idea of equality would find mistakes that are none."""
    found = [clean(value) for value, _ in numbered(type_)]
    places: dict[object, int] = {}
    assert alike([places.setdefault(value, len(places)) for value in found]) == alike(
        [group for _, group in numbered(type_)]
    )
