"""Restoring: state, sources and sinks go back together, in one commit; damage is repaired."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from stepwell.engine.events import SinkFailed
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.restore import Restored, preview, restore
from stepwell.engine.restore_request import RestorePoint, RestoreRequest
from stepwell.engine.settings import Settings
from stepwell.errors import (
    CheckpointMissing,
    CorruptError,
    InvalidError,
    ReplayMismatchError,
    StepwellError,
    TruncatedError,
)
from stepwell.journal import paths
from stepwell.manifest.checkpoint import dropping, read_checkpoint
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.manifest.timeline import is_history
from stepwell.model import Position
from stepwell.store.memory import MemoryStore
from stepwell.testing import Call, Crash, Fault, FaultyStore, When, crash_at
from tests.engine.doubles import SETTINGS, Feed, ShelfSink, World, contents, everything, order
from tests.engine.test_crash import STRIDES
from tests.trimming import trim

SPARSE = replace(SETTINGS, checkpoint_every_s=1e9)
PARTS = replace(SPARSE, outbox=replace(SETTINGS.outbox, part_rows_max=1))
"""Every row of a difference is a part of its own."""


def latest(world: World) -> Manifest:
    found = Manifests(world.store, world.env).latest()
    assert found is not None
    return found.manifest


def history() -> tuple[World, list[dict[str, Any]]]:
    """Six transactions, checkpoints after 1 ("one"), 3 and 6; what the pipeline held after each."""
    world = World()
    pipeline = world.open(settings=SPARSE)
    seen = [everything(pipeline)]
    for id in range(1, 7):
        world.env.advance(60)
        rows = [order(id, "ab"[id % 2], id * 10), order(1, "a", id)]
        pipeline.push("orders", rows if id != 4 else [order(2, None, 7)])
        seen.append(everything(pipeline))
        if id == 1:
            pipeline.checkpoint("one")
        if id == 3:
            pipeline.checkpoint()
        if id == 5:
            pipeline.flush()
    pipeline.close()
    return world, seen


def at(
    world: World,
    request: RestoreRequest,
    faulty: FaultyStore | None = None,
    settings: Settings = SPARSE,
) -> Restored:
    found = preview(request, world.store, world.store, world.env)

    def open(target: RestorePoint | None) -> Pipeline:
        return world.open(faulty, settings, base=target, strike=False)

    return restore(request, found.point, open)


@pytest.mark.parametrize("wanted", range(1, 7))
def test_back_to_any_transaction(wanted: int) -> None:
    """K9: a checkpoint and the journal after it lead to every transaction that is kept."""
    world, seen = history()
    done = at(world, RestoreRequest(transaction=wanted))
    assert everything(done.pipeline) == seen[wanted]
    assert done.pipeline.transaction_number == 7, "numbers go on: going back is a new transaction"
    assert done.damage is None
    world.check(done.pipeline)
    assert done.pipeline.push("orders", [order(50, "z", 1)]) == 8
    world.check(done.pipeline)
    again = world.open()
    assert (50, "z", 1) in contents(again, "orders")
    world.check(again)


def test_back_to_a_checkpoint_by_name_and_to_a_time() -> None:
    """K9: by name, by the beginning of an id, by time; sinks get the difference, once."""
    for request, wanted in (
        (RestoreRequest(checkpoint="one"), 1),
        (RestoreRequest(time=World().env.now() + timedelta(seconds=60 * 4 + 30)), 4),
        (RestoreRequest(time=World().env.now() + timedelta(seconds=60 * 3)), 3),
    ):
        world, seen = history()
        done = at(world, request)
        assert everything(done.pipeline) == seen[wanted]
        for name, shelf in world.shelves.items():
            numbers = [number for number, _ in shelf.batches]
            assert numbers == sorted(set(numbers)), name
        assert world.shelves["revenue"].batches[-1][0] == 7
        world.check(done.pipeline)


def test_back_and_forth() -> None:
    """K9: a restore can be taken back as long as what it undid is kept."""
    world, seen = history()
    at(world, RestoreRequest(transaction=2)).pipeline.close()
    done = at(world, RestoreRequest(transaction=5))
    assert everything(done.pipeline) == seen[5]
    assert done.pipeline.transaction_number == 8
    world.check(done.pipeline)
    done.pipeline.push("orders", [order(70)])
    third = everything(done.pipeline)
    done.pipeline.push("orders", [order(71)])
    done.pipeline.close()
    done = at(world, RestoreRequest(transaction=9))
    assert everything(done.pipeline) == third
    world.check(done.pipeline)


def test_sources_go_back_and_their_rows_come_again() -> None:
    """K9: what can be read again is taken in again; pushed rows are told to be lost."""
    world = World(feeds={"feed": Feed("orders").put(*map(order, range(6)))})
    pipeline = world.open(settings=SPARSE)
    pipeline.run(once=True, max_transactions=1)
    pipeline.checkpoint("early")
    pipeline.run(once=True)
    everything_read = contents(pipeline, "orders")
    pipeline.push("orders", [order(80), order(81)])
    pipeline.close()
    request = RestoreRequest(checkpoint="early")
    found = preview(request, world.store, world.store, world.env)
    assert found.undone.present == 3
    assert dict(found.undone.again) == {"feed": 3}
    assert dict(found.undone.lost) == {"orders": 2}
    assert set(found.undone.ahead) == {"revenue"}
    done = at(world, request)
    assert len(contents(done.pipeline, "orders")) == 3
    done.pipeline.run(once=True)
    assert contents(done.pipeline, "orders") == everything_read
    world.check(done.pipeline)


def test_looking_at_what_would_be_undone_changes_nothing() -> None:
    world, _ = history()
    before = {item.path: item.size for item in world.store.list()}
    preview(RestoreRequest(transaction=2), world.store, world.store, world.env)
    assert {item.path: item.size for item in world.store.list()} == before


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("restore_request", "settings"),
    [
        (RestoreRequest(checkpoint="one"), SPARSE),
        (RestoreRequest(transaction=4), SPARSE),
        (RestoreRequest(transaction=2), PARTS),
    ],
)
def test_killed_at_every_call_of_a_restore(
    when: When, restore_request: RestoreRequest, settings: Settings, stride: int
) -> None:
    """K1, scenario 44: the pipeline is as it was, or restored; restoring again gives the same."""
    wanted = restore_request.transaction or 1
    outcomes = set()
    for number in count(1 + (when == "after"), stride):
        world, seen = history()
        faulty = FaultyStore(world.store, crash_at(number, when))
        try:
            at(world, restore_request, faulty, settings)
        except Crash:
            pass
        else:
            break
        pipeline = world.open()
        found = everything(pipeline)
        outcomes.add(seen.index(found))
        world.check(pipeline)
        pipeline.close()
        done = at(world, restore_request, settings=settings)
        assert everything(done.pipeline) == seen[wanted]
        world.check(done.pipeline)
    assert outcomes == {wanted, 6}


def test_a_large_difference_comes_in_parts_under_numbers_of_their_own() -> None:
    """K9: rows that go before rows that come, a file for each, and only one in memory."""
    world, seen = history()
    done = at(world, RestoreRequest(transaction=2), settings=PARTS)
    pipeline = done.pipeline
    assert everything(pipeline) == seen[2]
    sent = [(n, rows) for n, rows in world.shelves["revenue"].batches if n > 6]
    last = pipeline.transaction_number
    assert last > 7
    assert [number for number, _ in sent] == list(range(last - len(sent) + 1, last + 1))
    assert all(len(rows) == 1 for _, rows in sent)
    weights = [rows[0][1] for _, rows in sent]
    assert weights == sorted(weights)
    world.check(pipeline)
    assert pipeline.push("orders", [order(80, "z", 1)]) == last + 1
    pipeline.close()
    with world.open() as again:
        world.check(again)
    for request, wanted in ((last, 2), (5, 5)):
        back = at(world, RestoreRequest(transaction=request), settings=PARTS)
        assert everything(back.pipeline) == seen[wanted]
        world.check(back.pipeline)
        back.pipeline.close()


def test_a_restore_in_parts_is_found_by_its_time() -> None:
    """K9: between the last transaction before it and itself lie numbers that nobody used."""
    world, seen = history()
    before = world.env.now()
    world.env.advance(60)
    done = at(world, RestoreRequest(transaction=2), settings=PARTS)
    last = done.pipeline.transaction_number
    world.env.advance(60)
    done.pipeline.push("orders", [order(90)])
    done.pipeline.close()
    found = preview(RestoreRequest(time=before), world.store, world.store, world.env)
    assert found.point.transaction == 6
    after = before + timedelta(seconds=90)
    found = preview(RestoreRequest(time=after), world.store, world.store, world.env)
    assert found.point.transaction == last


def damage_runs_of(world: World, manifest: Manifest, how: str) -> list[str]:
    """Damage each run that only this state names."""
    checkpoints = [read_checkpoint(world.store, ref.id, ref) for ref in manifest.checkpoints]
    older = [item for item in checkpoints if item.state.transaction < manifest.transaction]
    shared = {file.path for item in older for file in item.files}
    own = [run.path for run in manifest.runs if run.path not in shared]
    for path in own:
        found = world.store.get(path)
        assert found is not None
        world.store.delete(path)
        if how == "cut":
            world.store.put_new(path, found.data[:-1])
        if how == "flip":
            world.store.put_new(path, found.data[:9] + b"\xff" + found.data[10:])
    return own


@pytest.mark.parametrize("how", ["missing", "cut", "flip"])
def test_the_newest_checkpoint_is_damaged(how: str) -> None:
    """K9, K6, K12, scenario 95: opening names the files; a repair starts from the one before
    and replays the rest.
    """
    world, seen = history()
    batches = {name: list(shelf.batches) for name, shelf in world.shelves.items()}
    own = damage_runs_of(world, latest(world), how)
    assert own
    with pytest.raises(CorruptError) as corrupt:
        world.open()
    assert any(path in str(corrupt.value) for path in own)
    found = preview(RestoreRequest(), world.store, world.store, world.env)
    assert len(found.point.passed_over) == 1
    assert any(path in found.point.passed_over[0][1] for path in own)
    done = at(world, RestoreRequest())
    assert everything(done.pipeline) == seen[6]
    assert done.pipeline.transaction_number == 6
    world.check(done.pipeline)
    assert {name: shelf.batches for name, shelf in world.shelves.items()} == batches
    done.pipeline.push("orders", [order(60)])
    done.pipeline.close()
    world.check(world.open())


@pytest.mark.parametrize("how", ["missing", "cut", "flip"])
def test_back_from_a_state_that_cannot_be_read(how: str) -> None:
    """K9: there is no difference to send, so sinks are let go, and told to be emptied."""
    world, seen = history()
    damage_runs_of(world, latest(world), how)
    done = at(world, RestoreRequest(checkpoint="one"))
    assert done.damage is not None
    assert everything(done.pipeline) == seen[1]
    assert done.pipeline.transaction_number == 7
    done.pipeline.close()
    with pytest.raises(InvalidError) as refused:
        world.open()
    assert "empty the sink" in str(refused.value)
    for name in list(world.shelves):
        del world.shelves[name]
    again = world.open()
    world.check(again)
    assert again.push("orders", [order(9)]) == 8
    world.check(again)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_of_a_repair(when: When) -> None:
    """K9, K1: damaged as it was, or repaired; repairing again gives the same."""
    number = 0
    while True:
        number += 1
        world, seen = history()
        damage_runs_of(world, latest(world), "missing")
        try:
            at(world, RestoreRequest(), FaultyStore(world.store, crash_at(number, when)))
        except Crash:
            pass
        else:
            break
        done = at(world, RestoreRequest())
        assert everything(done.pipeline) == seen[6]
        world.check(done.pipeline)
    assert number > 20


def test_a_repair_with_a_sink_that_is_behind() -> None:
    """K9, J7: what a sink lacks is in its outbox or comes by replay; nothing twice, in order."""
    world = World()
    pipeline = world.open(settings=SPARSE)
    pipeline.push("orders", [order(1)])
    pipeline.checkpoint("one")
    world.sinks["revenue"].down = True
    for id in range(2, 5):
        pipeline.push("orders", [order(id)])
    pipeline.flush()
    pipeline.push("orders", [order(9)])
    damage_runs_of(world, latest(world), "missing")
    done = at(world, RestoreRequest(checkpoint=None))
    assert done.pipeline.deliver()
    world.check(done.pipeline)
    assert [number for number, _ in world.shelves["revenue"].batches] == [1, 2, 3, 4, 5]


def test_restore_points_that_cannot_be_reached() -> None:
    """K10: each says what there is instead, and nothing is changed."""
    world, _ = history()
    cases: list[tuple[RestoreRequest, str]] = [
        (RestoreRequest(checkpoint="two"), "no checkpoint two"),
        (RestoreRequest(transaction=99), "before 99"),
        (RestoreRequest(time=world.env.now() - timedelta(days=1)), "no checkpoint from which"),
    ]
    for request, told in cases:
        with pytest.raises((CheckpointMissing, TruncatedError)) as missing:
            preview(request, world.store, world.store, world.env)
        assert told in str(missing.value)
    with pytest.raises(InvalidError):
        preview(RestoreRequest(), MemoryStore(world.env), MemoryStore(world.env), world.env)
    with pytest.raises(InvalidError):
        world.open().restore()


def test_a_trimmed_journal_leads_only_to_checkpoints() -> None:
    """K9: what was trimmed cannot be replayed, and that is told before anything is done."""
    world, seen = history()
    trim(world.store, world.env, Position(latest(world).replay.position), barrier_keep_s=0)
    with pytest.raises(CheckpointMissing):
        preview(RestoreRequest(transaction=4), world.store, world.store, world.env)
    assert (
        preview(RestoreRequest(checkpoint="one"), world.store, world.store, world.env).undone.known
        is False
    )
    done = at(world, RestoreRequest(checkpoint="one"))
    assert everything(done.pipeline) == seen[1]
    world.check(done.pipeline)


def test_a_checkpoint_deleted_in_the_meantime_stops_the_restore() -> None:
    """Scenarios 46, 64: its files may be collected any time, so nothing is built upon them."""
    world, seen = history()
    found = preview(RestoreRequest(checkpoint="one"), world.store, world.store, world.env)
    pipeline = world.open(settings=SPARSE)
    pipeline.delete_checkpoint("one")
    with pytest.raises(CheckpointMissing):
        pipeline._restore_to(found.point)
    with pytest.raises(StepwellError):
        pipeline.push("orders", [order(1)])
    assert everything(world.open()) == seen[6]


def test_a_checkpoint_of_another_program_is_refused() -> None:
    """Rows stored for one query are not an answer to another."""
    world, _ = history()
    other = {"program": {"other": 1}, "generation": 1}
    Manifests(world.store, world.env).amend(lambda m: replace(m, **other), "deploy")
    with pytest.raises(InvalidError) as refused:
        preview(RestoreRequest(checkpoint="one"), world.store, world.store, world.env)
    assert "differ from those the pipeline has now" in str(refused.value)
    with pytest.raises(CheckpointMissing):
        preview(RestoreRequest(), world.store, world.store, world.env)


def test_restored_files_are_protected_by_the_new_state() -> None:
    """K5: after going back, the runs of that time are the pipeline's own again."""
    world, _ = history()
    old = read_checkpoint(world.store, latest(world).checkpoints[0].id)
    done = at(world, RestoreRequest(checkpoint="one"))
    assert {run.path for run in old.state.runs} <= {run.path for run in latest(world).runs}
    done.pipeline.delete_checkpoint("one")
    done.pipeline.push("orders", [order(3)])
    done.pipeline.flush()
    assert paths.checkpoint(old.id) in {item.path for item in world.store.list()}
    world.check(world.open())


