"""Spark itself, about which values are equal and which Arrow types its columns have."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import to_arrow_schema

from stepwell.execution.spark.frames import schema_of
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.run_file import WEIGHT
from stepwell.plan.types import without_maps
from tests.lsm.equal_values import EQUAL, numbered

pytestmark = pytest.mark.spark

PLAIN = [
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz", "decimal(1,0)", "decimal(12,2)", "decimal(38,38)"),
    *("varchar(7)", "char(3)", "interval day to second", "interval hour", "variant", "void"),
]
NESTED = [
    *(f"array<{kind}>" for kind in PLAIN),
    *(f"map<string,{kind}>" for kind in PLAIN),
    *(f"struct<a:{kind},`b c`:int not null>" for kind in PLAIN),
    "map<struct<a:int>,array<map<int,struct<b:date not null>>>>",
    "array<array<array<timestamp>>>",
    "struct<a:struct<b:struct<c:decimal(10,4)>>>",
]


@pytest.mark.parametrize("kind", [*PLAIN, *NESTED])
def test_a_column_has_the_arrow_type_that_spark_gives_it(kind: str, spark: SparkSession) -> None:
    """S2: rows that need no cast cannot change on their way into Spark and out of it.

    Spark computes with strings where a column is VARCHAR or CHAR.
    """
    computed = re.sub(r"\b(?:var)?char\(\d+\)", "string", kind)
    assert arrow_schema((kind,)) == to_arrow_schema(schema_of((computed,)), timezone="UTC")


def test_spark_calls_equal_what_it_is_said_to(spark: SparkSession) -> None:
    """S4: the table that every other reader is held against must be Spark's own opinion."""
    for type_ in EQUAL:
        values, groups = zip(*numbered(type_), strict=True)
        schema = arrow_schema((type_,))
        table = pa.table([pa.array(values, schema.field(0).type), pa.array(groups)], schema=schema)
        frame = spark.createDataFrame(table, schema=schema_of((type_,)))
        value = without_maps("c0", type_)
        grouped = frame.groupBy(expr(value)).agg(expr(f"sort_array(collect_list({WEIGHT})) AS g"))
        expected = sorted([i] * len(group) for i, group in enumerate(EQUAL[type_]))
        assert sorted(list(row.g) for row in grouped.collect()) == expected, type_
