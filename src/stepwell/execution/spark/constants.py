"""Constants for the local expression evaluator: Spark evaluates each of them once."""

from __future__ import annotations

import datetime
from contextlib import suppress

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stepwell.execution.backend import NotSupported
from stepwell.execution.local.expressions import Constants, Value, arrow_of
from stepwell.execution.spark.frames import type_of


def constants(spark: SparkSession) -> Constants:
    """A function that has Spark evaluate each text once."""
    known: dict[str, Value | None] = {}

    def constant(sql: str) -> Value | None:
        if sql not in known:
            known[sql] = None  # Also if it is an error, which the whole query then raises.
            with suppress(PySparkException, NotSupported):
                frame = spark.sql(f"SELECT {sql}")
                type_ = type_of(frame.schema.fields[0].dataType)
                kind = arrow_of(type_)
                found = frame.collect()[0][0]
                if found is not None and not isinstance(found, float | datetime.datetime):
                    known[sql] = Value(pa.scalar(found, kind), type_)
        return known[sql]

    return constant
