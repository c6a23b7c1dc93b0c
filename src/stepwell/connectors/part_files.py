"""Parts of a large change: files that tasks write, each attempt under a new name.

A part is durable once its task reports it. The process that started the tasks moves reported parts
to their final place, and removes the folder with all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from stepwell.connectors.durable import sync_file
from stepwell.connectors.writing import FileFormat, as_texts, json_lines
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part that a task has written."""

    name: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes the rows of a task to a file in a folder. It is pickled."""

    folder: str
    format: FileFormat
    mode: int | None = None
    """The permissions of the file; None for the process's defaults."""

    def __call__(self, task: int, rows: Iterator[pa.Table]) -> PartFile | None:
        """The part; None if this process does not see the folder."""
        folder = Path(self.folder)
        if not folder.is_dir():
            return None
        path = folder / f"{task}-{SystemEnv().new_id()}.{self.format.value}"
        try:
            count = write_pieces(rows, path, self.format)
            if self.mode is not None:
                path.chmod(self.mode)
            sync_file(path, staged=True)
            return PartFile(path.name, path.stat().st_size, count)
        except OSError as error:
            raise UnavailableError(
                f"{path} cannot be written: {error.strerror or error}",
                hint="check that the folder can be written, and that its disk is not full",
            ) from error


def write_pieces(pieces: Iterator[pa.Table], path: Path, format: FileFormat) -> int:
    """Write rows as `write_rows` does, one piece in memory at a time; returns their number."""
    first = next(pieces)
    rows = 0
    if format is FileFormat.JSON:
        with open(path, "x", encoding="utf-8") as file:
            for piece in chain([first], pieces):
                for batch in piece.to_batches(max_chunksize=10_000):
                    file.writelines(json_lines(pa.Table.from_batches([batch])))
                rows += piece.num_rows
        return rows
    if format is FileFormat.CSV:
        with arrow_csv.CSVWriter(path, as_texts(first).schema) as writer:
            for piece in chain([first], pieces):
                writer.write_table(as_texts(piece))
                rows += piece.num_rows
        return rows
    options = {"compression": "zstd", "write_page_checksum": True}
    with pq.ParquetWriter(path, first.schema, **options) as writer:
        for piece in chain([first], pieces):
            writer.write_table(piece)
            rows += piece.num_rows
    return rows
