"""Are sums of few rows added exactly?"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from stepwell.execution.local.accumulate import merged


def sums(rows: list[tuple[int | None, int, int, int]]) -> pa.Table:
    """Stored sums: a key, the number of rows, a total with two digits, a weight."""
    keys, counts, totals, weights = ([row[i] for row in rows] for i in range(4))
    columns = [
        pa.array(keys, pa.int32()),
        pa.array(counts, pa.int64()),
        pa.array([Decimal(total) / 100 for total in totals], pa.decimal128(38, 2)),
        pa.array(weights, pa.int64()),
    ]
    return pa.table(columns, names=["c0", "c1", "c2", "w"])


LARGE = 10**20
"""More than 64 bits."""


@pytest.mark.parametrize("total", [1, -5, LARGE])
def test_sums_of_few_rows_are_added_exactly(total: int) -> None:
    """S4: a group that is retracted and inserted in several parts has one row, which goes when its
    last row does; and a total that does not fit into 64 bits is not cut off."""
    old = sums([(1, 2, total, 1), (None, 1, 7, 1), (1, 2, total, -1), (1, 3, 2 * total, 1)])
    change = sums([(None, -1, -7, 1), (1, 1, total, 1), (4, 2, total, 1), (5, 0, 0, 1)])
    found = merged(old, change, 1)
    assert found is not None
    change_set = Counter(zip(*(c.to_pylist() for c in found.columns), strict=True))
    assert change_set == Counter(
        [
            (None, 1, Decimal("0.07"), -1),
            (1, 3, Decimal(2 * total) / 100, -1),
            (1, 4, Decimal(3 * total) / 100, 1),
            (4, 2, Decimal(total) / 100, 1),
        ]
    )
