"""Read a whole table, view or change set of any size without holding it in memory.

A small result is one table. Spark writes a large one to files, which are read in pieces and deleted
after reading. A change set stays one table, in a memory-mapped file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from stepwell.execution.spark.collect import to_arrow
from stepwell.execution.spark.runs import Runs
from stepwell.lsm.large_change import map_rows
from stepwell.lsm.part import Part
from stepwell.lsm.run_file import ROW_GROUP_ROWS, WEIGHT, RunFiles
from stepwell.lsm.table_diff import Pieces


def in_pieces(
    frame: DataFrame, rows: float, runs: Runs, rows_max: int, collected_rows_max: int
) -> Pieces:
    """The rows of a frame in pieces of at most `rows_max`.

    `rows` is an upper bound; if it is above `collected_rows_max`, Spark writes them to files.
    """
    if rows <= collected_rows_max:
        table = to_arrow(frame)
        starts = range(0, table.num_rows, rows_max)
        slices = [table.slice(start, rows_max) for start in starts]
        return Pieces(table.schema, table.num_rows, slices)
    columns = [f"c{i}" for i in range(len(frame.columns))]
    whole = frame.toDF(*columns).selectExpr("*", f"1L AS {WEIGHT}")
    run = runs.write_frame("$read", whole, (), rows)
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    return Pieces(schema, run.rows, _read(run, schema, rows_max))


def mapped(run: RunFiles, schema: pa.Schema) -> pa.Table:
    """The rows and weights of a run in a memory-mapped file (`map_rows`)."""
    beside = run.files[0].parent if run.files else None
    return map_rows(_read(run, schema, ROW_GROUP_ROWS), schema, beside)


def _read(run: RunFiles, schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """The rows of a run with this schema; weights are dropped if the schema has none."""
    for file in run.files:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            names = parquet.schema_arrow.names[: len(schema)]
            for batch in parquet.iter_batches(min(rows_max, ROW_GROUP_ROWS), columns=names):
                yield pa.Table.from_batches([batch]).rename_columns(schema.names).cast(schema)


def rows_at_most(parts: Iterable[Part]) -> float:
    """Upper bound on the number of rows: retractions are not subtracted."""
    return sum(map(_rows, parts))


def _rows(part: Part) -> float:
    if part.table is not None:
        come = pc.max_element_wise(part.table.column(WEIGHT), 0)
        return float(pc.sum(come).as_py() or 0)
    weights = None if part.run is None else part.run.weights
    return float("inf") if weights is None else part.rows * max(0, weights[1])
