"""The types that are checked without Spark, compared with Spark's analyser.

A complaint that is wrong would keep a good project from running, so all that is refused offline is
put to Spark, pair of types by pair of types. What Spark accepts has the type that was inferred.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from sqlglot import parse_one

from stepwell.errors import SqlError
from stepwell.sql.scope import DIALECT
from stepwell.sql.statements import Table, parse_statements
from stepwell.sql.type_mistakes import Columns, table_columns, type_mistakes
from stepwell.text import Source

COLUMNS = {
    "b": "BOOLEAN",
    "i": "INT",
    "n": "DECIMAL(12,2)",
    "s": "STRING",
    "x": "BINARY",
    "d": "DATE",
    "at": "TIMESTAMP",
    "iv": "INTERVAL DAY TO SECOND",
    "a": "ARRAY<INT>",
    "m": "MAP<STRING, INT>",
    "r": "STRUCT<a: INT>",
}
MORE = {
    "i1": "TINYINT",
    "i2": "SMALLINT",
    "i8": "BIGINT",
    "f4": "FLOAT",
    "f8": "DOUBLE",
    "n38": "DECIMAL(38,0)",
    "n20": "DECIMAL(20,10)",
    "tn": "TIMESTAMP_NTZ",
    "as_": "ARRAY<STRING>",
    "ad": "ARRAY<DATE>",
    "ar": "ARRAY<STRUCT<a: INT>>",
    "rs": "STRUCT<a: STRING>",
    "rd": "STRUCT<a: DATE>",
    "rr": "STRUCT<a: INT, b: INT>",
    "c": "CHAR(3)",
    "v": "VARCHAR(3)",
}
OTHERS = ["NULL", "'x'", "1", "1.5", "1e0", "true", "DATE '2020-01-01'", "INTERVAL 1 MONTH"]
PAIRS = [
    *("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / {b}", "{a} % {b}", "{a} div {b}"),
    *("{a} = {b}", "{a} < {b}", "{a} <=> {b}", "{a} AND {b}", "{a} & {b}", "{a} LIKE {b}"),
    *("coalesce({a}, {b})", "CASE WHEN true THEN {a} ELSE {b} END", "if(true, {a}, {b})"),
    *("{a} IN ({b})", "{a} BETWEEN {b} AND {b}", "greatest({a}, {b})", "nullif({a}, {b})"),
    *("nvl2(true, {a}, {b})", "array({a}, {b})", "CASE {a} WHEN {b} THEN 1 END", "{a}[{b}]"),
]
ONE = [
    *("-{a}", "~{a}", "NOT {a}", "{a} IS TRUE", "{a} IS NULL", "sum({a})", "avg({a})", "min({a})"),
    *("max({a})", "count({a})", "count(DISTINCT {a})", "sum(DISTINCT {a})", "count_if({a})"),
    *("bool_and({a})", "bool_or({a})", "stddev({a})", "variance({a})", "stddev_pop({a})"),
    *("any_value({a})", "first({a})", "collect_list({a})", "CASE WHEN {a} THEN 1 END"),
    *("if({a}, 1, 2)", "count(*) FILTER (WHERE {a})", "explode({a})", "posexplode({a})"),
    *("inline({a})", "{a}.a", "length({a})", "upper({a})", "lower({a})", "trim({a})", "abs({a})"),
    *("round({a})", "floor({a})", "ceil({a})", "sqrt({a})", "exp({a})", "ln({a})", "year({a})"),
    *("month({a})", "quarter({a})", "dayofmonth({a})", "day({a})", "dayofweek({a})", "size({a})"),
    *("sum({a}) OVER (PARTITION BY {a})", "row_number() OVER (ORDER BY {a})", "{a} RLIKE 'a'"),
    *("avg({a} + 1)", "sum(i) OVER (ORDER BY {a})", "named_struct('k', {a}).k"),
    *("array({a})[0]", "sum({a}) / count(*)", "to_date({a})", "hour({a})", "cardinality({a})"),
]
QUERIES = [
    *(
        "SELECT 1 AS k FROM t WHERE {a}",
        "SELECT i, count(*) AS k FROM t GROUP BY i HAVING max({a})",
    ),
    *("SELECT 1 AS k FROM t ORDER BY {a}", "SELECT DISTINCT {a} FROM t"),
    *("SELECT {a}, count(*) AS k FROM t GROUP BY {a}", "SELECT 1 AS k FROM t JOIN u ON t.{a}"),
    *("SELECT 1 AS k FROM t SORT BY {a}", "SELECT {a} FROM t UNION SELECT {a} FROM u"),
    *(
        "SELECT {a} FROM t EXCEPT SELECT {a} FROM u",
        "SELECT k FROM t LATERAL VIEW explode({a}) AS k",
    ),
    *("SELECT 1 AS k FROM t QUALIFY {a}", "SELECT {a} AS k FROM t HAVING k"),
    "SELECT {a} FROM t LEFT SEMI JOIN u ON t.{a}",
]
TWO = [
    "SELECT {a} FROM t UNION ALL SELECT {b} FROM u",
    "SELECT {a} FROM t EXCEPT SELECT {b} FROM u",
    "SELECT 1 AS k FROM t WHERE {a} IN (SELECT {b} FROM u)",
    "SELECT 1 AS k FROM t JOIN u ON t.{a} = u.{b}",
    "SELECT 1 AS k FROM t WHERE {a} > (SELECT max({b}) FROM u)",
    "SELECT 1 AS k FROM t JOIN (SELECT {b} AS {a} FROM u) q USING ({a})",
]
EVERY = pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.slow)])
"""One query of 23 takes seconds, all of them minutes."""


def declared(columns: dict[str, str]) -> str:
    listed = ", ".join(f"{name} {type}" for name, type in columns.items())
    return f"CREATE TABLE t ({listed}); CREATE TABLE u ({listed});"


@functools.cache
def tables() -> dict[str, Columns]:
    text = declared(COLUMNS | MORE)
    made = parse_statements(Source("t.sql", text))
    return {table.name: table_columns(table) for table in made if isinstance(table, Table)}


def offline(query: str) -> tuple[Columns, list[SqlError]]:
    """The columns and mistakes of a query over `t` and `u`."""
    (view,) = parse_statements(Source("p.sql", f"CREATE VIEW w AS {query}"))
    assert not isinstance(view, Table)
    return type_mistakes(view, parse_one(view.query, dialect=DIALECT), tables())


def made(names: Sequence[str]) -> Iterator[str]:
    """Every query over these columns."""
    operands = [*names, *OTHERS]
    for template in ONE:
        yield from (f"SELECT {template.format(a=a)} AS k FROM t" for a in operands)
    for template in PAIRS:
        for a in operands:
            yield from (f"SELECT {template.format(a=a, b=b)} AS k FROM t" for b in operands)
    for template in QUERIES:
        yield from (template.format(a=a) for a in names)
    for template in TWO:
        for a in names:
            yield from (template.format(a=a, b=b) for b in names)
    types = [*COLUMNS.values(), "BIGINT", "DOUBLE", "TIMESTAMP_NTZ", "ARRAY<DATE>"]
    for a in operands:
        yield from (f"SELECT CAST({a} AS {type}) AS k FROM t" for type in types)


@pytest.fixture(scope="module")
def asked(spark: SparkSession) -> Iterator[SparkSession]:
    nulls = ", ".join(f"CAST(NULL AS {type}) AS {name}" for name, type in (COLUMNS | MORE).items())
    for name in ("t", "u"):
        spark.sql(f"SELECT {nulls}").createOrReplaceTempView(name)
    yield spark
    for name in ("t", "u"):
        spark.catalog.dropTempView(name)


@EVERY
@pytest.mark.spark
def test_spark_refuses_all_that_is_refused_without_it(asked: SparkSession, every: int) -> None:
    """D10: a false alarm would keep a good project from running."""
    wrong = []
    refused = [query for query in list(made(list(COLUMNS)))[::every] if offline(query)[1]]
    for query in refused:
        try:
            asked.sql(query)
        except AnalysisException:
            continue
        wrong.append(f"{query}: {offline(query)[1][0].message}")
    assert not wrong, "\n".join(wrong)
    assert len(refused) > 5_000 / every


@EVERY
@pytest.mark.spark
def test_types_are_those_that_spark_gives(asked: SparkSession, every: int) -> None:
    """D10: a wrong type would be a wrong complaint one view later."""
    wrong: list[str] = []
    known = []
    for query in list(made([*COLUMNS, *MORE]))[::every]:
        columns, mistakes = offline(query)
        prefix, suffix = "SELECT ", " AS k FROM t"
        plain = query.startswith(prefix) and query.endswith(suffix)
        aggregate = any(f" {name}(" in query for name in ("sum", "avg", "min", "max", "count"))
        if plain and columns is not None and columns[0][1] is not None and not mistakes:
            one = query[len(prefix) : -len(suffix)]
            known.append((one, str(columns[0][1]), aggregate))

    def compare(some: Sequence[tuple[str, str, bool]]) -> None:
        listed = ", ".join(f"{one} AS k{at}" for at, (one, _, _) in enumerate(some))
        try:
            schema = asked.sql(f"SELECT {listed} FROM t").schema
        except AnalysisException:
            if len(some) > 1:
                compare(some[: len(some) // 2])
                compare(some[len(some) // 2 :])
            return
        for (one, type, _), found in zip(some, schema.fields, strict=True):
            if (spark_type := found.dataType.simpleString()) != type.replace("`", ""):
                wrong.append(f"{one}: {type} here, {spark_type} in Spark")

    for kind in (True, False):
        some = [item for item in known if item[2] is kind]
        for at in range(0, len(some), 200):
            compare(some[at : at + 200])
    assert not wrong, "\n".join(wrong)
    assert len(known) > 2_000 / every
