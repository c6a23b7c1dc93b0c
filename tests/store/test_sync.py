"""What reaches the disk: the system calls of the real one, and an `fsync` that fails (K8)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.env import SystemEnv
from stepwell.errors import (
    ConflictError,
    StepwellError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.journal.journal import Settings
from stepwell.store.disk import RealDisk
from stepwell.store.local import LocalStore
from stepwell.store.retry import Retry
from stepwell.testing import ManualEnv, SimulatedDisk
from tests.tiny import Tiny

ENV = SystemEnv()
SETTINGS = Settings(retry=Retry(patience_s=0.06))


class Kernel:
    """Stands before the system calls: notes them by path, and fails an `fsync` when told to."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = str(root)
        self.calls: list[str] = []
        self.fails: Callable[[str], int] = lambda name: 0
        """The error number with which `fsync` of this file fails; 0: it does not."""
        self._names: dict[int, str] = {}
        self._fsync, self._open, self._close = os.fsync, os.open, os.close
        self._link, self._rename, self._mkdir = os.link, os.rename, os.mkdir
        for name in ("fsync", "open", "close", "link", "rename", "mkdir"):
            patch.setattr(os, name, getattr(self, name))

    def fsync(self, fd: int) -> None:
        name = self._names.get(fd, "unknown")
        self._note(f"fsync {name}")
        if number := self.fails(name):
            raise OSError(number, os.strerror(number))
        self._fsync(fd)

    def open(self, path: str, flags: int, *rest: int) -> int:
        fd = self._open(path, flags, *rest)
        staged = flags & os.O_WRONLY
        self._names[fd] = "the new file" if staged else self._relative(path)
        return fd

    def close(self, fd: int) -> None:
        self._names.pop(fd, None)
        self._close(fd)

    def link(self, source: str, name: str, **options: object) -> None:
        self._note(f"link {self._relative(name)}")
        self._link(source, name, **options)  # type: ignore[arg-type]

    def rename(self, source: str, name: str) -> None:
        self._note(f"rename {self._relative(name)}")
        self._rename(source, name)

    def mkdir(self, path: str, mode: int) -> None:
        self._note(f"mkdir {self._relative(path)}")
        self._mkdir(path, mode)

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def _note(self, call: str) -> None:
        # What lies above the parent of the store was there before, and is not ours to test.
        if "../.." not in call:
            self.calls.append(call)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path / "store", monkeypatch)


@pytest.fixture(params=[True, False], ids=["unnamed", "named"])
def store(kernel: Kernel, request: pytest.FixtureRequest) -> LocalStore:
    return LocalStore(kernel.root, ENV, RealDisk(ENV, unnamed=request.param))


def failing(which: str, number: int = errno.EIO, times: int = 1) -> Callable[[str], int]:
    left = iter(range(times))
    return lambda name: number if name == which and next(left, None) is not None else 0


# The order, as the system sees it


def test_the_real_disk_syncs_bytes_before_the_name_and_the_name_before_the_answer(
    kernel: Kernel, store: LocalStore
) -> None:
    """K8: a disk whose `sync` or `sync_directory` did nothing would pass every other test."""
    store.put_new("runs/orders/1", b"bytes")
    assert kernel.calls == [
        "mkdir ..",
        "mkdir .",
        "fsync ..",
        "mkdir runs",
        "fsync .",
        "mkdir runs/orders",
        "fsync runs",
        "fsync the new file",
        "link runs/orders/1",
        "fsync runs/orders",
    ]
    kernel.calls.clear()
    store.put_new("runs/orders/2", b"bytes")
    assert kernel.calls == ["fsync the new file", "link runs/orders/2", "fsync runs/orders"]


def test_the_real_disk_syncs_the_directory_before_it_reports_a_conflict(
    kernel: Kernel, store: LocalStore
) -> None:
    """K8: the loser acts upon the winner's object, whose process may have died before its own
    sync.
    """
    store.put_new("a/1", b"bytes")
    kernel.calls.clear()
    with pytest.raises(ConflictError):
        store.put_new("a/1", b"others")
    assert kernel.calls == ["fsync the new file", "link a/1", "fsync a"]


def test_the_real_disk_syncs_a_replacement_before_and_after_its_rename(
    kernel: Kernel, store: LocalStore
) -> None:
    """K8: the new bytes first, then the name in the place of the old."""
    store.put_new("a/1", b"bytes")
    found = store.get("a/1")
    assert found is not None
    kernel.calls.clear()
    store.replace_if("a/1", b"others", found.etag)
    calls = [call for call in kernel.calls if ".tmp-" not in call]
    assert calls == ["fsync the new file", "rename a/1", "fsync a"]


# An fsync that fails


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_directory_sync_that_failed_is_not_repeated_and_believed(
    kernel: Kernel, store: LocalStore, number: int
) -> None:
    """K8, scenario 103: the system reports the error once; the next `fsync` proves nothing.

    So the outcome is unknown, and neither this handle nor another one of this process writes again.
    """
    store.put_new("journal/1", b"bytes")
    kernel.fails = failing("journal", number)
    with pytest.raises(UnknownOutcomeError, match="may or may not have been written") as unknown:
        store.put_new("journal/2", b"bytes")
    assert "new process" in str(unknown.value)
    kernel.calls.clear()
    for handle in (store, LocalStore(kernel.root, ENV), LocalStore(f"{kernel.root}/journal", ENV)):
        with pytest.raises(UnavailableError, match="accepts no more writes") as refused:
            handle.put_new("others/1", b"bytes")
        assert refused.value.not_applied
    assert kernel.calls == []
    assert LocalStore(f"{kernel.root}-other", ENV).list() == ()
    LocalStore(f"{kernel.root}-other", ENV).put_new("a", b"another disk, perhaps")


