"""Values that are equal, and what becomes of them in Arrow and in Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stepwell.execution.spark.frames import schema_of
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.canonical import canonical, canonical_items

MINUS = -0.0

# A type, a value as it may come, and the text of it as it is stored.
VALUES: list[tuple[str, Any, str]] = [
    ("double", MINUS, "0.0"),
    ("double", float("nan"), "NaN"),
    ("double", -1.5, "-1.5"),
    ("float", MINUS, "0.0"),
    ("array<double>", [MINUS, None, 2.0], "[0.0, NULL, 2.0]"),
    ("array<double>", None, "NULL"),
    ("struct<`a b`:double,c:int>", {"a b": MINUS, "c": 1}, "{0.0, 1}"),
    ("struct<`a'\\`:double>", None, "NULL"),
    ("map<string,int>", [("b", 1), ("a", None), ("ab", 3)], "{a -> NULL, ab -> 3, b -> 1}"),
    ("map<string,int>", [], "{}"),
    ("map<string,int>", None, "NULL"),
    ("map<int,double>", [(10, MINUS), (9, 1.0), (-1, 2.0)], "{-1 -> 2.0, 9 -> 1.0, 10 -> 0.0}"),
    (
        "map<int,map<string,double>>",
        [(2, [("y", MINUS), ("x", 1.0)]), (1, None)],
        "{1 -> NULL, 2 -> {x -> 1.0, y -> 0.0}}",
    ),
    ("array<map<int,int>>", [[(2, 1), (1, 2)], None, []], "[{1 -> 2, 2 -> 1}, NULL, {}]"),
    (
        "map<struct<a:int,b:string>,int>",
        [({"a": 1, "b": "x"}, 1), ({"a": 1, "b": None}, 2), ({"a": 0, "b": "z"}, 3)],
        "{{0, z} -> 3, {1, NULL} -> 2, {1, x} -> 1}",
    ),
]


@pytest.mark.parametrize(("kind", "value", "text"), VALUES)
def test_equal_values_become_one(spark: SparkSession, kind: str, value: Any, text: str) -> None:
    """S4: a retraction must equal the inserted row, down to its representation."""
    schema = arrow_schema((kind,))
    column = pa.array([None, value, value, None], schema.field(0).type)
    table = pa.table([column, pa.array([1, 1, 1, 1])], schema=schema)
    given = spark.createDataFrame(table, schema=schema_of((kind,)))
    by_spark = given.selectExpr(*canonical_items((kind,)))
    for sliced in (table, table.slice(1, 2), table.slice(2)):
        here = spark.createDataFrame(canonical(sliced), schema=schema_of((kind,)))
        assert [text] == texts(here.where("c0 IS NOT NULL" if value is not None else "true"))
    found = texts(by_spark.where("c0 IS NOT NULL" if value is not None else "true"))
    assert found == [text]
    assert by_spark.schema["c0"].dataType == given.schema["c0"].dataType


def texts(frame: Any) -> list[str]:
    """The different texts of a column, where NULL has one."""
    rows = frame.selectExpr("coalesce(CAST(c0 AS STRING), 'NULL') AS c0").collect()
    return sorted({row.c0.replace("null", "NULL") for row in rows})


def test_what_lies_behind_a_null_is_left_out() -> None:
    """S4: Arrow allows elements where there is no list."""
    offsets, is_null = pa.array([0, 2, 4, 5], pa.int32()), pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(offsets, pa.array([1.0, 2.0, 3.0, MINUS, 5.0]), mask=is_null)
    keys = pa.array(["b", "a", "z", "y", "c"])
    maps = pa.MapArray.from_arrays(offsets, keys, pa.array([1, 2, 3, 4, 5]), mask=is_null)
    made = canonical(pa.table({"l": lists, "m": maps}))
    assert made.column("l").to_pylist() == [[1.0, 2.0], None, [5.0]]
    assert made.column("m").to_pylist() == [[("a", 2), ("b", 1)], None, [("c", 5)]]
    assert canonical(made.slice(1)).to_pylist() == made.slice(1).to_pylist()
