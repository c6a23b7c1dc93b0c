"""Consolidation: merge equal rows of a change set and drop rows of weight zero."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.lsm.run_file import WEIGHT

_THREADED_ROWS_MIN = 1_000_000
"""With fewer rows, merging the groups of several threads costs more than they save."""


def grouped(table: pa.Table, names: list[str]) -> pa.TableGroupBy:
    """The groups of a table, for aggregates whose result does not depend on the order of rows."""
    return table.group_by(names, use_threads=table.num_rows >= _THREADED_ROWS_MIN)


def consolidated(change: pa.Table) -> pa.Table:
    """Sum the weights of equal rows and drop the zeros, if Arrow can compare the rows."""
    names = [name for name in change.column_names if name != WEIGHT]
    try:
        summed = grouped(change, names).aggregate([(WEIGHT, "sum")])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return change
    summed = summed.rename_columns(
        [*names, WEIGHT] if summed.column_names[-1] != names[-1] else [WEIGHT, *names]
    )
    return summed.filter(pc.not_equal(summed.column(WEIGHT), 0)).select([*names, WEIGHT])
