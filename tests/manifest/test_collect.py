"""Garbage collection: what is deleted, what stays, next to any other process, wherever it is
stopped."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from stepwell.errors import (
    CheckpointMissing,
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    StepwellError,
    TruncatedError,
)
from stepwell.journal import paths
from stepwell.journal.log import Log
from stepwell.manifest.checkpoint import (
    checkpoint_as_it_lies,
    dropping,
    files_of,
    find_checkpoint,
    read_checkpoint,
)
from stepwell.manifest.gc import Collector, Plan
from stepwell.manifest.high_water_mark import raise_high_water_mark
from stepwell.manifest.history import History
from stepwell.manifest.manifest import Manifest, Manifests, Pin
from stepwell.manifest.progress import Delivered, SinkAt, Undelivered
from stepwell.model import Position, Transaction, checksum
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at
from tests.manifest.collecting import AT_ONCE, World, expiring
from tests.pausing import PausingStore, Task
from tests.tiny import entries, flushed_rows, rows_of


def reasons(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in plan.garbage:
        found[item.reason] = found.get(item.reason, 0) + 1
    return found


@pytest.mark.parametrize("separate", [False, True])
def test_a_dry_run_lists_what_will_be_deleted(separate: bool) -> None:
    """K3, scenario 67: the plan is the collection; unknown names and the latest manifest stay."""
    world = World(separate=separate)
    before = world.paths()
    beside = {item.path for item in world.journal.list()}
    plan = world.collector().plan()
    assert world.paths() == before, "a plan changes nothing"
    # Runs of a and b went with their checkpoints; one was left by a crash. The barrier stays.
    assert reasons(plan) == {"run": 3, "checkpoint": 2, "outbox": 1, "manifest": 9, "entry": 3}
    assert plan.count("outbox") == (1, len(b"delivered"))
    done = world.collector().collect()
    assert done.plan == plan
    assert done.deleted == len(plan.garbage)
    gone = before - world.paths() | beside - {item.path for item in world.journal.list()}
    assert gone == {item.path for item in plan.garbage}
    assert {"notes/readme.txt", "runs/t/by-hand.parquet"} <= world.paths()
    world.check()
    assert world.collector().plan().garbage == ()
    world.tiny.push("f")
    assert world.open(seed=1).rows() == list("abcdef")


def test_what_was_superseded_a_moment_ago_stays_for_those_who_read_it() -> None:
    """Scenario 71: until the grace is over, what an old version names is there; so is its tail."""
    world = World()
    reading = world.latest().manifest
    world.tiny.flush(merge=True)
    world.tiny.checkpoint()
    world.tiny.checkpoint()
    graced = replace(AT_ONCE, grace_s=60.0)
    world.env.advance(59)
    world.collector(settings=graced).collect()
    assert flushed_rows(world.store, reading) == list("abcd")
    assert [r for e in entries(world.store, reading.replay) for r in rows_of(e)] == ["e"]
    assert world.latest().id - 1 in Manifests(world.store, world.env).ids()
    world.env.advance(2)
    world.collector(settings=graced).collect()
    with pytest.raises(TruncatedError):
        flushed_rows(world.store, reading)
    world.check()


def test_what_was_spilled_for_workers_goes_when_it_is_old() -> None:
    """K3: a process that lives removes its own; of one that was killed it is left."""
    world = World()
    world.store.put_new(paths.spill(world.env.new_id()), b"rows")
    world.env.advance(2 * 86400 - 1)
    world.collector().collect()
    young = paths.spill(world.env.new_id())
    world.store.put_new(young, b"rows")
    assert len(world.paths("spill/")) == 2
    world.env.advance(1)
    assert not world.collector().plan().garbage, "the current writer may still use it"
    world.open()
    assert reasons(world.collector().plan())["spill"] == 1
    world.collector().collect()
    assert world.paths("spill/") == {young}
    world.check()


def test_manifests_stay_for_inspection() -> None:
    """F5: the last versions stay, whichever process collects."""
    world = World()
    world.collector(settings=replace(AT_ONCE, history=History(versions=3))).collect()
    latest = world.latest().id
    assert Manifests(world.store, world.env).ids() == tuple(range(latest - 3, latest + 1))


def test_entries_stay_for_as_long_as_they_are_to_be_kept() -> None:
    """K9, K12: within `journal.keep` any transaction can be restored, so its entries stay, and all
    from the checkpoint before them on.
    """
    world = World(keep=4)
    world.env.advance(100)
    world.tiny.push("f")
    first = world.collector(settings=replace(AT_ONCE, journal_keep_s=125.0)).plan()
    # a and b; c is not old enough, and the barrier stays.
    assert [paths.parse(d.path).number for d in first.garbage if d.reason == "entry"] == [2, 3]
    everything = world.collector(settings=replace(AT_ONCE, journal_keep_s=10**6)).plan()
    assert reasons(everything).get("entry") is None
    second = world.latest().manifest.checkpoints[1]
    Manifests(world.store, world.env).amend(dropping(second.id, ""), "drop")
    less = world.collector(settings=replace(AT_ONCE, journal_keep_s=125.0)).plan()
    assert [paths.parse(d.path).number for d in less.garbage if d.reason == "entry"] == [2]
    # Only the last two checkpoints are there: replay would have to begin with nothing.
    few = World()
    few.env.advance(100)
    few.tiny.push("f")
    none = few.collector(settings=replace(AT_ONCE, journal_keep_s=125.0)).plan()
    assert reasons(none).get("entry") is None


PROTECTORS: dict[str, Callable[[World], str]] = {
    "the latest manifest": lambda w: paths.manifest(w.latest().id),
    "a superseded manifest": lambda w: paths.manifest(w.latest().id - 1),
    "the newest checkpoint": lambda w: paths.checkpoint(w.latest().manifest.checkpoints[-1].id),
    "the oldest checkpoint": lambda w: paths.checkpoint(w.latest().manifest.checkpoints[0].id),
    "a pin's checkpoint": lambda w: paths.checkpoint(w.latest().manifest.pins[0].checkpoint),
    "the journal's identity": lambda w: paths.IDENTITY,
    "the journal's boundary": lambda w: paths.JOURNAL_BOUNDARY,
}


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "of a later format"])
@pytest.mark.parametrize("protector", PROTECTORS)
def test_what_must_protect_and_cannot_be_read_stops_it(protector: str, damage: str) -> None:
    """K3, scenario 68: nothing is deleted, and the message names the object."""
    world = World()
    pin(world, world.latest().manifest.checkpoints[0].id)
    Manifests(world.store, world.env).amend(
        dropping(world.latest().manifest.checkpoints[0].id, ""), "drop"
    )
    world.tiny.checkpoint()
    raise_high_water_mark(Log(world.store), world.latest().id)
    path = PROTECTORS[protector](world)
    data, etag, when = world.store._objects[path]
    if damage == "gone":
        del world.store._objects[path]
    else:
        bad = {
            "cut": data[: len(data) // 2],
            "flipped": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
            "of a later format": resealed(data),
        }[damage]
        world.store._objects[path] = (bad, etag, when)
    before = dict(world.store._objects)
    with pytest.raises(StepwellError) as caught:
        world.collector(settings=replace(AT_ONCE, grace_s=3600)).collect()
    assert isinstance(caught.value, (CorruptError, InvalidError))
    assert path in str(caught.value) or damage == "gone"
    assert world.store._objects == before


def resealed(data: bytes) -> bytes:
    """The same object as a later version of Stepwell would write it."""
    body = re.sub(rb"/\d", b"/9", data[45:], count=1)
    return b'{"checksum":"' + checksum([body]).encode() + body


def pin(world: World, checkpoint: str, store: Store | None = None) -> None:
    ours = Pin(world.env.new_id(), "memory://clone", checkpoint)

    def change(manifest: Manifest) -> Manifest:
        find_checkpoint(manifest, checkpoint, "")
        return replace(manifest, pins=(*manifest.pins, ours))

    Manifests(store or world.store, world.env).amend(change, "pin")


# Others at work


def flushes(world: World, store: Store) -> None:
    world.tiny.store = store  # The writer that is there goes on.
    world.tiny.flush(merge=True)
    world.tiny.checkpoint()


def goes_on(world: World, store: Store) -> None:
    """Another process takes over, and does what the first one did."""
    tiny = world.open(store, 7)
    tiny.flush(merge=True)
    tiny.checkpoint()
    tiny.checkpoint()


def checkpoints_as_it_lies(world: World, store: Store) -> None:
    checkpoint_as_it_lies(Manifests(store, world.shared(8)), world.shared(8), name="clone")


def pins_the_oldest(world: World, store: Store) -> None:
    pin(world, world.latest().manifest.checkpoints[0].id, store)


def pins_and_drops(world: World, store: Store) -> None:
    oldest = world.latest().manifest.checkpoints[0].id
    pin(world, oldest, store)
    Manifests(store, world.env).amend(dropping(oldest, ""), "drop")


def collects(world: World, store: Store) -> None:
    world.collector(store).collect()


def reads(world: World, store: Store) -> None:
    """Scenario 72: a reader that finds a file gone reads the latest manifest, and recovers."""
    manifests = Manifests(store, world.env)
    for _ in range(4):
        found = manifests.latest()
        assert found is not None
        try:
            rows = flushed_rows(store, found.manifest)
        except TruncatedError:
            assert (manifests.latest_id() or 0) > found.id, "the latest names what is gone"
            continue
        assert rows == list("abcde")[: len(rows)]
        return
    raise AssertionError("never recovered")


ACTORS = [flushes, goes_on, checkpoints_as_it_lies, pins_the_oldest, pins_and_drops, collects]


def check_ended(task: Task) -> None:
    assert task.error is None or isinstance(
        task.error, (FencedError, ConflictError, CheckpointMissing)
    ), repr(task.error)


@pytest.mark.parametrize("actor", [*ACTORS, reads])
def test_paused_anywhere_while_another_is_at_work_it_takes_nothing_that_is_needed(
    actor: Callable[[World, Store], None],
) -> None:
    """K3, scenarios 62 to 66, F8: the collector sleeps at every call; others go on, and collect."""
    pauses = collecting(World()).run().steps
    assert pauses > 30
    for pause in range(pauses + 1):
        world = World()
        paused = collecting(world).run(pause)
        actor(world, world.store)
        world.check()
        if pause % 2:
            collects(world, world.store)
        paused.run()
        assert paused.error is None, repr(paused.error)
        world.check()
        world.collector().collect()
        world.check()
        assert world.open(seed=5).rows() == list("abcde")


def collecting(world: World) -> Task:
    return Task(lambda: world.collector(PausingStore(world.store)).collect())


@pytest.mark.parametrize("actor", [*ACTORS, reads])
def test_it_may_run_between_any_two_steps_of_another(
    actor: Callable[[World, Store], None],
) -> None:
    """K3, scenarios 62 to 64: a file that was written and is about to be named is not taken."""
    world = World()
    pauses = Task(lambda: actor(world, PausingStore(world.store))).run().steps
    for pause in range(pauses + 1):
        world = World()
        task = Task(lambda world=world: actor(world, PausingStore(world.store))).run(pause)
        world.collector().collect()
        task.run()
        check_ended(task)
        world.check()
        world.collector().collect()
        world.check()


def test_a_writer_that_was_fenced_and_wakes_up_names_nothing_that_is_gone() -> None:
    """F8, K3: its run was written before it slept; its commit comes after the collector."""
    for pause in range(1, 40):
        world = World()
        stalled = Task(lambda world=world: flushes(world, PausingStore(world.store))).run(pause)
        other = world.open(seed=3)
        other.flush(merge=True)
        other.checkpoint()
        other.checkpoint()
        world.collector().collect()
        stalled.run()
        # With no grace at all it may find gone what it reads, before it learns that it is fenced.
        if not isinstance(stalled.error, TruncatedError):
            check_ended(stalled)
        with pytest.raises(FencedError):
            world.tiny.writer.check("test")
        world.check()


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_killed_at_every_call_the_next_one_finishes(when: When) -> None:
    """Scenario 65: boundaries moved, some deletes done: the next pass does the rest."""
    plain = World()
    plain.collector().collect()
    expected = {path: body[0] for path, body in plain.store._objects.items()}
    world = World()
    watched = FaultyStore(world.store)
    world.collector(watched).collect()
    for number in range(1, len(watched.calls) + 1):
        world = World()
        with pytest.raises(Crash):
            world.collector(FaultyStore(world.store, crash_at(number, when))).collect()
        world.check()
        world.collector().collect()
        world.check()
        assert {path: body[0] for path, body in world.store._objects.items()} == expected
        world.tiny.push("f")


def test_an_expired_checkpoint_is_dropped_first_and_then_deleted() -> None:
    """K10: un-referenced by a commit, then its files go; dry run and collection agree."""
    world = World()
    oldest = world.latest().manifest.checkpoints[0]
    world.tiny.push("f")
    over = world.env.now() + timedelta(seconds=30)
    Manifests(world.store, world.env).amend(expiring(oldest.id, over), "keep")
    world.tiny.flush(merge=True)
    world.tiny.checkpoint()
    assert oldest.id in {ref.id for ref in world.latest().manifest.checkpoints}
    graced = replace(AT_ONCE, grace_s=5.0)
    world.env.advance(6)
    world.collector(settings=graced).collect()
    assert world.collector(settings=graced).plan().garbage == ()
    world.env.advance(25)
    plan = world.collector(settings=graced).plan()
    assert [ref.id for ref in plan.expired] == [oldest.id]
    assert reasons(plan) == {"run": 1, "checkpoint": 1}
    done = world.collector(settings=graced).collect()
    assert {item.path for item in done.plan.garbage} == {item.path for item in plan.garbage}
    assert oldest.id not in {ref.id for ref in world.latest().manifest.checkpoints}
    world.check("abcdef")


def test_a_checkpoint_that_is_pinned_in_the_meantime_is_not_dropped() -> None:
    """Scenario 64: between reading and the commit a clone pins it: the pin wins."""
    for pause in range(60):
        world = World()
        oldest = world.latest().manifest.checkpoints[0]
        over = world.env.now() - timedelta(seconds=1)
        Manifests(world.store, world.env).amend(expiring(oldest.id, over), "keep")
        settings = replace(AT_ONCE, checkpoint_keep=1)
        task = Task(
            lambda world=world: world.collector(PausingStore(world.store), settings).collect()
        ).run(pause)
        pinned = True
        try:
            pin(world, oldest.id)
        except (CheckpointMissing, ConflictError):
            pinned = False
        task.run()
        assert task.error is None
        world.check()
        assert (paths.checkpoint(oldest.id) in world.paths()) == pinned


def test_output_that_waits_in_a_checkpoint_stays_and_the_rest_goes() -> None:
    """K5: a file of the outbox goes once nothing names it, unless it may yet be named."""
    world = World()
    sent = paths.outbox("s", Transaction(2), world.env.new_id())
    ahead = paths.outbox("s", Transaction(2), ManualEnv(5).new_id().replace("0", "7", 1))
    world.tiny.flush(merge=True)
    waits = paths.outbox("s", Transaction(3), world.tiny.env.new_id())
    for path in (sent, ahead, waits):
        world.store.put_new(path, b"rows")
    lineage = world.tiny.writer.manifest.lineage
    mark = Delivered(lineage, lineage, Transaction(3), Position(1), checksum([b"entry"]))
    item = Undelivered("s", mark, waits, 4, checksum([b"rows"]))
    world.tiny.writer.commit(
        lambda m: replace(
            m,
            progress=replace(m.progress, sinks=(SinkAt("s"),), outbox=(item,)),
        ),
        "undelivered",
    )
    world.tiny.checkpoint()
    world.tiny.writer.commit(
        lambda m: replace(m, progress=replace(m.progress, outbox=())), "delivered"
    )
    world.collector().collect()
    assert world.paths("outbox/") == {waits, ahead}
    assert files_of(read_checkpoint(world.store, world.latest().manifest.checkpoints[-1].id).state)


def test_nothing_is_collected_in_a_store_that_lost_its_latest_manifest() -> None:
    """K3: the high-water mark is a later version, so what is read may not be the truth."""
    world = World()
    raise_high_water_mark(Log(world.journal), world.latest().id)
    world.store.delete(paths.manifest(world.latest().id))
    before = world.paths()
    with pytest.raises(TruncatedError, match="the manifest is lost"):
        world.collector().collect()
    assert world.paths() == before


def test_without_a_pipeline_there_is_nothing_to_collect() -> None:
    """K4: a wrong address is said, and nothing touched."""
    with pytest.raises(InvalidError, match="no pipeline"):
        Collector(MemoryStore(ManualEnv()), ManualEnv()).collect()
