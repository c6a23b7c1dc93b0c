"""Scan a relation from its runs, in any process that can read the store.

    driver       plans: which part of which runs each task reads (`shares`)
    executors    read: decode, apply the view's output and the filters, sum the weights

A scan is a value: it names the files, their sizes and the columns, and holds no rows. It reads the
state of one transaction, or the difference of two: then runs have a sign. A scan does not
protect its files; once they have been collected, it raises `SnapshotExpiredError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.env import SystemEnv
from stepwell.errors import (
    ConfigError,
    CorruptError,
    InvalidError,
    SnapshotExpiredError,
    TruncatedError,
)
from stepwell.execution.backend import CannotRunError
from stepwell.execution.local import pushdown
from stepwell.execution.local.expressions import certain
from stepwell.execution.local.output import Output, Shown, arrow_of
from stepwell.execution.local.quotients import DIVIDED_ROWS_MAX
from stepwell.journal import paths
from stepwell.lsm import run_ranges
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.equality import groups_of
from stepwell.lsm.remote_files import open_parquet
from stepwell.lsm.run_file import WEIGHT
from stepwell.lsm.run_ranges import Range, Share
from stepwell.lsm.values import comparable
from stepwell.manifest.manifest import Run
from stepwell.model import Transaction
from stepwell.sql.simple import NotSimple
from stepwell.store.address import Address, open_address

BATCH_ROWS = 32 * 1024


@dataclass(frozen=True, slots=True)
class RelationScan:
    """Reads columns of a table or view."""

    name: str
    shown: Shown
    transaction: Transaction
    addresses: Mapping[str | None, Address]
    """The stores of the runs, by their root."""
    runs: tuple[Run, ...]
    columns: tuple[int, ...]
    """Positions of the columns to read."""
    signs: tuple[int, ...] | None = None
    """1 or -1 for each run, if this is the difference of two states."""
    filters: tuple[pushdown.Pushed, ...] = ()
    prefer: tuple[int, ...] = ()
    """Positions of the stored columns by which the runs are sorted, as far as that is known."""

    @property
    def schema(self) -> pa.Schema:
        """The columns c0, c1, ... that are read, and the weight."""
        types = [self.shown.types[place] for place in self.columns]
        fields = [pa.field(f"c{i}", arrow_of(type_)) for i, type_ in enumerate(types)]
        return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])

    def check(self) -> None:
        """Raise `InvalidError` if the relation cannot be read without a Spark session."""
        _Reading(self).check()

    def shares(self) -> list[Share]:
        """Divide the scan into parts that can be read on their own."""
        with _expiring(self):
            return run_ranges.shares(
                self.addresses,
                self.runs,
                self.shown.stored,
                prefer=self.prefer,
                cancelling=self.signs is not None,
            )

    def changes(self, share: Share) -> Iterator[pa.Table]:
        """Read rows with their weights."""
        with _expiring(self):
            yield from _Reading(self).tables(share)

    def rows(self, share: Share) -> Iterator[pa.Table]:
        """Read rows, each as often as its weight says, in small tables."""
        for table in self.changes(share):
            yield from _repeated(self, table)


@contextmanager
def _expiring(scan: RelationScan) -> Iterator[None]:
    """Tell files that were collected from files that never could be read."""
    try:
        yield
    except (TruncatedError, ConfigError) as error:
        for root, address in scan.addresses.items():
            store = open_address(address, SystemEnv())
            files = [run.path for run in scan.runs if run.root == root]
            # A worker that does not see the store at all has another problem.
            if all(map(store.exists, files)) or not store.list(paths.MANIFESTS, limit=1):
                continue
            raise SnapshotExpiredError(
                f"{scan.name} as of transaction {scan.transaction} can no longer be read: garbage "
                f"collection has deleted files of it in {store.uri}",
                hint="load it again; if reading takes longer than gc.grace, raise that setting, "
                "or read a checkpoint: stepwell checkpoint create",
                not_applied=True,
            ) from error
        raise


class _Reading:
    """Reads the shares of one scan in this process."""

    def __init__(self, scan: RelationScan) -> None:
        self._scan = scan
        try:
            self._output = Output(scan.shown)
            self._kinds = scan.schema
        except (NotSimple, CannotRunError) as why:
            raise self._unsupported(str(why)) from why
        self._every = list(dict.fromkeys([*scan.columns, *(f.column for f in scan.filters)]))
        self._stored = arrow_schema(scan.shown.stored)

    def check(self) -> None:
        self._shown(self._empty(self._output.needs(self._every)))

    def tables(self, share: Share) -> Iterator[pa.Table]:
        places = self._output.needs(self._every)
        found = (
            self._shown(stored)
            for number in share.runs
            for stored in self._read(number, share, places)
        )
        if not share.cancelling:
            yield from found
            return
        table = self._summed(pa.concat_tables([self._kinds.empty_table(), *found]))
        if self._scan.signs is None:
            self._check_positive(table)
        if table.num_rows:
            yield table

    def _read(self, number: int, share: Share, places: Sequence[int]) -> Iterator[pa.Table]:
        """The stored rows of a share of a run: the columns at `places`, and the weights."""
        run, within = self._scan.runs[number], share.within
        wanted = list(places)
        if within is not None and within.column not in wanted:
            wanted.append(within.column)
        found = [run_ranges.place_in(run, place) for place in wanted]
        file = open_parquet(self._scan.addresses[run.root], run.path, run.size)
        names = [*dict.fromkeys(f"c{place}" for place in found if place is not None), WEIGHT]
        if not set(names) <= set(file.schema_arrow.names):
            raise CorruptError(run.path, f"has the columns {file.schema_arrow.names}")
        groups = self._groups(file, run, share)
        schema = self._schema(wanted)
        sign = 1 if self._scan.signs is None else self._scan.signs[number]
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=names):
            columns = [
                pa.nulls(batch.num_rows) if place is None else batch.column(f"c{place}")
                for place in found
            ]
            weights = pc.multiply(batch.column(WEIGHT), sign)
            table = pa.table([*columns, weights], names=schema.names).cast(schema)
            if within is not None:
                table = table.filter(_inside(table.column(f"c{within.column}"), within))
            yield table

    def _groups(self, file: Any, run: Run, share: Share) -> list[int]:
        """The row groups of a file that may have rows of a share that pass the filters."""
        count = file.metadata.num_row_groups
        kept = [g for g in range(count) if g * share.of // max(1, count) == share.number]
        if share.within is not None:
            bounds = self._bounds(file, run, share.within.column)
            kept = [g for g in kept if bounds[g].overlaps(share.within)]
        for item in self._scan.filters:
            place = self._output.stored_as(item.column)
            if place is not None:
                bounds, kind = self._bounds(file, run, place), self._stored.field(place).type
                kept = [g for g in kept if pushdown.may_match(item, bounds[g], kind)]
        return kept

    def _bounds(self, file: Any, run: Run, place: int) -> list[run_ranges.Group]:
        kind = self._stored.field(place).type
        return run_ranges.groups(file.metadata, run_ranges.place_in(run, place), kind)

    def _shown(self, stored: pa.Table) -> pa.Table:
        """The rows that users see, filtered: columns c0, c1, ... and the weights."""
        try:
            with certain():
                rows = self._output.rows(stored, self._every)
        except (NotSimple, CannotRunError) as why:
            if stored.num_rows <= DIVIDED_ROWS_MAX:
                raise self._unsupported(str(why)) from why
            # Some expressions are computed for a few rows at a time only.
            starts = range(0, stored.num_rows, DIVIDED_ROWS_MAX)
            slices = [stored.slice(start, DIVIDED_ROWS_MAX) for start in starts]
            return pa.concat_tables([self._shown(each) for each in slices])
        names = [self._scan.shown.columns[place].lower() for place in self._every]
        made = [rows.columns[name].column(rows.count) for name in names]
        every = pa.table([*made, rows.weight], names=[*map(str, self._every), WEIGHT])
        for item in self._scan.filters:
            every = every.filter(pushdown.mask(item, every.column(str(item.column))))
        wanted = every.select([*map(str, self._scan.columns), WEIGHT])
        return wanted.rename_columns(self._kinds.names).cast(self._kinds)

    def _summed(self, table: pa.Table) -> pa.Table:
        """Sum the weights of equal rows, and drop those that cancel out."""
        if all(comparable(self._scan.shown.types[place]) for place in self._scan.columns):
            return consolidated(table)
        if not table.num_rows:
            return table
        groups = groups_of(table, range(len(self._scan.columns))).to_numpy()
        _, first, owner = np.unique(groups, return_index=True, return_inverse=True)
        weights = np.zeros(len(first), np.int64)
        np.add.at(weights, owner, table.column(WEIGHT).to_numpy())
        there = np.flatnonzero(weights)
        rows = table.take(pa.array(first[there]))
        return rows.set_column(rows.num_columns - 1, WEIGHT, pa.array(weights[there]))

    def _check_positive(self, table: pa.Table) -> None:
        if table.num_rows and pc.min(table.column(WEIGHT)).as_py() < 0:
            raise CorruptError(
                f"{self._scan.addresses[None].uri}",
                f"{self._scan.name} retracts a row that it does not have",
                hint="stepwell verify --deep shows which object is damaged",
            )

    def _empty(self, places: Sequence[int]) -> pa.Table:
        return self._schema(places).empty_table()

    def _schema(self, places: Sequence[int]) -> pa.Schema:
        fields = [self._stored.field(place) for place in places]
        return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])

    def _unsupported(self, why: str) -> InvalidError:
        return InvalidError(
            f"reading {self._scan.name} computes an expression that only Spark can compute ({why})",
            hint=f"use stepwell.read(project).to_spark(spark, {self._scan.name!r}), or read the "
            "output of a sink",
        )


def _inside(values: pa.ChunkedArray, within: Range) -> pa.ChunkedArray:
    kind = values.type
    inside: Any = pc.is_valid(values)
    if within.low is not None:
        inside = pc.and_kleene(inside, pc.greater_equal(values, pa.scalar(within.low, kind)))
    if within.high is not None:
        inside = pc.and_kleene(inside, pc.less(values, pa.scalar(within.high, kind)))
    if within.low is None:
        inside = pc.or_kleene(inside, pc.is_null(values))
    return pc.fill_null(inside, False)


def _repeated(scan: RelationScan, table: pa.Table) -> Iterator[pa.Table]:
    """Repeat each row as often as its weight says; a weight may be larger than memory."""
    rows = table.drop_columns([WEIGHT])
    weights = table.column(WEIGHT).to_numpy()
    if (weights == 1).all():
        yield from (rows.slice(at, BATCH_ROWS) for at in range(0, rows.num_rows, BATCH_ROWS))
        return
    for at in range(0, rows.num_rows, BATCH_ROWS):
        last = np.cumsum(weights[at : at + BATCH_ROWS])
        for start in range(0, int(last[-1]), BATCH_ROWS):
            copies = np.arange(start, min(start + BATCH_ROWS, int(last[-1])))
            yield rows.take(pa.array(at + last.searchsorted(copies, side="right")))
