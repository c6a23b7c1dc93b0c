"""The files sink and changes that executors write: attempts that are late, lost, or elsewhere."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.connectors import part_files
from stepwell.connectors.files_sink import FilesSink
from stepwell.connectors.writing import FileFormat
from stepwell.env import SystemEnv
from stepwell.errors import BugError, UnavailableError
from stepwell.lsm.bulk import NotInBulkError
from stepwell.lsm.large_change import run_here
from stepwell.lsm.remote_files import MapArrow
from tests.connectors.large import large
from tests.connectors.sinks import change, mark

ROWS = change(*((f"c{n % 4}", f"{n}.50", n, 1 if n % 3 else -1) for n in range(20)))


def sink(folder: Path, format: FileFormat = FileFormat.JSON, **options: int) -> FilesSink:
    return FilesSink("out", "v", SystemEnv(), path=str(folder), format=format, **options)


def names(folder: Path) -> list[str]:
    """All files and folders, except for the log."""
    found = (path.relative_to(folder) for path in folder.rglob("*"))
    return sorted(str(path) for path in found if path.parts[0] != "_stepwell")


def test_parts_together_are_what_one_file_would_be(tmp_path: Path) -> None:
    """J7: the same rows in the same order, however many parts there are."""
    sink(tmp_path / "one").write(None, mark(1), ROWS)
    whole = next((tmp_path / "one").glob("0*/part.json")).read_text()
    for rows, share, count in ((20, 1, 1), (1, 1, 20), (3, 2, 4)):
        folder = tmp_path / f"{rows}-{share}"
        sink(folder).write_bulk(None, mark(1), large(ROWS, rows=rows, share=share))
        parts = sorted(folder.glob("0*/part-*.json"))
        assert len(parts) == count
        assert "".join(part.read_text() for part in parts) == whole


@pytest.mark.parametrize("format", list(FileFormat))
def test_an_attempt_that_is_late_adds_nothing(tmp_path: Path, format: FileFormat) -> None:
    """S1: an executor was taken for lost, and its task was repeated; then it goes on."""
    late: list[Callable[[], list[bytes]]] = []

    def run(work: MapArrow, tasks: int) -> list[bytes]:
        late.append(lambda: run_here(work, tasks))
        return run_here(work, tasks)

    out = sink(tmp_path, format)
    out.write_bulk(None, mark(1), large(ROWS, rows=7, run=run))
    before = names(tmp_path)
    assert len(before) == 1 + 3 + 1
    late[0]()
    assert names(tmp_path) == before
    out.write_bulk(mark(1), mark(2), large(ROWS, rows=7))
    assert len(names(tmp_path)) == 2 * len(before)


def test_a_job_that_fails_leaves_nothing_to_readers_and_is_cleared_away(tmp_path: Path) -> None:
    """J7: rows that some tasks have written are not a part of any transaction."""

    def run(work: MapArrow, tasks: int) -> list[bytes]:
        run_here(work, tasks)
        raise UnavailableError("an executor was lost")

    out = sink(tmp_path)
    with pytest.raises(UnavailableError):
        out.write_bulk(None, mark(1), large(ROWS, run=run))
    assert all(name.startswith(".tmp-") for name in names(tmp_path))
    assert out.last() is None
    out.write_bulk(None, mark(1), large(ROWS, rows=20))
    folder = f"{1:020d}"
    assert names(tmp_path) == [
        folder,
        f"{folder}/_transaction.json",
        f"{folder}/part-00000.json",
    ]


def test_a_worker_that_does_not_see_the_folder_declines(tmp_path: Path) -> None:
    """S1: it must not write to a folder of its own, and this process can."""

    def gone(work: MapArrow, tasks: int) -> list[bytes]:
        (parts,) = tmp_path.glob(".tmp-*/parts")
        parts.rename(tmp_path / "elsewhere")
        return run_here(work, tasks)

    def other(work: MapArrow, tasks: int) -> list[bytes]:
        found = run_here(work, tasks)
        for part in tmp_path.glob(".tmp-*/parts/*"):
            part.unlink()
        return found

    out = sink(tmp_path)
    for run in (gone, other):
        with pytest.raises(NotInBulkError, match="does not see"):
            out.write_bulk(None, mark(1), large(ROWS, run=run))
        assert out.last() is None
    out.write(None, mark(1), ROWS)
    assert out.last() == mark(1)


def test_a_task_that_cannot_write_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: a full disk of an executor delays the sink, and the error names the file."""

    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(part_files, "write_pieces", full)
    with pytest.raises(UnavailableError, match=r"0-\w+\.json cannot be written: No space left"):
        sink(tmp_path).write_bulk(None, mark(1), large(ROWS))


def test_a_large_change_without_rows_is_a_bug(tmp_path: Path) -> None:
    """J7: a sink gets exactly one non-empty batch per transaction that changed its view."""
    with pytest.raises(BugError):
        sink(tmp_path).write_bulk(None, mark(1), large(ROWS.slice(0, 0)))


def test_parts_have_the_permissions_of_the_sink(tmp_path: Path) -> None:
    """J7: a private sink stays private when executors write to it."""
    sink(tmp_path, mode=0o600).write_bulk(None, mark(1), large(ROWS, rows=9))
    parts = list(tmp_path.glob("0*/part-*.json"))
    assert len(parts) == 3
    assert {part.stat().st_mode & 0o777 for part in parts} == {0o600}
