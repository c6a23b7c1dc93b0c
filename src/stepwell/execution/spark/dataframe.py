"""Tables and views as DataFrames of the user's own Spark session."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from stepwell.errors import InvalidError
from stepwell.execution.executor import Executor
from stepwell.execution.spark.executor import SparkExecutor
from stepwell.execution.spark.failures import translated
from stepwell.execution.spark.session import within

__all__ = ["DataFrame", "SparkSession", "to_dataframe"]


def to_dataframe(spark: SparkSession | None, executor: Executor, name: str) -> DataFrame:
    """Copy the current rows of a table or view into a DataFrame.

    The rows are computed at once and held by Spark's executors, on their disks if memory does not
    suffice. So the frame does not change when the pipeline continues, and needs none of the
    pipeline's files. Without `spark` it belongs to the session that computes the views.
    """
    with translated():
        if isinstance(executor, SparkExecutor):
            frame = executor.frame(name).localCheckpoint()
            return frame if spark is None else within(spark, frame)
        if spark is None:
            raise InvalidError(
                "this pipeline computes its views without Spark, so it has no DataFrames",
                hint="give a session: stepwell.read(project).to_spark(spark, name)",
            )
        rows = executor.read(name)
        if rows.num_rows:
            return spark.createDataFrame(rows)
        # pyspark does not accept an Arrow table without chunks.
        return spark.createDataFrame([], from_arrow_schema(rows.schema))
