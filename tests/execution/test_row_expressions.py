"""Expressions over rows compute what the evaluator over columns computes, which Spark confirms.

The expressions are the ones that `test_expressions` compares with Spark.
"""

from __future__ import annotations

import datetime
from collections import Counter
from contextlib import suppress
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot.errors import SqlglotError

from stepwell.execution.backend import CannotRunError, Declined, NotSupported
from stepwell.execution.local.expressions import ExpressionEvaluator, Value, arrow_of
from stepwell.execution.local.row_expressions import RowExpressions
from stepwell.lsm.row_values import to_array, to_list
from stepwell.plan.expressions import parse
from tests.execution.test_expressions import EXPRESSIONS, ROWS, TYPES, Draw

DATES = {
    "CAST('1996-02-29' AS DATE)": datetime.date(1996, 2, 29),
    "CAST('1998-12-01' AS DATE) - INTERVAL '90' DAY": datetime.date(1998, 9, 2),
}


def constant(sql: str) -> Value | None:
    return Value(pa.scalar(DATES[sql]), "date") if sql in DATES else None


def draw_and_compare(seed: int) -> Counter[str]:
    draw = Draw(seed)
    table = draw.table()
    types = list(TYPES.values())
    columns = {
        name: Value(data, type_)
        for (name, type_), data in zip(TYPES.items(), table.columns, strict=True)
    }
    rows = list(zip(*(to_list(c.combine_chunks()) for c in table.columns), [1] * ROWS, strict=True))
    counts = Counter[str]()
    for text in (draw.expression() for _ in range(EXPRESSIONS)):
        with suppress(SqlglotError):
            expr = parse(text, TYPES)
            evaluator = ExpressionEvaluator(constant)
            code = RowExpressions(evaluator, list(TYPES), types)
            try:
                theirs = evaluator.value(expr, columns)
            except NotSupported:
                with pytest.raises(NotSupported):
                    code.value(expr)
                continue
            except Declined:
                with pytest.raises(CannotRunError):
                    made = code.value(expr)
                    code.function(f"[{made.text} for r in rows]")(rows)
                counts["declined"] += 1
                continue
            try:
                made = code.value(expr)
            except NotSupported:
                counts["by column"] += 1
                continue
            assert made.type == theirs.type, text
            found = code.function(f"[{made.text} for r in rows]")(rows)
            mine = to_array(found, arrow_of(made.type)).to_pylist()
            assert list(map(repr_of, mine)) == list(map(repr_of, plain(theirs))), text
            if made.type == "boolean":
                test = code.function(f"[bool({code.condition(expr)}) for r in rows]")(rows)
                assert test == [bool(there) for there in plain(theirs)], text
            counts["same"] += 1
    return counts


def plain(value: Value) -> list[object]:
    return value.column(ROWS).to_pylist()  # type: ignore[no-any-return]


def repr_of(value: object) -> str:
    return "NaN" if value != value else repr(value)


@pytest.mark.parametrize(
    "seeds",
    [
        range(20),
        *(
            pytest.param(range(first, first + 20), marks=pytest.mark.slow)
            for first in range(20, 900, 20)
        ),
    ],
)
def test_an_expression_over_rows_is_the_same_over_columns(seeds: range) -> None:
    """S3: also which operations are declined, because Spark reports the error."""
    counts = sum((draw_and_compare(seed) for seed in seeds), Counter[str]())
    assert counts["declined"] > 5
    assert counts["same"] > 20 * counts["by column"]


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(f"s = {i}" for i in range(250)),
        "CASE " + " ".join(f"WHEN s = {i} THEN {i}" for i in range(250)) + " END = 1",
        " + ".join(["s"] * 250) + " = 1",
        " + ".join(["s"] * 700) + " = 1",
        " OR ".join(["s + 1 = 1"] * 700),
    ],
)
def test_an_expression_nested_deeper_than_python_allows_is_left_to_columns(text: str) -> None:
    """S3: Python refuses 200 nested parentheses, which must not end the transaction."""
    code = RowExpressions(ExpressionEvaluator(constant), ["s"], ["int"])
    for use in (code.condition, lambda expr: code.value(expr).text):
        try:
            found = code.function(f"[bool({use(parse(text, {'s': 'int'}))}) for r in rows]")
        except NotSupported:
            continue
        assert found([(1, 1), (-5, 1)]) == [True, False]


def test_a_chain_of_conditions_is_not_nested() -> None:
    """S3: long lists of conditions are common, and must not be left to columns."""
    code = RowExpressions(ExpressionEvaluator(constant), ["s"], ["int"])
    text = code.condition(parse(" OR ".join(f"s = {i}" for i in range(250)), {"s": "int"}))
    assert code.function(f"[r for r in rows if {text}]")([(249, 1), (250, 1)]) == [(249, 1)]


PARTS = ["", "a", "b", "ab", "aa", "ba"]


@given(st.lists(st.sampled_from(PARTS), min_size=2, max_size=5), st.text("ab\n", max_size=9))
def test_a_pattern_matches_what_the_evaluator_matches(parts: list[str], text: str) -> None:
    """S3: parts that overlap must not be found in the same letters."""
    expr = parse(f"s LIKE '{'%'.join(parts)}'", {"s": "string"})
    evaluator = ExpressionEvaluator(constant)
    code = RowExpressions(evaluator, ["s"], ["string"])
    [found] = code.function(f"[{code.value(expr).text} for r in rows]")([(text, 1)])
    [wanted] = evaluator.value(expr, {"s": Value(pa.array([text]), "string")}).data.to_pylist()
    assert found == wanted


def test_a_pattern_of_many_parts_takes_time_linear_in_the_text() -> None:
    """S3: with a regular expression, a megabyte took longer than anybody waits."""
    expr = parse("s LIKE '%a%b%c%d%'", {"s": "string"})
    code = RowExpressions(ExpressionEvaluator(constant), ["s"], ["string"])
    run = code.function(f"[{code.value(expr).text} for r in rows]")
    assert run([("ab" * 500_000, 1)]) == [False]


VALUES = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "decimal(38,4)": st.integers(-(10**38) + 1, 10**38 - 1),
    "decimal(12,2)": st.integers(-(10**12) + 1, 10**12 - 1),
    "date": st.integers(-(2**31), 2**31 - 1),
    "timestamp": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(),
    "binary": st.binary(),
    "boolean": st.booleans(),
}


@pytest.mark.parametrize("type_", VALUES)
@given(data=st.data())
def test_a_value_that_is_read_is_written_as_it_was(type_: str, data: st.DataObject) -> None:
    """S3: NULLs, slices, and decimals of more than 64 bits."""
    values = data.draw(st.lists(VALUES[type_] | st.none(), max_size=9))
    column = to_array(values, arrow_of(type_) if type_ != "binary" else pa.binary())
    column.validate(full=True)
    assert to_list(column) == values
    assert to_list(column.slice(1, 3)) == values[1:4]


def test_a_decimal_has_the_digits_that_arrow_has() -> None:
    """S3: the two forms would otherwise only agree with each other."""
    numbers = [Decimal("-1.50"), None, Decimal("99999999999999999999999999999999999.99")]
    column = pa.array(numbers, pa.decimal128(38, 2))
    assert to_list(column) == [-150, None, 10**37 - 1]
    assert to_array([-150, None, 10**37 - 1], column.type) == column
