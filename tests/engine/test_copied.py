"""Stores that were copied, moved, linked or put back from a backup, by the tools people use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import pytest

from stepwell.engine.open import open_writer
from stepwell.engine.pipeline import Pipeline
from stepwell.errors import CheckpointMissing, InvalidError, StepwellError, UnavailableError
from stepwell.manifest.adopt import adopt
from stepwell.manifest.clone import clone
from stepwell.manifest.destroy import destroy_pipeline
from stepwell.manifest.gc import Collector, Settings
from stepwell.manifest.history import History
from stepwell.manifest.layout import Standing, standing
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.manifest.pins import free_pin
from stepwell.manifest.timeline import is_history
from stepwell.manifest.verify import verify
from stepwell.store import mark
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at
from tests.engine.doubles import SETTINGS, World, everything, order

SPARSE = replace(SETTINGS, checkpoint_every_s=1e9)
AT_ONCE = Settings(grace_s=0, journal_keep_s=0, history=History(versions=0, slack=0))
COPIES = [["cp", "-r"], ["cp", "-a"], ["cp", "-al"]]


@dataclass(slots=True)
class Disk:
    """Pipelines in directories of one disk."""

    root: Path
    env: ManualEnv = field(default_factory=ManualEnv)
    worlds: dict[str, World] = field(default_factory=dict)

    def store(self, name: str) -> LocalStore:
        return LocalStore(str(self.root / name), self.env)

    def open(self, name: str, *, journal: str | None = None) -> Pipeline:
        world = self.worlds.setdefault(name, World(self.env, views={}))
        world.store = self.store(name)
        beside = None if journal is None else self.store(journal)
        return world.open(settings=SPARSE, journal_store=beside)

    def begin(self, name: str, *, journal: str | None = None) -> None:
        pipeline = self.open(name, journal=journal)
        pipeline.push("orders", [order(1, "a", 5), order(2, "b", 6)])
        pipeline.checkpoint("first")
        pipeline.push("orders", [order(3, "c", 7)])
        pipeline.close()

    def clone(self, source: str, name: str) -> None:
        clone(self.store(source), self.store(name), self.env)

    def run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.root, check=True, timeout=60)

    def manifest(self, name: str) -> Manifest:
        found = Manifests(self.store(name), self.env).latest()
        assert found is not None
        return found.manifest

    def adopt(self, name: str, *, copy: bool) -> None:
        adopt(self.store(name), self.env, copy=copy)

    def state(self, name: str) -> dict[str, list[tuple[object, ...]]]:
        pipeline = self.open(name)
        found = everything(pipeline)
        pipeline.close()
        return found

    def pins(self, name: str) -> list[str]:
        return sorted(Path(pin.clone).name for pin in self.manifest(name).pins)

    def collect(self, name: str) -> None:
        """Remove all that a pipeline does not need, its checkpoints too."""
        manifests = Manifests(self.store(name), self.env)
        manifests.amend(lambda m: replace(m, checkpoints=m.checkpoints[-1:]), "drop")
        Collector(self.store(name), self.env, settings=AT_ONCE).collect()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def rewrite(disk: Disk, name: str) -> None:
    """Leave a pipeline with none of the files that it had."""
    pipeline = disk.open(name)
    pipeline.push("orders", [order(90, "z", 1)])
    pipeline.compact()
    pipeline.checkpoint()
    pipeline.close()


def destroyed(disk: Disk) -> None:
    destroy_pipeline(disk.store("copy"), None, disk.env)


def adopted_and_destroyed(disk: Disk) -> None:
    disk.adopt("copy", copy=True)
    assert disk.pins("parent") == ["clone", "copy"]
    destroyed(disk)


def detached(disk: Disk) -> None:
    disk.adopt("copy", copy=True)
    copy = disk.open("copy")
    copy.compact(detach=True)
    copy.close()
    manifests = Manifests(disk.store("copy"), disk.env)
    manifests.amend(lambda m: replace(m, checkpoints=m.checkpoints[-1:]), "drop")
    assert free_pin(manifests, disk.env)


def released_without_asking(disk: Disk) -> None:
    """As a copy would that needs nothing of the parent, and was never adopted."""
    manifests = Manifests(disk.store("copy"), disk.env)
    manifests.amend(lambda m: replace(m, runs=(), checkpoints=()), "empty it")
    assert free_pin(manifests, disk.env)


@pytest.mark.parametrize("tool", COPIES, ids=" ".join)
@pytest.mark.parametrize(
    "end", [destroyed, adopted_and_destroyed, detached, released_without_asking]
)
def test_the_end_of_a_copied_clone_leaves_the_original_its_files(
    disk: Disk, end: Callable[[Disk], None], tool: list[str]
) -> None:
    """F13, C7, scenario 97: a pin is freed by the clone it was made for, and by no copy of it."""
    disk.begin("parent")
    disk.clone("parent", "clone")
    before = disk.state("clone")
    disk.run(*tool, "clone", "copy")
    end(disk)
    assert disk.pins("parent") == ["clone"]
    rewrite(disk, "parent")
    disk.collect("parent")
    assert disk.state("clone") == before
    assert not verify(disk.store("clone"), disk.env, deep=True).findings
    destroy_pipeline(disk.store("clone"), None, disk.env)
    assert disk.pins("parent") == []


@pytest.mark.parametrize("tool", COPIES, ids=" ".join)
def test_a_copy_is_refused_until_somebody_says_what_it_is(disk: Disk, tool: list[str]) -> None:
    """F13, scenario 97: it is not opened, not collected and not changed; looking is allowed."""
    disk.begin("one")
    disk.run(*tool, "one", "two")
    before = [(item.path, item.size) for item in disk.store("two").list()]
    for refused in (
        lambda: disk.open("two"),
        lambda: Collector(disk.store("two"), disk.env, settings=AT_ONCE).collect(),
    ):
        with pytest.raises(InvalidError, match=r"is a copy of the pipeline in file://.*/one") as no:
            refused()
        assert "stepwell adopt --moved" in (no.value.hint or "")
        assert "stepwell adopt --copy" in (no.value.hint or "")
    assert [(item.path, item.size) for item in disk.store("two").list()] == before
    (finding,) = verify(disk.store("two"), disk.env).findings
    assert "is a copy" in finding.what
    with pytest.raises(InvalidError, match="it was not moved: the pipeline is still in"):
        disk.adopt("two", copy=False)


def test_an_adopted_copy_is_a_history_of_its_own_and_its_sinks_are_off(disk: Disk) -> None:
    """F13: original and copy give out the same numbers, under other timelines."""
    disk.worlds["one"] = World(disk.env)
    disk.begin("one")
    before = disk.state("one")
    disk.run("cp", "-r", "one", "two")
    disk.adopt("two", copy=True)
    disk.adopt("two", copy=True)
    assert disk.state("two") == before
    for name in ("one", "two"):
        pipeline = disk.open(name)
        assert pipeline.push("orders", [order(40, name, 1)]) == 3
        pipeline.close()
    one, two = disk.manifest("one"), disk.manifest("two")
    assert one.lineage == two.lineage
    assert two.timelines[:-1] == one.timelines
    assert one.timeline_of(3) != two.timeline_of(3)
    assert one.timeline_of(2) == two.timeline_of(2)
    assert not is_history(one.timelines, two.timeline, 3)
    assert not is_history(two.timelines, one.timeline, 3)
    assert two.sinks_off == ("buyers", "revenue", "visits")
    assert not two.progress.sinks
    assert one.sinks_off == ()
    assert {at.name for at in one.progress.sinks} == set(two.sinks_off)


def test_a_directory_that_was_renamed_continues(disk: Disk) -> None:
    """F13: no copy, so nobody need be asked; a clone is pinned under its new address."""
    disk.begin("parent")
    disk.clone("parent", "old")
    before = disk.state("old")
    timeline = disk.manifest("old").timeline
    disk.run("mv", "old", "new")
    assert disk.state("new") == before
    found = disk.manifest("new")
    assert found.place.uri.endswith("/new")
    assert found.timeline != timeline, "a snapshot mounted elsewhere would look the same"
    assert disk.pins("parent") == ["new", "old"], "a pin is freed only when somebody says so"
    rewrite(disk, "parent")
    disk.collect("parent")
    assert disk.state("new") == before


def test_a_clone_that_cannot_be_pinned_is_not_claimed(disk: Disk) -> None:
    """F2, C7: who cannot open a pipeline fences nobody."""
    disk.begin("parent")
    disk.clone("parent", "old")
    disk.run("mv", "old", "new")
    parent = Manifests(disk.store("parent"), disk.env)
    parent.amend(lambda m: replace(m, checkpoints=(), pins=()), "drop")
    before = disk.manifest("new")
    with pytest.raises(CheckpointMissing):
        disk.open("new")
    assert disk.manifest("new") == before


def test_a_store_that_was_moved_to_another_disk_is_adopted(disk: Disk) -> None:
    """F13: told from a copy by nothing but a person's word; then its pin moves with it."""
    disk.begin("parent")
    disk.clone("parent", "old")
    before = disk.state("old")
    disk.run("cp", "-r", "old", "new")
    shutil.rmtree(disk.root / "old")
    with pytest.raises(InvalidError, match="is a copy"):
        disk.open("new")
    disk.adopt("new", copy=False)
    assert disk.pins("parent") == ["new"]
    assert disk.state("new") == before
    assert disk.manifest("new").sinks_off == ()


