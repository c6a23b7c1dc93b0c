"""Runs that are merged by ranges of their keys hold what they hold together, and no row twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.lsm import run_file as runs
from stepwell.lsm.range_compaction import by_ranges
from stepwell.lsm.run_file import RunFiles, write_files

KEYS: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int64(): st.integers(-20, 20),
    pa.string(): st.sampled_from(["", "a", "A", "ä", "b", "ba", "\U0001f600", "z"]),
    pa.decimal128(9, 2): st.decimals(-9, 9, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.binary(): st.binary(max_size=2),
}


def schema_of(*kinds: pa.DataType) -> pa.Schema:
    return pa.schema([*((f"c{i}", kind) for i, kind in enumerate(kinds)), ("w", pa.int64())])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FILE_ROWS", 4)
    monkeypatch.setattr(runs, "ROW_GROUP_ROWS", 2)


def written(folder: Path, tables: list[pa.Table]) -> RunFiles:
    folder.mkdir(parents=True, exist_ok=True)
    start = len(list(folder.iterdir()))
    names = (folder / f"{start + n}.parquet" for n in range(len(tables)))
    return RunFiles(*write_files(tables, (0,), lambda: next(names)))


def counted(tables: list[pa.Table]) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for table in tables:
        for *row, weight in zip(*(c.to_pylist() for c in table.columns), strict=True):
            found[tuple(row)] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(list(KEYS)))
def test_what_is_merged_by_ranges_is_the_sum(
    data: st.DataObject, tmp_path: Path, kind: str
) -> None:
    """S5: keys of any type that is sorted by, NULL among them, in runs of several files."""
    schema = schema_of(kind, pa.int32())
    row = st.tuples(st.none() | KEYS[kind], st.integers(0, 1), st.sampled_from([-1, 1, 2]))
    made = data.draw(
        st.lists(st.lists(st.lists(row, max_size=12), min_size=1, max_size=2), min_size=1)
    )
    names = schema.names
    tables = [
        [
            pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in rows], schema)
            for rows in files
        ]
        for files in made
    ]
    merged = by_ranges([written(tmp_path / "in", files) for files in tables], 0, schema)
    if merged is None:
        return  # Too many rows with one key.
    pieces = list(merged)
    assert counted(pieces) == counted([table for files in tables for table in files])
    rows = [tuple(r.values())[:-1] for piece in pieces for r in piece.to_pylist()]
    assert len(rows) == len(set(rows)), "each row once"
    keys = [set(piece.column(0).to_pylist()) for piece in pieces]
    for at, one in enumerate(keys):
        for other in keys[at + 1 :]:
            assert not one & other, "a key lies in one file"


def test_a_range_holds_about_as_many_rows_as_a_file_should(tmp_path: Path) -> None:
    """S5: 100 rows of which every second one goes, four or so at a time."""
    schema = schema_of(pa.int64())
    base = pa.table([range(100), [1] * 100], schema=schema)
    gone = pa.table([range(0, 100, 2), [-1] * 50], schema=schema)
    pieces = by_ranges([written(tmp_path, [base]), written(tmp_path, [gone])], 0, schema)
    assert pieces is not None
    sizes = [piece.num_rows for piece in pieces]
    assert sum(sizes) == 50
    assert max(sizes) <= runs.FILE_ROWS


def test_keys_that_came_later_have_ranges_of_their_own(tmp_path: Path) -> None:
    """S5: as where keys ascend; the largest run alone would put all others into its last range."""
    schema = schema_of(pa.int64())
    base = pa.table([range(100), [1] * 100], schema=schema)
    later = [pa.table([range(n, n + 20), [1] * 20], schema=schema) for n in range(100, 180, 20)]
    made = [written(tmp_path, [table]) for table in (base, *later)]
    pieces = by_ranges(made, 0, schema)
    assert pieces is not None
    sizes = [piece.num_rows for piece in pieces]
    assert sum(sizes) == 180
    assert max(sizes) <= 2 * runs.FILE_ROWS


def test_moments_that_python_does_not_have_are_keys_too(tmp_path: Path) -> None:
    """S5: Spark has the years before 1 and after 9999."""
    moment = pa.timestamp("us", "UTC")
    schema = schema_of(moment)
    far = pa.array(range(-(2**62), 2**62, 2**57), pa.int64()).cast(moment)
    rows = pa.table([far, [1] * len(far)], schema=schema)
    gone = rows.set_column(1, "w", pa.array([-1] * len(far)))
    pieces = by_ranges(
        [written(tmp_path, [rows]), written(tmp_path, [gone.slice(0, 9)])], 0, schema
    )
    assert pieces is not None
    left = pa.concat_tables(pieces).column(0).cast(pa.int64()).to_pylist()
    assert sorted(left) == far.cast(pa.int64()).to_pylist()[9:]


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_damaged_is_not_merged(tmp_path: Path, place: int) -> None:
    """K7: written again it would have a checksum that fits."""
    schema = schema_of(pa.int64(), pa.string())
    good = pa.table([range(100), ["text"] * 100, [1] * 100], schema=schema)
    made = [written(tmp_path, [good]), written(tmp_path, [good.slice(20, 40)])]
    path = made[place].files[0]
    column = pq.ParquetFile(path).metadata.row_group(9).column(1)
    body = bytearray(path.read_bytes())
    body[column.data_page_offset + column.total_compressed_size - 2] ^= 1
    path.write_bytes(body)
    pieces = by_ranges(made, 0, schema)
    assert pieces is not None
    with pytest.raises(OSError, match=r"(?i)checksum|crc"):
        list(pieces)


def test_few_keys_are_left_to_spark(tmp_path: Path) -> None:
    """S5: all rows of one key are in one range, and would have to be in memory together."""
    schema = schema_of(pa.int64(), pa.int64())
    rows = pa.table([[0] * 5 + [1] * 95, range(100), [1] * 100], schema=schema)
    many = pa.table([range(200), range(200), [1] * 200], schema=schema)
    assert by_ranges([written(tmp_path, [rows])], 0, schema) is None
    assert by_ranges([written(tmp_path, [many]), written(tmp_path, [rows])], 0, schema) is None


def test_a_run_without_rows_has_a_file(tmp_path: Path) -> None:
    """S5: Spark reads files, not their absence; and a failure leaves none behind."""
    empty = schema_of(pa.int64()).empty_table()
    assert [f.name for f in written(tmp_path, [empty, empty]).files] == ["0.parquet"]

    def failing() -> Iterator[pa.Table]:
        yield pa.table([[1], [1]], schema=empty.schema)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_files(failing(), (0,), lambda: tmp_path / "half.parquet")
    assert not (tmp_path / "half.parquet").exists()
