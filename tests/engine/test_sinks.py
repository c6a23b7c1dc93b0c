"""Sinks that are down, slow, new, emptied, somebody else's; each transaction arrives once."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from stepwell.engine.events import Published, SinkFailed
from stepwell.engine.outbox import Outbox, OutboxSettings
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Delivered
from stepwell.errors import (
    BugError,
    CorruptError,
    FencedError,
    InvalidError,
    StepwellError,
    TruncatedError,
    UnavailableError,
)
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.journal import paths
from stepwell.manifest.manifest import Manifests
from stepwell.manifest.progress import SinkAt
from stepwell.model import Position, Transaction, checksum
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at
from tests.engine.doubles import SETTINGS, SQL, Shelf, ShelfSink, World, contents, order

TWO = {"one": "revenue", "two": "revenue"}
TX = Transaction
LINEAGE = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def mark(number: int) -> Delivered:
    return Delivered(LINEAGE, LINEAGE, TX(number), Position(number), checksum([b"%d" % number]))


def numbers(world: World, sink: str) -> list[int]:
    return [number for number, _ in world.shelves[sink].batches]


def files(world: World) -> list[str]:
    return [item.path for item in world.store.list("outbox/")]


def test_a_sink_gets_one_batch_for_each_transaction_that_changed_its_view() -> None:
    """J7: rising numbers, none of them empty, none for a transaction that changed other views."""
    world = World()
    with world.open() as pipeline:
        pipeline.push("orders", [order(1, "a", 5)])
        pipeline.push("clicks", [{"customer": "z", "page": "/"}])
        pipeline.push("orders", [order(1, "a", 5)])
        pipeline.push("orders", [order(1, "a", 6)])
        world.check(pipeline)
    assert numbers(world, "revenue") == [1, 4]
    assert numbers(world, "visits") == [2]
    assert world.shelves["revenue"].batches[1] == (4, ((("a", 5, 1), -1), (("a", 6, 1), 1)))


def test_numbers_continue_after_a_restart() -> None:
    """J1: a counter that began again would make a sink drop what is new."""
    world = World()
    for id in range(4):
        with world.open() as pipeline:
            assert pipeline.push("orders", [order(id)]) == id + 1
    assert numbers(world, "revenue") == [1, 2, 3, 4]


def test_a_sink_that_is_down_does_not_stop_the_others() -> None:
    """J7: it is behind, status says so, and it catches up in order."""
    world = World()
    pipeline = world.open(sinks=TWO)
    world.sinks["two"].down = True
    for id in range(5):
        pipeline.push("orders", [order(id)])
    assert numbers(world, "one") == [1, 2, 3, 4, 5]
    assert numbers(world, "two") == []
    one, two = pipeline.status().sinks
    assert (one.delivered, one.pending, one.error) == (5, 0, None)
    assert (two.delivered, two.pending, two.error) == (0, 5, "two is down")
    assert two.retry_in_s > 0
    assert not two.stopped
    world.sinks["two"].down = False
    assert not pipeline.deliver(), "it is not tried again before its time"
    world.env.advance(10)
    assert pipeline.deliver()
    assert world.shelves["two"].batches == world.shelves["one"].batches


def test_pauses_grow_up_to_a_limit() -> None:
    """J7: a sink that is down is not hammered."""
    world = World()
    pipeline = world.open(sinks={"one": "revenue"})
    world.sinks["one"].down = True
    for id in range(40):
        pipeline.push("orders", [order(id)])
        world.env.advance(0.5)
    pauses = [event.retry_in_s for event in world.events if isinstance(event, SinkFailed)]
    assert 5 <= len(pauses) <= 12
    assert pauses[0] <= 1.0
    assert all(2.0 <= pause <= 4.0 for pause in pauses[3:])


def test_at_the_bound_nothing_more_is_ingested() -> None:
    """J7: rather than lose output or memory, the pipeline waits, then says which sink it is."""
    settings = replace(SETTINGS, outbox=OutboxSettings(transactions_max=3), sink_wait_s_max=5.0)
    world = World()
    pipeline = world.open(settings=settings, sinks=TWO)
    world.sinks["two"].down = True
    for id in range(3):
        pipeline.push("orders", [order(id)])
    assert pipeline.status().sinks[1].full
    with pytest.raises(UnavailableError, match="sink two has not received 3 transactions"):
        pipeline.push("orders", [order(9)])
    assert len(contents(pipeline, "orders")) == 3
    with pytest.raises(UnavailableError, match="sink two"):
        pipeline.transaction()
    world.sinks["two"].down = False
    world.env.advance(60)
    assert pipeline.push("orders", [order(9)]) == 4
    assert numbers(world, "two") == [1, 2, 3, 4]


def test_a_write_whose_answer_was_lost_is_not_made_again() -> None:
    """Scenario 84, J7: the sink is asked how far it got before anything is sent again."""
    world = World()
    pipeline = world.open(sinks={"one": "revenue"})
    world.sinks["one"].lose_answers = 2
    for id in range(3):
        pipeline.push("orders", [order(id)])
        world.env.advance(10)
    assert pipeline.deliver()
    assert numbers(world, "one") == [1, 2, 3]
    assert world.sinks["one"].writes == 3, "a large batch is not sent in vain"


def test_undelivered_output_outlives_flush_close_and_journal() -> None:
    """J6: the replay position may pass what a sink lacks, because its output is kept."""
    world = World()
    pipeline = world.open(sinks=TWO)
    world.sinks["two"].down = True
    for id in range(3):
        pipeline.push("orders", [order(id, "a", id)])
        pipeline.flush()
    assert [paths.parse(path).number for path in files(world)] == [1, 2, 3]
    pipeline.close()
    manifest = Manifests(world.store, world.env).latest()
    assert manifest is not None
    assert manifest.manifest.progress.sinks == (
        SinkAt("one", world.shelves["one"].last),
        SinkAt("two"),
    )
    for entry in world.store.list("journal/"):
        if entry.path.endswith(".arrow"):
            world.store.delete(entry.path)
    again = world.open(sinks=TWO)
    assert world.shelves["two"].batches == world.shelves["one"].batches
    assert len(world.shelves["two"].batches) == 3
    again.flush()
    latest = Manifests(world.store, world.env).latest()
    assert latest is not None
    assert latest.manifest.progress.outbox == (), "what is left of it only the checkpoint needs"


def test_kept_output_is_checked_before_it_is_sent() -> None:
    """K2: a flipped byte in a file of the outbox is an error that names the file, and stops."""
    world = World()
    pipeline = world.open(sinks=TWO)
    world.sinks["two"].down = True
    pipeline.push("orders", [order(1)])
    pipeline.close()
    (path,) = files(world)
    found = world.store.get(path)
    assert found is not None
    world.store.delete(path)
    world.store.put_new(path, b"x" + found.data[1:])
    again = world.open(sinks=TWO)
    with pytest.raises(CorruptError, match=path):
        again.push("orders", [order(2)])
    world.store.delete(path)
    with pytest.raises(TruncatedError, match=path):  # K6: asked before the claim.
        world.open(sinks=TWO)
    assert numbers(world, "two") == []


def test_a_leftover_file_is_adopted_if_its_rows_are_the_same() -> None:
    """J6, K1: a crash between file and manifest leaves a file; replay makes the same again."""
    world = World()
    pipeline = world.open(sinks=TWO)
    world.sinks["two"].down = True
    pipeline.push("orders", [order(1)])
    outbox = pipeline._session.state.outboxes[1]
    outbox.write_files()
    assert len(files(world)) == 1
    again = world.open(sinks=TWO)
    world.sinks["two"].down = True
    assert numbers(world, "two") == [1], "it was up for a moment"
    again.push("orders", [order(2)])
    again._session.state.outboxes[1].write_files()
    third = World(world.env)
    third.store = world.store
    third.shelves = {"one": world.shelves["one"], "two": world.shelves["two"]}
    with third.open(sinks=TWO):
        pass
    assert numbers(world, "two") == [1, 2]


def test_no_two_writers_share_a_file_of_the_outbox() -> None:
    """K1: one that was fenced must not touch what its successor's manifest names."""
    env = ManualEnv()
    store = MemoryStore(env)
    kept = []
    for _ in range(2):
        outbox = Outbox(ShelfSink("s", "v", Shelf()), LINEAGE, store, env, at=SinkAt("s"))
        outbox.offer(mark(1), pa.table({"a": [1], "_w": [1]}))
        _, (file,) = outbox.write_files()
        kept.append(file.path)
        assert outbox.deliver()
        assert outbox.write_files() == (SinkAt("s", mark(1)), ())
    assert len(set(kept)) == 2
    assert {paths.parse(path).number for path in kept} == {1}
    assert all(store.exists(path) for path in kept), "collection removes them"


