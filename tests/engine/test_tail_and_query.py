"""Reading a pipeline: tails, queries, and events for listeners."""

from __future__ import annotations

import threading

import pytest

from stepwell.errors import (
    ConfigError,
    InvalidError,
    UnavailableError,
)
from tests.engine.doubles import (
    Feed,
    World,
    click,
    order,
)


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
    """J7: rather than hold every change forever."""
    monkeypatch.setattr("stepwell.engine.tail._WAITING_MAX", 2)
    world = World()
    pipeline = world.open()
    tail = pipeline.tail("revenue")
    for id in range(4):
        pipeline.push("orders", [order(id)])
    assert [tail.take() is None for _ in range(2)] == [False, False]
    with pytest.raises(UnavailableError, match="some were lost"):
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

    pipeline._session.events._listener = angry
    assert pipeline.push("orders", [order(1)]) == 1
    assert pipeline.push("orders", [order(2)]) == 2
    world.check(pipeline)
