"""The base folder of a files source: the one above the first wildcard of its `path`.

Files are known by their names below it. Under another base folder a name that was taken stands for
another file, and a file that was taken has another name. So a source keeps its base folder once it
has taken something; the pattern below it may change.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path, PurePosixPath

OPAQUE = "\ue000"
"""Encloses text in a path that stands for text which is not known: see `opaque`."""


def opaque(reference: str) -> str:
    """What to put into a path in the place of a reference: no wildcard and no slash is in it."""
    return f"{OPAQUE}{reference.encode().hex()}{OPAQUE}"


def split_pattern(path: str) -> tuple[Path, str]:
    """The base folder, and the pattern below it."""
    parts = Path(os.path.abspath(path)).parts
    first = _first_of_pattern(parts)
    return Path(*parts[:first]), str(Path(*parts[first:]))


def base_folder(path: str, project: Path) -> str | None:
    """The base folder of a path as a project gives it; None if its text does not tell.

    Pure: two paths with the same answer have the same base folder, whatever the home folder and
    the references in them stand for.
    """
    hidden = OPAQUE in path
    given = path if hidden else path.removeprefix("file://")
    relative = PurePosixPath(given)
    home = str(relative).startswith("~")
    if not hidden and not home:
        return _base(PurePosixPath(os.path.normpath(project / given)).parts)
    if ".." in relative.parts:
        return None  # It may lead out of what is not known.
    first = _first_of_pattern(relative.parts)
    if any(OPAQUE in part for part in relative.parts[first:]):
        return None  # A slash in it would move the base folder.
    if home or given.startswith((OPAQUE, "file:")):
        return _base(relative.parts)
    # Behind `./` even an absolute path would be relative.
    return None if str(relative).startswith(OPAQUE) else _base((project / relative).parts)


def _base(parts: tuple[str, ...]) -> str | None:
    first = _first_of_pattern(parts)
    return str(PurePosixPath(*parts[:first])) if first > 0 else None


def _first_of_pattern(parts: tuple[str, ...]) -> int:
    """Where the pattern begins: at the first wildcard, or at the last part if there is none."""
    return next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
