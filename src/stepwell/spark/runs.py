"""Runs: immutable Parquet files that hold a relation's rows, each with its weight.

    <folder>/<relation>/<id>.parquet      small: written by this process
    <folder>/<relation>/<id>/part-*       large: written by Spark, one file per task

Rows are sorted by the relation's key, so that ranges of keys can be skipped; pages carry checksums.
Which files make up a run is known exactly, from the moment it is written: nothing is ever found by
listing a folder, so what a crash or a failed attempt left there is never read.
"""

from __future__ import annotations

import re
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from stepwell.env import Env

ROW_GROUP_ROWS = 128 * 1024
FILE_ROWS = 1_000_000
"""About as many rows as one file of a large run holds."""

_PLAIN = re.compile(
    r"boolean|tinyint|smallint|int|bigint|float|double|string|binary|date|timestamp|timestamp_ntz"
    r"|decimal\(\d+,\d+\)"
)


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, and how many rows they hold. Weak references to it are kept."""

    files: tuple[Path, ...]
    rows: int

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


class Runs:
    """Writes and reads runs below a folder. Files go when nobody holds their run any more."""

    def __init__(self, spark: SparkSession, folder: Path, env: Env) -> None:
        self._spark = spark
        self._folder = folder
        self._env = env

    def write(self, relation: str, table: pa.Table, key: Sequence[int]) -> RunFiles:
        """Write rows that are in memory."""
        path = self._new(relation).with_suffix(".parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(parquet_bytes(table, key))
        return _own(RunFiles((path,), table.num_rows))

    def write_frame(
        self, relation: str, frame: DataFrame, key: Sequence[int], rows: float
    ) -> RunFiles:
        """Let Spark write rows that need not pass through this process. `rows`: about how many."""
        path = self._new(relation)
        names = [f"c{i}" for i in key]
        files = max(1, round(rows / FILE_ROWS))
        if names and files > 1:
            frame = frame.repartitionByRange(files, *names).sortWithinPartitions(*names)
        elif names:
            frame = frame.coalesce(files).sortWithinPartitions(*names)
        frame.write.option("compression", "zstd").parquet(str(path))
        written = sorted(path.glob("part-*"))
        count = sum(pq.read_metadata(file).num_rows for file in written)
        return _own(RunFiles(tuple(written), count))

    def frame(self, run: RunFiles, schema: object) -> DataFrame:
        """The rows of a run."""
        return self._spark.read.schema(schema).parquet(*map(str, run.files))  # type: ignore[arg-type]

    def read(self, run: RunFiles) -> pa.Table:
        """The rows of a run in memory, if Arrow reads them as Spark wrote them."""
        return pa.concat_tables([pq.read_table(file, partitioning=None) for file in run.files])

    def _new(self, relation: str) -> Path:
        # A name of a relation may hold anything; a folder's may not.
        return self._folder / quote(relation, safe="$") / self._env.new_id()


def _own(run: RunFiles) -> RunFiles:
    weakref.finalize(run, _remove, run.files)
    return run


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
    pq.write_table(
        table,
        out,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=1,
        write_page_checksum=True,
        write_page_index=True,
        store_decimal_as_integer=True,
    )
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def plain(types: Sequence[str]) -> bool:
    """Whether Arrow and Spark agree on how these types look in Parquet."""
    return all(_PLAIN.fullmatch(type_) for type_ in types)


def sortable(types: Sequence[str], key: Sequence[int]) -> bool:
    return all(_PLAIN.fullmatch(types[i]) for i in key)
