"""Results that are known by the memory of their columns."""

from __future__ import annotations

import gc

import pyarrow as pa

from stepwell.lsm.column_memo import ColumnMemo


def test_columns_in_the_same_memory_have_one_result() -> None:
    """C3: several views that read the same rows would compute the same several times."""
    memo = ColumnMemo()
    table = pa.table({"a": [3, 1, 2], "b": ["x", None, "y"]})
    for name in ("a", "b"):
        results = [
            memo.of("list", [table.column(name)], table.column(name).to_pylist) for _ in range(3)
        ]
        assert results == [table.column(name).to_pylist()] * 3
    assert (memo.computed, memo.shared) == (2, 4)


def test_other_columns_have_other_results() -> None:
    """A3: a slice, a view as another type, other chunks, or another function."""
    memo = ColumnMemo()
    days = pa.array([1, 2, 3, 4], pa.int32())
    columns = [
        days,
        days.slice(1),
        days.slice(0, 3),
        days.view(pa.date32()),
        pa.chunked_array([days, days]),
        pa.array([1, 2, 3, 4], pa.int32()),
    ]
    for column in columns:
        assert memo.of("list", [column], column.to_pylist) == column.to_pylist()
        assert memo.of("length", [column], lambda column=column: len(column)) == len(column)
    assert memo.shared == 0


def test_memory_that_is_used_again_is_not_mistaken() -> None:
    """A3: a freed column's addresses go to the next one of its size."""
    memo = ColumnMemo()
    for number in range(50):
        column = pa.array([number] * 1000, pa.int64())
        assert memo.of("first", [column], lambda column=column: column[0].as_py()) == number
        del column
        gc.collect()


def test_results_of_too_many_rows_are_not_kept() -> None:
    """F9: a transaction of many rows would hold every intermediate column."""
    memo = ColumnMemo(rows_max=5)
    small, large = pa.array([1, 2, 3]), pa.array([4, 5, 6])
    for _ in range(2):
        memo.of("list", [small], small.to_pylist)
        memo.of("list", [large], large.to_pylist)
    assert (memo.computed, memo.shared) == (3, 1)
