"""What `run` says while it runs: to a person, to a log, to a program."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest

from stepwell.cli.progress import LongWork, Progress
from stepwell.cli.screen import Screen
from stepwell.cli.status import _render, _without_store
from stepwell.engine.events import (
    Committed,
    FlushFailed,
    Opened,
    OpeningAt,
    Settled,
    SinkFailed,
    SourceFailed,
    Stopped,
    StoreAvailable,
    StoreUnavailable,
    TransactionAt,
    Waiting,
    Working,
)
from stepwell.engine.outages import OutageStatus
from stepwell.engine.outbox import SinkStatus
from stepwell.engine.sources import SourceStatus
from stepwell.engine.status import Status
from stepwell.errors import UnavailableError
from stepwell.model import Epoch, Position, Transaction
from stepwell.testing import ManualEnv
from tests.cli.projects import load, put_file, write_project


def committed(env: ManualEnv, number: int, rejected: int = 0, seconds: float = 0.0) -> Committed:
    tables = ("orders",) if rejected else ()
    told = Transaction(number), env.now(), 10, rejected, ("revenue",), tables
    return Committed(*told, seconds=seconds)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What went to the log, without the times that each of its lines begins with."""
    lines = capsys.readouterr().err.splitlines(keepends=True)
    timed = [re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines]
    assert all(timed), lines
    return "".join(line[20:] for line in lines)


def test_a_log_is_told_of_many_transactions_once_a_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line for each of thousands a second would bury what matters."""
    env = ManualEnv()
    with Progress(env, json=False) as progress:
        progress(Opened("x", Epoch(1), Transaction(4), 2))
        for number in range(5, 105):
            progress(committed(env, number))
        env.advance(2)
        progress.tick()
        progress(committed(env, 105, rejected=3))
        progress(Stopped(Transaction(105), 101))
    progress.end()
    assert said(capsys) == (
        "opened at transaction 4 (epoch 1), 2 transactions replayed\n"
        "transaction 5: 10 rows in\n"
        "transactions 6 to 104: 990 rows in\n"
        "transaction 105: 3 rows rejected, see orders$errors\n"
        "transaction 105: 10 rows in\n"
        "stopped at transaction 105: 101 transactions, 1,010 rows in\n"
    )


def standing(waiting: str | None, pending: int) -> Status:
    """Where a pipeline stands, as far as it matters here."""
    source = SourceStatus("files", "orders", None, None, waiting)
    sink = SinkStatus("out", "revenue", Transaction(3), pending, 0, False, None, 0.0, False)
    return Status(
        lineage="x",
        epoch=Epoch(1),
        transaction=Transaction(5),
        flushed=Transaction(0),
        position=Position(9),
        replay=Position(0),
        unflushed_bytes=0,
        open=None,
        sources=(source,),
        sinks=(sink,),
        dead_letters={},
    )


def test_what_lags_behind_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipeline that does not keep up says so, and where."""
    env = ManualEnv()
    with Progress(env, json=False) as progress:
        progress.look = lambda: standing("12 files waiting", 2)
        progress(committed(env, 1))
        env.advance(2)
        progress(committed(env, 2))
        env.advance(2)
        progress.tick()
        progress.look = lambda: standing(None, 0)
        progress(committed(env, 3))
        env.advance(2)
        progress.tick()
    assert said(capsys) == (
        "transaction 1: 10 rows in\n"
        "transaction 2: 10 rows in\n"
        "transaction 3: 10 rows in; files: 12 files waiting; sink out is 2 transactions behind\n"
    )


def test_the_speed_is_that_of_the_time_spent_on_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipeline that waits for input most of the time is not slow; and what was, is forgotten."""
    env = ManualEnv()
    progress = Progress(env, json=False)
    lines: list[str] = []
    monkeypatch.setattr(progress, "_live", object())
    monkeypatch.setattr(progress, "_line", lines.append)
    progress.tick()
    for number in range(1, 5):
        env.advance(1000)
        progress(committed(env, number, seconds=4.0))
        progress.tick()
    for number in range(5, 30):
        env.advance(1000)
        progress(committed(env, number, seconds=0.5))
        progress.tick()
    assert lines[0] == "transaction 0, 0 rows in"
    assert "transaction 4, 40 rows in, 2 rows/s" in lines
    assert lines[-1] == "transaction 29, 290 rows in, 20 rows/s"


def test_problems_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    env = ManualEnv()
    with Progress(env, json=False) as progress:
        progress(Settled(Transaction(3), 2, committed=False))
        progress(SinkFailed("out", Transaction(3), 1, "disk\x1b[2J full", 0.5, stops=False))
        progress(SinkFailed("out", Transaction(3), 1, "told by the error", 0.5, stops=True))
        progress(SourceFailed("files", "no such host", 2.0))
        progress(FlushFailed("no space"))
        progress(Waiting("input", "sink out takes its outbox"))
    assert said(capsys) == (
        "transaction 3 was open when the last writer ended: rolled back\n"
        "sink out did not take transaction 3, retry in 0.5 s: disk\\x1b[2J full\n"
        "source files cannot be read, retry in 2.0 s: no such host\n"
        "flush failed, nothing is lost, will be tried again: no space\n"
        "input waits until sink out takes its outbox\n"
    )


def test_a_long_phase_says_how_far_it_is_and_what_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every few seconds, however many events there are; one that is short says nothing."""
    env = ManualEnv()
    with Progress(env, json=False) as progress:
        progress(OpeningAt("claiming", 30))
        for done in range(0, 1001, 10):
            progress(OpeningAt("loading", 40, done, 1000, "row"))
            env.advance(0.125)
        for done in range(41):
            progress(OpeningAt("replaying", 50 + done, done, 40, "entry"))
            env.advance(0.015625)
        for done in range(0, 100_000, 1000):
            progress(TransactionAt(Transaction(7), done, 100_000))
            env.advance(0.0625)
        for done in range(4):
            progress(Working("compacting", done, 4, "relation"))
            env.advance(60)
    assert said(capsys) == (
        "opening: loading, 24 %, 240 of 1,000 rows, about 9.5s left\n"
        "opening: loading, 48 %, 480 of 1,000 rows, about 6.5s left\n"
        "opening: loading, 72 %, 720 of 1,000 rows, about 3.5s left\n"
        "opening: loading, 96 %, 960 of 1,000 rows, about 0.5s left\n"
        "transaction 7, 48 %, 48,000 of 100,000 rows, about 3.2s left\n"
        "transaction 7, 96 %, 96,000 of 100,000 rows, about 0.2s left\n"
        "compacting, 25 %, 1 of 4 relations, about 3m left\n"
        "compacting, 50 %, 2 of 4 relations, about 2m left\n"
        "compacting, 75 %, 3 of 4 relations, about 1m left\n"
    )


