"""`stepwell test`: how the data fares in its tests, with and without a process that runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.env import SystemEnv
from tests.cli.conftest import Run
from tests.cli.projects import YML, Process, load, put_file, write_project

TESTS = """\
tests:
  known: {view: revenue, not_null: customer}
  small: {query: SELECT * FROM revenue WHERE total > 100}
"""


@pytest.fixture
def folder(tmp_path: Path, run: Run) -> Path:
    """A pipeline with one good customer, and a test that fails on the other one."""
    made = write_project(tmp_path / "project", YML + TESTS)
    put_file(made, "a.json", [{"id": 1, "customer": "ada", "amount": "1.50"}])
    put_file(made, "b.json", [{"id": 2, "customer": None, "amount": "2.00"}])
    ended = run("-C", made, "run", "--once")
    assert ended.exit_code == 0, ended.stderr
    assert "1 new violation of data test known, see known_violations" in ended.stderr
    return made


def test_a_violation_is_exit_code_1_and_named(run: Run, folder: Path) -> None:
    """What a scheduler sees is the exit code; what a person sees is where to look."""
    ended = run("-C", folder, "test")
    assert ended.exit_code == 1
    assert "fails, see known_violations" in ended.stdout
    assert "1 test passes, 1 test fails as of transaction 1" in ended.stderr
    passing = run("-C", folder, "test", "small")
    assert (passing.exit_code, "passes" in passing.stdout) == (0, True)
    shown = run("-C", folder, "test", "--rows", "5")
    assert "known:" in shown.stdout
    assert "2.00" in shown.stdout


def test_json_holds_the_counts_and_the_rows(run: Run, folder: Path) -> None:
    """One document, also with rows in it."""
    ended = run("-C", folder, "test", "--rows", "5", "--json")
    document = json.loads(ended.stdout)
    known, small = document["tests"]
    assert (known["name"], known["violations"], known["on_violation"]) == ("known", 1, "warn")
    assert known["rows"] == [{"customer": None, "total": 2.0, "n": 1}]
    assert (small["violations"], small["rule"], "rows" in small) == (0, "query", False)


def test_status_shows_the_tests(run: Run, folder: Path) -> None:
    """A person who looks at the pipeline sees that its data is bad."""
    ended = run("-C", folder, "status")
    assert "tests     1 of 2 pass; known has 1 violation, see known_violations" in ended.stdout


def test_transactions_above_the_manifest_count(run: Run, folder: Path) -> None:
    """A crash leaves them in the journal only: the count is that of all of them."""
    pipeline = ProjectPipeline(load(folder), SystemEnv())
    pipeline.push("orders", [{"id": 3, "customer": "eve", "amount": 500}])
    del pipeline  # Nothing is closed, as after a crash.
    ended = run("-C", folder, "test", "small", "--json")
    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["tests"][0]["violations"] == 1


def test_a_process_that_runs_the_pipeline_answers(run: Run, folder: Path) -> None:
    """The same counts and rows come over the endpoint."""
    process = Process(folder, "run")
    try:
        process.until("opened at")
        ended = run("-C", folder, "test", "--rows", "1", "--json")
        assert ended.exit_code == 1, ended.stderr
        assert json.loads(ended.stdout)["tests"][0]["rows"][0]["n"] == 1
    finally:
        process.kill()


def test_a_wrong_name_is_told(run: Run, folder: Path, tmp_path: Path) -> None:
    """A test that is not there does not pass."""
    ended = run("-C", folder, "test", "knwon")
    assert ended.exit_code == 1
    assert "there is no data test knwon" in ended.stderr
    assert "did you mean known" in ended.stderr
    bare = write_project(tmp_path / "bare")
    ended = run("-C", bare, "test")
    assert ended.exit_code == 1
    assert "has no data tests" in ended.stderr
