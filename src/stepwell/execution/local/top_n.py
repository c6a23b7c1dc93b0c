"""ORDER BY ... LIMIT without Spark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.run_file import WEIGHT
from stepwell.plan.nodes import TopN


def first_rows(pool: pa.Table, top: TopN, columns: Sequence[str]) -> pa.Table:
    """The first rows in the order, with their multiplicities.

    `pool` is consolidated, with columns c0, c1, ... of types that Arrow orders as Spark does. The
    order is total: rows of equal rank are equal rows.
    """
    keys: list[tuple[str, str]] = []
    ordered = pool
    for key in top.order:
        place = f"c{columns.index(key.column)}"
        if pool.column(place).null_count:
            # Arrow puts the NULLs of all keys at one end; Spark decides it key by key.
            absent = pc.is_null(pool.column(place)).cast(pa.int8())
            ordered = ordered.append_column(f"{place}?", absent)
            keys.append((f"{place}?", "descending" if key.nulls_first else "ascending"))
        keys.append((place, "descending" if key.descending else "ascending"))
    ranked = pool.take(pc.sort_indices(ordered, sort_keys=keys))
    times = ranked.column(WEIGHT).to_numpy()
    after = np.cumsum(times)
    last = np.inf if top.limit is None else top.offset + top.limit
    kept = np.minimum(after, last) - np.maximum(after - times, top.offset)
    kept = np.clip(kept, 0, None).astype(np.int64)
    place = ranked.schema.get_field_index(WEIGHT)
    return ranked.set_column(place, WEIGHT, pa.array(kept)).filter(pa.array(kept > 0))


def moved_among(first: pa.Table, come: pa.Table, top: TopN, columns: Sequence[str]) -> pa.Table:
    """The change set of the first rows, without an offset, after pure insertions."""
    pool = consolidated(pa.concat_tables([first, come.cast(first.schema)]))
    fresh = first_rows(pool, top, columns)
    place = first.schema.get_field_index(WEIGHT)
    gone = first.set_column(place, WEIGHT, pc.negate(first.column(WEIGHT)))
    return consolidated(pa.concat_tables([fresh, gone]))