def test_a_view_that_has_rows_before_anything_came_in() -> None:
    """J7: a count of nothing is a row; a sink that was never sent it cannot take it back."""
    sql = SQL + "CREATE MATERIALIZED VIEW counted AS SELECT COUNT(*) AS n FROM orders;"

    def opened(world: World, shelf: Shelf, faulty: FaultyStore | None = None) -> Pipeline:
        return Pipeline(
            faulty or world.store,
            world.env,
            executor=lambda store, env: ReferenceExecutor(sql, store, env),
            sinks=[ShelfSink("out", "counted", shelf)],
        )

    for number in range(1, 1000):
        world, shelf = World(), Shelf()
        crashed = False
        try:
            opened(world, shelf, FaultyStore(world.store, crash_at(number, "after")))
        except Crash:
            crashed = True
        pipeline = opened(world, shelf)
        assert shelf.rows() == {(0,): 1}
        pipeline.push("orders", [order(1)])
        assert shelf.rows() == {(1,): 1}
        assert [number for number, _ in shelf.batches] == [1, 2]
        if not crashed:
            return


def test_the_guard_raises_when_the_order_is_broken() -> None:
    """J7: never an assert, and never a batch out of order."""
    env = ManualEnv()
    sink = ShelfSink("s", "v", Shelf())
    outbox = Outbox(sink, LINEAGE, MemoryStore(env), env, at=SinkAt("s", mark(3)), since=TX(3))
    outbox.settle(TX(3))
    change = pa.table({"a": [1], "_w": [1]})
    outbox.offer(mark(5), change)
    for transaction in (4, 5):
        with pytest.raises(BugError, match="rising order"):
            outbox.offer(mark(transaction), change)
    with pytest.raises(BugError, match="changes with rows"):
        outbox.offer(mark(6), change.slice(1))


