"""Reading all of a table or view, however large, without holding it.

Few rows come as one table. Many are written by Spark to files, and read from there a few at a time;
the files go when they have been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from stepwell.engine.ports import Pieces
from stepwell.spark.evaluate import COLLECT_ROWS_MAX
from stepwell.spark.relations import Part
from stepwell.spark.runs import ROW_GROUP_ROWS, WEIGHT, RunFiles, Runs


def in_pieces(frame: DataFrame, rows: float, runs: Runs, rows_max: int) -> Pieces:
    """The rows of a frame that has at most `rows` of them; at most `rows_max` at a time."""
    if rows <= COLLECT_ROWS_MAX:
        table = frame.toArrow()
        starts = range(0, table.num_rows, rows_max)
        slices = [table.slice(start, rows_max) for start in starts]
        return Pieces(table.schema, table.num_rows, slices)
    columns = [f"c{i}" for i in range(len(frame.columns))]
    whole = frame.toDF(*columns).selectExpr("*", f"1L AS {WEIGHT}")
    run = runs.write_frame("$read", whole, (), rows)
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    return Pieces(schema, run.rows, _read(run, schema, rows_max))


def _read(run: RunFiles, schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """Without their weights, and in columns like these."""
    for file in run.files:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            names = parquet.schema_arrow.names[: len(schema)]
            for batch in parquet.iter_batches(min(rows_max, ROW_GROUP_ROWS), columns=names):
                yield pa.Table.from_batches([batch]).rename_columns(schema.names).cast(schema)


def rows_at_most(parts: Iterable[Part]) -> float:
    """How many rows there can be, if those that go are not counted."""
    return sum(map(_rows, parts))


def _rows(part: Part) -> float:
    if part.table is not None:
        come = pc.max_element_wise(part.table.column(WEIGHT), 0)
        return float(pc.sum(come).as_py() or 0)
    weights = None if part.run is None else part.run.weights
    return float("inf") if weights is None else part.rows * max(0, weights[1])
