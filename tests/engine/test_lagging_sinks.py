"""Sinks that lag: transactions sent together, pushes that go on, an end that comes soon."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from stepwell.engine.events import Published
from stepwell.engine.outbox import Outbox, OutboxSettings
from stepwell.engine.ports import Delivered
from stepwell.engine.settings import Settings
from stepwell.errors import CorruptError, InvalidError, UnavailableError
from stepwell.journal import paths
from stepwell.manifest.progress import SinkAt
from stepwell.model import Position, Transaction, checksum
from stepwell.store.base import Bytes
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at
from tests.engine.doubles import (
    SETTINGS,
    CoalescingSink,
    Feed,
    Shelf,
    ShelfSink,
    World,
    contents,
    order,
)
from tests.engine.pipeline_tools import until

LINEAGE = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
ONE = {"one": "revenue"}


def mark(number: int) -> Delivered:
    entry = checksum([b"%d" % number])
    return Delivered(LINEAGE, LINEAGE, Transaction(number), Position(number), entry)


def change(*rows: tuple[int, int]) -> pa.Table:
    """Values with their weights."""
    values, weights = zip(*rows, strict=True)
    return pa.table({"a": pa.array(values, pa.int64()), "_w": pa.array(weights, pa.int64())})


def outbox(sink: ShelfSink, store: MemoryStore | None = None, **settings: int) -> Outbox:
    env = ManualEnv()
    made = Outbox(
        sink,
        LINEAGE,
        store or MemoryStore(env),
        env,
        at=SinkAt(sink.name),
        settings=OutboxSettings(**settings),  # type: ignore[arg-type]
    )
    made.settle(Transaction(0))
    return made


def numbers(world: World, sink: str = "one") -> list[int]:
    return [number for number, _ in world.shelves[sink].batches]


def lagging(pushes: int = 5, settings: Settings = SETTINGS, *, coalesces: bool = True) -> World:
    """A pipeline that was closed with transactions that its sink has not received."""
    world = World(coalescing={"one"} if coalesces else set())
    pipeline = world.open(settings=settings, sinks=ONE)
    world.sinks["one"].down = True
    for id in range(pushes):
        pipeline.push("orders", [order(id, "abc"[id % 3], id)])
    pipeline.close()
    return world


# Transactions that are sent together


def test_a_sink_that_lags_receives_its_transactions_as_one_commit() -> None:
    """J7: the sum of their changes, under the number of the last, once."""
    sink = CoalescingSink("s", "v", Shelf())
    box = outbox(sink)
    for number in range(1, 1001):
        rows = [(number, 1)] if number == 1 else [(number - 1, -1), (number, 1)]
        box.offer(mark(number), change(*rows))
    assert box.deliver()
    assert sink.writes == 1
    assert sink.shelf.batches == [(1000, (((1000,), 1),))]
    assert sink.last() == mark(1000)
    assert box.write_files() == (SinkAt("s", mark(1000)), ())


def test_transactions_that_cancel_out_still_move_the_mark() -> None:
    """J7: a sink whose mark stayed behind would be sent the same again, and forever."""
    sink = CoalescingSink("s", "v", Shelf())
    box = outbox(sink)
    box.offer(mark(1), change((7, 1)))
    box.offer(mark(2), change((7, -1)))
    assert box.deliver()
    assert sink.shelf.batches == [(2, ())]
    assert sink.last() == mark(2)


def test_a_sink_that_keeps_up_or_does_not_coalesce_gets_each_transaction_alone() -> None:
    """J7: one batch for each transaction is what its readers are promised."""
    for sink in (CoalescingSink("s", "v", Shelf()), ShelfSink("s", "v", Shelf())):
        box = outbox(sink)
        for number in range(1, 6):
            box.offer(mark(number), change((number, 1)))
            if sink.coalesces:
                assert box.deliver()
        assert box.deliver()
        assert [number for number, _ in sink.shelf.batches] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"commit_rows_max": 4}, [2, 4, 5, 6, 7]),
        ({"commit_bytes_max": 64}, [2, 4, 5, 6, 7]),
        ({"commit_rows_max": 1}, [1, 2, 3, 4, 5, 6, 7]),
        ({}, [7]),
    ],
    ids=str,
)
def test_one_commit_is_bounded_in_rows_and_bytes(
    settings: dict[str, int], expected: list[int]
) -> None:
    """J7: what is sent together is in memory together; a transaction over the bound goes alone."""
    sink = CoalescingSink("s", "v", Shelf())
    box = outbox(sink, **settings)
    for number in range(1, 8):
        rows = 5 if number == 5 else 3 if number == 6 else 2
        box.offer(mark(number), change(*((number * 10 + row, 1) for row in range(rows))))
    assert box.deliver()
    assert [number for number, _ in sink.shelf.batches] == expected


def test_transactions_before_and_after_a_change_of_columns_are_not_mixed() -> None:
    """J7: rows of a view as it was and as it is cannot be summed up."""
    sink = CoalescingSink("s", "v", Shelf())
    box = outbox(sink)
    for number in (1, 2):
        box.offer(mark(number), change((number, 1)))
    for number in (3, 4):
        box.offer(mark(number), change((number, 1)).rename_columns(["b", "_w"]))
    assert box.deliver()
    assert [number for number, _ in sink.shelf.batches] == [2, 4]


def test_a_sink_may_hold_any_of_the_marks_that_wait_for_it() -> None:
    """J16: a writer that was fenced grouped the same transactions differently, and was faster."""
    for landed in range(1, 6):
        sink = CoalescingSink("s", "v", Shelf())
        box = outbox(sink)
        assert box.deliver(), "it has said that it is empty"
        for number in range(1, 6):
            box.offer(mark(number), change((number, 1)))
        other = CoalescingSink("s", "v", sink.shelf)
        other.write(None, mark(landed), change(*((number, 1) for number in range(1, landed + 1))))
        assert box.deliver()
        assert sink.shelf.rows() == {(number,): 1 for number in range(1, 6)}
        assert sink.last() == mark(5)


def test_a_mark_that_nobody_gave_out_stops_a_sink_that_lags() -> None:
    """J16: it is none of those that wait, although its number lies between them."""
    sink = CoalescingSink("s", "v", Shelf())
    box = outbox(sink)
    assert box.deliver()
    for number in range(1, 6):
        box.offer(mark(number), change((number, 1)))
    sink.shelf.last = replace(mark(3), entry=checksum([b"a copy"]))
    assert not box.deliver()
    assert isinstance(box.stopped, InvalidError)
    assert sink.shelf.batches == []


def test_what_lies_before_a_damaged_file_is_sent() -> None:
    """K2: the damage stops the sink where it is, and not before."""
    env = ManualEnv()
    store = MemoryStore(env)
    first = outbox(CoalescingSink("s", "v", Shelf()), store)
    for number in range(1, 6):
        first.offer(mark(number), change((number, 1)))
    _, kept = first.write_files()
    store.delete(kept[3].path)
    store.put_new(kept[3].path, b"damaged")
    sink = CoalescingSink("s", "v", Shelf())
    box = Outbox(sink, LINEAGE, store, env, at=SinkAt("s"), kept=kept, since=Transaction(5))
    box.settle(Transaction(5))
    assert not box.deliver()
    assert isinstance(box.stopped, CorruptError)
    assert [number for number, _ in sink.shelf.batches] == [3]


def test_it_is_told_how_many_transactions_a_commit_held() -> None:
    """J7: the status shows a sink catching up."""
    world = lagging(6)
    world.events.clear()
    world.open(sinks=ONE)
    told = [event for event in world.events if isinstance(event, Published)]
    assert [(event.transaction, event.transactions) for event in told] == [(6, 6)]


@pytest.mark.parametrize(
    ("when", "rows_max"),
    [("before", 4), pytest.param("after", 2, marks=pytest.mark.slow), ("after", 1000)],
)
def test_killed_at_every_call_while_it_catches_up(when: When, rows_max: int) -> None:
    """Scenario 84, J6, J7, J16: in its commit, too; the next process regroups transactions, and
    the sink holds the view.
    """
    settings = replace(SETTINGS, outbox=replace(SETTINGS.outbox, commit_rows_max=rows_max))
    number, crashed = 1, True
    while crashed:
        world, crashed = lagging(), False
        dying = FaultyStore(world.store, crash_at(number, when))
        try:
            pipeline = world.open(dying, settings, sinks=ONE)
            pipeline.push("orders", [order(90, "a", 1)])
            pipeline.close()
        except Crash:
            crashed = True
        other = replace(settings, outbox=replace(settings.outbox, commit_rows_max=3))
        again = world.open(settings=other, sinks=ONE)
        if len(contents(again, "orders")) == 5:
            again.push("orders", [order(90, "a", 1)])
        again.deliver()
        world.check(again)
        assert world.shelves["one"].rows() == {("a", 4, 3): 1, ("b", 5, 2): 1, ("c", 2, 1): 1}
        assert numbers(world)[-1] == 6
        number += 1
    assert number > 20


# Pushes go on


def test_a_push_waits_for_room_and_not_for_a_sink_to_catch_up() -> None:
    """J7: one commit makes room; a push does not wait for the others."""
    settings = replace(SETTINGS, outbox=replace(SETTINGS.outbox, transactions_max=6))
    world = lagging(6, settings, coalesces=False)
    world.down = {"one"}
    pipeline = world.open(settings=settings, sinks=ONE)
    session, sink = pipeline._session, world.sinks["one"]
    sink.down = False
    world.env.advance(60)
    assert session.delivery.wait_for_room(20.0)
    assert (sink.writes, session.state.outboxes[0].full) == (1, False)


class Slow(ShelfSink):
    """A sink whose every commit takes a while."""

    world: World
    seconds = 3.0

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        self.world.env.advance(self.seconds)
        super().write(previous, mark, change)


def slow(world: World, pipeline_sinks: Sequence[ShelfSink]) -> None:
    for sink in pipeline_sinks:
        sink.__class__ = Slow
        assert isinstance(sink, Slow)
        sink.world = world


def test_a_push_without_a_loop_is_not_held_up_until_a_sink_has_caught_up() -> None:
    """J7: a few commits each time, and each sink its share."""
    world, two = World(), {"one": "revenue", "two": "revenue"}
    pipeline = world.open(sinks=two)
    for sink in world.sinks.values():
        sink.down = True
    for id in range(9):
        pipeline.push("orders", [order(id)])
    for sink in world.sinks.values():
        sink.down = False
    world.env.advance(60)
    slow(world, list(world.sinks.values()))
    pipeline.push("orders", [order(10)])
    assert [len(numbers(world, name)) for name in two] == [2, 2]
    assert pipeline.deliver()
    assert numbers(world, "one") == numbers(world, "two") == list(range(1, 11))


# The end comes soon


def test_closing_does_not_wait_until_a_sink_has_caught_up() -> None:
    """J6, J7: what it lacks is in the outbox, and the next run goes on with it, exactly once."""
    world = lagging(8, coalesces=False)
    world.down = {"one"}
    pipeline = world.open(sinks=ONE)
    world.sinks["one"].down = False
    slow(world, [world.sinks["one"]])
    world.env.advance(60)
    pipeline.close()
    assert numbers(world) == [1, 2], "five seconds, and what was under way then"
    world.down = set()
    again = world.open(sinks=ONE)
    world.check(again)
    assert numbers(world) == list(range(1, 9))


@pytest.mark.parametrize("run", [True, False])
def test_closing_long_after_a_stop_has_a_grace_of_its_own(run: bool) -> None:
    """J7: output is still sent if the loop ended an hour ago, or was stopped before it began."""
    world = lagging(8, coalesces=False)
    world.down = {"one"}
    pipeline = world.open(sinks=ONE)
    pipeline.stop()
    if run:
        pipeline.run()
    world.env.advance(3600)
    world.sinks["one"].down = False
    slow(world, [world.sinks["one"]])
    pipeline.close()
    assert numbers(world) == [1, 2], "five seconds, and what was under way then"


def test_a_loop_that_was_stopped_long_before_it_begins_has_a_grace() -> None:
    """J7: it begins with the loop."""
    world = lagging(8, coalesces=False)
    world.down = {"one"}
    pipeline = world.open(sinks=ONE)
    pipeline.stop()
    world.env.advance(3600)
    world.sinks["one"].down = False
    slow(world, [world.sinks["one"]])
    pipeline.run(once=True)
    assert numbers(world) == [1, 2], "five seconds, and what was under way then"
    pipeline.close()
    assert numbers(world) == [1, 2], "closing is part of the same end"


@pytest.mark.parametrize("once", [False, True])
def test_stop_ends_after_the_commit_that_is_under_way(once: bool) -> None:
    """J6, J7, scenario 84: a loop that is asked to end while a sink is far behind leaves the rest
    in the outbox.
    """
    world = lagging(8, coalesces=False)
    world.down = {"one"}
    world.feeds = {"files": Feed("orders").put(order(50))}
    pipeline = world.open(sinks=ONE)
    begun, go_on = threading.Event(), threading.Event()

    class Held(ShelfSink):
        def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
            begun.set()
            assert go_on.wait(30)
            world.env.advance(60)
            super().write(previous, mark, change)

    sink = world.sinks["one"]
    sink.down, sink.__class__ = False, Held
    world.env.advance(60)
    loop = threading.Thread(daemon=True, target=lambda: pipeline.run(once=once))
    loop.start()
    assert begun.wait(30)
    pipeline.stop()
    go_on.set()
    loop.join(30)
    assert not loop.is_alive()
    pipeline.close()
    assert numbers(world) == [1]
    world.down = set()
    again = world.open(sinks=ONE)
    world.check(again)
    assert numbers(world)[:8] == list(range(1, 9))


def test_a_push_that_waits_for_room_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J7: SIGTERM while a sink is down and its outbox full; nothing was committed."""
    settings = replace(
        SETTINGS, outbox=replace(SETTINGS.outbox, transactions_max=2), sink_wait_s_max=1e9
    )
    world = lagging(2, settings)
    world.down = {"one"}
    # Time stands still, so that the wait ends by nothing else than the stop.
    monkeypatch.setattr(world.env, "sleep", lambda seconds: threading.Event().wait(0.01))
    pipeline = world.open(settings=settings, sinks=ONE)
    loop = threading.Thread(daemon=True, target=pipeline.run)
    loop.start()
    failed: list[BaseException] = []

    def push() -> None:
        try:
            pipeline.push("orders", [order(9)])
        except UnavailableError as error:
            failed.append(error)

    pushing = threading.Thread(daemon=True, target=push)
    pushing.start()
    until(lambda: any(type(event).__name__ == "Waiting" for event in world.events))
    pipeline.stop()
    loop.join(30)
    pushing.join(30)
    assert not loop.is_alive()
    assert "has not received 2 transactions" in str(failed[0])
    assert len(contents(pipeline, "orders")) == 2
    pipeline.close()


