"""Which rows of a table are equal, as Spark has it: zero has one sign, and NaN equals NaN.

Arrow compares what it can; what it cannot (nested values, say) is compared here, value by value.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def last_of_each(rows: pa.Table, columns: Sequence[int]) -> pa.Array:
    """The places of the last of the rows that are equal in these columns, in order."""
    if len(columns) == 1:
        values = rows.column(columns[0])
        if pa.types.is_integer(values.type) and not values.null_count:
            return _last_numbers(values.to_numpy())
    try:
        places = _numbered(rows, columns)
        names = places.column_names[:-1]
        last = places.group_by(names, use_threads=False).aggregate([("at", "max")])
        return last.column("at_max").combine_chunks().sort()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        found = {group: at for at, group in enumerate(groups_of(rows, columns).to_pylist())}
        return pa.array(sorted(found.values()), pa.int64())


def only_last(rows: pa.Table, columns: Sequence[int]) -> pa.Table:
    """The rows without those that an equal one in these columns follows."""
    last = last_of_each(rows, columns)
    return rows if len(last) == rows.num_rows else rows.take(last)


def _last_numbers(values: np.ndarray[Any, Any]) -> pa.Array:
    """The same for one column of whole numbers, the most usual key, which often come in order."""
    if bool(np.all(values[:-1] < values[1:])):
        return pa.array(np.arange(len(values)))
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    last = np.append(in_order[:-1] != in_order[1:], True)
    return pa.array(np.sort(order[last]))


def groups_of(rows: pa.Table, columns: Sequence[int]) -> pa.Array:
    """A number for each row that is equal for equal rows only."""
    try:
        numbered = _numbered(rows, columns)
        grouped = numbered.group_by(numbered.column_names[:-1], use_threads=False)
        places = grouped.aggregate([("at", "list")]).column("at_list").combine_chunks()
        order = pc.sort_indices(places.flatten())
        return places.value_parent_indices().take(order)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        values = [[_hashable(v) for v in rows.column(i).to_pylist()] for i in columns]
        numbers: dict[tuple[Hashable, ...], int] = {}
        rows_of = zip(*values, strict=True)
        return pa.array([numbers.setdefault(row, len(numbers)) for row in rows_of], pa.int64())


def _numbered(rows: pa.Table, columns: Sequence[int]) -> pa.Table:
    """The columns as Arrow must see them to compare as Spark does, and the place of each row."""
    made = [_comparable(rows.column(i)) for i in columns]
    places = pa.array(np.arange(rows.num_rows))
    return pa.Table.from_arrays([*made, places], names=[*(f"c{i}" for i in columns), "at"])


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Zero has one sign and NaN one form, and NaN equals NaN."""
    if not pa.types.is_floating(values.type):
        return values
    values = pc.add(values, pa.scalar(0.0, values.type))
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)


def _hashable(value: object) -> Hashable:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, list):
        made = [_hashable(item) for item in value]
        pairs = bool(value) and all(isinstance(item, tuple) for item in value)
        # A map comes as pairs, and their order means nothing.
        return frozenset(made) if pairs else tuple(made)
    if isinstance(value, tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    return value
