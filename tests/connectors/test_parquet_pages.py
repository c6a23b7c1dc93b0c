"""Row groups of Parquet are judged by their page headers, before anything is decoded."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.connectors.parquet_footer import parse_footer, read_footer
from stepwell.connectors.parquet_pages import (
    PAGE_BYTES_MAX,
    group_pages,
    pages,
    read_page_header,
)
from stepwell.connectors.thrift_compact import ThriftError

WRITE = """
import sys, pyarrow as pa, pyarrow.parquet as pq
folder, kind = sys.argv[1:]
schema = pa.schema({"id": pa.int64(), "texts": pa.string()})
if kind == "text":
    with pq.ParquetWriter(
        f"{folder}/a.parquet", schema, compression="zstd", use_dictionary=False
    ) as out:
        for ids, texts in [
            ([1, 2], ["a", "b"]), ([3, 4, 5], ["c", "x" * (300 << 20), "e"]), ([6], ["f"])
        ]:
            out.write_table(pa.table({"id": ids, "texts": texts}, schema))
else:
    count = 20_000
    indices = pa.array([0, 1] + [2] * (count - 2), pa.int32())
    texts = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b", "x" * (9 << 20)]))
    if kind == "nested":
        texts = pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), texts)
    pq.write_table(
        pa.table({"id": range(count), "texts": texts}), f"{folder}/a.parquet", compression="zstd",
        dictionary_pagesize_limit=32 << 20,
    )
pq.write_table(pa.table({"id": [7], "texts": pa.array([None], pa.string())}), f"{folder}/b.parquet")
"""

READ = """
import json, resource, sys
from pathlib import Path
from stepwell.connectors.push import read_pushed
from stepwell.connectors.registry import make_source
from stepwell.connectors.writing import FileFormat
from stepwell.engine.ports import Limits
from stepwell.env import SystemEnv
from tests.connectors.following import Following
from tests.connectors.tables import table
folder, kind, way = sys.argv[1:]
texts = "ARRAY<STRING>" if kind == "nested" else "STRING"
orders = table(f"CREATE TABLE orders (id BIGINT, texts {texts})")
given = {"table": "orders", "type": "files", "path": "*", "format": "parquet", "settle": "0s"}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def made():
    return make_source("s", given, orders, SystemEnv(), base=Path(folder))
ids, bad, before = [], [], peak()
def note(change, letters):
    for part in change.parts:
        ids.extend(part.column("id").to_pylist())
    bad.extend([row.where, row.reason] for row in letters)
if way == "push":
    with open(f"{folder}/a.parquet", "rb") as stream:
        for piece in read_pushed(stream, orders, format=FileFormat.PARQUET, name="a.parquet"):
            note(piece.change, piece.bad)
else:
    source, after, steps = Following(made()), None, 0
    while steps < 5 and (taken := source.poll(after, Limits())) is not None:
        note(taken.change, taken.bad)
        again = made().read(taken.reference)
        assert (again.bad, again.rows) == (taken.bad, taken.rows), "replay"
        after, steps = taken.position, steps + 1
print(json.dumps({"ids": ids, "bad": bad[:10], "letters": len(bad), "grown": peak() - before}))
"""


def run(script: str, *given: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(folder: Path, kind: str, way: str) -> dict[str, Any]:
    run(WRITE, str(folder), kind)
    assert (folder / "a.parquet").stat().st_size < 1 << 20
    found: dict[str, Any] = json.loads(run(READ, str(folder), kind, way))
    assert found["grown"] < 200_000, "kilobytes of memory"
    return found


@pytest.mark.parametrize("way", ["source", "push"])
def test_a_page_too_large_for_memory_costs_its_row_group_only(tmp_path: Path, way: str) -> None:
    """J15: 23 KB of a file took 3.7 GB of memory, because a page is decoded as a whole."""
    found = read(tmp_path, "text", way)
    assert found["ids"] == ([1, 2, 6, 7] if way == "source" else [1, 2, 6])
    ((where, reason),) = found["bad"]
    assert where == "a.parquet"
    assert reason.startswith(
        "row group 2, rows 3 to 5, cannot be read in bounded memory: column texts has a page of "
    )


@pytest.mark.parametrize("kind", ["flat", "nested"])
@pytest.mark.parametrize("way", ["source", "push"])
def test_a_large_text_of_a_dictionary_is_in_memory_once(
    tmp_path: Path, kind: str, way: str
) -> None:
    """J15: 9 MiB that 20,000 rows share, by themselves or in lists, are not written out."""
    found = read(tmp_path, kind, way)
    assert found["ids"][:2] == [0, 1]
    assert found["bad"][0][0] == "a.parquet, row 3"
    assert found["letters"] == 19_998 if way == "push" else found["letters"] > 0


def judged(table: pa.Table, **given: Any) -> Any:
    file = io.BytesIO()
    pq.write_table(table, file, **given)
    return group_pages(file, read_footer(file), 0)


def test_pages_as_arrow_itself_writes_them_are_taken() -> None:
    """J15: Arrow writes 1,024 values into a page, however large it becomes: 100 MB of pictures."""
    texts = [bytes([i % 256]) * 100_000 for i in range(1_024)]
    found = judged(pa.table({"x": texts}), use_dictionary=False, compression="zstd")
    assert found.refusal is None
    assert 100 < found.window_rows < 1_000, "about 32 MiB of them at once"


def test_a_list_of_countless_equal_values_is_refused() -> None:
    """J15: equal values take no room in a file, whatever their number."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * (17 << 20), pa.int8()), pa.array([7]))
    lists = pa.ListArray.from_arrays(pa.array([0, 17 << 20], pa.int32()), values.cast(pa.int64()))
    found = judged(pa.table({"x": lists}), data_page_size=1 << 30, write_batch_size=1 << 30)
    assert "column x.list.element has a page of 17,825,792 values" in found.refusal


