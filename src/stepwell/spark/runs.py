"""Runs: immutable Parquet files that hold a relation's rows, each with its weight.

    <folder>/<relation>/<id>.parquet      small: written by this process
    <folder>/<relation>/<id>/part-*       large: written by Spark, one file per task

Rows are sorted by the relation's key, so that ranges of keys can be skipped; pages carry checksums.
Which files make up a run is known exactly, from the moment it is written: nothing is ever found by
listing a folder, so what a crash or a failed attempt left there is never read.

Here Spark reads and writes files of this machine. `shared` is for workers on others.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.types import StructType

from stepwell.engine.reshape import Places, reshaped
from stepwell.env import Env
from stepwell.query.types import is_nested, why_not_kept
from stepwell.state.manifest import Run
from stepwell.state.runs import write_run
from stepwell.store.base import Store

WEIGHT = "w"
"""The last column: how often a row is there."""
ROW_GROUP_ROWS = 128 * 1024
FILE_ROWS = 1_000_000
"""About as many rows as one file of a large run holds."""

PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "write_page_checksum": True,
    "write_page_index": True,
    "store_decimal_as_integer": True,
}


class RunFiles:
    """The files of one run, and how many rows they hold. Weak references to it are kept.

    `places`: where the columns of its relation are in the files, if they are not as they stand.
    """

    def __init__(self, files: tuple[Path, ...], rows: int, places: Places | None = None) -> None:
        self._files = files
        self.rows = rows
        self.places = places

    @property
    def files(self) -> tuple[Path, ...]:
        """Where this process can read them."""
        return self._files

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    @property
    def weights(self) -> tuple[int, int] | None:
        """The least and the greatest weight, if the files say so."""
        found: list[int] = []
        for file in self.files:
            metadata = pq.read_metadata(file)
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(metadata.num_columns - 1).statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                found += [statistics.min, statistics.max]
        return (min(found), max(found)) if found else None


class Runs(Protocol):
    """Writes and reads runs, where Spark's workers can do so as well."""

    elsewhere: bool
    """Whether workers run on other machines."""

    def write(self, relation: str, pieces: Iterable[pa.Table], key: Sequence[int]) -> RunFiles:
        """Write rows that are in memory, a piece at a time."""

    def write_frame(
        self, relation: str, frame: DataFrame, key: Sequence[int], rows: float
    ) -> RunFiles:
        """Let Spark write rows that need not pass through this process. `rows`: about how many."""

    def frame(self, run: RunFiles, schema: StructType) -> DataFrame:
        """The rows of a run."""

    def read(self, run: RunFiles) -> pa.Table:
        """The rows of a run in memory, if Arrow reads them as Spark wrote them."""

    def opened(self, files: tuple[Path, ...], stored: tuple[Run, ...]) -> RunFiles:
        """A run of the manifest, of which this process has the files."""

    def publish(self, store: Store, relation: str, run: RunFiles) -> tuple[Run, ...]:
        """Store a run durably, to be named by the next manifest."""

    def published(self, run: RunFiles, stored: tuple[Run, ...]) -> bool:
        """The manifest names it now. Whether workers find it elsewhere than before."""


class LocalRuns:
    """Below a folder that Spark sees as well. Files go when nobody holds their run any more."""

    elsewhere = False

    def __init__(self, spark: SparkSession, folder: Path, env: Env) -> None:
        self._spark = spark
        self._folder = folder
        self._env = env

    def write(self, relation: str, pieces: Iterable[pa.Table], key: Sequence[int]) -> RunFiles:
        def new() -> Path:
            path = self._new(relation).with_suffix(".parquet")
            path.parent.mkdir(parents=True, exist_ok=True)
            return path

        return own(RunFiles(*write_files(pieces, key, new)))

    def write_frame(
        self, relation: str, frame: DataFrame, key: Sequence[int], rows: float
    ) -> RunFiles:
        path = self._new(relation)
        frame = arranged(frame, key, rows)
        frame.write.option("compression", "zstd").parquet(str(path))
        written = sorted(path.glob("part-*"))
        count = sum(pq.read_metadata(file).num_rows for file in written)
        return own(RunFiles(tuple(written), count))

    def frame(self, run: RunFiles, schema: StructType) -> DataFrame:
        files = list(map(str, run.files))
        if run.places is None:
            return self._spark.read.schema(schema).parquet(*files)
        stored, items = in_places(schema, run.places)
        return self._spark.read.schema(stored).parquet(*files).select(*items)

    def read(self, run: RunFiles) -> pa.Table:
        return read_files(run)

    def opened(self, files: tuple[Path, ...], stored: tuple[Run, ...]) -> RunFiles:
        return RunFiles(files, sum(run.rows for run in stored), stored[0].columns)

    def publish(self, store: Store, relation: str, run: RunFiles) -> tuple[Run, ...]:
        return publish_files(store, self._env, relation, run)

    def published(self, run: RunFiles, stored: tuple[Run, ...]) -> bool:
        return False

    def _new(self, relation: str) -> Path:
        # A name of a relation may hold anything; a folder's may not.
        return self._folder / quote(relation, safe="$") / self._env.new_id()


def own(run: RunFiles) -> RunFiles:
    """Its files go with it."""
    weakref.finalize(run, _remove, run.files)
    return run


def arranged(frame: DataFrame, key: Sequence[int], rows: float) -> DataFrame:
    """Rows as they are written: sorted by the key, and about `FILE_ROWS` of them together."""
    if not key:
        return frame
    names = [f"c{i}" for i in key]
    files = max(1, round(rows / FILE_ROWS))
    if files > 1:
        return frame.repartitionByRange(files, *names).sortWithinPartitions(*names)
    return frame.coalesce(files).sortWithinPartitions(*names)


def write_files(
    pieces: Iterable[pa.Table], key: Sequence[int], new: Callable[[], Path]
) -> tuple[tuple[Path, ...], int]:
    """A file of each piece that has rows, one in any case; and how many rows they hold."""
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
            del piece  # Before the next one is made.
        if schema is not None and not files:
            write(schema.empty_table())
    except BaseException:
        _remove(tuple(files))
        raise
    return tuple(files), rows


def read_files(run: RunFiles) -> pa.Table:
    """Columns that the files do not have are NULL, of no type yet."""
    return pa.concat_tables(
        reshaped(
            pq.read_table(file, partitioning=None, page_checksum_verification=True), run.places
        )
        for file in run.files
    )


def in_places(schema: StructType, places: Places) -> tuple[StructType, list[Column]]:
    """The columns to read from files, and those of the relation made of them."""
    stored = StructType()
    items = []
    for field, place in zip(schema.fields[:-1], places, strict=True):
        if place is None:
            items.append(lit(None).cast(field.dataType).alias(field.name))
        else:
            stored.add(f"c{place}", field.dataType)
            items.append(col(f"c{place}").alias(field.name))
    stored.add(schema.fields[-1])
    return stored, [*items, col(WEIGHT)]


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
    """A run as the bytes of its file."""
    if key:
        table = table.sort_by([(f"c{i}", "ascending") for i in key])
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=ROW_GROUP_ROWS, **PARQUET)
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def plain(types: Sequence[str]) -> bool:
    """Whether Arrow and Spark agree on how these types look in Parquet."""
    return all(why_not_kept(type_) is None for type_ in types)


def scalar(types: Sequence[str]) -> bool:
    """Whether they are plain, and nothing is nested."""
    return plain(types) and not any(map(is_nested, types))


def sortable(types: Sequence[str], key: Sequence[int]) -> bool:
    return scalar([types[i] for i in key])
