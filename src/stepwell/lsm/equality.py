"""Equality of table rows, as defined by `values`.

Arrow compares the columns that it can compare. Nested columns are compared value by value.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.lsm.values import key_of, one_form


def last_of_each(rows: pa.Table, columns: Sequence[int]) -> pa.Array:
    """Positions, ascending, of the last row of each group that is equal in these columns."""
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
    """Drop every row that is followed by a row equal to it in these columns."""
    last = last_of_each(rows, columns)
    return rows if len(last) == rows.num_rows else rows.take(last)


def _last_numbers(values: np.ndarray[Any, Any]) -> pa.Array:
    """`last_of_each` for one integer column, the most common key, which is often already sorted."""
    if bool(np.all(values[:-1] < values[1:])):
        return pa.array(np.arange(len(values)))
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    last = np.append(in_order[:-1] != in_order[1:], True)
    return pa.array(np.sort(order[last]))


def groups_of(rows: pa.Table, columns: Sequence[int]) -> pa.Array:
    """A group number for each row; two rows share a number exactly if they are equal."""
    try:
        numbered = _numbered(rows, columns)
        grouped = numbered.group_by(numbered.column_names[:-1], use_threads=False)
        places = grouped.aggregate([("at", "list")]).column("at_list").combine_chunks()
        order = pc.sort_indices(places.flatten())
        return places.value_parent_indices().take(order)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        values = [
            [key_of(v, rows.column(i).type) for v in rows.column(i).to_pylist()] for i in columns
        ]
        numbers: dict[tuple[Hashable, ...], int] = {}
        rows_of = zip(*values, strict=True)
        return pa.array([numbers.setdefault(row, len(numbers)) for row in rows_of], pa.int64())


def _numbered(rows: pa.Table, columns: Sequence[int]) -> pa.Table:
    """The columns in the form in which Arrow compares as Spark does, plus each row's position."""
    made = [one_form(rows.column(i)) for i in columns]
    places = pa.array(np.arange(rows.num_rows))
    return pa.Table.from_arrays([*made, places], names=[*(f"c{i}" for i in columns), "at"])
