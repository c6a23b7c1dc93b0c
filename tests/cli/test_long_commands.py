"""Commands that open or load a pipeline themselves: they report progress and outages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.cli import progress
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError
from stepwell.store import retry
from stepwell.store.local import LocalStore
from tests.cli.conftest import Run
from tests.cli.projects import SQL, load, put_file, write_project

MORE = "CREATE MATERIALIZED VIEW n AS SELECT COUNT(*) AS n FROM orders;\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pipeline with a checkpoint and a transaction after it; whatever happens is long."""
    made = write_project(tmp_path / "project")
    put_file(made, "a.json", [{"id": 1, "customer": "ada", "amount": "1.00"}])
    with ProjectPipeline(load(made), SystemEnv()) as pipeline:
        pipeline.run(once=True)
    abandoned = ProjectPipeline(load(made), SystemEnv())
    abandoned.push("orders", [{"id": 2, "customer": "bob", "amount": "2.00"}])
    abandoned._session.abandon(UnavailableError("killed"))
    monkeypatch.setattr(progress, "_PHASE_S", 0.0)
    monkeypatch.setattr(retry, "TELL_S", 0.0)
    monkeypatch.chdir(made)
    return made


def fail_once(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Fail the first read of an object whose path contains this."""
    get, failed = LocalStore.get, []

    def flaky(self: LocalStore, path: str) -> object:
        if part in path and not failed:
            failed.append(path)
            raise UnavailableError("503 Slow Down", not_applied=True)
        return get(self, path)

    monkeypatch.setattr(LocalStore, "get", flaky)


def check(said: str) -> None:
    assert "opening: replaying" in said
    assert "unavailable since" in said
    assert "503 Slow Down" in said
    assert "is available again" in said


def test_restore_reports_progress_and_outages(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, "runs/")
    ended = run("restore", "--transaction", "1", "--confirm")
    assert ended.exit_code == 0, ended.stderr
    check(ended.stderr)


def test_deploy_without_a_running_process_reports_progress_and_outages(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pipeline.sql").write_text(SQL + MORE)
    fail_once(monkeypatch, "runs/")
    ended = run("deploy", "--yes")
    assert ended.exit_code == 0, ended.stderr
    check(ended.stderr)


def test_query_reports_progress_and_outages(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, "runs/")
    ended = run("query", "SELECT n FROM revenue ORDER BY n")
    assert ended.exit_code == 0, ended.stderr
    assert "2 rows as of transaction 2" in ended.stderr
    check(ended.stderr)


def test_a_transaction_that_opens_the_pipeline_reports_progress(run: Run, folder: Path) -> None:
    (folder / "more.json").write_text('{"id": 3}\n')
    ended = run("transaction", "orders=more.json")
    assert ended.exit_code == 0, ended.stderr
    assert "opening: replaying" in ended.stderr
