"""Writers that fall asleep at an append while others take over, collect, and clocks jump by days.

A small world made for F8, F11 and F12: in each life one writer stalls before its PUT or after it,
and a random night passes. What it is told when it wakes up must be true of everything that later
openers replay. Lives are cheap, so that rare orders of events are met: `STEPWELL_SEEDS=123` repeats
one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import pytest

from stepwell.errors import (
    ConflictError,
    FencedError,
    StepwellError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.journal import journal, paths, trim, watch
from stepwell.journal.journal import Settings
from stepwell.manifest.manifest import Manifests
from stepwell.model import Bytes, Position
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import FaultyStore, ManualEnv
from tests.tiny import Tiny, collect

KEEP_S = 100.0
SETTINGS = Settings(barrier_keep_s=KEEP_S, retry=Retry(patience_s=0.012, wait_s_first=0.01))
SEEDS = [int(seed) for seed in os.environ.get("STEPWELL_SEEDS", "").split(",") if seed]
LIVES = int(os.environ.get("STEPWELL_SIM_SEEDS", "2000")) // 5
REFUSED = (FencedError, ConflictError, UnavailableError)


class ViolationError(AssertionError):
    """Somebody was told what is not true."""


class SleepyStore(FaultyStore):
    """The sleeper's way to its store: at its next entry it stalls, before the PUT or after it."""

    night: Callable[[], None] | None = None
    before = True

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        night = self.night if paths.parse(path).kind == "entry" else None
        if night is not None:
            self.night = None
            if self.before:
                night()
        super().put_new(path, data)
        if night is not None and not self.before:
            night()


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.storage = ManualEnv(seed, host="storage")
        self.collectors = [ManualEnv(seed + 1, host="one"), ManualEnv(seed + 2, host="two")]
        self.mine = ManualEnv(seed + 3, host="sleeper")
        self.others = ManualEnv(seed + 4, host="others")
        self.clocks = [self.storage, *self.collectors, self.mine, self.others]
        self.store = MemoryStore(self.storage)
        self.sleepy = SleepyStore(self.store)
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self.answers: list[str] = []
        self.count = 0
        self.sleeper = Tiny(self.sleepy, self.mine, settings=SETTINGS)
        self.successor: Tiny | None = None

    def live(self) -> Life:
        for _ in range(self.random.randint(0, 2)):
            self.push(self.sleeper)
        for _ in range(self.random.randint(1, 3)):
            if self.random.random() < 0.3:
                self.night()
            self.sleepy.night = self.night
            self.sleepy.before = self.random.random() < 0.6
            self.answers.append(self.push(self.sleeper))
            self.sleepy.night = None
            self.check()
        self.night()
        self.check()
        return self

    def night(self) -> None:
        """What happens while the sleeper sleeps, in an order that only the seed knows."""
        for _ in range(self.random.randint(1, 16)):
            chance = self.random.random()
            if chance < 0.15:
                self.successor = Tiny(self.store, self.others, settings=SETTINGS)
            elif chance < 0.18:
                found = Manifests(self.store, self.others).latest()
                Manifests(self.store, self.others).claim(found)  # And dies before its barrier.
            elif chance < 0.33 and self.successor is not None:
                self.push(self.successor)
            elif chance < 0.5 and self.successor is not None:
                try:
                    self.successor.flush()
                except FencedError:
                    self.successor = None
            elif chance < 0.75:
                collect(self.store, self.random.choice(self.collectors), barrier_keep_s=KEEP_S)
            elif chance < 0.92:
                seconds = self.random.uniform(0, 2.5 * KEEP_S) * self.random.choice([0.01, 1, 1])
                for clock in self.clocks:
                    clock.advance(seconds)
            else:
                days = self.random.uniform(-1, 1) * self.random.choice([0.5, 3, 30])
                self.random.choice(self.clocks).time += timedelta(seconds=days * KEEP_S)

    def push(self, tiny: Tiny) -> str:
        self.count += 1
        row = f"row-{self.count}"
        try:
            tiny.push(row)
        except REFUSED as error:
            self.refused.add(row)
            return type(error).__name__
        except UnknownOutcomeError:
            return "unknown"
        self.acknowledged.add(row)
        return "acknowledged" if self.successor is None else "acknowledged after a takeover"

    def check(self) -> None:
        """What a later opener replays: all that was acknowledged, nothing that was refused."""
        copy = MemoryStore(self.storage)
        copy._objects = dict(self.store._objects)
        rows = Tiny(copy, ManualEnv(999), settings=SETTINGS).rows()
        if lost := self.acknowledged - set(rows):
            raise ViolationError(f"acknowledged, and lost: {lost}")
        if there := self.refused & set(rows):
            raise ViolationError(f"refused, and there: {there}")
        if len(rows) != len(set(rows)):
            raise ViolationError(f"doubled: {rows}")


