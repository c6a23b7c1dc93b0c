"""Bulk input: many rows that executors decode and store, so that the driver never holds them.

    decode    each task decodes its share of the input into chunks: run files, sorted by key, in
              which no key occurs twice
    merge     if chunks share keys, they are sorted together, and the last row of each key stays
    staged    the files are one run: a put of every key, or every row of a bag, with weight one

A task returns one report: counts, rejected records, what the source has to record, and the checksum
of its rows. Rows are checksummed as the source decoded them, so that the sum is that of the same
rows decoded in one process (`engine/payload`). `decoding` and `merging` return functions for
`DataFrame.mapInArrow`, as in `remote_files`; `execution/spark/bulk` runs them.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stepwell.env import SystemEnv
from stepwell.errors import StepwellError, TruncatedError
from stepwell.journal import paths
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.canonical import canonical
from stepwell.lsm.checksum import add_checksums, checksum_rows
from stepwell.lsm.dead_letter import BadRow
from stepwell.lsm.equality import only_last
from stepwell.lsm.remote_files import Batches, MapArrow
from stepwell.lsm.run_file import FILE_ROWS, PARQUET, ROW_GROUP_ROWS, WEIGHT
from stepwell.lsm.staged import StagedRows
from stepwell.lsm.values import comparable
from stepwell.manifest.manifest import Run
from stepwell.model import NO_CHECKSUM, Checksum, checksum
from stepwell.plan.types import contains_map_or_variant
from stepwell.store.address import Address, open_address
from stepwell.store.sealed import Json

CHUNK_BYTES = 256 * 1024 * 1024
"""A chunk ends at this size, or at `FILE_ROWS` rows: a task holds one in memory."""
BAD_ROWS_MAX = 10_000
"""The driver holds the rejected records of a bulk read, so there must not be more of them."""
REPORT = "report binary"
"""The column of the reports."""
CHUNK = "n"
"""The column with a chunk's number while chunks are merged: the order of the rows of one key."""
_BATCH_ROWS = 32 * 1024


class NotInBulkError(StepwellError):
    """Some input cannot be read in bulk. It has to be polled, or read, step by step."""


class MisalignedError(NotInBulkError):
    """A task did not end where the next one begins, because a record crosses that place."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Some decoded records, in order."""

    rows: pa.Table
    """The rows to put, with the columns of the table."""
    read: int
    """Number of records, rejected ones included."""
    bad: tuple[BadRow, ...] = ()
    note: Json = None
    """What the source needs to know about them."""


