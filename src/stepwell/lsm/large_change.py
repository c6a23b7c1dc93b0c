"""A change set of a view that is too large for this process: rows in files, which tasks read.

    write    run a task for each share of the files, where the executors are; they return reports
    table    all rows in this process, in a memory-mapped file: for a reader that needs them

The files are those that executors wrote when they computed the change, or those of the outbox. The
object behaves like a table where only `schema`, `num_rows` and `nbytes` are asked for.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from stepwell.errors import UnavailableError, ensure
from stepwell.lsm.remote_files import Batches, MapArrow
from stepwell.manifest.manifest import Run

SHARE_ROWS = 500_000
"""About how many rows one task handles, unless a file has more."""
BULK_ROWS = 1_000_000
"""The usual number of rows from which executors write a change set to sinks."""

RunTasks = Callable[[MapArrow, int], list[bytes]]
"""Calls a function with the numbers of tasks below a count, each at least once, and returns one
report for each task, in any order."""
ReadFile = Callable[[Run], Iterator[pa.RecordBatch]]
"""Reads the rows of a file. If tasks run in other processes, it is pickled."""


class Work(Protocol):
    """Handles the rows of one task. It is pickled, and may be called several times for a task."""

    def __call__(self, task: int, rows: Iterator[pa.Table]) -> Any:
        """The report on these rows, which is pickled."""


class LargeChange:
    """The change set of a view, in files."""

    def __init__(
        self,
        schema: pa.Schema,
        files: Sequence[Run],
        read: ReadFile,
        run: RunTasks,
        held: object = None,
    ) -> None:
        """`schema` has the view's columns, then the weight; files have them in this order, under
        any name. `held` keeps the files alive."""
        self.schema = schema
        self.num_rows = sum(file.rows for file in files)
        self.nbytes = sum(file.size for file in files)
        self._shares = _shares(files)
        self._read = read
        self._run = run
        self._held = held

    @property
    def column_names(self) -> list[str]:
        return list(self.schema.names)

    @property
    def tasks(self) -> int:
        return len(self._shares)

    def moved(self, files: Sequence[Run], read: ReadFile) -> LargeChange:
        """The same change in other files."""
        return LargeChange(self.schema, files, read, self._run)

    def write(self, work: Work, *, here: bool = False) -> list[Any]:
        """Let executors handle all rows; return the reports in the order of tasks.

        A task that failed was repeated, and its earlier attempt may still be running. `here`: let
        this process do it.
        """
        task = _working(self._shares, self._read, self.schema, work)
        run = run_here if here else self._run
        reports = dict(pickle.loads(data) for data in run(task, self.tasks))
        ensure(sorted(reports) == list(range(self.tasks)), "every task reports")
        return [reports[task] for task in range(self.tasks)]

    def table(self) -> pa.Table:
        """All rows, in a memory-mapped file."""
        files = [file for share in self._shares for file in share]
        rows = (rows for file in files for rows in _rows(self._read(file), self.schema))
        return map_rows(rows, self.schema, None)


def as_table(change: AnyChange) -> pa.Table:
    """The rows of a change set in this process."""
    return change.table() if isinstance(change, LargeChange) else change


AnyChange: TypeAlias = "pa.Table | LargeChange"


def run_here(work: MapArrow, tasks: int) -> list[bytes]:
    """Run tasks in this process, one after another."""
    numbers = [pa.record_batch([pa.array([n], pa.int64())], ["id"]) for n in range(tasks)]
    return [batch.column(0)[0].as_py() for batch in work(numbers)]


def map_rows(pieces: Iterable[pa.Table], schema: pa.Schema, folder: Path | None) -> pa.Table:
    """Rows in a memory-mapped file.

    The file has no name, and takes disk space for as long as the table is referenced.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix="stepwell-change-", dir=folder) as file:
            with pa.OSFile(file.name, "wb") as out, pa.ipc.new_file(out, schema) as writer:
                for piece in pieces:
                    writer.write_table(piece)
            with pa.memory_map(file.name) as source:
                return pa.ipc.open_file(source).read_all()
    except OSError as error:
        raise UnavailableError(
            f"a large change cannot be kept in {folder or tempfile.gettempdir()}: {error}",
            hint="nothing was changed: make room on that disk, and try again",
            not_applied=True,
        ) from error


def _shares(files: Sequence[Run]) -> tuple[tuple[Run, ...], ...]:
    shares: list[list[Run]] = []
    rows = SHARE_ROWS
    for file in files:
        if not file.rows:
            continue
        if rows >= SHARE_ROWS:
            shares.append([])
            rows = 0
        shares[-1].append(file)
        rows += file.rows
    return tuple(map(tuple, shares))


def _working(
    shares: Sequence[Sequence[Run]], read: ReadFile, schema: pa.Schema, work: Work
) -> MapArrow:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                rows = (rows for file in shares[task] for rows in _rows(read(file), schema))
                report = pickle.dumps((task, work(task, rows)))
                yield pa.RecordBatch.from_arrays([pa.array([report])], names=["report"])

    return run


def _rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    for batch in batches:
        rows = pa.Table.from_batches([batch]).select(range(len(schema)))
        yield rows.rename_columns(schema.names).cast(schema)
