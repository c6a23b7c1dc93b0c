"""The checksum of rows: the same for any order and chunking, another for any other rows."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import InvalidError
from stepwell.lsm import checksum
from stepwell.lsm.checksum import add_checksums, checksum_rows
from stepwell.model import NO_CHECKSUM

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "x": st.none() | st.floats(),
            "s": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            "d": st.none() | st.decimals(-(10**35), 10**35, places=2),
            "l": st.none() | st.lists(st.none() | st.integers(0, 3), max_size=3),
            "m": st.none() | st.dictionaries(st.integers(0, 3), st.text("ab"), max_size=3),
            "t": st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 3)}),
        }
    ),
    max_size=6,
)
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "x": pa.float64(),
        "s": pa.string(),
        "d": pa.decimal128(38, 2),
        "l": pa.list_(pa.int64()),
        "m": pa.map_(pa.int64(), pa.string()),
        "t": pa.struct({"a": pa.int64()}),
    }
)


def table(rows: list[dict[str, object]]) -> pa.Table:
    pairs = [{**row, "m": None if row["m"] is None else list(row["m"].items())} for row in rows]
    return pa.Table.from_pylist(pairs, SCHEMA)


def canonical(row: dict[str, object]) -> str:
    """What Spark calls equal is equal here."""
    x = row["x"]
    x = None if x is None else "nan" if math.isnan(x) else x + 0.0
    mapped = None if row["m"] is None else sorted(row["m"].items())
    digits = row["d"] and row["d"].normalize()
    return repr([row["n"], x, row["s"], digits, row["l"], mapped, row["t"]])


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, data=st.data())
def test_neither_order_nor_chunks_matter(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    """J5: the same rows have the same checksum, however Spark or a file delivers them."""
    whole = checksum_rows(table(rows))
    shuffled = data.draw(st.permutations(rows))
    at = data.draw(st.integers(0, len(rows)))
    parts = [table(shuffled[:at]), table(shuffled[at:])]
    assert checksum_rows(pa.concat_tables(parts)) == whole
    assert add_checksums(map(checksum_rows, parts)) == whole
    assert checksum_rows(table(rows).slice(at)) == checksum_rows(table(rows[at:]))
    columns = data.draw(st.permutations(SCHEMA.names))
    assert checksum_rows(table(rows).select(columns)) == whole


@settings(max_examples=60, deadline=None)
@given(first=ROWS, second=ROWS)
def test_other_rows_have_another_checksum(
    first: list[dict[str, object]], second: list[dict[str, object]]
) -> None:
    """J5: a difference in any value, or in how often a row is there, is seen."""
    same = sorted(map(canonical, first)) == sorted(map(canonical, second))
    assert (checksum_rows(table(first)) == checksum_rows(table(second))) == same


@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_a_few_rows_count_like_many(rows: list[dict[str, object]]) -> None:
    """J5: the short way for a few rows gives what the way for many gives."""
    many = checksum.row_hashes(table(rows * 20))
    few = checksum.row_hashes(table(rows))
    if len(rows) * 20 > checksum._FEW:
        assert [lane.to_pylist() for lane in many] == [lane.to_pylist() * 20 for lane in few]


def test_equal_rows_do_not_cancel_out() -> None:
    """J5: with a bare XOR two rows too many would look like none."""
    one = pa.table({"a": [7]})
    seen = {checksum_rows(pa.concat_tables([one] * count)) for count in range(1, 6)}
    assert len(seen | {NO_CHECKSUM}) == 6


def test_a_row_that_swaps_values_with_another_is_seen() -> None:
    """J5: columns that are summed up apart would not notice."""
    straight = pa.table({"a": [1, 2], "b": ["x", "y"]})
    crossed = pa.table({"a": [1, 2], "b": ["y", "x"]})
    assert checksum_rows(straight) != checksum_rows(crossed)
    assert checksum_rows(straight) != checksum_rows(straight.rename_columns(["b", "a"]))
    assert checksum_rows(straight) != checksum_rows(straight, "delete")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1, None], pa.int32()), pa.array([1, None], pa.int64())),
        (pa.array([0.0, math.nan]), pa.array([-0.0, -math.nan])),
        (pa.array([0.5], pa.float32()), pa.array([0.5])),
        (pa.array(["é", ""]), pa.array(["é", ""], pa.large_string())),
        (pa.array(["é", ""]), pa.array(["é", ""], pa.string_view())),
        (pa.array(["a", "a"]), pa.array(["a", "a"]).dictionary_encode()),
        (pa.array([b"a"]), pa.array([b"a"], pa.binary(1))),
        (pa.array([5], pa.timestamp("s")), pa.array([5_000_000], pa.timestamp("us", "UTC"))),
        (pa.array([1], pa.date32()), pa.array([86_400_000], pa.date64())),
        (pa.array([[1], []]), pa.array([[1], []], pa.large_list(pa.int64()))),
        (pa.array([[1, 2]]), pa.array([[1, 2]], pa.list_(pa.int64(), 2))),
        (pa.array([1], pa.time32("s")), pa.array([1_000_000], pa.time64("us"))),
    ],
    ids=lambda array: str(array.type),
)
def test_how_a_value_is_laid_out_makes_no_difference(left: pa.Array, right: pa.Array) -> None:
    """J5: another reader, or another version of Arrow, may give the same values in another type."""
    assert checksum_rows(pa.table({"v": left})) == checksum_rows(pa.table({"V": right}))


def test_a_column_that_is_null_counts_as_none() -> None:
    """J5: a file that leaves a field out and one that says null hold the same rows."""
    full = pa.table({"a": [1, 2], "b": pa.nulls(2)})
    assert checksum_rows(full) == checksum_rows(full.select(["a"]))
    assert checksum_rows(pa.table({"a": pa.nulls(2)})) != checksum_rows(
        pa.table({"a": pa.nulls(3)})
    )


def test_known_answers_stay() -> None:
    """J12: journals of years ago hold these numbers; a new definition would refuse to replay."""
    rows = pa.table(
        {
            "n": [1, -1, None],
            "s": ["a", "", None],
            "x": [0.5, -0.0, math.nan],
            "d": [Decimal("1.50"), Decimal("-99999999999999999999.99"), None],
            "on": [date(2026, 1, 2), None, date(1, 1, 1)],
            "at": [datetime(2026, 1, 2, 3, 4, 5, 6), None, datetime(1969, 1, 1)],
            "b": [True, False, None],
            "l": [[1, None], [], None],
            "t": [{"a": 1, "b": "x"}, {"a": None, "b": None}, None],
            "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "y": [b"\x00", b"", None],
        }
    )
    assert {name: checksum_rows(rows.select([name])) for name in rows.column_names} == KNOWN
    assert checksum_rows(rows) == WHOLE
    assert checksum_rows(rows.slice(0, 0)) == NO_CHECKSUM


def test_a_type_without_a_definition_is_refused() -> None:
    """J5: a value that is not counted would be lost unseen."""
    odd = pa.table({"v": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(InvalidError, match="month_day_nano"):
        checksum_rows(odd)


KNOWN = {
    "n": "02d6af8485c406d5946e0ff5b612c150",
    "s": "8b1fe0c45103ba99b7a64f03a49d3fe6",
    "x": "61848e525b5fb4ac3af386730b3d24fc",
    "d": "2ab09f416bc706558b3c13f5faacbf85",
    "on": "d8a99499541f4b3b38d7a13e208787c6",
    "at": "6101a59d7139f7e61781f8f5028dc9e1",
    "b": "7b77897c5bb91e9d2e2ce97cd0d936cd",
    "l": "d5576302a9208950a5d6e3974e2405fd",
    "t": "65e20605d46e21edef3a285f9862571a",
    "m": "4dc74681e6412be8ee25a3b4cb9146c9",
    "y": "a93a4096e34b2d3b4ce2e542615759fb",
}
WHOLE = "133efc7019ac3206765e4864520c90d6"


def test_a_text_that_occurs_often_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most columns of text have few values, and hashing them is most of the work."""
    texts = ["a", "b", None, "c" * 99] * 1_000
    few = pa.table({"t": pa.array(texts)})
    alone = [checksum_rows(few.slice(start, 1_000)) for start in range(0, 4_000, 1_000)]
    hashed: list[bytes] = []
    digest = checksum._hash

    def counted(text: bytes) -> int:
        hashed.append(text)
        return digest(text)

    monkeypatch.setattr(checksum, "_hash", counted)
    assert checksum_rows(few) == add_checksums(alone)
    assert len(hashed) == 3
    halves = [checksum_rows(few.slice(1_501, 900)), checksum_rows(few.slice(2_401))]
    assert checksum_rows(few.slice(1_501)) == add_checksums(halves)
