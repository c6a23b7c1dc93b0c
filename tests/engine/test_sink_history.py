"""What a sink says it holds, compared with what its pipeline sent: J16."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pytest

from stepwell.engine.outbox import Outbox
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.restore_request import RestoreRequest
from stepwell.engine.rewind import choose_point, rewind
from stepwell.errors import ConflictError, FencedError, InvalidError
from stepwell.manifest.manifest import Manifests
from stepwell.manifest.progress import SinkAt
from stepwell.model import Position, Transaction
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at
from tests.engine.doubles import SETTINGS, Shelf, ShelfSink, World, order
from tests.engine.test_sinks import LINEAGE, mark

TX = Transaction
ONE = {"one": "revenue"}


def copied(store: object) -> MemoryStore:
    """A copy of a store, as a backup or `cp -r` makes it."""
    assert isinstance(store, MemoryStore)
    copy = MemoryStore(store._env)
    copy._objects = dict(store._objects)
    return copy


def push(pipeline: Pipeline, *ids: int) -> None:
    for id in ids:
        pipeline.push("orders", [order(id, f"c{id}", id)])


def numbers(shelf: Shelf) -> list[int]:
    return [number for number, _ in shelf.batches]


class Down(ShelfSink):
    """A sink that is down until its shelf's name leaves the set."""

    unreachable: ClassVar[set[str]] = set()

    def _reach(self) -> None:
        self.down = self.name in self.unreachable
        super()._reach()


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setattr("tests.engine.doubles.ShelfSink", Down)
    monkeypatch.setattr(Down, "unreachable", set())
    return Down.unreachable


@pytest.mark.parametrize("openings", [1, 3])
def test_a_sink_ahead_of_a_store_from_a_backup_is_refused_when_it_comes_back(
    down: set[str], openings: int
) -> None:
    """Scenario 92, J16: the store is at 3, the sink holds 8 and is down while the pipeline opens
    and goes on to 10. What it holds is not what this pipeline did; nothing counts as delivered.
    """
    world = World()
    with world.open(sinks=ONE) as pipeline:
        push(pipeline, 1, 2, 3)
    backup = copied(world.store)
    with world.open(sinks=ONE) as pipeline:
        push(pipeline, 4, 5, 6, 7, 8)
    shelf = world.shelves["one"]
    world.store = backup
    down.add("one")
    ids = iter(range(104, 120))
    for _ in range(openings):
        pipeline = world.open(sinks=ONE)
        push(pipeline, next(ids), next(ids))
        if openings > 1:
            pipeline.close()
    pipeline = world.open(sinks=ONE)
    push(pipeline, *(next(ids) for _ in range(10 - pipeline.transaction_number)))
    assert pipeline.transaction_number == 10
    down.clear()
    world.env.advance(100)
    assert not pipeline.deliver()
    with pytest.raises(InvalidError, match=r"sink one holds transaction 8 .* did not send"):
        push(pipeline, 99)
    assert numbers(shelf) == [1, 2, 3, 4, 5, 6, 7, 8]
    (status,) = pipeline.status().sinks
    assert (status.delivered, status.pending, status.stopped) == (3, 7, True)
    with pytest.raises(InvalidError, match="sink one holds transaction 8"):
        world.open(sinks=ONE)


def test_a_sink_that_goes_back_while_the_pipeline_runs_is_refused() -> None:
    """Scenario 99, J16: a database restored behind the connection would miss transactions 3 and 4
    forever, while status says 5.
    """
    world = World()
    pipeline = world.open(sinks=ONE)
    push(pipeline, 1, 2)
    shelf = world.shelves["one"]
    before = shelf.last, list(shelf.batches)
    push(pipeline, 3, 4)
    shelf.last, shelf.batches = before
    push(pipeline, 5)
    assert numbers(shelf) == [1, 2], "the sink compares, and takes nothing"
    with pytest.raises(
        InvalidError, match=r"held transaction 4 .* now reports transaction 2 .* back"
    ):
        push(pipeline, 6)
    assert pipeline.status().sinks[0].delivered == 4
    assert pipeline.status().sinks[0].pending == 1