class Decode(Protocol):
    """Decodes input in tasks, in any process. It is pickled."""

    @property
    def tasks(self) -> int:
        """The number of tasks. Their order is the order of the rows."""

    def __call__(self, task: int) -> Iterator[Decoded]:
        """Decode the input of one task; raises `NotInBulkError` if it cannot be read in bulk."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table, and the positions of its key; empty for a bag."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[int, ...]

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.types)

    @property
    def supported(self) -> bool:
        """Whether rows of one key can be found by sorting, and Spark can move the others."""
        if not self.key:
            return True
        return all(comparable(self.types[place]) for place in self.key) and not any(
            map(contains_map_or_variant, self.types)
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Where executors write files: a folder that they share with the driver, or a store."""

    folder: str | None = None
    address: Address | None = None

    def write(self, table: pa.Table) -> Run:
        out = pa.BufferOutputStream()
        pq.write_table(table, out, row_group_size=ROW_GROUP_ROWS, **PARQUET)
        body = out.getvalue()
        id = SystemEnv().new_id()
        if self.address is not None:
            data = body.to_pybytes()
            path = paths.spill(id)
            open_address(self.address, SystemEnv()).put_new(path, data)
            return Run("", path, len(data), table.num_rows, checksum([data]))
        file = Path(str(self.folder), f"part-{id}.parquet")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        return Run("", str(file), body.size, table.num_rows, NO_CHECKSUM)

    def read(self, run: Run) -> Iterator[pa.RecordBatch]:
        source: object = run.path
        if self.address is not None:
            found = open_address(self.address, SystemEnv()).get(run.path)
            if found is None:
                raise TruncatedError(f"{self.address.uri}/{run.path}", "missing")
            source = pa.BufferReader(found.data)
        with pq.ParquetFile(source, page_checksum_verification=True) as opened:
            yield from opened.iter_batches(_BATCH_ROWS, use_threads=False)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A file of rows sorted by key, with its first and last key; None if they are not plain."""

    file: Run
    first: tuple[object, ...] | None = None
    last: tuple[object, ...] | None = None


@dataclass(slots=True)
class Report:
    """What a task did."""

    task: int
    chunks: list[Chunk] = field(default_factory=list)
    checksum: Checksum = NO_CHECKSUM
    """The sum of the rows of each chunk."""
    read: int = 0
    bad: list[BadRow] = field(default_factory=list)
    notes: list[Json] = field(default_factory=list)
    declined: str | None = None
    """Why the input cannot be read in bulk, if it cannot."""
    misaligned: bool = False
    """Whether that is a `MisalignedError`."""


@dataclass(frozen=True, slots=True)
class Told:
    """The rejected records of a task, and what the source has to record, in order."""

    bad: tuple[BadRow, ...]
    notes: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """The result of a bulk read: the rows in files, and everything else in memory."""

    rows: StagedRows | None
    """None if there are none."""
    read: int
    """Number of records, rejected ones included."""
    tasks: tuple[Told, ...]
    """For each task."""

    @classmethod
    def of(cls, rows: StagedRows | None, reports: Sequence[Report]) -> Staged:
        """The result, from the reports in the order of tasks."""
        tasks = tuple(Told(tuple(report.bad), tuple(report.notes)) for report in reports)
        return cls(rows, sum(report.read for report in reports), tasks)


class Bulk(Protocol):
    """Stages bulk input of the tables of an executor."""

    def accepts(self, table: str) -> bool:
        """Whether the rows of a table can be staged."""

    def stage(self, table: str, decode: Decode) -> Staged:
        """Decode and store rows. Nothing refers to them until they are executed and applied.

        Raises `NotInBulkError`, or what decoding raises.
        """


def decoding(decode: Decode, layout: Layout, target: Target) -> MapArrow:
    """Runs the tasks whose numbers come in, and returns their reports."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield _as_batch(decode_task(decode, task, layout, target))

    return run


def decode_task(decode: Decode, task: int, layout: Layout, target: Target) -> Report:
    """Decode one task and write its chunks."""
    report = Report(task)
    pending: list[pa.Table] = []
    try:
        for found in decode(task):
            report.read += found.read
            report.bad += found.bad
            report.notes.append(found.note)
            if len(report.bad) > BAD_ROWS_MAX:
                report.declined = _TOO_MANY
                return report
            if found.rows.num_rows:
                pending.append(found.rows)
            if _full(pending):
                _write_chunk(report, pa.concat_tables(pending), layout, target)
                pending = []
        if pending:
            _write_chunk(report, pa.concat_tables(pending), layout, target)
    except NotInBulkError as declined:
        report.declined = declined.message
        report.misaligned = isinstance(declined, MisalignedError)
    return report


_TOO_MANY = f"it has more than {BAD_ROWS_MAX:,} records that are not rows of the table"


def _full(pending: Sequence[pa.Table]) -> bool:
    rows: int = sum(table.num_rows for table in pending)
    size: int = sum(table.nbytes for table in pending)
    return rows >= FILE_ROWS or size >= CHUNK_BYTES


def _write_chunk(report: Report, rows: pa.Table, layout: Layout, target: Target) -> None:
    first = last = None
    if layout.key:
        if not _rises(rows, layout.key):
            rows = only_last(rows, layout.key)
            rows = rows.sort_by([(rows.column_names[place], "ascending") for place in layout.key])
        first, last = _key_at(rows, layout.key, 0), _key_at(rows, layout.key, rows.num_rows - 1)
    report.checksum = add_checksums([report.checksum, checksum_rows(rows)])
    report.chunks.append(Chunk(target.write(stored(rows, layout)), first, last))


def stored(rows: pa.Table, layout: Layout) -> pa.Table:
    """Rows of a table as a run holds them: c0, c1, ... and weight one."""
    arrays = [*rows.columns, pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)]
    return canonical(pa.table(arrays, names=layout.schema.names).cast(layout.schema))


def _rises(rows: pa.Table, key: Sequence[int]) -> bool:
    """Whether every key is greater than the one before."""
    tied: pa.ChunkedArray | None = None
    rises: pa.ChunkedArray | None = None
    for place in key:
        column = rows.column(place).combine_chunks()
        less, same = pc.less(column[:-1], column[1:]), pc.equal(column[:-1], column[1:])
        rises = less if tied is None else pc.or_(rises, pc.and_(tied, less))
        tied = same if tied is None else pc.and_(tied, same)
    if rises is None or rises.null_count:
        return False  # NULL is neither less nor greater.
    return bool(pc.all(rises).as_py())


