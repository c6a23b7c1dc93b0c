"""Join kernels on Arrow: positions of rows with equal values in tables in memory.

They apply only to values whose equality is the same in Arrow and in Spark (`values.comparable`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.lsm.values import comparable
from stepwell.plan.nodes import Side

PRODUCT_ROWS_MAX = 100_000
"""Maximum size of a cross product. Joins without an equality often have a one-row sum as a side."""


def product_of(places: list[np.ndarray], rows: int) -> list[np.ndarray] | None:
    """The cross product with another table; conditions are tested later. None if too large."""
    if len(places[0]) * rows > PRODUCT_ROWS_MAX:
        return None
    return [
        *(np.repeat(p, rows) for p in places),
        np.tile(np.arange(rows), len(places[0])),
    ]


def comparable_pair(
    one: pa.ChunkedArray, two: pa.ChunkedArray, types: tuple[str, str], null_safe: bool
) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
    """Two columns on which Arrow's equality is Spark's; None if it may not be."""
    if not all(map(comparable, types)):
        return None
    if one.type != two.type:
        if not (pa.types.is_integer(one.type) and pa.types.is_integer(two.type)):
            return None
        one, two = one.cast(pa.int64()), two.cast(pa.int64())
    if null_safe and one.null_count and two.null_count:
        return None
    return one, two


def pairs_count(left: list[pa.ChunkedArray], right: list[pa.ChunkedArray]) -> int:
    """The number of pairs of rows with equal values, computed without building them."""
    names = [f"k{i}" for i in range(len(left))]
    sides = []
    for columns, times in ((left, "l"), (right, "r")):
        counted = pa.table(columns, names=names).group_by(names).aggregate([([], "count_all")])
        sides.append(counted.select([*names, "count_all"]).rename_columns([*names, times]))
    both = sides[0].join(sides[1], keys=names, join_type="inner")
    return int(pc.sum(pc.multiply(both.column("l"), both.column("r"))).as_py() or 0)


def met(
    side: Side, rows: int, at_left: np.ndarray, at_right: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions on the left that the join returns, each with the position of its match or -1."""
    alone = np.ones(rows, dtype=bool)
    alone[at_left] = False
    if side is Side.SEMI:
        alone = ~alone
    places = np.flatnonzero(alone)
    none = np.full(len(places), -1)
    if side is Side.LEFT:
        return np.concatenate([at_left, places]), np.concatenate([at_right, none])
    return places, none


def distinct_of(columns: list[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
    names = [f"k{i}" for i in range(len(columns))]
    distinct = pa.table(columns, names=names).group_by(names).aggregate([])
    return [distinct.column(name) for name in names]


def pairs_of(
    left: list[pa.ChunkedArray], right: list[pa.ChunkedArray]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of rows with equal values on both sides."""
    names = [f"k{i}" for i in range(len(left))]
    sides = []
    for columns, at in ((left, "l"), (right, "r")):
        rows = len(columns[0])
        sides.append(pa.table([*columns, pa.array(np.arange(rows))], names=[*names, at]))
    joined = sides[0].join(sides[1], keys=names, join_type="inner")
    return joined.column("l").to_numpy(), joined.column("r").to_numpy()


def among_rows(columns: list[pa.ChunkedArray], values: list[pa.ChunkedArray]) -> pa.Array | None:
    """Mask of rows whose values are among `values`, NULL equal to NULL; None if undecided."""
    if any(one.type != two.type for one, two in zip(columns, values, strict=True)):
        return None
    if len(columns) == 1:
        return pc.is_in(columns[0], value_set=pc.unique(values[0]))
    if any(c.null_count for c in columns) and any(v.null_count for v in values):
        return None
    names = [f"k{i}" for i in range(len(columns))]
    at = pa.array(np.arange(len(columns[0])))
    rows = pa.table([*columns, at], names=[*names, "at"])
    keys = pa.table(values, names=names)
    found = rows.join(keys, keys=names, join_type="left semi").column("at").to_numpy()
    mask = np.zeros(len(columns[0]), dtype=bool)
    mask[found] = True
    return pa.array(mask)
