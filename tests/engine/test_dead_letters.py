"""Rejected rows: stored as dead letters, or a reason to stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.engine.events import (
    Committed,
)
from stepwell.engine.ports import Limits
from stepwell.errors import (
    InvalidError,
)
from stepwell.lsm.dead_letter import BadRow
from tests.engine.doubles import (
    SETTINGS,
    Feed,
    World,
    contents,
    order,
)
from tests.engine.pipeline_tools import entries


def bad_world() -> World:
    world = World()
    world.feeds = {
        "files": Feed("orders").bad("{", "x" * 1000).put(order(1), order(None), order(2, "a", 1))
    }
    return world


def test_bad_rows_go_to_the_dead_letters_and_the_rest_continues() -> None:
    """J13, scenario 90: with source, place and reason; counted in status; through any restart."""
    world = bad_world()
    pipeline = world.open(settings=replace(SETTINGS, limits=Limits(100)))
    pipeline.run(once=True)
    pipeline.push("orders", [order(None), order(7)], delete=[{"id": 1234}])
    pipeline.push("orders", bad=[BadRow("stdin, line 3", "not JSON", "]")])
    assert [row[0] for row in contents(pipeline, "orders")] == [1, 2, 7]
    letters = pipeline.table("orders$errors").to_pylist()
    assert len(letters) == 6
    assert {
        "time": world.env.now(),
        "transaction": 1,
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
        assert pipeline.table("orders$errors").to_pylist() == letters
        pipeline.close()


def test_on_error_fail_stops_and_names_the_row() -> None:
    """J13: nothing of the step is recorded, and the source stays where it was."""
    world = bad_world()
    pipeline = world.open(settings=replace(SETTINGS, on_error="fail"))
    with pytest.raises(InvalidError) as refused:
        pipeline.run(once=True)
    assert "table orders cannot be accepted: source files, files, line 0: not JSON: {" in str(
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
        step = pipeline._session.poll()
        assert step is not None
        pipeline._session.commit(step)
    letters = pipeline.status().dead_letters
    strict = world.open(settings=replace(SETTINGS, on_error="fail"))
    assert strict.status().dead_letters == letters
    with pytest.raises(InvalidError, match="cannot be accepted"):
        strict.push("orders", [order(None)])
