"""Quotients on integers of 64 bits against quotients computed one by one."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepwell.execution.backend import Declined
from stepwell.execution.local import quotients
from stepwell.execution.local.quotients import DIVIDED_ROWS_MAX, divided, quotient, rounded

NUMBERS = st.one_of(st.none(), *(st.integers(-(10**n), 10**n) for n in (1, 3, 9, 17, 37)))
SCALES = st.integers(0, 12)
Given = tuple[int | None, int | None]


def column(values: list[int | None], scale: int) -> pa.Array:
    exact = [None if v is None else Decimal(v).scaleb(-scale, quotients._EXACT) for v in values]
    return pa.array(exact, pa.decimal128(38, scale))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4), SCALES, SCALES, SCALES)
@example([(5, 2), (-5, 2), (5, -2), (-5, -2), (3, 2)], 0, 0, 0)
@example([(None, 0), (1, None), (7, 3)], 2, 2, 6)
@example([(10**17, 10**12), (1, 10**13 - 1)], 2, 2, 2)
def test_a_quotient_of_integers_is_the_one_computed_digit_by_digit(
    pairs: list[Given], a: int, b: int, scale: int
) -> None:
    """S3: a half that is rounded down, a sign, NULL / 0, or a product of more than 64 bits."""
    over, under = column([x for x, _ in pairs], a), column([y for _, y in pairs], b)

    def one_by_one() -> list[Decimal | None]:
        both = zip(over.to_pylist(), under.to_pylist(), strict=True)
        return [None if x is None or y is None else quotient(x, y, scale) for x, y in both]

    try:
        expected = one_by_one()
    except Declined:
        with pytest.raises((Declined, pa.ArrowException)):
            divided(over, under, 38, scale)
        return
    for chunks in (over, pa.chunked_array([over.slice(0, 1), over.slice(1)])):
        try:
            assert divided(chunks, under, 38, scale).to_pylist() == expected
        except pa.ArrowException:
            assert any(abs(v or 0) >= Decimal(10) ** (38 - scale) for v in expected)


@given(st.lists(NUMBERS, min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 11))
@example([5, -5, 15, -15, 4, None], 1, 0)
def test_rounding_integers_is_rounding_decimals(
    values: list[int | None], scale: int, wanted: int
) -> None:
    """S3: half up means away from zero."""
    given_ = column(values, scale)
    expected = [None if v is None else quotients._half_up(v, wanted) for v in given_.to_pylist()]
    assert rounded(given_, 38, wanted).to_pylist() == expected


def test_quotients_of_many_rows_are_computed_here() -> None:
    """C3: an average of more groups than are divided one by one is no query for Spark."""
    rows = DIVIDED_ROWS_MAX + 1
    over, under = column([700] * rows, 2), column([3] * rows, 0)
    assert divided(over, under, 38, 6).to_pylist() == [Decimal("2.333333")] * rows
    with pytest.raises(Declined):
        divided(column([10**30] * rows, 2), under, 38, 6)
