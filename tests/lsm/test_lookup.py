"""Look-ups in the parts of a relation, shared by all who look for the same values."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.env import SystemEnv
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.cache import Cache
from stepwell.lsm.index import Indexes
from stepwell.lsm.lookup import SharedRows, distinct
from stepwell.lsm.part import INDEXED_ROWS_MIN, Part, Relation
from stepwell.lsm.profiler import Profiler
from stepwell.lsm.run_file import RunFiles

TYPES = ("int", "string", "bigint")
SCHEMA = arrow_schema(TYPES)
Row = tuple[int | None, str | None, int, int]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 4) | st.none(),
        st.sampled_from(["a", "b", "c"]) | st.none(),
        st.integers(0, 99),
        st.sampled_from([-1, 1, 2]),
    ),
    max_size=15,
)


def table(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def relation(folder: Path, stored: list[Row], held: list[Row]) -> Relation:
    """A relation with a run on the disk, and a part in memory."""
    file = folder / "run.parquet"
    pq.write_table(table(stored), file)
    parts = [
        Part(TYPES, len(stored), run=RunFiles((file,), len(stored))),
        Part(TYPES, len(held), table(held)),
    ]
    return Relation("t", TYPES, (0,), parts)


def tuples(rows: pa.Table) -> list[Row]:
    return sorted(map(tuple, zip(*(c.to_pylist() for c in rows.columns), strict=True)), key=repr)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stored=ROWS,
    held=ROWS,
    numbers=st.none() | st.lists(st.integers(0, 5) | st.none(), max_size=4, unique=True),
    texts=st.none() | st.lists(st.sampled_from(["a", "c", None]), max_size=3, unique=True),
)
def test_a_look_up_returns_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory,
    stored: list[Row],
    held: list[Row],
    numbers: list[int | None] | None,
    texts: list[str | None] | None,
) -> None:
    """S3: by one column or two, indexed by value or by hash, with NULL."""
    folder = tmp_path_factory.mktemp("lookup")
    indexes = Indexes(Cache(folder / "cache", SystemEnv()))
    sought = {}
    if numbers is not None:
        sought[0] = pa.array(numbers, pa.int32())
    if texts is not None:
        sought[1] = pa.array(texts, pa.string())
    result = SharedRows().look_up(indexes, relation(folder, stored, held), sought, 1000)
    if not sought:
        assert result is None, "a run is not read whole"
        return
    assert result is not None
    expected = [
        row
        for row in [*stored, *held]
        if (numbers is None or row[0] in numbers) and (texts is None or row[1] in texts)
    ]
    assert tuples(result.table(None)) == sorted(expected, key=repr)
    assert result.rows == len(expected)


def test_the_same_look_up_reads_rows_once(tmp_path: Path) -> None:
    """Rows fetched for one view serve the others, whichever columns each of them needs."""
    indexes = Indexes(Cache(tmp_path / "cache", SystemEnv()))
    stored = relation(tmp_path, [(1, "a", 10, 1), (2, "b", 20, 1)], [(1, "c", 30, 1)])
    profiler = Profiler()
    shared = SharedRows(profiler=profiler)
    first = shared.look_up(indexes, stored, {0: pa.array([1], pa.int32())}, 1000)
    again = shared.look_up(indexes, stored, {0: pa.array([1], pa.int32())}, 1000)
    assert first is not None
    assert first is again
    assert (profiler.rows_fetched, profiler.rows_shared) == (2, 2)
    few = first.table(frozenset({0}))
    assert few.column("c0").to_pylist() == [1, 1]
    assert few.column("c1").to_pylist() == [None, None]
    assert sorted(first.table(None).column("c1").to_pylist()) == ["a", "c"]
    other = shared.look_up(indexes, stored, {0: pa.array([2], pa.int32())}, 1000)
    assert other is not None
    assert other.rows == 1
    assert shared.look_up(indexes, stored, {0: pa.array([1], pa.int32())}, 1) is None


def test_a_relation_that_has_changed_is_looked_up_again(tmp_path: Path) -> None:
    indexes = Indexes(Cache(tmp_path / "cache", SystemEnv()))
    stored = relation(tmp_path, [(1, "a", 10, 1)], [])
    shared = SharedRows()
    sought = {0: pa.array([1], pa.int32())}
    assert shared.look_up(indexes, stored, sought, 10).rows == 1  # type: ignore[union-attr]
    stored.parts = [*stored.parts, Part(TYPES, 1, table([(1, "b", 20, 1)]))]
    assert shared.look_up(indexes, stored, sought, 10).rows == 2  # type: ignore[union-attr]


def test_results_of_replaced_parts_are_dropped(tmp_path: Path) -> None:
    """A refill adds part after part; an empty result must not keep the old ones in memory."""
    indexes = Indexes(Cache(tmp_path / "cache", SystemEnv()))
    stored = relation(tmp_path, [(1, "a", 10, 1)], [])
    shared = SharedRows()
    for number in range(5):
        stored.parts = [Part(TYPES, 1, table([(number, "b", 20, 1)]))]
        assert shared.look_up(indexes, stored, {0: pa.array([99], pa.int32())}, 10) is not None
    assert shared._known["t"].parts == tuple(stored.parts)
    assert len(shared._known["t"].by_values) == 1


def test_results_are_shared_up_to_a_limit(tmp_path: Path) -> None:
    """What a transaction holds in memory is bounded, whatever it looks up."""
    indexes = Indexes(Cache(tmp_path / "cache", SystemEnv()))
    stored = relation(tmp_path, [(1, "a", 10, 1), (1, "b", 20, 1)], [])
    profiler = Profiler()
    shared = SharedRows(1, profiler)
    sought = {0: pa.array([1], pa.int32())}
    first, again = (shared.look_up(indexes, stored, sought, 10) for _ in range(2))
    assert first is not again
    assert (profiler.rows_fetched, profiler.rows_shared) == (4, 0)


@given(st.lists(st.integers(-5, 5) | st.none(), max_size=12))
def test_distinct_values_keep_null(values: list[int | None]) -> None:
    for kind in (pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us", tz="UTC")):
        column = pa.chunked_array([values[:3], values[3:]], pa.int32()).cast(
            pa.int32() if kind == pa.date32() else pa.int64()
        )
        found = distinct(column.cast(kind))
        assert found.type == kind
        assert sorted(found.to_pylist(), key=repr) == sorted(
            set(column.cast(kind).to_pylist()), key=repr
        )


@pytest.mark.parametrize("rows", [0, 1, 50, INDEXED_ROWS_MIN + 500])
def test_a_part_in_memory_finds_what_a_scan_finds(rows: int) -> None:
    """S4: few rows are compared with the values, many are searched in order; both return NULL only
    if it is asked for, and each row once."""
    draw = random.Random(rows)
    numbers = [draw.randrange(40) for _ in range(rows)]
    texts = [draw.choice(["a", "b", None]) for _ in range(rows)]
    columns = [pa.array(numbers, pa.int64()), pa.array(texts, pa.string())]
    table = pa.table([*columns, pa.array([1] * rows, pa.int64())], names=["c0", "c1", "w"])
    halves = [table.slice(0, rows // 2), table.slice(rows // 2)]
    part = Part(("bigint", "string"), rows, pa.concat_tables(halves))
    for wanted in ([3], [5, 3, 39, 100], []):
        for others in (["a"], ["b", None], None):
            sought = {0: pa.array(wanted, pa.int64())}
            if others is not None:
                sought[1] = pa.array(others, pa.string())
            expected = [
                at
                for at, (number, text) in enumerate(zip(numbers, texts, strict=True))
                if number in wanted and (others is None or text in others)
            ]
            assert part.find(sought).tolist() == expected
            assert part.rows_at(part.find(sought)).column("c0").to_pylist() == [
                numbers[at] for at in expected
            ]
