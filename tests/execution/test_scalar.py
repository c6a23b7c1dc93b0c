"""Scalar expressions on Python values: three-valued logic, types, what is refused.

What Spark says of the same is asked in `test_reference_against_spark`; here stand the traps by
name, and what must hold without Spark.
"""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal

import pytest

from stepwell.errors import BugError, InvalidError, UserCodeError
from stepwell.execution.reference.scalar import condition, scalar
from stepwell.execution.reference.spark_values import NAN, Value, clean, order
from stepwell.plan.expressions import parse

ROW = {"_c1": 7, "_c2": None, "_c3": "Text", "_c4": Decimal("2.50"), "_c5": math.nan, "_c6": True}


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("NULL AND FALSE", False),
        ("NULL AND TRUE", None),
        ("NULL OR TRUE", True),
        ("NULL OR FALSE", None),
        ("NOT NULL", None),
        ("NULL = NULL", None),
        ("NULL <=> NULL", True),
        ("1 <=> NULL", False),
        ("NULL IS NULL", True),
        ("1 IN (1, NULL)", True),
        ("2 IN (1, NULL)", None),
        ("2 NOT IN (1, NULL)", None),
        ("NULL IN (1)", None),
        ("1 BETWEEN 2 AND NULL", False),
        ("3 BETWEEN 2 AND NULL", None),
        ("CASE NULL WHEN NULL THEN 1 ELSE 2 END", 2),
        ("CASE WHEN NULL THEN 1 END", None),
        ("COALESCE(NULL, _c2, 3)", 3),
        ("NULLIF(1, NULL)", 1),
        ("NULLIF(1, 1)", None),
        ("GREATEST(1, NULL, 3)", 3),
        ("LEAST(NULL, NULL)", None),
        ("CONCAT('a', NULL)", None),
        ("_c2 LIKE '%'", None),
        ("NULL IS TRUE", False),
    ],
)
def test_null_is_neither_true_nor_false(sql: str, value: Value) -> None:
    """Taking NULL for FALSE is right until somebody writes NOT around it."""
    assert scalar(parse(sql))(ROW) is value or scalar(parse(sql))(ROW) == value


def test_a_condition_holds_only_if_it_is_true() -> None:
    """A filter that lets NULL through keeps rows that Spark drops."""
    assert condition(parse("_c1 = 7"))(ROW)
    assert not condition(parse("_c1 = 8"))(ROW)
    assert not condition(parse("_c2 = 7"))(ROW)
    assert not condition(parse("NOT _c2 = 7"))(ROW)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("_c5 = _c5", True),
        ("_c5 > double('Infinity')", True),
        ("_c5 IN (1e0, double('NaN'))", True),
        ("GREATEST(_c5, 1e0)", NAN),
        ("LEAST(_c5, 1e0)", 1.0),
        ("0e0 = -0e0", True),
        ("isnan(NULL)", False),
    ],
)
def test_nan_equals_itself_and_is_the_greatest(sql: str, value: Value) -> None:
    """Python says otherwise, and a bag keyed its way would hold every NaN row for itself."""
    assert scalar(parse(sql))(ROW) is value or scalar(parse(sql))(ROW) == value


def test_clean_values_are_keys_that_find_each_other() -> None:
    """Two NaN that Spark counts as one group must be one key, however they came about."""
    made = scalar(parse("double('Infinity') - double('Infinity')"))(ROW)
    assert {(made,), (clean(float("nan")),), (scalar(parse("_c5"))(ROW),)} == {(NAN,)}
    assert str(scalar(parse("-0e0"))(ROW)) == "0.0"
    assert clean([[float("nan")], -0.0]) == ((NAN,), 0.0)


def test_the_order_puts_null_first_and_nan_last() -> None:
    """The order decides windows, top rows, and what stands for a group in `first`."""
    values = [NAN, 2.0, None, math.inf, -1.0]
    assert sorted(values, key=order) == [None, -1.0, 2.0, math.inf, NAN]
    assert sorted([(1, None), (1, 0), (0, 5)], key=order) == [(0, 5), (1, None), (1, 0)]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("7 / 2", 3.5),
        ("-7 % 3", -1),
        ("-7 DIV 2", -3),
        ("pmod(-7, 3)", 2),
        ("1.5", Decimal("1.5")),
        ("1.5D", 1.5),
        ("1e0", 1.0),
        ("1.50 + 1", Decimal("2.50")),
        ("1.50 * 1.5", Decimal("2.250")),
        ("1 / 3.0", Decimal("0.333333")),
        ("CAST(1 AS DECIMAL(10,2)) / CAST(3 AS DECIMAL(10,2))", Decimal("0.3333333333333")),
        ("1.5 + 1e0", 2.5),
        ("ROUND(2.5D)", 3.0),
        ("ROUND(-2.345, 2)", Decimal("-2.35")),
        ("ROUND(1250, -2)", 1300),
        ("FLOOR(-1.5)", Decimal(-2)),
        ("CEIL(1.2D)", 2),
        ("CASE WHEN FALSE THEN 0.5 ELSE 1 END / 3", Decimal("0.333333")),
        ("COALESCE(_c1, 1e0) / 2", 3.5),
    ],
)
def test_a_number_has_the_type_and_scale_that_spark_gives_it(sql: str, value: Value) -> None:
    """A decimal that became a double compares equal in no group of decimals."""
    found = scalar(parse(sql))(ROW)
    assert (type(found), found) == (type(value), value)
    if isinstance(value, Decimal) and "/" not in sql:
        assert found.as_tuple() == value.as_tuple()


