"""Readers of runs in other processes: which parts of which files each of them reads.

A relation's rows are the sums of the weights over all of its runs, so rows that may cancel out must
be read by the same process:

    every weight positive   nothing cancels: each part of a file can be read on its own
    otherwise               ranges of one column: a reader reads that range of every run. Runs are
                            sorted by the relation's key, so few row groups overlap the range

Ranges are correct whatever the order of the rows. The statistics in the files only save reading.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stepwell.lsm import run_file
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.remote_files import open_parquet
from stepwell.lsm.run_file import WEIGHT
from stepwell.lsm.values import comparable
from stepwell.manifest.manifest import Run
from stepwell.store.address import Address

_READERS = 8


@dataclass(frozen=True, slots=True)
class Range:
    """Values from `low` on and below `high`; None is unbounded. NULL is below every value."""

    column: int
    low: Any = None
    high: Any = None


@dataclass(frozen=True, slots=True)
class Share:
    """What one process reads."""

    runs: tuple[int, ...]
    """Indices into the list of runs."""
    number: int = 0
    of: int = 1
    """Of each run, the row groups of share `number` of `of` equal ones."""
    within: Range | None = None
    cancelling: bool = False
    """Whether rows of the share may cancel out."""


@dataclass(frozen=True, slots=True)
class Group:
    """The statistics of a row group."""

    rows: int
    low: Any
    high: Any
    """Bounds of the values; None if they are unknown or all NULL."""
    nulls: bool

    def overlaps(self, within: Range) -> bool:
        if self.nulls and within.low is None:
            return True
        if self.low is None or self.high is None:
            return True
        above = within.low is None or self.high >= within.low
        return bool(above and (within.high is None or self.low < within.high))


def shares(
    addresses: Mapping[str | None, Address],
    runs: Sequence[Run],
    types: Sequence[str],
    *,
    prefer: Sequence[int] = (),
    cancelling: bool = False,
) -> list[Share]:
    """Divide runs among readers. `addresses` are by the root of a run.

    `types` are those of the relation. `prefer` are the columns to divide it by, best first.
    With `cancelling`, rows of different runs may cancel out whatever their weights are.
    """
    with ThreadPoolExecutor(_READERS) as readers:
        metadata = list(readers.map(lambda run: _metadata(addresses, run), runs))
    if not cancelling and all(map(_positive, metadata)):
        return [
            Share((place,), number, parts)
            for place, run in enumerate(runs)
            for parts in [max(1, round(run.rows / run_file.FILE_ROWS))]
            for number in range(parts)
        ]
    every = tuple(range(len(runs)))
    if sum(run.rows for run in runs) > run_file.FILE_ROWS:
        for column in dict.fromkeys([*prefer, *range(len(types))]):
            if comparable(types[column]) and types[column] not in ("boolean", "binary"):
                borders = _borders(runs, metadata, types, column)
                if borders:
                    edges = [None, *borders, None]
                    return [
                        Share(every, within=Range(column, low, high), cancelling=True)
                        for low, high in itertools.pairwise(edges)
                    ]
    return [Share(every, cancelling=True)] if runs else []


def groups(metadata: pq.FileMetaData, column: int | None, kind: pa.DataType) -> list[Group]:
    """The statistics of all row groups for the column at this position in the file.

    If the file lacks the column (None), its values are NULL.
    """
    found = []
    name = None if column is None else f"c{column}"
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = None
        if name is not None:
            statistics = next(
                (
                    group.column(i).statistics
                    for i in range(group.num_columns)
                    if group.column(i).path_in_schema == name
                ),
                None,
            )
        low = high = None
        if statistics is not None and statistics.has_min_max:
            low, high = _bounds(statistics, kind)
        nulls = statistics is None or not statistics.has_null_count or statistics.null_count > 0
        found.append(Group(group.num_rows, low, high, nulls))
    return found


def place_in(run: Run, column: int) -> int | None:
    """The position in a run's file of a column of its relation."""
    return column if run.columns is None else run.columns[column]


def _bounds(statistics: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """The bounds as values of the column; None if its file has another type.

    Python's dates and times end with the year 9999, and those of a column need not.
    """
    try:
        return pa.scalar(statistics.min, kind).as_py(), pa.scalar(statistics.max, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None, None


def _metadata(addresses: Mapping[str | None, Address], run: Run) -> pq.FileMetaData:
    return open_parquet(addresses[run.root], run.path, run.size).metadata


def _positive(metadata: pq.FileMetaData) -> bool:
    """Whether every row has a positive weight, according to the statistics."""
    for number in range(metadata.num_row_groups):
        weight = metadata.row_group(number).column(metadata.num_columns - 1)
        statistics = weight.statistics
        if weight.path_in_schema != WEIGHT or statistics is None or not statistics.has_min_max:
            return False
        if statistics.min <= 0:
            return False
    return True


def _borders(
    runs: Sequence[Run], metadata: Sequence[pq.FileMetaData], types: Sequence[str], column: int
) -> list[Any]:
    """Values about `FILE_ROWS` rows apart, ascending; empty if the column divides nothing."""
    kind = arrow_schema(tuple(types)).field(column).type
    known = [
        group
        for run, each in zip(runs, metadata, strict=True)
        for group in groups(each, place_in(run, column), kind)
    ]
    borders: list[Any] = []
    rows = 0
    for group in sorted((g for g in known if g.low is not None), key=lambda group: group.low):
        last = borders[-1] if borders else None
        if rows >= run_file.FILE_ROWS and group.low != last:
            borders.append(group.low)
            rows = 0
        rows += group.rows
    return borders
