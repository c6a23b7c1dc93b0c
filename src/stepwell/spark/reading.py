"""Reading all of a table or view, or of a change, however large, without holding it.

Few rows come as one table. Many are written by Spark to files, and read from there a few at a time;
the files go when they have been read. A change stays one table, in a file that is mapped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from stepwell.engine.ports import Pieces
from stepwell.errors import UnavailableError
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


def mapped(run: RunFiles, schema: pa.Schema) -> pa.Table:
    """The rows of a run, weights and all, in a file that is mapped into memory.

    It takes room on the disk for as long as somebody holds the table, and has no name.
    """
    beside = run.files[0].parent if run.files else None
    try:
        with tempfile.NamedTemporaryFile(prefix="stepwell-change-", dir=beside) as file:
            with pa.OSFile(file.name, "wb") as out, pa.ipc.new_file(out, schema) as writer:
                for piece in _read(run, schema, ROW_GROUP_ROWS):
                    writer.write_table(piece)
            with pa.memory_map(file.name) as source:
                return pa.ipc.open_file(source).read_all()
    except OSError as error:
        raise UnavailableError(
            f"a change of {run.rows:,} rows cannot be kept in {beside}: {error}",
            hint="nothing was changed: make room on that disk, and try again",
            not_applied=True,
        ) from error


def _read(run: RunFiles, schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """In columns like these, the weights left out if they are not among them."""
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
