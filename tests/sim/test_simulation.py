"""Thousands of seeded runs; the same seed gives the same run; planted bugs are found.

Those of F8 and F12 are planted in `test_sleepers.py`, whose world is made for them.

`STEPWELL_SEEDS=123,456` runs just these seeds; `STEPWELL_SIM_SEEDS=100000` sets how many run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from stepwell.engine import open as opening
from stepwell.errors import ConflictError, StepwellError, UnavailableError, UnknownOutcomeError
from stepwell.journal import journal, paths
from stepwell.manifest import gc as collect
from stepwell.manifest import manifest
from stepwell.model import Position
from stepwell.store import sequenced
from stepwell.store.retry import Retry
from tests import tiny
from tests.sim import world
from tests.sim.world import ViolationError, World

SEEDS = [int(seed) for seed in os.environ.get("STEPWELL_SEEDS", "").split(",") if seed]
COUNT = int(os.environ.get("STEPWELL_SIM_SEEDS", "2000"))
CHUNK = max(50, COUNT // 100)


def simulate(seed: int) -> World:
    try:
        return World(seed).run()
    except (ViolationError, StepwellError) as error:
        raise ViolationError(f"STEPWELL_SEEDS={seed} shows it: {error}") from error


@pytest.mark.parametrize("first", [0] if SEEDS else range(0, COUNT, CHUNK))
def test_invariants_hold_whatever_happens(first: int) -> None:
    """F1, F2, F5, F7, F8, F11, F12, K3: writers, collectors, readers on a failing store keep every
    promise; what was refused is nowhere, and what was acknowledged is there. Wall clocks are off by
    days, the storage's too.

    Scenario 69: nobody waits for a grace; what is collected is collected at once.
    """
    for seed in SEEDS or range(first, min(first + CHUNK, COUNT)):
        simulate(seed)


def test_the_runs_are_not_idle() -> None:
    """A simulation in which nothing happens proves nothing: every fault and outcome must occur."""
    seen: set[str] = set()
    collected: set[str] = set()
    acknowledged = 0
    for seed in range(60):
        run = simulate(seed)
        acknowledged += len(run.acknowledged)
        seen |= {f"{operation} {outcome}" for _, operation, _, outcome in run.trace}
        collected |= {paths.parse(item[2]).kind for item in run.trace if item[1] == "delete"}
    assert acknowledged > 300
    for event in (
        "put_new ConflictError",
        "put_new fail before",
        "put_new fail after",
        "put_new crash before",
        "put_new crash after",
        "delete ok",
        "get fail before",
        "list fail after",
        "replace_if ok",
    ):
        assert event in seen
    assert collected >= {"manifest", "entry", "run", "checkpoint"}


def test_the_same_seed_gives_the_same_run() -> None:
    """A failure that cannot be replayed cannot be understood: two runs of a seed are identical."""
    for seed in range(20):
        first, second = simulate(seed), simulate(seed)
        assert first.trace == second.trace
        assert first.acknowledged == second.acknowledged
        assert first.main._objects == second.main._objects
    assert simulate(1).trace != simulate(2).trace


def plant_manifest_asked_after_the_put(patch: pytest.MonkeyPatch) -> None:
    """F11 broken: a successor that has claimed but not put its barrier yet counts as a fence."""

    def confirm(self: journal.Journal, position: Position) -> None:
        if self._long_since_confirmed(self._clocks()):
            self._guard.check("it was not acknowledged")

    patch.setattr(journal.Journal, "_ask", lambda self, now: None)
    patch.setattr(journal.Journal, "_confirm", confirm)


def plant_unknown_attempt_taken_for_none(patch: pytest.MonkeyPatch) -> None:
    """F11 broken: spent attempts of which one may have landed are reported as not written."""

    def append(self: journal.Journal, draft: object) -> object:
        try:
            return original(self, draft)  # type: ignore[arg-type]
        except UnknownOutcomeError as error:
            raise UnavailableError(error.message, not_applied=True) from error

    original = journal.Journal.append
    patch.setattr(journal.Journal, "append", append)


def plant_conflict_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    """F7 broken: whatever lies at our position is taken for our own entry."""
    original = journal.Journal._put_once

    def put(self: journal.Journal, entry: journal.Entry, encoded: journal.Encoded) -> object:
        original(self, entry, encoded)
        return entry

    patch.setattr(journal.Journal, "_put_once", put)


def plant_lost_answer_taken_for_failure(patch: pytest.MonkeyPatch) -> None:
    """F7 broken: after an error the row is sent again as a new entry, at the next position."""

    def push(self: tiny.Tiny, row: str) -> None:
        try:
            original(self, row)
        except StepwellError:
            original(tiny.Tiny(self.store, self.env, self.journal_store, self.settings), row)

    original = tiny.Tiny.push
    patch.setattr(tiny.Tiny, "push", push)


def plant_flush_past_the_tip(patch: pytest.MonkeyPatch) -> None:
    """The replay position covers one entry more than the runs hold."""

    def flush(self: tiny.Tiny, *, merge: bool = False) -> None:
        rows, self.unflushed = self.unflushed[-1:], self.unflushed[:-1]
        original(self, merge=merge)
        self.unflushed = rows

    original = tiny.Tiny.flush
    patch.setattr(tiny.Tiny, "flush", flush)


def plant_no_look_at_the_boundary(patch: pytest.MonkeyPatch) -> None:
    """A manifest created in a hole that the collector left counts as committed."""

    def read(self: sequenced.Boundary, name: str) -> int:
        return 0 if name == "manifest" else original(self, name)

    original = sequenced.Boundary.read
    patch.setattr(sequenced.Boundary, "read", read)


def plant_unknown_taken_for_unavailable(patch: pytest.MonkeyPatch) -> None:
    """A commit that may have been made is reported as not made, and is made once more."""

    def commit(
        self: manifest.Holder, change: manifest.Change, doing: str, *revived: frozenset[str]
    ) -> object:
        try:
            return original(self, change, doing, *revived)
        except UnknownOutcomeError as error:
            self.under_way = False
            raise UnavailableError(error.message) from error

    def strike(self: world.SimStore, operation: str, path: str, when: str) -> None:
        lost = operation == "put_new" and when == "after" and not self._world.calm
        if lost and self._world.random.random() < 0.1:
            raise UnavailableError("the answer is lost")
        original_strike(self, operation, path, when)

    original, original_strike = manifest.Holder.commit, world.SimStore._strike
    patch.setattr(manifest.Holder, "commit", commit)
    # With a single attempt, and many answers lost, it is met often.
    patch.setattr(world, "SETTINGS", replace(world.SETTINGS, retry=Retry(patience_s=0)))
    patch.setattr(world.SimStore, "_strike", strike)


def plant_absent_when_unavailable(patch: pytest.MonkeyPatch) -> None:
    """F10 broken: a failed look-up counts as absence."""

    def exists(self: world.SimStore, path: str) -> bool:
        try:
            return original(self, path)
        except UnavailableError:
            return False

    original = world.SimStore.exists
    patch.setattr(world.SimStore, "exists", exists)
    # Without put-if-absent behind it, believing a failed look-up overwrites an entry.
    original_put = world.SimStore.put_new

    def put_new(self: world.SimStore, path: str, data: object) -> None:
        try:
            original_put(self, path, data)  # type: ignore[arg-type]
        except ConflictError:
            self.inner.delete(path)
            original_put(self, path, data)  # type: ignore[arg-type]

    patch.setattr(world.SimStore, "put_new", put_new)
    patch.setattr(opening, "probe", lambda store, env: None)


def plant_in_the_plan(
    patch: pytest.MonkeyPatch, change: Callable[[collect.Read], collect.Read]
) -> None:
    def plan(read: collect.Read, *rest: object) -> collect.Plan:
        return original(change(read), *rest)  # type: ignore[arg-type]

    original = collect.plan
    patch.setattr(collect, "plan", plan)


def plant_checkpoints_not_protected(patch: pytest.MonkeyPatch) -> None:
    """K3 broken: the collector looks at the manifest's own files alone."""
    plant_in_the_plan(patch, lambda read: replace(read, checkpoints={}))


