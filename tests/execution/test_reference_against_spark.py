"""The reference evaluator compared with Spark: random expressions, every aggregate, every window
call.

An oracle that errs makes right code look wrong, or worse. Expressions are drawn by type from a
fixed seed and sent to Spark many to a SELECT. Integers are BIGINT and decimals DECIMAL(18, 2):
what the evaluator takes a number for when the text does not say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stepwell.errors import UserCodeError
from stepwell.execution.reference.aggregates import aggregate
from stepwell.execution.reference.scalar import scalar
from stepwell.execution.reference.spark_values import Value, clean
from stepwell.execution.reference.window_calls import window
from stepwell.plan.expressions import parse
from tests.execution.conftest import spark

__all__ = ["spark"]  # A fixture is found in the module that uses it.

pytestmark = pytest.mark.spark

COLUMNS = {
    "id": "BIGINT",
    "g": "STRING",
    "i": "BIGINT",
    "j": "BIGINT",
    "m": "DECIMAL(18,2)",
    "n": "DECIMAL(18,2)",
    "x": "DOUBLE",
    "y": "DOUBLE",
    "s": "STRING",
    "t": "STRING",
    "b": "BOOLEAN",
    "c": "BOOLEAN",
    "d": "DATE",
    "e": "DATE",
}
VALUES: dict[str, list[Value]] = {
    "BIGINT": [None, 0, 1, -1, 2, 3, 7, -12, 1000, 123456],
    "DECIMAL(18,2)": [None, *map(Decimal, ("0.00", "1.00", "-1.50", "2.25", "3.33", "999.99"))],
    "DOUBLE": [None, math.nan, 0.0, -0.0, 1.0, -1.5, 2.5, 1e10, 1e-5, math.inf, -math.inf, 0.1],
    "STRING": [None, "", "a", "A", "ab", "abc", "a b ", "ä", "z%z", "12", "x_y"],
    "BOOLEAN": [None, True, False],
    "DATE": [None, date(2020, 2, 29), date(2021, 1, 1), date(1999, 12, 31)],
}


def drawn_rows(count: int, seed: int) -> list[dict[str, Value]]:
    random = Random(seed)
    return [
        {
            name: number if name == "id" else random.choice(VALUES[type])
            for name, type in COLUMNS.items()
        }
        for number in range(count)
    ]


def answers_of(
    spark: SparkSession, rows: list[dict[str, Value]], texts: Sequence[str], tail: str
) -> list[Any]:
    """What Spark says, all texts in one SELECT over the rows."""
    schema = ", ".join(f"{name} {type}" for name, type in COLUMNS.items())
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], schema)
    frame.createOrReplaceTempView("reference_rows")
    named = ", ".join(f"{text} AS c{place}" for place, text in enumerate(texts))
    return spark.sql(f"SELECT {named} FROM reference_rows {tail}").collect()


def agree(ours: Value, theirs: Value) -> bool:
    """Equal; a sum of floats may differ in the last digits."""
    if isinstance(ours, float) and isinstance(theirs, float):
        same = ours == theirs or (ours != ours and theirs != theirs)
        return same or math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    return bool(ours == theirs)


def disagreements(
    texts: Sequence[str], columns: Sequence[Sequence[Value]], answers: Sequence[Any]
) -> list[str]:
    """A line for each text of which a row came out otherwise than in Spark."""
    found = []
    for text, ours, theirs in zip(texts, columns, zip(*answers, strict=True), strict=True):
        both = zip(ours, map(clean, theirs), strict=True)
        different = next((pair for pair in both if not agree(*pair)), None)
        if different:
            found.append(f"{text}: reference {different[0]!r}, Spark {different[1]!r}")
    return found


# Random expressions, one method per type


class Draw:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def of(self, type: str, depth: int) -> str:
        makers: dict[str, Callable[[int], str]] = {
            "int": self.int,
            "decimal": self.decimal,
            "quotient": self.quotient,
            "double": self.double,
            "text": self.text,
            "flag": self.flag,
            "date": self.date,
        }
        return makers[type](depth)

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def any_type(self) -> str:
        return self.pick("int", "decimal", "double", "text", "flag", "date")

    def same(self, type: str, depth: int) -> str:
        """Forms that exist for every type."""
        one, two = self.of(type, depth - 1), self.of(type, depth - 1)
        flag = self.flag(depth - 1)
        return self.pick(
            f"CASE WHEN {flag} THEN {one} ELSE {two} END",
            f"CASE WHEN {flag} THEN {one} END",
            f"CASE {one} WHEN {two} THEN {one} ELSE {self.of(type, 0)} END",
            f"IF({flag}, {one}, {two})",
            f"COALESCE({one}, {two})",
            f"NVL({one}, {two})",
            f"NULLIF({one}, {two})",
            f"GREATEST({one}, {two})",
            f"LEAST({one}, {two})",
        )

    def int(self, depth: int) -> str:
        if depth <= 0:
            return self.pick("i", "j", "id", "2", "-3", "0", "10", "CAST(NULL AS BIGINT)")
        a, b = self.int(depth - 1), self.int(depth - 1)
        text = self.text(depth - 1)
        return self.pick(
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * 3)",
            f"({a} % {self.pick('7', '-7', 'NULLIF(j, 0)')})",
            f"({a} DIV {self.pick('7', '-7', 'NULLIF(j, 0)')})",
            f"pmod({a}, {self.pick('7', '-7')})",
            f"(SHIFTRIGHT({a}, 1) & 5)",
            f"-({a})",
            f"ABS({a})",
            f"ROUND({a}, -1)",
            f"FLOOR({self.double(depth - 1)})",
            f"CEIL({self.pick('2.5D', '-2.5D', 'i', 'x')})",
            f"LENGTH({text})",
            f"CAST({self.decimal(depth - 1)} AS BIGINT)",
            f"CAST({self.flag(depth - 1)} AS INT)",
            f"YEAR({self.date(depth - 1)})",
            f"MONTH({self.date(depth - 1)})",
            f"DAY({self.date(depth - 1)})",
            f"size(array({a}, {b}))",
            self.same("int", depth),
        )

    def decimal(self, depth: int) -> str:
        if depth <= 0:
            return self.pick("m", "n", "1.5", "-0.25", "12.00", "CAST(NULL AS DECIMAL(18,2))")
        a, b = self.decimal(depth - 1), self.decimal(depth - 1)
        return self.pick(
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} + {self.int(0)})",
            f"({self.pick('m', 'n')} * {self.pick('1.5', '3', 'i', 'n')})",
            f"({a} % 1.75)",
            f"-({a})",
            f"ABS({a})",
            f"ROUND({a}, 1)",
            f"ROUND({a})",
            f"FLOOR({a})",
            f"CEIL({a})",
            f"CAST({self.int(0)} AS DECIMAL(18,3))",
            f"CAST({a} AS DECIMAL(20,1))",
            self.same("decimal", depth),
        )

    def quotient(self, depth: int) -> str:
        """Of decimals. Inside another one, Spark may need more than 38 digits and drop some."""
        return self.pick(
            f"({self.pick('m', 'n', '1.5')} / {self.pick('3', '1.75', 'NULLIF(n, 0)')})",
            f"({self.pick('m', 'n')} / NULLIF({self.pick('i', 'j')}, 0))",
            f"({self.pick('3', '1.75', 'i')} / NULLIF({self.pick('m', 'n')}, 0))",
            "(CAST(m AS DECIMAL(10,1)) / CAST(3 AS DECIMAL(5,2)))",
            "(CAST(m AS DECIMAL(38,10)) / 7.5)",
        )

    def double(self, depth: int) -> str:
        if depth <= 0:
            return self.pick("x", "y", "1e0", "2.5D", "CAST(NULL AS DOUBLE)", "double('NaN')")
        a, b = self.double(depth - 1), self.double(depth - 1)
        return self.pick(
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * {b})",
            f"({a} + {self.int(depth - 1)})",
            f"({a} * {self.decimal(0)})",
            f"({self.int(depth - 1)} / {self.pick('7', '3', 'NULLIF(j, 0)')})",
            f"({a} / 3e0)",
            f"({a} % 0.75D)",
            f"-({a})",
            f"ABS({a})",
            f"ROUND({a}, 1)",
            f"CAST({self.int(depth - 1)} AS DOUBLE)",
            f"CAST({self.decimal(depth - 1)} AS DOUBLE)",
            self.same("double", depth),
        )

    def text(self, depth: int) -> str:
        if depth <= 0:
            return self.pick("s", "t", "g", "'a'", "''", "'It\\'s'", "CAST(NULL AS STRING)")
        a, b = self.text(depth - 1), self.text(depth - 1)
        return self.pick(
            f"UPPER({a})",
            f"LOWER({a})",
            f"TRIM({a})",
            f"CONCAT({a}, {b})",
            f"CONCAT({a}, {self.int(0)}, {b})",
            f"({a} || {b})",
            f"SUBSTRING({a}, {self.pick('0', '1', '2', '-2', '-5', '9')})",
            f"SUBSTRING({a}, {self.pick('0', '1', '2', '-2', '-5')}, {self.pick('0', '1', '3')})",
            f"CAST({self.int(depth - 1)} AS STRING)",
            f"CAST({self.pick('m', 'n', 'm + 1', 'm * n', '1.50')} AS STRING)",
            f"CAST({self.pick('x', 'y')} AS STRING)",
            f"CAST({self.flag(depth - 1)} AS STRING)",
            f"CAST({self.date(depth - 1)} AS STRING)",
            self.same("text", depth),
        )

    def date(self, depth: int) -> str:
        if depth <= 0:
            return self.pick("d", "e", "DATE '2020-02-29'", "CAST('2021-01-01' AS DATE)")
        return self.pick(
            f"date_add({self.date(depth - 1)}, {self.pick('1', '-40', '366')})",
            f"date_sub({self.date(depth - 1)}, 1)",
            self.same("date", depth),
        )

    def flag(self, depth: int) -> str:
        if depth <= 0:
            return self.pick("b", "c", "TRUE", "FALSE", "CAST(NULL AS BOOLEAN)")
        type = self.any_type()
        a, b, c = (self.of(type, depth - 1) for _ in range(3))
        p, q = self.flag(depth - 1), self.flag(depth - 1)
        s, t = self.text(depth - 1), self.text(depth - 1)
        operator = self.pick("=", "<>", "<", "<=", ">", ">=", "<=>", "!=", "==")
        mixed = self.random.sample(["int", "decimal", "double"], 2)
        return self.pick(
            f"({a} {operator} {b})",
            f"({self.of(mixed[0], depth - 1)} {operator} {self.of(mixed[1], depth - 1)})",
            f"({p} AND {q})",
            f"({p} OR {q})",
            f"(NOT {p})",
            f"({a} IS NULL)",
            f"({a} IS NOT NULL)",
            f"({p} IS TRUE)",
            f"({p} IS NOT FALSE)",
            f"({a} IS DISTINCT FROM {b})",
            f"({a} BETWEEN {b} AND {c})",
            f"({a} NOT BETWEEN {b} AND {c})",
            f"({a} IN ({b}, {c}))",
            f"({a} NOT IN ({b}, NULL))",
            f"(s LIKE {self.pick(*LIKES)})",
            f"(s NOT LIKE {self.pick(*LIKES)})",
            f"(sort_array(array({s}, {t})) {operator} split(s, 'a'))",
            f"(sequence(0, {self.int(0)} % 3) {operator} sort_array(array(1L, i)))",
            "(s LIKE 'z!%_' ESCAPE '!')",
            f"({self.pick('d', 'e')} {operator} '2020-12-31')",
            f"(array({s}, {t}) {operator} array({t}, s))",
            f"isnull({a})",
            f"isnan({self.double(depth - 1)})",
        )


LIKES = ("'a%'", "'%b%'", "'_'", "'z\\\\%z'", "'%'", "''", "'x\\\\_y'", "'a_ %'")


@pytest.mark.parametrize("seed", range(2))
def test_random_expressions_mean_what_spark_says(spark: SparkSession, seed: int) -> None:
    """A scalar that the oracle computes otherwise than Spark makes every comparison void."""
    draw = Draw(seed)
    rows = drawn_rows(25, seed)
    texts: list[str] = []
    columns: list[list[Value]] = []
    while len(texts) < 150:
        kind = draw.pick("quotient", draw.any_type(), draw.any_type(), draw.any_type())
        text = draw.of(kind, draw.random.randint(1, 3))
        try:
            column = [scalar(parse(text))(row) for row in rows]
        except UserCodeError:
            # Spark would raise as well, and take the other expressions down with it.
            continue
        texts.append(text)
        columns.append(column)
    answers = answers_of(spark, rows, texts, "ORDER BY id")
    assert disagreements(texts, columns, answers) == []


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "1.0 / 0",
        "1e0 / 0",
        "1 % 0",
        "1 DIV 0",
        "9223372036854775807 + 1",
        "-(-9223372036854775807 - 1)",
        "CAST('x' AS INT)",
        "CAST('1.5' AS INT)",
        "CAST(3000000000 AS INT)",
        "CAST(double('NaN') AS BIGINT)",
        "CAST(12345 AS DECIMAL(3,1))",
        "CAST('2021-02-29' AS DATE)",
        "CAST('maybe' AS BOOLEAN)",
        "FLOOR(1e30)",
        "raise_error('no')",
        "assert_true(1 > 2)",
        "assert_true(CAST(NULL AS BOOLEAN))",
        "'a' LIKE 'b\\\\c'",
    ],
)
def test_what_spark_refuses_to_compute_the_reference_refuses_too(
    spark: SparkSession, text: str
) -> None:
    """An oracle that answers where Spark raises would call a failed transaction a wrong one."""
    with pytest.raises(UserCodeError) as ours:
        scalar(parse(text))({})
    with pytest.raises(PySparkException) as theirs:
        spark.sql(f"SELECT {text}").collect()
    condition = str(theirs.value.getCondition()).partition(".")[0]
    assert condition in str(ours.value)


AGGREGATES = [
    "count(*)",
    "count(1)",
    *(f"count({a})" for a in ("i", "s, i", "NULL")),
    *(f"sum({a})" for a in ("i", "m", "x", "i * m", "CASE WHEN b THEN i END")),
    *(f"avg({a})" for a in ("i", "m", "x", "m + 0.125")),
    *(f"{f}({a})" for f in ("min", "max") for a in ("i", "m", "x", "s", "d", "b", "array(s, t)")),
    *(f"{f}(b)" for f in ("bool_and", "every", "bool_or", "any", "some", "count_if")),
    *(f"{f}({a})" for f in ("stddev", "stddev_pop", "var_samp", "var_pop") for a in "imx"),
    *("std(i)", "stddev_samp(i)", "variance(i)", "mean(i)"),
    *(f"{f}({a}, id)" for f in ("max_by", "min_by") for a in ("i", "s")),
    "max_by(id, IF(i > 1, id, NULL))",
    *(f"median({a})" for a in "im"),
    *(f"bit_{f}(i)" for f in ("and", "or", "xor")),
    "array_join(sort_array(collect_list(s)), '-')",
    "sum(i) FILTER (WHERE b)",
    "count(*) FILTER (WHERE x > 1)",
    "avg(m) FILTER (WHERE i IS NULL)",
]
DISTINCT_AGGREGATES = [
    *(f"count(DISTINCT {a})" for a in ("i", "m", "x", "s", "s, i", "x, b")),
    *("sum(DISTINCT i)", "sum(DISTINCT m)", "avg(DISTINCT i)", "sum(DISTINCT i) FILTER (WHERE b)"),
]
COLLECTIONS = ["collect_list(i)", "collect_set(x)", "collect_list(s)", "collect_set(s)"]


@pytest.mark.parametrize("grouping", ["", "GROUP BY g"], ids=["all", "by group"])
@pytest.mark.parametrize("seed", range(2))
def test_aggregates_mean_what_spark_says(spark: SparkSession, seed: int, grouping: str) -> None:
    """Groups of NULL, NaN and nothing are where aggregates of two engines part."""
    rows = drawn_rows(40, seed)
    groups: dict[Value, list[dict[str, Value]]] = {}
    for row in rows:
        groups.setdefault(row["g"] if grouping else None, []).append(row)
    texts = AGGREGATES + DISTINCT_AGGREGATES + COLLECTIONS
    asked = AGGREGATES + DISTINCT_AGGREGATES + [f"sort_array({text})" for text in COLLECTIONS]
    order = sorted(groups, key=lambda group: (group is not None, group))
    columns = [[aggregate(parse(text))(groups[group]) for group in order] for text in texts]
    tail = f"{grouping} ORDER BY g" if grouping else ""
    assert disagreements(texts, columns, answers_of(spark, rows, asked, tail)) == []


def test_aggregates_of_nothing_mean_what_spark_says(spark: SparkSession) -> None:
    """A global aggregate over nothing is one row, of NULL here and of zero there."""
    texts = AGGREGATES + DISTINCT_AGGREGATES + COLLECTIONS
    columns = [[aggregate(parse(text))([])] for text in texts]
    answers = answers_of(spark, drawn_rows(1, 0), texts, "WHERE FALSE")
    assert disagreements(texts, columns, answers) == []


FRAMES = (
    "",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS 1 PRECEDING",
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
)
TOTAL_ORDERS = ("i, id", "i DESC, id", "x DESC NULLS FIRST, id DESC", "s ASC NULLS LAST, m, id")
FRAMED = (
    *("sum(i)", "count(*)", "count(s)", "min(x)", "max(m)", "avg(m)", "bool_or(b)"),
    *("first_value(s)", "last_value(s)", "first(i, true)", "last(i) IGNORE NULLS", "any_value(d)"),
    *("nth_value(s, 2)", "nth_value(i, 2) IGNORE NULLS", "collect_list(s)", "stddev_pop(i)"),
)
# Blind to ties, so that they can be asked for with an order that leaves some.
RANKS = ("rank()", "dense_rank()", "percent_rank()", "cume_dist()", "sum(j)", "count(*)", "max(s)")
PLACES = (
    *("row_number()", "ntile(3)", "ntile(100)", "lag(i)", "lead(i)", "lag(s, 2, g)"),
    *("lead(i, 2, -1)", "lag(i, -1)", "lag(i) IGNORE NULLS", "lead(s, 2, 'none') IGNORE NULLS"),
)


def window_calls() -> Iterable[str]:
    random = Random(7)
    for call in FRAMED:
        for frame in FRAMES:
            yield f"{call} OVER (PARTITION BY g ORDER BY {random.choice(TOTAL_ORDERS)} {frame})"
    for call in RANKS:
        for ordering in ("i", "x DESC", "s DESC NULLS FIRST, b"):
            yield f"{call} OVER (PARTITION BY g ORDER BY {ordering})"
    for call in PLACES:
        yield f"{call} OVER (PARTITION BY g ORDER BY {random.choice(TOTAL_ORDERS)})"
    for call in ("sum(i)", "count(*)", "max(x)"):
        yield f"{call} OVER ()"
        yield f"{call} OVER (PARTITION BY b, i % 2)"


def test_window_calls_mean_what_spark_says(spark: SparkSession) -> None:
    """Frames, peers, NULL in the order: each has a default that is easy to get wrong."""
    rows = drawn_rows(60, 3)
    texts = list(window_calls())
    columns = [window(parse(text))(rows) for text in texts]
    answers = answers_of(spark, rows, texts, "ORDER BY id")
    assert disagreements(texts, columns, answers) == []
