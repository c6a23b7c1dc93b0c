"""Compaction of large runs without Spark, one key range at a time.

Runs are sorted by key, so rows that cancel out lie in the same key range of each run. The range
borders are keys of the runs, spaced by about the number of rows a file should hold. For each range
all runs are read and consolidated. Only one range is in memory, whatever the size of the runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stepwell.lsm import run_file as files
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.run_file import RunFiles

SKEW_MAX = 4
"""Maximum size of a range as a multiple of `FILE_ROWS`; many rows may share one key."""


@dataclass(slots=True)
class _File:
    """A file, and statistics of its key."""

    path: Path
    low: pa.Scalar
    high: pa.Scalar
    nulls: bool
    some: list[tuple[pa.Array, int]]
    """Samples of the key: the first key of each batch, and the number of rows in the batch."""

    def within(self, low: pa.Scalar | None, high: pa.Scalar | None) -> bool:
        """Whether the file may hold keys in [low, high). NULL sorts first."""
        if self.nulls and low is None:
            return True
        if not self.low.is_valid:
            return False
        above = low is None or pc.greater_equal(self.high, low).as_py()
        return bool(above and (high is None or pc.less(self.low, high).as_py()))


def by_ranges(runs: Sequence[RunFiles], key: int, schema: pa.Schema) -> Iterator[pa.Table] | None:
    """The consolidated rows of all runs, by ranges of a column; None if it has too few values."""
    column = schema.field(key)
    known = [_sampled(path, column) for run in runs for path in run.files]
    borders = _borders([sample for file in known for sample in file.some], column.type)
    return None if borders is None else _summed(known, column.name, borders, schema)


def _sampled(path: Path, column: pa.Field) -> _File:
    some: list[tuple[pa.Array, int]] = []
    ends = [pa.array([], column.type)]
    nulls = False
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        for batch in parquet.iter_batches(files.ROW_GROUP_ROWS, columns=[column.name]):
            keys = batch.column(0).cast(column.type)
            nulls = nulls or bool(keys.null_count)
            most = pc.min_max(keys)
            ends += [pa.repeat(most["min"], 1), pa.repeat(most["max"], 1)]
            # Taken, not sliced: a slice would keep the whole batch in memory.
            some.append((keys.take(pa.array([0])), len(keys)))
    found = pc.min_max(pa.concat_arrays(ends))
    return _File(path, found["min"], found["max"], nulls, some)


def _borders(some: Sequence[tuple[pa.Array, int]], kind: pa.DataType) -> list[pa.Scalar] | None:
    """Keys in ascending order, about `FILE_ROWS` rows apart; None if the keys are too skewed."""
    keys = pa.concat_arrays([key for key, _ in some]) if some else pa.array([], kind)
    counts = np.array([count for _, count in some], dtype=np.int64)
    there = keys.is_valid().to_numpy(zero_copy_only=False)
    rows = int(counts[~there].sum())  # NULL sorts first.
    keys, counts = keys.drop_null(), counts[there]
    borders: list[pa.Scalar] = []
    for place in pc.sort_indices(keys).to_pylist():
        key = keys[place]
        if rows > SKEW_MAX * files.FILE_ROWS:
            return None
        if rows >= files.FILE_ROWS and not (borders and key.equals(borders[-1])):
            borders.append(key)
            rows = 0
        rows += int(counts[place])
    return None if rows > SKEW_MAX * files.FILE_ROWS else borders


def _summed(
    known: Sequence[_File], column: str, borders: Sequence[pa.Scalar], schema: pa.Schema
) -> Iterator[pa.Table]:
    for low, high in itertools.pairwise([None, *borders, None]):
        wanted = _wanted(pc.field(column), low, high)
        yield _together([f.path for f in known if f.within(low, high)], wanted, schema)


def _wanted(
    value: pc.Expression, low: pa.Scalar | None, high: pa.Scalar | None
) -> pc.Expression | None:
    if low is None:
        return None if high is None else (value < high) | value.is_null()
    return value >= low if high is None else (value >= low) & (value < high)


def _together(paths: Sequence[Path], wanted: pc.Expression | None, schema: pa.Schema) -> pa.Table:
    # Imported late: it loads pandas, for which no command should have to wait.
    import pyarrow.dataset as ds

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    checked = ds.ParquetFileFormat(default_fragment_scan_options=options)
    # One by one: files written by Spark and by us may declare different columns nullable.
    parts = [
        ds.dataset(str(path), format=checked).to_table(filter=wanted).cast(schema) for path in paths
    ]
    return consolidated(pa.concat_tables([schema.empty_table(), *parts]))
