"""Explicit transactions: visible at once or not at all, while everybody else waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stepwell.engine.events import (
    Waiting,
)
from stepwell.errors import (
    InvalidError,
    UnavailableError,
)
from stepwell.testing import FaultyStore
from tests.engine.doubles import (
    Feed,
    World,
    click,
    contents,
    order,
)
from tests.engine.pipeline_tools import entries, until


def test_the_input_of_a_transaction_becomes_visible_at_once() -> None:
    """J10, J7: nothing of it is seen before, and each sink gets one batch."""
    world = World()
    world.feeds = {"files": Feed("clicks").put(click("a"), click("b"))}
    pipeline = world.open()
    with pipeline.transaction() as transaction:
        transaction.push("orders", [order(1, "a", 1)])
        transaction.push("orders", delete=[{"id": 1}])
        transaction.push("orders", [order(1, "a", 2), order(2, "a", 3)])
        assert transaction.take() == 2
        assert pipeline.table("orders").num_rows == 0, "also to whoever holds it"
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
    """J10: begun and committed without input it is not a transaction."""
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
    """J9: no checkpoint holds half a transaction, whichever process asks for it."""
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
