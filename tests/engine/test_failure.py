"""Flushes and the end of a handle: by a full disk, a fence, an interrupt, or in good order."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from stepwell.engine.events import (
    Flushed,
    FlushFailed,
    OpeningAt,
)
from stepwell.errors import (
    FencedError,
    InvalidError,
    StepwellError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.model import Transaction
from stepwell.testing import Crash, Fault, FaultyStore, crash_at
from tests.engine.doubles import (
    SETTINGS,
    Feed,
    World,
    contents,
    order,
)
from tests.engine.pipeline_tools import holding, until

TX = Transaction


def test_disk_full_while_flushing_leaves_the_transaction_committed() -> None:
    """Scenario 88, K1: the error is shown, the rows are safe in the journal, and memory agrees."""
    world = World()
    faulty = FaultyStore(world.store)
    pipeline = world.open(faulty, replace(SETTINGS, checkpoint_every_s=5.0), strike=False)
    put_new = faulty.put_new

    def full(path: str, data: Any) -> None:
        if path.startswith(("runs/", "manifest/")):
            raise UnavailableError("no space left on device", not_applied=True)
        put_new(path, data)

    faulty.put_new = full  # type: ignore[method-assign]
    pipeline.push("orders", [order(1)])
    world.env.advance(10)
    assert pipeline.push("orders", [order(2)]) == 2, "a push does not fail because a flush does"
    assert FlushFailed("no space left on device") in world.events
    with pytest.raises(UnavailableError, match="no space"):
        pipeline.flush()
    assert pipeline.status().flushed == 0
    assert len(contents(pipeline, "orders")) == 2
    with pytest.raises(UnavailableError, match="no space"):
        pipeline.close()
    again = world.open()
    assert len(contents(again, "orders")) == 2
    assert again.flush()
    assert Flushed(TX(2), again.status().replay, 1) in world.events
    world.check(world.open())


def test_a_flush_that_failed_is_made_whole_by_the_next() -> None:
    """Scenarios 28, 31, K1: later state never commits without the earlier."""
    world = World()
    faulty = FaultyStore(world.store)
    pipeline = world.open(faulty, strike=False)
    pipeline.push("orders", [order(1)])
    count = len(faulty.calls)
    faulty.plan = lambda call: (
        Fault("fail") if call.number > count and call.path.startswith("manifest/") else None
    )
    with pytest.raises(StepwellError):
        pipeline.flush()
    assert pipeline.status().flushed == 0
    faulty.plan = None
    pipeline.push("orders", [order(2)])
    assert pipeline.flush()
    again = world.open()
    assert [row[0] for row in contents(again, "orders")] == [1, 2]
    assert not again.flush()


def test_when_applying_fails_after_recording_only_opening_again_helps() -> None:
    """Scenario 38, K1, F11: memory and journal disagree, so every later call says so; and the
    client is not told an error that would say that nothing was recorded.
    """
    world = World()
    faulty = FaultyStore(world.store)
    pipeline = world.open(faulty)
    faulty.plan = lambda call: Fault("fail") if call.operation == "apply" else None
    with pytest.raises(UnknownOutcomeError, match="transaction 1 is recorded"):
        pipeline.push("orders", [order(1)])
    for call in (
        lambda: pipeline.push("orders", [order(2)]),
        lambda: pipeline.table("orders"),
        pipeline.flush,
        pipeline.transaction,
        lambda: pipeline.run(once=True),
    ):
        with pytest.raises(UnknownOutcomeError, match="transaction 1 is recorded"):
            call()
    pipeline.close()
    again = world.open()
    assert [row[0] for row in contents(again, "orders")] == [1]
    world.check(again)


def test_a_fenced_pipeline_says_so_to_everybody() -> None:
    """Scenarios 38, 39, F3: waiting or not, reading or writing."""
    world = World()
    old = world.open()
    world.open()
    with pytest.raises(FencedError):
        old.push("orders", [order(1)])
    for call in (lambda: old.table("orders"), old.flush, old.transaction, old.status):
        with pytest.raises(FencedError):
            call()
    old.close()
    with pytest.raises(InvalidError, match="was closed"):
        old.push("orders", [order(1)])
    old.close()


def test_an_interrupted_push_is_unknown_to_those_who_pushed_with_it() -> None:
    """Scenario 38: nobody waits for an answer that will not come."""
    world = World()
    faulty = FaultyStore(world.store)
    pipeline = world.open(faulty, strike=False)
    answers: list[BaseException] = []

    def push() -> None:
        try:
            pipeline.push("orders", [order(1)])
        except BaseException as error:  # noqa: BLE001 - one of them dies
            answers.append(error)

    with holding(pipeline):
        threads = [threading.Thread(target=push) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(pipeline._pushes) == 2 and len(pipeline._turns._line) == 2)
        faulty.plan = crash_at(len(faulty.calls) + 1, "after")
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(type(error).__name__ for error in answers) == ["Crash", "UnknownOutcomeError"]
    assert isinstance(answers[0], Crash | UnknownOutcomeError)
    assert len(contents(world.open(), "orders")) == 1


def test_closing_closes_sources_and_sinks_and_leaves_nothing_to_replay() -> None:
    """Scenario 34: the next opening finds everything in the manifest."""
    world = World()
    world.feeds = {"files": Feed("orders").put(order(1))}
    with world.open() as pipeline:
        pipeline.run(once=True)
    assert all(sink.closed for sink in world.sinks.values())
    assert all(source.closed for source in pipeline._session.sources.all())
    world.events.clear()
    world.open()
    said = [event for event in world.events if not isinstance(event, OpeningAt)]
    assert [type(event).__name__ for event in said] == ["Opened"]
