"""Run files: immutable Parquet files that hold a relation's rows and their weights.

    <folder>/<relation>/<id>.parquet      small: written by this process
    <folder>/<relation>/<id>/part-*       large: written by Spark, one file per task

Rows are sorted by the relation's key, so that readers can skip key ranges. Pages carry checksums.
The exact list of a run's files is known from the moment it is written. Folders are never listed, so
files left by a crash or a failed attempt are never read.
"""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from stepwell.env import Env
from stepwell.lsm.reshape import Places, reshaped
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import write_run
from stepwell.plan.types import is_nested, why_not_kept
from stepwell.store.base import Store

WEIGHT = "w"

"""The last column: the weight of the row."""

ROW_GROUP_ROWS = 128 * 1024

FILE_ROWS = 1_000_000

"""Approximate number of rows per file of a large run."""

PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "write_page_checksum": True,
    "write_page_index": True,
    "store_decimal_as_integer": True,
}


Locate = Callable[[], tuple[Path, ...]]
"""Returns the local paths of a run's files, once they are known to be what the manifest names."""


class RunFiles:
    """The files of one run, and their row count. Others hold weak references to it.

    Files may be given by a function, which is called when they are first needed: it checks or
    fetches them. A process that finds all it needs in the cache never reads them.

    `places`: positions of the relation's columns in the files, if they differ from the relation's.
    `identity`: the content-based name of the run in the cache; None until the run is stored.
    """

    def __init__(
        self,
        files: tuple[Path, ...] | Locate,
        rows: int,
        places: Places | None = None,
        identity: str | None = None,
    ) -> None:
        self._files: tuple[Path, ...] = () if callable(files) else files
        self._locate = files if callable(files) else None
        self._lock = threading.RLock()
        self.rows = rows
        self.places = places
        self.identity = identity

    @property
    def files(self) -> tuple[Path, ...]:
        """Local paths of the files. The first access may raise, and then each one does."""
        with self._lock:
            if self._locate is not None:
                self._files, self._locate = self._locate(), None
            return self._files

    @property
    def here(self) -> bool:
        """Whether this process has the files. Otherwise executors look up rows in them."""
        return True

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    @property
    def weights(self) -> tuple[int, int] | None:
        """The least and greatest weight, if the files have statistics."""
        return weight_bounds(map(pq.read_metadata, self.files))

    def column(self, name: str) -> Iterator[pa.ChunkedArray]:
        """Decode a column of the files, one file at a time."""
        for file in self.files:
            table = pq.read_table(
                file, columns=[name], partitioning=None, page_checksum_verification=True
            )
            yield table.column(0)


def weight_bounds(files: Iterable[pq.FileMetaData]) -> tuple[int, int] | None:
    """The least and greatest weight according to the statistics; None if some are missing."""
    found: list[int] = []
    for metadata in files:
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(metadata.num_columns - 1).statistics
            if statistics is None or not statistics.has_min_max:
                return None
            found += [statistics.min, statistics.max]
    return (min(found), max(found)) if found else None


def identity_of(stored: Sequence[Run]) -> str:
    """A name for a run derived from the ids and checksums of its files, independent of location."""
    lines = "\n".join(f"{run.path.rpartition('/')[2]} {run.size} {run.checksum}" for run in stored)
    return xxhash.xxh3_128_hexdigest(lines.encode())


def own(run: RunFiles) -> RunFiles:
    """Delete the files when the `RunFiles` object is freed."""
    weakref.finalize(run, _remove, run.files)
    return run


def write_files(
    pieces: Iterable[pa.Table], key: Sequence[int], new: Callable[[], Path]
) -> tuple[tuple[Path, ...], int]:
    """Write a file per non-empty piece, at least one; return the files and the row count."""
    files: list[Path] = []
    rows = 0
    schema: pa.Schema | None = None

    def write(piece: pa.Table) -> None:
        files.append(new())
        files[-1].write_bytes(parquet_bytes(piece, key))

    try:
        for piece in pieces:
            schema = piece.schema
            if piece.num_rows:
                write(piece)
                rows += piece.num_rows
            del piece  # Free it before the next one is made.
        if schema is not None and not files:
            write(schema.empty_table())
    except BaseException:
        _remove(tuple(files))
        raise
    return tuple(files), rows


def read_files(run: RunFiles) -> pa.Table:
    """Read all files of a run. Columns that the files lack are NULL of null type."""
    return pa.concat_tables(
        reshaped(
            pq.read_table(file, partitioning=None, page_checksum_verification=True), run.places
        )
        for file in run.files
    )


def repeated_key(run: RunFiles, key: Sequence[int]) -> tuple[object, ...] | None:
    """A key that two rows of a run have, if there is one; their files are sorted by it.

    Equal keys are in one file, next to each other, so only the key columns are read, once.
    """
    names = [f"c{i}" for i in key]
    for file in run.files:
        last: pa.Table | None = None
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            for batch in parquet.iter_batches(ROW_GROUP_ROWS, columns=names):
                rows = pa.Table.from_batches([batch]).select(names)
                if last is not None:
                    rows = pa.concat_tables([last, rows])
                ends = rows.num_rows - 1
                pairs = [_same(c.slice(1), c.slice(0, ends)) for c in rows.columns]
                same = pc.index(reduce(pc.and_, pairs), True).as_py() if pairs else -1
                if same >= 0:
                    return tuple(column[same].as_py() for column in rows.columns)
                last = rows.slice(max(0, rows.num_rows - 1))
    return None


def _same(a: pa.ChunkedArray, b: pa.ChunkedArray) -> pa.ChunkedArray:
    both = pc.and_(pc.is_null(a), pc.is_null(b))
    return pc.or_(pc.fill_null(pc.equal(a, b), False), both)


def publish_files(store: Store, env: Env, relation: str, run: RunFiles) -> tuple[Run, ...]:
    return tuple(
        write_run(store, env, relation, file.read_bytes(), pq.read_metadata(file).num_rows)
        for file in run.files
    )


def _remove(files: tuple[Path, ...]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
        if file.name.startswith("part-"):
            shutil.rmtree(file.parent, ignore_errors=True)


def parquet_bytes(table: pa.Table, key: Sequence[int]) -> bytes:
    """A run as the bytes of a Parquet file, sorted by key."""
    if key:
        table = table.sort_by([(f"c{i}", "ascending") for i in key])
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=ROW_GROUP_ROWS, **PARQUET)
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def plain(types: Sequence[str]) -> bool:
    """Whether Arrow and Spark agree on the Parquet representation of these types."""
    return all(why_not_kept(type_) is None for type_ in types)


def scalar(types: Sequence[str]) -> bool:
    """Whether all types are plain and not nested."""
    return plain(types) and not any(map(is_nested, types))


def sortable(types: Sequence[str], key: Sequence[int]) -> bool:
    return scalar([types[i] for i in key])
