"""The first rows in an order, brought up to date without Spark where none of them goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.query.algebra import TopN
from stepwell.spark.merge import consolidated
from stepwell.spark.runs import WEIGHT


def moved_among(
    first: pa.Table, come: pa.Table, top: TopN, columns: Sequence[str]
) -> pa.Table | None:
    """What changes among the first rows when these come; None if Spark has to say.

    Both tables are consolidated, with columns c0, c1, ... of types that Arrow orders as Spark does,
    and the order is total: rows of equal rank are equal rows.
    """
    if top.limit is None or top.offset:
        return None
    pool = consolidated(pa.concat_tables([first, come.cast(first.schema)]))
    keys: list[tuple[str, str]] = []
    for item in top.order:
        name, direction, *_ = item.split()
        place = f"c{columns.index(name)}"
        if pool.column(place).null_count:
            return None
        keys.append((place, {"ASC": "ascending", "DESC": "descending"}[direction]))
    ranked = pool.take(pc.sort_indices(pool, sort_keys=keys))
    times = ranked.column(WEIGHT).to_numpy()
    before = np.cumsum(times) - times
    kept = np.clip(top.limit - before, 0, times)
    place = ranked.schema.get_field_index(WEIGHT)
    fresh = ranked.set_column(place, WEIGHT, pa.array(kept, pa.int64()))
    gone = first.set_column(place, WEIGHT, pc.negate(first.column(WEIGHT)))
    return consolidated(pa.concat_tables([fresh, gone]))
