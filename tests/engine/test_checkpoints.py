"""Checkpoints: taken in one commit with the flush, never inside a transaction, kept as promised."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from stepwell.engine.events import Checkpointed, Waiting
from stepwell.env import MonotonicIds
from stepwell.errors import (
    CheckpointMissing,
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    TruncatedError,
)
from stepwell.journal import paths
from stepwell.journal.log import Log
from stepwell.manifest.checkpoint import (
    checkpoint_as_it_lies,
    dropping,
    files_of,
    read_checkpoint,
    retained,
)
from stepwell.manifest.manifest import CheckpointRef, Manifest, Manifests, Pin
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at, fail_at
from tests.engine.doubles import SETTINGS, Feed, World, everything, order
from tests.manifest.collecting import expiring
from tests.pausing import PausingStore, Task


def latest(world: World) -> Manifest:
    found = Manifests(world.store, world.env).latest()
    assert found is not None
    return found.manifest


def test_a_checkpoint_lists_every_file_it_needs() -> None:
    """K5: runs and undelivered output alike, each with size and checksum."""
    world = World()
    pipeline = world.open(sinks={"out": "revenue"})
    world.sinks["out"].down = True
    pipeline.push("orders", [order(1)])
    ref = pipeline.checkpoint("mine")
    assert ref is not None
    checkpoint = read_checkpoint(world.store, ref.id, ref)
    listed = {item.path: item.size for item in world.store.list()}
    kinds = {paths.parse(file.path).kind for file in checkpoint.files}
    assert kinds == {"run", "outbox"}
    assert all(listed[file.path] == file.size for file in checkpoint.files)
    assert checkpoint.files == files_of(latest(world))
    assert (ref.name, ref.transaction, checkpoint.state.transaction) == ("mine", 1, 1)
    assert Checkpointed(ref.id, ref.transaction, "mine") in world.events


def test_a_checkpoint_closes_the_gap_that_opening_left() -> None:
    """C1, scenario 41: with nothing to flush, right after an opening, the replay range is empty."""
    world = World()
    world.open().push("orders", [order(1)])
    for _ in range(2):
        pipeline = world.open()
        ref = pipeline.checkpoint()
        manifest = latest(world)
        last = Log(world.store, manifest.lineage).last(manifest.replay.position)
        assert last == manifest.replay.position
        assert ref is not None
        assert read_checkpoint(world.store, ref.id, ref).state.replay == manifest.replay


def test_the_whole_journal_may_go_after_a_checkpoint_and_a_close() -> None:
    """C1, C2: opened with a journal store that was wiped, everything is there."""
    world, journal = World(), MemoryStore(ManualEnv(), "journal")
    pipeline = world.open(journal_store=journal)
    pipeline.push("orders", [order(1)])
    before = everything(pipeline)
    pipeline.close()
    again = world.open(journal_store=MemoryStore(ManualEnv(), "other"))
    assert everything(again) == before
    assert again.push("orders", [order(2)]) == 2
    world.check(again)


def test_a_checkpoint_holds_what_came_before_it_and_nothing_later() -> None:
    """Scenarios 42, 43: every write issued before the call is in it."""
    world = World(feeds={"feed": Feed("orders").put(*map(order, range(7)))})
    pipeline = world.open()
    pipeline.run(once=True)
    ref = pipeline.checkpoint()
    pipeline.push("orders", [order(99)])
    pipeline.flush()
    assert ref is not None
    state = read_checkpoint(world.store, ref.id, ref).state
    assert state.transaction == 3
    assert sum(run.rows for run in state.runs if run.relation == "orders") == 7


def test_no_checkpoint_is_taken_inside_an_open_transaction() -> None:
    """J9: it waits for the boundary, and says so."""
    world = World()
    pipeline = world.open()
    with pipeline.transaction() as transaction:
        transaction.push("orders", [order(1)])
        assert pipeline.checkpoint("inside") is None
        assert Waiting("checkpoint", "the end of the open transaction") in world.events
        assert not pipeline.checkpoints()
    assert [(item.name, item.transaction) for item in pipeline.checkpoints()] == [("inside", 1)]


def test_checkpoints_come_by_themselves_and_at_a_graceful_stop() -> None:
    """K10: as often as the settings say, if there is anything new; two stay, and besides
    named ones and the first of the hour (K12).
    """
    world = World()
    settings = replace(SETTINGS, checkpoint_every_s=10.0)
    pipeline = world.open(settings=settings)
    pipeline.checkpoint("first")
    for id in range(5):
        world.env.advance(11)
        pipeline.push("orders", [order(id)])
    names = [(item.name, item.transaction) for item in pipeline.checkpoints()]
    assert names == [("first", 0), (None, 1), (None, 4), (None, 5)]
    pipeline.push("orders", [order(9)])
    pipeline.close()
    assert [item.transaction for item in latest(world).checkpoints] == [0, 1, 5, 6]
    world.open().close()
    assert [item.transaction for item in latest(world).checkpoints] == [0, 1, 5, 6]


def test_a_slow_sink_does_not_hold_a_checkpoint_up() -> None:
    """K5: what it has not received goes along in the outbox."""
    world = World()
    pipeline = world.open()
    for sink in world.sinks.values():
        sink.down = True
    pipeline.push("orders", [order(1)])
    assert pipeline.checkpoint() is not None
    assert {item.sink for item in latest(world).progress.outbox} == {"revenue"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_of_a_checkpoint(when: When) -> None:
    """K1, scenario 44: absent or complete, in the store and for the next opening."""
    outcomes = set()
    for number in range(1, 100):
        world = World()
        world.open().push("orders", [order(1)])
        faulty = FaultyStore(world.store)
        pipeline = world.open(faulty, strike=False)
        faulty.plan = crash_at(len(faulty.calls) + number, when)
        try:
            pipeline.checkpoint("mine")
        except Crash:
            pass
        else:
            break
        manifest = latest(world)
        outcomes.add(len(manifest.checkpoints))
        for ref in manifest.checkpoints:
            assert read_checkpoint(world.store, ref.id, ref).state.transaction == 1
        again = world.open()
        world.check(again)
        assert again.checkpoint("again") is not None
    assert outcomes == {0, 1}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_checkpoint_that_fails_is_absent_in_memory_too(when: When) -> None:
    """K1: memory and store agree after every error; the next one works, or the handle says why."""
    for number in range(1, 100):
        world = World()
        faulty = FaultyStore(world.store)
        pipeline = world.open(faulty, strike=False)
        pipeline.push("orders", [order(1)])
        faulty.plan = fail_at(len(faulty.calls) + number, when)
        calls = len(faulty.calls)
        try:
            pipeline.checkpoint("mine")
        except Exception:  # noqa: BLE001 - whatever it is, the two must agree
            assert pipeline.checkpoints() == latest(world).checkpoints
            assert pipeline.checkpoint("second") is not None
        assert pipeline.checkpoints() == latest(world).checkpoints
        world.check(world.open())
        if len(faulty.calls) < calls + number:
            break


def test_a_writer_that_was_fenced_takes_no_checkpoint() -> None:
    """Scenario 45: an error, and none recorded."""
    world = World()
    old = world.open()
    old.push("orders", [order(1)])
    world.open()
    with pytest.raises(FencedError):
        old.checkpoint("late")
    assert latest(world).checkpoints == ()


def test_a_checkpoint_without_being_the_writer() -> None:
    """Scenario 43: names what is flushed; the writer goes on, and builds upon it."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1)])
    pipeline.flush()
    pipeline.push("orders", [order(2)])
    ref = checkpoint_as_it_lies(Manifests(world.store, world.env), ManualEnv(7), name="beside")
    assert read_checkpoint(world.store, ref.id, ref).state.transaction == 1
    pipeline.push("orders", [order(3)])
    pipeline.flush()
    assert [item.name for item in pipeline.checkpoints()] == ["beside"]


