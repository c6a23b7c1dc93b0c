"""What computes the views ends, as a Java that is killed: another is started, not without end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from stepwell.deploy import serving
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import Project
from stepwell.deploy.serving import RunningPipeline
from stepwell.engine.events import ExecutorLost
from stepwell.env import Env, SystemEnv
from stepwell.errors import ClaimedError, ExecutorLostError, StepwellError, UnknownOutcomeError
from stepwell.execution.executor import Executed, ExecutorFactory
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.manifest.manifest import Manifests
from stepwell.store.base import Store
from tests.cli.projects import load, wait, write_project

PATIENCE_S = 60


class Mortal(ReferenceExecutor):
    """Fails in everything once it is dead, with errors that are nobody's."""

    dies_in: str | None = None
    dead = False

    def lost(self) -> str | None:
        return "Java was killed" if self.dead else None

    def _live(self, what: str) -> None:
        if self.dies_in == what:
            self.dead = True
        if self.dead:
            raise ConnectionRefusedError("nobody listens")

    def execute(self, *arguments: Any, **named: Any) -> Executed:
        self._live("execute")
        return super().execute(*arguments, **named)

    def apply(self, executed: Executed) -> None:
        self._live("apply")
        super().apply(executed)

    def query(self, sql: str) -> Any:
        self._live("query")
        return super().query(sql)

    def flush(self) -> Any:
        self._live("flush")
        return super().flush()


class Lab:
    """A pipeline as `run` has it, whose executors can be killed."""

    def __init__(self, folder: Path) -> None:
        self.made: list[Mortal] = []
        self.told: list[ExecutorLost] = []
        self.project = load(write_project(folder))
        self.pipeline = RunningPipeline(
            self.project, SystemEnv(), executor=self._make, listener=self._listen
        )

    def _make(self, project: Project, spark: object) -> ExecutorFactory:
        def factory(store: Store, env: Env) -> Mortal:
            self.made.append(Mortal(project.sql, store, env))
            return self.made[-1]

        return factory

    def _listen(self, event: object) -> None:
        if isinstance(event, ExecutorLost):
            self.told.append(event)

    def push(self, id: int) -> int:
        return self.pipeline.push("orders", [{"id": id, "customer": "ada", "amount": 1}])

    @property
    def ids(self) -> list[int]:
        return self.pipeline.table("orders").column("id").to_pylist()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "project")


def running(lab: Lab, ended: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            lab.pipeline.run()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_push_whose_executor_dies_is_computed_by_another(lab: Lab) -> None:
    """R1, J1: nothing was recorded, so it is retried; what was before is replayed."""
    with lab.pipeline:
        assert lab.push(1) == 1
        lab.made[-1].dies_in = "execute"
        assert lab.push(2) == 2
        assert lab.ids == [1, 2]
        assert [(event.time, event.times_max) for event in lab.told] == [(1, serving.LOST_MAX)]


def test_rows_that_were_recorded_when_it_died_are_replayed(lab: Lab) -> None:
    """R1, J1, F11: the client is told that the outcome is unknown; the rows are there, once."""
    with lab.pipeline:
        lab.push(1)
        lab.made[-1].dies_in = "apply"
        with pytest.raises(UnknownOutcomeError, match="recorded in the journal"):
            lab.push(2)
        assert lab.push(3) == 3
        assert lab.ids == [1, 2, 3]


def test_a_query_is_told_and_the_next_one_answered(lab: Lab) -> None:
    """R1: nothing was changed."""
    with lab.pipeline:
        lab.push(1)
        lab.made[-1].dies_in = "query"
        with pytest.raises(ExecutorLostError, match="Java was killed; nothing was changed"):
            lab.pipeline.query("SELECT id FROM orders")
        assert lab.pipeline.query("SELECT id FROM orders").to_pylist() == [{"id": 1}]


def test_an_idle_run_notices_at_once_and_continues(lab: Lab) -> None:
    """R1: also if nobody asks it anything. The watch of a run knows its new claim for its own."""
    ended: list[BaseException] = []
    with lab.pipeline:
        lab.push(1)
        thread = running(lab, ended)
        before = lab.pipeline.status().epoch
        lab.made[-1].dead = True
        wait(lambda: len(lab.made) == 2 and lab.pipeline.status().epoch == before + 1)
        found = Manifests(lab.pipeline.store, SystemEnv()).latest()
        assert found is not None
        assert found.manifest.claim.writer == lab.pipeline.writer_id
        assert lab.push(2) == 2
        lab.pipeline.stop()
        thread.join(PATIENCE_S)
        assert ended == []


def test_one_that_dies_again_and_again_ends_the_run_with_a_clear_error(lab: Lab) -> None:
    """R1: a bounded number of times. Closing writes nothing with what is dead."""
    ended: list[BaseException] = []
    with lab.pipeline:
        lab.push(1)
        thread = running(lab, ended)
        for number in range(1, serving.LOST_MAX + 2):
            wait(lambda number=number: len(lab.made) == number)  # type: ignore[misc]
            wait(lambda: not lab.pipeline._session.left)
            lab.made[-1].dead = True
        thread.join(PATIENCE_S)
        (error,) = ended
        assert isinstance(error, ExecutorLostError)
        assert "Java was killed, 4 times within 60 minutes" in error.message
        with pytest.raises(StepwellError):
            lab.push(2)
    with ProjectPipeline(lab.project, SystemEnv()) as again:
        assert again.table("orders").column("id").to_pylist() == [1]


def test_one_that_was_taken_over_in_the_meantime_is_not_claimed_back(lab: Lab) -> None:
    """R1, F3: a dead Java does not justify fencing the current writer."""
    with lab.pipeline:
        lab.push(1)
        other = Manifests(lab.pipeline.store, SystemEnv()).claim(writer="another").claim
        lab.made[-1].dead = True
        with pytest.raises(ClaimedError, match="has claimed"):
            lab.push(2)
        found = Manifests(lab.pipeline.store, SystemEnv()).latest()
        assert found is not None
        assert found.epoch == other.epoch
