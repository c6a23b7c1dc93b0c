"""Consolidation with hashes that tell rows apart, against counting Python values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.lsm import consolidate
from stepwell.lsm.consolidate import consolidated

ROW = st.tuples(st.integers(0, 5), st.sampled_from([None, 1, 2]), st.sampled_from(["", "a", None]))
ROWS = st.lists(st.tuples(ROW, st.integers(-2, 2)), max_size=30)


def table(rows: list[tuple[tuple[Any, ...], int]]) -> pa.Table:
    kinds = [pa.int64(), pa.int32(), pa.string()]
    columns = [pa.array([row[i] for row, _ in rows], kind) for i, kind in enumerate(kinds)]
    weights = pa.array([weight for _, weight in rows], pa.int64())
    whole = pa.table([*columns, weights], names=["c0", "c1", "c2", "w"])
    half = len(rows) // 2
    return pa.concat_tables([whole.slice(0, half), whole.slice(half)])


def counted(rows: list[tuple[tuple[Any, ...], int]]) -> dict[tuple[Any, ...], int]:
    sums: Counter[tuple[Any, ...]] = Counter()
    for row, weight in rows:
        sums[row] += weight
    return {row: weight for row, weight in sums.items() if weight}


@pytest.mark.parametrize("collide", [False, True])
@given(rows=ROWS)
def test_equal_rows_are_summed_and_zeros_dropped(
    collide: bool, rows: list[tuple[tuple[Any, ...], int]]
) -> None:
    """S1: rows with one hash that differ, NULL, and rows of weight zero that equal no other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consolidate, "HASHED_ROWS_MIN", 0)
        if collide:
            patch.setattr(
                consolidate, "hash_values", lambda values: np.asarray(values) % np.uint64(2)
            )
        found = consolidated(table(rows))
    assert found.column_names == ["c0", "c1", "c2", "w"]
    made = [tuple(row.values()) for row in found.to_pylist()]
    assert len(made) == len({row[:-1] for row in made})
    assert {row[:-1]: row[-1] for row in made} == counted(rows)