def test_a_sink_emptied_while_the_pipeline_runs_is_refused() -> None:
    """Scenario 99, J16: it would hold the last changes of a view, and none of its rows."""
    world = World()
    pipeline = world.open(sinks=ONE)
    push(pipeline, 1, 2)
    shelf = world.shelves["one"]
    shelf.last, shelf.batches = None, []
    push(pipeline, 3)
    with pytest.raises(InvalidError, match=r"held transaction 2 .* reports that it holds nothing"):
        push(pipeline, 4)
    assert not shelf.batches


def test_of_two_copies_of_a_pipeline_one_has_the_sink() -> None:
    """Scenario 101, J16: equal numbers are not equal output; the second copy is told, and none of
    its output is taken for delivered.
    """
    first = World()
    with first.open(sinks=ONE) as pipeline:
        push(pipeline, 1, 2)
    second = World(ManualEnv(77))
    second.store = copied(first.store)
    second.shelves = first.shelves
    one, two = first.open(sinks=ONE), second.open(sinks=ONE)
    push(one, 3)
    push(two, 103)
    shelf = first.shelves["one"]
    assert numbers(shelf) == [1, 2, 3]
    with pytest.raises(InvalidError, match=r"holds transaction 3 .* copy of this pipeline"):
        push(two, 104)
    assert two.status().sinks[0].pending == 1
    push(one, 4)
    with pytest.raises(InvalidError, match="sink one holds transaction 4"):
        second.open(sinks=ONE)
    first.check(one)


def test_a_copy_whose_numbers_fit_when_it_is_opened_is_refused(down: set[str]) -> None:
    """Scenario 101, J16: the sink holds 3, and so does the journal that is to be replayed; but the
    entries differ. It is refused before the claim, so its writer is not fenced.
    """
    first = World()
    with first.open(sinks=ONE) as pipeline:
        push(pipeline, 1, 2)
    second = World(ManualEnv(77))
    second.store = copied(first.store)
    second.shelves = first.shelves
    down.add("one")
    writer = second.open(sinks=ONE)
    push(writer, 103)
    down.clear()
    one = first.open(sinks=ONE)
    push(one, 3)
    with pytest.raises(InvalidError, match=r"holds transaction 3 \(entry"):
        second.open(sinks=ONE)
    down.add("one")
    push(writer, 104)
    down.clear()
    push(one, 4)
    first.check(one)
    assert numbers(first.shelves["one"]) == [1, 2, 3, 4]


def test_a_restore_is_told_to_its_sinks_and_begins_a_timeline() -> None:
    """F13, J16: the difference belongs to the new timeline, and a sink that holds what was left
    behind is refused by name.
    """
    world = World()
    pipeline = world.open(sinks=ONE)
    push(pipeline, 1, 2)
    pipeline.checkpoint("early")
    push(pipeline, 3)
    shelf = world.shelves["one"]
    left = shelf.last
    assert left is not None
    session = pipeline._session
    rewind(session, choose_point(session, RestoreRequest(checkpoint="early")))
    found = Manifests(world.store, world.env).latest()
    assert found is not None
    restored = shelf.last
    assert restored is not None
    assert (restored.transaction, restored.timeline) == (4, found.manifest.timeline)
    assert left.timeline == found.manifest.timelines[0].id != restored.timeline
    push(pipeline, 5)
    assert shelf.last.timeline == restored.timeline
    world.check(pipeline)
    pipeline.close()
    # As a copy of the pipeline that was not restored would have it.
    shelf.last = replace(left, transaction=TX(5), position=Position(99))
    with pytest.raises(
        InvalidError, match=f"of timeline {left.timeline}, which is not in the hist"
    ):
        world.open(sinks=ONE)


def test_what_a_sink_said_is_kept_while_a_long_replay_is_flushed() -> None:
    """J16, J6: killed during replay, a sink that is then put back must not pass for one that never
    got further: what it held is no longer replayed.
    """
    tiny = replace(SETTINGS, memory_bytes_max=1, replay_rows_max=1)
    world = World()
    with world.open(sinks=ONE) as pipeline:
        push(pipeline, 1)
    shelf = world.shelves["one"]
    before = shelf.last, list(shelf.batches)
    push(world.open(sinks=ONE), 2, 3, 4)
    seen = 0
    for number in range(1, 200):
        again = World(ManualEnv(9))
        again.store = copied(world.store)
        again.shelves["one"] = Shelf(shelf.last, list(shelf.batches))
        faulty = FaultyStore(again.store, crash_at(number, "after"))
        try:
            again.open(faulty, tiny, sinks=ONE, strike=False)
        except Crash:
            pass
        else:
            break
        found = Manifests(again.store, again.env).latest()
        assert found is not None
        moved = 1 < found.manifest.transaction < 4
        seen += moved
        if moved:
            assert found.manifest.progress.sinks == (SinkAt("one", shelf.last),)
            again.shelves["one"] = Shelf(*before)
            with pytest.raises(InvalidError, match="it went back"):
                again.open(sinks=ONE)
        again.shelves["one"] = Shelf(shelf.last, list(shelf.batches))
        again.check(again.open(sinks=ONE))
    assert seen > 3


