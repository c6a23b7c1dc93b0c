"""Widths of numbers, and of what arithmetic makes of them, against Spark's own analyzer."""

from __future__ import annotations

from itertools import product

import pytest
from pyspark.sql import SparkSession

from stepwell.plan.numbers import (
    DIGITS_MAX,
    INTEGER_BITS,
    INTEGER_VALUES,
    Width,
    average_width,
    bounded,
    common_width,
    decimal_text,
    product_width,
    quotient_width,
    sum_width,
    total_width,
    width_of,
)

pytestmark = pytest.mark.spark

TYPES = [
    *INTEGER_BITS,
    *(decimal_text(width) for width in [(1, 0), (1, 1), (9, 2), (12, 2), (18, 8), (19, 0)]),
    *(decimal_text(width) for width in [(20, 10), (28, 6), (37, 2), (38, 0), (38, 6), (38, 10)]),
    *(decimal_text(width) for width in [(38, 37), (38, 38)]),
]
PAIRS = [(a, b) for a, b in product(TYPES, TYPES) if "decimal" in a + b]


def width(type: str) -> Width:
    found = width_of(type)
    assert found is not None
    return found


def types_of(spark: SparkSession, expressions: list[str]) -> list[str]:
    """What Spark says the types are. Nothing is computed."""
    frame = spark.sql("SELECT " + ", ".join(f"{e} AS c{i}" for i, e in enumerate(expressions)))
    return [field.dataType.simpleString() for field in frame.schema]


def null(type: str) -> str:
    return f"CAST(NULL AS {type})"


@pytest.mark.parametrize("operator", ["+", "-", "*", "/"])
def test_arithmetic_makes_the_types_that_spark_makes(spark: SparkSession, operator: str) -> None:
    """S4: a result that is a digit wider or narrower than Spark's is another value."""
    rule = {
        "+": lambda a, b: bounded(sum_width(a, b)),
        "-": lambda a, b: bounded(sum_width(a, b)),
        "*": lambda a, b: bounded(product_width(a, b)),
        "/": quotient_width,
    }[operator]
    found = types_of(spark, [f"{null(a)} {operator} {null(b)}" for a, b in PAIRS])
    expected = [decimal_text(rule(width(a), width(b))) for a, b in PAIRS]
    assert dict(zip(PAIRS, found, strict=True)) == dict(zip(PAIRS, expected, strict=True))


def test_types_with_a_common_one_that_fits_have_the_one_that_spark_gives(
    spark: SparkSession,
) -> None:
    """S4: branches of a CASE and compared values first become one type."""
    fitting = [
        (a, b) for a, b in PAIRS if common_width(width(a), width(b))[0] <= DIGITS_MAX and a != b
    ]
    found = types_of(spark, [f"coalesce({null(a)}, {null(b)})" for a, b in fitting])
    expected = [decimal_text(common_width(width(a), width(b))) for a, b in fitting]
    assert dict(zip(fitting, found, strict=True)) == dict(zip(fitting, expected, strict=True))


def test_aggregates_make_the_types_that_spark_makes(spark: SparkSession) -> None:
    """S4: the accumulators of a sum are cast back to the type Spark gives it."""
    decimals = [type for type in TYPES if "decimal" in type]
    for call, rule in (("sum", total_width), ("avg", average_width)):
        found = types_of(spark, [f"{call}({null(type)})" for type in decimals])
        assert found == [decimal_text(rule(width(type))) for type in decimals]


def test_every_integer_fits_the_decimal_that_is_said_to_hold_it(spark: SparkSession) -> None:
    """BIGINT has 19 digits, though Spark computes with it as if it had 20: a column that becomes
    DECIMAL(19,0) must hold every value, and DECIMAL(18,0) must not be said to.
    """
    for type, bits in INTEGER_BITS.items():
        digits, _ = INTEGER_VALUES[type]
        least = -(2 ** (bits - 1))
        held, short = (
            f"try_cast(CAST('{least}' AS {type}) AS decimal({n},0))" for n in (digits, digits - 1)
        )
        (row,) = spark.sql(f"SELECT {held} AS held, {short} AS short").collect()
        assert (int(row.held), row.short) == (least, None), type
