"""Collection: what goes, what stays, whoever else is at work, wherever it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

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
from stepwell.journal.journal import Settings as JournalSettings
from stepwell.journal.log import Log
from stepwell.model import Transaction, checksum
from stepwell.state.checkpoint import (
    checkpoint_as_it_lies,
    dropping,
    files_of,
    find_checkpoint,
    read_checkpoint,
    refreshing,
)
from stepwell.state.collect import Collector, Plan, Settings
from stepwell.state.history import History
from stepwell.state.manifest import Manifest, Manifests, Parent, Pin, Run, Stored
from stepwell.state.progress import SinkAt, Undelivered
from stepwell.state.witness import raise_witness
from stepwell.store.base import Store
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import Crash, Fault, FaultyStore, ManualEnv, When, crash_at
from tests.pausing import PausingStore, Task
from tests.tiny import Tiny, entries, flushed_rows, rows_of, stored_rows

AT_ONCE = Settings(grace_s=0, journal_keep_s=0, barrier_keep_s=0, history=History(versions=0))
JOURNAL = JournalSettings(barrier_keep_s=3600, retry=Retry(attempts=3))
NO_HISTORY = History(versions=10**6)


class World:
    """A pipeline with something of everything to collect, and its writer at work."""

    def __init__(self, *, separate: bool = False) -> None:
        self.env = ManualEnv()
        self.store = MemoryStore(self.env)
        self.journal = MemoryStore(self.env, "journal") if separate else self.store
        self.tiny = self.open()
        for row in "abcd":
            self.tiny.push(row)
            self.tiny.flush(merge=True)
            self.tiny.checkpoint()
            self.env.advance(10)
        self.store.put_new(paths.run("t", ManualEnv(9).new_id()), b"left by a crash")
        self.store.put_new(paths.outbox("s", Transaction(1), ManualEnv(8).new_id()), b"delivered")
        self.store.put_new("notes/readme.txt", b"not ours")
        self.store.put_new("runs/t/by-hand.parquet", b"not ours either")
        self.tiny.push("e")

    def open(self, store: Store | None = None, seed: int = 0) -> Tiny:
        env = self.shared(seed)
        journal = None if self.journal is self.store else self.journal
        return Tiny(store or self.store, env, journal, JOURNAL, NO_HISTORY)

    def shared(self, seed: int) -> ManualEnv:
        """The environment of another process, which lives by the same clock."""
        world = self.env

        class Shared(ManualEnv):
            def now(self) -> datetime:
                return world.now()

            def new_id(self) -> str:
                self.time = world.now()
                return super().new_id()

        return Shared(seed)

    def collector(self, store: Store | None = None, settings: Settings = AT_ONCE) -> Collector:
        journal = None if self.journal is self.store else self.journal
        return Collector(store or self.store, self.env, journal_store=journal, settings=settings)

    def latest(self) -> Stored:
        found = Manifests(self.store, self.env).latest()
        assert found is not None
        return found

    def paths(self, prefix: str = "") -> set[str]:
        return {item.path for item in self.store.list(prefix)}

    def check(self, rows: str = "abcde") -> None:
        """Everything that is named is there, and holds what it did."""
        journal = None if self.journal is self.store else self.journal
        assert stored_rows(self.store, self.env, journal) == list(rows)
        manifest = self.latest().manifest
        ids = {ref.id for ref in manifest.checkpoints} | {pin.checkpoint for pin in manifest.pins}
        for id in ids:
            state = read_checkpoint(self.store, id).state
            assert flushed_rows(self.store, state) == list(rows)[: state.transaction]
        for ref in manifest.checkpoints[-2:]:
            # The newest may be damaged: the one before and the journal after it give all (K9).
            state = read_checkpoint(self.store, ref.id, ref).state
            after = [row for e in entries(self.journal, state.replay) for row in rows_of(e)]
            assert [*flushed_rows(self.store, state), *after] == list(rows)


def reasons(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in plan.doomed:
        found[item.reason] = found.get(item.reason, 0) + 1
    return found


@pytest.mark.parametrize("separate", [False, True])
def test_what_a_dry_run_lists_is_what_goes(separate: bool) -> None:
    """K3, scenario 67: the plan is the collection; unknown names and the latest manifest stay."""
    world = World(separate=separate)
    before = world.paths()
    beside = {item.path for item in world.journal.list()}
    plan = world.collector().plan()
    assert world.paths() == before, "a plan changes nothing"
    # Runs of a and b went with their checkpoints; one was left by a crash.
    assert reasons(plan) == {"run": 3, "checkpoint": 2, "outbox": 1, "manifest": 9, "entry": 4}
    assert plan.count("outbox") == (1, len(b"delivered"))
    done = world.collector().collect()
    assert done.plan == plan
    assert done.deleted == len(plan.doomed)
    gone = before - world.paths() | beside - {item.path for item in world.journal.list()}
    assert gone == {item.path for item in plan.doomed}
    assert {"notes/readme.txt", "runs/t/by-hand.parquet"} <= world.paths()
    world.check()
    assert world.collector().plan().doomed == ()
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
    assert not world.collector().plan().doomed, "whoever has the pipeline may use it yet"
    world.open()
    assert reasons(world.collector().plan())["spill"] == 1
    world.collector().collect()
    assert world.paths("spill/") == {young}
    world.check()


def test_manifests_stay_for_people_to_look_at() -> None:
    """F5: the last versions stay, whoever collects."""
    world = World()
    world.collector(settings=replace(AT_ONCE, history=History(versions=3))).collect()
    latest = world.latest().id
    assert Manifests(world.store, world.env).ids() == tuple(range(latest - 3, latest + 1))


def test_entries_stay_for_as_long_as_they_are_to_be_kept() -> None:
    """K9: within `journal.keep` any transaction can be restored, so its entries stay."""
    world = World()
    world.env.advance(100)
    world.tiny.push("f")
    first = world.collector(settings=replace(AT_ONCE, journal_keep_s=125.0)).plan()
    # The barrier, a and b; c is not old enough.
    assert [paths.parse(d.path).number for d in first.doomed if d.reason == "entry"] == [1, 2, 3]
    everything = world.collector(settings=replace(AT_ONCE, journal_keep_s=10**6)).plan()
    assert reasons(everything).get("entry") is None


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
    raise_witness(Log(world.store), world.latest().id)
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
    body = data[45:].replace(b"/1", b"/9", 1)
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


def test_a_checkpoint_whose_time_is_over_is_let_go_first_and_then_deleted() -> None:
    """K10: un-referenced by a commit, then its files go; dry run and collection agree."""
    world = World()
    oldest = world.latest().manifest.checkpoints[0]
    world.tiny.push("f")
    over = world.env.now() + timedelta(seconds=30)
    Manifests(world.store, world.env).amend(refreshing(oldest.id, over, ""), "keep")
    world.tiny.flush(merge=True)
    world.tiny.checkpoint()
    assert oldest.id in {ref.id for ref in world.latest().manifest.checkpoints}
    graced = replace(AT_ONCE, grace_s=5.0)
    world.env.advance(6)
    world.collector(settings=graced).collect()
    assert world.collector(settings=graced).plan().doomed == ()
    world.env.advance(25)
    plan = world.collector(settings=graced).plan()
    assert [ref.id for ref in plan.expired] == [oldest.id]
    assert reasons(plan) == {"run": 1, "checkpoint": 1}
    done = world.collector(settings=graced).collect()
    assert {item.path for item in done.plan.doomed} == {item.path for item in plan.doomed}
    assert oldest.id not in {ref.id for ref in world.latest().manifest.checkpoints}
    world.check("abcdef")


def test_a_checkpoint_that_somebody_pins_meanwhile_is_not_let_go() -> None:
    """Scenario 64: between reading and the commit a clone pins it: the pin wins."""
    for pause in range(60):
        world = World()
        oldest = world.latest().manifest.checkpoints[0]
        over = world.env.now() - timedelta(seconds=1)
        Manifests(world.store, world.env).amend(refreshing(oldest.id, over, ""), "keep")
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
    item = Undelivered("s", Transaction(3), waits, 4, checksum([b"rows"]))
    world.tiny.writer.commit(
        lambda m: replace(
            m,
            progress=replace(m.progress, sinks=(SinkAt("s", Transaction(0)),), outbox=(item,)),
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
    """K3: the journal's witness knows of a later version, so what is read may not be the truth."""
    world = World()
    raise_witness(Log(world.journal), world.latest().id)
    world.store.delete(paths.manifest(world.latest().id))
    before = world.paths()
    with pytest.raises(TruncatedError, match="the manifest is lost"):
        world.collector().collect()
    assert world.paths() == before