def live(seed: int) -> Life:
    try:
        return Life(seed).live()
    except (ViolationError, StepwellError) as error:
        raise ViolationError(f"STEPWELL_SEEDS={seed} shows it: {error}") from error


def test_a_writer_that_wakes_up_is_told_the_truth() -> None:
    """F8, F11, F12, scenarios 94 and 98: by whatever clock, refused means absent forever, and
    acknowledged means replayed.
    """
    for seed in SEEDS or range(LIVES):
        live(seed)


def test_the_nights_are_eventful() -> None:
    """Lives in which nothing happens prove nothing: every answer must occur."""
    expected = {"acknowledged", "acknowledged after a takeover", "FencedError", "unknown"}
    answers: set[str] = set()
    for seed in range(300):
        answers |= set(live(seed).answers)
        if answers >= expected:
            break
    assert answers == expected


def plant_no_question_after_silence(patch: pytest.MonkeyPatch) -> None:
    """F8 broken: a writer that slept neither asks the manifest nor looks at the boundary."""
    patch.setattr(journal.Journal, "_long_since_confirmed", lambda self, now: False)


def plant_no_look_after_a_long_put(patch: pytest.MonkeyPatch) -> None:
    """F8 broken: a writer asks before it writes, and not after it slept inside its PUT."""
    patch.setattr(journal.Journal, "_confirm", lambda self, position: None)


def plant_manifest_asked_after_the_put(patch: pytest.MonkeyPatch) -> None:
    """F11 broken: a successor that has claimed but not put its barrier yet counts as a fence."""

    def confirm(self: journal.Journal, position: Position) -> None:
        if self._long_since_confirmed(self._clocks()):
            self._guard.check("it was not acknowledged")

    patch.setattr(journal.Journal, "_ask", lambda self, now: None)
    patch.setattr(journal.Journal, "_confirm", confirm)


def plant_wall_clock_asked_alone(patch: pytest.MonkeyPatch) -> None:
    """F12 broken: a writer believes its wall clock when it says that no time has passed."""

    def long_since(self: journal.Journal, now: tuple[float, datetime]) -> bool:
        return now[1] - self._confirmed[1] >= self._limit

    patch.setattr(journal.Journal, "_long_since_confirmed", long_since)


def plant_barriers_trimmed_at_once(patch: pytest.MonkeyPatch) -> None:
    """F8 broken from the other side: the collector keeps no barrier."""
    patch.setattr(trim, "_may_be_barrier", lambda *given: False)


def judged_by(seconds: Callable[[watch.Watch, watch.Note, watch.Clocks], float]) -> object:
    def old(self: watch.Watch, now: watch.Clocks, keep_s: float) -> Position:
        if self.note is None or seconds(self, self.note, now) < keep_s:
            return Position(0)
        return self.note.position

    return old


def plant_barriers_judged_by_the_storage_alone(patch: pytest.MonkeyPatch) -> None:
    """F12 broken: the storage's clock alone makes a barrier old."""

    def seconds(note: watch.Watch, _: watch.Note, now: watch.Clocks) -> float:
        return (now.storage - note.stored).total_seconds() if now.storage else 0.0

    patch.setattr(watch.Watch, "old", judged_by(seconds))


def plant_barriers_judged_by_the_collector_alone(patch: pytest.MonkeyPatch) -> None:
    """F12 broken: the collector's wall clock alone makes a barrier old."""
    patch.setattr(
        watch.Watch, "old", judged_by(lambda _, note, now: (now.wall - note.wall).total_seconds())
    )


@pytest.mark.parametrize(
    "plant",
    [
        plant_no_question_after_silence,
        plant_no_look_after_a_long_put,
        plant_manifest_asked_after_the_put,
        plant_wall_clock_asked_alone,
        plant_barriers_trimmed_at_once,
        plant_barriers_judged_by_the_storage_alone,
        plant_barriers_judged_by_the_collector_alone,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulator that finds nothing may be blind: some seed must find each of these bugs."""
    plant(monkeypatch)
    for seed in range(20_000):
        try:
            live(seed)
        except ViolationError:
            return
    pytest.fail(f"{plant.__name__} was not found")
