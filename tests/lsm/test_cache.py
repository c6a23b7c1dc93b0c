"""The cache: what one process has worked out another one finds, and checks before it uses it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from stepwell.env import SystemEnv
from stepwell.lsm import cache as cache_module
from stepwell.lsm import index as index_module
from stepwell.lsm.cache import Cache
from stepwell.lsm.index import Indexes, RunIndex
from stepwell.lsm.run_file import RunFiles

ROWS = 500
SCHEMA = pa.schema([("c0", pa.string()), ("c1", pa.int64()), ("w", pa.int64())])
SOUGHT = pa.array(["key-7", "key-499", "absent", None], pa.string())
FOUND = [7, 100, 499]


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    """A stored run of 500 rows in two files, whose row 100 has no key."""
    files = []
    for part in range(2):
        numbers = range(part * ROWS // 2, (part + 1) * ROWS // 2)
        keys = [None if n == 100 else f"key-{n}" for n in numbers]
        rows = [keys, [-n for n in numbers], [1] * len(numbers)]
        files.append(tmp_path / f"{part}.parquet")
        pq.write_table(pa.table(rows, schema=SCHEMA), files[-1])
    return RunFiles(tuple(files), ROWS, identity="run-1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(folder: Path, run: RunFiles, bytes_max: int = 2**30) -> tuple[Cache, RunIndex]:
    cache = Cache(folder, SystemEnv(), bytes_max)
    return cache, Indexes(cache).of(run, SCHEMA)


def looked_up(index: RunIndex) -> list[int]:
    """The numbers of the rows that are found, read from another column."""
    rows = index.find(0, SOUGHT, ROWS)
    assert rows is not None
    by_number = index.find(1, pa.array([-3, -499, 5]), ROWS)
    assert by_number is not None
    assert by_number.tolist() == [3, 499]
    return [-n for n in index.take(rows, [1]).column("c1").to_pylist()]


def test_a_second_process_decodes_nothing(
    folder: Path, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: opening again costs nothing that was paid before."""
    _, first = opened(folder, run)
    assert looked_up(first) == FOUND
    again = RunFiles((), ROWS, identity="run-1")
    monkeypatch.setattr(RunFiles, "column", None)
    monkeypatch.setattr(index_module.np, "argsort", None)
    cache, second = opened(folder, again)
    assert looked_up(second) == FOUND
    assert cache.misses == 0
    assert cache.hits > 0