def test_a_time_that_cannot_be_reached_for_certain_is_refused() -> None:
    """K9: a state that is only near the time would pass for that of the time."""
    world = World()
    pipeline = world.open(settings=SPARSE)
    times = [world.env.now()]
    for id in range(1, 7):
        world.env.advance(60)
        pipeline.push("orders", [order(id)])
        times.append(world.env.now())
        if id == 1:
            pipeline.checkpoint("one")
    world.env.advance(60)
    pipeline.restore(transaction=3)
    for id in range(8, 12):
        world.env.advance(60)
        pipeline.push("orders", [order(id)])
        times.append(world.env.now())
    for ref in pipeline.checkpoints()[1:]:
        pipeline.delete_checkpoint(ref.id)
    pipeline.close()
    for ref in latest(world).checkpoints[1:]:
        Manifests(world.store, world.env).amend(dropping(ref.id, "here"), "drop")
    with pytest.raises(CheckpointMissing, match="before that time"):
        preview(RestoreRequest(time=times[-2]), world.store, world.store, world.env)
    found = preview(RestoreRequest(time=times[4]), world.store, world.store, world.env)
    assert found.point.transaction == 4


def test_the_journal_is_not_needed_to_go_back_to_a_checkpoint_itself() -> None:
    """K9, C2: also where the present state is damaged and what led here was trimmed."""
    world, seen = history()
    damage_runs_of(world, latest(world), "missing")
    trim(world.store, world.env, Position(latest(world).replay.position), barrier_keep_s=0)
    done = at(world, RestoreRequest(checkpoint="one"))
    assert done.damage is not None
    assert everything(done.pipeline) == seen[1]
    assert done.pipeline.transaction_number == 7


