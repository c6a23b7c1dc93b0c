"""The system calls used by a local store, behind one interface.

`LocalStore` decides their order; this module only executes them. Tests substitute a disk that loses
all unsynced data, and so prove that the order is correct (`stepwell.testing.SimulatedDisk`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

from stepwell.env import EPOCH, Env
from stepwell.model import Bytes

_IOV_MAX = 1024
_UNNAMED = os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_TMPFILE", 0)
UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY)
"""The errors of a file system that does not support this kind of sync."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(slots=True)
class Staged:
    """A written file that does not have its final name yet. `name` is None if it is unnamed."""

    directory: str
    fd: int
    name: str | None


class SyncError(OSError):
    """`fsync` itself failed.

    The system reports the error only once. It may have dropped the data it could not write and
    marked it clean, so the next `fsync` of the same file or directory succeeds and proves nothing.
    """


class Disk(Protocol):
    """File operations of a local store. Errors are the `OSError`s of the system."""

    distrusted: dict[str, str]
    """Directories whose `fsync` failed, with the error message. `LocalStore` fills it in."""

    def make_directory(self, path: str) -> bool:
        """Create one directory, mode 0700; False if it already exists."""

    def stage(self, directory: str, parts: Sequence[Bytes]) -> Staged:
        """Write a new file, mode 0600, on the file system of `directory`."""

    def sync(self, staged: Staged) -> None:
        """Sync the file's bytes to the disk. Raises `SyncError` if the sync fails."""

    def link(self, staged: Staged, name: str) -> None:
        """Give the file a name; raises FileExistsError if the name is taken."""

    def rename(self, staged: Staged, name: str) -> None:
        """Give the file a name, replacing any file of that name."""

    def discard(self, staged: Staged) -> None:
        """Release the resources of a staged file. A file that has been given a name remains."""

    def sync_directory(self, path: str) -> None:
        """Sync the names in a directory to the disk.

        Raises `SyncError` if the sync fails, and any other error if it was not attempted.
        """

    def unlink(self, path: str) -> None:
        """Remove a name."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Read the bytes of a file, up to its end if `length` is None."""

    def is_file(self, path: str) -> bool:
        """Whether the file exists; False only if the system says that it does not."""

    def walk(self, directory: str) -> Iterator[str]:
        """The path of every file below that is not hidden; none if the directory is absent."""

    def stat(self, path: str) -> tuple[int, datetime] | None:
        """Size and modification time of a file; None if the system says that it does not exist."""

    def lock(self, path: str) -> AbstractContextManager[None]:
        """Hold an exclusive lock on `path`; it is released if the process dies."""


class RealDisk:
    """The file systems of this machine.

    Where supported (Linux), a file is staged without a name (`O_TMPFILE`): a crash leaves no
    garbage, and one directory entry fewer is written and removed. Elsewhere it is staged under a
    hidden name in the same directory, and a crash may leave it behind as `.tmp-*`, which is never
    listed.
    """

    # Per process: the system drops the error for every handle, not just for one.
    distrusted: ClassVar[dict[str, str]] = {}

    def __init__(self, env: Env, *, unnamed: bool = True) -> None:
        self._env = env
        self._unnamed = unnamed and hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")

    def make_directory(self, path: str) -> bool:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return False
        return True

    def stage(self, directory: str, parts: Sequence[Bytes]) -> Staged:
        staged = self._create(directory)
        try:
            _write_all(staged.fd, parts)
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def _create(self, directory: str) -> Staged:
        if self._unnamed:
            try:
                fd = os.open(directory, _UNNAMED, 0o600)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
                self._unnamed = False  # Not supported by this file system; use names.
            else:
                return Staged(directory, fd, None)
        name = f"{directory}/.tmp-{self._env.new_id()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return Staged(directory, os.open(name, flags, 0o600), name)

    def sync(self, staged: Staged) -> None:
        _sync_or_say(staged.fd)

    def link(self, staged: Staged, name: str) -> None:
        if staged.name is not None:
            os.link(staged.name, name)
        else:
            # Only linkat() follows the link in /proc, and Python calls it only given a directory.
            source = f"/proc/self/fd/{staged.fd}"
            os.link(source, name, src_dir_fd=staged.fd, follow_symlinks=True)

    def rename(self, staged: Staged, name: str) -> None:
        if staged.name is None:
            # An unnamed file cannot be renamed over another.
            staged.name = f"{staged.directory}/.tmp-{self._env.new_id()}"
            source = f"/proc/self/fd/{staged.fd}"
            os.link(source, staged.name, src_dir_fd=staged.fd, follow_symlinks=True)
        os.rename(staged.name, name)
        staged.name = None

    def discard(self, staged: Staged) -> None:
        try:
            if staged.name is not None:
                with suppress(FileNotFoundError):  # Its directory was removed concurrently.
                    os.unlink(staged.name)
        finally:
            os.close(staged.fd)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, _DIRECTORY)
        try:
            _sync_or_say(fd)
        finally:
            os.close(fd)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def is_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def walk(self, directory: str) -> Iterator[str]:
        try:
            entries = list(os.scandir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self.walk(entry.path)
            else:
                yield entry.path

    def stat(self, path: str) -> tuple[int, datetime] | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_size, datetime.fromtimestamp(found.st_mtime, EPOCH.tzinfo)

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _write_all(fd: int, parts: Sequence[Bytes]) -> None:
    """Gather-write the parts; a write may be partial, so continue where it stopped."""
    if len(parts) <= _IOV_MAX:
        written = os.writev(fd, parts)
        if written == sum(map(len, parts)):
            return
    else:
        written = 0
    waiting = [memoryview(part).cast("B") for part in parts]
    while waiting:
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.pop(0))
        if waiting:
            waiting[0] = waiting[0][written:]
            written = os.writev(fd, waiting[:_IOV_MAX])


def _sync_or_say(fd: int) -> None:
    try:
        _sync(fd)
    except OSError as error:
        raise SyncError(error.errno, error.strerror) from error


def _sync_fully(fd: int) -> None:
    # On macOS, fsync() stops at the drive's own cache; F_FULLFSYNC flushes that too, if supported.
    try:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise  # The sync has failed; trying another kind of sync would hide that.
        os.fsync(fd)


def _sync_plainly(fd: int) -> None:
    os.fsync(fd)


_sync = _sync_fully if hasattr(fcntl, "F_FULLFSYNC") else _sync_plainly