def test_a_terminal_is_shown_every_step_of_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ManualEnv()
    progress = Progress(env, json=False)
    lines: list[str] = []
    monkeypatch.setattr(progress, "_live", object())
    monkeypatch.setattr(progress, "_line", lines.append)
    progress(OpeningAt("claiming", 30))
    progress(TransactionAt(Transaction(7), 0, 10))
    progress(TransactionAt(Transaction(7), 5, 10))
    assert lines == [
        "opening: claiming, 30 %",
        "transaction 7, 0 %, 0 of 10 rows",
        "transaction 7, 50 %, 5 of 10 rows",
    ]


def test_a_program_is_not_buried_in_events_of_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = ManualEnv()
    with Progress(env, json=True) as progress:
        for done in range(100):
            progress(TransactionAt(Transaction(7), done, 100))
            env.advance(0.125)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["done"] for line in lines] == [24, 48, 72, 96]


def test_a_command_that_takes_long_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A compaction of one's own, or a push that has to open a large pipeline first."""
    env = ManualEnv()
    listen = LongWork(env)
    for done in range(5):
        listen(Working("compacting", done, 4, "relation"))
        env.advance(2)
    listen(StoreAvailable("s3://acme", 42.0))
    assert capsys.readouterr().err == (
        "compacting, 50 %, 2 of 4 relations, about 4.0s left\n"
        "compacting, 100 %, 4 of 4 relations\n"
        "s3://acme is available again, after 42s\n"
    )


def test_a_program_gets_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    env = ManualEnv()
    with Progress(env, json=True) as progress:
        progress.say("for people")
        progress(committed(env, 1))
    event = json.loads(capsys.readouterr().err)
    assert (event["event"], event["rows"], event["views"]) == ("Committed", 10, ["revenue"])


def test_a_terminal_shows_one_line_and_gets_its_cursor_back(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "project")
    put_file(folder, "a.json", [{"id": 1, "customer": "ada", "amount": "1.00"}])
    master, slave = pty.openpty()
    ended = subprocess.run(
        [sys.executable, "-m", "stepwell", "-C", str(folder), "run", "--once"],
        stderr=slave,
        timeout=60,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert ended.returncode == 0
    assert "stopped at transaction 1: 1 transaction, 1 row in" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_an_outage_is_told_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """R1: a run that stands still must say why, and until when it will wait."""
    env = ManualEnv()
    until = env.now() + timedelta(minutes=5)
    with Progress(env, json=False) as progress:
        progress(StoreUnavailable("s3://acme", env.now(), until, "503 Slow Down"))
        progress(StoreAvailable("s3://acme", 42.0))
    since, end = (f"{time.astimezone():%H:%M:%S}" for time in (env.now(), until))
    assert said(capsys) == (
        f"s3://acme unavailable since {since}, retrying until {end}: 503 Slow Down\n"
        "s3://acme is available again, after 42s\n"
    )


def test_the_status_of_a_process_whose_store_is_away_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R1: the process that runs the pipeline is asked, and knows what it waits for."""
    env = ManualEnv()
    outage = OutageStatus("s3://acme", "09:00:00Z", "09:05:00Z", "503 Slow Down")
    live = {**asdict(standing(None, 0)), "outages": [asdict(outage)], "pid": 7}
    away = UnavailableError("cannot list s3://acme: 503 Slow Down")
    project = load(write_project(tmp_path / "project"))
    _render(Screen(), _without_store(project, env, live, away))
    shown = capsys.readouterr().out
    assert "running, process 7" in shown
    told = "s3://acme unavailable since 09:00:00Z, retrying until 09:05:00Z: 503 Slow Down"
    assert told in shown
    idle = {**live, "outages": []}
    _render(Screen(), _without_store(project, env, idle, away))
    assert "the store does not answer: cannot list s3://acme" in capsys.readouterr().out
