"""Runs: immutable Parquet files that hold a relation's rows and their weights.

    <folder>/<relation>/<id>.parquet      small: written by this process
    <folder>/<relation>/<id>/part-*       large: written by Spark, one file per task

Here Spark reads and writes files of this machine (see `lsm/run_file`). `shared` is for workers on
other machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.types import StructType

from stepwell.env import Env
from stepwell.lsm.bulk import Target
from stepwell.lsm.folder_runs import FolderRuns
from stepwell.lsm.relations import RunStorage
from stepwell.lsm.reshape import Places
from stepwell.lsm.run_file import FILE_ROWS, WEIGHT, RunFiles, own
from stepwell.manifest.manifest import Run
from stepwell.model import NO_CHECKSUM


class Runs(RunStorage, Protocol):
    """Writes and reads runs where Spark's workers can access them, too."""

    def write_frame(
        self, relation: str, frame: DataFrame, key: Sequence[int], rows: float
    ) -> RunFiles:
        """Let Spark write rows, bypassing this process. `rows` is an estimate of their number."""

    def frame(self, run: RunFiles, schema: StructType) -> DataFrame:
        """The rows of a run as a DataFrame."""

    def target(self, relation: str) -> Target:
        """A new place where workers write the files of a run."""

    def adopt(self, relation: str, types: tuple[str, ...], files: Sequence[Run]) -> RunFiles:
        """The run of files that workers have written there, each row with weight one."""

    def source(self, run: RunFiles) -> tuple[Target, tuple[Run, ...]]:
        """The files of a run, and how workers read them."""


class LocalRuns(FolderRuns):
    """Runs in a folder that Spark sees as well."""

    def __init__(self, spark: SparkSession, folder: Path, env: Env) -> None:
        super().__init__(folder, env)
        self._spark = spark

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

    def target(self, relation: str) -> Target:
        return Target(folder=str(self._new(relation)))

    def adopt(self, relation: str, types: tuple[str, ...], files: Sequence[Run]) -> RunFiles:
        return own(RunFiles(tuple(Path(f.path) for f in files), sum(f.rows for f in files)))

    def source(self, run: RunFiles) -> tuple[Target, tuple[Run, ...]]:
        files = []
        for file in run.files:
            rows = pq.read_metadata(file).num_rows
            files.append(Run("", str(file), file.stat().st_size, rows, NO_CHECKSUM))
        return Target(folder=""), tuple(files)


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