def test_a_flush_in_between_lets_it_be_rewritten() -> None:
    """Scenario 64: what lies below the floor may be collected, so it is never named."""
    pauses = 0
    while True:
        world = World()
        pipeline = world.open()
        pipeline.push("orders", [order(1)])
        pipeline.flush()
        manifests = Manifests(PausingStore(world.store), world.env)
        task = Task(lambda m=manifests: checkpoint_as_it_lies(m, ManualEnv(7))).run(pauses)
        done, named = task.done, bool(latest(world).checkpoints)
        pipeline.push("orders", [order(2)])
        pipeline.flush()
        floor = latest(world).floor
        task.run()
        assert task.error is None
        (ref,) = latest(world).checkpoints
        assert named or ref.id > (floor or "")
        assert read_checkpoint(world.store, ref.id, ref).state.transaction == (1 if named else 2)
        if done:
            return
        pauses += 1


def test_ids_rise_whatever_the_clock_does() -> None:
    """Scenario 25: a clock that goes back does not put a file below the floor."""
    env = ManualEnv()
    ids = MonotonicIds(env)
    first = ids.new_id()
    env.advance(-3600)
    second, third = ids.new_id(), ids.new_id()
    assert first < second < third
    assert MonotonicIds(env).above(third).new_id() > third


def ref_of(id: str, env: ManualEnv, **given: object) -> CheckpointRef:
    return CheckpointRef(id, 1, env.now(), 1, "0" * 32, **given)  # type: ignore[arg-type]


