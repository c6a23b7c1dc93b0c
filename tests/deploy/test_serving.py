"""Changing a pipeline that runs: built while transactions continue, and swapped in."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stepwell.deploy.plan import fingerprint
from stepwell.deploy.program import as_deployed, identified, program_json, read_program
from stepwell.deploy.project import Project
from stepwell.deploy.resources import resources_of
from stepwell.deploy.serving import RunningPipeline
from stepwell.engine.events import Event, Listener, Working
from stepwell.env import Env
from stepwell.errors import ConflictError, UserCodeError
from stepwell.execution.executor import ExecutorFactory, Starting
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.plan.reasons import about
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, crash_at
from tests.deploy.project_world import CHANGED, SQL, Lab, lab

__all__ = ["lab"]
PATIENCE_S = 30


class Runner:
    """A pipeline as `run` has it, with a hook that is called when a view is built."""

    def __init__(
        self, lab: Lab, build: Callable[[str], None], listener: Listener | None = None
    ) -> None:
        self.lab = lab

        class Building(ReferenceExecutor):
            def build(self, views: Sequence[str], starting: Starting = lambda view: None) -> None:
                for view in views:
                    with about(view):
                        starting(view)
                        build(view)

        def make(project: Project, spark: object) -> ExecutorFactory:
            def factory(store: Store, env: Env) -> ReferenceExecutor:
                return Building(project.sql, store, env)

            return factory

        project = as_deployed(lab.project(), lab.manifest().program)
        self.pipeline = RunningPipeline(project, lab.env, executor=make, listener=listener)

    def change(
        self, sql: str, building: Callable[[str], None] = lambda name: None
    ) -> dict[str, Any]:
        manifest = self.lab.manifest()
        self.lab.write(sql)
        deployed, executor = read_program(manifest.program, "")
        wanted = identified(deployed, resources_of(self.lab.project()), manifest.lineage, 2)
        before = fingerprint(deployed, executor)
        return self.pipeline.change(program_json(wanted, executor), before, building)

    def push(self, id: int, amount: int) -> None:
        self.pipeline.push("orders", [{"id": id, "customer": f"c{id % 3}", "amount": amount}])


def test_transactions_continue_while_a_view_is_built(lab: Lab) -> None:
    """D11: what is committed meanwhile is in the new view, and the sink has each change once."""
    building, go_on = threading.Event(), threading.Event()

    def build(view: str) -> None:
        building.set()
        assert go_on.wait(PATIENCE_S)

    runner = Runner(lab, build)
    answers: list[dict[str, Any]] = []
    with runner.pipeline as pipeline:
        thread = threading.Thread(target=lambda: answers.append(runner.change(CHANGED)))
        thread.start()
        assert building.wait(PATIENCE_S)
        for id in range(100, 110):
            runner.push(id, id)  # Would wait forever, if the pipeline stood still.
        assert {"customer": "ada", "total": 30} in pipeline.query(
            "SELECT * FROM revenue"
        ).to_pylist()
        go_on.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert answers[0]["failed"] == {}
        shown = pipeline.query("SELECT * FROM revenue").to_pylist()
        assert {"customer": "ada", "total": 25} in shown
        assert {"customer": "c0", "total": 108} in shown
        runner.push(111, 500)
        assert not [ref for ref in pipeline.checkpoints() if ref.name], "what it needed is let go"
    assert lab.sink() == lab.rows("revenue")
    assert lab.rows("revenue")[("c0", 500)] == 1
    assert lab.manifest().transaction == 4 + 10 + 1 + 1


def test_a_deploy_tells_how_far_it_is(lab: Lab) -> None:
    """D11: a deploy that a running process carried out said nothing until it was done."""
    heard: list[tuple[int, int]] = []
    named: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Working) and event.what == "deploying":
            assert event.unit == "view"
            heard.append((event.done, event.total))

    runner = Runner(lab, lambda view: None, listen)
    changed = CHANGED.replace("COUNT(*) AS n FROM clicks", "COUNT(*) + 1 AS n FROM clicks")
    with runner.pipeline:
        answer = runner.change(changed, named.append)
        assert answer["failed"] == {}
    assert named == ["revenue", "visits"]
    assert heard == [(0, 2), (1, 2), (2, 2)]


def test_a_shadow_build_that_fails_is_reported_and_the_pipeline_continues(
    lab: Lab,
) -> None:
    """D8: tried again with the pipeline standing still, it fails by its name."""

    def build(view: str) -> None:
        if view == "revenue":
            raise UserCodeError("division by zero")

    runner = Runner(lab, build)
    with runner.pipeline:
        answer = runner.change(CHANGED + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders;\n")
        assert "division by zero" in answer["failed"]["view.revenue"]
        assert "view.ids" in answer["resources"]
        runner.push(9, 9)
    assert lab.sink() == lab.rows("revenue")
    assert lab.rows("ids")[(9,)] == 1


def test_columns_are_changed_while_it_stands_still(lab: Lab) -> None:
    """D11: rows are converted from a state that does not move."""
    runner = Runner(lab, lambda view: None)
    with runner.pipeline:
        answer = runner.change(SQL.replace("page STRING)", "page STRING, at TIMESTAMP)"))
        assert not answer["failed"]
        runner.push(9, 9)
    assert lab.sink() == lab.rows("revenue")


def test_a_deploy_that_found_something_else_is_refused(lab: Lab) -> None:
    """D5: it planned for what is not there any more."""
    runner = Runner(lab, lambda view: None)
    with runner.pipeline as pipeline, pytest.raises(ConflictError, match="deploy again"):
        pipeline.change(lab.manifest().program, "something else")


def test_killed_at_every_store_call_while_it_is_changed(lab: Lab) -> None:
    """D4, D11: rows that come while the view is built are in it once, whatever was killed when."""
    start = {item.path: lab.inner.get(item.path) for item in lab.inner.list()}
    out, kept = lab.folder / "out", lab.folder / "kept"
    shutil.copytree(out, kept)
    number = 0
    while True:
        number += 3
        lab.inner = MemoryStore(lab.env)
        for path, found in start.items():
            assert found is not None
            lab.inner.put_new(path, found.data)
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        lab.store = FaultyStore(lab.inner, crash_at(number, "after"))
        acknowledged: list[int] = []
        try:
            run_and_change(lab, acknowledged)
        except Crash:
            pass
        else:
            break
        lab.store = lab.inner
        lab.env.advance(60)
        lab.write(CHANGED)
        lab.deploy()
        lab.run()
        orders = lab.rows("orders")
        assert all(orders[(id, f"c{id % 3}", id)] == 1 for id in acknowledged)
        totals: dict[object, list[int]] = {}
        for _, customer, amount in orders:
            totals.setdefault(customer, []).append(int(str(amount)))
        assert lab.rows("revenue") == Counter({(c, max(a)): 1 for c, a in totals.items()})
        assert lab.sink() == lab.rows("revenue")
        assert lab.is_settled()
    assert number > 60, "it makes more calls than that"


def run_and_change(lab: Lab, acknowledged: list[int]) -> None:
    def build(view: str) -> None:
        for id in (100, 101):
            runner.push(id, id)
            acknowledged.append(id)

    runner = Runner(lab, build)
    runner.change(CHANGED)
    runner.push(102, 102)
    acknowledged.append(102)
    runner.pipeline.close()


def test_the_status_can_be_asked_while_the_new_program_is_swapped_in(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1, D11: the watch of a run asked then, was told of a closed pipeline, and died."""
    runner = Runner(lab, lambda view: None)
    opened, seen = RunningPipeline._open, []

    def look_and_open(self: RunningPipeline, *arguments: Any) -> Any:
        seen.append(self.status().transaction)
        session = opened(self, *arguments)
        seen.append(self.status().transaction)
        return session

    monkeypatch.setattr(RunningPipeline, "_open", look_and_open)
    with runner.pipeline as pipeline:
        before = pipeline.status()
        assert runner.change(CHANGED)["failed"] == {}
        assert seen == [before.transaction] * 2
        assert pipeline.status().epoch == before.epoch + 1


