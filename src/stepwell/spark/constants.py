"""Constants of expressions that are computed here (`exact`): Spark is asked for each once."""

from __future__ import annotations

import datetime
from contextlib import suppress

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stepwell.spark.exact import Constants, Unknown, Value, arrow_of
from stepwell.spark.relations import type_of


def constants(spark: SparkSession) -> Constants:
    """Asks Spark once for each text."""
    known: dict[str, Value | None] = {}

    def constant(sql: str) -> Value | None:
        if sql not in known:
            known[sql] = None  # Also if it is an error, which then is the whole query's.
            with suppress(PySparkException, Unknown):
                frame = spark.sql(f"SELECT {sql}")
                type_ = type_of(frame.schema.fields[0].dataType)
                kind = arrow_of(type_)
                found = frame.collect()[0][0]
                if found is not None and not isinstance(found, float | datetime.datetime):
                    known[sql] = Value(pa.scalar(found, kind), type_)
        return known[sql]

    return constant
