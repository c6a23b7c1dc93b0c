"""One deploy at a time: the lease, its owner, its death, and clocks that disagree."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from stepwell.deploy.lease import (
    Lease,
    LeaseSettings,
    Owner,
    read_lease,
    take_lease,
    unlock,
)
from stepwell.env import SystemEnv
from stepwell.errors import ConflictError, InvalidError
from stepwell.process import Liveness, ProcessId
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at, fail_at


def elsewhere(process: ProcessId) -> Liveness:
    """Nobody can be asked."""
    return Liveness.UNKNOWN


def take(store: Store, env: ManualEnv, wait_s: float = 0.0) -> Lease:
    return take_lease(store, env, wait_s=wait_s, alive=elsewhere)


def test_the_second_deploy_is_told_who_the_first_one_is() -> None:
    """D5, scenario 80: owner, host, since when, and how to free it."""
    env = ManualEnv(host="alpha", pid=77)
    store = MemoryStore(env)
    first = take(store, env)
    with pytest.raises(ConflictError, match="process 77 on host alpha since 2026") as caught:
        take(store, ManualEnv(1, host="beta"))
    assert f"stepwell unlock {first.id}" in (caught.value.hint or "")
    first.release()
    take(store, ManualEnv(1, host="beta")).release()
    assert read_lease(store) is None


def test_a_waiting_process_gets_it_once_it_is_released() -> None:
    """D5, scenario 80: and says that it waits, once."""
    env = ManualEnv()
    store = MemoryStore(env)
    first = take(store, env)
    told: list[Owner] = []

    class Waiter(ManualEnv):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.up > 4:
                first.release()
            elif int(self.up) % 2:
                first.beat()

    second = take_lease(store, Waiter(2), wait_s=60, alive=elsewhere, waiting=told.append)
    assert second.id != first.id
    assert [owner.id for owner in told] == [first.id]


def test_an_owner_that_beats_is_never_taken_over() -> None:
    """D5: however long it takes."""
    env = ManualEnv()
    store = MemoryStore(env)
    first = take(store, env)

    class Waiter(ManualEnv):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if int(self.up / 5) > int((self.up - seconds) / 5):
                first.beat()

    with pytest.raises(ConflictError):
        take_lease(store, Waiter(2), wait_s=600, alive=elsewhere)


@pytest.mark.parametrize("skew_s", [-86400, -40, 0, 40, 86400])
def test_a_dead_owner_is_taken_over_after_expiry_whatever_its_clock_said(skew_s: float) -> None:
    """D5, scenario 80: only the clock of the waiting process is used."""
    env = ManualEnv(host="alpha")
    store = MemoryStore(env)
    first = take(store, env)
    waiter = ManualEnv(1, host="beta")
    waiter.time += timedelta(seconds=skew_s)
    with pytest.raises(ConflictError):
        take(store, waiter, wait_s=29)
    assert take(store, waiter, wait_s=60).id != first.id
    with pytest.raises(ConflictError, match="lost its lease to process 1 on host beta"):
        first.check()
    with pytest.raises(ConflictError, match="lost its lease"):
        first.beat()
    first.release()
    assert read_lease(store) is not None, "it is not ours to release any more"


def test_a_process_that_is_gone_from_this_machine_is_dead_at_once() -> None:
    """D5: nobody waits for a process that was killed."""
    env = SystemEnv()
    store = MemoryStore(ManualEnv())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = ManualEnv(host=env.host, pid=gone.pid)
    take(store, dead)
    taken = take_lease(store, ManualEnv(3, host=env.host, pid=env.pid), wait_s=0)
    assert taken.id


def test_an_owner_in_another_container_is_not_dead_because_its_number_is_free_here() -> None:
    """D5, scenario 100: it is taken over when it has not beaten for the expiry, not before."""
    env = SystemEnv()
    store = MemoryStore(env)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    class Container(ManualEnv):
        @property
        def process(self) -> ProcessId:
            return replace(env.process, pid=gone.pid, namespace="pid:[1]", started="1")

    first = take(store, Container())
    owner = read_lease(store)
    assert owner is not None
    assert owner.namespace == "pid:[1]"
    with pytest.raises(ConflictError, match=f"process {gone.pid} on host {env.host}"):
        take_lease(store, env, wait_s=0)
    first.check()


def test_unlock_frees_a_lease_by_its_id_only() -> None:
    """D5: an id of yesterday frees nobody's of today."""
    env = ManualEnv()
    store = MemoryStore(env)
    with pytest.raises(InvalidError, match="no process holds"):
        unlock(store, "01KDVDNA001HEAD8X4A1JH69RE")
    first = take(store, env)
    with pytest.raises(InvalidError, match=f"is {first.id}, not"):
        unlock(store, "01KDVDNA001HEAD8X4A1JH69RE")
    assert unlock(store, first.id).id == first.id
    take(store, env).release()
    with pytest.raises(ConflictError):
        first.check()


def test_of_many_at_once_one_has_it() -> None:
    """D5, scenario 80: compare-and-swap decides."""
    store = MemoryStore(ManualEnv())
    got: list[str] = []

    def one(seed: int) -> None:
        with suppress(ConflictError):
            got.append(take(store, ManualEnv(seed)).id)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner = read_lease(store)
    assert owner is not None
    assert got == [owner.id]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_call_it_is_taken_or_not(when: str) -> None:
    """D5: the next one gets it, at the latest after expiry."""
    for number in range(1, 20):
        env = ManualEnv()
        store = MemoryStore(env)
        try:
            take(FaultyStore(store, crash_at(number, when)), env).release()  # type: ignore[arg-type]
        except Crash:
            pass
        else:
            return
        take(store, ManualEnv(5), wait_s=60).release()


def test_an_answer_that_is_lost_does_not_lose_the_lease() -> None:
    """D5: our own object is recognised."""
    env = ManualEnv()
    store = MemoryStore(env)
    lease = take(store, env)
    faulty = FaultyStore(store, fail_at(1, "after"))
    again = Lease(faulty, lease._owner, lease._etag)
    again.beat()
    again.check()


def test_a_lease_beats_by_itself_until_it_is_released() -> None:
    """D5: a long deploy keeps its lease."""
    env = SystemEnv()
    store = MemoryStore(env)
    lease = take_lease(store, env, wait_s=0)
    lease.keep_alive(LeaseSettings(beat_s=0.01))
    until = env.uptime() + 30
    while (owner := read_lease(store)) is not None and owner.beat < 3:
        assert env.uptime() < until
        env.sleep(0.01)
    lease.release()
    assert read_lease(store) is None
