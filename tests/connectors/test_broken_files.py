"""Whatever a file holds becomes rows, dead letters, or one dead letter for the file."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.connectors import file_parts, parquet_parts
from stepwell.connectors.file_parts import TextParts
from stepwell.connectors.formats import Batch, ChangeFormat
from stepwell.connectors.lines import TOO_LONG
from stepwell.connectors.parquet_parts import ParquetParts
from stepwell.connectors.push import read_pushed
from stepwell.connectors.registry import make_source
from stepwell.connectors.writing import FileFormat
from stepwell.engine.ports import Lags, Limits, Source
from stepwell.errors import InvalidError, UnavailableError
from stepwell.lsm.dead_letter import TEXT_MAX, BadRow, cut
from stepwell.testing import ManualEnv
from tests.connectors.broken_files import Case, draw
from tests.connectors.following import Following
from tests.connectors.tables import ORDERS, rows, table


def source(folder: Path, case: Case, path: str = "*") -> Source:
    options = {"path": path, "format": case.format, "changes": case.changes, "settle": "0s"}
    given = {"table": "everything", "type": "files", **options}
    return Following(make_source("s", given, table(case.table), ManualEnv(), base=folder))


def check(folder: Path, seed: int, drawn: Callable[[int], Case] = draw) -> None:
    """Take the file of a seed to its end, in steps, and everything a second time."""
    case = drawn(seed)
    for old in folder.iterdir():
        old.unlink()
    (folder / case.name).write_bytes(case.data)
    rows_max = [1, 3, 100_000][seed % 3]
    s, after, steps = source(folder, case), None, 0
    while (taken := s.poll(after, Limits(rows_max=rows_max))) is not None:
        steps += 1
        assert steps < 5_000, "it does not come to an end"
        after = json.loads(json.dumps(taken.position))
        again = source(folder, case).read(json.loads(json.dumps(taken.reference)))
        assert again.bad == taken.bad
        assert again.rows == taken.rows
        assert len(taken.bad) <= taken.rows
        pairs = zip(again.change.parts, taken.change.parts, strict=True)
        for other, part in pairs:
            part.validate(full=True)
            assert repr(other.to_pylist()) == repr(part.to_pylist())
        for bad in taken.bad:
            (bad.where + bad.reason + bad.text).encode()
            assert len(bad.reason) <= 1_000
        if taken.change.delete is not None:
            places = range(taken.change.delete.num_rows)
            assert taken.deleted is not None
            assert again.deleted is not None
            assert list(again.deleted(places)) == list(told := taken.deleted(places))
            assert all(where and text is not None for where, text in told)
    if case.data:
        assert after is not None
        assert after["open"] is None, "the file counts as done"
    check_pushed(folder / case.name, case, rows_max)


def check_pushed(path: Path, case: Case, rows_max: int) -> None:
    """Push the same file: rows, dead letters, or one clear error for all of it."""
    format = FileFormat(case.format)
    compression = None if format is FileFormat.PARQUET else "detect"
    with suppress(InvalidError), pa.input_stream(str(path), compression=compression) as stream:
        for piece in read_pushed(
            cast(BinaryIO, stream),
            table(case.table),
            format=format,
            changes=ChangeFormat(case.changes),
            name=path.name,
            limits=Limits(rows_max=rows_max),
        ):
            assert len(piece.bad) <= piece.rows
            for part in piece.change.parts:
                part.validate(full=True)
            for bad in piece.bad:
                (bad.where + bad.reason + bad.text).encode()


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_whatever_a_file_holds_never_stops_its_source(
    tmp_path: Path, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J15: hundreds of files broken in every way; each is read to its end, twice the same."""
    # The nets below the decoders are not needed for anything that is drawn here.
    for reader in (TextParts, ParquetParts):
        monkeypatch.delattr(reader, "_decode_each")
    for seed in range(start, start + 50):
        check(tmp_path, seed)


