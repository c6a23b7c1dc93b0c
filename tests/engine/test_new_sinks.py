"""Sinks that are new to a pipeline, or no longer: what they begin with, and who is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Delivered
from stepwell.errors import InvalidError, UnavailableError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.testing import Call, Crash, Fault, FaultyStore, ManualEnv
from tests.engine.doubles import SETTINGS, SQL, Shelf, ShelfSink, World, order

TWO = {"one": "revenue", "two": "revenue"}


def numbers(world: World, sink: str) -> list[int]:
    return [number for number, _ in world.shelves[sink].batches]


def test_a_new_sink_receives_the_whole_view_and_then_its_changes() -> None:
    """J7: one that joins later is not given changes to rows it never had."""
    world = World()
    with world.open(sinks={"one": "revenue"}) as pipeline:
        pipeline.push("orders", [order(1, "a", 5), order(2, "b", 6)])
        pipeline.push("orders", [order(1, "a", 7)])
    with world.open(sinks=TWO) as pipeline:
        pipeline.push("orders", [order(2, "b", 1)])
        world.check(pipeline)
    assert numbers(world, "two") == [2, 3]
    assert world.shelves["two"].batches[0] == (2, ((("a", 7, 1), 1), (("b", 6, 1), 1)))


def test_a_new_sink_that_does_not_answer_is_not_begun() -> None:
    """J7: whether it is empty decides what it receives."""

    class Down(ShelfSink):
        def last(self) -> Delivered | None:
            raise UnavailableError("down")

    world = World()
    world.open(sinks={}).push("orders", [order(1)])
    with pytest.raises(UnavailableError, match="is new to the pipeline"):
        Pipeline(
            world.store,
            world.env,
            executor=lambda store, env: ReferenceExecutor(SQL, store, env),
            sinks=[Down("late", "revenue", Shelf())],
        )


def test_a_sink_that_was_left_out_for_a_while_is_refused_until_it_is_emptied() -> None:
    """J7: it missed what happened meanwhile."""
    world = World()
    with world.open(sinks=TWO) as pipeline:
        pipeline.push("orders", [order(1)])
    with world.open(sinks={"one": "revenue"}) as pipeline:
        pipeline.push("orders", [order(2)])
    with pytest.raises(InvalidError, match="has not been part of it"):
        world.open(sinks=TWO)
    world.shelves["two"] = Shelf()
    with world.open(sinks=TWO) as pipeline:
        world.check(pipeline)


def test_a_large_view_comes_to_a_new_sink_in_parts() -> None:
    """J7: under numbers that rise to the last one; after a crash it goes on with what it lacks."""
    settings = replace(SETTINGS, outbox=replace(SETTINGS.outbox, part_rows_max=2))
    world = World()
    with world.open(sinks={"one": "revenue"}) as pipeline:
        for number in range(5):
            pipeline.push("orders", [order(number, f"c{number}", 1)])
    pipeline = world.open(sinks=TWO, settings=settings)
    assert numbers(world, "two") == [3, 4, 5]
    assert [len(batch) for _, batch in world.shelves["two"].batches] == [2, 2, 1]
    world.check(pipeline)
    pipeline.close()
    shelf = world.shelves["few"] = Shelf()
    few = {**TWO, "few": "revenue"}
    world.open(
        sinks=few, settings=replace(settings, outbox=replace(settings.outbox, part_rows_max=1))
    )
    assert [number for number, _ in shelf.batches] == [1, 2, 3, 4, 5]


def test_there_are_as_many_numbers_as_parts() -> None:
    """J7: a view that grew large in one transaction is not sent as one for lack of numbers."""
    settings = replace(SETTINGS, outbox=replace(SETTINGS.outbox, part_rows_max=2))
    world = World()
    with world.open(sinks={"one": "revenue"}) as pipeline:
        pipeline.push("orders", [order(number, f"c{number}", 1) for number in range(7)])
    world.open(sinks={"one": "revenue"}).push("orders", [order(9, "c6", 1)])

    def is_down(call: Call) -> Fault | None:
        return Fault("fail") if (call.operation, call.path) == ("write", "ShelfSink") else None

    pipeline = world.open(FaultyStore(world.store, is_down), settings, sinks=TWO)
    assert pipeline.transaction_number == 4
    (late,) = [o for o in pipeline._session.state.outboxes if o.sink.name == "two"]
    held = [parcel.change for parcel in late._parcels]
    assert len(held) == 4
    assert [change for change in held[1:] if change is not None] == [], "they are in files"
    again = world.open(sinks=TWO, settings=settings)
    assert numbers(world, "two") == [1, 2, 3, 4]
    assert [len(batch) for _, batch in world.shelves["two"].batches] == [2, 2, 2, 1]
    assert again.push("orders", [order(8, "new", 1)]) == 5
    world.check(again)
    world.check(world.open(sinks=TWO))


def test_a_crash_between_the_parts_of_a_view_loses_none_of_them() -> None:
    """J7: they are kept before the first is sent."""
    settings = replace(SETTINGS, outbox=replace(SETTINGS.outbox, part_rows_max=1))
    world = World()
    with world.open(sinks={"one": "revenue"}) as pipeline:
        for number in range(3):
            pipeline.push("orders", [order(number, f"c{number}", 1)])

    def is_second(call: Call) -> Fault | None:
        calls = [c for c in faulty.calls if (c.operation, c.path) == ("write", "ShelfSink")]
        return Fault("crash") if call.operation == "write" and len(calls) == 2 else None

    faulty = FaultyStore(world.store, is_second)
    with pytest.raises(Crash):
        world.open(faulty, settings, sinks=TWO)
    assert numbers(world, "two") == [1]
    again = world.open(sinks=TWO)
    assert numbers(world, "two") == [1, 2, 3]
    world.check(again)


def test_who_would_be_refused_fences_nobody() -> None:
    """F2: a sink that holds the output of another pipeline is noticed before the claim."""
    world, other = World(), World(ManualEnv(5))
    other.open(sinks=TWO).push("orders", [order(1)])
    pipeline = world.open(sinks={"one": "revenue"})
    mine, theirs = world.shelves["one"], other.shelves["one"]
    world.shelves["one"] = theirs
    with pytest.raises(InvalidError, match="output of another pipeline"):
        world.open(sinks={"one": "revenue"})
    assert all(sink.closed for sink in world.sinks.values())
    world.shelves["one"] = mine
    assert pipeline.push("orders", [order(1)]) == 1
    fresh = World(ManualEnv(6))
    fresh.shelves["one"] = theirs
    with pytest.raises(InvalidError, match="output of another pipeline"):
        fresh.open(sinks={"one": "revenue"})
    assert not fresh.store.list(), "nothing was begun"
