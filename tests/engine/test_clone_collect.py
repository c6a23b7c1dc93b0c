"""Garbage collection with clones: what a clone needs stays in its parent, and goes when it may
(C7)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stepwell.engine.pipeline import Pipeline
from stepwell.errors import CheckpointMissing, StepwellError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.journal import paths
from stepwell.manifest.clone import clone
from stepwell.manifest.destroy import destroy_pipeline
from stepwell.manifest.gc import Collector, Settings
from stepwell.manifest.history import History
from stepwell.manifest.manifest import Manifests, Status
from stepwell.manifest.verify import verify
from stepwell.store.base import Store
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at
from tests.engine.clones import Family, ids_of
from tests.engine.doubles import SETTINGS, SQL, click, everything, order
from tests.pausing import PausingStore, Task

AT_ONCE = Settings(
    grace_s=0.0, journal_keep_s=0.0, barrier_keep_s=0.0, history=History(versions=0, slack=0)
)
"""Collect whatever may ever be collected."""


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.close()


def collect(family: Family, name: str, store: Store | None = None) -> None:
    family.env.advance(7200)
    Collector(store or family.store(name), family.env, settings=AT_ONCE).collect()


def replaced(pipeline: Pipeline) -> None:
    """Every row is another one, and every run: nothing of what was is needed any more."""
    ids = ids_of(pipeline)
    pipeline.push("orders", [order(1000 + len(ids))], delete=[{"id": id} for id in ids])
    pipeline.push("clicks", [click("z")])
    pipeline.flush()
    pipeline.compact()
    for _ in range(3):
        pipeline.checkpoint()


def test_the_parent_keeps_what_its_clones_need(family: Family) -> None:
    """Scenario 58, C7: the parent drops its checkpoint, replaces every row and collects all it may;
    the clone, and a clone of that, still read every file. Once they are destroyed the files go.
    """
    parent = family.parent()
    family.clone("one", checkpoint="first")
    family.clone("two", source="one")
    states = {name: family.state(name) for name in ("one", "two")}
    parent.delete_checkpoint("first")
    replaced(parent)
    for name in ("parent", "one", "two", "parent"):
        collect(family, name)
    assert {name: family.state(name) for name in ("one", "two")} == states
    kept = len(family.store("parent").list("runs/"))
    for name in ("two", "one"):
        destroy_pipeline(family.store(name), None, family.env)
    collect(family, "parent")
    assert len(family.store("parent").list("runs/")) < kept
    parent.push("orders", [order(2000)])
    parent.close()


def test_a_clone_that_has_replaced_every_file_lets_its_parent_go(family: Family) -> None:
    """Scenario 58, C7: collection in the clone frees the pin, in the parent first."""
    family.parent()
    family.clone()
    clone = family.open("clone")
    replaced(clone)
    assert {run.root for run in family.manifest("clone").runs} == {None}
    before = everything(clone)
    collect(family, "clone")
    manifest = family.manifest("clone")
    assert manifest.parent is not None
    assert manifest.parent.pin is None
    assert family.manifest("parent").pins == ()
    destroy_pipeline(family.store("parent"), None, family.env)
    assert family.state("clone") == before


def test_a_clone_that_is_detached_needs_its_parent_no_more(family: Family) -> None:
    """Scenario 58, C7: with its data as they are. Plain merging leaves single runs where they are;
    an older checkpoint keeps the pin until it goes.
    """
    parent = family.parent()
    parent.flush()
    parent.compact()
    parent.close()
    family.clone()
    clone = family.open("clone")
    clone.checkpoint("early")
    before = everything(clone)
    clone.compact()
    assert any(run.root for run in family.manifest("clone").runs)
    assert clone.compact(detach=True)
    assert not any(run.root for run in family.manifest("clone").runs)
    collect(family, "clone")
    assert len(family.manifest("parent").pins) == 1, "the checkpoint needs it"
    clone.delete_checkpoint("early")
    clone.checkpoint()
    clone.close()
    collect(family, "clone")
    assert family.manifest("parent").pins == ()
    destroy_pipeline(family.store("parent"), None, family.env)
    assert family.state("clone") == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_detachment_killed_anywhere_leaves_a_whole_clone(family: Family, when: When) -> None:
    """Scenario 58: dead at any call on its store, it is as it was, or detached."""

    def opened(store: Store) -> Pipeline:
        return Pipeline(
            store,
            family.env,
            executor=lambda store, env: ReferenceExecutor(SQL, store, env),
            settings=SETTINGS,
        )

    parent = family.parent()
    parent.flush()
    expected = everything(parent)
    parent.close()
    family.clone()
    stores = [family.store(name) for name in ("parent", "clone")]
    saved = [dict(store._objects) for store in stores]
    outcomes = set()
    number, done = 0, False
    while not done:
        number += 1
        dying = FaultyStore(family.store("clone"), crash_at(number, when))
        try:
            opened(dying).compact(detach=True)
            done = True
        except Crash:
            pass
        outcomes.add(frozenset(run.root for run in family.manifest("clone").runs))
        collect(family, "clone")
        again = opened(family.store("clone"))
        assert everything(again) == expected
        again.close()
        assert verify(family.store("clone"), family.env, deep=True).findings == ()
        for store, objects in zip(stores, saved, strict=True):
            store._objects.clear()
            store._objects.update(objects)
    assert outcomes == {frozenset({family.store("parent").uri}), frozenset({None})}


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_a_collection_killed_anywhere_takes_nothing_from_a_clone(
    family: Family, when: When
) -> None:
    """Scenarios 58 and 65, C7: dead at any call on the parent's store, a collection has removed
    nothing that the clone needs.
    """
    parent = family.parent()
    family.clone(checkpoint="first")
    expected = family.state("clone")
    parent.delete_checkpoint("first")
    replaced(parent)
    number = 0
    while True:
        number += 1
        dying = FaultyStore(family.store("parent"), crash_at(number, when))
        try:
            collect(family, "parent", dying)
        except Crash:
            continue
        break
    assert number > 5
    assert family.state("clone") == expected


@pytest.mark.parametrize("seed", range(30))
def test_a_collector_and_a_cloner_take_turns_anywhere(family: Family, seed: int) -> None:
    """Scenario 64, C6, C7: the parent drops the checkpoint and collects while it is being cloned:
    the clone is whole, or it is refused with a typed error; it never names a file that is gone.
    """
    chance = random.Random(seed)
    parent = family.parent()
    replaced(parent)
    store = family.store("parent")

    def cloned() -> object:
        place = family.store("clone")
        return clone(PausingStore(store), place, ManualEnv(7), checkpoint="first")

    def collected() -> None:
        manifests = Manifests(PausingStore(store), family.env)
        manifests.amend(
            lambda m: replace(m, checkpoints=tuple(c for c in m.checkpoints if c.name != "first")),
            "drop",
        )
        for _ in range(2):
            Collector(PausingStore(store), family.env, settings=AT_ONCE).collect()

    family.env.advance(7200)
    tasks = [Task(cloned), Task(collected)]
    while not all(task.done for task in tasks):
        chance.choice([task for task in tasks if not task.done]).step()
    assert tasks[1].error is None, tasks[1].error
    error = tasks[0].error
    if error is None:
        assert family.state("clone")["orders"]
        assert len(family.manifest("parent").pins) == 1
        return
    assert isinstance(error, StepwellError), error
    found = family.store("clone").list(paths.MANIFESTS)
    if found:
        assert isinstance(error, CheckpointMissing), error
        assert family.manifest("clone").status is Status.INCOMPLETE
    assert family.manifest("parent").pins == ()
    assert everything(parent)["orders"]
