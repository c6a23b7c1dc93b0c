"""Profiles of transactions: they add up, forget what failed, and cost next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from stepwell.engine.metrics import PHASES
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.profile import REMEMBERED, Profile, Profiles, TransactionProfile
from stepwell.errors import InvalidError
from stepwell.execution.executor import Executed
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import Letters
from stepwell.lsm.profiler import Profiler, ViewProfile
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.engine.doubles import SETTINGS, SQL, Feed, FeedSource, Shelf, ShelfSink, order


class Counting(ManualEnv):
    """Counts how often the clock is read."""

    def __init__(self) -> None:
        super().__init__(7)
        self.readings = 0

    def uptime(self) -> float:
        self.readings += 1
        return super().uptime()


class SlowExecutor(ReferenceExecutor):
    """Takes two seconds for a transaction, and profiles one view."""

    env: ManualEnv

    def execute(
        self, changes: Mapping[str, Change], time: datetime, letters: Letters | None = None
    ) -> Executed:
        self.env.advance(2)
        executed = super().execute(changes, time, letters)
        view = ViewProfile(0.5, 1.5, {"joins": 1.0, "planning": 0.5}, 10, 20)
        return Executed(
            executed.changes,
            executed.rejected,
            queries=1,
            profile_of={"revenue": view},
            pending=executed.pending,
        )


class SlowSink(ShelfSink):
    env: ManualEnv

    def write(self, *given: Any) -> None:
        self.env.advance(4)
        super().write(*given)


class Lab:
    def __init__(self) -> None:
        self.env = Counting()
        self.feed = Feed("orders")

        def make(store: Any, env: Any) -> SlowExecutor:
            executor = SlowExecutor(SQL, store, env)
            executor.env = self.env
            return executor

        self.sink = SlowSink("out", "revenue", Shelf())
        self.sink.env = self.env
        self.pipeline = Pipeline(
            MemoryStore(self.env),
            self.env,
            executor=make,
            sources=[FeedSource("feed", self.feed)],
            sinks=[self.sink],
            settings=SETTINGS,
        )

    def last(self, number: int | None = None) -> tuple[TransactionProfile, ...]:
        return self.pipeline._session.profiles.last(number)


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_profile_says_where_the_time_went(lab: Lab) -> None:
    """Time that is counted for the wrong phase sends its reader to the wrong code."""
    lab.pipeline.push("orders", [order(1)])
    lab.pipeline.flush()
    (made,) = lab.last()
    assert (made.transaction, made.rows, made.seconds, made.queries) == (1, 1, 2.0, 1)
    assert [span.name for span in made.phases] == [p for p in PHASES if p != "poll"]
    seconds = {span.name: span.seconds for span in made.phases}
    assert seconds["execute"] == made.seconds == sum(seconds.values())
    (sink,) = made.sinks
    assert (sink.name, sink.after_s, sink.seconds) == ("out", 2.0, 4.0)
    assert made.phases[-1].after_s == 6.0, "the flush came after the sink"
    assert made.views["revenue"].phases == {"joins": 1.0, "planning": 0.5}


def test_a_transaction_of_the_loop_includes_its_polls(lab: Lab) -> None:
    """A slow source must not look like a fast pipeline."""
    lab.feed.put(*(order(id) for id in range(4)))
    assert lab.pipeline.run(once=True) == 2
    for made in lab.last():
        assert [span.name for span in made.phases][:2] == ["poll", "gather"]


def test_a_transaction_that_failed_leaves_no_trace(lab: Lab) -> None:
    """Its phases would be added to the transaction that comes next."""
    lab.feed.put(order(1))
    executor = lab.pipeline._session.state.executor
    assert isinstance(executor, SlowExecutor)
    executor.execute = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(InvalidError):
        lab.pipeline.run(once=True)
    with pytest.raises(InvalidError):
        lab.pipeline.push("orders", [order(2)])
    del executor.execute  # type: ignore[method-assign]
    lab.pipeline.push("orders", [order(3)])
    (made,) = lab.last()
    names = [span.name for span in made.phases]
    assert names == ["gather", "execute", "record", "apply", "publish"]


def refuse(*_: object) -> Executed:
    raise InvalidError("a row is refused")


def test_a_bounded_number_of_transactions_is_remembered(lab: Lab) -> None:
    """A process that runs for months must not collect what nobody asks for."""
    for id in range(REMEMBERED + 5):
        lab.pipeline.push("orders", [order(id)])
    every = lab.last()
    assert [made.transaction for made in every] == list(range(6, REMEMBERED + 6))
    assert [made.transaction for made in lab.last(2)] == [REMEMBERED + 4, REMEMBERED + 5]
    assert lab.last(0) == ()


def test_replayed_transactions_are_not_profiled(lab: Lab) -> None:
    """They are computed together, and their times would explain nothing."""
    lab.pipeline.push("orders", [order(1)])
    store = lab.pipeline._stores[0]
    other = Pipeline(store, lab.env, executor=lambda store, env: ReferenceExecutor(SQL, store, env))
    assert other.transaction_number == 1
    assert other._session.profiles.last() == ()


def test_sums_add_up_over_transactions(lab: Lab) -> None:
    """The table in the terminal shows the sums."""
    for id in range(3):
        lab.pipeline.push("orders", [order(id)])
    memory = lab.pipeline.status().memory
    assert memory is not None
    profile = Profile(lab.last(), memory)
    assert (profile.seconds, profile.phases["execute"], profile.sinks) == (6.0, 6.0, {"out": 12.0})
    total = profile.views["revenue"]
    assert (total.seconds, total.rows_fetched, total.rows_shared) == (4.5, 30, 60)
    assert total.phases == {"planning": 1.5, "joins": 3.0}
    told = profile.to_json()
    assert (told["transactions"], told["first"], told["last"]) == (3, 1, 3)
    assert told["memory"] == {
        "held": memory.held,
        "mapped": memory.mapped,
        "peak": memory.peak,
        "arrow": memory.arrow,
        "java": None,
    }
    nothing = Profile((), memory).summary()
    assert (nothing["transactions"], nothing["first"], nothing["views"]) == (0, None, {})


def test_a_transaction_reads_the_clock_once_for_each_phase() -> None:
    """Profiles are always made, so they must cost nothing that anybody could measure."""
    env = Counting()
    profiles = Profiles(env)
    profiles.begin()
    lap = profiles.start()
    for phase in ("gather", "execute", "record", "apply", "publish"):
        lap(phase)
    assert env.readings == 6
    before = env.readings
    assert profiles.start()("flush") == 0.0
    assert env.readings == before + 2
    assert Profiles().start()("gather") == 0.0, "nothing is timed without a clock"


def test_a_phase_does_not_count_the_phases_inside_it() -> None:
    """A look-up inside a join would count twice, and the phases would not add up."""
    env = Counting()
    profiler = Profiler(env.uptime)
    env.advance(1)
    profiler.view()  # Belongs to no view.
    outer = profiler.enter("joins")
    env.advance(2)
    inner = profiler.enter("look-ups")
    profiler.rows_fetched += 3
    env.advance(4)
    assert profiler.enter(inner) == "look-ups"
    env.advance(8)
    profiler.enter(outer)
    env.advance(16)
    made = profiler.view()
    assert made.phases == {"joins": 10.0, "look-ups": 4.0, "planning": 16.0}
    assert (made.after_s, made.seconds, made.rows_fetched) == (1.0, 30.0, 3)
    assert profiler.view() == ViewProfile(31.0, 0.0, {"planning": 0.0}, 0, 0)
