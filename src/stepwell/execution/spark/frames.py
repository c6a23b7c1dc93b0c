"""Parts as DataFrames, and as temporary views under names that users cannot choose."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stepwell.errors import UnavailableError, UserCodeError, ensure
from stepwell.execution.spark.collect import to_arrow
from stepwell.execution.spark.failures import translated
from stepwell.execution.spark.runs import Runs
from stepwell.execution.spark.session import beside, within
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.bulk import REPORT
from stepwell.lsm.canonical import canonical_items
from stepwell.lsm.large_change import LargeChange
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.remote_files import MapArrow
from stepwell.lsm.run_file import WEIGHT, RunFiles, plain
from stepwell.plan.types import Field, SparkType, contains_map_or_variant, parse_type
from stepwell.text import quote_name

BROADCAST_ROWS_MAX = 1_000_000
"""Maximum number of rows that every worker can hold."""


class Frames:
    """Parts and relations as DataFrames of one session."""

    def __init__(
        self,
        spark: SparkSession,
        runs: Runs,
        limits: MemoryLimits | None = None,
        first: Frames | None = None,
    ) -> None:
        """`first`: the frames of another session over the same parts, for another thread."""
        self._spark = spark
        self._limits = limits or MemoryLimits()
        self._compacting: SparkSession = beside(spark) if first is None else first._compacting
        """For compaction, which must not inherit a transaction's settings for few rows."""
        self.runs = runs
        self._shown: dict[str, object] = {}
        self._lock: threading.Lock = threading.Lock() if first is None else first._lock
        """Held while a part becomes a frame, so that its rows are shipped only once."""

    def in_session(self, spark: SparkSession) -> Frames:
        """The same parts as frames of another session."""
        return Frames(spark, self.runs, self._limits, self)

    def compacted(self, relation: Relation, parts: Sequence[Part]) -> Part:
        """Compact several runs into one, on Spark (see `lsm/relations`)."""
        columns = [f"c{i}" for i in range(len(relation.types))]
        summed = (
            within(self._compacting, self._together(parts))
            .groupBy(*columns)
            .agg({WEIGHT: "sum"})
            .toDF(*columns, WEIGHT)
            .where(f"{WEIGHT} <> 0")
        )
        return self.as_run(relation, summed, sum(p.rows for p in parts))

    def as_run(self, relation: Relation, frame: DataFrame, rows: float) -> Part:
        """Let Spark compute and write rows of a relation, bypassing this process."""
        names = [f"c{i}" for i in range(len(relation.types))]
        frame = frame.toDF(*names, WEIGHT).selectExpr(*canonical_items(relation.types), WEIGHT)
        run = self.runs.write_frame(relation.name, frame, relation.sort, rows)
        if run.rows <= self._limits.memory_rows_max:
            # Fewer than estimated.
            table = self.runs.read(run).cast(arrow_schema(relation.types))
            return Part(relation.types, run.rows, table)
        return Part(relation.types, run.rows, run=run)

    def as_temporary_run(self, name: str, frame: DataFrame, rows: float) -> Part:
        """Let Spark compute and write rows of no relation, bypassing this process."""
        run = self.runs.write_frame(name, frame, (), rows)
        types = tuple(type_of(f.dataType) for f in frame.schema.fields[:-1])
        return Part(types, run.rows, run=run, shown=self.runs.frame(run, frame.schema))

    def large(self, run: RunFiles, schema: pa.Schema) -> LargeChange:
        """The rows of a run as a change set that executors write to sinks."""
        target, files = self.runs.source(run)
        return LargeChange(schema, files, target.read, self._run_tasks, held=run)

    def _run_tasks(self, work: MapArrow, tasks: int) -> list[bytes]:
        """Run tasks on executors; called from any thread."""
        numbers = self._compacting.range(0, tasks, 1, max(1, tasks))
        try:
            with translated():
                lines = numbers.mapInArrow(work, REPORT).collect()
        except UserCodeError as error:
            # No query is run here: an executor was lost, or cannot write.
            raise UnavailableError(f"executors cannot write a large change: {error}") from error
        return [bytes(line.report) for line in lines]

    def frame_of(self, part: Part) -> DataFrame:
        """A part as a DataFrame."""
        with self._lock:
            shown = self._shown_part(part)
        # Temporary views and settings belong to a session.
        return shown if shown.sparkSession is self._spark else within(self._spark, shown)

    def _shown_part(self, part: Part) -> DataFrame:
        if part.shown is None:
            large = part.rows > self._limits.shipped_rows_max and plain(part.types)
            if part.run is None and part.table is not None and large:
                part.shipped = self.runs.write("$shipped", [part.table], ())
            files = part.run or part.shipped
            if files is not None:
                part.shown = self.runs.frame(files, schema_of(part.types))
            else:
                ensure(part.table is not None, "a part is in memory or in files")
                part.shown = self.frame(part.table, part.types)
        return cast(DataFrame, part.shown)

    def arrow(self, part: Part) -> pa.Table:
        """The rows of a part in memory, wherever they are."""
        return part.table if part.table is not None else to_arrow(self.frame_of(part))

    def frame(self, table: pa.Table, types: Sequence[str]) -> DataFrame:
        """An Arrow table with these types and a weight, as a DataFrame."""
        if not table.num_rows:
            # A table without chunks, which pyspark does not accept.
            return self._spark.sql(f"SELECT * FROM {nothing(types)}")
        # In one chunk: Spark 4.3 reads batches up to the first empty one, and drops the rest.
        whole = table.combine_chunks()
        return self._spark.createDataFrame(whole, schema=schema_of(tuple(types)))

    def old(self, relation: Relation) -> str:
        """The name of a temporary view of a relation as stored."""
        if not relation.parts:
            return nothing(relation.types)
        shown = view_name(relation.name, "old")
        # Compare the parts themselves, not their ids: Python reuses ids.
        version = tuple(relation.parts)
        if self._shown.get(shown) != (version, relation.types):
            self._together(relation.parts).createOrReplaceTempView(shown)
            self._shown[shown] = (version, relation.types)
        return shown

    def delta(self, name: str, part: Part) -> str:
        """The name of a temporary view of a change set."""
        if not part.rows:
            return nothing(part.types)
        shown = view_name(name, "delta")
        if self._shown.get(shown) is not part:
            self.frame_of(part).createOrReplaceTempView(shown)
            self._shown[shown] = part
        return shown

    def _together(self, parts: Sequence[Part]) -> DataFrame:
        frame = self.frame_of(parts[0])
        for part in parts[1:]:
            frame = frame.unionAll(self.frame_of(part))
        return frame

    def plain_rows(self, relation: Relation, delta: Part | None) -> DataFrame | None:
        """The rows of a keyed relation that is mostly one run, as they are after a change.

        That run is only scanned: a row of it is gone if the other parts retract that row. A
        retraction with the same key is not enough: a run may hold the row before and the row after,
        if the retraction of the first is still in memory. None if the relation is not of this kind,
        and its parts have to be consolidated.
        """
        parts = [*relation.parts, *([delta] if delta is not None else [])]
        large = max(parts, key=lambda part: part.rows, default=None)
        if large is None or large.table is not None or not relation.key or not large.ones:
            return None
        if any(map(contains_map_or_variant, relation.types)):
            return None
        columns = [f"c{i}" for i in range(len(relation.types))]
        run = self.frame_of(large).select(*columns)
        rest = [part for part in parts if part is not large]
        if not rest:
            return run
        moved = self._together(rest).groupBy(*columns).agg({WEIGHT: "sum"}).toDF(*columns, WEIGHT)
        gone = moved.where(f"{WEIGHT} < 0").selectExpr(*(f"{c} AS gone_{c}" for c in columns))
        same = [run[c].eqNullSafe(gone[f"gone_{c}"]) for c in columns]
        if sum(part.rows for part in rest) <= BROADCAST_ROWS_MAX:
            gone = gone.hint("broadcast")
        stay = run.join(gone, same, "left_anti")
        return stay.unionAll(moved.where(f"{WEIGHT} > 0").select(*columns))