def test_without_a_pipeline_there_is_nothing_to_collect() -> None:
    """K4: a wrong address is said, and nothing touched."""
    with pytest.raises(InvalidError, match="no pipeline"):
        Collector(MemoryStore(ManualEnv()), ManualEnv()).collect()


# Clones


@pytest.fixture(autouse=True)
def shared() -> Iterator[None]:
    yield
    SHARED.clear()


class Family:
    """A parent, and a clone that names a run of the parent."""

    def __init__(self) -> None:
        self.parent = World()
        self.env = self.parent.env
        self.store = MemoryStore(self.env, "clone")
        self.clone = Tiny(self.store, self.parent.shared(4), None, JOURNAL, NO_HISTORY)
        self.clone.push("x")
        self.clone.flush()
        oldest = self.parent.latest().manifest.checkpoints[0]
        self.pin = Pin(self.manifest().lineage, self.store.uri, oldest.id)
        theirs = Manifests(self.parent.store, self.env)
        theirs.amend(lambda m: replace(m, pins=(self.pin,)), "pin")
        theirs.amend(dropping(oldest.id, ""), "drop")
        run = read_checkpoint(self.parent.store, oldest.id).state.runs[0]
        self.borrowed = replace(run, root=self.parent.store.uri)
        lineage = self.parent.latest().manifest.lineage
        parent = Parent(self.parent.store.uri, lineage, oldest.id, self.pin.id)
        self.clone.writer.commit(
            lambda m: replace(m, parent=parent, runs=(self.borrowed, *m.runs)), "clone"
        )
        SHARED[self.parent.store.uri] = self.parent.store

    def collector(self, store: Store | None = None, parent: Store | None = None) -> Collector:
        SHARED[self.parent.store.uri] = parent or self.parent.store
        return Collector(store or self.store, self.env, settings=AT_ONCE)

    def manifest(self) -> Manifest:
        found = Manifests(self.store, self.env).latest()
        assert found is not None
        return found.manifest

    def detach(self) -> None:
        """The clone needs its parent no more, as after a compaction."""
        own = tuple(run for run in self.manifest().runs if run.root is None)
        self.clone.writer.commit(lambda m: replace(m, runs=own), "compact")

    @property
    def shared_run_is_there(self) -> bool:
        return self.parent.store.exists(self.borrowed.path)


