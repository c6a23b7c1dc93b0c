"""`status` after a run that ended with an error: what it was, until a run succeeds."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from stepwell.deploy import pipeline as opened
from stepwell.deploy.last_error import LastError, last_error, note_error
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.verify import verify_deployed
from stepwell.env import SystemEnv
from stepwell.errors import ClaimedError, InvalidError
from stepwell.journal import paths
from stepwell.manifest.verify import verify
from stepwell.store.local import LocalStore
from stepwell.testing import FaultyStore, fail_at
from tests.cli.conftest import Run, snapshot
from tests.cli.projects import load, put_file, stepwell, wait, write_project

YML = """\
name: orders
store: ./state
sources:
  order_files: {table: orders, type: files, path: data/*.json, format: json, settle: 0s}
"""
SQL = """\
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE MATERIALIZED VIEW revenue AS SELECT id, 100 / amount AS share FROM orders;
"""
CANNOT = (
    "transaction 2 cannot be computed by view revenue: [DIVIDE_BY_ZERO] division by zero "
    "(rows of the transaction: 1 of orders from order_files)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project that has read one row."""
    folder = write_project(tmp_path / "project", YML, SQL)
    put_file(folder, "1.json", [{"id": 1, "amount": "2.00"}])
    with ProjectPipeline(load(folder), SystemEnv()) as pipeline:
        pipeline.run(once=True)
    return folder


def put_bad_row(folder: Path, file: str = "2.json") -> None:
    put_file(folder, file, [{"id": 2, "amount": "0.00"}])


def mend(folder: Path, file: str = "2.json") -> None:
    put_file(folder, file, [{"id": 2, "amount": "4.00"}])


def shown(run: Run, folder: Path) -> dict[str, Any] | None:
    error = json.loads(run("-C", folder, "status", "--json").stdout)["last_error"]
    assert error is None or isinstance(error, dict)
    return error


def noted(folder: Path) -> LastError | None:
    return last_error(load(folder).open_store(SystemEnv()))


def test_status_names_the_row_that_ended_a_run_until_a_run_succeeds(run: Run, folder: Path) -> None:
    """Whoever finds the pipeline stopped in the morning need not look for a log."""
    assert shown(run, folder) is None
    put_bad_row(folder)
    ended = run("-C", folder, "run", "--once")
    assert ended.exit_code == 1
    error = shown(run, folder)
    assert error is not None
    assert (error["type"], error["message"]) == ("UserCodeError", CANNOT)
    before = snapshot(folder / "state")
    text = run("-C", folder, "status").stdout
    assert f"last error  {error['time']}: {CANNOT}\n" in text
    assert snapshot(folder / "state") == before
    # Other commands that open the pipeline do not run its sources.
    assert run("-C", folder, "checkpoint", "create").exit_code == 0
    assert shown(run, folder) == error
    mend(folder)
    assert run("-C", folder, "run", "--once").exit_code == 0
    assert shown(run, folder) is None
    assert "last error" not in run("-C", folder, "status").stdout


def test_a_run_that_has_flushed_has_succeeded_however_it_ends(folder: Path) -> None:
    """Else `status` after a kill would show an error that is days old."""
    put_bad_row(folder)
    assert stepwell(folder, "run", "--once").returncode == 1
    assert noted(folder) is not None
    mend(folder)
    with ProjectPipeline(load(folder), SystemEnv()) as pipeline:
        running = threading.Thread(target=pipeline.run)
        running.start()
        try:
            wait(lambda: pipeline.status().transaction == 2, lambda: str(pipeline.status()))
            assert noted(folder) is not None, "the bad row might have come later"
            pipeline.flush()
            assert noted(folder) is None
        finally:
            pipeline.stop()
            running.join()


def test_an_error_at_the_opening_ends_a_run_too(run: Run, folder: Path) -> None:
    """The hint is kept with it."""
    (folder / "state" / "journal" / "identity.json").write_bytes(b"{}")
    assert run("-C", folder, "run", "--once").exit_code == 1
    error = noted(folder)
    assert error is not None
    assert error.type == "CorruptError"
    assert "identity.json" in error.message


def test_a_bug_is_noted_and_so_is_a_thread_that_ends_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the loop, also what Stepwell does not raise on purpose."""
    pipeline = opened.ProjectPipeline(load(folder), SystemEnv())
    with pipeline:
        pipeline._fail(RuntimeError("a thread has died"))
        with pytest.raises(RuntimeError):
            pipeline.run(once=True)
    error = noted(folder)
    assert error is not None
    assert error.message == "unexpected RuntimeError: a thread has died"
    assert error.hint == "this is a bug in Stepwell: report it"


def test_a_loop_that_was_refused_or_closed_is_no_error_of_the_pipeline(folder: Path) -> None:
    """A caller's mistake says nothing about the pipeline."""
    pipeline = ProjectPipeline(load(folder), SystemEnv())
    with pipeline:
        pipeline._running = True
        with pytest.raises(InvalidError, match="is running"):
            pipeline.run(once=True)
        pipeline._running = False
    with pytest.raises(InvalidError, match="closed"):
        pipeline.run(once=True)
    assert noted(folder) is None


def test_a_note_that_is_damaged_stops_nothing(run: Run, folder: Path) -> None:
    """It is a note for people: `verify` mentions it, and the next success removes it."""
    note = folder / "state" / paths.LAST_ERROR
    for number, damaged in enumerate((b"", b"{}", b'{"checksum":"', b"\xff" * 100)):
        file = f"2-{number}.json"
        note.write_bytes(damaged)
        assert shown(run, folder) is None
        store, env = load(folder).open_store(SystemEnv()), SystemEnv()
        (finding,) = verify_deployed(store, env, verify(store, env, deep=False)).findings
        assert paths.LAST_ERROR in finding.object
        put_bad_row(folder, file)
        assert run("-C", folder, "run", "--once").exit_code == 1
        assert shown(run, folder) is not None, "the next error replaces it"
        note.write_bytes(damaged)
        mend(folder, file)
        assert run("-C", folder, "run", "--once").exit_code == 0
        assert not note.exists()


def test_a_store_that_takes_no_note_still_lets_the_error_through(folder: Path) -> None:
    """The error matters, not the note; neither does a note begin a pipeline."""
    env = SystemEnv()
    store = load(folder).open_store(env)
    for number in range(1, 10):
        note_error(FaultyStore(store, fail_at(number, "before")), env, ValueError("x"))
    empty = LocalStore(str(folder / "empty"), env)
    note_error(empty, env, ValueError("x"))
    assert not empty.list()


def test_losing_the_pipeline_to_another_process_is_not_noted(folder: Path) -> None:
    """That process knows how the pipeline is."""
    env = SystemEnv()
    note_error(load(folder).open_store(env), env, ClaimedError("another was first"))
    assert noted(folder) is None


def test_destroying_a_pipeline_removes_the_note(run: Run, folder: Path) -> None:
    """K9: nothing of it stays, and another pipeline can begin there."""
    put_bad_row(folder)
    assert run("-C", folder, "run", "--once").exit_code == 1
    assert run("-C", folder, "destroy", "--yes").exit_code == 0
    assert not (folder / "state" / paths.LAST_ERROR).exists()
    note = folder / "state" / paths.LAST_ERROR
    note.parent.mkdir(exist_ok=True)
    note.write_bytes(b"written by a process that was slower")
    mend(folder)
    assert run("-C", folder, "run", "--once").exit_code == 0