def test_a_sink_of_another_pipeline_is_refused() -> None:
    """J7: a pipeline that was reset begins at 1, and the sink would drop all of it as known."""
    world = World()
    world.open(sinks=TWO).push("orders", [order(1)])
    reset = World()
    reset.env = ManualEnv(5)
    reset.store = MemoryStore(reset.env)
    reset.shelves = {"one": world.shelves["one"]}
    with pytest.raises(InvalidError, match="output of another pipeline"):
        reset.open(sinks=TWO)
    assert numbers(reset, "one") == [1]


def test_a_sink_that_lost_what_it_was_given_is_noticed() -> None:
    """J7: a sink restored from a backup would miss transactions forever."""
    world = World()
    with world.open(sinks=TWO) as pipeline:
        pipeline.push("orders", [order(1)])
        first = world.shelves["two"].last
        pipeline.push("orders", [order(2)])
    for held in (None, first):
        world.shelves["two"].last = held
        with pytest.raises(InvalidError, match="sink two held transaction 2"):
            world.open(sinks=TWO)


def test_a_sink_ahead_of_its_pipeline_is_noticed() -> None:
    """J7: after an old state was restored, the next transactions would be dropped as known."""
    world = World()
    with world.open(sinks=TWO) as pipeline:
        pipeline.push("orders", [order(1)])
    world.shelves["two"].last = replace(world.shelves["two"].last, transaction=TX(7))
    with pytest.raises(InvalidError, match="sink two holds transaction 7"):
        world.open(sinks=TWO)


