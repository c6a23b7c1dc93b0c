"""`stepwell run` in processes of its own: interrupted, taken over, and asked by others."""

from __future__ import annotations

import itertools
import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.env import SystemEnv
from stepwell.manifest.manifest import Manifests
from tests.cli.conftest import snapshot
from tests.cli.projects import Process, load, put_file, sink_rows, stepwell, wait, write_project


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project")


@pytest.fixture
def running(folder: Path) -> Iterator[Process]:
    process = Process(folder, "run")
    process.until("running")
    yield process
    process.kill()


def order(number: int, customer: str) -> dict[str, object]:
    return {"id": number, "customer": customer, "amount": f"{number % 17}.25"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_in_good_order(
    folder: Path, running: Process, number: signal.Signals
) -> None:
    """What was begun is finished and flushed, and the shell is told by the exit code."""
    put_file(folder, "orders-1.json", [order(1, "ada")])
    running.until("transaction 1: 1 row in")
    running.send(number)
    assert running.end() == 130
    assert "stopped at transaction 1" in running.text
    assert "Traceback" not in running.text
    env = SystemEnv()
    found = Manifests(load(folder).open_store(env), env).latest()
    assert found is not None
    assert found.manifest.journal.closed
    assert found.manifest.transaction == 1


def test_a_second_runner_takes_over_and_the_first_says_so(folder: Path, running: Process) -> None:
    """F3: also one that has nothing to do ends, and names who took over."""
    second = Process(folder, "run", "--take-over")
    try:
        second.until("running")
        assert running.end() == 1
        assert "error: another writer took over" in running.text
        assert f"pid {second.pid}" in running.text
        assert "hint: stop this process" in running.text
        # The first must not have taken the socket of the second with it.
        assert f"process {second.pid}" in stepwell(folder, "status").stdout
    finally:
        second.kill()


def test_other_processes_ask_the_one_that_runs(folder: Path, running: Process) -> None:
    """None of them may fence it."""
    pushed = stepwell(folder, "push", "orders", "-", given=json.dumps(order(1, "ada")))
    assert pushed.stdout == "pushed 1 row to orders, transaction 1\n"
    asked = stepwell(folder, "query", "SELECT * FROM revenue")
    assert asked.stdout == "customer  total  n\nada        1.25  1\n"
    assert asked.stderr == "1 row as of transaction 1\n"
    status = json.loads(stepwell(folder, "status", "--json").stdout)
    assert status["state"] == "running"
    assert (status["pid"], status["epoch"], status["transaction"]) == (running.pid, 1, 1)
    assert status["sinks"][0]["view"] == "revenue"
    wrong = stepwell(folder, "query", "SELECT * FROM revenu")
    assert wrong.returncode == 1
    assert wrong.stderr == "error: there is no table or view revenu\nhint: did you mean revenue?\n"
    explained = stepwell(folder, "explain", "revenue")
    assert "nothing to explain" in explained.stderr
    running.send(signal.SIGINT)
    assert running.end() == 130


def test_a_tail_shows_changes_as_they_are_committed(folder: Path, running: Process) -> None:
    tail = Process(folder, "tail", "revenue", "--max-transactions", "2")
    tail.until("following revenue")
    numbers = itertools.count()

    def has_seen_two() -> bool:
        """Push until it has: it follows from some transaction on, and nobody says from which."""
        given = json.dumps(order(next(numbers), "ada"))
        stepwell(folder, "push", "orders", "-", given=given)
        return tail.text.count('"_w":1') >= 2

    wait(has_seen_two, lambda: tail.text)
    assert tail.end() == 0
    lines = [json.loads(line) for line in tail.text.splitlines() if line.startswith("{")]
    assert [line["_w"] for line in lines[:1]] == [1]
    assert len({line["_transaction"] for line in lines}) == 2


def test_a_tail_ends_with_the_process_it_follows(folder: Path, running: Process) -> None:
    tail = Process(folder, "tail", "revenue")
    tail.until("following revenue")
    running.send(signal.SIGTERM)
    assert running.end() == 130
    tail.end()
    assert "has ended" in tail.text or "no process on this machine runs the pipeline" in tail.text


def test_a_tail_that_is_interrupted_exits_130(folder: Path, running: Process) -> None:
    tail = Process(folder, "tail", "revenue")
    tail.until("following revenue")
    tail.send(signal.SIGINT)
    assert tail.end() == 130
    assert "Traceback" not in tail.text


def test_once_ingests_the_existing_input_and_ends(folder: Path) -> None:
    for number in range(3):
        put_file(folder, f"orders-{number}.json", [order(number, "ada")])
    ended = stepwell(folder, "run", "--once", "--json")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["transaction"] >= 1
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    assert {"Opened", "Committed", "Published", "Stopped"} <= {event["event"] for event in events}
    assert sink_rows(folder) == {("ada", "3.75", 3): 1}


def test_a_killed_process_blocks_no_other(folder: Path) -> None:
    """Its socket is still there, and its claim; neither counts."""
    process = Process(folder, "run")
    process.until("running")
    given = json.dumps(order(1, "ada"))
    assert stepwell(folder, "push", "orders", "-", given=given).returncode == 0
    process.kill()
    before = snapshot(folder / "state")
    assert "by a crash or a kill" in stepwell(folder, "status").stdout
    asked = stepwell(folder, "query", "SELECT customer, n FROM revenue", "--format", "json")
    assert asked.stdout == '{"customer":"ada","n":1}\n', "what only the journal holds is there"
    assert asked.stderr == "1 row as of transaction 1\n"
    assert snapshot(folder / "state") == before, "looking writes nothing, and claims nothing"
    pushed = stepwell(folder, "push", "orders", "-", given=json.dumps(order(2, "bob")))
    assert pushed.stdout == "pushed 1 row to orders, transaction 2\n"
    assert "stopped cleanly" in stepwell(folder, "status").stdout


def test_metrics_are_served_while_it_runs(folder: Path) -> None:
    """From the first moment, and no longer than the pipeline."""
    process = Process(folder, "run", "--metrics", "0")
    try:
        process.until("running")
        (url,) = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", process.text)
        pushed = stepwell(folder, "push", "orders", "-", given=json.dumps(order(1, "ada")))
        assert pushed.returncode == 0
        with urllib.request.urlopen(url, timeout=60) as response:
            page = response.read().decode()
        assert 'stepwell_rows_total{pipeline="orders"} 1.0\n' in page
        assert 'stepwell_source_lag{part="",pipeline="orders",source="order_files"} 0.0\n' in page
        process.send(signal.SIGTERM)
        assert process.end() == 130
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=60)
    finally:
        process.kill()


def test_an_address_of_metrics_that_is_taken_fences_nobody(folder: Path, running: Process) -> None:
    """A mistake in the command line must not stop the process that does its work."""
    failed = stepwell(folder, "run", "--take-over", "--metrics", "256.0.0.1:9464")
    assert failed.returncode == 1
    assert "cannot listen on 256.0.0.1:9464" in failed.stderr
    assert f"process {running.pid}" in stepwell(folder, "status").stdout
