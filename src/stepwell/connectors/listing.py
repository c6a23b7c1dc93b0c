"""Which files match a pattern, and what can be said about them without reading them."""

from __future__ import annotations

import glob
import os
import stat
from pathlib import Path

from stepwell.connectors.file_parts import Found, unavailable
from stepwell.connectors.settling import TICK_S
from stepwell.env import Env


class Listing:
    """The files under a pattern such as `data/orders/*.json`, by their names below its folder."""

    def __init__(self, path: str, env: Env) -> None:
        self._env = env
        self.folder, self._pattern = _split_pattern(path)
        self._unreadable: dict[str, str] = {}
        """Names that are not UTF-8, by what they are shown as."""
        self._changed: tuple[int, float] | None = None
        """The time of the folder, and since when we have seen it."""

    def names(self) -> list[str]:
        """All names, sorted. Those that start with `.` or `_`, also of folders, are left out."""
        names = []
        self._unreadable = {}
        pattern = f"{self._pattern}/*" if self._names_a_folder() else self._pattern
        for name in glob.iglob(pattern, root_dir=self.folder, recursive=True):
            if name.startswith((".", "_")) or "/." in name or "/_" in name:
                continue
            if not _is_unicode(name):
                # It cannot be journaled, so the file goes by a name that can, and is not read.
                real, name = name, os.fsencode(name).decode("utf-8", "backslashreplace")
                self._unreadable[name] = real
            names.append(name)
        return sorted(names)

    def is_unreadable(self, name: str) -> bool:
        """Whether the name that a file has is not UTF-8."""
        return name in self._unreadable

    def find(self, name: str) -> Found | None:
        """A file as it is now; None if there is none of that name."""
        path = self.folder / self._unreadable.get(name, name)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable(name, error) from error
        if not stat.S_ISREG(status.st_mode):
            return None
        return Found.of(name, path, status)

    def changed_ns(self) -> int | None:
        """When a name last came or went; None if that cannot be told.

        Two names that come within one tick of the file system's clock leave one trace. So a time
        counts only when it has been the same for longer than a tick, by our own clock: the file
        system's may be ahead or behind.
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
        """Whether the path is a folder, which stands for everything in it. It may come later."""
        return not glob.has_magic(self._pattern) and (self.folder / self._pattern).is_dir()


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _split_pattern(path: str) -> tuple[Path, str]:
    """The folder above the first wildcard, and the pattern below it."""
    whole = Path(os.path.abspath(path))
    parts = whole.parts
    found = [i for i, part in enumerate(parts) if glob.has_magic(part)]
    first = found[0] if found else len(parts) - 1
    return Path(*parts[:first]), str(Path(*parts[first:]))
