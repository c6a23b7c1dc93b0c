"""Large runs become one without Spark: a range of keys at a time.

Runs are sorted by their key, so rows that cancel out lie in the same range of each. The borders are
keys of the largest run, about as many rows apart as a file should hold. Between two of them all
runs are read and summed up. Only one range is in memory, whatever the runs hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from stepwell.spark import runs as files
from stepwell.spark.merge import consolidated
from stepwell.spark.runs import RunFiles

SKEW_MAX = 4
"""A range may hold so many times what it should, because many rows have one key."""


def by_ranges(runs: Sequence[RunFiles], key: int, schema: pa.Schema) -> Iterator[pa.Table] | None:
    """The rows of all runs, summed up, by ranges of a column; None if it has too few values."""
    column = f"c{key}"
    borders = _borders(max(runs, key=lambda run: run.rows), column)
    return None if borders is None else _summed(runs, column, borders, schema)


def _borders(run: RunFiles, column: str) -> list[pa.Scalar] | None:
    """Values of a column, in order, about `FILE_ROWS` rows apart."""
    some: list[pa.Array] = []
    for file in run.files:
        with pq.ParquetFile(file) as parquet:
            batches = parquet.iter_batches(files.ROW_GROUP_ROWS, columns=[column])
            some += [batch.column(0).slice(0, 1) for batch in batches]
    if not some:
        return []
    values = pa.concat_arrays(some)
    last = -values.null_count  # What is NULL comes first.
    values = values.drop_null()
    values = values.take(pc.sort_indices(values))
    step = max(1, files.FILE_ROWS // files.ROW_GROUP_ROWS)
    borders: list[pa.Scalar] = []
    for place in range(len(values)):
        before = borders[-1] if borders else values[0]
        if place - last < step or values[place].equals(before):
            continue
        if place - last > SKEW_MAX * step:
            return None
        borders.append(values[place])
        last = place
    return None if len(values) - last > SKEW_MAX * step else borders


def _summed(
    runs: Sequence[RunFiles], column: str, borders: Sequence[pa.Scalar], schema: pa.Schema
) -> Iterator[pa.Table]:
    for low, high in itertools.pairwise([None, *borders, None]):
        wanted = _within(ds.field(column), low, high)
        parts = [_read(run, wanted).cast(schema) for run in runs if run.files]
        yield consolidated(pa.concat_tables([schema.empty_table(), *parts]))


def _within(
    value: ds.Expression, low: pa.Scalar | None, high: pa.Scalar | None
) -> ds.Expression | None:
    """The first range has what is NULL."""
    if low is None:
        return None if high is None else (value < high) | value.is_null()
    return value >= low if high is None else (value >= low) & (value < high)


def _read(run: RunFiles, wanted: ds.Expression | None) -> pa.Table:
    # One by one: what Spark wrote may say otherwise than what we wrote what can be NULL.
    return pa.concat_tables(
        ds.dataset(str(file), format="parquet").to_table(filter=wanted) for file in run.files
    )
