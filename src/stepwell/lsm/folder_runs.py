"""Runs in a folder of this machine. The files of unreferenced runs are deleted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from stepwell.env import Env
from stepwell.lsm.run_file import (
    Locate,
    RunFiles,
    identity_of,
    own,
    publish_files,
    read_files,
    write_files,
)
from stepwell.lsm.scratch import Scratch
from stepwell.manifest.manifest import Run
from stepwell.store.base import Store


class FolderRuns:
    """Implements `RunStorage`."""

    elsewhere = False

    def __init__(self, folder: Path | Scratch, env: Env) -> None:
        self._folder = folder
        self._env = env

    def write(self, relation: str, pieces: Iterable[pa.Table], key: Sequence[int]) -> RunFiles:
        def new() -> Path:
            path = self._new(relation).with_suffix(".parquet")
            path.parent.mkdir(parents=True, exist_ok=True)
            return path

        return own(RunFiles(*write_files(pieces, key, new)))

    def read(self, run: RunFiles) -> pa.Table:
        return read_files(run)

    def opened(self, files: Locate, stored: tuple[Run, ...]) -> RunFiles:
        rows = sum(run.rows for run in stored)
        return RunFiles(files, rows, stored[0].columns, identity_of(stored))

    def publish(self, store: Store, relation: str, run: RunFiles) -> tuple[Run, ...]:
        return publish_files(store, self._env, relation, run)

    def published(self, run: RunFiles, stored: tuple[Run, ...]) -> bool:
        run.identity = identity_of(stored)
        return False

    def _new(self, relation: str) -> Path:
        folder = self._folder.path if isinstance(self._folder, Scratch) else self._folder
        # A relation's name may contain any character; a folder's may not.
        return folder / quote(relation, safe="$") / self._env.new_id()
