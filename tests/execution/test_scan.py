"""Scans of relations divided among tasks: the sum of all runs, however they are divided."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.env import SystemEnv
from stepwell.errors import CorruptError
from stepwell.execution.local.output import table_shown
from stepwell.execution.local.pushdown import Pushed, Test
from stepwell.execution.local.scan import RelationScan
from stepwell.lsm import run_file
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.run_ranges import Range, groups
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import write_run
from stepwell.model import Transaction
from stepwell.store.address import address_of
from stepwell.store.local import LocalStore

ENV = SystemEnv()
TYPES = ("bigint", "string", "double", "array<bigint>")
KEYS = st.one_of(st.none(), st.integers(-3, 12))
ROW = st.tuples(
    KEYS,
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0.0, 1.5, float("nan"), None]),
    st.sampled_from([None, (), (1, None)]),
)
Row = tuple[Any, ...]


def scan_of(store: LocalStore, runs: list[list[tuple[Row, int]]], **more: Any) -> RelationScan:
    """A scan of runs that are written as the pipeline writes them, in small row groups."""
    return RelationScan(
        "t",
        table_shown("t", list(zip("kxyz", TYPES, strict=True))),
        Transaction(1),
        {None: address_of(store)},
        tuple(write(store, run) for run in runs),
        more.pop("columns", (0, 1, 2, 3)),
        **more,
    )


def write(store: LocalStore, rows: list[tuple[Row, int]]) -> Run:
    rows = sorted(rows, key=lambda row: (row[0][0] is None, row[0][0] or 0))
    columns = list(zip(*(row for row, _ in rows), strict=True)) or [()] * len(TYPES)
    arrays = [*map(list, columns), [weight for _, weight in rows]]
    schema = arrow_schema(TYPES)
    table = pa.table([pa.array(a, f.type) for a, f in zip(arrays, schema, strict=True)], schema)
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=3, **run_file.PARQUET)
    return write_run(store, ENV, "t", out.getvalue().to_pybytes(), table.num_rows)


def plain(values: dict[str, Any]) -> Row:
    parts = [tuple(v) if isinstance(v, list) else v for v in values.values()]
    return tuple("NaN" if v != v else v for v in parts)


def read(scan: RelationScan) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for share in scan.shares():
        for table in scan.rows(share):
            found.update(plain(row) for row in table.to_pylist())
    return found


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    base=st.lists(st.tuples(ROW, st.integers(1, 3)), max_size=20),
    rounds=st.lists(st.lists(st.tuples(ROW, st.integers(0, 50)), max_size=4), max_size=3),
    size=st.sampled_from([2, 5, 1000]),
    wanted=st.one_of(st.none(), st.integers(-3, 12)),
)
def test_a_divided_scan_is_the_sum_of_its_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: list[tuple[Row, int]],
    rounds: list[list[tuple[Row, int]]],
    size: int,
    wanted: int | None,
) -> None:
    """A row that is retracted in another run must not appear, and no row may be read twice."""
    monkeypatch.setattr(run_file, "FILE_ROWS", size)
    runs, state = [base], Counter[Row]()
    keyed: dict[Row, Row] = {}
    for row, weight in base:
        key = tuple("NaN" if v != v else v for v in row)
        state[key] += weight
        keyed[key] = row
    for changes in rounds:
        run: list[tuple[Row, int]] = []
        for row, place in changes:
            there = sorted(state.elements(), key=repr)
            if there:  # One row goes, another comes.
                gone = there[place % len(there)]
                state[gone] -= 1
                run.append((keyed[gone], -1))
            key = tuple("NaN" if v != v else v for v in row)
            state[key] += 1
            keyed[key] = row
            run.append((row, 1))
        runs.append(run)
    store = LocalStore(str(tmp_path / ENV.new_id()), ENV)
    scan = scan_of(store, runs)
    assert read(scan) == +state
    narrow = scan_of(store, runs, columns=(1,))
    names: Counter[Row] = Counter()
    for row, count in state.items():
        names[(row[1],)] += count
    assert read(narrow) == +names, "the same for fewer columns than tell rows apart"
    if wanted is not None:
        filtered = scan_of(store, runs, filters=(Pushed(0, Test.LESS, (wanted,)),))
        few = {r: n for r, n in (+state).items() if r[0] is not None and r[0] < wanted}
        assert read(filtered) == Counter(few)


def test_many_rows_are_divided_by_ranges_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task that reads everything would need the memory for everything."""
    monkeypatch.setattr(run_file, "FILE_ROWS", 6)
    rows: list[tuple[Row, int]] = [((key, "a", 1.5, None), 1) for key in range(30)]
    change: list[tuple[Row, int]] = [((7, "a", 1.5, None), -1), ((None, "b", None, ()), 2)]
    scan = scan_of(LocalStore(str(tmp_path), ENV), [rows, change])
    shares = scan.shares()
    assert len(shares) == 5
    assert all(share.within is not None and share.within.column == 0 for share in shares)
    counts = [sum(t.num_rows for t in scan.rows(share)) for share in shares]
    assert sum(counts) == 31
    assert max(counts) <= 9, "each task has its range only"
    whole = scan_of(LocalStore(str(tmp_path), ENV), [rows])
    assert len(whole.shares()) == 5, "without retractions, parts of files"
    assert all(share.within is None for share in whole.shares())


def test_a_difference_of_two_states_has_signs(tmp_path: Path) -> None:
    """A stream of changes that lost a sign would insert what was retracted."""
    old: list[tuple[Row, int]] = [((1, "a", None, None), 1), ((2, "a", None, None), 1)]
    new: list[tuple[Row, int]] = [((1, "a", None, None), 1), ((3, "a", None, None), 2)]
    scan = scan_of(LocalStore(str(tmp_path), ENV), [old, new], signs=(-1, 1), columns=(0,))
    (share,) = scan.shares()
    (table,) = scan.changes(share)
    assert sorted(map(tuple, (row.values() for row in table.to_pylist()))) == [(2, -1), (3, 2)]


def test_a_retraction_without_its_row_is_damage(tmp_path: Path) -> None:
    """Fewer rows without a word would be worse than an error."""
    scan = scan_of(LocalStore(str(tmp_path), ENV), [[((1, "a", None, None), -1)]])
    with pytest.raises(CorruptError, match="retracts a row that it does not have"):
        read(scan)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC")])
def test_dates_that_python_lacks_have_no_bounds(kind: pa.DataType) -> None:
    """Spark has dates up to the year 294276, whose bounds cannot be read, but whose rows can."""
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    last = 2 ** (whole.bit_width - 2)
    out = pa.BufferOutputStream()
    days = pa.array([5, 7, last, 5], whole).view(kind)
    pq.write_table(pa.table({"c0": days}), out, row_group_size=2, **run_file.PARQUET)
    first, second = groups(pq.ParquetFile(pa.BufferReader(out.getvalue())).metadata, 0, kind)
    assert (first.low, first.high) == (days[0].as_py(), days[1].as_py())
    assert (second.low, second.high) == (None, None)
    assert second.overlaps(Range(0, days[1].as_py(), None))
