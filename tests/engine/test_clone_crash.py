"""Clones killed at every call on every store, and two processes at one clone.

Whatever an attempt died of, cloning again gives what an undisturbed clone is, but for ids and
times, and the parent has one pin.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stepwell.errors import (
    ConflictError,
    InvalidError,
    StepwellError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.journal import paths
from stepwell.manifest.checkpoint import read_checkpoint
from stepwell.manifest.clone import clone
from stepwell.manifest.destroy import destroy_pipeline
from stepwell.manifest.manifest import Manifest, Manifests, Status
from stepwell.manifest.pins import drop_pin, forgettable, look_at
from stepwell.store.base import Store
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, Plan, When, crash_at, fail_at
from tests.engine.clones import Family, State, alike
from tests.engine.doubles import World, everything, order
from tests.pausing import PausingStore, Task

PLACES = ("parent", "parent-journal", "clone", "clone-journal")
OPTIONS: dict[str, dict[str, Any]] = {
    "as of now": {},
    "of a checkpoint": {"checkpoint": "first"},
    "copied": {"copy": True},
}
KIND = pytest.mark.parametrize("kind", OPTIONS)


@dataclass(slots=True)
class Begun:
    """A parent to clone again and again, each time as it was; its writer is still at work."""

    objects: dict[str, dict[str, bytes]]
    state: State
    world: World

    def family(self) -> Family:
        made = Family()
        made.close()
        for name, objects in self.objects.items():
            store = made.store(name)
            for path, data in objects.items():
                store.put_new(path, data)
        world = made.worlds["parent"] = World(made.env)
        world.feeds, world.shelves = self.world.feeds, deepcopy(self.world.shelves)
        return made

    def stores(self, family: Family, struck: str | None, plan: Plan | None) -> dict[str, Store]:
        """The stores by name; one of them is struck, also where it is opened by its address."""
        found: dict[str, Store] = {name: family.store(name) for name in PLACES}
        if struck is not None:
            found[struck] = SHARED[found[struck].uri] = FaultyStore(found[struck], plan)
        return found

    def run(self, stores: dict[str, Store], kind: str, seed: int = 1) -> Manifest:
        return clone(
            stores["parent"],
            stores["clone"],
            ManualEnv(seed),
            source_journal=stores["parent-journal"],
            journal_store=stores["clone-journal"],
            **OPTIONS[kind],
        ).manifest


@pytest.fixture(scope="module")
def begun() -> Iterator[Begun]:
    family = Family()
    family.close()
    parent = family.parent(journal="parent-journal")
    state = everything(parent)
    objects = {}
    for name in ("parent", "parent-journal"):
        store = family.store(name)
        found = {item.path: store.get(item.path) for item in store.list()}
        objects[name] = {path: item.data for path, item in found.items() if item is not None}
    yield Begun(objects, state, family.worlds["parent"])
    family.close()


def restore(family: Family) -> None:
    """The stores without their faults."""
    for uri, store in list(SHARED.items()):
        if isinstance(store, FaultyStore):
            inner = store.inner
            assert isinstance(inner, MemoryStore)
            SHARED[uri] = inner


def undisturbed(begun: Begun, kind: str) -> tuple[Manifest, State, dict[str, int]]:
    """What a clone is, what it holds, and how many calls on each store making it takes."""
    family = begun.family()
    counting = {name: FaultyStore(family.store(name)) for name in PLACES}
    for store in counting.values():
        SHARED[store.uri] = store
    made = begun.run(dict(counting), kind)
    restore(family)
    calls = {name: len(store.calls) for name, store in counting.items()}
    check_pins(family, kind, spare=0)
    return made, state_of(family, kind), calls


def state_of(family: Family, kind: str) -> State:
    found = family.manifest("clone").journal
    return family.state("clone", journal="clone-journal" if found.store else None)


def check_pins(family: Family, kind: str, spare: int) -> None:
    """One pin, whose checkpoint is there; none for a copy. Nothing else stays in the parent."""
    parent, child = family.manifest("parent"), family.manifest("clone")
    assert [pin.id for pin in parent.pins] == ([] if kind == "copied" else [child.lineage])
    for pin in parent.pins:
        read_checkpoint(family.store("parent"), pin.checkpoint)
    extra = [item for item in parent.checkpoints if (item.name or "").startswith("clone ")]
    assert len(extra) <= spare
    assert all(item.expires is not None for item in extra), "what a dead attempt took, expires"


@KIND
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_and_run_again_a_clone_is_the_same(
    begun: Begun, kind: str, when: When
) -> None:
    """Scenario 51, C6: dead at any call on the parent's or the clone's store or journal store, a
    clone that is made again is that of a process which did not die: same manifest, same state, one
    pin. Until then it cannot be opened.
    """
    expected, state, calls = undisturbed(begun, kind)
    assert state["orders"] == begun.state["orders"] or kind == "of a checkpoint"
    for struck, count in calls.items():
        for number in range(1, count + 1):
            family = begun.family()
            with pytest.raises(Crash):
                begun.run(begun.stores(family, struck, crash_at(number, when)), kind)
            restore(family)
            refuse_unfinished(family)
            family.env.advance(10)
            made = begun.run(begun.stores(family, None, None), kind, seed=2)
            assert alike(made) == alike(expected), f"{struck} {number}"
            check_pins(family, kind, spare=1)
            if number % 5 == 1:
                assert state_of(family, kind) == state
    assert min(calls["parent"], calls["clone"]) > 8


def refuse_unfinished(family: Family) -> None:
    if not family.store("clone").list(paths.MANIFESTS):
        return
    if family.manifest("clone").status is Status.INCOMPLETE:
        with pytest.raises(InvalidError, match="not completed"):
            family.open("clone", journal="clone-journal")


@KIND
def test_killed_again_while_it_continues_a_clone_is_the_same(begun: Begun, kind: str) -> None:
    """Scenario 51, C6: the attempt that goes on with a clone may die as well, anywhere."""
    expected, _, calls = undisturbed(begun, kind)
    for first in range(1, calls["clone"] + 1, 3):
        for struck in ("clone", "parent"):
            for second in range(1, calls[struck] + 1, 4):
                family = begun.family()
                with pytest.raises(Crash):
                    begun.run(begun.stores(family, "clone", crash_at(first, "after")), kind)
                restore(family)
                with suppress(Crash):  # Less is left to do, so there are fewer calls.
                    plan = crash_at(second, "after")
                    begun.run(begun.stores(family, struck, plan), kind, seed=2)
                restore(family)
                made = begun.run(begun.stores(family, None, None), kind, seed=3)
                assert alike(made) == alike(expected), f"{first} {struck} {second}"
                check_pins(family, kind, spare=2)


@KIND
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_fails_anywhere_is_made_good_by_cloning_again(
    begun: Begun, kind: str, when: When
) -> None:
    """Scenario 51, C6: a failed call or a lost answer ends an attempt, or does not; made again, the
    clone is the same.
    """
    expected, _, calls = undisturbed(begun, kind)
    for struck, count in calls.items():
        for number in range(1, count + 1, 3):
            family = begun.family()
            with suppress(UnavailableError, UnknownOutcomeError):
                begun.run(begun.stores(family, struck, fail_at(number, when)), kind)
            restore(family)
            made = begun.run(begun.stores(family, None, None), kind, seed=2)
            assert alike(made) == alike(expected), f"{struck} {number}"
            check_pins(family, kind, spare=1)


def test_the_parent_continues_between_two_attempts(begun: Begun) -> None:
    """Scenarios 51 and 61, C6: how far the journal is taken over was decided when the clone began,
    so what the parent records, flushes and checkpoints between two attempts is not in it.
    """
    expected, state, calls = undisturbed(begun, "as of now")
    for number in range(1, calls["clone"] + 1, 2):
        family = begun.family()
        with pytest.raises(Crash):
            begun.run(begun.stores(family, "clone", crash_at(number, "after")), "as of now")
        restore(family)
        first = family.store("clone").exists(paths.manifest(1))
        parent = family.open("parent", journal="parent-journal")
        parent.push("orders", [order(999)])
        parent.checkpoint()
        family.env.advance(10)
        made = begun.run(begun.stores(family, None, None), "as of now", seed=2)
        if first:
            assert alike(made) == alike(expected)
            assert state_of(family, "as of now") == state
        else:
            assert state_of(family, "as of now") == everything(parent)
        check_pins(family, "as of now", spare=3)


@pytest.mark.parametrize("seed", range(40))
def test_two_processes_at_the_same_clone_make_one(begun: Begun, seed: int) -> None:
    """Scenario 54, C6: of two processes that clone to the same place at the same time one begins
    it; the other goes on with that, or is refused. There is one clone and one pin.
    """
    chance = random.Random(seed)
    family = begun.family()
    pausing = {name: PausingStore(family.store(name)) for name in PLACES}
    kinds = [chance.choice(["as of now", "of a checkpoint", "copied"]) for _ in range(2)]
    tasks = [
        Task(lambda kind=kind, number=number: begun.run(dict(pausing), kind, seed=number))
        for number, kind in enumerate(kinds)
    ]
    while not all(task.done for task in tasks):
        chance.choice([task for task in tasks if not task.done]).step()
    errors = [task.error for task in tasks if task.error is not None]
    assert len(errors) < 2, errors
    assert all(isinstance(error, (InvalidError, ConflictError)) for error in errors), errors
    manifest = family.manifest("clone")
    assert manifest.status is Status.READY
    pins = [pin.id for pin in family.manifest("parent").pins]
    roots = {run.root for run in manifest.runs}
    assert pins == ([] if roots == {None} else [manifest.lineage])
    if manifest.parent is not None and manifest.parent.until > manifest.replay.position:
        assert state_of(family, kinds[0])["orders"] == begun.state["orders"]


# Destroying


@pytest.mark.parametrize("kind", ["as of now", "of a checkpoint"])
def test_a_clone_destroyed_while_it_is_made_leaves_no_pin(begun: Begun, kind: str) -> None:
    """C7, scenario 59: destroyed between any two calls of the process that makes it, that process
    finds out, takes its pin back, and says so; or it had not begun, or was done.
    """
    outcomes, steps = set(), 0
    while True:
        family = begun.family()
        pausing: dict[str, Store] = {n: PausingStore(family.store(n)) for n in PLACES}
        task = Task(lambda stores=pausing: begun.run(stores, kind)).run(steps)
        if Manifests(family.store("clone"), family.env).latest_id() is not None:
            destroy_pipeline(family.store("clone"), family.store("clone-journal"), family.env)
            if task.done:
                break
            task.run()
            assert task.error is None or isinstance(task.error, StepwellError), task.error
            outcomes.add(type(task.error))
            assert family.manifest("parent").pins == (), steps
            assert Manifests(family.store("clone"), family.env).latest_id() is None
        steps += 1
    # Without an error only where nothing was left to be done but to say so.
    assert outcomes >= {ConflictError, type(None)}
    assert steps > 20


def test_a_pin_that_is_left_behind_is_named_and_can_be_forgotten(begun: Begun) -> None:
    """C7: the process that made a clone was killed just after it had pinned what was destroyed by
    then. The pin of a clone that is there is not to be forgotten.
    """
    family = begun.family()
    parent = Manifests(family.store("parent"), family.env)
    begun.run({name: family.store(name) for name in PLACES}, "of a checkpoint")
    pin = family.manifest("parent").pins[0]
    assert look_at(pin, family.env).there is True
    with pytest.raises(InvalidError, match="and needs files of"):
        forgettable(parent, [pin.id], family.env)
    destroy_pipeline(family.store("clone"), family.store("clone-journal"), family.env)
    parent.amend(lambda m: replace(m, pins=(pin,)), "as if it came late")
    left = look_at(pin, family.env)
    assert left.there is False
    assert left.since <= family.env.now()
    with pytest.raises(InvalidError, match="has clones that need its files"):
        destroy_pipeline(family.store("parent"), family.store("parent-journal"), family.env)
    assert forgettable(parent, [pin.clone], family.env) == (left,)
    assert family.manifest("parent").pins == (pin,), "so far nothing was changed"
    drop_pin(parent, pin.id, pin.clone)
    drop_pin(parent, pin.id, pin.clone)
    assert family.manifest("parent").pins == ()
    with pytest.raises(InvalidError, match="has no clone"):
        forgettable(parent, [pin.clone], family.env)


def test_a_clone_whose_store_cannot_be_asked_is_not_taken_for_gone(begun: Begun) -> None:
    """F10: an error is never absent."""
    family = begun.family()
    begun.run({name: family.store(name) for name in PLACES}, "of a checkpoint")
    pin = family.manifest("parent").pins[0]
    SHARED[pin.clone] = FaultyStore(family.store("clone"), fail_at(1, "before"))
    assert look_at(pin, family.env).there is None
    later = look_at(replace(pin, id=family.env.new_id()), family.env)
    assert later.there is False
    assert "another pipeline" in later.message


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
@pytest.mark.parametrize("victim", ["clone", "parent"])
def test_destroying_is_resumed_wherever_it_was_killed(
    begun: Begun, victim: str, when: When
) -> None:
    """Scenario 59, C7: dead at any call, what is left says that it is being destroyed and cannot be
    opened; destroyed again it is gone, and its pin with it. Files of others are left.
    """

    def prepared() -> Family:
        family = begun.family()
        if victim == "clone":
            begun.run(begun.stores(family, None, None), "as of now")
        family.store(victim).put_new("notes.txt", b"mine")
        return family

    def run(family: Family, stores: dict[str, Store]) -> None:
        destroy_pipeline(stores[victim], stores[f"{victim}-journal"], ManualEnv(3))

    counts = {}
    for struck in PLACES:
        family = prepared()
        counting = begun.stores(family, struck, None)
        run(family, counting)
        store = counting[struck]
        assert isinstance(store, FaultyStore)
        counts[struck] = len(store.calls)
        restore(family)
    assert counts[victim] > 10
    assert counts["parent"] > 3
    for struck, count in counts.items():
        for number in range(1, count + 1):
            family = prepared()
            with pytest.raises(Crash):
                run(family, begun.stores(family, struck, crash_at(number, when)))
            restore(family)
            if family.store(victim).list(paths.MANIFESTS):
                if family.manifest(victim).status is Status.DELETING:
                    with pytest.raises(InvalidError, match="being destroyed"):
                        family.open(victim, journal=f"{victim}-journal")
                run(family, begun.stores(family, None, None))
            assert [item.path for item in family.store(victim).list()] == ["notes.txt"]
            assert not family.store(f"{victim}-journal").list()
            if victim == "clone":
                assert family.manifest("parent").pins == ()
                assert family.state("parent", journal="parent-journal") == begun.state