def test_a_checkpoint_of_the_present_transaction_repairs_without_the_journal() -> None:
    """K9: what was merged after it, and lost, is the same state."""
    world, seen = history()
    pipeline = world.open(settings=SPARSE)
    pipeline.compact()
    pipeline.push("orders", [order(7)])
    after = everything(pipeline)
    damage_runs_of(world, latest(world), "missing")
    trim(world.store, world.env, Position(latest(world).replay.position), barrier_keep_s=0)
    done = at(world, RestoreRequest())
    assert everything(done.pipeline) == after
    assert done.pipeline.transaction_number == 7
    world.check(done.pipeline)


@pytest.mark.parametrize("early", [True, False])
def test_output_that_was_lost_is_made_again(early: bool) -> None:
    """K9, J7: an outbox file is missing: replay rewrites it, from the beginning if necessary."""
    world = World()
    pipeline = world.open(settings=SPARSE)
    if early:
        pipeline.checkpoint("early")
    world.sinks["revenue"].down = True
    for id in range(1, 4):
        pipeline.push("orders", [order(id)])
    pipeline.checkpoint()
    lost = latest(world).progress.outbox[1]
    world.store.delete(lost.path)
    done = at(world, RestoreRequest())
    assert done.point.checkpoint.is_beginning is not early
    assert done.pipeline.deliver()
    world.check(done.pipeline)
    assert [number for number, _ in world.shelves["revenue"].batches] == [1, 2, 3]
    done.pipeline.close()
    world.check(world.open())