def test_a_dictionary_that_is_too_large_is_refused() -> None:
    """J15: a dictionary is decoded as a whole, too."""
    texts = pa.array(["x" * PAGE_BYTES_MAX, "y"]).dictionary_encode()
    found = judged(pa.table({"x": texts}), compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert "column x has a dictionary page of 67,108,8" in found.refusal


def test_rows_that_are_heavier_than_the_others_make_windows_smaller() -> None:
    """J15: the mean over a row group says nothing about its heaviest rows."""
    texts = ["x" * (1 << 20)] * 400 + [""] * 200_000
    found = judged(
        pa.table({"x": texts}), use_dictionary=False, compression="zstd", write_batch_size=1
    )
    assert found.refusal is None
    assert found.window_rows <= 128


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_the_headers_of_all_pages_are_found(compression: str, version: str) -> None:
    """J15: a header that is read wrongly would be followed by nonsense."""
    data = pa.table({"x": range(50_000), "y": [str(i % 10) for i in range(50_000)]})
    file = io.BytesIO()
    pq.write_table(
        data, file, compression=compression, data_page_version=version, data_page_size=10_000
    )
    group = pq.read_metadata(file).row_group(0)
    for i in range(2):
        column = group.column(i)
        found = list(
            pages(file, column.dictionary_page_offset, column.total_compressed_size, 50_000)
        )
        assert found[0].kind == 2, "the dictionary"
        assert sum(page.values for page in found[1:]) == 50_000
        assert sum(page.size for page in found) <= column.total_uncompressed_size


def test_whatever_bytes_a_header_has_it_is_read_or_refused() -> None:
    """J15: hostile bytes end in one error, never in another one, and never in a loop."""
    file = io.BytesIO()
    pq.write_table(pa.table({"x": ["a", "b"] * 500}), file, data_page_version="2.0")
    whole = file.getvalue()[4:]
    drawn = random.Random(7)
    refused = 0
    for _ in range(20_000):
        data = bytearray(whole[:200] if drawn.random() < 0.7 else drawn.randbytes(60))
        for _ in range(drawn.randrange(4)):
            data[drawn.randrange(len(data))] = drawn.randrange(256)
        try:
            page, length = read_page_header(bytes(data[: drawn.randrange(1, len(data))]))
            assert min(page.size, page.stored, page.values) >= 0
            assert 0 < length <= len(data)
        except ThriftError:
            refused += 1
        try:
            assert len(list(pages(io.BytesIO(data), drawn.randrange(-5, 80), 10**6, 10**6))) <= 200
        except ThriftError:
            refused += 1
    assert refused > 1_000


def footer_bytes(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


NESTED = pa.table(
    {
        "id": pa.array([1, None, 3]),
        "text": ["a", "b", "a"],
        "list": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
        "pairs": pa.array([[("a", b"xy")], None, []], pa.map_(pa.string(), pa.binary(2))),
        "both": [{"a": [{"b": 1.5}], "c": None}, {"a": [], "c": "x"}, None],
        "amount": pa.array([None, None, None], pa.decimal128(12, 2)),
    }
)


@pytest.mark.parametrize("rows", [1, 2, 100])
@pytest.mark.parametrize("dictionary", [True, False])
def test_a_footer_says_what_arrow_reads_in_it(rows: int, dictionary: bool) -> None:
    """J15: the two readers must not disagree about what a file is."""
    file = io.BytesIO()
    pq.write_table(NESTED, file, row_group_size=rows, use_dictionary=dictionary)
    footer, metadata = read_footer(file), pq.read_metadata(file)
    assert len(footer.groups) == metadata.num_row_groups
    for number, group in enumerate(footer.groups):
        known = metadata.row_group(number)
        assert (group.rows, group.size) == (known.num_rows, known.total_byte_size)
        for i, (leaf, chunk) in enumerate(footer.chunks(number)):
            column, kind = known.column(i), metadata.schema.column(i)
            assert leaf.path == column.path_in_schema
            assert leaf.repeated == (kind.max_repetition_level > 0)
            assert leaf.width == (kind.length or 0)
            assert (chunk.values, chunk.stored) == (column.num_values, column.total_compressed_size)
            assert chunk.data == column.data_page_offset
            assert (chunk.dictionary is not None) == column.has_dictionary_page
            if chunk.dictionary is not None:
                assert chunk.dictionary == column.dictionary_page_offset
    assert read_footer(file, footer) is footer


def test_whatever_bytes_a_footer_has_it_is_read_or_refused() -> None:
    """J15: hostile bytes end in one error, never in another one, and never in a loop."""
    file = io.BytesIO()
    pq.write_table(NESTED, file, row_group_size=1)
    whole = footer_bytes(file.getvalue())
    drawn = random.Random(9)
    refused = 0
    for _ in range(3_000):
        data = bytearray(whole if drawn.random() < 0.9 else drawn.randbytes(300))
        for _ in range(drawn.randrange(6)):
            data[drawn.randrange(len(data))] = drawn.randrange(256)
        try:
            parse_footer(bytes(data[: drawn.randrange(1, len(data) + 1)]))
        except ThriftError:
            refused += 1
    assert refused > 1_000
