"""The base folder of a files source: the folder above the first wildcard of its `path`.

Files are identified by their names relative to it. Under another base folder, a taken name refers
to another file, and a taken file has another name. A source therefore keeps its base folder once it
has taken a file; the pattern below it may change.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path, PurePosixPath

OPAQUE = "\ue000"
"""Encloses a placeholder for unknown text in a path: see `opaque`."""


def opaque(reference: str) -> str:
    """A placeholder for a reference in a path, without wildcards or slashes."""
    return f"{OPAQUE}{reference.encode().hex()}{OPAQUE}"


def split_pattern(path: str) -> tuple[Path, str]:
    """Split a path into the base folder and the pattern below it."""
    parts = Path(os.path.abspath(path)).parts
    first = _first_of_pattern(parts)
    return Path(*parts[:first]), str(Path(*parts[first:]))


def base_folder(path: str, project: Path) -> str | None:
    """The base folder of a path as given in a project; None if the text does not determine it.

    Pure: two paths with the same result have the same base folder, whatever the values of the home
    folder and of references in them.
    """
    hidden = OPAQUE in path
    given = path if hidden else path.removeprefix("file://")
    relative = PurePosixPath(given)
    home = str(relative).startswith("~")
    if not hidden and not home:
        return _base(PurePosixPath(os.path.normpath(project / given)).parts)
    if ".." in relative.parts:
        return None  # It may lead out of the unknown part.
    first = _first_of_pattern(relative.parts)
    if any(OPAQUE in part for part in relative.parts[first:]):
        return None  # A slash in the value would move the base folder.
    if home or given.startswith((OPAQUE, "file:")):
        return _base(relative.parts)
    # After `./`, even an absolute path would be relative.
    return None if str(relative).startswith(OPAQUE) else _base((project / relative).parts)


def _base(parts: tuple[str, ...]) -> str | None:
    first = _first_of_pattern(parts)
    return str(PurePosixPath(*parts[:first])) if first > 0 else None


def _first_of_pattern(parts: tuple[str, ...]) -> int:
    """Index of the first part with a wildcard, or of the last part if there is none."""
    return next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