def test_a_zombie_is_told_that_it_was_fenced_and_not_that_its_sink_is_odd() -> None:
    """J16, F3: a sink that knows more was written to by the successor."""
    world = World()
    zombie = world.open(sinks=ONE)
    push(zombie, 1)
    sink = world.sinks["one"]
    sink.down = True
    push(zombie, 2)
    push(world.open(sinks=ONE), 3)
    sink.down = False
    world.env.advance(100)
    assert not zombie.deliver()
    with pytest.raises(FencedError):
        push(zombie, 4)
    assert numbers(world.shelves["one"]) == [1, 2, 3]


def test_a_sink_that_comes_back_is_asked_though_nothing_waits_for_it(down: set[str]) -> None:
    """Scenario 92, J16: what it holds stops the pipeline before there is anything to send."""
    world = World()
    with world.open(sinks=ONE) as pipeline:
        push(pipeline, 1)
    backup = copied(world.store)
    with world.open(sinks=ONE) as pipeline:
        push(pipeline, 2)
    world.store = backup
    down.add("one")
    pipeline = world.open(sinks=ONE)
    down.clear()
    world.env.advance(100)
    pipeline.deliver()
    with pytest.raises(InvalidError, match="sink one holds transaction 2"):
        push(pipeline, 3)


def test_a_write_of_ours_that_lands_late_is_recognised() -> None:
    """J16, J7: the answer was lost, the sink said that it does not hold it, and then it did."""

    class Late(ShelfSink):
        """Its first write lands only when the second is made."""

        pending: object = None

        def write(self, previous, mark, change) -> None:  # type: ignore[no-untyped-def]
            if self.pending is None:
                self.pending = (previous, mark, change)
                raise OSError("connection reset")
            if self.pending != "landed":
                super().write(*self.pending)  # type: ignore[misc]
                self.pending = "landed"
            super().write(previous, mark, change)

    world = World()
    pipeline = world.open(sinks=ONE)
    pipeline._session.state.outboxes[0].sink = Late("one", "revenue", world.shelves["one"])
    push(pipeline, 1)
    world.env.advance(10)
    assert pipeline.deliver()
    push(pipeline, 2)
    assert numbers(world.shelves["one"]) == [1, 2]
    world.check(pipeline)


def test_a_sink_that_contradicts_itself_is_tried_again_later() -> None:
    """J16: one that refuses what it says to hold must not be asked in a loop without a pause."""

    class Odd(ShelfSink):
        writes = 0

        def write(self, previous, mark, change) -> None:  # type: ignore[no-untyped-def]
            Odd.writes += 1
            raise ConflictError("no")

    world = World()
    pipeline = world.open(sinks=ONE)
    pipeline._session.state.outboxes[0].sink = Odd("one", "revenue", world.shelves["one"])
    push(pipeline, 1)
    assert Odd.writes == 1
    assert pipeline.status().sinks[0].retry_in_s > 0


@pytest.mark.parametrize("held", [mark(2), mark(7), replace(mark(5), entry=mark(1).entry), None])
def test_an_answer_is_the_mark_believed_or_one_that_waits(held: object) -> None:
    """J16: anything else stops the pipeline, whatever its number is."""
    env = ManualEnv()
    sink = ShelfSink("s", "v", Shelf(last=held))  # type: ignore[arg-type]
    outbox = Outbox(sink, LINEAGE, MemoryStore(env), env, at=SinkAt("s", mark(3)), since=TX(3))
    outbox.settle(TX(3))
    for number in (4, 5, 6):
        outbox.offer(mark(number), pa.table({"a": [1], "_w": [1]}))
    assert not outbox.deliver()
    assert isinstance(outbox.stopped, InvalidError)
    assert outbox.status().pending == 3
    assert sink.shelf.batches == []
