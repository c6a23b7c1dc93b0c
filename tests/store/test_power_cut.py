"""The local store on a disk that keeps only what was synced."""

from __future__ import annotations

import pytest

from stepwell.errors import ConflictError
from stepwell.store.disk import Staged
from stepwell.store.local import LocalStore
from stepwell.testing import ManualEnv, SimulatedDisk


def disk_and_store(seed: int) -> tuple[SimulatedDisk, LocalStore]:
    env = ManualEnv()
    disk = SimulatedDisk(env, seed)
    return disk, LocalStore("/a/b/store", env, disk)


@pytest.mark.parametrize("seed", range(20))
def test_what_put_new_returned_from_survives_a_power_cut(seed: int) -> None:
    """K8: file, name and every directory above it are on the disk when the call returns."""
    disk, store = disk_and_store(seed)
    store.put_new("x/y/z", [b"one", b"two"])
    store.put_new("x/q", b"other")
    disk.cut_power()
    found = store.get("x/y/z")
    assert found is not None
    assert found.data == b"onetwo"
    assert [item.path for item in store.list()] == ["x/q", "x/y/z"]


@pytest.mark.parametrize("seed", range(20))
def test_what_replace_if_returned_from_survives_a_power_cut(seed: int) -> None:
    """K8: the replacement is on the disk when the call returns."""
    disk, store = disk_and_store(seed)
    store.put_new("x", b"old")
    found = store.get("x")
    assert found is not None
    store.replace_if("x", b"new", found.etag)
    disk.cut_power()
    after = store.get("x")
    assert after is not None
    assert after.data == b"new"


@pytest.mark.parametrize("seed", range(20))
def test_an_object_that_made_us_lose_survives_a_power_cut(seed: int) -> None:
    """K8: a loser acts upon the winner's object, which must not vanish under it."""
    disk, store = disk_and_store(seed)
    store.put_new("x/first", b"")

    # The winner's process was killed between naming its file and syncing the directory.
    staged: Staged = disk.stage("/a/b/store/x", [b"winner"])
    disk.sync(staged)
    disk.link(staged, "/a/b/store/x/second")
    with pytest.raises(ConflictError):
        store.put_new("x/second", b"loser")
    disk.cut_power()
    found = store.get("x/second")
    assert found is not None
    assert found.data == b"winner"


@pytest.mark.parametrize("seed", range(20))
def test_directories_of_a_killed_process_are_synced_by_the_next(seed: int) -> None:
    """K8: a directory left unsynced by a process that died must not take our object with it."""
    disk, store = disk_and_store(seed)
    for path in ("/a", "/a/b", "/a/b/store", "/a/b/store/x"):
        disk.make_directory(path)
    store.put_new("x/y", b"data")
    disk.cut_power()
    assert store.exists("x/y")


def test_the_disk_does_forget_what_was_not_synced() -> None:
    """A disk that forgets nothing would prove nothing: each missing sync must be fatal for some
    seed.
    """
    for missing in ("sync", "sync_directory"):
        survived = 0
        for seed in range(30):
            disk, store = disk_and_store(seed)
            setattr(disk, missing, lambda *arguments: None)
            store.put_new("x", b"data")
            disk.cut_power()
            found = store.get("x")
            survived += found is not None and found.data == b"data"
        assert survived < 30, f"no seed shows that {missing} is needed"
