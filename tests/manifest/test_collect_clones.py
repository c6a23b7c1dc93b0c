"""Collection and clones: what a parent keeps for its clone, and pins that are freed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stepwell.journal import paths
from stepwell.manifest.checkpoint import (
    dropping,
    read_checkpoint,
)
from stepwell.manifest.gc import Collector
from stepwell.manifest.manifest import Manifest, Manifests, Parent, Pin, Run
from stepwell.model import checksum
from stepwell.store.base import Store
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.testing import Crash, Fault, FaultyStore, ManualEnv, When, crash_at
from tests.manifest.collecting import AT_ONCE, JOURNAL, NO_HISTORY, World
from tests.tiny import Tiny

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
