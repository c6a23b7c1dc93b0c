"""Columns have the Arrow types that Spark gives them; asked of Spark's own Python code, no JVM."""

from __future__ import annotations

import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from stepwell.lsm.arrow_types import arrow_type, spark_type
from stepwell.plan.types import parse_type

STRUCT = spark.StructType(
    [
        spark.StructField("a", spark.IntegerType()),
        spark.StructField("b", spark.ArrayType(spark.StringType())),
    ]
)
TYPES = {
    "boolean": spark.BooleanType(),
    "tinyint": spark.ByteType(),
    "smallint": spark.ShortType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "string": spark.StringType(),
    "varchar(7)": spark.StringType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
    "decimal(38,10)": spark.DecimalType(38, 10),
    "array<int>": spark.ArrayType(spark.IntegerType()),
    "map<string,bigint>": spark.MapType(spark.StringType(), spark.LongType()),
    "struct<a:int,b:array<string>>": STRUCT,
}


@pytest.mark.parametrize("type", TYPES)
def test_a_column_has_the_arrow_type_that_spark_gives_it(type: str) -> None:
    """S2: rows that need no cast cannot change on their way into Spark."""
    assert arrow_type(parse_type(type)) == to_arrow_type(TYPES[type], timezone="UTC")


@pytest.mark.parametrize("type", TYPES)
def test_a_column_of_an_answer_has_the_type_that_it_was_declared_with(type: str) -> None:
    """S2: DESCRIBE shows the type of a column of an answer, of which only Arrow's is known."""
    declared = "string" if type.startswith("varchar") else type
    assert spark_type(arrow_type(parse_type(type))) == declared