def test_what_keeps_up_is_sent_to_the_end_when_a_loop_is_stopped() -> None:
    """J7: a sink that is not slow has everything when the process ends."""
    world = World()
    world.feeds = {"files": Feed("orders").put(*(order(id) for id in range(12)))}
    pipeline = world.open(sinks=ONE)
    loop = threading.Thread(daemon=True, target=pipeline.run)
    loop.start()
    until(lambda: pipeline.status().transaction == 4)
    pipeline.stop()
    loop.join(30)
    pipeline.close()
    assert numbers(world) == [1, 2, 3, 4]


def test_holding_a_sink_back_waits_for_one_commit() -> None:
    """J7: a restore or a deploy need not wait until a sink has caught up."""
    sink = ShelfSink("s", "v", Shelf())
    box = outbox(sink)
    begun, go_on = threading.Event(), threading.Event()

    class Held(ShelfSink):
        def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
            begun.set()
            assert go_on.wait(30)
            super().write(previous, mark, change)

    sink.__class__ = Held
    for number in range(1, 6):
        box.offer(mark(number), change((number, 1)))
    sending = threading.Thread(daemon=True, target=box.deliver)
    sending.start()
    assert begun.wait(30)
    held: list[list[int]] = []

    def hold() -> None:
        with box.hold_back():
            sending.join(30)
            held.append([number for number, _ in sink.shelf.batches])

    holding = threading.Thread(daemon=True, target=hold)
    holding.start()
    until(lambda: box._held_back)
    go_on.set()
    holding.join(30)
    assert held == [[1]]
    assert box.deliver()


