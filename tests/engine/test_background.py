"""Background work: it never delays a transaction, and its failure is only reported."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from stepwell.engine.events import BackgroundTaskFailed
from stepwell.engine.pipeline import Pipeline
from stepwell.env import Env
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.part import Part
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as Collect
from stepwell.manifest.manifest import Manifests, Run
from stepwell.manifest.run_object import read_run, write_run
from stepwell.store.base import Store
from tests.engine.doubles import SETTINGS, SQL, World, order


class Work:
    def __init__(self, fails: bool = False) -> None:
        self.go = threading.Event()
        self.fails = fails
        self.done: list[str] = []

    def run(self) -> None:
        self.go.wait(60)
        if self.fails:
            raise OSError("no space left")
        self.done.append("run")

    def adopt(self) -> None:
        self.done.append(f"adopt in {threading.current_thread().name}")


def opened(world: World, works: list[Work]) -> Pipeline:
    class Busy(ReferenceExecutor):
        def background_task(self) -> Any:
            return works.pop(0) if works else None

    return Pipeline(
        world.store,
        world.env,
        executor=lambda store, env: Busy(SQL, store, env),
        settings=SETTINGS,
        listener=world.events.append,
    )


def test_transactions_continue_while_it_works() -> None:
    """K5: it is adopted between two transactions, in the thread that makes them."""
    world, work = World(), Work()
    pipeline = opened(world, [work])
    for id in range(3):
        pipeline.push("orders", [order(id)])
    assert work.done == []
    work.go.set()
    wait_for(lambda: work.done == ["run"])
    pipeline.push("orders", [order(9)])
    wait_for(lambda: not background_threads())
    pipeline.push("orders", [order(10)])
    assert work.done == ["run", f"adopt in {threading.current_thread().name}"]
    pipeline.close()


def test_a_failure_is_told_and_the_next_one_begins() -> None:
    world, first, second = World(), Work(fails=True), Work()
    pipeline = opened(world, [first, second])
    for work in (first, second):
        work.go.set()
        pipeline.push("orders", [order(1)])
        wait_for(lambda: not background_threads())
    pipeline.push("orders", [order(2)])
    assert BackgroundTaskFailed("no space left") in world.events
    assert second.done[0] == "run"
    pipeline.close()


def test_closing_waits_and_forgets() -> None:
    """A thread that outlived its pipeline would use files that are gone."""
    world, work = World(), Work()
    pipeline = opened(world, [work])
    pipeline.push("orders", [order(1)])
    threading.Timer(0.05, work.go.set).start()
    pipeline.close()
    assert work.done == ["run"]
    assert not background_threads()


class Copying(ReferenceExecutor):
    """It rewrites a run of orders in the background, and uses the new one from then on."""

    says_so = True
    mark: str | None = None
    copy: Run | None = None

    def __init__(self, store: Store, env: Env) -> None:
        super().__init__(SQL, store, env)
        self.store, self.env = store, env

    def background_task(self) -> Any:
        stored = [part for part in self._relations["orders"].parts if part.stored]
        if self.copy is not None or not stored:
            self.mark = None
            return None
        self.mark = self.env.new_id()
        return Copies(self, stored[0])

    def id_floor(self) -> str | None:
        return self.mark if self.says_so else None


class Copies:
    def __init__(self, executor: Copying, old: Part) -> None:
        self.executor, self.old = executor, old

    def run(self) -> None:
        store, env = self.executor.store, self.executor.env
        (old,) = self.old.stored
        body = read_run(store, old, env)
        self.executor.copy = write_run(store, env, "orders", body, old.rows)

    def adopt(self) -> None:
        copy = self.executor.copy
        assert copy is not None
        relation = self.executor._relations["orders"]
        new = replace(self.old, stored=(copy,))
        relation.parts = [new if part is self.old else part for part in relation.parts]


@pytest.mark.parametrize("says_so", [True, False])
def test_what_it_writes_is_not_collected_before_it_is_named(says_so: bool) -> None:
    """K3: a flush raises the floor above all that nothing names, but not above the run of a
    background task.

    Where an executor does not say that it is writing, the run is lost: so the test can fail.
    """
    world = World()
    pipeline = Pipeline(
        world.store,
        world.env,
        executor=Copying,
        settings=SETTINGS,
    )
    executor = pipeline._session.state.executor
    assert isinstance(executor, Copying)
    executor.says_so = says_so
    pipeline.push("orders", [order(1)])
    pipeline.flush()
    pipeline.push("orders", [order(2)])
    wait_for(lambda: executor.copy is not None and not background_threads())
    world.env.advance(1)
    pipeline.flush()
    Collector(world.store, world.env, settings=Collect(grace_s=0.0)).collect()
    assert executor.copy is not None
    assert (world.store.get(executor.copy.path) is not None) is says_so
    if not says_so:
        return
    pipeline.push("orders", [order(3)])
    world.env.advance(1)
    pipeline.close()
    Collector(world.store, world.env, settings=Collect(grace_s=0.0)).collect()
    named = Manifests(world.store, world.env).latest()
    assert named is not None
    assert executor.copy in named.manifest.runs
    again = opened(world, [])
    assert again.table("orders").num_rows == 3
    again.close()


def background_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stepwell-background"]


def wait_for(condition: Any) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("waited in vain")
