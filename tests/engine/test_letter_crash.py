"""Dead letters are the same through any crash and any split: with time, transaction and text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from stepwell.engine.events import Replayed
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Limits
from stepwell.lsm.dead_letter import LETTER, BadRow
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at
from tests.engine.doubles import SETTINGS, Feed, World, click, contents, order

QUIET = replace(SETTINGS, checkpoint_every_s=1e9)
START = ManualEnv().now()
Piece = Callable[[Pipeline], object]


def world() -> World:
    made = World()
    made.feeds = {
        "files": Feed("orders")
        .put(order(1, "a", 5), order(2, "b", 6))
        .delete({"id": 2}, {"id": 2}, {"id": 77})
        .bad("{not json", '{"id": 3')
        .put(order(2, "b", 1))
        .delete({"id": 1}, {"id": 78}),
        "socket": Feed("clicks", again=False)
        .delete(click("a", "/x"))
        .put(click("a", "/x"))
        .delete(click("a", "/x"), click("a", "/x")),
    }
    return made


def pushed(pipeline: Pipeline) -> None:
    bad = [BadRow("in.json, line 4", "not JSON", "oops")]
    pipeline.push("orders", [order(100)], delete=[{"id": 5}, {"id": 5}], bad=bad)


def explicit(pipeline: Pipeline) -> None:
    with pipeline.transaction() as several:
        several.push("orders", [order(101), order(None)])
        several.push("orders", delete=[{"id": 101}, {"id": 101}])
        several.push("orders", [order(101)])
        several.push("clicks", delete=[click("z")])


PIECES: tuple[tuple[int | None, Piece], ...] = (
    (None, lambda pipeline: pipeline.run(once=True)),
    (100, pushed),
    (101, explicit),
    (None, lambda pipeline: pipeline.flush()),
    (103, lambda pipeline: pipeline.push("orders", [order(103)], delete=[{"id": 9}])),
    (104, lambda pipeline: pipeline.push("orders", [order(104)], delete=[{"id": 2}, {"id": 8}])),
)
"""What is done, each in a minute of its own, and the row that tells that it has been."""


def work(made: World, faulty: FaultyStore | None = None) -> None:
    """All of it in one process; done again, only what is missing. It is opened at another time."""
    made.env.time = START + timedelta(hours=1)
    pipeline = made.open(faulty, QUIET)
    for minute, (marker, act) in enumerate(PIECES):
        made.env.time = START + timedelta(minutes=minute)
        if marker is None or all(row[0] != marker for row in contents(pipeline, "orders")):
            act(pipeline)
    pipeline.close()


def letters(pipeline: Pipeline, *columns: str) -> list[Any]:
    chosen = columns or LETTER
    found = [
        (table, *(row[name] for name in chosen))
        for table in ("orders", "clicks")
        for row in pipeline.table(f"{table}$errors").to_pylist()
    ]
    return sorted(found, key=repr)


def minutes(pipeline: Pipeline) -> list[tuple[object, ...]]:
    return [
        (table, (time - START) / timedelta(minutes=1), *rest)
        for table, time, *rest in letters(pipeline)
    ]


def test_every_column_of_every_letter_is_filled() -> None:
    """J13: to repair the input, a user needs to know when, where and what, deletes included."""
    made = world()
    work(made)
    found = minutes(made.open(settings=QUIET))
    missing = "delete of a key that is not there"
    assert ("orders", 0, 2, "files", "files, line 3", missing, "delete {'id': 2}") in found
    assert ("orders", 0, 3, "files", "files, line 4", missing, "delete {'id': 77}") in found
    assert ("orders", 0, 3, "files", "files, line 5", "not JSON", "{not json") in found
    absent = "delete of a row that is not there"
    row = '{"customer":"a","page":"/x"}'
    assert ("clicks", 0, 1, "socket", "socket, line 0", absent, row) in found
    pushed = [row for row in found if row[1] == 1]
    assert [row[3:] for row in pushed] == [
        ("push", "delete, row 1", missing, '{"id":5}'),
        ("push", "delete, row 2", missing, '{"id":5}'),
        ("push", "in.json, line 4", "not JSON", "oops"),
    ]
    several = [row for row in found if row[1] == 2]
    assert [(row[0], *row[3:]) for row in several] == [
        ("clicks", "push", "delete, row 1", absent, '{"customer":"z","page":"/"}'),
        ("orders", "push", "delete, row 2", missing, '{"id":101}'),
        ("orders", "push", "row 2", "id is NULL", '{"id":null,"customer":"a","amount":1}'),
    ]
    assert len({row[2] for row in several}) == 1
    assert all(all(row) or row[1] == 0 for row in found)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_letters_are_those_of_a_run_without_a_crash(
    when: When, stride: int
) -> None:
    """J6, J13: time and transaction are those of the journal, so they stay through any replay."""
    made = world()
    counting = FaultyStore(made.store)
    work(made, counting)
    expected = minutes(made.open(settings=QUIET))
    for number in range(1 + (when == "after"), len(counting.calls) + 1, stride):
        made = world()
        with pytest.raises(Crash):
            work(made, FaultyStore(made.store, crash_at(number, when)))
        made.env = ManualEnv(77)
        work(made)
        assert minutes(made.open(settings=QUIET)) == expected, counting.calls[number - 1]


def test_transactions_that_are_replayed_as_one_keep_their_own_letters() -> None:
    """J6: each letter has the time and number of its own transaction, a folded delete as well."""
    made = world()
    work_until_flush = PIECES[:3]
    pipeline = made.open(settings=QUIET, sinks={})
    for minute, (_, act) in enumerate(work_until_flush):
        made.env.time = START + timedelta(minutes=minute)
        act(pipeline)
    before = minutes(pipeline)
    assert len({row[1] for row in before}) == 3
    made.env.time = START + timedelta(days=1)
    made.events.clear()
    assert minutes(made.open(settings=QUIET, sinks={})) == before
    assert max(event.together for event in made.events if isinstance(event, Replayed)) > 1


def test_however_rows_fall_into_steps_their_letters_are_the_same() -> None:
    """J2, J13: source, position, reason and text; only number and time of transactions differ."""
    found = []
    for rows_max, latency_s in ((1, 0.0), (2, 0.0), (3, 60.0), (100, 0.0), (100, 60.0)):
        made = world()
        settings = replace(QUIET, limits=Limits(rows_max), latency_s_max=latency_s)
        made.open(settings=settings, sinks={}).run(once=True)
        pipeline = made.open(settings=QUIET, sinks={})
        found.append(letters(pipeline, *LETTER[2:]))
    assert len(found[0]) == 7
    assert all(other == found[0] for other in found[1:])
