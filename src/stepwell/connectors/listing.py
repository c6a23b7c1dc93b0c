"""Listing the files that match a pattern, and their properties without reading them.

Symbolic links are followed only within the folder. Otherwise, placing a link in the folder would be
enough to make Stepwell read any file. A link that leaves the folder is skipped and reported, unless
`follow_links` is set. `**` does not descend through links either. A folder is never entered from
inside itself, so loops end.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from stepwell.connectors.base_folder import split_pattern
from stepwell.connectors.file_parts import FileListed, unavailable
from stepwell.connectors.settling import TICK_S
from stepwell.env import Env

_LEFT_MAX = 100


class Listing:
    """The files that match a pattern such as `data/orders/*.json`, by relative name."""

    def __init__(self, path: str, env: Env, *, follow_links: bool = False) -> None:
        self._env = env
        self._follow_links = follow_links
        self.left_alone: tuple[str, ...] = ()
        """Links that leave the folder, as of the last listing: the first few."""
        self.folder, self._pattern = split_pattern(path)
        self._unreadable: dict[str, str] = {}
        """Names that are not UTF-8, keyed by their displayed form."""
        self._changed: tuple[int, float] | None = None
        """The modification time of the folder, and since when we have seen it."""

    def names(self) -> list[str]:
        """All names, sorted. Files and folders whose name starts with `.` or `_` are left out."""
        names = []
        self._unreadable = {}
        left: list[str] = []
        for name in self._matching(left):
            if not _is_unicode(name):
                # The name cannot be journaled, so the file gets a name that can, and is not read.
                real, name = name, os.fsencode(name).decode("utf-8", "backslashreplace")
                self._unreadable[name] = real
            names.append(name)
        self.left_alone = tuple(sorted(left)[:_LEFT_MAX])
        return sorted(names)

    def _matching(self, left: list[str]) -> set[str]:
        """Names that match; links that are not followed are added to `left`."""
        whole = self._names_a_folder()
        if not whole and not glob.has_magic(self._pattern):
            # The file is named explicitly, so it may be a link to anywhere.
            if self._pattern.startswith((".", "_")):
                return set()
            return {self._pattern} if os.path.exists(self.folder / self._pattern) else set()
        top = self.folder / self._pattern if whole else self.folder
        walk = _Walk(os.path.realpath(top), self._follow_links, left)
        segments = ("*",) if whole else tuple(self._pattern.split("/"))
        found = walk.find(str(top), "", segments, (walk.root,))
        return {f"{self._pattern}/{name}" if whole else name for name in found}

    def is_unreadable(self, name: str) -> bool:
        """Whether the file's real name is not UTF-8."""
        return name in self._unreadable

    def find(self, name: str) -> FileListed | None:
        """A file as it is now; None if there is none of that name."""
        path = self.folder / self._unreadable.get(name, name)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise unavailable(name, error) from error
        if not stat.S_ISREG(status.st_mode):
            return None
        return FileListed.of(name, path, status)

    def changed_ns(self) -> int | None:
        """When a name was last added or removed; None if unknown.

        Two names added within one tick of the file system's clock leave one trace. A time is
        therefore trusted only after it has been unchanged for longer than a tick by our own clock:
        the file system's clock may be ahead or behind.
        """
        if "/" in self._pattern or "**" in self._pattern:
            return None
        folder = self.folder / self._pattern if self._names_a_folder() else self.folder
        try:
            changed_ns = folder.stat().st_mtime_ns
        except OSError:
            return None
        now = self._env.uptime()
        if self._changed is None or self._changed[0] != changed_ns:
            self._changed = (changed_ns, now)
        return changed_ns if now - self._changed[1] > TICK_S else None

    def _names_a_folder(self) -> bool:
        """Whether the path is a folder, which stands for all its files. It may appear later."""
        return not glob.has_magic(self._pattern) and (self.folder / self._pattern).is_dir()


@dataclass(frozen=True, slots=True)
class _Walk:
    root: str
    """The real path of the folder, which links must not leave."""
    follow_links: bool
    left: list[str]

    def find(
        self, folder: str, name: str, segments: tuple[str, ...], above: tuple[str, ...]
    ) -> Iterator[str]:
        """Names below a folder that match; `above` holds the real paths on the way there."""
        first, rest = segments[0], segments[1:]
        anywhere = first == "**"
        if anywhere and rest:
            yield from self.find(folder, name, rest, above)
        for entry in _entries(folder):
            if not anywhere and not fnmatch.fnmatchcase(entry.name, first):
                continue
            inner = f"{name}{entry.name}"
            link = entry.is_symlink()
            real = os.path.realpath(entry.path) if link else os.path.join(above[-1], entry.name)
            is_folder = _is_folder(entry)
            if anywhere and rest and not is_folder:
                continue
            if link and not self.follow_links and not is_inside(real, self.root):
                self.left.append(inner)
                continue
            if not is_folder and not rest:
                yield inner
            if is_folder and (rest or anywhere):
                if real in above or (anywhere and link and not self.follow_links):
                    continue
                deeper = segments if anywhere else rest
                yield from self.find(entry.path, f"{inner}/", deeper, (*above, real))


def is_inside(path: str, folder: str) -> bool:
    """Whether a real path lies below another."""
    return path.startswith(folder.rstrip("/") + "/")


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder, without hidden names; empty if it is gone or unreadable."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith((".", "_"))]
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link to itself.
        return False


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