@pytest.mark.parametrize("how", ["missing", "flip"])
def test_a_sink_whose_output_is_lost_for_good_starts_over(how: str) -> None:
    """K9, J7: nothing else is damaged, and no replay rewrites it; the other sinks continue."""
    world = World()
    pipeline = world.open(settings=SPARSE)
    world.sinks["revenue"].down = True
    for id in range(1, 4):
        pipeline.push("orders", [order(id)])
    pipeline.push("clicks", [{"customer": "a", "page": "/"}])
    pipeline.checkpoint()
    item = latest(world).progress.outbox[1]
    found = world.store.get(item.path)
    assert found is not None
    world.store.delete(item.path)
    if how == "flip":
        world.store.put_new(item.path, found.data[:9] + b"\xff" + found.data[10:])
    trim(world.store, world.env, latest(world).replay.position)
    done = at(world, RestoreRequest())
    assert done.point.passed_over, "it is said what was lost"
    failed = [event for event in world.events if isinstance(event, SinkFailed) and event.stops]
    assert [event.sink for event in failed] == ["revenue"]
    assert {sink.name for sink in latest(world).progress.sinks} == {"visits", "buyers"}
    done.pipeline.close()
    again = world.open()
    assert again.deliver()
    world.check(again)


def test_the_view_a_sink_begins_with_is_not_made_up_for_by_a_change() -> None:
    """K9, J16: the file was lost, and the transaction whose number it has is replayed; its change
    is not what the sink lacks.
    """
    world = World()
    pipeline = world.open(settings=SPARSE, sinks={"one": "revenue"})
    pipeline.push("orders", [order(1, "a")])
    pipeline.checkpoint("early")
    pipeline.push("orders", [order(2, "b")])
    pipeline.flush()

    def is_down(call: Call) -> Fault | None:
        return Fault("fail") if (call.operation, call.path) == ("write", "ShelfSink") else None

    two = {"one": "revenue", "two": "revenue"}
    world.open(FaultyStore(world.store, is_down), SPARSE, sinks=two)
    (lost,) = latest(world).progress.outbox
    assert (lost.sink, lost.transaction) == ("two", 2)
    world.store.delete(lost.path)
    world.views = two
    done = at(world, RestoreRequest())
    failed = [event for event in world.events if isinstance(event, SinkFailed) and event.stops]
    assert [event.sink for event in failed] == ["two"]
    assert not world.shelves["two"].batches
    done.pipeline.close()
    again = world.open()
    assert again.deliver()
    world.check(again)


