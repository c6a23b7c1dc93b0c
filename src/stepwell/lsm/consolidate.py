"""Consolidation: merge equal rows of a change set and drop rows of weight zero."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.lsm.hashing import Words, hash_values
from stepwell.lsm.index import ordered
from stepwell.lsm.run_file import WEIGHT

Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_THREADED_ROWS_MIN = 1_000_000
"""With fewer rows, merging the groups of several threads costs more than they save."""

HASHED_ROWS_MIN = 200
_HASHED_MAX = 4
_ODD = np.uint64(0x9E3779B97F4A7C15)


def grouped(table: pa.Table, names: list[str]) -> pa.TableGroupBy:
    """The groups of a table, for aggregates whose result does not depend on the order of rows."""
    return table.group_by(names, use_threads=table.num_rows >= _THREADED_ROWS_MIN)


def consolidated(change: pa.Table) -> pa.Table:
    """Sum the weights of equal rows and drop the zeros, if Arrow can compare the rows."""
    alike = _maybe_alike(change)
    if alike is None:
        return _summed(change)
    apart = change.filter(pa.array(~alike))
    parts = [apart.filter(pc.not_equal(apart.column(WEIGHT), 0))]
    if alike.any():
        parts.append(_summed(change.filter(pa.array(alike))))
    return pa.concat_tables(parts).select([*_names(change), WEIGHT])


def _summed(change: pa.Table) -> pa.Table:
    names = _names(change)
    try:
        summed = grouped(change, names).aggregate([(WEIGHT, "sum")])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return change
    summed = summed.rename_columns(
        [*names, WEIGHT] if summed.column_names[-1] != names[-1] else [WEIGHT, *names]
    )
    return summed.filter(pc.not_equal(summed.column(WEIGHT), 0)).select([*names, WEIGHT])


def _names(change: pa.Table) -> list[str]:
    return [name for name in change.column_names if name != WEIGHT]


def _maybe_alike(change: pa.Table) -> Mask | None:
    """Mask of at least the rows that equal another one; None if grouping all is as fast.

    Most rows differ from all others in their numbers, whose hashes cost less than groups.
    """
    if change.num_rows < HASHED_ROWS_MIN:
        return None
    hashes: Words | None = None
    columns = [change.column(name) for name in _names(change)]
    for column in [c for c in columns if ordered(c.type) and not c.null_count][:_HASHED_MAX]:
        numbers = hash_values(column.combine_chunks())
        hashes = numbers if hashes is None else hashes * _ODD + numbers
    if hashes is None:
        return None
    in_order = np.argsort(hashes)
    equal = hashes[in_order[1:]] == hashes[in_order[:-1]]
    alike = np.zeros(len(hashes), dtype=bool)
    alike[in_order[1:]] = equal
    alike[in_order[:-1]] |= equal
    return None if 2 * int(alike.sum()) > len(alike) else alike