def test_retention_keeps_named_unexpired_pinned_and_the_newest() -> None:
    """K10: at least two by default; a lifetime ends, a name does not."""
    world, env = World(), ManualEnv()
    world.open()
    day = timedelta(days=1)
    ids = [MonotonicIds(env).above(None).new_id() for _ in range(6)]
    refs = (
        ref_of(ids[0], env),
        ref_of(ids[1], env, name="named"),
        ref_of(ids[2], env, name="over", expires=env.now() - day),
        ref_of(ids[3], env, expires=env.now() + day),
        ref_of(ids[4], env),
        ref_of(ids[5], env),
    )
    manifest = replace(latest(world), checkpoints=refs)

    def kept(keep: int, pins: tuple[Pin, ...] = ()) -> list[int]:
        found = retained(replace(manifest, pins=pins), keep, env.now())
        return [ids.index(item.id) for item in found]

    assert kept(2) == [1, 3, 5]
    assert kept(3) == [1, 3, 4, 5]
    assert kept(1) == [1, 3]
    assert kept(9) == [0, 1, 3, 4, 5]
    assert kept(2, (Pin(ids[0], "clone", ids[0]),)) == [0, 1, 3, 5]


def test_expiry_against_refresh() -> None:
    """Scenario 47: both are compare-and-swap, so the refreshed one survives."""
    world = World()
    pipeline = world.open()
    ref = pipeline.checkpoint("mine", keep_s=60)
    assert ref is not None
    manifests = Manifests(world.store, world.env)
    later = world.env.now() + timedelta(days=1)
    manifests.amend(expiring("mine", later), "refresh")
    world.env.advance(3600)
    for id in range(3):
        pipeline.push("orders", [order(id)])
        pipeline.checkpoint()
    assert pipeline.checkpoints()[0].name == "mine"
    world.env.advance(86400)
    pipeline.push("orders", [order(7)])
    pipeline.checkpoint()
    assert "mine" not in [item.name for item in pipeline.checkpoints()]


def test_of_two_checkpoints_one_is_deleted() -> None:
    """Scenarios 46, 50: the other stays, and one that is gone is missed by name."""
    world = World()
    pipeline = world.open()
    one, two = pipeline.checkpoint("one"), pipeline.checkpoint("two")
    assert one is not None
    assert two is not None
    pipeline.delete_checkpoint("one")
    assert [item.name for item in pipeline.checkpoints()] == ["two"]
    with pytest.raises(CheckpointMissing) as missing:
        pipeline.delete_checkpoint(one.id)
    assert "two" in str(missing.value)
    Manifests(world.store, world.env).amend(dropping(two.id[:12], "here"), "drop")
    assert pipeline.flush() is False
    with pytest.raises(CheckpointMissing):
        pipeline.delete_checkpoint("two")


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\nb"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    world = World()
    with pytest.raises(InvalidError):
        world.open().checkpoint(name)


def test_a_damaged_checkpoint_is_named() -> None:
    """K2: a flipped byte, a cut, another's object in its place, or none."""
    world = World()
    pipeline = world.open()
    one, two = pipeline.checkpoint("one"), pipeline.checkpoint("two")
    assert one is not None
    assert two is not None
    path, other = paths.checkpoint(one.id), world.store.get(paths.checkpoint(two.id))
    good = world.store.get(path)
    assert good is not None
    assert other is not None
    for place in range(0, len(good.data), 7):
        bad = good.data[:place] + bytes([good.data[place] ^ 1]) + good.data[place + 1 :]
        _put(world, path, bad)
        with pytest.raises((CorruptError, InvalidError)) as found:
            read_checkpoint(world.store, one.id, one)
        assert path in str(found.value)
    for body in (good.data[:-1], other.data):
        _put(world, path, body)
        with pytest.raises(CorruptError):
            read_checkpoint(world.store, one.id, one)
    world.store.delete(path)
    with pytest.raises(TruncatedError):
        read_checkpoint(world.store, one.id, one)


def _put(world: World, path: str, body: bytes) -> None:
    world.store.delete(path)
    world.store.put_new(path, body)


def test_conflicts_without_end_are_told() -> None:
    """A pipeline that flushes faster than a checkpoint is written."""
    world = World()
    pipeline = world.open()

    count = iter(range(10**6))

    class Flushing(FaultyStore):
        def put_new(self, path: str, data: object) -> None:
            super().put_new(path, data)  # type: ignore[arg-type]
            if path.startswith("checkpoints/"):
                pipeline.push("orders", [order(next(count))])
                pipeline.flush()

    with pytest.raises(ConflictError):
        checkpoint_as_it_lies(Manifests(Flushing(world.store), world.env), ManualEnv(7))