def test_a_conflict_that_cannot_be_made_durable_is_an_unknown_outcome(
    kernel: Kernel, store: LocalStore
) -> None:
    """K8, scenario 103: the object in the way may be our own, and may vanish in a power cut."""
    store.put_new("journal/1", b"bytes")
    kernel.fails = failing("journal")
    with pytest.raises(UnknownOutcomeError):
        store.put_new("journal/1", b"bytes")


def test_a_replacement_whose_directory_sync_failed_is_an_unknown_outcome(
    kernel: Kernel, store: LocalStore
) -> None:
    """K8, scenario 103: either version may be there after a power cut."""
    store.put_new("gc/boundary.json", b"1")
    found = store.get("gc/boundary.json")
    assert found is not None
    kernel.fails = failing("gc")
    with pytest.raises(UnknownOutcomeError):
        store.replace_if("gc/boundary.json", b"2", found.etag)
    with pytest.raises(UnavailableError, match="accepts no more writes"):
        store.replace_if("gc/boundary.json", b"3", found.etag)


@pytest.mark.parametrize("parent", ["..", ".", "runs"])
def test_a_new_directory_whose_parent_cannot_be_synced_takes_no_objects(
    kernel: Kernel, store: LocalStore, parent: str
) -> None:
    """K8, scenario 103: an object in it would go with it in a power cut. Nothing was written."""
    kernel.fails = failing(parent)
    for _ in range(2):
        with pytest.raises(UnavailableError) as failed:
            store.put_new("runs/orders/1", b"bytes")
        assert failed.value.not_applied
    assert not store.exists("runs/orders/1")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_file_whose_sync_failed_is_discarded_and_rewritten(
    kernel: Kernel, store: LocalStore, number: int
) -> None:
    """K8, scenario 103: it never had its name, so nothing was written; a new file has new pages,
    and its own `fsync` vouches for them.
    """
    store.put_new("a/1", b"bytes")
    kernel.fails = failing("the new file", number)
    with pytest.raises(UnavailableError) as failed:
        store.put_new("a/2", b"bytes")
    assert failed.value.not_applied
    assert not store.exists("a/2")
    kernel.calls.clear()
    store.put_new("a/2", b"bytes")
    assert kernel.calls == ["fsync the new file", "link a/2", "fsync a"]


def test_a_directory_that_could_not_be_opened_is_synced_by_the_next_attempt(
    kernel: Kernel, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8: too many open files are not a failed `fsync`: nothing was reported, nothing was
    dropped."""
    store.put_new("a/1", b"bytes")
    opening = os.open

    def refuse(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECTORY and not flags & os.O_WRONLY:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opening(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(UnavailableError) as failed:
            store.put_new("a/2", b"bytes")
    assert not failed.value.not_applied, "it has its name, and may survive a power cut"
    kernel.calls.clear()
    with pytest.raises(ConflictError):
        store.put_new("a/2", b"bytes")
    assert kernel.calls[-1] == "fsync a"


@pytest.mark.parametrize("number", [errno.EIO, errno.EPERM])
def test_a_failure_at_the_link_or_after_it_is_never_reported_as_not_applied(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """K8: the system may have given the name before it reported the error."""
    store.put_new("a/1", b"bytes")

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(UnavailableError) as failed:
        store.put_new("a/2", b"bytes")
    assert not failed.value.not_applied


# The writer above it


@pytest.mark.parametrize("seed", range(20))
def test_a_writer_whose_directory_sync_failed_acknowledges_nothing_and_is_poisoned(
    seed: int,
) -> None:
    """K8, scenario 103: what was acknowledged survives the power cut, and only the push whose
    outcome is unknown may be there or not.
    """
    env = ManualEnv(seed)
    disk = SimulatedDisk(env, seed)
    tiny = Tiny(LocalStore("/data/pipeline", env, disk), env, settings=SETTINGS)
    tiny.push("acknowledged")
    failures = iter([True])
    disk.fails = lambda path: path.endswith("/journal") and next(failures, False)
    answers: list[type[StepwellError]] = []
    for row in ("in doubt", "later"):
        with pytest.raises(StepwellError) as failed:
            tiny.push(row)
        answers.append(failed.type)
    assert answers == [UnknownOutcomeError, UnknownOutcomeError]
    with pytest.raises(StepwellError):
        Tiny(LocalStore("/data/pipeline", env, disk), env, settings=SETTINGS)
    disk.cut_power()
    disk.distrusted.clear()  # A new process.
    rows = Tiny(LocalStore("/data/pipeline", env, disk), env, settings=SETTINGS).rows()
    assert rows in (["acknowledged"], ["acknowledged", "in doubt"])


def test_some_power_cut_takes_back_what_a_failed_sync_did_not_keep() -> None:
    """A disk that forgets nothing would prove nothing of the tests above."""
    lost = 0
    for seed in range(20):
        env = ManualEnv(seed)
        disk = SimulatedDisk(env, seed)
        store = LocalStore("/data/pipeline", env, disk)
        store.put_new("a/1", b"bytes")
        failures = iter([True])
        disk.fails = lambda path, failures=failures: next(failures, False)
        with pytest.raises(UnknownOutcomeError):
            store.put_new("a/2", b"bytes")
        disk.distrusted.clear()
        with pytest.raises(ConflictError):
            store.put_new("a/2", b"bytes")  # Retried and believed.
        disk.cut_power()
        lost += not store.exists("a/2")
    assert lost
