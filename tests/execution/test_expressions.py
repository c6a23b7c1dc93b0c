"""S3: what is computed without Spark is what Spark computes, to the last digit.

Random expressions over columns with NULLs and the largest numbers there are. Whatever `exact` gives
an answer to, Spark must give the same one; what it refuses is not tested here, except that it
must not be everything.
"""

from __future__ import annotations

import datetime
import random
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlglot.errors import SqlglotError

from stepwell.execution.backend import CannotRunError
from stepwell.execution.local.expressions import ExpressionEvaluator, Value
from stepwell.execution.local.operators import PlanEvaluator
from stepwell.execution.spark.constants import constants
from stepwell.execution.spark.frames import type_of
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.plan.expressions import column, parse
from stepwell.plan.nodes import Accumulate, Leaf, When
from stepwell.plan.sums import Accumulator

TYPES = {
    "t": "tinyint",
    "h": "smallint",
    "i": "int",
    "j": "int",
    "b": "bigint",
    "p": "decimal(15,2)",
    "q": "decimal(4,4)",
    "r": "decimal(38,6)",
    "n": "decimal(38,0)",
    "s": "string",
    "u": "string",
    "d": "date",
    "e": "date",
    "f": "boolean",
    "x": "double",
    "y": "binary",
    "z": "binary",
}
NUMBERS = "thijbpqrn"
ROWS = 60
EXPRESSIONS = 60


class Draw:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self, depth: int) -> str:
        kind = self.random.randrange(4 if depth <= 0 else 12)
        if kind < 3:
            return self.random.choice(NUMBERS)
        if kind == 3:
            return self.random.choice(["0", "1", "7", "100", "3000000000", "0.5", "12.345", "1.0"])
        if kind < 8:
            sign = self.random.choice(["+", "-", "*", "*", "/"])
            return f"({self.number(depth - 1)} {sign} {self.number(depth - 1)})"
        if kind == 8:
            return f"(-{self.number(depth - 1)})"
        if kind == 9:
            to = self.random.choice(
                ["BIGINT", "INT", "DECIMAL(38,6)", "DECIMAL(20,0)", "DECIMAL(12,3)", "DOUBLE"]
            )
            return f"CAST({self.number(depth - 1)} AS {to})"
        if kind == 10:
            return f"CASE {self.number(0)} WHEN {self.number(0)} THEN {self.number(depth - 1)} END"
        return self.case(self.number, depth)

    def case(self, make: Any, depth: int) -> str:
        if self.random.random() < 0.3:
            return f"IF({self.test(depth - 1)}, {make(depth - 1)}, {make(depth - 1)})"
        otherwise = self.random.choice(["", "ELSE NULL", f"ELSE {make(depth - 1)}"])
        more = f"WHEN {self.test(depth - 1)} THEN {make(depth - 1)}"
        return (
            f"CASE WHEN {self.test(depth - 1)} THEN {make(depth - 1)} "
            f"{more if self.random.random() < 0.4 else ''} {otherwise} END"
        )

    def text(self, depth: int) -> str:
        if depth > 0 and self.random.random() < 0.2:
            return self.case(self.text, depth)
        if depth > 0 and self.random.random() < 0.2:
            start, length = self.random.choice([1, 1, 2, 3, 9, 0]), self.random.randrange(4)
            return self.random.choice(
                [
                    f"SUBSTRING({self.text(depth - 1)}, {start}, {length})",
                    f"substr({self.text(depth - 1)}, {start})",
                    f"SUBSTRING({self.text(depth - 1)} FROM {start} FOR {length})",
                    f"SUBSTRING({self.text(depth - 1)}, -{start}, {length})",
                ]
            )
        return self.random.choice(["s", "u", "'a'", "'PROMO'", "''"])

    def date(self, depth: int) -> str:
        return self.random.choice(
            ["d", "e", "DATE '1996-02-29'", "DATE '1998-12-01' - INTERVAL '90' DAY"]
        )

    def test(self, depth: int) -> str:
        kind = self.random.randrange(5 if depth <= 0 else 10)
        compare = self.random.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        if kind == 0:
            return f"{self.number(0)} {compare} {self.number(depth - 1)}"
        if kind == 1:
            return f"{self.text(depth - 1)} {compare} {self.text(depth - 1)}"
        if kind == 2:
            return self.random.choice(
                [f"{self.date(0)} {compare} {self.date(0)}", f"y {compare} z"]
            )
        if kind == 3:
            return f"({self.random.choice([self.number, self.text, self.date])(0)} IS NULL)"
        if kind == 4:
            return self.random.choice(
                ["f", "NOT f", "TRUE", "(x IS NOT NULL)", "f = s NOT LIKE 'P%'", "f = i < j"]
            )
        if kind == 5:
            return f"({self.test(depth - 1)} AND {self.test(depth - 1)})"
        if kind == 6:
            return f"({self.test(depth - 1)} OR {self.test(depth - 1)})"
        if kind == 7:
            return f"NOT ({self.test(depth - 1)})"
        if kind == 8:
            value = self.number(0)
            return self.random.choice(
                [
                    f"{value} BETWEEN {self.number(0)} AND {self.number(0)}",
                    f"{value} IN (1, 2, 7)",
                    "s IN ('a', 'PROMO')",
                    f"u NOT IN ('', {self.text(0)})",
                ]
            )
        pattern = self.random.choice(
            ["PROMO%", "%b", "%a%", "a", "a_", "%", "", "a%b", "%R%S%", "P%%D", "\\\\%"]
        )
        return f"s {self.random.choice(['LIKE', 'NOT LIKE'])} '{pattern}'"

    def expression(self) -> str:
        make = self.random.choice([self.number, self.number, self.test, self.text, self.year])
        return str(make(3))

    def year(self, depth: int) -> str:
        return self.random.choice(["EXTRACT(YEAR FROM d)", "year(e)", "EXTRACT(MONTH FROM d)"])

    def value(self, type_: str) -> Any:
        if self.random.random() < 0.15:
            return None
        if type_ in ("tinyint", "smallint", "int", "bigint"):
            bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[type_]
            return self.random.choice(
                [0, 1, -1, 7, 2**bits - 1, -(2**bits), self.random.randrange(-100, 100)]
                if self.random.random() < 0.05
                else [0, 1, -1, 7, self.random.randrange(-100, 100)]
            )
        if type_.startswith("decimal"):
            kind = arrow_schema((type_,)).field(0).type
            digits = kind.precision if self.random.random() < 0.05 else min(kind.precision, 5)
            return Decimal(self.random.randrange(-(10**digits) + 1, 10**digits)).scaleb(-kind.scale)
        if type_ == "string":
            return self.random.choice(
                ["", "a", "b", "ab", "PROMO", "PROMO BRUSHED", "ä%", "A", "P\nRS.", "a.b\n"]
            )
        if type_ == "date":
            return datetime.date(1990, 1, 1) + datetime.timedelta(self.random.randrange(5000))
        if type_ == "boolean":
            return self.random.random() < 0.5
        if type_ == "binary":
            return self.random.choice([b"", b"a", b"ab", b"a\0", b"\x7f", b"\x80", b"\xff"])
        return self.random.choice([0.0, -0.0, 1.5, float("nan"), float("inf")])

    def table(self) -> pa.Table:
        schema = arrow_schema(tuple(TYPES.values()))
        columns = {
            name: pa.array([self.value(type_) for _ in range(ROWS)], schema.field(i).type)
            for i, (name, type_) in enumerate(TYPES.items())
        }
        return pa.table(columns)


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 200))]


