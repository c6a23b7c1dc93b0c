"""The object users hold: pushes, transactions, turns, the loop, flushes, dead letters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from stepwell.engine.events import (
    Committed,
    Flushed,
    FlushFailed,
    Settled,
    SourceFailed,
    Stopped,
    Waiting,
)
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import BadRow, Change, Limits, Taken
from stepwell.errors import (
    ConfigError,
    FencedError,
    InvalidError,
    StepwellError,
    UnavailableError,
    UnknownOutcomeError,
    UserCodeError,
)
from stepwell.journal.log import Log
from stepwell.model import Position, Transaction
from stepwell.testing import Crash, Fault, FaultyStore, crash_at
from tests.engine.doubles import (
    SETTINGS,
    Feed,
    FeedSource,
    World,
    click,
    contents,
    everything,
    order,
)

TX = Transaction


def entries(world: World) -> list[Any]:
    found = (Log(world.store).read(Position(number)) for number in range(1, 100))
    return [item.entry.draft for item in found if item and not item.entry.is_barrier]


# Pushing


def test_rows_are_taken_in_any_form_people_have_them_in() -> None:
    """J8: lists, columns, Arrow; columns in any order and case, and some left out."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [{"id": 1}, {"amount": 2, "ID": 2}])
    pipeline.push("ORDERS", {"id": [3], "amount": [3]})
    pipeline.push("orders", pa.table({"customer": ["x"], "id": pa.array([4], pa.int32())}))
    pipeline.push("orders", pa.RecordBatch.from_pydict({"id": [5]}))
    assert [row[0] for row in contents(pipeline, "orders")] == [1, 2, 3, 4, 5]
    assert pipeline.push("orders", []) == 4, "nothing is no transaction"
    assert [item.source for draft in entries(world) for item in draft.inputs] == ["push"] * 4


def test_a_push_larger_than_the_limits_is_one_transaction() -> None:
    """Scenario 33, J1: what was pushed together becomes visible together."""
    world = World()
    pipeline = world.open()
    assert pipeline.push("orders", [order(id) for id in range(50)]) == 1
    assert len(entries(world)) == 1
    assert len(contents(world.open(), "orders")) == 50


@pytest.mark.parametrize(
    ("table", "rows", "said"),
    [
        ("order", [{"id": 1}], "there is no table order\nhint: did you mean orders?"),
        ("orders", [{"idd": 1}], "orders has no column idd"),
        ("orders", [1], "expected a mapping"),
        ("orders", [{"id": object()}], "cannot be read"),
        ("orders", [{"id": 2**70}], "cannot be read"),
        ("orders", pa.table({"id": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}), "type"),
    ],
)
def test_a_push_that_makes_no_sense_is_refused_and_nothing_is_recorded(
    table: str, rows: Any, said: str
) -> None:
    """J8: before `record` nothing has happened, and the pipeline goes on."""
    world = World()
    pipeline = world.open()
    with pytest.raises(InvalidError) as refused:
        pipeline.push(table, rows)
    assert said in str(refused.value)
    assert entries(world) == []
    assert pipeline.push("orders", [order(1)]) == 1


def test_what_cannot_be_computed_is_not_recorded() -> None:
    """J8: execute comes before record, so a push that makes a view fail fails alone."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1, "a", 2**62)])
    with pytest.raises(UserCodeError):
        pipeline.push("orders", [order(2, "a", 2**62)])
    with pytest.raises(UserCodeError), pipeline.transaction() as transaction:
        transaction.push("orders", [order(2, "a", 2**62)])
    assert pipeline.push("orders", [order(2, "b", 2**62)]) == 2
    state = everything(pipeline)
    assert everything(world.open()) == state
    world.check(world.open())


def test_pushes_of_several_threads_share_an_entry_and_fail_alone() -> None:
    """J8: what arrives together is committed together, and each caller gets its own answer."""
    world = World()
    pipeline = world.open()
    answers: dict[int, object] = {}

    def push(id: int) -> None:
        row = order(id) if id != 3 else {"id": 3, "nonsense": 1}
        try:
            answers[id] = pipeline.push("orders", [row])
        except StepwellError as error:
            answers[id] = error

    with holding(pipeline):
        threads = [threading.Thread(target=push, args=(id,)) for id in range(6)]
        for thread in threads:
            thread.start()
        until(lambda: len(pipeline._pushes) == 6)
    for thread in threads:
        thread.join()
    assert isinstance(answers.pop(3), InvalidError)
    assert [row[0] for row in contents(pipeline, "orders")] == [0, 1, 2, 4, 5]
    with holding(pipeline):
        threads = [threading.Thread(target=push, args=(id,)) for id in range(10, 16)]
        for thread in threads:
            thread.start()
        until(lambda: len(pipeline._pushes) == 6)
    for thread in threads:
        thread.join()
    assert len({answers[id] for id in range(10, 16)}) <= 2, "one entry, or two by the row limit"
    world.check(pipeline)


def test_threads_push_while_the_loop_runs() -> None:
    """J3, scenario 38: everybody gets a turn, nobody waits for ever, and the loop stops."""
    world = World()
    world.feeds = {"files": Feed("orders").put(*(order(id, "a", 1) for id in range(300)))}
    settings = replace(SETTINGS, idle_s=0.001)
    pipeline = world.open(settings=settings)
    loop = threading.Thread(target=pipeline.run)
    loop.start()

    def push(first: int) -> None:
        for id in range(first, first + 10):
            pipeline.push("orders", [order(id, "b", 1)])

    threads = [threading.Thread(target=push, args=(1000 * n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    until(lambda: pipeline.status().sources[0].position == 300)
    with pytest.raises(InvalidError, match="is running"):
        pipeline.run()
    pipeline.stop()
    loop.join(timeout=60)
    assert not loop.is_alive()
    world.check(pipeline)
    assert contents(pipeline, "revenue") == [("a", 300, 300), ("b", 30, 30)]
    assert pipeline.status().flushed == pipeline.transaction_number
    assert isinstance(world.events[-1], Stopped)


@contextmanager
def holding(pipeline: Pipeline) -> Iterator[None]:
    """Nobody else gets a turn meanwhile."""
    pipeline._turns.take("test")
    try:
        yield
    finally:
        pipeline._turns.give_back()


def until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(6000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not happen in a minute")


# Explicit transactions


def test_what_a_transaction_takes_in_becomes_visible_at_once() -> None:
    """J10, J7: nothing of it is seen before, and each sink gets one batch."""
    world = World()
    world.feeds = {"files": Feed("clicks").put(click("a"), click("b"))}
    pipeline = world.open()
    with pipeline.transaction() as transaction:
        transaction.push("orders", [order(1, "a", 1)])
        transaction.push("orders", delete=[{"id": 1}])
        transaction.push("orders", [order(1, "a", 2), order(2, "a", 3)])
        assert transaction.take() == 2
        assert pipeline.read("orders").num_rows == 0, "also to whoever holds it"
        assert pipeline.status().open == "explicit"
    assert pipeline.transaction_number == 1
    assert contents(pipeline, "revenue") == [("a", 5, 2)]
    assert [n for n, _ in world.shelves["revenue"].batches] == [1]
    assert [n for n, _ in world.shelves["buyers"].batches] == [1]
    kinds = [(draft.kind.value, draft.step, draft.closes) for draft in entries(world)]
    assert kinds == [
        *(("step", step, False) for step in range(5)),
        ("close", 5, True),
    ]
    world.check(pipeline)


def test_an_empty_transaction_leaves_nothing_behind() -> None:
    """J10: begun and committed without input it is no transaction."""
    world = World()
    pipeline = world.open()
    with pipeline.transaction():
        pass
    assert pipeline.transaction_number == 0
    assert world.open().push("orders", [order(1)]) == 1


def test_everybody_else_waits_for_the_end_of_a_transaction() -> None:
    """J3: no input is taken while one is open; and its own thread is told instead of hanging."""
    world = World()
    pipeline = world.open()
    transaction = pipeline.transaction()
    for call in (
        lambda: pipeline.push("orders", [order(1)]),
        lambda: pipeline.run(once=True),
        pipeline.transaction,
    ):
        with pytest.raises(InvalidError, match="would wait for itself"):
            call()
    other = threading.Thread(target=lambda: pipeline.push("orders", [order(2, "b")]))
    other.start()
    until(lambda: Waiting("push", "the end of the open transaction") in world.events)
    transaction.push("orders", [order(1, "a")])
    assert transaction.commit() == 1
    other.join(timeout=60)
    assert pipeline.transaction_number == 2
    with pytest.raises(InvalidError, match="has ended"):
        transaction.push("orders", [order(3)])
    with pytest.raises(InvalidError, match="has ended"):
        transaction.abort()


def test_a_flush_asked_for_inside_a_transaction_waits_for_its_end_and_says_so() -> None:
    """J9: no checkpoint holds half a transaction, whoever asks for it."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1)])
    with pipeline.transaction() as transaction:
        transaction.push("orders", [order(2)])
        assert not pipeline.flush()
        assert Waiting("flush", "the end of the open transaction") in world.events
        assert pipeline.status().flushed == 0
        other = threading.Thread(target=pipeline.flush)
        other.start()
        until(lambda: len(pipeline._turns._line) == 1)
        assert pipeline.status().flushed == 0
    other.join(timeout=60)
    assert pipeline.status().flushed == 2
    pipeline.transaction()
    pipeline.close()
    assert world.open().transaction_number == 2


def test_a_transaction_the_journal_cannot_take_back_yet_is_taken_back_first_thing() -> None:
    """J10, K1: the entry that aborts comes before anything else does."""
    world = World()
    faulty = FaultyStore(world.store)
    pipeline = world.open(faulty, strike=False)
    transaction = pipeline.transaction()
    transaction.push("orders", [order(99)])
    put_new = faulty.put_new

    def full(path: str, data: Any) -> None:
        raise UnavailableError("the disk is full", not_applied=True)

    faulty.put_new = full  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="full"):
        transaction.abort()
    with pytest.raises(UnavailableError, match="full"):
        pipeline.push("orders", [order(1)])
    faulty.put_new = put_new  # type: ignore[method-assign]
    assert pipeline.push("orders", [order(1)]) == 1
    kinds = [draft.kind.value for draft in entries(world)]
    assert kinds == ["step", "step", "abort", "step"]
    assert [row[0] for row in contents(world.open(), "orders")] == [1]


# Dead letters


def bad_world() -> World:
    world = World()
    world.feeds = {
        "files": Feed("orders").bad("{", "x" * 1000).put(order(1), order(None), order(2, "a", 1))
    }
    return world


def test_bad_rows_go_to_the_dead_letters_and_the_rest_goes_on() -> None:
    """J13, scenario 90: with source, place and reason; counted in status; through any restart."""
    world = bad_world()
    pipeline = world.open(settings=replace(SETTINGS, limits=Limits(100)))
    pipeline.run(once=True)
    pipeline.push("orders", [order(None), order(7)], delete=[{"id": 1234}])
    pipeline.push("orders", bad=[BadRow("stdin, line 3", "not JSON", "]")])
    assert [row[0] for row in contents(pipeline, "orders")] == [1, 2, 7]
    letters = pipeline.read("orders$errors").to_pylist()
    assert len(letters) == 6
    assert {
        "source": "files",
        "position": "files, line 0",
        "reason": "not JSON",
        "text": "{",
    } in letters
    assert "id is NULL" in {letter["reason"] for letter in letters}
    assert pipeline.status().dead_letters == {"orders": 6}
    committed = [event for event in world.events if isinstance(event, Committed)]
    assert [event.rejected for event in committed] == [3, 2, 1]
    for _ in range(2):
        pipeline = world.open()
        assert pipeline.status().dead_letters == {"orders": 6}
        assert pipeline.read("orders$errors").to_pylist() == letters
        pipeline.close()


def test_on_error_fail_stops_and_names_the_row() -> None:
    """J13: nothing of the step is recorded, and the source stays where it was."""
    world = bad_world()
    pipeline = world.open(settings=replace(SETTINGS, on_error="fail"))
    with pytest.raises(InvalidError) as refused:
        pipeline.run(once=True)
    assert "table orders cannot be taken in: source files, files, line 0: not JSON: {" in str(
        refused.value
    )
    with pytest.raises(InvalidError, match="id is NULL"):
        pipeline.push("orders", [order(None)])
    assert entries(world) == []
    assert pipeline.status().sources[0].position is None
    world.feeds["files"].events = [("put", order(1))]
    assert pipeline.run(once=True) == 1


def test_on_error_fail_does_not_refuse_what_is_recorded() -> None:
    """J13, J2: a stricter rule counts from now on; a pipeline must open to be given one."""
    world = bad_world()
    pipeline = world.open()
    for _ in range(2):
        step = pipeline._core.poll()
        assert step is not None
        pipeline._core.commit_step(step)
    letters = pipeline.status().dead_letters
    strict = world.open(settings=replace(SETTINGS, on_error="fail"))
    assert strict.status().dead_letters == letters
    with pytest.raises(InvalidError, match="cannot be taken in"):
        strict.push("orders", [order(None)])


# The loop


def test_once_takes_in_all_there_is_and_no_more() -> None:
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


def test_a_source_that_is_down_is_left_alone_and_the_others_go_on() -> None:
    """J3: status says why; once it is back it goes on where it stood."""
    world = World()
    world.feeds = {"up": Feed("orders").put(order(1)), "down": Feed("clicks").put(click("a"))}
    pipeline = world.open()
    source = pipeline._core.sources.get("down")
    assert isinstance(source, FeedSource)
    poll = source.poll

    def fail(after: object, limits: Limits) -> Taken | None:
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
        step = pipeline._core.poll()
        assert step is not None
        pipeline._core.begin(explicit=False)
        pipeline._core.add(step)
        pipeline = world.open(settings=settings)
        assert Settled(TX(2), 1, committed=False) in world.events
    with pytest.raises(UserCodeError):
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
    step = pipeline._core.poll()
    assert step is not None
    pipeline._core.begin(explicit=False)
    pipeline._core.add(step)
    world.feeds["socket"].put(click("b"))
    assert pipeline.run(once=True) == 1
    assert [(d.step, d.closes) for d in entries(world)[3:]] == [(1, False), (2, True)]
    world.check(pipeline)


def test_a_source_that_only_moves_on_makes_no_transaction() -> None:
    """J3: a thousand empty files are not read again and again, and leave nothing in the journal."""

    class Empty(FeedSource):
        def poll(self, after: Any, limits: Limits) -> Taken | None:
            self.polls.append(after or 0)
            return Taken(Change(), 0, (after or 0) + 1, ["empty"]) if (after or 0) < 3 else None

    world = World()
    pipeline = world.open()
    source = Empty("files", Feed("orders"))
    pipeline._core.sources._sources["files"] = source
    for _ in range(5):
        assert pipeline.run(once=True) == 0
    assert source.polls == [0, 1, 2, 3, 3]
    assert entries(world) == []


def test_a_push_closes_what_the_loop_left_open() -> None:
    """J3: one boundary before the next begins."""
    world = World()
    world.feeds = {"files": Feed("orders").put(order(0))}
    pipeline = world.open(settings=replace(SETTINGS, latency_s_max=100.0))
    core = pipeline._core
    core.begin(explicit=False)
    step = core.poll()
    assert step is not None
    core.add(step)
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


# Flush and failure


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
    """Scenario 38, K1: memory and journal disagree, so every later call says so."""
    world = World()
    faulty = FaultyStore(world.store)
    pipeline = world.open(faulty)
    faulty.plan = lambda call: Fault("fail") if call.operation == "keep" else None
    with pytest.raises(UnavailableError):
        pipeline.push("orders", [order(1)])
    for call in (
        lambda: pipeline.push("orders", [order(2)]),
        lambda: pipeline.read("orders"),
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
    for call in (lambda: old.read("orders"), old.flush, old.transaction, old.status):
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
    assert all(source.closed for source in pipeline._core.sources.all())
    world.events.clear()
    world.open()
    assert [type(event).__name__ for event in world.events] == ["Opened"]


# Looking


def test_a_tail_follows_a_view_from_the_next_transaction_on() -> None:
    """J7: changes with their transactions; one that is not read does not grow without end."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1)])
    tail = pipeline.tail("Revenue")
    pipeline.push("clicks", [click("a")])
    pipeline.push("orders", [order(2)])
    found = tail.take()
    assert found is not None
    assert found[0] == 3
    assert found[1].num_rows == 2
    assert tail.take() is None
    reader: list[int] = []
    thread = threading.Thread(target=lambda: reader.extend(number for number, _ in tail))
    thread.start()
    pipeline.push("orders", [order(3)])
    pipeline.close()
    thread.join(timeout=60)
    assert reader == [4]


def test_a_tail_nobody_reads_says_that_it_lost_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """J7: rather than hold every change for ever."""
    monkeypatch.setattr("stepwell.engine.tail._WAITING_MAX", 2)
    world = World()
    pipeline = world.open()
    tail = pipeline.tail("revenue")
    for id in range(4):
        pipeline.push("orders", [order(id)])
    assert [tail.take() is None for _ in range(2)] == [False, False]
    with pytest.raises(UnavailableError, match="some are lost"):
        tail.take()


def test_a_query_is_answered_as_of_the_last_transaction() -> None:
    """J1: tables and views, and only what is committed."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1, "a", 5), order(2, "b", 6)])
    found = pipeline.query("SELECT customer, total FROM revenue WHERE total > 5")
    assert found.to_pylist() == [{"customer": "b", "total": 6}]
    assert pipeline.transaction_number == 1


def test_names_are_checked_before_anything_is_touched() -> None:
    """K4: a misspelt project must not fence the pipeline that runs."""
    for feeds, error in (
        ({"push": Feed("orders")}, ConfigError),
        ({"files": Feed("nowhere")}, InvalidError),
    ):
        world = World()
        world.feeds = feeds
        with pytest.raises(error):
            world.open()
        assert world.store.list() == ()


def test_a_listener_that_raises_changes_nothing() -> None:
    """K1: what watches a pipeline cannot undo what was recorded."""
    world = World()
    pipeline = world.open()

    def angry(event: object) -> None:
        raise ZeroDivisionError

    pipeline._core.events._listener = angry
    assert pipeline.push("orders", [order(1)]) == 1
    assert pipeline.push("orders", [order(2)]) == 2
    world.check(pipeline)
