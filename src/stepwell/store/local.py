"""A store in a local directory, durable by itself (K8).

A new object is staged, synced and linked to its name (which fails if the name is taken); then its
directory is synced. Directories created on the way are synced into their parents first.
Consequently:

* Once `put_new` has returned, the object survives a power cut, complete and under its name.
* A crash before the link leaves nothing (or a hidden `.tmp-*` file on systems that cannot stage
  without a name). A crash after the link leaves the object, but possibly unsynced, so that a power
  cut may still lose it.
* A `ConflictError` proves that the existing object is durable too, because the directory is synced
  before the error is raised. A loser never acts on an object that could vanish later.

`replace_if` holds a lock file (`.<name>.lock`) while it compares, stages, syncs and renames.

Repeating a failed `fsync` proves nothing: the system reports the error once and may mark dropped
data as clean. Therefore, after a failed `fsync`

* of a staged file: the file is discarded, no name was created, and a new attempt writes a new file;
* of a directory, after a name was created or found to be taken: `UnknownOutcomeError`;
* of a directory that was just created: nothing was written, and the error says so.

After either of the last two, no handle of this process writes to the store again, because
durability could no longer be proved. Opening the pipeline in a new process is the operator's
decision.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from stepwell.env import Env
from stepwell.errors import ConflictError, UnavailableError, UnknownOutcomeError
from stepwell.model import Bytes, checksum
from stepwell.store.base import Listed, Object, check_path, check_prefix, check_range
from stepwell.store.disk import UNSUPPORTED, Disk, RealDisk, Staged, SyncError

_NEW_PROCESS = (
    "check the disk and the system's log, then start a new process: it reads the actual state"
)


class LocalStore:
    def __init__(self, root: str, env: Env, disk: Disk | None = None) -> None:
        self._root = os.path.abspath(root)
        self.uri = f"file://{self._root}"
        self._disk = disk or RealDisk(env)
        self._settled: set[str] = set()

    def get(self, path: str) -> Object | None:
        data = self._read(path, lambda name: self._disk.read(name))
        return None if data is None else Object(data, checksum([data]))

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        check_range(start, length)
        return self._read(path, lambda name: self._disk.read(name, start, length))

    def _read(self, path: str, read: Callable[[str], bytes]) -> bytes | None:
        with self._explained("read", path) as name:
            try:
                return read(name)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        # Written inline, while other methods use context managers: every append takes this path.
        parts = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
        name = f"{self._root}/{check_path(path)}"
        directory = name[: name.rindex("/")]
        disk = self._disk
        linked = False
        try:
            staged = self._stage(directory, parts)
            try:
                disk.sync(staged)
                linked = True
                disk.link(staged, name)
            except FileExistsError:
                self._sync_names(directory, path)
                raise ConflictError(f"{self.uri}/{path} exists") from None
            finally:
                disk.discard(staged)
            self._sync_names(directory, path)
        except OSError as error:
            raise self._failed("write", path, error, not_applied=not linked) from error

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        # Check before comparing: a conflict with an object that may not be durable proves nothing.
        self._refuse_distrusted()
        with self._explained("write", path) as name:
            directory, base = os.path.split(name)
            stale = ConflictError(f"{self.uri}/{path} is not the object with etag {etag}")
            try:
                with self._disk.lock(f"{directory}/.{base}.lock"):
                    if checksum([self._disk.read(name)]) != etag:
                        raise stale
                    staged = self._stage(directory, [data])
                    try:
                        self._disk.sync(staged)
                        self._disk.rename(staged, name)
                    finally:
                        self._disk.discard(staged)
                    self._sync_names(directory, path)
            except (FileNotFoundError, NotADirectoryError):
                raise stale from None

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        root = f"{self._root}/{check_prefix(prefix)}".rstrip("/")
        with self._explained("list", prefix, root) as name:
            skip = len(self._root) + 1
            names = sorted(path for path in self._disk.walk(name) if path[skip:] > after)
            found: list[Listed] = []
            # Stat files one by one, and no more than needed; leave out a file that is gone by now.
            for path in names if limit != 0 else ():
                details = self._disk.stat(path)
                if details is not None:
                    found.append(Listed(path[skip:], *details))
                    if len(found) == limit:
                        break
        return tuple(found)

    def delete(self, *paths: str) -> None:
        absent = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
        for path in paths:
            check_path(path)
        for path in paths:
            with self._explained("delete", path) as name, suppress(*absent):
                self._disk.unlink(name)

    def exists(self, path: str) -> bool:
        with self._explained("look up", path) as name:
            try:
                return self._disk.is_file(name)
            except NotADirectoryError:
                return False

    def _stage(self, directory: str, parts: Sequence[Bytes]) -> Staged:
        # Create a directory only once. If it vanishes later, a disk was unmounted or moved away,
        # and a new directory would put acknowledged objects where they are never looked for.
        if self._disk.distrusted:
            self._refuse_distrusted()
        if directory not in self._settled:
            self._settle(directory)
        return self._disk.stage(directory, parts)

    def _sync_names(self, directory: str, path: str) -> None:
        """Make the names in a directory durable; if that fails, their durability is unknown."""
        try:
            self._disk.sync_directory(directory)
        except SyncError as error:
            self._disk.distrusted[directory] = str(error.strerror)
            raise UnknownOutcomeError(
                f"{self.uri}/{path} may or may not have been written: fsync of {directory} failed: "
                f"{error.strerror}",
                hint=_NEW_PROCESS,
            ) from error

    def _refuse_distrusted(self) -> None:
        """Refuse to write where an `fsync` failed in this process, before anything is staged."""
        root = f"{self._root}/"
        for directory, reason in self._disk.distrusted.items():
            if f"{directory}/".startswith(root) or root.startswith(f"{directory}/"):
                raise UnavailableError(
                    f"{self.uri} accepts no more writes from this process: an earlier fsync of "
                    f"{directory} failed: {reason}",
                    hint=_NEW_PROCESS,
                    not_applied=True,
                    lasting=True,
                )

    def _settle(self, directory: str) -> None:
        """Create a directory and its ancestors, and sync each of them into its parent.

        Existing directories are synced too: the process that created them may have been killed
        before it synced them, and a power cut would then lose the objects below. Done once per
        directory and process.
        """
        parent = os.path.dirname(directory)
        if parent == directory or directory in self._settled:
            return
        self._settle(parent)
        made = self._disk.make_directory(directory)
        try:
            self._disk.sync_directory(parent)
        except OSError as error:
            # Above the store's root, existing directories are not ours, and some cannot be synced.
            failed = isinstance(error, SyncError) and error.errno not in UNSUPPORTED
            if failed:
                self._disk.distrusted[parent] = str(error.strerror)
            if failed or made or directory.startswith(f"{self._root}/"):
                raise
        self._settled.add(directory)

    @contextmanager
    def _explained(self, verb: str, path: str, name: str | None = None) -> Iterator[str]:
        """Convert a system error into an error that names the object and suggests a fix."""
        name = name or f"{self._root}/{check_path(path)}"
        try:
            yield name
        except OSError as error:
            raise self._failed(verb, path, error) from error

    def _failed(
        self, verb: str, path: str, error: OSError, *, not_applied: bool = False
    ) -> UnavailableError:
        return UnavailableError(
            f"cannot {verb} {self.uri}/{path}: {error.strerror or error}",
            hint=_hint(error),
            not_applied=not_applied,
            lasting=error.errno not in _OUTAGES,
        )


_OUTAGES = (
    *(errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN),
    *(errno.ENETUNREACH, errno.ENOTCONN, errno.ECONNRESET, errno.ECONNREFUSED, errno.EAGAIN),
)
"""The errors of an unreachable file server. A full or broken disk needs a person."""


def _hint(error: OSError) -> str | None:
    return {
        errno.ENOSPC: "the disk is full: free some space; nothing that was acknowledged is lost",
        errno.EDQUOT: "the disk quota is used up: free some space; nothing acknowledged is lost",
        errno.EACCES: "check who owns the directory: Stepwell creates files for its own user only",
        errno.EPERM: "check who owns the directory, and that its file system has hard links",
        errno.ENOENT: "the directory has vanished: was a disk unmounted, or the store moved?",
        errno.EROFS: "the file system is mounted read-only",
        errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    }.get(error.errno or 0)
