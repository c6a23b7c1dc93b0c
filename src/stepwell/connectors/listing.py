"""Which files match a pattern, and what can be said about them without reading them."""

from __future__ import annotations

import glob
import os
import stat
from datetime import datetime
from pathlib import Path

from stepwell.connectors.file_parts import Found, unavailable
from stepwell.env import EPOCH, Env
from stepwell.errors import InvalidError

_TICK_S = 2.0
"""Longer than the tick of any file system's clock."""


class Listing:
    """The files under a pattern such as `data/orders/*.json`, by their names below its folder."""

    def __init__(self, path: str, env: Env) -> None:
        self._env = env
        self.folder, self._pattern = _split_pattern(path)

    def names(self) -> list[str]:
        """All names, sorted. Those that start with `.` or `_`, also of folders, are left out."""
        names = []
        pattern = f"{self._pattern}/*" if self._names_a_folder() else self._pattern
        for name in glob.iglob(pattern, root_dir=self.folder, recursive=True):
            if name.startswith((".", "_")) or "/." in name or "/_" in name:
                continue
            try:
                name.encode()
            except UnicodeEncodeError:
                raise InvalidError(
                    f"the name of the file {name!r} in {self.folder} is not UTF-8",
                    hint="rename it: a name that cannot be written down cannot be found again",
                ) from None
            names.append(name)
        return sorted(names)

    def find(self, name: str) -> Found | None:
        """A file as it is now; None if there is none of that name."""
        path = self.folder / name
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable(name, error) from error
        if not stat.S_ISREG(status.st_mode):
            return None
        return Found(name, path, status.st_size, status.st_mtime_ns)

    def is_settled(self, file: Found, settle_s: float) -> bool:
        """Whether nobody has written to the file for a while. Its clock may be wrong."""
        written = datetime.fromtimestamp(file.mtime_ns / 1e9, EPOCH.tzinfo)
        return not 0 <= (self._env.now() - written).total_seconds() < settle_s

    def changed_ns(self) -> int | None:
        """When a name last came or went; None if that cannot be told.

        Two names that come within one tick of the clock leave one trace, so a change counts only
        when it is some ticks old.
        """
        if "/" in self._pattern or "**" in self._pattern:
            return None
        folder = self.folder / self._pattern if self._names_a_folder() else self.folder
        try:
            changed_ns = folder.stat().st_mtime_ns
        except OSError:
            return None
        age_s = self._env.now().timestamp() - changed_ns / 1e9
        return changed_ns if age_s > _TICK_S else None

    def _names_a_folder(self) -> bool:
        """Whether the path is a folder, which stands for everything in it. It may come later."""
        return not glob.has_magic(self._pattern) and (self.folder / self._pattern).is_dir()


def _split_pattern(path: str) -> tuple[Path, str]:
    """The folder above the first wildcard, and the pattern below it."""
    whole = Path(os.path.abspath(path))
    parts = whole.parts
    found = [i for i, part in enumerate(parts) if glob.has_magic(part)]
    first = found[0] if found else len(parts) - 1
    return Path(*parts[:first]), str(Path(*parts[first:]))
