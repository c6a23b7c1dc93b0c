"""Changes too large for memory: in files from the executor to the sink, each delivered once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.deploy.plan import Facts
from stepwell.engine.pipeline import Pipeline
from stepwell.errors import TruncatedError
from stepwell.journal import paths
from stepwell.manifest.invariants import outbox_holds_what_is_undelivered
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.store.local import LocalStore
from stepwell.testing import Crash, FaultyStore, crash_at
from tests.engine.doubles import BulkSink, Feed, World, order

SINKS = {"bulk": "revenue", "plain": "revenue"}


def world(*, large: bool = True) -> World:
    made = World(large=large, bulk={"bulk"}, views=SINKS)
    feed = Feed("orders")
    for id in range(3):
        feed.put(*(order(10 * id + n, f"c{n}", id) for n in range(3)))
    made.feeds["orders"] = feed
    return made


def latest(made: World) -> Manifest:
    found = Manifests(made.store, made.env).latest()
    assert found is not None
    return found.manifest


def lagging(made: World, faulty: FaultyStore | None = None) -> Pipeline:
    """Three transactions, of which no sink has any."""
    pipeline = made.open(faulty)
    for sink in made.sinks.values():
        sink.down = True
    pipeline.run(once=True)
    return pipeline


def run(made: World, faulty: FaultyStore | None = None) -> Pipeline:
    """Three transactions; sinks that are down receive them after a flush."""
    pipeline = lagging(made, faulty)
    pipeline.flush()
    for sink in made.sinks.values():
        sink.down = False
    made.env.advance(10)
    pipeline.deliver()
    pipeline.flush()
    return pipeline


def test_a_large_change_reaches_every_sink_as_a_small_one_does() -> None:
    """J7: by tasks where a sink supports it, as a table where not."""
    small, made = world(large=False), world()
    for each in (small, made):
        with each.open() as pipeline:
            pipeline.run(once=True)
            each.check(pipeline)
    assert made.shelves["bulk"].batches == small.shelves["bulk"].batches
    assert made.shelves["plain"].batches == small.shelves["plain"].batches
    assert [len(batch) for _, batch in made.shelves["bulk"].batches] == [3, 6, 6]


def test_a_sink_whose_executors_decline_receives_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: executors may not see the place of a sink; the process that runs the pipeline does."""
    monkeypatch.setattr(BulkSink, "declines", True)
    made = world()
    with made.open() as pipeline:
        pipeline.run(once=True)
        made.check(pipeline)
    assert made.shelves["bulk"].batches == made.shelves["plain"].batches


@pytest.mark.parametrize("large", [True, False])
def test_undelivered_large_output_is_kept_in_several_files(large: bool) -> None:
    """J6: executors write them, and after a restart no process needs to hold their rows at once."""
    made = world()
    lagging(made).close()
    kept = latest(made).progress.outbox
    counts = [(item.transaction, item.parts, item.rows) for item in kept if item.sink == "bulk"]
    assert counts == [(1, 3, 1)] * 3 + [(2, 6, 1)] * 6 + [(3, 6, 1)] * 6
    assert Facts.of(latest(made)).undelivered == {"bulk": 3, "plain": 3}, "in transactions"
    made.large = large
    with made.open() as pipeline:
        made.check(pipeline)
        assert [len(batch) for _, batch in made.shelves["bulk"].batches] == [3, 6, 6]
        assert made.shelves["plain"].batches == made.shelves["bulk"].batches
        pipeline.flush()
    assert latest(made).progress.outbox == ()


def test_output_in_several_files_is_delivered_whole_or_not_at_all() -> None:
    """K2, J7: one of its files is gone, so nothing of the transaction may reach the sink."""
    made = world()
    lagging(made).close()
    before = latest(made)
    one = next(item for item in before.progress.outbox if item.parts > 1)
    rest = tuple(item for item in before.progress.outbox if item != one)
    damaged = replace(before, progress=replace(before.progress, outbox=rest))
    assert outbox_holds_what_is_undelivered(before, before)
    assert not outbox_holds_what_is_undelivered(before, damaged)
    made.store.delete(one.path)
    with pytest.raises(TruncatedError, match=one.path):
        made.open()
    assert not made.shelves[one.sink].batches


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_killed_at_every_call_large_output_is_delivered_once(when: str) -> None:
    """J7, J16, F1: while it is computed, kept in files, sent from them, and cleared away."""
    whole = world()
    watched = FaultyStore(whole.store)
    run(whole, watched).close()
    expected = whole.shelves["bulk"].rows()
    assert expected
    for number in range(1, len(watched.calls) + 1):
        made = world()
        with pytest.raises(Crash):
            run(made, FaultyStore(made.store, crash_at(number, when))).close()
        made.large = number % 3 != 0
        pipeline = made.open()
        pipeline.run(once=True)
        made.env.advance(10)
        pipeline.deliver()
        made.check(pipeline)
        assert made.shelves["bulk"].rows() == made.shelves["plain"].rows() == expected, number
        pipeline.flush()
        pipeline.close()
        assert latest(made).progress.outbox == (), number


def test_executors_write_undelivered_output_to_the_store_itself(tmp_path: object) -> None:
    """J6: to a store that they can open, rows do not pass through the process of the pipeline."""
    made = world()
    made.store = LocalStore(str(tmp_path), made.env)
    lagging(made).close()
    written = [item.path for item in made.store.list("outbox/")]
    assert len(written) == 30
    assert sorted({paths.parse(path).number for path in written}) == [1, 2, 3]
    with made.open() as pipeline:
        made.check(pipeline)