def test_a_sink_that_is_damaged_does_not_cost_the_others() -> None:
    """K9: it is not damage of the pipeline, so nothing is dropped because of it."""
    world, _ = history()

    def broken() -> None:
        raise CorruptError("sink/last.json", "cannot be read")

    def open(target: RestorePoint | None) -> Pipeline:
        monkey = world.open
        ShelfSink.last, last = (lambda self: broken()), ShelfSink.last  # type: ignore[assignment]
        try:
            return monkey(None, SPARSE, base=target)
        finally:
            ShelfSink.last = last  # type: ignore[method-assign]

    found = preview(RestoreRequest(checkpoint="one"), world.store, world.store, world.env)
    with pytest.raises(InvalidError, match="cannot say how far it got"):
        restore(RestoreRequest(checkpoint="one"), found.point, open)
    assert len(latest(world).progress.sinks) == 3


def test_an_input_that_is_gone_leaves_the_pipeline_as_it_is() -> None:
    """K1: what could not be replayed has changed nothing, and the handle goes on."""
    world = World(feeds={"feed": Feed("orders").put(*map(order, range(6)))})
    pipeline = world.open(settings=SPARSE)
    pipeline.checkpoint("empty")
    pipeline.run(once=True)
    before = everything(pipeline)
    del world.feeds["feed"].events[1:]
    with pytest.raises(ReplayMismatchError):
        pipeline.restore(transaction=1)
    assert everything(pipeline) == before
    assert pipeline.push("orders", [order(9)]) == 3


