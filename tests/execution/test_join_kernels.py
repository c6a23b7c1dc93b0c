"""Join kernels against nested loops over Python values."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.execution.local import join_kernels
from stepwell.execution.local.join_kernels import among_rows, joined_rows, matched, pairs_of
from stepwell.plan.nodes import Side

KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)),
    "int": (pa.int32(), st.integers(-2, 4)),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.sampled_from(["", "a", "b", "ä", "a\0"])),
    "binary": (pa.binary(), st.sampled_from([b"", b"\xff", b"a"])),
    "date": (pa.date32(), st.dates(datetime.date(2024, 1, 1), datetime.date(2024, 1, 3))),
    "decimal": (pa.decimal128(12, 2), st.sampled_from([Decimal("1.10"), Decimal("-2.00")])),
}


@st.composite
def sides(draw: Any) -> tuple[list[list[Any]], list[list[Any]], list[pa.DataType]]:
    """The key columns of both sides of a join, with NULLs and duplicates."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    rows = st.tuples(*(KINDS[kind][1] | st.none() for kind in kinds))
    both = [draw(st.lists(rows, max_size=12)) for _ in range(2)]
    columns = [[[row[i] for row in side] for i in range(len(kinds))] for side in both]
    return columns[0], columns[1], [KINDS[kind][0] for kind in kinds]


def chunked(columns: list[list[Any]], kinds: list[pa.DataType]) -> list[pa.ChunkedArray]:
    """Several chunks, as tables have that come from several parts."""
    made = []
    for values, kind in zip(columns, kinds, strict=True):
        half = len(values) // 2
        made.append(pa.chunked_array([values[:half], values[half:]], kind))
    return made


def expected(
    left: list[list[Any]], right: list[list[Any]], null_safe: Sequence[bool]
) -> set[tuple[int, int]]:
    rows = [list(zip(*side, strict=True)) for side in (left, right)]
    return {
        (i, j)
        for i, one in enumerate(rows[0])
        for j, two in enumerate(rows[1])
        if one == two and all(v is not None or safe for v, safe in zip(one, null_safe, strict=True))
    }


@pytest.mark.parametrize("codes_max", [None, -1000])
@given(case=sides(), safe=st.lists(st.booleans(), min_size=3, max_size=3))
def test_pairs_are_those_of_a_nested_loop(
    case: Any, safe: list[bool], codes_max: int | None
) -> None:
    """S3: also with NULLs, duplicates, several columns, and codes that must be renumbered. NULL
    equals NULL in the columns that are compared by `<=>`."""
    left, right, kinds = case
    null_safe = safe[: len(kinds)]
    with pytest.MonkeyPatch.context() as patch:
        if codes_max is not None:
            patch.setattr(join_kernels, "_CODES_MAX", codes_max)
        columns = chunked(left, kinds), chunked(right, kinds)
        pairs = pairs_of(*columns, 1000, null_safe)
        assert pairs is not None
        wanted = expected(left, right, null_safe)
        found = list(zip(*(side.tolist() for side in pairs), strict=True))
        assert sorted(found) == sorted(wanted)
        if wanted:
            assert pairs_of(*columns, len(wanted) - 1, null_safe) is None
        for with_null in (False, True):
            known = {i for i, _ in expected(left, right, [with_null] * len(kinds))}
            mask = matched(*columns, null_safe=with_null)
            assert np.flatnonzero(mask).tolist() == sorted(known)


def test_codes_of_many_columns_are_as_few_as_the_rows() -> None:
    """Twenty rows with six columns of distinct values have 64 million combinations."""
    columns = [pa.chunked_array([range(20)]) for _ in range(6)]
    _, _, count = join_kernels._codes(columns, columns, [False] * 6)
    assert count <= join_kernels._CODES_MAX + 4 * 40
    pairs = pairs_of(columns, columns, 100)
    assert pairs is not None
    assert [side.tolist() for side in pairs] == [list(range(20))] * 2


@given(case=sides())
def test_rows_among_others_compare_null_as_equal(case: Any) -> None:
    left, right, kinds = case
    mask = among_rows(chunked(left, kinds), chunked(right, kinds))
    assert mask is not None
    wanted = {i for i, _ in expected(left, right, [True] * len(kinds))}
    assert [i for i, found in enumerate(mask.to_pylist()) if found] == sorted(wanted)


def test_rows_of_other_types_are_not_compared() -> None:
    one, two = pa.chunked_array([[1]], pa.int32()), pa.chunked_array([[1]], pa.int64())
    assert among_rows([one], [two]) is None


@pytest.mark.parametrize(
    ("side", "places", "matches"),
    [
        (Side.LEFT, [1, 1, 0, 2], [0, 4, -1, -1]),
        (Side.SEMI, [1], [-1]),
        (Side.ANTI, [0, 2], [-1, -1]),
    ],
)
def test_a_join_returns_matches_and_what_has_none(
    side: Side, places: list[int], matches: list[int]
) -> None:
    found = joined_rows(side, 3, np.array([1, 1]), np.array([0, 4]))
    assert [array.tolist() for array in found] == [places, matches]
