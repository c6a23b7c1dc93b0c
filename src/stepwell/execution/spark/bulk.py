"""Bulk input on Spark: decoded, sorted and compared with existing rows by executors (`lsm/bulk`).

At most three jobs, none of which returns rows: tasks decode the input into chunks; chunks that may
share keys are sorted together; and if the table has rows, a join finds those that are replaced.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from stepwell.errors import InvalidError
from stepwell.execution.local.table_changes import typed_items
from stepwell.execution.spark.evaluate import MUCH, Evaluator
from stepwell.execution.spark.failures import translated
from stepwell.execution.spark.frames import Frames, schema_of
from stepwell.execution.spark.runs import Runs
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.bulk import (
    CHUNK,
    REPORT,
    Chunk,
    Decode,
    Layout,
    Report,
    Staged,
    Target,
    decoding,
    in_key_order,
    in_task_order,
    merging,
    numbered,
    report_in,
)
from stepwell.lsm.checksum import add_checksums
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.relations import Relations
from stepwell.lsm.remote_files import MapArrow
from stepwell.lsm.run_file import FILE_ROWS, RunFiles, plain, repeated_key
from stepwell.lsm.staged import StagedRows
from stepwell.lsm.values import comparable
from stepwell.sql.statements import Table

_LOADED = "`$stepwell$loaded`"
TASK_CHUNKS = 3
"""Chunks that one task sorts together: Spark sorts what does not fit into memory on disk."""


class BulkInput:
    """Implements `Bulk`."""

    def __init__(
        self,
        spark: SparkSession,
        relations: Relations,
        frames: Frames,
        evaluator: Evaluator,
        tables: Mapping[str, Table],
    ) -> None:
        """`tables` are by lower-case name."""
        self._spark = spark
        self._relations = relations
        self._frames = frames
        self._evaluator = evaluator
        self._tables = tables

    @property
    def _runs(self) -> Runs:
        return self._frames.runs

    def accepts(self, table: str) -> bool:
        layout = self._layout(table)
        return layout.supported and plain(layout.types)

    def stage(self, table: str, decode: Decode) -> Staged:
        self._evaluator.usual()
        layout, target = self._layout(table), self._runs.target(table)
        try:
            reports = in_task_order(self._run(decode.tasks, decoding(decode, layout, target)))
        except BaseException:
            _discard(target)
            raise
        return Staged.of(self._rows(table, layout, target, reports), reports)

    def load(self, name: str, frame: DataFrame) -> Part:
        """The rows of a DataFrame as a part of an empty table."""
        table, relation = self._tables[name.lower()], self._relations[name]
        items = typed_items(table, relation.types, frame.columns)
        with translated():
            rows = frame.selectExpr(*items, "1L AS w")
            part = self._frames.as_run(relation, rows, frame.count())
            twice = self._repeated_key(relation, part) if relation.key else None
            if twice is not None:
                raise InvalidError(
                    f"{table.name}: two rows have the key {twice}",
                    hint="leave out all but one of them",
                )
        return part

    def _repeated_key(self, relation: Relation, part: Part) -> tuple[object, ...] | None:
        """A key that two rows of a part have, if there is one."""
        exact = all(comparable(relation.types[i]) for i in relation.key)
        is_sorted = tuple(relation.sort) == tuple(relation.key)
        if part.run is not None and is_sorted and exact and not self._runs.elsewhere:
            return repeated_key(part.run, relation.key)
        names = ", ".join(f"c{i}" for i in relation.key)
        self._frames.frame_of(part).createOrReplaceTempView(_LOADED)
        twice = self._spark.sql(
            f"SELECT {names} FROM {_LOADED} GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
        ).collect()
        return tuple(twice[0]) if twice else None

    def normalised(self, name: str, staged: StagedRows) -> Part:
        """The change set of a table into which staged rows are put."""
        relation, part = self._relations[name], staged.part
        if not relation.key or not relation.parts:
            return part
        every = ", ".join(f"c{i}" for i in range(len(relation.types)))
        old, new = self._frames.old(relation), self._frames.delta(name, part)
        same = " AND ".join(f"x.c{i} <=> k.c{i}" for i in relation.key)
        keys = ", ".join(f"c{i}" for i in relation.key)
        return self._evaluator.written(
            name,
            f"SELECT {every}, sum(w) AS w FROM ("
            f"SELECT x.* FROM (SELECT {every}, -w AS w FROM {old}) x "
            f"LEFT SEMI JOIN (SELECT {keys} FROM {new}) k ON {same} "
            f"UNION ALL SELECT {every}, w FROM {new}) "
            f"GROUP BY {every} HAVING sum(w) <> 0",
            part.rows,
            MUCH,
        )

    def _layout(self, table: str) -> Layout:
        relation = self._relations[table]
        names = tuple(column.name for column in self._tables[table.lower()].columns)
        return Layout(names, relation.types, relation.key)

    def _rows(
        self, table: str, layout: Layout, target: Target, reports: Sequence[Report]
    ) -> StagedRows | None:
        chunks = [chunk for report in reports for chunk in report.chunks]
        if not chunks:
            return None
        ordered = in_key_order(chunks) if layout.key else chunks
        run = self._adopted(table, layout, chunks if ordered is None else ordered)
        if ordered is None:
            reports = self._merged(table, layout, target, chunks)
            run = self._adopted(table, layout, [c for report in reports for c in report.chunks])
        sums = add_checksums(report.checksum for report in reports)
        return StagedRows(self._part(layout, run), sums)

    def _adopted(self, table: str, layout: Layout, chunks: Sequence[Chunk]) -> RunFiles:
        """The files of chunks as a run, which deletes them when it is freed."""
        return self._runs.adopt(table, layout.types, [chunk.file for chunk in chunks])

    def _merged(
        self, table: str, layout: Layout, target: Target, chunks: Sequence[Chunk]
    ) -> Sequence[Report]:
        """Sort chunks together, so that only the last row of each key stays."""
        merged = self._runs.target(table)
        names = [f"c{i}" for i in layout.key]
        fields = [*schema_of(layout.types).fields, StructField(CHUNK, LongType())]
        count = max(1, round(sum(chunk.file.rows for chunk in chunks) / (TASK_CHUNKS * FILE_ROWS)))
        count = max(count, min(len(chunks), self._spark.sparkContext.defaultParallelism))
        try:
            with translated():
                rows = self._numbers(len(chunks)).mapInArrow(
                    numbered(target, chunks, layout), StructType(fields)
                )
                rows = rows.repartitionByRange(count, *names).sortWithinPartitions(*names, CHUNK)
                lines = rows.mapInArrow(merging(layout, merged), REPORT).collect()
        except BaseException:
            _discard(merged)
            raise
        return [report_in(line.report) for line in lines]

    def _part(self, layout: Layout, run: RunFiles) -> Part:
        if run.rows > self._relations.limits.memory_rows_max:
            return Part(layout.types, run.rows, run=run)
        table = self._runs.read(run).cast(arrow_schema(layout.types))
        return Part(layout.types, run.rows, table)

    def _run(self, tasks: int, work: MapArrow) -> list[Report]:
        with translated():
            lines = self._numbers(tasks).mapInArrow(work, REPORT).collect()
        return [report_in(line.report) for line in lines]

    def _numbers(self, count: int) -> DataFrame:
        return self._spark.range(0, count, 1, max(1, count))


def _discard(target: Target) -> None:
    """Delete the files of a job that failed. Objects in a store are collected as garbage."""
    if target.folder is not None:
        shutil.rmtree(target.folder, ignore_errors=True)