def test_a_link_and_the_directory_it_leads_to_are_one_place(disk: Disk) -> None:
    """F13: another path to the same directory is neither a copy nor another history."""
    disk.begin("parent")
    disk.clone("parent", "real")
    before = disk.state("real")
    os.symlink(disk.root / "real", disk.root / "link")
    timelines, place = disk.manifest("real").timelines, disk.manifest("real").place
    for name in ("link", "real", "link"):
        assert disk.state(name) == before
    assert disk.manifest("real").timelines == timelines
    assert disk.manifest("real").place == place
    destroy_pipeline(disk.store("link"), None, disk.env)
    assert disk.pins("parent") == []


@pytest.mark.parametrize("as_moved", [False, True], ids=["opened", "adopted"])
def test_the_original_under_another_name_is_not_a_copy_though_its_mark_changed(
    disk: Disk, as_moved: bool
) -> None:
    """F13: a link to a directory whose owner or mode was changed leads to the pipeline itself."""
    disk.begin("parent")
    disk.clone("parent", "real")
    before, first = disk.state("real"), disk.manifest("real")
    os.symlink(disk.root / "real", disk.root / "link")
    disk.run("chmod", "-R", "u+rw,g-w", "real")
    os.utime(disk.root / "real" / "place.txt")
    assert standing(first, disk.store("link")) is Standing.REPLACED
    assert not verify(disk.store("link"), disk.env).findings
    if as_moved:
        disk.adopt("link", copy=False)
    assert disk.state("link") == before
    found = disk.manifest("real")
    assert found.place.uri == first.place.uri, "pins are known by this address"
    assert found.place.mark != first.place.mark
    assert standing(found, disk.store("link")) is Standing.HERE
    assert disk.pins("parent") == ["real"]
    os.utime(disk.root / "real" / "place.txt")
    destroy_pipeline(disk.store("link"), None, disk.env)
    assert disk.pins("parent") == []


