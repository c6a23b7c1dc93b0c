"""A temporary folder of this process, created on first use."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path


class Scratch:
    """The folder is deleted with this object."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        if self._path is None:
            folder = tempfile.TemporaryDirectory(prefix=self._prefix)
            weakref.finalize(self, folder.cleanup)
            self._path = Path(folder.name)
        return self._path
