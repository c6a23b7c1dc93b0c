"""`stepwell demo`: two real processes, and a verdict that can be negative."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from stepwell.cli import demo
from stepwell.demo import crash, race
from stepwell.demo.race import Writer, judge
from tests.cli.conftest import Run


def writers() -> tuple[Writer, Writer]:
    """A appended three rows and was fenced, B two and closed."""
    a = Writer("A", epoch=1, acknowledged=[1, 2, 3], fenced={"row": 4})
    b = Writer("B", epoch=2, acknowledged=[1, 2], replayed=3, closed=True)
    return a, b


JOURNAL = [("A", 1), ("A", 2), ("A", 3), ("B", 1), ("B", 2)]


def test_two_processes_race_and_nothing_is_lost(tmp_path: Path) -> None:
    """F3: the message of the writer that lost names who took over, and what was not written."""
    ended = subprocess.run(
        [sys.executable, "-m", "stepwell", "demo"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    b_pid = next(line for line in lines if line.startswith("B  pid ")).split()[2]
    error = next(line.strip() for line in lines if "error:" in line)
    assert error.startswith(f"error: another writer took over file://{tmp_path}/stepwell-demo-")
    assert f"(epoch 2, host {os.uname().nodename}, pid {b_pid}); entry " in error
    assert error.endswith(" of epoch 1 was not written")
    assert "hint: stop this process: the new writer has everything" in ended.stdout
    assert "chain  intact" in ended.stdout
    assert "Nothing was lost, and nothing was written twice." in lines
    assert "BROKEN" not in ended.stdout
    assert "Next:" in lines
    assert os.listdir(tmp_path) == [], "the temporary directory is gone"


def test_the_store_is_kept_on_request_and_can_be_inspected(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2, F5: each writer left a barrier, and the rows of both are in one order."""
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    ended = run("demo", "--keep", "--json")
    assert ended.exit_code == 0, ended.stderr
    shown = json.loads(ended.stdout)
    assert shown["holds"] is True
    a, b = shown["writers"]
    assert (a["epoch"], b["epoch"]) == (1, 2)
    assert len(a["acknowledged"]) >= race.ROWS_BEFORE
    assert len(b["acknowledged"]) == race.ROWS_AFTER
    assert b["replayed"] == len(a["acknowledged"])
    again = json.loads(run("inspect", "journal", shown["directory"], "--all", "--json").stdout)
    assert again == shown["journal"]
    kinds = [(entry["epoch"], entry["kind"]) for entry in again["entries"]]
    rows_of_a = len(a["acknowledged"])
    assert kinds == (
        [(1, "barrier")] + [(1, "step")] * rows_of_a + [(2, "barrier")] + [(2, "step")] * 10
    )


def test_a_broken_promise_exits_1(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demo that cannot fail shows nothing."""
    read_rows = race.read_rows
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(race, "read_rows", lambda *given: read_rows(*given)[:-1])
    ended = run("demo")
    assert ended.exit_code == 1
    assert "BROKEN  " in ended.stdout
    assert "but not in the journal: row 10 of B" in ended.stdout
    assert "A guarantee was violated." in ended.stdout


def test_what_holds_is_found_to_hold() -> None:
    """The verdict on a right journal."""
    assert [finding.holds for finding in judge(*writers(), JOURNAL)] == [True] * 6


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (JOURNAL[1:], "5 rows were acknowledged, but not in the journal: row 1 of A"),
        ([*JOURNAL, ("B", 2)], "1 of them twice"),
        ([("A", 2), ("A", 1), *JOURNAL[2:]], "in the order of acknowledgement, A's before B's"),
        ([*JOURNAL[:2], ("B", 1), ("A", 3), ("B", 2)], "in the order of acknowledgement"),
        ([*JOURNAL[:3], ("A", 4), *JOURNAL[3:]], "besides them: row 4 of A"),
        ([], "5 rows were acknowledged, but not in the journal"),
    ],
)
def test_a_row_lost_repeated_moved_or_added_is_found(
    rows: list[tuple[str, int]], complaint: str
) -> None:
    """A verdict that is always good is worth nothing."""
    broken = [finding.text for finding in judge(*writers(), rows) if not finding.holds]
    assert any(complaint in text for text in broken), broken


def test_a_writer_that_was_not_fenced_is_found() -> None:
    """F3: two writers that both go on are the very thing that must not be."""
    a, b = writers()
    a.fenced = None
    assert [f.text for f in judge(a, b, JOURNAL) if not f.holds] == ["A was fenced, B was not"]


def test_a_successor_that_did_not_replay_everything_is_found() -> None:
    """What was acknowledged and not replayed is lost to the next writer."""
    a, b = writers()
    b.replayed = 2
    broken = [finding.text for finding in judge(a, b, JOURNAL) if not finding.holds]
    assert broken == ["B replayed 2 of A's 3 rows before it served"]


def test_a_writer_that_dies_is_named_with_what_it_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for a process that has gone would be a silent hang."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'cannot start' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(race.sys, "executable", str(broken))
    ended = run("demo")
    assert ended.exit_code == 1
    assert ended.stderr.startswith("error: writer ")
    assert ended.stderr.endswith(" of the demo failed: cannot start\n")


def test_a_pipeline_that_is_killed_half_way_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """J2, J6, J7: the view, its query recomputed, the files and the sink agree."""
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    assert demo.show_crash(keep=False, json=False)
    shown = capsys.readouterr().out
    assert "BROKEN" not in shown
    assert "Nothing was lost, and nothing was written twice." in shown
    assert "replayed" in shown
    assert os.listdir(tmp_path) == [], "the temporary directory is gone"


GROUP = ("ada", Decimal("1.00"), 1)
GOOD = crash.Story(
    3, "opened at transaction 2 (epoch 2), 1 transaction replayed", 2, *[(GROUP,)] * 4, (1, 2)
)


@pytest.mark.parametrize(
    "story",
    [
        replace(GOOD, killed_at=0),
        replace(GOOD, resumed="opened at transaction 0 (epoch 1)"),
        replace(GOOD, view=()),
        replace(GOOD, recomputed=()),
        replace(GOOD, by_hand=()),
        replace(GOOD, sink=()),
        replace(GOOD, delivered=(1,)),
        replace(GOOD, delivered=(2, 1)),
        replace(GOOD, delivered=(1, 2, 2)),
    ],
)
def test_a_crash_that_loses_something_would_be_noticed(story: crash.Story) -> None:
    """J7: a demo that cannot fail shows nothing."""
    assert all(finding.holds for finding in crash.judge(GOOD))
    assert not all(finding.holds for finding in crash.judge(story))
