"""What tells a directory from a copy of it: the file system's own number for a file inside.

    mark    <inode>:<time of the last status change, ns>     of one file that is never changed

A copy by any tool is another file, and its status change is the moment of copying: no tool can set
that time. A directory that is renamed, or seen through a link or another mount, keeps the mark.
Changing owner or mode of the file changes the mark, too: another mark alone proves no copy.

A snapshot of a whole file system keeps it, so that one mark alone proves no original. Where both
addresses can be asked, `same_directory` tells for certain.
Other kinds of store have no marks: their addresses name one place only.
"""

from __future__ import annotations

import os

from stepwell.errors import UnavailableError

_SCHEME = "file://"


def mark_of(uri: str, path: str) -> str | None:
    """The mark of an object in the store at an address; None: no such file, or not a directory."""
    found = _stat(uri, path)
    return None if found is None else f"{found.st_ino}:{found.st_ctime_ns}"


def same_directory(uri: str, other: str) -> bool:
    """Whether two addresses lead to one and the same directory: by a link, by another mount.

    A file inside would not do: in a copy made of hard links it is the same file.
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
        raise UnavailableError(f"cannot look at {name}: {error.strerror or error}") from error
