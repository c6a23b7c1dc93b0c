"""Runs: immutable Parquet files that hold a relation's rows and their weights.

    <folder>/<relation>/<id>.parquet      small: written by this process
    <folder>/<relation>/<id>/part-*       large: written by Spark, one file per task

Rows are sorted by the relation's key, so that readers can skip key ranges. Pages carry checksums.
The exact list of a run's files is known from the moment it is written. Folders are never listed, so
files left by a crash or a failed attempt are never read.

Here Spark reads and writes files of this machine. `shared` is for workers on other machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.types import StructType

from stepwell.env import Env
from stepwell.lsm.relations import RunStorage
from stepwell.lsm.reshape import Places
from stepwell.lsm.run_file import (
    FILE_ROWS,
    WEIGHT,
    RunFiles,
    identity_of,
    own,
    publish_files,
    read_files,
    write_files,
)
from stepwell.manifest.manifest import Run
from stepwell.store.base import Store


class Runs(RunStorage, Protocol):
    """Writes and reads runs where Spark's workers can access them, too."""

    def write_frame(
        self, relation: str, frame: DataFrame, key: Sequence[int], rows: float
    ) -> RunFiles:
        """Let Spark write rows, bypassing this process. `rows` is an estimate of their number."""

    def frame(self, run: RunFiles, schema: StructType) -> DataFrame:
        """The rows of a run as a DataFrame."""

    def opened(self, files: tuple[Path, ...], stored: tuple[Run, ...]) -> RunFiles:
        """A run of the manifest whose files this process has."""

    def publish(self, store: Store, relation: str, run: RunFiles) -> tuple[Run, ...]:
        """Store a run durably, for the next manifest to reference."""

    def published(self, run: RunFiles, stored: tuple[Run, ...]) -> bool:
        """Called when the manifest references the run. Returns whether its location changed."""


class LocalRuns:
    """Runs in a folder that Spark sees as well. Files of unreferenced runs are deleted."""

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
        rows = sum(run.rows for run in stored)
        return RunFiles(files, rows, stored[0].columns, identity_of(stored))

    def publish(self, store: Store, relation: str, run: RunFiles) -> tuple[Run, ...]:
        return publish_files(store, self._env, relation, run)

    def published(self, run: RunFiles, stored: tuple[Run, ...]) -> bool:
        run.identity = identity_of(stored)
        return False

    def _new(self, relation: str) -> Path:
        # A relation's name may contain any character; a folder's may not.
        return self._folder / quote(relation, safe="$") / self._env.new_id()


def arranged(frame: DataFrame, key: Sequence[int], rows: float) -> DataFrame:
    """Sort rows by the key, and partition them into files of about `FILE_ROWS` rows."""
    if not key:
        return frame
    names = [f"c{i}" for i in key]
    files = max(1, round(rows / FILE_ROWS))
    if files > 1:
        return frame.repartitionByRange(files, *names).sortWithinPartitions(*names)
    return frame.coalesce(files).sortWithinPartitions(*names)


def in_places(schema: StructType, places: Places) -> tuple[StructType, list[Column]]:
    """The columns to read from files, and the expressions that rearrange them for the relation."""
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
