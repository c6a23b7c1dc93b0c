"""The simulated world with processes that clone the pipeline, are killed, and clone again.

A clone must hold every row that was acknowledged when it began and none that was never recorded,
and must stay whole whatever is written, flushed and collected in its parent afterwards; also if it
is copied by hand, and the copy is destroyed, or adopted and then destroyed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stepwell.env import Env
from stepwell.errors import CheckpointMissing, InvalidError, StepwellError, TruncatedError
from stepwell.journal.copy import Tail
from stepwell.manifest import clone as cloning
from stepwell.manifest import pins
from stepwell.manifest.adopt import adopt
from stepwell.manifest.clone import clone
from stepwell.manifest.destroy import destroy_pipeline
from stepwell.manifest.manifest import Manifest, Manifests, Status
from stepwell.manifest.pins import release
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.store.sealed import unseal
from stepwell.testing import Crash
from tests.pausing import pause
from tests.sim.world import EXPECTED, Process, SimEnv, SimStore, ViolationError, World
from tests.tiny import RUN_FORMAT, entries, rows_of

SEEDS = [int(seed) for seed in os.environ.get("STEPWELL_SEEDS", "").split(",") if seed]
COUNT = int(os.environ.get("STEPWELL_SIM_SEEDS", "2000")) // 10


class CloneWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        SHARED[self.main.uri] = self.main
        self.clones: list[tuple[MemoryStore, list[str]]] = []
        self.given_up = 0
        self.copies = 0
        for number in range(self.random.randint(1, 2)):
            self._add(f"cloner{number}", cloner)

    def check_clones(self) -> None:
        for place, rows in self.clones:
            if clone_rows(self, place) != rows:
                raise ViolationError(f"{place.uri} is not what it was")


def cloner(process: Process) -> None:
    world, number = process.world, 0
    assert isinstance(world, CloneWorld)
    while process.running:
        number += 1
        place = MemoryStore(SimEnv(world, "store"), f"{process.name}.{number}")
        before = set(world.acknowledged)
        if not make(process, place):
            continue
        rows = clone_rows(world, place)
        if not before <= set(rows):
            raise ViolationError(f"the clone lacks {before - set(rows)}")
        if not set(rows) <= set(world.checker.check()):
            raise ViolationError("the clone holds rows that the parent does not")
        world.clones.append((place, rows))
        world.check_clones()
        if world.random.random() < 0.5:
            copied_by_hand(world, place)
        pause()


def copied_by_hand(world: CloneWorld, place: MemoryStore) -> None:
    """Somebody copies a clone with all its objects, and has no use for the copy afterwards."""
    env = SimEnv(world, "copier")
    copy = MemoryStore(env, f"{place.uri.removeprefix('memory://')}.copy")
    for item in place.list():
        found = place.get(item.path)
        assert found is not None
        copy.put_new(item.path, found.data)
    if world.random.random() < 0.5:
        adopt(copy, env, copy=True)
    destroy_pipeline(copy, None, env)
    world.copies += 1


def make(process: Process, place: MemoryStore) -> bool:
    """Clone until it is done, or until it is certain that it cannot be."""
    world = process.world
    assert isinstance(world, CloneWorld)
    while True:
        try:
            made = clone(
                process.main, SimStore(process, place), process.env, source_journal=process.journal
            )
        except Crash:
            process.restart()
        except (CheckpointMissing, TruncatedError):
            # Between two attempts the parent went on for so long that it cannot be finished.
            found = Manifests(place, process.env).latest()
            if found is not None and found.manifest.status is not Status.INCOMPLETE:
                raise ViolationError("a clone that is finished cannot be lost") from None
            if found is not None:
                release(Manifests(world.main, process.env), found.manifest, place)
            world.given_up += 1
            return False
        except EXPECTED:
            pause()
        except InvalidError:
            if world.checker.check():
                raise
            pause()  # There is no pipeline yet.
            return False
        else:
            if any(run.root for run in made.manifest.runs):
                world.pinned.add(made.manifest.lineage)
            return True
        if not process.running and not world.acknowledged:
            return False


def clone_rows(world: CloneWorld, place: MemoryStore) -> list[str]:
    """The rows of a clone, read from where its files lie."""
    env: Env = SimEnv(world, "auditor")
    found = Manifests(place, env).latest()
    assert found is not None
    if found.manifest.status is not Status.READY:
        raise ViolationError(f"{place.uri} was said to be finished")
    rows: list[str] = []
    for run in found.manifest.runs:
        body = (world.main if run.root else place).get(run.path)
        if body is None:
            raise ViolationError(f"{place.uri} needs {run.path}, which is gone")
        rows += unseal(body.data, format=RUN_FORMAT, object=run.path).any("rows")
    for recorded in entries(place, found.manifest.replay):
        rows += rows_of(recorded)
    if len(rows) != len(set(rows)):
        raise ViolationError(f"{place.uri} has doubled rows: {sorted(rows)}")
    return rows


def simulate(seed: int) -> CloneWorld:
    world = CloneWorld(seed)
    try:
        world.run()
        world.check_clones()
    except (ViolationError, StepwellError) as error:
        raise ViolationError(f"STEPWELL_SEEDS={seed} shows it: {error}") from error
    finally:
        SHARED.clear()
    return world


@pytest.mark.parametrize("first", [0] if SEEDS else range(0, COUNT, 50))
def test_clones_are_whole_whatever_happens(first: int) -> None:
    """Scenarios 51, 54, 61, 64, C4, C6, C7: clones of a pipeline that is written, flushed, taken
    over and collected meanwhile, on stores that fail, by processes that die.
    """
    for seed in SEEDS or range(first, min(first + 50, COUNT)):
        simulate(seed)


def test_most_clones_are_finished() -> None:
    """A simulation in which every clone is given up proves nothing."""
    worlds = [simulate(seed) for seed in range(40)]
    made = sum(len(world.clones) for world in worlds)
    assert made > 60
    assert sum(world.given_up for world in worlds) < made
    assert any(rows for world in worlds for _, rows in world.clones)
    assert sum(world.copies for world in worlds) > 20


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patching:
        yield patching


def found(count: int = 150) -> bool:
    for seed in range(count):
        try:
            simulate(seed)
        except (ViolationError, StepwellError):
            return True
    return False


def test_a_clone_that_forgets_the_journal_is_found(patch: pytest.MonkeyPatch) -> None:
    """A planted bug: rows that were recorded and not flushed are left behind (C4)."""
    patch.setattr(cloning, "last_entry", lambda log, after: after)
    assert found()


def test_a_clone_that_loses_the_last_entry_is_found(patch: pytest.MonkeyPatch) -> None:
    """A planted bug: the copy ends one entry too early (C4)."""
    original = cloning.copy_tail

    def short(source: object, copy: object, lineage: str, tail: Tail) -> object:
        until = tail.until - 1 if tail.until > tail.after.next else tail.until
        return original(source, copy, lineage, Tail(tail.after, tail.transaction, until))  # type: ignore[arg-type]

    patch.setattr(cloning, "copy_tail", short)
    assert found()


def test_a_pin_that_is_not_made_is_found(patch: pytest.MonkeyPatch) -> None:
    """A planted bug: nothing keeps the parent from collecting what a clone needs (C7)."""
    patch.setattr(cloning, "make_pin", lambda parent, pin: None)
    assert pins.make_pin is not cloning.make_pin
    assert found()


def test_pins_that_are_matched_by_lineage_alone_are_found(patch: pytest.MonkeyPatch) -> None:
    """Scenario 97, F13: a planted bug: a copy that is destroyed frees the original's pin (C7)."""

    def unpinned(manifest: Manifest, id: str, clone: str) -> Manifest:
        return replace(manifest, pins=tuple(pin for pin in manifest.pins if pin.id != id))

    patch.setattr(pins, "_unpinned", unpinned)
    assert found()
