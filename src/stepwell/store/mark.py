"""Marks that tell a directory from a copy of it, by the file system's own number of a file in it.

    mark    <inode>:<time of the last status change, ns>     of one file that is never changed

A copy made by any tool is a different file, and its status change time is the time of copying; no
tool can set that time. A directory that is renamed, or reached through a link or another mount,
keeps its mark. Changing the owner or mode of the file also changes the mark, so a different mark
alone does not prove a copy.

A snapshot of a whole file system keeps the mark, so an equal mark alone does not prove an original.
If both addresses can be reached, `same_directory` decides for certain. Other kinds of store have no
marks: each of their addresses names only one location.
"""

from __future__ import annotations

import os

from stepwell.errors import UnavailableError

_SCHEME = "file://"


def mark_of(uri: str, path: str) -> str | None:
    """The mark of an object in a store; None if there is no such file or no directory store."""
    found = _stat(uri, path)
    return None if found is None else f"{found.st_ino}:{found.st_ctime_ns}"


def same_directory(uri: str, other: str) -> bool:
    """Whether two addresses lead to the same directory, for example by a link or another mount.

    Comparing a file inside would not do: in a copy made of hard links it is the same file.
    """
    one, two = _stat(uri), _stat(other)
    return one is not None and two is not None and os.path.samestat(one, two)


def _stat(uri: str, path: str = "") -> os.stat_result | None:
    if not uri.startswith(_SCHEME):
        return None
    name = f"{uri.removeprefix(_SCHEME)}/{path}"
    try:
        return os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnavailableError(f"cannot read {name}: {error.strerror or error}") from error