def plant_pins_not_protected(patch: pytest.MonkeyPatch) -> None:
    """K3 broken: a checkpoint that only a clone's pin names counts as nothing."""

    def change(read: collect.Read) -> collect.Read:
        listed = {ref.id for ref in read.latest.manifest.checkpoints}
        return replace(
            read, checkpoints={id: c for id, c in read.checkpoints.items() if id in listed}
        )

    plant_in_the_plan(patch, change)


def plant_no_floor(patch: pytest.MonkeyPatch) -> None:
    """K3 broken: what nothing names now is deleted, though it may be about to be named."""

    def change(read: collect.Read) -> collect.Read:
        manifest = replace(read.latest.manifest, floor="7" + "Z" * 25)
        return replace(read, latest=replace(read.latest, manifest=manifest))

    plant_in_the_plan(patch, change)


@pytest.mark.parametrize(
    "plant",
    [
        plant_checkpoints_not_protected,
        plant_pins_not_protected,
        plant_no_floor,
        plant_manifest_asked_after_the_put,
        plant_unknown_attempt_taken_for_none,
        plant_conflict_taken_for_success,
        plant_lost_answer_taken_for_failure,
        plant_flush_past_the_tip,
        plant_no_look_at_the_boundary,
        plant_unknown_taken_for_unavailable,
        plant_absent_when_unavailable,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulator that finds nothing may be blind: some seed must find each of these bugs."""
    plant(monkeypatch)
    for seed in range(1500):
        try:
            simulate(seed)
        except ViolationError:
            return
    pytest.fail(f"{plant.__name__} was not found")
