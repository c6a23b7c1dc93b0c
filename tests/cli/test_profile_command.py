"""`stepwell profile`: asks the process that runs the pipeline, and shows sums by phase and view."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.endpoint.server import Endpoint
from stepwell.env import SystemEnv
from stepwell.execution.executor import Executed, ExecutorFactory
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import Letters
from stepwell.lsm.profiler import ViewProfile
from tests.cli.conftest import Run
from tests.cli.projects import load, write_project


class ProfiledExecutor(ReferenceExecutor):
    """Says how long its view took."""

    def execute(
        self, changes: Mapping[str, Change], time: datetime, letters: Letters | None = None
    ) -> Executed:
        profile = ViewProfile(0.001, 0.01, {"look-ups": 0.004, "joins": 0.006}, 3, 1)
        return replace(super().execute(changes, time, letters), profile_of={"revenue": profile})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose commands find the socket of a pipeline of this process."""
    # Not below tmp_path, which is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="sw") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        yield write_project(tmp_path / "project")
        monkeypatch.undo()


@pytest.fixture
def pipeline(folder: Path) -> Iterator[ProjectPipeline]:
    project = load(folder)

    def make(*_: object) -> ExecutorFactory:
        return lambda store, env: ProfiledExecutor(project.sql, store, env)

    with ProjectPipeline(project, SystemEnv(), executor=make) as opened:
        endpoint = Endpoint(opened, opened.store.uri, SystemEnv())
        yield opened
        endpoint.close()


def push(pipeline: ProjectPipeline, id: int) -> None:
    pipeline.push("orders", [{"id": id, "customer": "ada", "amount": 1}])


def test_the_time_is_shown_by_phase_and_by_view(
    run: Run, folder: Path, pipeline: ProjectPipeline
) -> None:
    """Somebody whose pipeline is slow must see at once which view it is, and why."""
    for id in range(3):
        push(pipeline, id)
    shown = run("-C", folder, "profile", "--transactions", "2")
    assert shown.exit_code == 0, shown.stderr
    text = shown.stdout
    assert re.search(
        r"^transactions +2 to 3: 2 transactions, [\d.]+ ms each, 2 rows in", text, re.M
    )
    assert re.search(r"^record +[\d.]+ +\d+%  writing the journal", text, re.M)
    assert re.search(r"^sink revenue_out +[\d.]+ ", text, re.M)
    assert re.search(r"^view +ms +look-ups +joins +fetched +shared$", text, re.M)
    assert re.search(r"^revenue +10\.00 +4\.00 +6\.00 +3\.0 +1\.0$", text, re.M)
    assert re.search(r"^memory +\S+ \S+ (held|so far)", text, re.M)


def test_json_has_the_sums_and_each_transaction(
    run: Run, folder: Path, pipeline: ProjectPipeline
) -> None:
    """A program that watches the pipeline wants numbers, not a table."""
    push(pipeline, 1)
    push(pipeline, 2)
    told = json.loads(run("-C", folder, "profile", "--json").stdout)
    assert (told["transactions"], told["first"], told["last"], told["rows"]) == (2, 1, 2, 2)
    assert told["views"]["revenue"]["phases"] == {"look-ups": 0.008, "joins": 0.012}
    assert [item["transaction"] for item in told["each"]] == [1, 2]
    assert told["each"][0]["views"]["revenue"]["rows_fetched"] == 3
    assert told["each"][0]["phases"][0]["name"] == "gather"
    status = json.loads(run("-C", folder, "status", "--json").stdout)
    assert status["profile"]["views"] == told["views"]
    assert status["memory"].keys() == told["memory"].keys()


def test_the_next_transactions_can_be_waited_for(
    run: Run, folder: Path, pipeline: ProjectPipeline
) -> None:
    """What was slow an hour ago does not explain what is slow now."""
    push(pipeline, 1)
    done = threading.Event()

    def keep_pushing() -> None:
        id = 2
        while not done.is_set():
            push(pipeline, id)
            id += 1

    pushing = threading.Thread(target=keep_pushing)
    pushing.start()
    try:
        shown = run("-C", folder, "profile", "--next", "--transactions", "2", "--json")
    finally:
        done.set()
        pushing.join()
    assert "waiting for 2 transactions" in shown.stderr
    told = json.loads(shown.stdout)
    assert told["transactions"] == 2
    assert told["first"] > 1


def test_a_pipeline_that_has_done_nothing_is_said_to(
    run: Run, folder: Path, pipeline: ProjectPipeline
) -> None:
    """Zeros in a table would look like a measurement."""
    shown = run("-C", folder, "profile")
    assert "no transaction since it was opened" in shown.stdout
    assert "phase" not in shown.stdout


def test_without_a_process_there_is_nothing_to_profile(run: Run, folder: Path) -> None:
    """Nothing is stored about the time that transactions took."""
    with ProjectPipeline(load(folder), SystemEnv()):
        pass
    shown = run("-C", folder, "profile")
    assert shown.exit_code == 1
    assert "no process on this machine runs the pipeline" in shown.stderr
    assert "hint: start one in another terminal: stepwell run" in shown.stderr
