"""`--log-level` and `--log-format`: on standard error, a line a record, and only when asked for."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli import logs
from stepwell.cli.choices import LogFormat, LogLevel
from tests.cli.conftest import Run
from tests.cli.projects import SQL, put_file, write_project

ROW = {"id": 1, "customer": "ada", "amount": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_project(tmp_path / "orders")
    put_file(folder, "a.json", [ROW])
    return folder


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    """What a command configures ends with its process; here the process goes on."""
    yield
    logs.configure(None, None)


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_parse_and_carry_the_fields(run: Run, folder: Path) -> None:
    """A log collector parses every line, and searches by pipeline and transaction."""
    ended = run("-C", folder, "run", "--once", "--log-format", "json", "--log-level", "debug")
    assert (ended.exit_code, ended.stdout) == (0, ""), "a log is not data"
    found = records(ended.stderr)
    assert all({"time", "level", "message", *logs.FIELDS} <= set(record) for record in found)
    (committed,) = [record for record in found if record.get("event") == "Committed"]
    assert (committed["pipeline"], committed["epoch"]) == ("orders", 1)
    assert (committed["transaction"], committed["level"]) == (1, "info")
    assert committed["details"]["rows"] == 1
    assert {"debug", "info"} <= {record["level"] for record in found}
    assert any("nothing is deployed yet" in record["message"] for record in found)


@pytest.mark.parametrize("first", [True, False])
def test_the_options_stand_before_the_command_or_after_it(
    run: Run, folder: Path, first: bool
) -> None:
    """As every global option does."""
    options = ("--log-level", "info")
    before, after = (options, ()) if first else ((), options)
    ended = run("-C", folder, *before, "run", "--once", *after)
    assert ended.exit_code == 0
    (line,) = [line for line in ended.stderr.splitlines() if "committed transaction 1" in line]
    assert " INFO orders epoch 1 transaction 1: " in line
    assert "DEBUG" not in ended.stderr


def test_a_level_leaves_out_what_is_below_it(run: Run, folder: Path) -> None:
    """Rejected rows are worth a warning, a transaction that went well is not."""
    put_file(folder, "b.json", [{"id": "x"}])
    ended = run("-C", folder, "run", "--once", "--log-level", "warning", "--log-format", "json")
    (record,) = records(ended.stderr)
    assert record["level"] == "warning"
    assert "rejected" in record["message"]


def test_without_the_options_nothing_is_logged(run: Run, folder: Path) -> None:
    """What a command tells a person stays as it is."""
    ended = run("-C", folder, "run", "--once")
    assert "INFO" not in ended.stderr
    assert "stopped at transaction 1" in ended.stderr
    assert logs.configured() is None


def test_what_sqlglot_logs_is_not_shown(tmp_path: Path) -> None:
    """Its remarks came before the error, and Python prints those that nobody handles."""
    folder = write_project(tmp_path / "project", sql=f"{SQL}CREATE VIEW v AS EXPLAIN SELECT 1;")
    command = [sys.executable, "-m", "stepwell", "-C", str(folder), "validate"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("error: pipeline.sql:4:18: v: EXPLAIN is not part of a")


def test_data_stays_alone_on_standard_output(run: Run, folder: Path) -> None:
    """A log among the rows would break whatever reads them."""
    run("-C", folder, "run", "--once")
    quiet = run("-C", folder, "query", "SELECT * FROM orders", "--format", "csv")
    logged = run(
        *("-C", folder, "--log-level", "debug"),
        *("query", "SELECT * FROM orders", "--format", "csv"),
    )
    assert quiet.stdout == logged.stdout != ""


def test_an_error_is_a_json_line_too(run: Run, folder: Path) -> None:
    """The line that matters most must not be the one that cannot be parsed."""
    ended = run("-C", folder, "--log-format", "json", "status", "--store", folder / "nowhere")
    assert ended.exit_code == 1
    ended = run("-C", folder, "--log-format", "json", "query", "DROP TABLE orders")
    (record,) = records(ended.stderr)
    assert (ended.exit_code, record["level"]) == (1, "error")
    assert record["details"]["type"] == "SqlError"
    assert record["details"]["hint"]


def test_a_wrong_level_is_a_usage_error(run: Run, folder: Path) -> None:
    """A misspelt level must not silence the log."""
    ended = run("-C", folder, "run", "--log-level", "loud")
    assert ended.exit_code == 2
    assert "loud" in ended.stderr


def test_records_of_others_and_tracebacks_are_written_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A record that no pipeline has made has no fields; a line break must not make two records."""
    logs.configure(LogLevel.INFO, LogFormat.JSON)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("stepwell.other").exception("first\nsecond")
    (record,) = records(capsys.readouterr().err)
    assert record["message"] == "first\nsecond"
    assert "ValueError: two" in record["traceback"]
    assert record["pipeline"] is None
    logs.configure(LogLevel.INFO, None)
    logging.getLogger("stepwell.other").info("first\nsecond")
    assert capsys.readouterr().err.count("\n") == 1
