"""The test kit itself: a fault that does not happen would make every crash test blind."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import pytest

from stepwell.env import SystemEnv
from stepwell.errors import ConflictError, UnavailableError
from stepwell.model import is_ulid
from stepwell.store.memory import MemoryStore
from stepwell.testing import (
    EXECUTOR_VARIABLE,
    Crash,
    FaultyStore,
    ManualEnv,
    crash_at,
    fail_at,
    reference_executor,
    short_read_at,
    stall_at,
    storm,
)


def faulty(plan: object = None) -> tuple[MemoryStore, FaultyStore]:
    store = MemoryStore(ManualEnv())
    return store, FaultyStore(store, plan)  # type: ignore[arg-type]


def test_a_failure_before_is_not_applied_and_one_after_is() -> None:
    """F7: the two sides of a lost answer."""
    for when, applied in (("before", False), ("after", True)):
        store, broken = faulty(fail_at(1, when))
        with pytest.raises(UnavailableError):
            broken.put_new("a", b"x")
        assert store.exists("a") is applied
        assert broken.exists("a") is applied


def test_a_refusal_is_lost_with_its_answer() -> None:
    """F7: a lost answer may have been a conflict; the caller cannot know."""
    store, broken = faulty(fail_at(1, "after"))
    store.put_new("a", b"first")
    with pytest.raises(UnavailableError):
        broken.put_new("a", b"second")


def test_a_crash_goes_through_every_handler_and_the_process_stays_dead() -> None:
    for when, applied in (("before", False), ("after", True)):
        store, broken = faulty(crash_at(1, when))
        with pytest.raises(Crash):
            try:
                broken.put_new("a", b"x")
            except Exception:  # noqa: BLE001 - shows that even this does not stop it
                pytest.fail("a crash was caught")
        assert store.exists("a") is applied
        for call in (lambda: broken.get("a"), lambda: broken.delete("a"), broken.list):
            with pytest.raises(Crash):
                call()


def test_a_stall_lets_time_pass_and_then_continues() -> None:
    env = ManualEnv()
    store = FaultyStore(MemoryStore(env), stall_at(1, 30, "after"), sleep=env.sleep)
    store.put_new("a", b"x")
    assert env.uptime() == 30
    assert store.exists("a")


def test_a_short_read_gets_half() -> None:
    store, broken = faulty(lambda call: short_read_at(call.number)(call))
    store.put_new("a", b"12345678")
    found = broken.get("a")
    assert found is not None
    assert found.data == b"1234"
    assert broken.get_range("a", 0, 4) == b"12"
    assert broken.get("missing") is None
    assert broken.exists("a")


def test_a_storm_ends() -> None:
    store, broken = faulty(storm(1, 3))
    for _ in range(3):
        with pytest.raises(UnavailableError):
            broken.put_new("a", b"x")
    broken.put_new("a", b"x")
    with pytest.raises(ConflictError):
        broken.put_new("a", b"x")


def test_a_delete_of_several_that_is_struck_halfway_has_removed_some() -> None:
    """Scenario 65: what a lost answer, or a bucket that gave up, leaves."""
    store, watched = faulty(fail_at(5, "halfway"))
    for name in "abcd":
        watched.put_new(f"d/{name}", b"x")
    with pytest.raises(UnavailableError, match="halfway call 5, delete d/a d/b d/c d/d"):
        watched.delete("d/a", "d/b", "d/c", "d/d")
    assert [item.path for item in store.list()] == ["d/c", "d/d"]
    watched.delete()
    assert len(watched.calls) == 5, "nothing to delete is no call"


def test_every_call_is_recorded() -> None:
    store, watched = faulty()
    watched.put_new("d/a", b"x")
    found = watched.get("d/a")
    assert found is not None
    watched.replace_if("d/a", b"y", found.etag)
    watched.get_range("d/a", 0, 1)
    watched.list("d/")
    watched.exists("d/a")
    watched.delete("d/a")
    assert [(call.number, call.operation, call.path) for call in watched.calls] == [
        (1, "put_new", "d/a"),
        (2, "get", "d/a"),
        (3, "replace_if", "d/a"),
        (4, "get_range", "d/a"),
        (5, "list", "d/"),
        (6, "exists", "d/a"),
        (7, "delete", "d/a"),
    ]


def test_a_manual_world_is_the_same_for_the_same_seed() -> None:
    first, second, other = ManualEnv(1), ManualEnv(1), ManualEnv(2)
    assert [first.new_id() for _ in range(3)] == [second.new_id() for _ in range(3)]
    assert first.new_id() != other.new_id()
    before = first.now()
    first.sleep(90)
    assert first.now() - before == timedelta(seconds=90)
    assert is_ulid(first.new_id())


def test_the_real_world_has_clocks_that_move_and_ids_that_do_not_repeat() -> None:
    env = SystemEnv()
    before, up = env.now(), env.uptime()
    ids = [env.new_id() for _ in range(100)]
    env.sleep(0)
    assert env.now() >= before
    assert env.uptime() >= up
    assert len(set(ids)) == 100
    assert all(is_ulid(id) for id in ids)
    assert 0 <= env.jitter() < 1
    assert env.host
    assert env.pid > 1


def test_projects_are_computed_without_spark_in_a_block_and_in_its_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The choice ends with the block: no test decides for the next one."""
    monkeypatch.delenv(EXECUTOR_VARIABLE)
    with reference_executor():
        asked = [sys.executable, "-c", f"import os; print(os.environ['{EXECUTOR_VARIABLE}'])"]
        assert subprocess.run(asked, capture_output=True, text=True).stdout == "reference\n"
    assert EXECUTOR_VARIABLE not in os.environ
