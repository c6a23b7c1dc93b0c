"""A process killed before and after every store call, compared with one that was not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from stepwell.journal.journal import Settings
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import Crash, FaultyStore, ManualEnv, SimulatedDisk, crash_at, fail_at
from tests.tiny import Tiny, collect, stored_rows

SETTINGS = Settings(barrier_keep_s=3600, retry=Retry(patience_s=0.06))
ROWS = [f"row-{number}" for number in range(6)]

STRIDES = pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
"""Every third call, and with `make test-all` every one."""


def work(store: Store, env: ManualEnv, acknowledged: list[str], journal: Store | None) -> None:
    """Open, push, flush, close, collect, open again, and go on where the last one stopped."""
    for _ in range(2):
        tiny = Tiny(store, env, journal, SETTINGS)
        for row in ROWS:
            if row in tiny.rows():
                continue
            tiny.push(row)
            acknowledged.append(row)
            if row in ("row-1", "row-4"):
                tiny.flush()
        tiny.flush()
        tiny.close()
        env.advance(SETTINGS.barrier_keep_s + 1)
        collect(store, env, journal_store=journal, barrier_keep_s=SETTINGS.barrier_keep_s)


def finish(store: Store, journal: Store | None, acknowledged: list[str]) -> None:
    """After the crash: everything acknowledged is there, once; a new process completes the work."""
    env = ManualEnv(77)
    rows = stored_rows(store, env, journal)
    assert len(rows) == len(set(rows))
    assert set(acknowledged) <= set(rows)
    work(store, env, [], journal)
    tiny = Tiny(store, env, journal, SETTINGS)
    assert tiny.rows() == ROWS
    assert stored_rows(store, env, journal) == ROWS


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_store_call_nothing_is_lost_or_doubled(when: str, stride: int) -> None:
    """F1, F2, F7: every acknowledged row survives a crash at any call; the rest is written once."""
    watched = FaultyStore(MemoryStore(ManualEnv()))
    work(watched, ManualEnv(), [], None)
    assert len(watched.calls) > 60
    for number in range(1 + (when == "after"), len(watched.calls) + 1, stride):
        store, acknowledged = MemoryStore(ManualEnv()), []
        with pytest.raises(Crash):
            work(FaultyStore(store, crash_at(number, when)), ManualEnv(), acknowledged, None)
        finish(store, None, acknowledged)


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_of_a_separate_journal_store(when: str, stride: int) -> None:
    """F1, F2: a journal store of its own has its own calls to die at."""
    watched = FaultyStore(MemoryStore(ManualEnv(), "journal"))
    work(MemoryStore(ManualEnv()), ManualEnv(), [], watched)
    for number in range(1 + (when == "after"), len(watched.calls) + 1, stride):
        store, journal = MemoryStore(ManualEnv()), MemoryStore(ManualEnv(), "journal")
        acknowledged: list[str] = []
        dying = FaultyStore(journal, crash_at(number, when))
        with pytest.raises(Crash):
            work(store, ManualEnv(), acknowledged, dying)
        finish(store, journal, acknowledged)


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_that_fails_at_any_point_loses_nothing(when: str, stride: int) -> None:
    """F7, F10: an error or a lost answer at any call ends in progress or a typed error."""
    from stepwell.errors import UnavailableError, UnknownOutcomeError

    watched = FaultyStore(MemoryStore(ManualEnv()))
    work(watched, ManualEnv(), [], None)
    for number in range(1 + (when == "after"), len(watched.calls) + 1, stride):
        store, acknowledged = MemoryStore(ManualEnv()), []
        with suppress(UnavailableError, UnknownOutcomeError):
            work(FaultyStore(store, fail_at(number, when)), ManualEnv(), acknowledged, None)
        finish(store, None, acknowledged)


class Plug:
    """Counts a disk's calls, and pulls the plug at the n-th: nothing of it reaches the disk."""

    def __init__(self, disk: SimulatedDisk, number: int | None, *, after: bool = False) -> None:
        self._disk = disk
        self._number = number
        self._after = after
        self.count = 0
        self.distrusted = disk.distrusted

    def __getattr__(self, name: str) -> Callable[..., object]:
        call = getattr(self._disk, name)

        def counted(*arguments: object) -> object:
            self.count += 1
            if self._number is not None and self.count == self._number:
                if self._after:
                    call(*arguments)
                raise Crash(f"power cut at {name}")
            if self._number is not None and self.count > self._number:
                raise Crash("no power")
            return call(*arguments)

        return counted


@STRIDES
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_power_cut_at_every_system_call_loses_nothing_acknowledged(
    after: bool, stride: int
) -> None:
    """K8: everything not synced is gone or torn, and every acknowledged row is still there."""
    env = ManualEnv()
    plug = Plug(SimulatedDisk(env), None)
    work(LocalStore("/data/pipeline", env, plug), env, [], None)  # type: ignore[arg-type]
    assert plug.count > 250
    for number in range(1 + after, plug.count + 1, stride):
        env = ManualEnv()
        disk = SimulatedDisk(env, seed=number)
        acknowledged: list[str] = []
        dying = LocalStore("/data/pipeline", env, Plug(disk, number, after=after))  # type: ignore[arg-type]
        with pytest.raises(Crash):
            work(dying, env, acknowledged, None)
        disk.cut_power()
        finish(LocalStore("/data/pipeline", env, disk), None, acknowledged)
