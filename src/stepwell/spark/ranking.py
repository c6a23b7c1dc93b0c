"""The first rows in an order, found without Spark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.query.algebra import TopN
from stepwell.spark.merge import consolidated
from stepwell.spark.runs import WEIGHT


def first_rows(pool: pa.Table, top: TopN, columns: Sequence[str]) -> pa.Table | None:
    """The first of these rows, with how often each is among them; None if Spark has to say.

    The rows are consolidated, with columns c0, c1, ... of types that Arrow orders as Spark does,
    and the order is total: rows of equal rank are equal rows.
    """
    keys: list[tuple[str, str]] = []
    for item in top.order:
        name, direction, *_ = item.split()
        place = f"c{columns.index(name)}" if name in columns else ""
        if not place or pool.column(place).null_count:
            return None
        keys.append((place, {"ASC": "ascending", "DESC": "descending"}[direction]))
    ranked = pool.take(pc.sort_indices(pool, sort_keys=keys))
    times = ranked.column(WEIGHT).to_numpy()
    after = np.cumsum(times)
    last = np.inf if top.limit is None else top.offset + top.limit
    kept = np.minimum(after, last) - np.maximum(after - times, top.offset)
    kept = np.clip(kept, 0, None).astype(np.int64)
    place = ranked.schema.get_field_index(WEIGHT)
    return ranked.set_column(place, WEIGHT, pa.array(kept)).filter(pa.array(kept > 0))


def moved_among(
    first: pa.Table, come: pa.Table, top: TopN, columns: Sequence[str]
) -> pa.Table | None:
    """What changes among the first rows when these come and none goes; None: ask Spark."""
    if top.offset:
        return None
    fresh = first_rows(
        consolidated(pa.concat_tables([first, come.cast(first.schema)])), top, columns
    )
    if fresh is None:
        return None
    place = first.schema.get_field_index(WEIGHT)
    gone = first.set_column(place, WEIGHT, pc.negate(first.column(WEIGHT)))
    return consolidated(pa.concat_tables([fresh, gone]))