def nothing(types: Sequence[str]) -> str:
    """SQL for an empty table. Writing it in the query is faster than registering a view.

    Its columns are no constants: Spark would evaluate expressions over them while it plans, and
    fail on a map with a NULL key.
    """
    columns = ", ".join(f"c{i}: {kind}" for i, kind in enumerate(types))
    fields = f"STRUCT<{columns}{', ' if types else ''}{WEIGHT}: BIGINT>"
    return f"(SELECT * FROM inline(CAST(array() AS ARRAY<{fields}>)))"


def view_name(name: str, kind: str) -> str:
    """A quoted name that no user table has: `$` is not allowed in their names."""
    return quote_name(f"$stepwell${kind}${name}")


def type_of(kind: DataType) -> str:
    """The canonical text of a type. Spark's own text cannot always be parsed again."""
    return str(_tree(kind))


def _tree(kind: DataType) -> SparkType:
    match kind:
        case ArrayType():
            return SparkType("array", elements=(_tree(kind.elementType),))
        case MapType():
            return SparkType("map", elements=(_tree(kind.keyType), _tree(kind.valueType)))
        case StructType():
            return SparkType("struct", fields=tuple(Field(f.name, _tree(f.dataType)) for f in kind))
        case _:
            return parse_type(kind.simpleString())


@lru_cache(maxsize=10_000)
def schema_of(types: tuple[str, ...]) -> StructType:
    """The schema of a part."""
    columns = [f"c{i} {kind}" for i, kind in enumerate(types)]
    schema = StructType.fromDDL(", ".join([*columns, f"{WEIGHT} BIGINT"]))
    ensure(isinstance(schema, StructType), "a list of columns is a struct")
    return cast(StructType, schema)