def test_a_run_whose_pipeline_cannot_be_opened_again_ends_with_the_reason(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: not as a pipeline that was closed, nobody knows why."""
    runner = Runner(lab, lambda view: None)

    def fail(self: RunningPipeline, *arguments: Any) -> Any:
        raise UserCodeError("no memory left")

    ended: list[BaseException] = []

    def run() -> None:
        try:
            runner.pipeline.run()
        except BaseException as error:  # noqa: BLE001 - looked at below
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    monkeypatch.setattr(RunningPipeline, "_open", fail)
    with pytest.raises(UserCodeError, match="no memory left"):
        runner.change(CHANGED)
    thread.join(PATIENCE_S)
    assert [str(error) for error in ended] == ["no memory left"]
    runner.pipeline.close()


def test_a_running_pipeline_takes_new_columns_and_rebuilds_what_reads_them(lab: Lab) -> None:
    """D11: columns that come, move and are renamed under a process that goes on."""
    built: list[str] = []
    runner = Runner(lab, built.append)
    runner.push(10, 30)
    before = lab.rows("revenue")
    table = "id BIGINT PRIMARY KEY, customer STRING, amount BIGINT"
    renamed = (
        "note STRING, total BIGINT RENAMED FROM amount, customer STRING, id BIGINT PRIMARY KEY"
    )
    views = SQL.replace("SUM(amount)", "SUM(total)").replace("amount > 10", "total > 10")
    answer = runner.change(views.replace(table, renamed))
    assert answer["failed"] == {}
    assert built == []
    row = {"id": 11, "customer": "c1", "total": 8, "note": "x"}
    runner.pipeline.push("orders", [row])
    runner.pipeline.run(once=True)
    runner.pipeline.close()
    assert before
    assert lab.rows("orders")[("x", 8, "c1", 11)] == 1
    assert lab.rows("orders")[(None, 30, "c1", 10)] == 1
    assert lab.sink() == lab.rows("revenue")
