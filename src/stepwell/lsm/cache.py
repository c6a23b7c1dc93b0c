"""The cache: decoded columns and indexes of run files on a local disk, with a size limit.

    <folder>/v1/<run>/<name>        one file: its payload, then a trailer
    <folder>/v1/tmp/<id>/           files of runs not stored yet; the process holds its `lock`
    <folder>/v1/lock                held while a folder of `tmp` is created or dead ones are removed
    trailer                         magic, payload length, XXH3-64 of the payload: 24 bytes

A run never changes, and its folder is named by the ids and checksums of its files. So all processes
and clones on this machine that use a run share its cached files.

The cache is optional: every file can be rebuilt from the run. Any file may be deleted at any time,
even while it is in use (a mapped file stays readable). A file appears complete, by a rename, and is
trusted only if its trailer matches; a file that does not match is removed and rebuilt. If the disk
is full or the folder is not writable, the pipeline runs without a cache.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import xxhash

from stepwell.env import Env

VERSION = "v1"
BYTES_MAX = 10 * 2**30
"""Default size limit of a cache."""
_MAGIC = b"STEPWEL1"
_TRAILER = struct.Struct("<8sQQ")
_TRIM_SHARE = 16
"""Trim the cache whenever 1/16 of its size limit has been added."""


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where a process on any machine opens its cache."""

    folder: str | None = None
    """None: the default folder of the user there."""
    bytes_max: int = BYTES_MAX

    def open(self, env: Env) -> Cache:
        try:
            folder = default_folder(os.environ) if self.folder is None else Path(self.folder)
        except RuntimeError:
            # This user has no home, as in some containers: no folder, so one of this process.
            folder = Path(os.devnull)
        return Cache(folder, env, self.bytes_max)


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return the default cache folder, which all pipelines of a user on this machine share.

    >>> str(default_folder({"XDG_CACHE_HOME": "/var/cache/ada"}))
    '/var/cache/ada/stepwell'
    """
    given = environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path("~/.cache").expanduser()
    return base / "stepwell"


@dataclass(frozen=True, slots=True)
class Usage:
    """The fill level and hit counts of a cache."""

    path: str
    bytes: int
    bytes_max: int
    runs: int
    hits: int = 0
    misses: int = 0


class Cache:
    """One cache folder. Safe to use from several threads and processes."""

    def __init__(self, folder: Path, env: Env, bytes_max: int = BYTES_MAX) -> None:
        self._root = folder
        self._env = env
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._added = bytes_max
        self.hits = 0
        self.misses = 0
        self._count = 0
        self.durable = True
        try:
            self._claim(folder / VERSION)
        except OSError:
            # For example, the home directory is read-only. Use a cache that ends with this process.
            self.durable = False
            own = tempfile.TemporaryDirectory(prefix="stepwell-cache-")
            weakref.finalize(self, own.cleanup)
            self._claim(Path(own.name))

    def _claim(self, folder: Path) -> None:
        """Create a folder for runs that are not stored yet, and remove those of dead processes.

        Both happen under one lock, so a folder that is not locked belongs to a dead process.
        """
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder), _locked(folder / "lock"):
            for left in _listed(temporary):
                _remove_if_dead(left)
            self.folder = folder
            self._own = temporary / self._env.new_id()
            self._own.mkdir(mode=0o700)
            lock = _lock(self._own / "lock", create=True)
        weakref.finalize(self, _release, lock, self._own)

    def run_folder(self, run: str) -> Path:
        """The folder of a stored run."""
        folder = self.folder / run
        _make(folder)
        return folder

    def temporary_folder(self) -> Path:
        """A new folder for a run that is not stored yet."""
        with self._lock:
            self._count += 1
            folder = self._own / str(self._count)
        _make(folder)
        return folder

    def load(self, path: Path) -> pa.Buffer | None:
        """Map the payload of a file; None if the file is missing or invalid."""
        payload = _checked(path)
        with self._lock:
            if payload is None:
                self.misses += 1
            else:
                self.hits += 1
        if payload is not None:
            _touch(path.parent)
        return payload

    def store(self, path: Path, write: Callable[[pa.OSFile], None]) -> pa.Buffer | None:
        """Write a file and map it; None if it cannot be written."""
        staged = path.with_name(f".{path.name}.{self._env.new_id()}")
        try:
            with pa.OSFile(str(staged), "wb") as file:
                write(file)
            _seal(staged)
            staged.replace(path)
        except OSError:
            _remove(staged)
            return None
        opened = _opened(path)
        if opened is None:
            return None
        self._grow(opened[0].size)
        return opened[0]

    def adopt(self, folder: Path, run: str) -> Path:
        """Move cached files to the folder of their run, now that the run is stored."""
        target = self.run_folder(run)
        try:
            for file in _listed(folder):
                if not file.name.startswith("."):
                    file.replace(target / file.name)
        except OSError:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        return target

    def usage(self) -> Usage:
        folders = self._folders()
        total = sum(size for _, size, _ in folders)
        return Usage(str(self._root), total, self._bytes_max, len(folders), self.hits, self.misses)

    def clear(self) -> Usage:
        """Remove all cached files of stored runs, and return the usage before."""
        before = self.usage()
        for _, _, folder in self._folders():
            shutil.rmtree(folder, ignore_errors=True)
        return before

    def _grow(self, size: int) -> None:
        with self._lock:
            self._added += size
            due = self._added >= self._bytes_max // _TRIM_SHARE
            if due:
                self._added = 0
        if due:
            self._trim()

    def _trim(self) -> None:
        """Remove the least recently used runs until the rest fits."""
        folders = sorted(self._folders())
        total = sum(size for _, size, _ in folders)
        for _, size, folder in folders:
            if total <= self._bytes_max:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size

    def _folders(self) -> list[tuple[float, int, Path]]:
        """The folder of each run: last use, size, path."""
        found = []
        for folder in _listed(self.folder):
            if folder.name in ("tmp", "lock"):
                continue
            try:
                used = folder.stat().st_mtime
                size = sum(file.stat().st_size for file in _listed(folder))
            except OSError:
                continue
            found.append((used, size, folder))
        return found


def _seal(path: Path) -> None:
    """Append the trailer."""
    length = path.stat().st_size
    payload = _map(path, length)
    digest = xxhash.xxh3_64_intdigest(memoryview(payload)) if length else _EMPTY
    with path.open("ab") as file:
        file.write(_TRAILER.pack(_MAGIC, length, digest))


_EMPTY = xxhash.xxh3_64_intdigest(b"")


def _checked(path: Path) -> pa.Buffer | None:
    """The payload, if it is what was written."""
    opened = _opened(path)
    if opened is None:
        return None
    payload, digest = opened
    data = memoryview(payload) if payload.size else b""
    if xxhash.xxh3_64_intdigest(data) != digest:
        _remove(path)
        return None
    return payload


def _opened(path: Path) -> tuple[pa.Buffer, int] | None:
    """The mapped payload and its expected digest, if the trailer fits the size of the file.

    Another process may remove the file at any moment, so every failure means that there is none.
    """
    try:
        length = path.stat().st_size - _TRAILER.size
        with path.open("rb") as file:
            file.seek(max(length, 0))
            trailer = file.read(_TRAILER.size)
        if length < 0 or len(trailer) != _TRAILER.size:
            raise ValueError
        magic, recorded, digest = _TRAILER.unpack(trailer)
        if magic != _MAGIC or recorded != length:
            raise ValueError
        return _map(path, length), digest
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        _remove(path)
        return None


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _map(path: Path, length: int) -> pa.Buffer:
    if not length:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as source:
        return source.read_buffer(length)


def _make(folder: Path) -> None:
    """Create a folder. Failure is harmless: files that cannot be written are built in memory."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return


def _touch(folder: Path) -> None:
    try:
        os.utime(folder)
    except OSError:
        return


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _remove_if_dead(folder: Path) -> None:
    """Remove a temporary folder unless its process holds the lock. Call under the cache's lock."""
    try:
        os.close(_lock(folder / "lock", fcntl.LOCK_NB))
    except FileNotFoundError:
        # Its process was killed before it had a lock, or while the folder was being removed.
        pass
    except OSError:
        return
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = _lock(path, create=True)
    try:
        yield
    finally:
        os.close(lock)


def _lock(path: Path, flags: int = 0, *, create: bool = False) -> int:
    """Lock a file exclusively until the returned descriptor is closed, or its process ends."""
    lock = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
    except OSError:
        os.close(lock)
        raise
    return lock


def _release(lock: int, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