@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_computed_here_is_what_spark_computes(
    spark: SparkSession, seed: int, ansi: bool
) -> None:
    """S3, S6"""
    draw = Draw(seed * 2 + ansi)
    table = draw.table()
    frame = spark.createDataFrame(table)
    columns = {
        name: Value(data, type_)
        for (name, type_), data in zip(TYPES.items(), table.columns, strict=True)
    }
    known: dict[str, Value] = {}
    spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    try:
        ours = ExpressionEvaluator(constants(spark))
        for text in (draw.expression() for _ in range(EXPRESSIONS)):
            with suppress(CannotRunError, SqlglotError):
                known[text] = ours.value(parse(text, TYPES), columns)
        assert len(known) > EXPRESSIONS // 6
        theirs = frame.selectExpr(*(f"{text} AS r{i}" for i, text in enumerate(known)))
        found = theirs.toArrow()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
    for i, (text, value) in enumerate(known.items()):
        mine, real = value.column(ROWS).to_pylist(), found.column(i).to_pylist()
        assert list(map(repr_of, mine)) == list(map(repr_of, real)), text
        kind = type_of(theirs.schema.fields[i].dataType)
        assert value.type == kind, text


def repr_of(value: object) -> str:
    return "NaN" if value != value else repr(value)


@pytest.mark.parametrize(
    "text",
    ["upper(s)", "x + 1", "x > 1", "i % 2", "r * r", "s || u", "2147483647 + i", "b * b", "p / 0"],
)
def test_anything_else_is_for_spark(spark: SparkSession, text: str) -> None:
    """S3: only what is certain is computed here; what fails, fails in Spark's words."""
    for_spark(spark, text)


@pytest.mark.parametrize(
    "text",
    [
        "f = f < f",
        "f = s LIKE 'P%'",
        "s = 'a\\tb'",
        "i + -2147483648",
        "f = f IN (TRUE, FALSE)",
        "f = f NOT IN (TRUE, FALSE)",
        "s LIKE 'a\\tb%'",
    ],
)
def test_what_spark_may_read_otherwise_is_for_spark(spark: SparkSession, text: str) -> None:
    """S3: comparisons of comparisons, backslashes, the least number."""
    for_spark(spark, text)


def for_spark(spark: SparkSession, text: str) -> None:
    most = {"i": 2**31 - 1, "b": 2**63 - 1, "r": Decimal("1e31"), "p": Decimal(1)}
    schema = arrow_schema(tuple(TYPES.values()))
    columns = {
        name: Value(pa.array([most.get(name)], schema.field(i).type), type_)
        for i, (name, type_) in enumerate(TYPES.items())
    }
    with pytest.raises(CannotRunError):
        ExpressionEvaluator(constants(spark)).value(parse(text, TYPES), columns)