COUNTS = range(1_000, 11_000, 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("start", COUNTS)
def test_whatever_ten_thousand_files_hold_never_stops_their_source(
    tmp_path: Path, start: int
) -> None:
    """J15: the same, with ten thousand."""
    for seed in range(start, start + 1_000):
        check(tmp_path, seed)


FOOTERS = """
import sys
from pathlib import Path
from tests.connectors.broken_files import draw_footer
from tests.connectors.test_broken_files import check
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    print(seed, flush=True)
    check(Path(sys.argv[1]), seed, draw_footer)
"""


@pytest.mark.parametrize(
    ("start", "count"),
    [(150, 120), *(pytest.param(start, 1_000, marks=pytest.mark.slow) for start in COUNTS)],
)
def test_no_footer_of_parquet_ends_the_process(tmp_path: Path, start: int, count: int) -> None:
    """J15: Arrow's accessors of a footer abort the process on some; so another one reads them."""
    ended = subprocess.run(
        [sys.executable, "-c", FOOTERS, str(tmp_path), str(start), str(start + count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20:] + ended.stderr[-3_000:]


def everything(
    folder: Path, format: str, sql: str = ORDERS, **limits: int
) -> tuple[list[object], list[BadRow]]:
    """The keys of the rows in a folder, and its dead letters; both are the same when read again."""
    given = {"table": "orders", "type": "files", "path": "*", "format": format, "settle": "0s"}
    s = Following(make_source("s", given, table(sql), ManualEnv(), base=folder))
    ids: list[object] = []
    bad: list[BadRow] = []
    after = None
    while (taken := s.poll(after, Limits(**limits))) is not None:
        after = json.loads(json.dumps(taken.position))
        again = make_source("s", given, table(sql), ManualEnv(), base=folder).read(taken.reference)
        assert (again.bad, again.rows) == (taken.bad, taken.rows)
        ids += [row[0] for row in rows(taken.change.put)]
        bad += taken.bad
    return ids, bad


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b"2,\xff,1,,,,", "not UTF-8: byte 3 is 0xff"),
        (b"2,a\rb,1,", "a carriage return without a line feed, outside of quotes"),
        (b"2\r3,a,1,", "a carriage return without a line feed, outside of quotes"),
        (b"\xff", "not UTF-8: byte 1 is 0xff"),
        (b"2,a\xc0\r,,,,", "a carriage return without a line feed, outside of quotes"),
        (b"2,a,1e999999,", "amount: '1E+999999' is too large for DECIMAL(12,2)"),
    ],
)
@pytest.mark.parametrize("rows_max", [1, 100])
def test_a_broken_line_of_csv_costs_that_line_only(
    tmp_path: Path, broken: bytes, reason: str, rows_max: int
) -> None:
    """J15: bad UTF-8 with a wrong number of fields, a carriage return where none belongs."""
    data = b'id,customer,amount,at\n1,"quoted\r",1,\n' + broken + b"\n4,b,1,\n"
    (tmp_path / "a.csv").write_bytes(data)
    (tmp_path / "b.csv").write_bytes(b"id\n5\n")
    ids, bad = everything(tmp_path, "csv", rows_max=rows_max)
    assert ids == [1, 4, 5]
    assert [(row.where, row.reason) for row in bad] == [("a.csv, line 3", reason)]
    assert bad[0].text == broken.decode(errors="replace")


@pytest.mark.parametrize("lines", [1, 100])
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('{"id":2,"amount":1e9999999999999999999}', "exponent of a number is out of range"),
        ('{"id":2,"amount":-1e-9999999999999999999}', "exponent of a number is out of range"),
        ('{"id":2,"amount":1e999999999999999999}', "too large for DECIMAL(12,2)"),
        ('{"id":1e999999999999999999}', "is not a valid BIGINT"),
        ('{"id":2,"\\ud800":1}', "orders has no column \\ud800"),
        ('{"id":2,"customer":"\\udfff"}', "is not valid Unicode"),
        ("[" * 100_000, "not JSON"),
        ('{"id":' + "9" * 5_000 + "}", "not JSON"),
        ("null", "not an object"),
    ],
)
def test_a_broken_line_of_json_costs_that_line_only(
    tmp_path: Path, lines: int, broken: str, reason: str
) -> None:
    """J15: numbers and nesting beyond what any type holds."""
    good = "".join(f'{{"id":{i}}}\n' for i in range(10, 10 + lines))
    (tmp_path / "a.json").write_text(f"{good}{broken}\n{good}")
    (tmp_path / "b.json").write_text('{"id":5}\n')
    ids, bad = everything(tmp_path, "json")
    assert ids == [*range(10, 10 + lines), 5]
    assert [row.where for row in bad] == [f"a.json, line {lines + 1}"]
    assert reason in bad[0].reason
    assert bad[0].text == cut(broken, TEXT_MAX)


def test_a_text_in_parquet_that_is_not_utf8_costs_its_row_only(tmp_path: Path) -> None:
    """J15: Arrow's reader does not look."""
    texts = pa.array([b"a", b"\xff", b"c", b"\xc0\x80"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "customer": texts}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [5]}), tmp_path / "b.parquet")
    ids, bad = everything(tmp_path, "parquet")
    assert ids == [1, 3, 5]
    assert [(row.where, row.reason) for row in bad] == [
        ("a.parquet, row 2", "customer: not UTF-8: byte 1 is 0xff"),
        ("a.parquet, row 4", "customer: not UTF-8: byte 1 is 0xc0"),
    ]
    assert bad[0].text == '{"id":2,"customer":"\ufffd"}'


