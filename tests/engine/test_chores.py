"""Work beside the transactions: it never holds one up, and its failure is only told."""

from __future__ import annotations

import threading
from typing import Any

from stepwell.engine.events import ChoreFailed
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.reference_executor import ReferenceExecutor
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
        def chore(self) -> Any:
            return works.pop(0) if works else None

    return Pipeline(
        world.store,
        world.env,
        executor=lambda store, env: Busy(SQL, store, env),
        settings=SETTINGS,
        listener=world.events.append,
    )


def test_transactions_go_on_while_it_works() -> None:
    """K5: it is adopted between two transactions, in the thread that makes them."""
    world, work = World(), Work()
    pipeline = opened(world, [work])
    for id in range(3):
        pipeline.push("orders", [order(id)])
    assert work.done == []
    work.go.set()
    wait_for(lambda: work.done == ["run"])
    pipeline.push("orders", [order(9)])
    wait_for(lambda: not chore_threads())
    pipeline.push("orders", [order(10)])
    assert work.done == ["run", f"adopt in {threading.current_thread().name}"]
    pipeline.close()


def test_a_failure_is_told_and_the_next_one_begins() -> None:
    world, first, second = World(), Work(fails=True), Work()
    pipeline = opened(world, [first, second])
    for work in (first, second):
        work.go.set()
        pipeline.push("orders", [order(1)])
        wait_for(lambda: not chore_threads())
    pipeline.push("orders", [order(2)])
    assert ChoreFailed("no space left") in world.events
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
    assert not chore_threads()


def chore_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stepwell-chore"]


def wait_for(condition: Any) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("waited in vain")