@pytest.mark.parametrize("name", ["one", "link", "new"])
def test_the_original_is_not_adopted_as_a_copy_of_itself(disk: Disk, name: str) -> None:
    """F13, C7: its sinks, and what it keeps for clones, are nobody else's."""
    disk.worlds["one"] = World(disk.env)
    disk.begin("one")
    disk.clone("one", "clone")
    os.symlink(disk.root / "one", disk.root / "link")
    if name == "new":
        disk.run("mv", "one", "new")
    else:
        os.utime(disk.root / "one" / "place.txt")
    before = disk.manifest(name)
    with pytest.raises(InvalidError, match="it is the pipeline itself, and was not changed"):
        disk.adopt(name, copy=True)
    assert disk.manifest(name) == before
    disk.adopt(name, copy=False)
    found = disk.manifest(name)
    assert found.pins == before.pins
    assert found.progress == before.progress
    assert found.sinks_off == ()
    assert standing(found, disk.store(name)) is Standing.HERE


def test_a_backup_that_is_put_back_is_another_history(disk: Disk) -> None:
    """F13, scenarios 92 and 99: numbers are given out again. What was written under them before is
    told from what belongs to the pipeline now, however far it has come since.
    """
    disk.begin("one")
    first = disk.manifest("one").timeline
    crashed = disk.open("one")
    crashed.push("orders", [order(10)])
    disk.run("cp", "-a", "one", "backup")  # It holds transaction 3 in its journal only.
    crashed.push("orders", [order(11)])
    crashed.close()
    shutil.rmtree(disk.root / "one")
    disk.run("mv", "backup", "one")
    again = disk.open("one")
    assert [again.push("orders", [order(20 + n)]) for n in range(3)] == [4, 5, 6]
    again.close()
    found = disk.manifest("one")
    assert found.timeline != first
    assert is_history(found.timelines, first, 3)
    assert not is_history(found.timelines, first, 4), (
        "it was written before the backup was put back"
    )
    assert found.timeline_of(4) == found.timeline


def test_a_new_pipeline_where_one_was_moved_away_is_not_taken_for_it(disk: Disk) -> None:
    """F13: the address that a moved store knows may be another pipeline's by now."""
    disk.begin("one")
    disk.run("mv", "one", "two")
    disk.begin("one")
    with pytest.raises(InvalidError, match="is a copy"):
        disk.open("two")
    disk.adopt("two", copy=False)
    assert disk.state("two")