def test_an_error_that_does_not_go_away_stops_the_pipeline_but_no_push() -> None:
    """J7: rows that are durable are acknowledged; the next are not taken in."""

    class Denied(ShelfSink):
        def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
            raise InvalidError("permission denied for table revenue")

    world = World()
    pipeline = world.open(sinks={"one": "revenue"})
    outbox = pipeline._session.state.outboxes[0]
    outbox.sink = Denied("one", "revenue", world.shelves["one"])
    assert pipeline.push("orders", [order(1)]) == 1
    assert pipeline.status().sinks[0].stopped
    with pytest.raises(InvalidError, match="permission denied"):
        pipeline.push("orders", [order(2)])
    assert len(contents(pipeline, "orders")) == 1
    world.open(sinks={"one": "revenue"})
    assert numbers(world, "one") == [1]


def test_a_driver_that_raises_anything_is_tried_again() -> None:
    """J7: an exception of a library below a sink does not end the pipeline."""

    class Odd(ShelfSink):
        def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
            super().write(previous, mark, change)
            raise OSError("connection reset")

    world = World()
    pipeline = world.open(sinks={"one": "revenue"})
    pipeline._session.state.outboxes[0].sink = Odd("one", "revenue", world.shelves["one"])
    for id in range(3):
        pipeline.push("orders", [order(id)])
        world.env.advance(10)
    assert pipeline.deliver()
    assert numbers(world, "one") == [1, 2, 3]


def test_a_sink_that_is_down_while_the_pipeline_is_opened_catches_up() -> None:
    """Scenario 84, J6: what was sent before the crash is not sent again, the rest is."""
    world = World()
    first = world.open(sinks=TWO)
    for id in range(2):
        first.push("orders", [order(id)])
    world.sinks["two"].down = True
    first.push("orders", [order(2)])

    down = True

    class Sometimes(ShelfSink):
        def last(self) -> Delivered | None:
            if down:
                raise UnavailableError("down")
            return super().last()

    import tests.engine.doubles as doubles

    original = doubles.ShelfSink
    doubles.ShelfSink = Sometimes  # type: ignore[misc]
    try:
        second = world.open(sinks=TWO)
    finally:
        doubles.ShelfSink = original  # type: ignore[misc]
    assert second.status().sinks[1].pending == 3, "nobody knows which of them it holds"
    down = False
    world.env.advance(10)
    assert second.deliver()
    assert world.shelves["two"].batches == world.shelves["one"].batches
    assert numbers(world, "two") == [1, 2, 3]


def test_of_two_drivers_one_is_fenced_and_output_is_published_once() -> None:
    """Scenario 74, J7: a zombie still sends what it committed; the sink has it from another."""
    world = World()
    zombie = world.open(sinks=TWO)
    zombie_sinks = world.sinks
    for sink in zombie_sinks.values():
        sink.down = True
    zombie.push("orders", [order(1)])
    successor = world.open(sinks=TWO)
    successor.push("orders", [order(2)])
    for sink in zombie_sinks.values():
        sink.down = False
    world.env.advance(100)
    zombie.deliver()
    world.env.advance(100)
    zombie.deliver()
    with pytest.raises(FencedError):
        zombie.push("orders", [order(3)])
    world.check(successor)
    assert numbers(world, "one") == numbers(world, "two") == [1, 2]


def test_delivery_is_told_as_it_happens() -> None:
    """J7: a listener sees each batch arrive once."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1, "a"), order(2, "b")])
    published = [event for event in world.events if isinstance(event, Published)]
    assert published == [Published("revenue", TX(1), 2)]


def test_two_sinks_cannot_share_a_name() -> None:
    """J7: their progress could not be told apart."""
    world = World()
    with pytest.raises(StepwellError, match="same name"):
        Pipeline(
            world.store,
            world.env,
            executor=lambda store, env: ReferenceExecutor(SQL, store, env),
            sinks=[ShelfSink("x", "revenue", Shelf()), ShelfSink("x", "visits", Shelf())],
        )
    assert world.store.list() == ()
