"""The store in a directory: durable by itself, private, and clean whatever happens (K8)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stepwell.env import SystemEnv
from stepwell.errors import ConflictError, UnavailableError
from stepwell.model import Bytes
from stepwell.store.disk import RealDisk, Staged
from stepwell.store.local import LocalStore
from stepwell.testing import ManualEnv, SimulatedDisk

ENV = SystemEnv()


class RecordingDisk(RealDisk):
    """Writes down the system calls that matter for durability; fails one of them when told to."""

    def __init__(self, root: Path, *, unnamed: bool) -> None:
        super().__init__(ENV, unnamed=unnamed)
        self.root = str(root)
        self.calls: list[str] = []
        self.fail: dict[str, int] = {}

    def note(self, call: str, path: str = "") -> None:
        where = os.path.relpath(path, self.root) if path else ""
        # What lies above the root is not ours to test: it depends on where the tests run.
        if not where.startswith(".."):
            self.calls.append(f"{call} {where}".strip())
        if call in self.fail and not where.startswith(".."):
            number = self.fail[call]
            raise OSError(number, os.strerror(number), path)

    def make_directory(self, path: str) -> bool:
        self.note("make_directory", path)
        return super().make_directory(path)

    def stage(self, directory: str, parts: Sequence[Bytes]) -> Staged:
        self.note("stage", directory)
        return super().stage(directory, parts)

    def sync(self, staged: Staged) -> None:
        self.note("sync")
        super().sync(staged)

    def link(self, staged: Staged, name: str) -> None:
        self.note("link", name)
        super().link(staged, name)

    def rename(self, staged: Staged, name: str) -> None:
        self.note("rename", name)
        super().rename(staged, name)

    def sync_directory(self, path: str) -> None:
        self.note("sync_directory", path)
        super().sync_directory(path)

    def unlink(self, path: str) -> None:
        self.note("unlink", path)
        super().unlink(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.note("read", path)
        return super().read(path, start, length)

    def walk(self, directory: str) -> Iterator[tuple[str, int, object]]:  # type: ignore[override]
        self.note("walk", directory)
        return super().walk(directory)

    def is_file(self, path: str) -> bool:
        self.note("is_file", path)
        return super().is_file(path)


@pytest.fixture(params=[True, False], ids=["unnamed", "named"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> RecordingDisk:
    return RecordingDisk(tmp_path / "store", unnamed=request.param)


@pytest.fixture
def store(disk: RecordingDisk) -> LocalStore:
    return LocalStore(disk.root, ENV, disk)


def garbage(root: str | Path) -> list[str]:
    """Every file that is neither an object nor a lock."""
    files = [name for _, _, names in os.walk(root) for name in names]
    return [name for name in files if name.startswith(".") and not name.endswith(".lock")]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


# Order


def test_a_new_object_is_durable_before_it_is_acknowledged(
    store: LocalStore, disk: RecordingDisk
) -> None:
    """K8: bytes before the name, the name before the answer, and every new parent before both."""
    store.put_new("runs/orders/1", b"bytes")
    assert disk.calls == [
        "make_directory .",
        "make_directory runs",
        "sync_directory .",
        "make_directory runs/orders",
        "sync_directory runs",
        "stage runs/orders",
        "sync",
        "link runs/orders/1",
        "sync_directory runs/orders",
    ]


def test_a_second_object_settles_no_directory_again(store: LocalStore, disk: RecordingDisk) -> None:
    """K8: once per directory and process is enough, and the append path is short."""
    store.put_new("journal/1", b"bytes")
    disk.calls.clear()
    store.put_new("journal/2", b"bytes")
    assert disk.calls == ["stage journal", "sync", "link journal/2", "sync_directory journal"]


def test_a_directory_left_by_a_killed_process_is_settled_again(
    store: LocalStore, disk: RecordingDisk
) -> None:
    """K8: that it is there does not say that its own name is durable."""
    os.makedirs(f"{disk.root}/journal")
    store.put_new("journal/1", b"bytes")
    assert disk.calls.index("sync_directory .") < disk.calls.index("stage journal")


def test_a_conflict_proves_that_what_was_first_is_durable(
    store: LocalStore, disk: RecordingDisk
) -> None:
    """K8: the loser acts upon what it lost to, so that must not vanish in a power cut."""
    store.put_new("journal/1", b"bytes")
    disk.calls.clear()
    with pytest.raises(ConflictError):
        store.put_new("journal/1", b"others")
    assert disk.calls == ["stage journal", "sync", "link journal/1", "sync_directory journal"]


def test_a_swap_is_durable_before_it_is_acknowledged(
    store: LocalStore, disk: RecordingDisk
) -> None:
    """K8: the new bytes first, then the one step that puts them in the place of the old."""
    store.put_new("gc/boundary.json", b"1")
    found = store.get("gc/boundary.json")
    assert found is not None
    disk.calls.clear()
    store.replace_if("gc/boundary.json", b"2", found.etag)
    assert disk.calls == [
        "read gc/boundary.json",
        "stage gc",
        "sync",
        "rename gc/boundary.json",
        "sync_directory gc",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_what_was_acknowledged_survives_a_power_cut(seed: int) -> None:
    """K8: scenario 89, whole and under its name, whatever else the disk lost."""
    env = ManualEnv(seed)
    disk = SimulatedDisk(env, seed)
    store = LocalStore("/pipelines/orders", env, disk)
    kept: dict[str, bytes] = {}
    for number in range(6):
        path = ("journal/{}", "runs/a/{}", "runs/b/c/{}")[number % 3].format(number)
        store.put_new(path, kept.setdefault(path, b"%d" % number * 50))
    for path in ("journal/0", "runs/b/c/5"):
        found = store.get(path)
        assert found is not None
        store.replace_if(path, kept.setdefault(path, b"") + b"!", found.etag)
        kept[path] += b"!"
    disk.cut_power()
    reopened = LocalStore("/pipelines/orders", env, disk)
    found_now = {item.path: reopened.get(item.path) for item in reopened.list()}
    assert {path: found and found.data for path, found in found_now.items()} == kept


# Privacy


def test_files_and_directories_belong_to_their_user_only(tmp_path: Path) -> None:
    """State may hold what only the pipeline's user may see, however open the user's umask is."""
    before = os.umask(0)
    try:
        for unnamed in (True, False):
            root = tmp_path / f"{unnamed}" / "store"
            store = LocalStore(str(root), ENV, RealDisk(ENV, unnamed=unnamed))
            store.put_new("runs/a/1", b"bytes")
            found = store.get("runs/a/1")
            assert found is not None
            store.replace_if("runs/a/1", b"others", found.etag)
            for directory, _, files in os.walk(root):
                assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
                for name in files:
                    assert stat.S_IMODE(os.stat(f"{directory}/{name}").st_mode) == 0o600
    finally:
        os.umask(before)


# Nothing left behind


def test_nothing_is_left_behind_by_success_and_conflict(
    store: LocalStore, disk: RecordingDisk
) -> None:
    """Garbage adds up: a writer that polls for a free position conflicts all day."""
    files = open_files()
    store.put_new("a/b", b"1")
    for _ in range(5):
        with pytest.raises(ConflictError):
            store.put_new("a/b", b"2")
        with pytest.raises(ConflictError):
            store.replace_if("a/b", b"3", "stale")
    found = store.get("a/b")
    assert found is not None
    store.replace_if("a/b", b"4", found.etag)
    assert garbage(disk.root) == []
    assert [item.path for item in store.list()] == ["a/b"]
    assert open_files() == files


@pytest.mark.parametrize("call", ["stage", "sync", "link", "rename", "sync_directory"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO, errno.EROFS])
def test_a_failed_write_is_unavailable_and_leaves_nothing_behind(
    store: LocalStore, disk: RecordingDisk, call: str, number: int
) -> None:
    """F10: scenario 82, the error names the object and what to do; the next attempt works."""
    store.put_new("a/old", b"1")
    found = store.get("a/old")
    assert found is not None
    files = open_files()
    disk.fail = {call: number}
    writes: list[Callable[[], None]] = []
    if call != "rename":
        writes.append(lambda: store.put_new("a/new", b"2"))
    if call != "link":
        writes.append(lambda: store.replace_if("a/old", b"3", found.etag))
    for write in writes:
        with pytest.raises(UnavailableError, match=r"a/(old|new)") as caught:
            write()
        assert os.strerror(number) in caught.value.message
        assert (caught.value.hint is None) == (number == errno.EIO)
    assert garbage(disk.root) == []
    assert open_files() == files
    disk.fail = {}
    # A failed directory sync comes after the name was given: applied, and unknown.
    if call != "sync_directory":
        assert not store.exists("a/new")
        store.put_new("a/new", b"2")
        store.replace_if("a/old", b"3", found.etag)
    for path, data in (("a/new", b"2"), ("a/old", b"3")):
        again = store.get(path)
        assert again is not None
        assert again.data == data


def test_a_write_that_stops_short_continues_where_it_stopped(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8: the system may take less than it was given, and that is not an error."""
    writev = os.writev
    patience = iter(range(50))

    def grudging(fd: int, parts: Sequence[bytes]) -> int:
        next(patience)
        first = memoryview(parts[0])
        return writev(fd, [first[:3]] if len(first) > 3 else [first, *parts[1:2]])

    monkeypatch.setattr(os, "writev", grudging)
    parts = [b"0123456789", b"", b"ab", b"cdefghi", b"j"]
    store.put_new("a/b", parts)
    found = store.get("a/b")
    assert found is not None
    assert found.data == b"".join(parts)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_failed_look_is_never_absence(
    store: LocalStore, disk: RecordingDisk, number: int
) -> None:
    """F10: a directory that may not be read is not an empty one."""
    store.put_new("a/b", b"1")
    disk.fail = dict.fromkeys(("read", "walk", "is_file", "unlink"), number)
    looks: list[Callable[[], object]] = [
        lambda: store.get("a/b"),
        lambda: store.get_range("a/b", 0, 1),
        lambda: store.exists("a/b"),
        lambda: store.list(),
        lambda: store.list("a/"),
        lambda: store.delete("a/b"),
        lambda: store.replace_if("a/b", b"2", "etag"),
    ]
    for look in looks:
        with pytest.raises(UnavailableError, match=disk.root):
            look()