def test_snapshots_that_are_both_mounted_are_told_apart(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13: a snapshot of a file system keeps all that a file system says of a file."""
    disk.begin("one")
    disk.run("cp", "-r", "one", "two")
    monkeypatch.setattr(
        "stepwell.manifest.layout.mark_of", lambda uri, path: disk.manifest("one").place.mark
    )
    assert standing(disk.manifest("one"), disk.store("one")) is Standing.HERE
    assert standing(disk.manifest("two"), disk.store("two")) is Standing.COPIED


def test_an_unreadable_mark_does_not_make_a_copy(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10: a failed look is an error, and never an answer."""
    disk.begin("one")

    def fails(name: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(mark.os, "stat", fails)
    with pytest.raises(UnavailableError, match="Permission denied"):
        standing(disk.manifest("one"), disk.store("one"))


def test_destroying_a_copy_leaves_a_journal_that_was_not_copied(disk: Disk) -> None:
    """F13: the copy of a store alone names the original's journal."""
    disk.begin("one", journal="journal")
    disk.run("cp", "-r", "one", "two")
    journal = [item.path for item in disk.store("journal").list()]
    with pytest.raises(InvalidError, match="and belongs to the original"):
        adopt(disk.store("two"), disk.env, copy=True, journal_store=disk.store("journal"))
    destroy_pipeline(disk.store("two"), disk.store("journal"), disk.env)
    assert [item.path for item in disk.store("journal").list()] == journal
    pipeline = disk.open("one", journal="journal")
    assert len(everything(pipeline)["orders"]) == 3


@pytest.fixture
def shared() -> Iterator[dict[str, Store]]:
    yield SHARED
    SHARED.clear()


@pytest.mark.parametrize("copy", [True, False], ids=["copy", "moved"])
def test_adopting_can_be_killed_anywhere_and_run_again(
    shared: dict[str, Store], copy: bool
) -> None:
    """F13, C7: at every call on the store or its parent's; the same place, pins and histories."""

    def made() -> tuple[World, MemoryStore]:
        world = World(ManualEnv(), views={})
        world.store = MemoryStore(world.env, "parent")
        shared["memory://parent"] = world.store
        pipeline = world.open(settings=SPARSE)
        pipeline.push("orders", [order(1)])
        pipeline.close()
        original = MemoryStore(world.env, "original")
        shared["memory://original"] = original
        clone(world.store, original, world.env)
        elsewhere = MemoryStore(world.env, "elsewhere")
        for item in original.list():
            found = original.get(item.path)
            assert found is not None
            elsewhere.put_new(item.path, found.data)
        if not copy:
            original.delete(*(item.path for item in original.list()))
        return world, elsewhere

    def result(world: World, elsewhere: MemoryStore) -> tuple[str, int, set[str]]:
        ours = Manifests(elsewhere, world.env).latest()
        parents = Manifests(world.store, world.env).latest()
        assert ours is not None
        assert parents is not None
        pins = {pin.clone for pin in parents.manifest.pins}
        assert len(pins) == len(parents.manifest.pins)
        return ours.manifest.place.uri, len(ours.manifest.timelines), pins

    world, elsewhere = made()
    counting, parents = FaultyStore(elsewhere), FaultyStore(world.store)
    shared["memory://parent"] = parents
    adopt(counting, world.env, copy=copy)
    expected = result(world, elsewhere)
    pins = {"memory://elsewhere", "memory://original"} if copy else {"memory://elsewhere"}
    assert expected == ("memory://elsewhere", 2, pins)
    numbers = [("ours", call.number) for call in counting.calls]
    numbers += [("parent", call.number) for call in parents.calls]
    assert len(numbers) > 10
    whens: tuple[When, ...] = ("before", "after")
    for (where, number), when in product(numbers, whens):
        world, elsewhere = made()
        plan = crash_at(number, when)
        if where == "parent":
            shared["memory://parent"] = FaultyStore(world.store, plan)
        with pytest.raises(Crash):
            adopt(
                FaultyStore(elsewhere, plan) if where == "ours" else elsewhere, world.env, copy=copy
            )
        shared["memory://parent"] = world.store
        adopt(elsewhere, world.env, copy=copy)
        place, timelines, left = result(world, elsewhere)
        assert (place, timelines) == expected[:2]
        # Killed at the very end, a store that was moved leaves its old pin, which costs space only.
        assert left == pins or (not copy and left == {*pins, "memory://original"})


def test_a_bucket_under_another_prefix_is_a_copy(shared: dict[str, Store]) -> None:
    """F13: of stores without marks the address alone tells."""
    env = ManualEnv()
    one, two = MemoryStore(env, "one"), MemoryStore(env, "two")
    open_writer(one, env).close()
    for item in one.list():
        found = one.get(item.path)
        assert found is not None
        two.put_new(item.path, found.data)
    with pytest.raises(StepwellError, match="is a copy of the pipeline in memory://one"):
        open_writer(two, env)
    adopt(two, env, copy=True)
    open_writer(two, env).close()
    open_writer(one, env).close()
