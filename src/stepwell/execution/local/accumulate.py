"""Incremental sums without Spark: add the change of each group to the stored accumulators.

Both inputs are small: one row per changed group. The addition involves no user expression, only
integers and exact decimals, so this process can do it. For more rows Spark does the same with
`Merge` in the algebra; both give the same change set.
"""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.errors import BugError
from stepwell.execution.local.small_sums import bound_of, groups_of, summed, unscaled
from stepwell.lsm.consolidate import grouped
from stepwell.lsm.row_values import decimals
from stepwell.lsm.values import comparable
from stepwell.plan.render import NEGATIVE

WEIGHT = "w"
FEW_ROWS = 10_000
"""With more rows, Arrow groups faster."""
_FEW_MAX = 2**62 // FEW_ROWS
_EXACT = re.compile(r"bigint|decimal\(38,\d+\)")


def mergeable(types: tuple[str, ...], keys: int) -> bool:
    """Whether groups can be compared and accumulators added in this process."""
    return all(map(comparable, types[:keys])) and all(map(_EXACT.fullmatch, types[keys:]))


def merged(old: pa.Table, change: pa.Table, keys: int) -> pa.Table | None:
    """The change set of the stored sums; None if a number may overflow.

    Both tables have the keys, the row count, the accumulators, and a weight. `old` may hold rows
    that cancel out.
    """
    if old.num_rows + change.num_rows <= FEW_ROWS:
        found = _merged_few(old, change, keys)
        if found is not None:
            return found
    names = [f"c{i}" for i in range(len(change.column_names) - 1)]
    groups, sums = names[:keys], names[keys:]
    if any(_large(table.column(name)) for table in (old, change) for name in sums):
        return None
    was = old.column(WEIGHT)
    if old.num_rows and pc.max(pc.abs(was)).as_py() > 1:
        return None  # A group is one row. Leave any other input to Spark.
    gone = pc.less(was, 0)
    columns = {name: old.column(name) for name in groups}
    for name in sums:
        signed = pc.if_else(gone, pc.negate(old.column(name)), old.column(name))
        columns[f"o{name}"] = columns[f"n{name}"] = signed
    before = pa.table({**columns, "was": was})
    columns = {name: change.column(name) for name in groups}
    for name in sums:
        columns[f"o{name}"] = _zeros(change.schema.field(name).type, change.num_rows)
        columns[f"n{name}"] = change.column(name)
    columns["was"] = _zeros(pa.int64(), change.num_rows)
    after = pa.table(columns).cast(before.schema)
    both = pa.concat_tables([before, after])
    summed = [f"{version}{name}" for name in sums for version in "on"] + ["was"]
    made = grouped(both, groups).aggregate([(name, "sum") for name in summed])
    return _change(made, groups, sums)


def _merged_few(old: pa.Table, change: pa.Table, keys: int) -> pa.Table | None:
    """Like `merged`, with NumPy; None if a number has more than 62 bits, or weights are not one."""
    schema = old.schema
    rows, more = old.num_rows, change.num_rows
    columns = [
        _whole(a.chunks + b.cast(a.type).chunks, a.type)
        for a, b in zip(old.columns, change.columns, strict=True)
    ]
    weights = columns[-1].to_numpy()[:rows]
    if rows and np.abs(weights).max() != 1:
        return None
    group, first = groups_of(columns[:keys], rows + more)
    groups = len(first)
    numbers = []
    for column in columns[keys:-1]:
        found, _ = unscaled(column)
        if found is None or bound_of(found) > _FEW_MAX:
            return None
        numbers.append(found)
    was = summed(weights, group[:rows], groups)
    before = [summed(n[:rows] * weights, group[:rows], groups) for n in numbers]
    added = [summed(n[rows:], group[rows:], groups) for n in numbers]
    count = before[0] + added[0]
    if len(count) and count.min() < 0:
        raise BugError(NEGATIVE)
    moved = was == 0
    for one in added:
        moved |= one != 0
    gone = np.flatnonzero(moved & (was != 0))
    there = np.flatnonzero(moved & (count > 0)) if keys else np.flatnonzero(moved)
    at = pa.array(first[np.concatenate([gone, there])])
    made = [column.take(at) for column in columns[:keys]]
    for place, (one, two) in enumerate(zip(before, added, strict=True), keys):
        kind = schema.field(place).type
        values = np.concatenate([one[gone], one[there] + two[there]])
        made.append(decimals(values, kind) if pa.types.is_decimal(kind) else pa.array(values))
    signs = np.concatenate([np.full(len(gone), -1), np.ones(len(there), np.int64)])
    return pa.table([*made, pa.array(signs)], schema=schema)


def _whole(chunks: list[pa.Array], kind: pa.DataType) -> pa.Array:
    chunks = [chunk for chunk in chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)


def _change(made: pa.Table, groups: list[str], sums: list[str]) -> pa.Table:
    """Retract old rows and insert new rows, where they differ."""
    was = made.column("was_sum")
    count = made.column(f"n{sums[0]}_sum")
    if (pc.min(count).as_py() or 0) < 0:
        raise BugError(NEGATIVE)
    moved = pc.equal(was, 0)
    for name in sums:
        moved = pc.or_(
            moved, pc.not_equal(made.column(f"o{name}_sum"), made.column(f"n{name}_sum"))
        )
    there = pc.greater(count, 0) if groups else pc.greater_equal(count, 0)
    parts = []
    for version, keep, weight in (
        ("o", pc.and_(moved, pc.not_equal(was, 0)), -1),
        ("n", pc.and_(moved, there), 1),
    ):
        rows = made.filter(keep)
        columns = {name: rows.column(name) for name in groups}
        columns |= {name: rows.column(f"{version}{name}_sum") for name in sums}
        columns[WEIGHT] = pa.array([weight] * rows.num_rows, pa.int64())
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def _large(column: pa.ChunkedArray) -> bool:
    """Whether adding another such number might overflow."""
    if not pa.types.is_decimal(column.type) or not len(column):
        return False
    most = pc.min_max(column).as_py()
    scale = column.type.scale
    return bool(max(abs(most["min"] or 0), abs(most["max"] or 0)) > 10 ** (37 - scale))


def _zeros(type_: pa.DataType, count: int) -> pa.Array:
    zero = Decimal(0) if pa.types.is_decimal(type_) else 0
    return pa.repeat(pa.scalar(zero, type_), count)
