"""What is done without Spark, as anybody would do it by hand: finding, adding up, showing."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from stepwell.env import SystemEnv
from stepwell.errors import BugError
from stepwell.execution.local.accumulate import merged
from stepwell.execution.local.conditions import fulfilling
from stepwell.execution.local.join_kernels import among_rows
from stepwell.execution.local.table_changes import normalise
from stepwell.lsm.cache import Cache
from stepwell.lsm.change import Change
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.index import TEXT_BYTES_MAX, Indexes
from stepwell.lsm.run_file import RunFiles
from stepwell.lsm.values import comparable
from stepwell.plan.expressions import parse
from stepwell.sql.statements import Table, parse_statements
from stepwell.text import Source

KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "int": (pa.int32(), st.integers(-3, 9)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)),
    "string": (pa.string(), st.sampled_from(["", "a", "b", "ä", "a\0"])),
    "binary": (pa.binary(), st.sampled_from([b"", b"\xff", b"a"])),
    "date": (pa.date32(), st.dates(datetime.date(2024, 1, 1), datetime.date(2024, 1, 4))),
    "decimal(12,2)": (pa.decimal128(12, 2), st.sampled_from([Decimal("1.10"), Decimal("-2.00")])),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_looked_up_is_what_a_scan_finds(kind: str, tmp_path: Path, data: Any) -> None:
    """S3: also NULLs, values that are not there, duplicates, several files, and much text."""
    type_, values = KINDS[kind]
    stored = data.draw(st.lists(values | st.none(), max_size=30))
    sought = data.draw(st.lists(values | st.none(), max_size=6, unique=True))
    schema = pa.schema([("c0", type_), ("c1", pa.int64()), ("w", pa.int64())])
    files = []
    for half, part in enumerate((stored[: len(stored) // 2], stored[len(stored) // 2 :])):
        start = half * (len(stored) // 2)
        columns = [part, list(range(start, start + len(part))), [1] * len(part)]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        files.append(tmp_path / f"{half}.parquet")
        pq.write_table(pa.table(arrays, schema=schema), files[-1])
    folder = tmp_path / "index" / str(len(list(tmp_path.glob("index/*"))))
    run = RunFiles(tuple(files), len(stored))
    text_bytes_max = -1 if data.draw(st.booleans()) else TEXT_BYTES_MAX
    index = Indexes(Cache(folder, SystemEnv()), text_bytes_max).of(run, schema)
    places = index.find(0, pa.array(sought, type_), 1000)
    assert places is not None
    expected = [i for i, value in enumerate(stored) if value in sought]
    assert index.take(places, None).column("c1").to_pylist() == expected
    if expected:
        assert index.find(0, pa.array(sought, type_), len(expected) - 1) is None
    empty = index.take(places, [0])
    assert empty.column("c0").to_pylist() == [stored[i] for i in expected]
    assert empty.column("c1").null_count == len(expected)


@pytest.mark.parametrize(
    "kind", ["double", "float", "array<int>", "map<string,int>", "string collate UTF8_LCASE"]
)
def test_what_spark_compares_otherwise_is_left_to_spark(kind: str) -> None:
    """S3: NaN equals NaN there, 0.0 equals -0.0, and a collation whatever it likes."""
    assert not comparable(kind)


@pytest.mark.parametrize("key", ["", "NOT NULL PRIMARY KEY"])
def test_moments_that_python_does_not_have_are_deleted(spark: SparkSession, key: str) -> None:
    """S4: Spark's timestamps reach beyond the year 9999."""
    text = f"CREATE TABLE t (ts TIMESTAMP {key})"
    table = parse_statements(Source("t.sql", text))[0]
    assert isinstance(table, Table)
    kind = pa.timestamp("us", "UTC")
    old = pa.table({"c0": pa.array([10**18], kind), "w": pa.array([1], pa.int64())})
    deleted = pa.table({"ts": pa.array([10**18, 10**18 + 1], kind)})
    change, rejected = normalise(
        table, (0,) if key else (), Change(None, deleted), lambda rows, places: old
    )
    assert change.column("c0").cast(pa.int64()).to_pylist() == [10**18]
    assert change.column("w").to_pylist() == [-1]
    assert [item.row for item in rejected] == [(10**18 + 1,)]


ROW = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 3), st.integers(-5, 5))


@given(
    old=st.dictionaries(
        st.sampled_from(["a", "b", "c", None]), st.tuples(st.integers(1, 5), st.integers(-9, 9))
    ),
    change=st.dictionaries(
        st.sampled_from(["a", "b", "d", None]), st.tuples(st.integers(-1, 5), st.integers(-9, 9))
    ),
)
def test_sums_are_added_up_as_by_hand(
    old: dict[str | None, tuple[int, int]], change: dict[str | None, tuple[int, int]]
) -> None:
    """S3, rule 3: groups come, go, change, and stay."""
    assume(all(n + old.get(key, (0, 0))[0] >= 0 for key, (n, _) in change.items()))
    found = merged(sums(old, 1), sums(change, 1), 1)
    assert found is not None
    expected: Counter[tuple[object, ...]] = Counter()
    for key in {*old, *change}:
        before = old.get(key)
        n, total = (a + b for a, b in zip(before or (0, 0), change.get(key, (0, 0)), strict=True))
        if key not in change:
            continue
        if before is not None:
            expected[(key, *before)] -= 1
        if n > 0:
            expected[key, n, total] += 1
    have: Counter[tuple[object, ...]] = Counter()
    for row in found.to_pylist():
        have[row["c0"], row["c1"], int(row["c2"])] += row["w"]
    assert {k: v for k, v in have.items() if v} == {k: v for k, v in expected.items() if v}