@pytest.mark.parametrize("year", [0, 10_000, 200_000])
def test_a_time_in_parquet_that_no_calendar_holds_is_a_dead_letter(
    tmp_path: Path, year: int
) -> None:
    """J15: Parquet counts microseconds over half a million years; a TIMESTAMP has four digits."""
    moment = (year - 1970) * 31_556_952_000_000
    times = pa.array([0, moment], pa.int64()).view(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": [1, 2], "at": times}), tmp_path / "a.parquet")
    ids, bad = everything(tmp_path, "parquet")
    assert (ids, [row.where for row in bad]) == ([1], ["a.parquet, row 2"])


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_name_that_is_not_utf8_is_a_dead_letter_for_its_file(tmp_path: Path, format: str) -> None:
    """J15: a name that cannot be journaled does not stop the other files."""
    names = [os.fsdecode(b"\xff." + format.encode()), f"b.{format}"]
    for number, name in enumerate(names):
        if format == "parquet":
            pq.write_table(pa.table({"id": [number]}), tmp_path / "made")
            os.replace(tmp_path / "made", tmp_path / name)
        else:
            text = f"id\n{number}\n" if format == "csv" else f'{{"id":{number}}}\n'
            (tmp_path / name).write_text(text)
    ids, bad = everything(tmp_path, format)
    assert ids == [1]
    assert len(bad) == 1
    assert bad[0].where.startswith(f"\\xff.{format}")
    assert "rename it" in bad[0].reason
    os.rename(tmp_path / names[0], tmp_path / f"c.{format}")
    assert everything(tmp_path, format)[0] == [1, 0]


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 9),
    "bz2": bz2.compress,
    "zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
}


def zeros(path: Path, members: int, end: bytes = b"") -> None:
    """A compressed file of the given megabytes of zeros in one line."""
    compress = COMPRESS[path.suffix.removeprefix(".")]
    made = compress(bytes(1 << 20)) * members
    path.write_bytes(compress(b'{"id":1}\n') + made + compress(end))


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_line_without_end_is_skipped_in_bounded_memory(tmp_path: Path, compression: str) -> None:
    """J15: gigabytes of zeros in a small file are one dead letter, and what follows is read."""
    zeros(tmp_path / f"a.json.{compression}", 100, b'\n{"id":2}\n')
    tracemalloc.start()
    try:
        ids, bad = everything(tmp_path, "json")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ids == [1, 2]
    told = [(row.where, row.reason) for row in bad]
    assert told == [(f"a.json.{compression}, line 2", TOO_LONG)]
    assert bad[0].text == cut("\0" * 20_000, TEXT_MAX)
    assert peak < 80 << 20, "100 MiB went through, each time it was read"


@pytest.mark.parametrize("ending", [b'{"id":9}\n{"id":2}\n', b'{"id":9}'])
def test_of_a_pushed_line_that_is_too_long_nothing_is_taken(tmp_path: Path, ending: bytes) -> None:
    """J15: its end may look like a row, and is none."""
    zeros(tmp_path / "a.json.gz", 20, ending)
    with pa.input_stream(str(tmp_path / "a.json.gz")) as stream:
        pieces = list(read_pushed(cast(BinaryIO, stream), table(ORDERS), name="a"))
    taken = [row[0] for piece in pieces for row in rows(piece.change.put)]
    assert taken == ([1, 2] if b"2" in ending else [1])
    assert [(b.where, b.reason) for piece in pieces for b in piece.bad] == [("a, line 2", TOO_LONG)]


