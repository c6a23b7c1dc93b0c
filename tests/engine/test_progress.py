"""What a pipeline says about work that takes long."""

from __future__ import annotations

from stepwell.engine.events import (
    Committed,
    Events,
    Opened,
    OpeningAt,
    TransactionAt,
    Working,
)
from stepwell.engine.progress import Work
from stepwell.model import Transaction
from stepwell.testing import ManualEnv
from tests.engine.doubles import World, order


def test_a_transaction_says_how_many_of_its_rows_are_done() -> None:
    """From none to all, between its beginning and the event that it is committed."""
    made = World()
    pipeline = made.open()
    made.events.clear()
    pipeline.push("orders", [order(id) for id in range(9)])
    *steps, last = [e for e in made.events if isinstance(e, (TransactionAt, Committed))]
    assert steps == [TransactionAt(Transaction(1), done, 9) for done in (0, 3, 6, 9)]
    assert isinstance(last, Committed)


def test_an_opening_says_what_it_has_loaded_and_replayed() -> None:
    """Percent only rise, and the counts are those of the stage."""
    made = World()
    pipeline = made.open()
    for id in range(20):
        pipeline.push("orders", [order(id)])
        if id in (5, 10):
            pipeline.checkpoint()
    made.events.clear()
    made.open()
    opening = [e for e in made.events if isinstance(e, (OpeningAt, Opened))]
    assert isinstance(opening.pop(), Opened)
    stages = [event for event in opening if isinstance(event, OpeningAt)]
    assert [event.percent for event in stages] == sorted(event.percent for event in stages)
    loaded = [event for event in stages if event.stage == "loading" and event.total]
    assert loaded[-1].done == loaded[-1].total == 11
    replayed = [event for event in stages if event.stage == "replaying"]
    assert 0 < replayed[-1].done < replayed[-1].total
    assert replayed[-1].unit == "entry"


def test_a_compaction_says_how_far_it_is() -> None:
    made = World()
    pipeline = made.open()
    for id in range(4):
        pipeline.push("orders", [order(id)])
        pipeline.flush()
    made.events.clear()
    assert pipeline.compact()
    told = [event for event in made.events if isinstance(event, Working)]
    assert [event.done for event in told] == list(range(4))
    assert {(event.what, event.total, event.unit) for event in told} == {
        ("compacting", 4, "relation")
    }


def test_the_time_of_a_transaction_is_that_of_its_input_and_its_computing() -> None:
    """Not the time in which there was nothing to do."""
    env = ManualEnv()
    work = Work(Events(), env)
    with work.polling():
        env.advance(5)
    env.advance(0)
    with work.transaction(Transaction(1), 10) as seconds:
        env.advance(2)
        assert seconds() == 7
    env.advance(100)
    with work.transaction(Transaction(2), 10) as seconds:
        env.advance(2)
        assert seconds() == 2


def test_nothing_is_made_that_nobody_listens_to() -> None:
    """Events cost nothing then."""
    work = Work(Events(), ManualEnv())

    class Untouchable(int):
        def __mul__(self, other: object) -> int:
            raise AssertionError("computed for nobody")

        __rmul__ = __mul__

    with work.transaction(Transaction(1), Untouchable(10)):
        work.report("computing", Untouchable(1), 2, "view")
        work.report("loading", Untouchable(1), 2, "row")