def sums(rows: dict[str | None, tuple[int, int]], weight: int) -> pa.Table:
    return pa.table(
        {
            "c0": pa.array(list(rows), pa.string()),
            "c1": pa.array([n for n, _ in rows.values()], pa.int64()),
            "c2": pa.array([Decimal(v) for _, v in rows.values()], pa.decimal128(38, 0)),
            "w": pa.array([weight] * len(rows), pa.int64()),
        }
    )


def test_stored_sums_that_were_taken_back_do_not_count() -> None:
    """S3: the parts of a relation hold what was as well as what is."""
    parts = [sums({"a": (1, 5)}, 1), sums({"a": (1, 5)}, -1), sums({"a": (2, 9)}, 1)]
    found = merged(pa.concat_tables(parts), sums({"a": (1, 1)}, 1), 1)
    assert found is not None
    assert sorted((r["c1"], int(r["c2"]), r["w"]) for r in found.to_pylist()) == [
        (2, 9, -1),
        (3, 10, 1),
    ]


def test_a_group_that_would_have_fewer_rows_than_none_is_an_error() -> None:
    """S2: a count below zero is a bug of ours, and says so."""
    with pytest.raises(BugError):
        merged(sums({"a": (1, 5)}, 1), sums({"a": (-2, 0)}, 1), 1)


def test_a_group_that_is_stored_twice_is_left_to_spark() -> None:
    """S3: half of it would be lost."""
    assert merged(sums({"a": (1, 5)}, 2), sums({"a": (1, 1)}, 1), 1) is None


def test_a_sum_that_may_not_fit_is_left_to_spark() -> None:
    """S3: which raises an error instead of wrapping around."""
    huge = 9 * 10**37
    assert merged(sums({"a": (1, huge)}, 1), sums({"a": (1, huge)}, 1), 1) is None


@given(rows=st.lists(st.tuples(ROW, st.integers(-2, 2)), max_size=20))
def test_rows_that_come_and_go_cancel_out(rows: list[tuple[tuple[object, ...], int]]) -> None:
    """S3: NULL equals NULL."""
    columns = list(zip(*(row for row, _ in rows), strict=True)) or [(), (), ()]
    kinds = [pa.string(), pa.int64(), pa.int64()]
    table = pa.table([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], names="abc")
    found = consolidated(table.append_column("w", pa.array([w for _, w in rows], pa.int64())))
    expected: Counter[tuple[object, ...]] = Counter()
    for row, weight in rows:
        expected[row] += weight
    have = {tuple(r[c] for c in "abc"): r["w"] for r in found.to_pylist()}
    assert have == {k: v for k, v in expected.items() if v}


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("a = 2", [2]),
        ("a <> 2", [1, 3]),
        ("2 < a", [3]),
        ("a >= 2 AND b = 'x'", [2]),
        ("(a <= 2) AND length(b) > 5", [1, 2]),
        ("b = 'x' OR a = 1", [1, 2, 3, None]),
        ("a = '2'", [1, 2, 3, None]),
        ("a = b", [1, 2, 3, None]),
        ("d < CAST('2024-01-02' AS DATE)", [1]),
        ("d < '2024-01-02'", [1, 2, 3, None]),
        ("m = 1.5", [2]),
        ("m = 15e-1", [1, 2, 3, None]),
        ("m > 0.00000000000000000000000000000000000001", [1, 2, 3, None]),
        ("a < 9223372036854775808", [1, 2, 3, None]),
        ("b = 'x\\t'", [1, 2, 3, None]),
        ("a IS NULL", [1, 2, 3, None]),
    ],
)
def test_only_rows_that_certainly_fail_are_left_out(condition: str, kept: list[int | None]) -> None:
    """S3: what is not understood, or would be converted first, lets everything through."""
    rows = pa.table(
        {
            "c0": pa.array([1, 2, 3, None], pa.int32()),
            "c1": ["w", "x", "y", "x"],
            "c2": pa.array([datetime.date(2024, 1, d) for d in (1, 2, 3)] + [None]),
            "c3": pa.array([Decimal("1.00"), Decimal("1.50"), None, None], pa.decimal128(5, 2)),
        }
    )
    names, types = ("a", "b", "d", "m"), ("int", "string", "date", "decimal(5,2)")
    found = fulfilling(rows, names, types, parse(condition, names))
    assert found.column("c0").to_pylist() == kept


def test_rows_are_compared_whole() -> None:
    """S3: two columns whose values both occur somewhere need not occur together."""
    columns = [pa.chunked_array([[1, 1, 2]]), pa.chunked_array([["a", "b", "b"]])]
    values = [pa.chunked_array([[1, 2]]), pa.chunked_array([["a", "b"]])]
    mask = among_rows(columns, values)
    assert mask is not None
    assert mask.to_pylist() == [True, False, True]
