"""A store in a directory, durable by itself (K8).

A new object is staged, synced, linked to its name (which fails if the name is taken), and then its
directory is synced; directories made on the way are synced into their parents first. So:

* what `put_new` returned from survives a power cut, under its name, whole;
* a crash before the link leaves nothing (or a hidden `.tmp-*` file where the system cannot stage
  without a name); a crash after it leaves the object, at worst unsynced, and so maybe not at all;
* a `ConflictError` proves that the object which was first is durable too, because the directory is
  synced before it is raised: what a loser acts upon cannot vanish later.

`replace_if` holds a lock file (`.<name>.lock`) while it compares, stages, syncs and renames.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from stepwell.env import Env
from stepwell.errors import ConflictError, UnavailableError
from stepwell.model import Bytes, checksum
from stepwell.store.base import Listed, Object, check_path, check_prefix, check_range
from stepwell.store.disk import Disk, RealDisk, Staged


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
        # Written out, where the other methods use contexts: this is every append.
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
                disk.sync_directory(directory)
                raise ConflictError(f"{self.uri}/{path} exists") from None
            finally:
                disk.discard(staged)
            disk.sync_directory(directory)
        except OSError as error:
            raise self._failed("write", path, error, not_applied=not linked) from error

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
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
                    self._disk.sync_directory(directory)
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
            # Looked at one by one, only as many as are wanted; one that is gone by now is left out.
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
        # A directory is made once. If it vanishes later, a disk was unmounted or moved away, and to
        # make it anew would put acknowledged objects where nobody will look for them.
        if directory not in self._settled:
            self._settle(directory)
        return self._disk.stage(directory, parts)

    def _settle(self, directory: str) -> None:
        """Make a directory and all above it, and sync every one of them into its parent.

        Directories that were there are synced too: whoever made them may have been killed before
        it came to that, and an object below them would go with them in a power cut. Once per
        directory and process.
        """
        parent = os.path.dirname(directory)
        if parent == directory or directory in self._settled:
            return
        self._settle(parent)
        made = self._disk.make_directory(directory)
        try:
            self._disk.sync_directory(parent)
        except OSError:
            # Above our own root, directories that we did not make are somebody else's business,
            # and some cannot be synced at all.
            if made or directory.startswith(f"{self._root}/"):
                raise
        self._settled.add(directory)

    @contextmanager
    def _explained(self, verb: str, path: str, name: str | None = None) -> Iterator[str]:
        """Turn what the system says into an error that names the object and what to do."""
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
        )


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