def test_decimals_that_have_other_digits_are_for_spark() -> None:
    """S3, S6: a session may say that no digits are lost, and then other digits are."""
    columns = {"p": Value(pa.array([Decimal("1.50")], pa.decimal128(15, 2)), "decimal(15,2)")}
    other = ExpressionEvaluator(lambda sql: None, decimals=False)
    for text in ("p * p", "p + 1", "p / p"):
        assert ExpressionEvaluator(lambda sql: None).value(parse(text, "p"), columns)
        with pytest.raises(CannotRunError):
            other.value(parse(text, "p"), columns)
    assert other.value(parse("p > 1", "p"), columns).data.to_pylist() == [True]


def test_a_constant_is_asked_for_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: also one that is an error, which is for Spark to say of the whole query."""
    asked: list[str] = []
    sql = spark.sql
    monkeypatch.setattr(spark, "sql", lambda text: (asked.append(text), sql(text))[1])
    ask = constants(spark)
    for _ in range(3):
        found = ask("DATE '1998-12-01' - INTERVAL '90' DAY")
        assert found is not None
        assert (found.data.as_py(), found.type) == (datetime.date(1998, 9, 2), "date")
        assert ask("CAST('x' AS INT)") is None
    assert len(asked) == 2


@pytest.mark.parametrize("type_", ["bigint", "decimal(38,0)"])
@pytest.mark.parametrize("weight", [1, -1, 2, 0])
def test_a_sum_that_may_be_too_large_is_for_spark(
    spark: SparkSession, type_: str, weight: int
) -> None:
    """S3: also where a row is there more than once."""
    kind = arrow_schema((type_,)).field(0).type
    for value, fits in ((5, True), (2**62 if type_ == "bigint" else 9 * 10**37, False)):
        rows = pa.table(
            {
                "c0": pa.array([Decimal(value)] * 2, pa.decimal128(38, 0)).cast(kind),
                "w": pa.array([weight] * 2),
            }
        )
        leaf = Leaf("t", ("v",), When.DELTA)
        plan = Accumulate(leaf, (), "n", (("s", Accumulator(column("v"), None, type_)),))
        ours = PlanEvaluator(
            lambda _, rows=rows: (rows, (type_,)), ExpressionEvaluator(lambda sql: None)
        )
        if fits or not weight:
            made, _ = ours.added(plan)
            assert [int(c[0].as_py()) for c in made.columns] == [2 * weight, 2 * weight * value, 1]
        else:
            with pytest.raises(CannotRunError):
                ours.added(plan)


def test_a_branch_fails_only_for_rows_that_use_it() -> None:
    """S3: the average of a group without values is NULL, and not a division by zero."""
    columns = {
        "x": Value(pa.array([7, None, 0, 5], pa.int64()), "bigint"),
        "n": Value(pa.array([2, 0, 0, None], pa.int64()), "bigint"),
    }
    ours = ExpressionEvaluator(lambda _: None)
    text = "CASE WHEN n = 0 THEN NULL ELSE CAST(x AS DOUBLE) / n END"
    found = ours.value(parse(text, columns), columns)
    assert found.data.to_pylist() == [3.5, None, None, None]
    assert found.type == "double"
    one = {**columns, "x": Value(pa.array([7, 1, 0, 5], pa.int64()), "bigint")}
    with pytest.raises(CannotRunError):
        ours.value(parse("CASE WHEN n = 5 THEN NULL ELSE CAST(x AS DOUBLE) / n END", one), one)
    without = "CAST(x AS DOUBLE) / n"
    only_null = {name: Value(value.data.slice(1, 1), value.type) for name, value in columns.items()}
    assert ours.value(parse(without, columns), only_null).data.to_pylist() == [None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CASE WHEN n > 0 THEN x * x ELSE 0 END", [0, 9, 16]),
        ("CASE WHEN n > 0 THEN CAST(x AS INT) ELSE 0 END", [0, 3, 4]),
        ("CASE WHEN n > 0 THEN 6 / CASE WHEN x IS NULL THEN 0 ELSE n END END", [None, 3.0, 3.0]),
    ],
)
def test_a_branch_is_computed_only_for_rows_that_use_it(text: str, expected: list[object]) -> None:
    """S3: an error of Arrow counts like one that is raised here, and unused rows are not NULL."""
    data = {"x": pa.array([2**62, 3, 4], pa.int64()), "n": pa.array([0, 2, 2], pa.int64())}
    columns = {name: Value(values, "bigint") for name, values in data.items()}
    found = ExpressionEvaluator(lambda _: None).value(parse(text, columns), columns)
    assert found.data.to_pylist() == expected


def test_a_branch_that_overflows_where_it_is_used_is_for_spark() -> None:
    """S3"""
    columns = {"x": Value(pa.array([2**62, 3], pa.int64()), "bigint")}
    expr = parse("CASE WHEN x > 0 THEN x * x ELSE 0 END", columns)
    with pytest.raises(CannotRunError):
        ExpressionEvaluator(lambda _: None).value(expr, columns)
