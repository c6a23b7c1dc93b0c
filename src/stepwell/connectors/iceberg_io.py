"""Files of an Iceberg table on a local disk, synced before a catalog refers to them.

`pyiceberg` syncs nothing, but a catalog in SQLite does. Without this, a power cut could leave a
catalog that names files whose contents are lost. Files in object stores are written as before.
`pyiceberg` creates the class by name, from the catalog's property `py-io-impl`.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from stepwell.connectors.durable import make_folder, sync_file, sync_folder

NAME = f"{__name__}.SyncedFileIO"


class SyncedFileIO(PyArrowFileIO):
    def new_output(self, location: str) -> PyArrowFile:
        scheme, _, path = self.parse_location(location, self.properties)
        made = super().new_output(location)
        if scheme != "file":
            return made
        return _SyncedFile(location, path, made._filesystem)


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        path = Path(self._path)
        make_folder(path.parent)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream(io.BufferedWriter):
    """A file that is on the disk once it is closed."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        sync_file(self._path)
        sync_folder(self._path.parent)
