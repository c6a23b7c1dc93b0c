"""Files and folders that survive a power cut.

Repeating a failed `fsync` proves nothing: the system reports an error once, and marks dropped data
as clean. The process therefore remembers where one failed, and a sink then neither reports what is
there nor writes there, through any handle (`check_trusted`). Files that nothing refers to yet
(`staged`) are an exception: their write has failed, and the next one writes another file.
"""

from __future__ import annotations

import os
from pathlib import Path

from stepwell.errors import InvalidError
from stepwell.store.disk import UNSUPPORTED

_distrusted: dict[str, str] = {}
"""Paths whose `fsync` failed, with the error message. Shared by the process, because the system
drops the error for every handle, not just for one.
"""


def make_folder(path: Path) -> None:
    """Create a folder and its parents, durably."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_file(path: Path, *, staged: bool = False) -> None:
    _sync(path, os.O_RDONLY, staged)


def sync_folder(path: Path, *, staged: bool = False) -> None:
    _sync(path, os.O_RDONLY | os.O_DIRECTORY, staged)


def check_trusted(sink: str, root: Path) -> None:
    """Raise if an `fsync` failed in this process, in a sink's folder or in one above it."""
    place = f"{os.path.realpath(root)}/"
    for path, reason in _distrusted.items():
        if f"{path}/".startswith(place) or place.startswith(f"{path}/"):
            raise InvalidError(f"sink {sink}: {_unknown(path, reason)}", hint=_HINT)


def _sync(path: Path, flags: int, staged: bool) -> None:
    opened = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    except OSError as error:
        if staged or error.errno in UNSUPPORTED:
            raise
        reason = str(error.strerror or error)
        _distrusted[os.path.realpath(path)] = reason
        raise InvalidError(_unknown(str(path), reason), hint=_HINT) from error
    finally:
        os.close(opened)


def _unknown(path: str, reason: str) -> str:
    return f"fsync of {path} failed: {reason}; what is on disk is unknown"


_HINT = "check the disk and the system's log, then start the process again"
