"""No thread of ours dies unseen: each is killed here or in the test that the table names."""

from __future__ import annotations

import ast
import queue
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepwell import threads
from stepwell.cli.run import Watch
from stepwell.demo import race
from stepwell.deploy.lease import Lease, LeaseSettings, take_lease
from stepwell.deploy.serving import RunningPipeline
from stepwell.engine import gc_thread as collecting
from stepwell.engine import transaction
from stepwell.engine.outbox import Outbox
from stepwell.engine.pipeline import Pipeline
from stepwell.env import SystemEnv
from stepwell.errors import ConflictError
from stepwell.store.memory import MemoryStore
from tests.cli.projects import load, wait, write_project
from tests.engine.doubles import SETTINGS, World, order

PACKAGE = Path(threads.__file__).parent
KILLED = {
    "stepwell-endpoint": "tests/endpoint/test_connections.py"
    "::test_an_accepting_thread_that_dies_is_started_again_and_then_told_of",
    "stepwell-request": "tests/endpoint/test_connections.py::test_a_worker_that_dies_is_told_of",
    "stepwell-background": "tests/engine/test_background.py"
    "::test_a_failure_is_told_and_the_next_one_begins",
    "stepwell-watch": "tests/test_threads.py::test_a_watch_that_dies_ends_the_run",
    "stepwell-sink-": "tests/test_threads.py::test_a_thread_that_the_loop_needs_ends_it",
    "stepwell-gc": "tests/test_threads.py::test_a_thread_that_the_loop_needs_ends_it",
    "stepwell-lease": "tests/test_threads.py::test_a_lease_that_stops_beating_is_lost",
    "stepwell-lineage": "tests/cli/test_lineage_events.py::test_a_sender_that_dies_is_reported",
    "stepwell-metrics": "tests/endpoint/test_prometheus.py::test_a_server_that_dies_is_reported",
    "stepwell-record": "tests/test_threads.py::test_rows_whose_record_failed_are_refused",
    "stepwell-demo-": "tests/test_threads.py::test_a_demo_writer_that_is_not_heard_has_ended",
}


def test_every_thread_of_the_package_is_killed_in_a_test() -> None:
    """R1: a new one must be entered in the table, with the test that kills it."""
    started = {name for path in PACKAGE.rglob("*.py") for name in names_in(path)}
    assert started == set(KILLED)
    for test in KILLED.values():
        path, _, name = test.partition("::")
        source = (PACKAGE.parents[1] / path).read_text(encoding="utf-8")
        assert f"def {name}(" in source, test


def names_in(path: Path) -> list[str]:
    """The names of the threads that a file starts, as far as they are fixed."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "threads.start":
            name = node.args[0]
            first = name.values[0] if isinstance(name, ast.JoinedStr) else name
            assert isinstance(first, ast.Constant), f"{path}: a name that says nothing"
            found.append(str(first.value))
    return found


def test_what_a_thread_dies_of_is_told_once_it_was_started_often_enough() -> None:
    """R1: also what is no `Exception`."""
    told: list[BaseException] = []
    begun: list[int] = []

    def body() -> None:
        begun.append(1)
        raise SystemExit(len(begun))

    threads.start("test", body, failed=told.append, restarts=2).join()
    assert [str(error) for error in told] == ["3"]
    threads.start("test", lambda: None, failed=told.append, restarts=2).join()
    assert len(told) == 1


def dying(*_: object) -> Any:
    raise RuntimeError("out of luck")


def run_until(pipeline: Pipeline, ended: Callable[[], None] = lambda: None) -> None:
    with pytest.raises(RuntimeError, match="out of luck"):
        pipeline.run()
    ended()


@pytest.mark.parametrize(
    ("place", "name"), [(Outbox, "deliver"), (collecting, "collect_once")], ids=["sink", "gc"]
)
def test_a_thread_that_the_loop_needs_ends_it(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str
) -> None:
    """R1: with what it died of; nothing that was acknowledged is lost."""
    world = World()
    world.env = SystemEnv()  # type: ignore[assignment]
    settings = replace(SETTINGS, collect_every_s=0.01, idle_s=0.01)
    pipeline = world.open(settings=settings)
    pipeline.push("orders", [order(1)])
    with monkeypatch.context() as patch:
        patch.setattr(place, name, dying)
        run_until(pipeline)
    pipeline.close()


def test_a_watch_that_dies_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: without it a takeover would go unnoticed, and Ctrl-C unacknowledged."""
    monkeypatch.setattr("stepwell.cli.run._WATCH_S", 0.02)
    with RunningPipeline(load(write_project(tmp_path / "project")), SystemEnv()) as pipeline:
        watch = Watch(pipeline, SystemEnv(), dying)
        run_until(pipeline, watch.close)


def test_a_lease_that_stops_beating_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, D5: the deploy that has it changes nothing more."""
    env = SystemEnv()
    lease = take_lease(MemoryStore(env), env, wait_s=0)
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "_beat", dying)
        lease.keep_alive(LeaseSettings(beat_s=0.01))
        wait(lambda: lease._lost is not None)
    with pytest.raises(ConflictError, match="cannot renew its lease: RuntimeError"):
        lease.beat()
    lease.release()


def test_rows_whose_record_failed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, J1: by the thread that waits for the record; nothing was committed."""
    world = World()
    pipeline = world.open()
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "_MANY", 1)
        patch.setattr(transaction, "_lines", dying)
        with pytest.raises(RuntimeError, match="out of luck"):
            pipeline.push("orders", [order(1)])
    assert pipeline.transaction_number == 0


def test_a_demo_writer_that_is_not_heard_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: who waits for its words is not left waiting."""
    heard: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr(race, "_listen", dying)
    monkeypatch.setattr(race, "Process", Mute)
    with race._process("anywhere", "A", heard):
        assert heard.get(timeout=30) == ("A", None)


class Mute:
    """A process that is not there."""

    popen = None

    def __init__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass
