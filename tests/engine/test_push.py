"""Rows that are pushed, in any form and from any thread."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from stepwell.engine import transaction
from stepwell.engine.events import (
    Stopped,
)
from stepwell.engine.ports import Intake
from stepwell.errors import (
    InvalidError,
    StepwellError,
    UserCodeError,
)
from stepwell.journal.entry import Input
from tests.engine.doubles import (
    SETTINGS,
    Feed,
    World,
    contents,
    everything,
    order,
)
from tests.engine.pipeline_tools import entries, holding, until


def test_rows_are_accepted_in_any_form() -> None:
    """J8: lists, columns, Arrow; columns in any order and case, and some left out."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [{"id": 1}, {"amount": 2, "ID": 2}])
    pipeline.push("ORDERS", {"id": [3], "amount": [3]})
    pipeline.push("orders", pa.table({"customer": ["x"], "id": pa.array([4], pa.int32())}))
    pipeline.push("orders", pa.RecordBatch.from_pydict({"id": [5]}))
    assert [row[0] for row in contents(pipeline, "orders")] == [1, 2, 3, 4, 5]
    assert pipeline.push("orders", []) == 4, "nothing is not a transaction"
    assert [item.source for draft in entries(world) for item in draft.inputs] == ["push"] * 4


def test_a_push_larger_than_the_limits_is_one_transaction() -> None:
    """Scenario 33, J1: what was pushed together becomes visible together."""
    world = World()
    pipeline = world.open()
    assert pipeline.push("orders", [order(id) for id in range(50)]) == 1
    assert len(entries(world)) == 1
    assert len(contents(world.open(), "orders")) == 50


def test_many_rows_are_recorded_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """J5: in a thread, or at once where none can be started; what the journal holds is the same."""
    found = []
    for many, starts in ((10**6, True), (1, True), (1, False)):
        world = World()
        pipeline = world.open()
        with monkeypatch.context() as patch:
            patch.setattr(transaction, "_MANY", many)
            if not starts:
                patch.setattr(threading.Thread, "start", no_thread)
            pipeline.push("orders", [order(id) for id in range(20)])
            pipeline.push("orders", delete=[{"id": 3}])
        found.append([(draft.transaction, draft.inputs) for draft in entries(world)])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 2


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_rows_that_cannot_be_recorded_are_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """J1: computed, and recorded nowhere: nothing has happened, and the next one goes on."""
    world = World()
    pipeline = world.open()
    monkeypatch.setattr(transaction, "_MANY", 1)

    def record(intake: Intake) -> Input:
        raise InvalidError("these rows have no checksum")

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "input_line", record)
        with pytest.raises(InvalidError, match="no checksum"):
            pipeline.push("orders", [order(1)])
    assert contents(pipeline, "orders") == []
    assert entries(world) == []
    assert pipeline.push("orders", [order(2)]) == 1
    assert len(contents(world.open(), "orders")) == 1


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
    """J8, scenario 119: execute comes before record, so a push that makes a view fail fails alone.

    Whoever has to find the row is told where it came from.
    """
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1, "a", 2**62)])
    with pytest.raises(UserCodeError) as refused:
        pipeline.push("orders", [order(2, "a", 2**62)])
    said = refused.value.message
    assert said.startswith("transaction 2 cannot be computed by view revenue: [")
    assert said.endswith("(rows of the transaction: 1 of orders from push)")
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
    """J3, scenario 38: everybody gets a turn, nobody waits forever, and the loop stops."""
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