def test_decimals_are_not_cut_to_the_digits_python_likes() -> None:
    """Python's own context rounds to 28 digits, Spark's decimals have 38."""
    digits = "1234567890123456789012345678901234567.8"
    row = {"_c1": Decimal(digits)}
    assert scalar(parse("-_c1"))(row) == Decimal(f"-{digits}")
    assert scalar(parse("_c1 + 0.1"))(row) == Decimal(f"{digits[:-1]}9")


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("CAST(1e7 AS STRING)", "1.0E7"),
        ("CAST(123.0D AS STRING)", "123.0"),
        ("CAST(0.00012D AS STRING)", "1.2E-4"),
        ("CAST(1.50 AS STRING)", "1.50"),
        ("CAST(TRUE AS STRING)", "true"),
        ("CAST(' 12 ' AS INT)", 12),
        ("CAST(-1.9 AS INT)", -1),
        ("CAST('2020-02-29' AS DATE)", date(2020, 2, 29)),
        ("DATE '2020-02-29' > '2020-01-01'", True),
        ("TIMESTAMP '2020-01-05 01:02:03.5'", datetime(2020, 1, 5, 1, 2, 3, 500000)),
        ("CAST(TIMESTAMP '2020-01-05 01:02:03.5' AS STRING)", "2020-01-05 01:02:03.5"),
        ("DATE '2020-01-05' < TIMESTAMP '2020-01-05 00:00:01'", True),
        ("TRY_CAST('x' AS INT)", None),
        ("X'1F'", b"\x1f"),
        ("SUBSTRING('abc', -2, 1)", "b"),
        ("UPPER(_c3) || 1", "TEXT1"),
        ("size(array(1, NULL))", 2),
        ("named_struct('a', 1, 'b', _c2)", (1, None)),
        ("'50%' LIKE '50\\\\%'", True),
        ("'a\nb' LIKE 'a_b'", True),
    ],
)
def test_values_turn_into_each_other_as_in_spark(sql: str, value: Value) -> None:
    """Text made of a number is compared and grouped as text, so every digit of it counts."""
    found = scalar(parse(sql))(ROW)
    assert (type(found), found) == (type(value), value)


def test_a_branch_that_is_not_taken_is_not_computed() -> None:
    """The compiler guards a scalar subquery with raise_error, and it must only go off when due."""
    assert scalar(parse("CASE WHEN _c1 > 1 THEN 1 ELSE raise_error('two rows') END"))(ROW) == 1
    assert scalar(parse("COALESCE(_c1, raise_error('two rows'))"))(ROW) == 7
    assert scalar(parse("IF(_c1 = 0, 0, 14 / _c1)"))(ROW) == 2.0
    assert scalar(parse("_c1 = 0 AND 1 / 0 > 1"))(ROW) is False
    with pytest.raises(UserCodeError, match="two rows"):
        scalar(parse("CASE WHEN _c1 > 9 THEN 1 ELSE raise_error('two rows') END"))(ROW)
    with pytest.raises(UserCodeError, match="not good"):
        scalar(parse("assert_true(_c2, 'not good')"))(ROW)


@pytest.mark.parametrize(
    "sql",
    [
        "soundex(_c3)",
        "rand()",
        "current_date()",
        "_c1 = '7'",
        "_c1 + '7'",
        "_c6 + 1",
        "NOT _c1",
        "_c1 AND TRUE",
        "CAST(_c1 AS ARRAY<INT>)",
        "CAST(_c1 AS FLOAT)",
        "_c3 LIKE ANY ('a', 'b')",
        "trim(LEADING 'T' FROM _c3)",
        "_c1 IN (SELECT 1)",
        "_c1 BETWEEN SYMMETRIC 9 AND 1",
        "t._c1",
        "round(_c1, 1, 2)",
        "INTERVAL 1 DAY",
    ],
)
def test_what_is_not_known_is_refused_and_not_guessed(sql: str) -> None:
    """An oracle that guesses is worse than none: a modifier overlooked is a wrong answer."""
    with pytest.raises(InvalidError):
        scalar(parse(sql))(ROW)


def test_a_column_that_is_not_there_is_a_bug() -> None:
    """Taken for NULL, a slip of the compiler would look like data."""
    with pytest.raises(BugError, match="_c99"):
        scalar(parse("_c99 + 1"))(ROW)
