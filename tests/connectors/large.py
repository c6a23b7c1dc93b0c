"""Changes in files, and the tasks that read them, in this process."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator

import pyarrow as pa

from stepwell.lsm.large_change import LargeChange, RunTasks, run_here
from stepwell.lsm.remote_files import MapArrow
from stepwell.manifest.manifest import Run
from stepwell.model import NO_CHECKSUM

_ROWS: dict[str, pa.Table] = {}
_NUMBERS = itertools.count()


def read(file: Run) -> Iterator[pa.RecordBatch]:
    """The rows of a file, which is only pretended."""
    yield from _ROWS[file.path].to_batches(max_chunksize=2)


def large(
    change: pa.Table, *, rows: int = 1, run: RunTasks | None = None, share: int = 1
) -> LargeChange:
    """A change as a large one, with `rows` rows a file and `share` files a task."""
    files = []
    for start in range(0, change.num_rows, rows):
        piece = change.slice(start, rows)
        name = f"file {next(_NUMBERS)}"
        _ROWS[name] = piece.rename_columns([f"c{i}" for i in range(piece.num_columns)])
        files.append(Run("", name, piece.nbytes, piece.num_rows, NO_CHECKSUM))
    made = LargeChange(change.schema, files, read, run or pickled)
    made._shares = tuple(
        tuple(files[start : start + share]) for start in range(0, len(files), share)
    )
    return made


def pickled(work: MapArrow, tasks: int) -> list[bytes]:
    """Tasks in any order, each attempted twice. Of some, the first attempt is the one that counts.

    What is sent to a task in another process can be pickled.
    """
    _check_pickled(work)
    found = run_here(work, tasks)
    again = list(reversed(run_here(work, tasks)))
    return [*found[::2], *(report for report in again if report_task(report) % 2)]


def report_task(report: bytes) -> int:
    return int(pickle.loads(report)[0])


def _check_pickled(work: MapArrow) -> None:
    for cell in work.__closure__ or ():
        if callable(cell.cell_contents):
            pickle.loads(pickle.dumps(cell.cell_contents))


def failing(fails: Callable[[int], bool]) -> RunTasks:
    """Tasks that fail after they have written: an executor was lost, and the job gave up."""

    def run(work: MapArrow, tasks: int) -> list[bytes]:
        run_here(work, tasks)
        if fails(tasks):
            raise OSError("executor lost")
        return run_here(work, tasks)

    return run
