"""The loop: what it takes in, when it closes a transaction, and what does not hold it up."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from stepwell.engine.events import (
    Settled,
    SourceFailed,
)
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Intake, Limits
from stepwell.errors import (
    CorruptError,
    InvalidError,
    ReplayMismatchError,
    StepwellError,
    UnavailableError,
    UserCodeError,
)
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.change import Change
from stepwell.model import Transaction
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.engine.doubles import (
    SETTINGS,
    SQL,
    Feed,
    FeedSource,
    World,
    click,
    contents,
    everything,
    order,
)
from tests.engine.pipeline_tools import entries, until

TX = Transaction


def test_once_ingests_the_existing_input_and_no_more() -> None:
    """J2: in transactions bounded by the limits."""
    world = World()
    world.feeds = {"files": Feed("orders").put(*(order(id) for id in range(8)))}
    pipeline = world.open()
    assert pipeline.run(once=True) == 3
    assert pipeline.run(once=True) == 0
    assert pipeline.run(once=True, max_transactions=0) == 0
    world.feeds["files"].put(*(order(id) for id in range(8, 20)))
    assert pipeline.run(max_transactions=2) == 2
    assert pipeline.status().flushed == 5


def test_sources_share_a_step_fairly() -> None:
    """J3: one with a million rows does not keep another waiting, and takes what others leave."""
    world = World()
    world.feeds = {
        "big": Feed("orders").put(*(order(id) for id in range(40))),
        "small": Feed("clicks").put(*(click("a") for _ in range(4))),
    }
    pipeline = world.open(settings=replace(SETTINGS, limits=Limits(6)))
    pipeline.run(once=True)
    taken = [
        {
            source: sum(item.rows for item in draft.inputs if item.source == source)
            for source in ("big", "small")
        }
        for draft in entries(world)
    ]
    assert taken[0] == {"big": 3, "small": 3}
    assert taken[1] == {"big": 5, "small": 1}
    assert taken[2] == {"big": 6, "small": 0}
    world.check(pipeline)


def test_a_source_that_is_down_is_left_alone_and_the_others_continue() -> None:
    """J3: status says why; once it is back it goes on where it stood."""
    world = World()
    world.feeds = {"up": Feed("orders").put(order(1)), "down": Feed("clicks").put(click("a"))}
    pipeline = world.open()
    source = pipeline._session.sources.get("down")
    assert isinstance(source, FeedSource)
    poll = source.poll

    def fail(after: object, limits: Limits) -> Intake | None:
        raise UnavailableError("no route to broker")

    source.poll = fail  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="no route"):
        pipeline.run(once=True)
    assert len(contents(pipeline, "orders")) == 1
    assert [s.error for s in pipeline.status().sources] == [None, "no route to broker"]
    assert len([event for event in world.events if isinstance(event, SourceFailed)]) == 1
    source.poll = poll  # type: ignore[method-assign]
    world.env.advance(60)
    assert pipeline.run(once=True) == 1
    assert [s.error for s in pipeline.status().sources] == [None, None]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InvalidError("no such topic"), "no such topic"),
        (ReplayMismatchError("a.json was changed"), "a.json was changed"),
        (CorruptError("a.json", "damaged"), "a.json: damaged"),
        (PermissionError(13, "Permission denied"), "source down failed: PermissionError"),
        (OSError(5, "Input/output error"), "source down failed: OSError"),
        (RecursionError(), "source down failed: RecursionError"),
        (MemoryError(), "source down failed: MemoryError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_source_that_raises_anything_is_paused_alone(error: Exception, told: str) -> None:
    """J15: the others go on, status says why, and it is retried after a while."""
    world = World()
    world.feeds = {"up": Feed("orders").put(order(1)), "down": Feed("clicks").put(click("a"))}
    pipeline = world.open()
    source = pipeline._session.sources.get("down")
    assert isinstance(source, FeedSource)
    poll = source.poll

    def fail(after: object, limits: Limits) -> Intake | None:
        raise error

    source.poll = fail  # type: ignore[method-assign]
    pipeline.run(max_transactions=1)
    assert len(contents(pipeline, "orders")) == 1
    (_, status) = pipeline.status().sources
    assert told in (status.error or "")
    with pytest.raises(StepwellError, match=re.escape(told)):
        pipeline.run(once=True)
    source.poll = poll  # type: ignore[method-assign]
    world.env.advance(60)
    pipeline.run(once=True)
    assert len(contents(pipeline, "clicks")) == 1
    assert [s.error for s in pipeline.status().sources] == [None, None]


def test_with_latency_allowed_steps_are_recorded_at_once_and_closed_together() -> None:
    """J1, J2: fewer and larger computations; the boundary is in the journal."""
    world = World()
    world.feeds = {"files": Feed("orders").put(*(order(id) for id in range(8)))}
    settings = replace(SETTINGS, latency_s_max=100.0, limits=Limits(3))
    pipeline = world.open(settings=settings)
    assert pipeline.run(once=True) == 3, "a step as large as the limit closes a transaction"
    slow = World()
    slow.feeds = {"files": Feed("orders").put(order(0)).delete({"id": 0}).put(order(1), order(2))}
    pipeline = slow.open(settings=replace(settings, limits=Limits(100)))
    assert pipeline.run(once=True) == 1
    kinds = [(d.kind.value, d.step, d.closes) for d in entries(slow)]
    assert kinds == [("step", 1, False), ("step", 2, False), ("close", 3, True)]
    assert [row[0] for row in contents(pipeline, "orders")] == [1, 2]
    slow.check(pipeline)


@pytest.mark.parametrize("dies", [False, True])
def test_what_the_loop_cannot_compute_is_taken_back(dies: bool) -> None:
    """J4, J13: a pipeline that recorded it must still open, and meet the same input again."""
    world = World()
    world.feeds = {
        "files": Feed("orders").put(order(0, "a", 2**62)).delete({"id": 7}).put(order(1, "b", 1))
    }
    settings = replace(SETTINGS, latency_s_max=100.0, limits=Limits(100))
    pipeline = world.open(settings=settings)
    pipeline.push("orders", [order(9, "a", 2**62)])
    if dies:
        step = pipeline._session.poll()
        assert step is not None
        pipeline._session.begin(explicit=False)
        pipeline._session.add(step)
        pipeline = world.open(settings=settings)
        assert Settled(TX(2), 1, committed=False) in world.events
    with pytest.raises(
        UserCodeError, match=r"\(rows of the transaction: \d of orders from files\)"
    ):
        pipeline.run(once=True)
    assert pipeline.status().sources[0].position is None
    assert pipeline.push("orders", [order(9, "a", 1)]) == 2
    assert pipeline.run(once=True) == 1
    assert [row[0] for row in contents(pipeline, "orders")] == [0, 1, 9]
    state = everything(pipeline)
    assert everything(world.open()) == state
    world.check(world.open())


def test_a_step_that_cannot_be_read_again_closes_its_transaction() -> None:
    """J4, J8: what is taken back must be somewhere else than in the journal."""
    world = World()
    world.feeds = {
        "files": Feed("orders").put(order(0)).delete({"id": 0}).put(order(1)),
        "socket": Feed("clicks", again=False).put(click("a")),
    }
    pipeline = world.open(settings=replace(SETTINGS, latency_s_max=100.0, limits=Limits(100)))
    assert pipeline.run(once=True) == 2
    kinds = [(d.kind.value, d.transaction, d.step, d.closes) for d in entries(world)]
    assert kinds == [("step", 1, 1, True), ("step", 2, 1, False), ("close", 2, 2, True)]
    world.feeds["files"].put(order(2))
    step = pipeline._session.poll()
    assert step is not None
    pipeline._session.begin(explicit=False)
    pipeline._session.add(step)
    world.feeds["socket"].put(click("b"))
    assert pipeline.run(once=True) == 1
    assert [(d.step, d.closes) for d in entries(world)[3:]] == [(1, False), (2, True)]
    world.check(pipeline)


def test_a_source_that_only_moves_on_makes_no_transaction() -> None:
    """J3: a thousand empty files are not read again and again, and leave nothing in the journal."""

    class Empty(FeedSource):
        def poll(self, after: Any, limits: Limits) -> Intake | None:
            start = after or 0
            self.polls.append(start)
            if start >= 3:
                return None
            return Intake(self.name, self.table, Change(), 0, start + 1, ["empty"])

    world = World()
    pipeline = world.open()
    source = Empty("files", Feed("orders"))
    pipeline._session.sources._sources["files"] = source
    for _ in range(5):
        assert pipeline.run(once=True) == 0
    assert source.polls == [0, 1, 2, 3, 3, 3, 3, 3], "and files behind them wait for nothing"
    assert entries(world) == []


def test_a_push_closes_what_the_loop_left_open() -> None:
    """J3: one boundary before the next begins."""
    world = World()
    world.feeds = {"files": Feed("orders").put(order(0))}
    pipeline = world.open(settings=replace(SETTINGS, latency_s_max=100.0))
    session = pipeline._session
    session.begin(explicit=False)
    step = session.poll()
    assert step is not None
    session.add(step)
    assert pipeline.status().open == "automatic"
    assert pipeline.push("orders", [order(1)]) == 2
    assert pipeline.run(once=True) == 0


def test_a_slow_sink_holds_up_neither_the_loop_nor_another_sink() -> None:
    """J7: until its outbox is full; then it catches up in order."""
    world = World()
    world.feeds = {"files": Feed("orders").put(*(order(id) for id in range(12)))}
    settings = replace(SETTINGS, limits=Limits(1), idle_s=0.001)
    pipeline = world.open(settings=settings, sinks={"slow": "revenue", "quick": "revenue"})
    gate = threading.Event()
    slow = world.sinks["slow"]
    write = slow.write

    def wait(lineage: str, transaction: Transaction, change: pa.Table) -> None:
        gate.wait(60)
        write(lineage, transaction, change)

    slow.write = wait  # type: ignore[method-assign]
    loop = threading.Thread(target=pipeline.run)
    loop.start()
    until(lambda: len(world.shelves["quick"].batches) == 12)
    assert world.shelves["slow"].batches == []
    assert pipeline.status().sinks[0].pending == 12
    gate.set()
    until(lambda: len(world.shelves["slow"].batches) == 12)
    pipeline.stop()
    loop.join(timeout=60)
    assert world.shelves["slow"].batches == world.shelves["quick"].batches
    world.check(pipeline)


class SlowFeed(FeedSource):
    """Holds its rows back until they have settled, or for as long as they change."""

    def __init__(self, feed: Feed, env: ManualEnv, *, changing: bool) -> None:
        super().__init__("slow", feed)
        self._env = env
        self._changing = changing

    def poll(self, after: Any, limits: Limits) -> Intake | None:
        return None if self._changing or self.settles_in_s(0.0) else super().poll(after, limits)

    def settles_in_s(self, since: float) -> float | None:
        left = 5.0 - self._env.uptime()
        return left if left > 0 and not self._changing else None


@pytest.mark.parametrize("changing", [False, True])
def test_once_waits_for_input_to_settle_and_not_for_input_that_changes(changing: bool) -> None:
    """J8, scenario 96: what a source holds back for a moment belongs to all there is."""
    env = ManualEnv()
    source = SlowFeed(Feed("orders").put(order(1)), env, changing=changing)
    pipeline = Pipeline(
        MemoryStore(env),
        env,
        executor=lambda store, env: ReferenceExecutor(SQL, store, env),
        sources=[source],
    )
    assert pipeline.run(once=True) == (0 if changing else 1)
    assert env.uptime() == (0.0 if changing else 5.0)