def _key_at(rows: pa.Table, key: Sequence[int], at: int) -> tuple[object, ...] | None:
    values = []
    for place in key:
        value = rows.column(place)[at]
        if pa.types.is_temporal(value.type):
            # Python's dates and times end with the year 9999.
            value = value.cast(pa.int32() if value.type.bit_width == 32 else pa.int64())
        values.append(value.as_py())
    return None if None in values else tuple(values)


def in_key_order(chunks: Sequence[Chunk]) -> tuple[Chunk, ...] | None:
    """The chunks in the order of their keys; None if two may share a key."""
    if len(chunks) < 2:
        return tuple(chunks)
    ends = [(chunk.first, chunk.last, chunk) for chunk in chunks]
    if any(first is None or last is None for first, last, _ in ends):
        return None
    ends.sort(key=lambda end: end[0] or ())
    for (_, last, _), (first, _, _) in itertools.pairwise(ends):
        if not (last or ()) < (first or ()):
            return None
    return tuple(chunk for _, _, chunk in ends)


def numbered(target: Target, chunks: Sequence[Chunk], layout: Layout) -> MapArrow:
    """Reads the chunks whose numbers come in, with that number as the last column."""
    schema = layout.schema.append(pa.field(CHUNK, pa.int64()))

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in target.read(chunks[number].file):
                    numbers = pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)
                    table = pa.Table.from_arrays([*rows.columns, numbers], schema=schema)
                    yield from table.to_batches()

    return run


def merging(layout: Layout, target: Target) -> MapArrow:
    """Writes incoming rows, sorted by key and chunk, without those that a later chunk replaces."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        report = Report(0)
        pending: list[pa.Table] = []
        for batch in batches:
            table = pa.Table.from_batches([batch]).drop_columns([CHUNK]).cast(layout.schema)
            if table.num_rows:
                pending.append(table)
            if _full(pending):
                rows = _last_of_each(pa.concat_tables(pending), layout.key)
                # The key of the last row may go on in the next batch.
                pending = [rows.slice(rows.num_rows - 1)]
                _write_merged(report, rows.slice(0, rows.num_rows - 1), layout, target)
        if pending:
            rows = _last_of_each(pa.concat_tables(pending), layout.key)
            _write_merged(report, rows, layout, target)
        yield _as_batch(report)

    return run


def _last_of_each(rows: pa.Table, key: Sequence[int]) -> pa.Table:
    """The last of adjacent rows with one key."""
    same: pa.Array | None = None
    for place in key:
        column = rows.column(place).combine_chunks()
        one, other = column[:-1], column[1:]
        both_null = pc.and_(pc.is_null(one), pc.is_null(other))
        equal = pc.or_(pc.fill_null(pc.equal(one, other), False), both_null)
        same = equal if same is None else pc.and_(same, equal)
    return rows.filter(pa.concat_arrays([pc.invert(same), pa.array([True])]))


def _write_merged(report: Report, rows: pa.Table, layout: Layout, target: Target) -> None:
    if not rows.num_rows:
        return
    named = rows.drop_columns([WEIGHT]).rename_columns(list(layout.names))
    report.checksum = add_checksums([report.checksum, checksum_rows(named)])
    report.chunks.append(Chunk(target.write(rows)))


def in_task_order(reports: Iterable[Report]) -> tuple[Report, ...]:
    """The reports in the order of the input; raises `NotInBulkError` if one task did."""
    ordered = tuple(sorted(reports, key=lambda report: report.task))
    # A task that began inside of a record may have found anything wrong.
    for report in sorted(ordered, key=lambda report: not report.misaligned):
        if report.declined is not None:
            raise (MisalignedError if report.misaligned else NotInBulkError)(report.declined)
    if sum(len(report.bad) for report in ordered) > BAD_ROWS_MAX:
        raise NotInBulkError(_TOO_MANY)
    return ordered


def _as_batch(report: Report) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)])], names=["report"])


def report_in(data: bytes | bytearray) -> Report:
    """A report that a task returned."""
    found = pickle.loads(data)
    if not isinstance(found, Report):
        raise TypeError("a task returns a report")
    return found