# Other processes


def test_a_directory_that_vanishes_under_a_running_store_is_not_made_again(
    store: LocalStore, disk: RecordingDisk
) -> None:
    """K8: a disk was unmounted or moved; what is put in its place would be lost when it returns."""
    store.put_new("a/b/c", b"1")
    os.rename(disk.root, f"{disk.root}-away")
    for path in ("a/b/d", "a/e"):
        with pytest.raises(UnavailableError, match="vanished") as failed:
            store.put_new(path, b"2")
        assert failed.value.not_applied
    assert not os.path.exists(disk.root)
    os.rename(f"{disk.root}-away", disk.root)
    store.put_new("a/b/d", b"2")
    assert [item.path for item in store.list()] == ["a/b/c", "a/b/d"]


def test_a_directory_removed_during_a_write_is_an_error_and_leaks_nothing(
    store: LocalStore, disk: RecordingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10: the write has failed, and so does the next; a new process may make the directory."""
    store.put_new("a/b", b"1")
    files = open_files()
    link = RecordingDisk.link

    def removed(self: RecordingDisk, staged: Staged, name: str) -> None:
        shutil.rmtree(f"{disk.root}/a")
        link(self, staged, name)

    with monkeypatch.context() as patch:
        patch.setattr(RecordingDisk, "link", removed)
        with pytest.raises(UnavailableError, match="a/c"):
            store.put_new("a/c", b"2")
    with pytest.raises(UnavailableError, match="vanished"):
        store.put_new("a/c", b"2")
    assert open_files() == files
    LocalStore(disk.root, ENV, disk).put_new("a/c", b"2")
    assert [item.path for item in store.list()] == ["a/c"]


RACER = """
import json, sys
from stepwell.env import SystemEnv
from stepwell.errors import ConflictError
from stepwell.store.disk import RealDisk
from stepwell.store.local import LocalStore

root, name, unnamed, rounds = sys.argv[1:]
env = SystemEnv()
store = LocalStore(root, env, RealDisk(env, unnamed=unnamed == "True"))
print("ready", flush=True)
sys.stdin.readline()
won = []
for number in range(int(rounds)):
    try:
        store.put_new(f"journal/{number}", [name.encode()] * 100)
        won.append(number)
    except ConflictError:
        pass
print(json.dumps(won))
"""


@pytest.mark.parametrize("unnamed", [True, False])
def test_of_two_processes_exactly_one_creates_an_object(tmp_path: Path, unnamed: bool) -> None:
    """F1: between processes no lock of ours helps; the file system decides."""
    rounds = 200
    root = str(tmp_path / "store")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    racers = {
        name: subprocess.Popen(
            [sys.executable, "-c", RACER, root, name, str(unnamed), str(rounds)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("left", "right")
    }
    for racer in racers.values():
        assert racer.stdout
        assert racer.stdout.readline() == "ready\n"
    for racer in racers.values():
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = {name: set(json.loads(racer.communicate()[0])) for name, racer in racers.items()}
    assert not won["left"] & won["right"]
    assert won["left"] | won["right"] == set(range(rounds))
    store = LocalStore(root, ENV)
    for name, numbers in won.items():
        for number in numbers:
            found = store.get(f"journal/{number}")
            assert found is not None
            assert found.data == name.encode() * 100
    assert garbage(root) == []
