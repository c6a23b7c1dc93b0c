"""Rows a few at a time: the same rows, the same difference, and never more in memory."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.lsm import table_diff as pieces
from stepwell.lsm.change import WEIGHT
from stepwell.lsm.table_diff import Pieces, difference, in_parts

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})
ROW = st.tuples(st.integers(0, 4), st.sampled_from(["x", "y", None]))
Row = tuple[object, ...]


def in_pieces(rows: list[Row], size: int) -> Pieces:
    table = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA
    )
    slices = [table.slice(start, size) for start in range(0, len(rows), size)]
    return Pieces(SCHEMA, len(rows), slices)


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row.values()) for row in table.to_pylist()]


@settings(max_examples=100)
@given(st.lists(ROW, max_size=12), st.lists(ROW, max_size=12), st.integers(1, 30))
def test_the_difference_turns_one_picture_into_the_other(
    before: list[Row], after: list[Row], rows_max: int
) -> None:
    """K9: in memory or by files; and retractions come before insertions."""
    found = difference(in_pieces(before, 3), in_pieces(after, 2), rows_max)
    parts = list(found.parts(rows_max))
    assert len(parts) == found.count(rows_max)
    assert all(0 < part.num_rows <= rows_max for part in parts)
    counted: Counter[Row] = Counter(before)
    signs = []
    for *row, weight in (row for part in parts for row in rows_of(part)):
        counted[tuple(row)] += weight
        signs.append(weight > 0)
    assert +counted == Counter(after)
    assert not -counted
    assert signs == sorted(signs)
    assert sum(part.num_rows for part in parts) == found.rows


def test_a_large_difference_is_worked_out_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """K9: 20,000 rows, of which some hundred are in memory at a time."""
    seen = []
    summed = pieces.summed

    def counting(rows: pa.Table) -> pa.Table:
        seen.append(rows.num_rows)
        return summed(rows)

    monkeypatch.setattr(pieces, "summed", counting)
    before = [(number, "x") for number in range(10_000)] + [(1, "y")] * 5_000
    after = [(number, "x") for number in range(5_000, 15_000)]
    found = difference(in_pieces(before, 100), in_pieces(after, 100), 500)
    assert found.rows == 5_000 + 1 + 5_000
    assert max(seen) <= 1_000
    assert max(part.num_rows for part in found.parts(500)) == 500
    weights = Counter(w for part in found.parts(500) for w in part.column(WEIGHT).to_pylist())
    assert weights == {-1: 5_000, -5_000: 1, 1: 5_000}


def test_a_picture_without_rows_takes_the_types_of_the_other() -> None:
    """K9: where there are no rows, nobody may know what they would be."""
    nothing = Pieces(pa.schema({"id": pa.null(), "v": pa.null()}), 0, [])
    found = difference(nothing, in_pieces([(1, "x")], 1), 10)
    (part,) = found.parts(10)
    assert rows_of(part) == [(1, "x", 1)]
    assert part.schema.field("id").type == pa.int64()


@given(st.lists(st.integers(0, 7), max_size=8), st.integers(1, 9))
def test_parts_are_full_but_for_the_last(sizes: list[int], rows_max: int) -> None:
    """J7: so that their number is known before the first is made."""
    whole = pa.table({"n": range(sum(sizes))})
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    given_ = [whole.slice(start, size) for start, size in zip(starts, sizes, strict=True)]
    parts = list(in_parts(given_, rows_max))
    assert len(parts) == -(-sum(sizes) // rows_max)
    assert all(part.num_rows == rows_max for part in parts[:-1])
    assert [n for part in parts for n in part.column("n").to_pylist()] == list(range(sum(sizes)))