def test_back_to_where_a_view_had_no_rows_or_has_none_now() -> None:
    """K9: a table without rows may know no types."""
    world = World()
    pipeline = world.open(settings=SPARSE)
    pipeline.push("orders", [order(1)])
    pipeline.checkpoint("one")
    pipeline.push("orders", delete=[{"id": 1}])
    pipeline.checkpoint("none")
    pipeline.restore("one")
    world.check(pipeline)
    pipeline.restore("none")
    world.check(pipeline)
    assert world.shelves["revenue"].rows() == {}


def test_a_tail_ends_when_the_pipeline_goes_back() -> None:
    """What it has shown is not so any more."""
    world, _ = history()
    pipeline = world.open(settings=SPARSE)
    tail = pipeline.tail("revenue")
    pipeline.restore("one")
    assert list(tail) == []


def test_replay_does_not_lead_over_a_change_of_the_program() -> None:
    """K9: to another program and back: what the one between dropped is not brought back."""
    world, _ = history()
    Manifests(world.store, world.env).amend(lambda m: replace(m, generation=2), "deploy")
    with pytest.raises(CheckpointMissing, match="differ from those the pipeline has now"):
        preview(RestoreRequest(), world.store, world.store, world.env)
    assert (
        preview(
            RestoreRequest(checkpoint="one"), world.store, world.store, world.env
        ).point.transaction
        == 1
    )


@pytest.mark.parametrize("damaged", [False, True])
def test_a_restore_begins_a_timeline_and_a_repair_does_not(damaged: bool) -> None:
    """F13: what was given out before going back is history up to there, and no further."""
    world, _ = history()
    before = latest(world)
    at(world, RestoreRequest()).pipeline.close()
    assert latest(world).timelines == before.timelines, "nothing was undone"
    if damaged:
        world.store.delete(latest(world).runs[-1].path)
    done = at(world, RestoreRequest(checkpoint="one"))
    assert (done.damage is not None) == damaged
    after = latest(world)
    assert after.timelines[:-1] == before.timelines
    assert after.timeline != before.timeline
    assert after.timeline_of(6) == before.timeline
    assert after.timeline_of(7) == after.timeline, "the restore itself is the first of the new one"
    assert is_history(after.timelines, before.timeline, 6)
    assert not is_history(after.timelines, before.timeline, 7)
    done.pipeline.push("orders", [order(90)])
    done.pipeline.close()
    assert latest(world).timelines == after.timelines


def test_damage_that_only_going_back_meets_does_not_stop_a_restore() -> None:
    """K9: files that opening does not read may be damaged; the restore point is whole."""
    world, seen = history()
    request = RestoreRequest(checkpoint="one")
    target = preview(request, world.store, world.store, world.env).point

    def damaged(*_: object) -> None:
        raise CorruptError("runs/orders/x.parquet", "expected another checksum", field="checksum")

    def open(base: RestorePoint | None) -> Pipeline:
        pipeline = world.open(settings=SPARSE, base=base)
        if base is None:
            pipeline._session.state.executor.pieces = damaged  # type: ignore[method-assign, assignment]
        return pipeline

    done = restore(request, target, open)
    assert "expected another checksum" in (done.damage or "")
    assert everything(done.pipeline) == seen[1]
    assert done.pipeline.transaction_number == 7
    done.pipeline.close()
    assert everything(world.open(sinks={})) == seen[1]
