"""Whole columns are read as their values are one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.connectors.columns import fit_column
from stepwell.connectors.shape import ShapeColumn, shape_of
from stepwell.connectors.values import Unfit, fit, read_text
from tests.connectors.tables import table

TYPES = [
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL(6,2)", "DECIMAL(38,10)", "FLOAT", "DOUBLE"),
    *("BOOLEAN", "STRING", "VARCHAR(3)", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY"),
]
NUMBERS = st.from_regex(r"[+-]?[0-9]{0,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
DAYS = st.from_regex(r"[0-9]{4}-[0-1][0-9]-[0-3][0-9]", fullmatch=True)
TIMES = st.from_regex(
    r"(0000|0001|9999|2026)-[0-1][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-6][0-9]:[0-6][0-9]"
    r"(\.[0-9]{1,9})?(Z|[+-][0-2][0-9]:?[0-9][0-9])?",
    fullmatch=True,
)
WORDS = st.sampled_from(
    [
        *(
            "true",
            "TRUE",
            "t",
            "1",
            "",
            " 1",
            "1 ",
            "0x10",
            "1_0",
            "nan",
            "NaN",
            "-inf",
            "Infinity",
        ),
        *("1e400", "-0", "-0.0", "007", "٣", "1,5", "AAA=", "äöü", "long", "2026-1-2", "null"),
    ]
)
TEXTS = st.one_of(NUMBERS, DAYS, TIMES, WORDS, st.text(max_size=4))


def column(type: str, *, nullable: bool = True) -> ShapeColumn:
    (made,) = shape_of(table(f"CREATE TABLE t (a {type}{'' if nullable else ' NOT NULL'})")).columns
    return made


def check(values: pa.Array, made: ShapeColumn, *, text: bool) -> None:
    """A supported column gives the same values as single records."""
    fitted, doubt = fit_column(values, made, text=text)
    assert fitted.type == made.arrow
    fitted.validate(full=True)
    for place, value in enumerate(values.to_pylist()):
        try:
            alone = read_text(value, made.kind) if text and value is not None else None
            alone = fit(value, made.kind) if not text else alone
        except Unfit:
            assert doubt is not None
            assert doubt[place].as_py(), f"{value!r} was taken for {fitted[place]}"
        else:
            if doubt is None or not doubt[place].as_py():
                assert str(fitted[place].as_py()) == str(pa.scalar(alone, made.arrow).as_py())


@pytest.mark.parametrize("type", TYPES)
@given(texts=st.lists(st.one_of(TEXTS, st.none()), min_size=1, max_size=4))
def test_a_column_of_texts(type: str, texts: list[str | None]) -> None:
    """J13: a value must not become good, bad or another one because of its neighbours."""
    check(pa.array(texts, pa.string()), column(type), text=True)


@pytest.mark.parametrize("type", TYPES)
@given(texts=st.lists(st.one_of(TEXTS, st.none()), min_size=1, max_size=4))
def test_a_column_of_json_texts(type: str, texts: list[str | None]) -> None:
    """J13: in JSON a text is a text, and only some types are written as one."""
    check(pa.array(texts, pa.string()), column(type), text=False)


GIVEN = [
    pa.array([1, -128, 127, 128, None], pa.int16()),
    pa.array([2**31, 2**53 + 1, -(2**63), 2**63 - 1], pa.int64()),
    pa.array([0, 2**64 - 1], pa.uint64()),
    pa.array([0.5, 1.0, -0.0, 1e300, float("nan"), float("inf"), None, 0.1], pa.float64()),
    pa.array([0.5, 0.1, 16777217.0], pa.float32()),
    pa.array(["1.50", "9999.99", "10000.00"], pa.string()).cast(pa.decimal128(10, 2)),
    pa.array([True, None, False]),
    pa.array([0, 1_000_000_001, None], pa.timestamp("ns")),
    pa.array([0, -1], pa.timestamp("ms", "Europe/Berlin")),
    pa.array([0, 20_000], pa.date32()),
    pa.array([0, 86_400_000], pa.date64()),
    pa.array([b"a", b"\xff", None], pa.binary()),
    pa.array(["a", "abcd"], pa.large_string()),
    pa.array(["a", "b", "a"]).dictionary_encode(),
]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("values", GIVEN, ids=lambda values: str(values.type))
def test_a_column_of_any_arrow_type(values: pa.Array, type: str) -> None:
    """Scenario 90, J13: a Parquet file has types of its own, which fit exactly or not at all."""
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns" and "TIMESTAMP" in type:
        fitted, doubt = fit_column(values, column(type), text=False)
        assert doubt is None
        assert fitted.cast(pa.int64()).to_pylist() == [0, 1_000_000, None]
        return
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        values = values.slice(0, 1)  # Python has no nanoseconds to compare with.
    check(values, column(type), text=False)


def test_null_in_a_not_null_column_is_left_to_single_records() -> None:
    """J13: a key that is NULL is found in the column, before anybody looks at its row."""
    _, doubt = fit_column(pa.array([1, None]), column("INT", nullable=False), text=False)
    assert doubt is not None
    assert doubt.to_pylist() == [False, True]