# What waits is kept


class Gathering(MemoryStore):
    """Lets no file of an outbox be written before several are under way."""

    def __init__(self, env: ManualEnv, together: int) -> None:
        super().__init__(env)
        self.barrier = threading.Barrier(together, timeout=30)
        self.fails: set[int] = set()

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self.barrier.wait()
        if paths.parse(path).number in self.fails:
            raise UnavailableError("the bucket is down")
        super().put_new(path, data)


def test_many_files_of_an_outbox_are_written_at_once() -> None:
    """J6: a flush blocks pushes, and one request after another takes a minute."""
    env = ManualEnv()
    store = Gathering(env, 8)
    box = outbox(CoalescingSink("s", "v", Shelf()), store)
    for number in range(1, 41):
        box.offer(mark(number), change((number, 1)))
    store.fails = {7, 33}
    with pytest.raises(UnavailableError):
        box.write_files()
    first = {item.path for item in store.list("outbox/")}
    assert len(first) == 38
    store.fails = set()
    store.barrier = threading.Barrier(1)
    _, kept = box.write_files()
    assert [item.transaction for item in kept] == list(range(1, 41))
    assert len(store.list("outbox/")) == 40, "each was written once"
    sink = CoalescingSink("s", "v", Shelf())
    again = Outbox(sink, LINEAGE, store, env, at=SinkAt("s"), kept=kept, since=Transaction(40))
    again.settle(Transaction(40))
    assert again.deliver()
    assert sink.shelf.rows() == {(number,): 1 for number in range(1, 41)}