@pytest.mark.parametrize("end", [b"", b"\n", b'\n{"id":2}\n'])
@pytest.mark.parametrize("bytes_max", [500_000, 3_000_000])
def test_a_line_without_end_is_skipped_over_several_steps(
    tmp_path: Path, end: bytes, bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J15: a step takes no more than its share, so that other sources have their turn."""
    monkeypatch.setattr("stepwell.connectors.lines.RECORD_BYTES_MAX", 1 << 20)
    zeros(tmp_path / "a.json.gz", 5, end)
    ids, bad = everything(tmp_path, "json", bytes_max=bytes_max)
    assert ids == ([1, 2] if b"2" in end else [1])
    assert [row.where for row in bad] == ["a.json.gz, line 2"]


def test_a_csv_header_without_end_is_a_dead_letter_for_the_file(tmp_path: Path) -> None:
    """J15: nor is a header longer than any record may be."""
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(bytes(1 << 20), 9) * 20)
    (tmp_path / "b.csv").write_bytes(b"id\n5\n")
    ids, bad = everything(tmp_path, "csv")
    assert ids == [5]
    assert [(row.where, row.reason) for row in bad] == [
        ("a.csv.gz, line 0", f"not CSV: the header cannot be read: {TOO_LONG}")
    ]


def test_a_record_of_parquet_that_is_too_large_costs_that_record_only(tmp_path: Path) -> None:
    """J15: the rule is the same for every format."""
    texts = ["a", "x" * (9 << 20), "c", "y" * (9 << 20), "e"]
    data = pa.table({"id": [1, 2, 3, 4, 5], "customer": texts})
    pq.write_table(data, tmp_path / "a.parquet", compression="zstd")
    for rows_max in (1, 2, 100):
        ids, bad = everything(tmp_path, "parquet", rows_max=rows_max)
        assert ids == [1, 3, 5]
        assert [(row.where, row.reason) for row in bad] == [
            ("a.parquet, row 2", TOO_LONG),
            ("a.parquet, row 4", TOO_LONG),
        ]


def test_a_text_that_a_million_rows_share_is_not_written_out_for_all_of_them(
    tmp_path: Path,
) -> None:
    """J15: a dictionary holds it once; a file of kilobytes must not become terabytes in memory."""
    shared = pa.DictionaryArray.from_arrays(
        pa.array([0] * 1_000_000, pa.int32()), pa.array(["x" * 1_000_000])
    )
    data = pa.table({"id": range(1_000_000), "customer": shared})
    pq.write_table(data, tmp_path / "a.parquet", compression="zstd")
    given = {"table": "orders", "type": "files", "path": "*", "format": "parquet"}
    s = Following(make_source("s", given, table(ORDERS), ManualEnv(), base=tmp_path))
    del data, shared
    before = pa.total_allocated_bytes()
    after, seen = None, 0
    for _ in range(3):
        taken = s.poll(after, Limits(bytes_max=20_000_000))
        assert taken is not None
        after, seen = taken.position, seen + taken.rows
        assert pa.total_allocated_bytes() - before < 200 << 20
    assert seen == 3 * 20, "as many as fit into a step, and one more"


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_decoder_that_fails_costs_the_record_it_fails_on(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J15: whatever we did not think of is a dead letter, too."""
    if format == "parquet":
        pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "a.parquet")
    else:
        text = "id\n1\n2\n3\n" if format == "csv" else '{"id":1}\n{"id":2}\n{"id":3}\n'
        (tmp_path / f"a.{format}").write_text(text)
    owner = parquet_parts if format == "parquet" else file_parts
    decode = getattr(owner, f"decode_{format}")

    def fail_on_two(data: bytes | pa.Table, *given: object, **named: object) -> Batch:
        if b"2" in data if isinstance(data, bytes) else 2 in data.column("id").to_pylist():
            raise ZeroDivisionError("hostile")
        return decode(data, *given, **named)

    monkeypatch.setattr(owner, f"decode_{format}", fail_on_two)
    fields = "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY)"
    ids, bad = everything(tmp_path, format, fields)
    assert ids == [1, 3]
    assert [row.reason for row in bad] == ["cannot be read: ZeroDivisionError: hostile"]
    with open(tmp_path / f"a.{format}", "rb") as stream:
        (piece,) = read_pushed(stream, table(fields), format=FileFormat(format), name=f"a.{format}")
    assert [row[0] for row in rows(piece.change.put)] == [1, 3]
    assert list(piece.bad) == bad


def test_a_file_that_may_not_be_read_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J15: the error is told when nothing else is left, and the file is taken once it can be."""
    for name in "abc":
        (tmp_path / f"{name}.json").write_text(f'{{"id":{ord(name)}}}\n')
    given = {"table": "orders", "type": "files", "path": "*", "format": "json"}
    s = Following(make_source("s", given, table(ORDERS), ManualEnv(), base=tmp_path))

    def refuse(path: Path, mode: str) -> object:
        if path.name == "b.json":
            raise PermissionError(13, "Permission denied")
        return open(path, mode)

    with monkeypatch.context() as patch:
        # The superuser, as whom tests may run, can read everything.
        patch.setattr("stepwell.connectors.file_parts.open", refuse, raising=False)
        taken = s.poll(None, Limits())
        assert taken is not None
        assert [row[0] for row in rows(taken.change.put)] == [97, 99]
        assert isinstance(s, Lags)
        assert s.waiting() == "1 file waiting: b.json cannot be read: Permission denied"
        with pytest.raises(UnavailableError, match=r"b\.json cannot be read"):
            s.poll(taken.position, Limits())
    later = s.poll(taken.position, Limits())
    assert later is not None
    assert [row[0] for row in rows(later.change.put)] == [98]