def test_the_parent_keeps_what_its_clone_needs_and_the_clone_deletes_nothing_of_it() -> None:
    """C7, scenario 58: the checkpoint is gone from the list, and its files are not."""
    family = Family()
    family.parent.collector().collect()
    family.collector().collect()
    assert family.shared_run_is_there
    assert family.manifest().parent is not None
    assert family.parent.latest().manifest.pins == (family.pin,)
    family.parent.check()


def test_a_clone_that_only_its_checkpoint_ties_to_the_parent_keeps_its_pin() -> None:
    """C7: restoring that checkpoint needs the parent's files."""
    family = Family()
    family.clone.checkpoint()
    family.detach()
    family.collector().collect()
    assert family.parent.latest().manifest.pins == (family.pin,)


def test_a_clone_that_needs_nothing_of_its_parent_frees_its_pin() -> None:
    """C7, scenario 58: and then the parent's collection takes what only the clone had needed."""
    family = Family()
    family.detach()
    done = family.collector().collect()
    assert done.problem is None
    assert family.parent.latest().manifest.pins == ()
    parent = family.manifest().parent
    assert parent is not None
    assert parent.pin is None
    assert family.shared_run_is_there, "another pipeline's store is not collected from here"
    family.parent.collector().collect()
    assert not family.shared_run_is_there
    family.parent.check()
    assert family.collector().plan().frees is None


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
@pytest.mark.parametrize("which", ["parent", "clone"])
def test_a_pin_is_freed_parent_first_wherever_it_is_stopped(which: str, when: When) -> None:
    """C7, scenario 58: a crash between the two commits leaves the rest to the next pass."""
    number = 0
    while True:
        number += 1
        family = Family()
        family.detach()
        faulty = FaultyStore(
            family.parent.store if which == "parent" else family.store, crash_at(number, when)
        )
        stores = {"store" if which == "clone" else "parent": faulty}
        try:
            family.collector(**stores).collect()
        except Crash:
            if family.manifest().parent.pin is None:  # type: ignore[union-attr]
                assert family.parent.latest().manifest.pins == ()
            family.collector().collect()
        else:
            break
        assert family.parent.latest().manifest.pins == ()
        assert family.manifest().parent.pin is None  # type: ignore[union-attr]
    assert number > 3


def test_a_parent_that_cannot_be_reached_holds_up_nothing() -> None:
    """C7: the pin costs space only, and is freed later."""
    family = Family()
    family.detach()
    number = len(family.store.list("runs/"))
    rubbish = Run("t", paths.run("t", ManualEnv(9).new_id()), 1, 1, checksum([b"x"]))
    family.store.put_new(rubbish.path, b"x")
    down = FaultyStore(family.parent.store, lambda call: Fault("fail"))
    done = family.collector(parent=down).collect()
    assert done.problem is not None
    assert len(family.store.list("runs/")) == number
    assert family.parent.latest().manifest.pins == (family.pin,)
    assert family.collector().collect().problem is None