def test_no_look_up_compares_a_whole_column(
    folder: Path, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: a text key is found by its hash, as a number is by its value."""
    _, index = opened(folder, run)
    monkeypatch.setattr(pc, "is_in", None)
    assert looked_up(index) == FOUND


def test_what_was_worked_out_for_a_run_before_it_is_stored_stays(
    folder: Path, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: an index is built for the run in memory, and is there after a restart."""
    cache = Cache(folder, SystemEnv())
    indexes = Indexes(cache)
    run.identity = None
    assert looked_up(indexes.of(run, SCHEMA)) == FOUND
    assert cache.usage().runs == 0
    run.identity = "run-2"
    assert looked_up(indexes.of(run, SCHEMA)) == FOUND
    assert cache.usage().runs == 1
    monkeypatch.setattr(RunFiles, "column", None)
    again = RunFiles((), ROWS, identity="run-2")
    _, second = opened(folder, again)
    assert looked_up(second) == FOUND


def cached_files(folder: Path) -> list[Path]:
    files = sorted((folder / cache_module.VERSION / "run-1").iterdir())
    assert len(files) >= 5
    return files


def spots(size: int) -> Iterator[int]:
    yield from range(min(size, 64))
    yield from range(64, size, max(1, size // 40))
    yield from range(max(0, size - cache_module._TRAILER.size), size)


def test_a_flipped_byte_anywhere_changes_no_answer(folder: Path, run: RunFiles) -> None:
    """X2: a file of the cache is believed only if its checksum fits; else it is made again."""
    looked_up(opened(folder, run)[1])
    for file in cached_files(folder):
        whole = file.read_bytes()
        for spot in sorted(set(spots(len(whole)))):
            # In another file, because this one may be mapped.
            damaged = bytearray(whole)
            damaged[spot] ^= 0x40
            file.unlink()
            file.write_bytes(damaged)
            cache, index = opened(folder, run)
            assert looked_up(index) == FOUND, (file.name, spot)
            assert cache.misses, (file.name, spot)
            assert file.read_bytes() == whole


def test_a_file_cut_anywhere_changes_no_answer(folder: Path, run: RunFiles) -> None:
    """X2: a crash of the machine may leave any beginning of a file that was not synced."""
    looked_up(opened(folder, run)[1])
    for file in cached_files(folder):
        whole = file.read_bytes()
        for length in (0, 1, len(whole) // 2, len(whole) - 25, len(whole) - 24, len(whole) - 1):
            file.unlink()
            file.write_bytes(whole[: max(0, length)])
            assert looked_up(opened(folder, run)[1]) == FOUND, (file.name, length)


def test_a_file_that_goes_while_it_is_opened_changes_no_answer(
    folder: Path, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: another process may evict a run between any two reads of one of its files."""
    looked_up(opened(folder, run)[1])
    mapped = cache_module._map

    def evicted(path: Path, length: int) -> pa.Buffer:
        shutil.rmtree(path.parent, ignore_errors=True)
        return mapped(path, length)

    def evicted_behind(path: Path, length: int) -> pa.Buffer:
        found = mapped(path, length)
        shutil.rmtree(path.parent, ignore_errors=True)
        return found

    for meanwhile in (evicted, evicted_behind):
        with monkeypatch.context() as patch:
            patch.setattr(cache_module, "_map", meanwhile)
            assert looked_up(opened(folder, run)[1]) == FOUND
        assert looked_up(opened(folder, run)[1]) == FOUND


@pytest.mark.parametrize("moment", ["opened", "used"])
def test_a_cache_that_is_deleted_while_it_is_in_use_changes_no_answer(
    folder: Path, run: RunFiles, moment: str
) -> None:
    """X2: it is derived, so anybody may delete it at any time."""
    _, index = opened(folder, run)
    if moment == "used":
        index.find(0, SOUGHT, ROWS)
    shutil.rmtree(folder)
    assert looked_up(index) == FOUND
    assert looked_up(opened(folder, run)[1]) == FOUND


def test_a_full_disk_changes_no_answer(
    folder: Path, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: what cannot be written is kept in memory."""

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_module, "_seal", full)
    cache, index = opened(folder, run)
    assert looked_up(index) == FOUND
    assert cache.usage().bytes == 0
    assert not list((folder / cache_module.VERSION / "run-1").iterdir())


def test_a_folder_that_cannot_be_written_changes_no_answer(tmp_path: Path, run: RunFiles) -> None:
    """X2: a home without a cache directory must not keep a pipeline from starting."""
    (tmp_path / "file").write_text("")
    cache, index = opened(tmp_path / "file" / "cache", run)
    assert not cache.durable
    assert looked_up(index) == FOUND


def test_the_least_recently_used_run_goes_first(folder: Path, run: RunFiles) -> None:
    """X2: the cache is bounded by its setting."""
    looked_up(opened(folder, run)[1])
    one = Cache(folder, SystemEnv()).usage().bytes
    for number in (2, 3):
        other = RunFiles(run.files, ROWS, identity=f"run-{number}")
        looked_up(opened(folder, other)[1])
    names = folder / cache_module.VERSION
    for age, name in ((300, "run-1"), (200, "run-2"), (100, "run-3")):
        past = (names / name).stat().st_mtime - age
        os.utime(names / name, (past, past))
    # Used again, so the oldest one is the youngest now.
    looked_up(opened(folder, run, bytes_max=100 * one)[1])
    small = RunFiles(run.files, ROWS, identity="run-4")
    looked_up(opened(folder, small, bytes_max=int(2.5 * one))[1])
    left = {path.name for path in names.iterdir()} - {"tmp"}
    assert "run-1" in left
    assert "run-2" not in left
    assert Cache(folder, SystemEnv()).usage().bytes <= 2.5 * one


def test_clear_removes_every_run_and_says_how_much_it_was(folder: Path, run: RunFiles) -> None:
    """The command says what it did."""
    cache, index = opened(folder, run)
    looked_up(index)
    usage = cache.usage()
    assert usage.runs == 1
    assert cache.clear() == usage
    assert cache.usage().bytes == 0
    assert looked_up(index) == FOUND


def test_threads_that_build_the_same_index_all_find_what_is_there(
    folder: Path, run: RunFiles
) -> None:
    """X2: processes and threads share a folder without a lock."""
    answers: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(looked_up(opened(folder, run)[1])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [FOUND] * 8


BUILDER = """
import sys
from pathlib import Path
from tests.lsm.test_cache import ROWS, looked_up, opened
from stepwell.lsm.run_file import RunFiles
folder, *files = map(Path, sys.argv[1:])
print("ready", flush=True)
number = 0
while True:
    number += 1
    identity = None if number % 3 == 0 else f"run-{number % 5}"
    run = RunFiles(tuple(files), ROWS, identity=identity)
    looked_up(opened(folder, run)[1])
"""


def test_a_process_killed_at_any_moment_leaves_nothing_that_is_believed(
    folder: Path, run: RunFiles
) -> None:
    """X2: killed in the middle of its writes, again and again; temporary folders go as well."""
    for delay in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(folder), *map(str, run.files)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        threading.Event().wait(0.02 * delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for number in range(5):
            stored = RunFiles(run.files, ROWS, identity=f"run-{number}")
            assert looked_up(opened(folder, stored)[1]) == FOUND
    cache = Cache(folder, SystemEnv())
    assert [path.name for path in (cache.folder / "tmp").iterdir()] == [cache._own.name]


def test_a_process_killed_before_it_had_its_lock_leaves_no_folder(folder: Path) -> None:
    """X2: the moment between the folder and its lock, which the loop above rarely meets."""
    (folder / "v1" / "tmp" / "unlocked" / "1").mkdir(parents=True)
    cache = Cache(folder, SystemEnv())
    other = Cache(folder, SystemEnv())
    assert set((cache.folder / "tmp").iterdir()) == {cache._own, other._own}


def test_a_folder_that_cannot_be_locked_is_not_a_durable_cache(
    folder: Path, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: a file system without locks, or one that fills up while the cache is opened."""
    flock = fcntl.flock

    def refusing(descriptor: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder)):
            raise OSError(errno.ENOLCK, "no locks available")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refusing)
    cache, index = opened(folder, run)
    assert not cache.durable
    assert looked_up(index) == FOUND
