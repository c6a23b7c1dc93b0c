"""Files read in bulk and step by step: the same rows, dead letters, positions and checksums."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.connectors import bulk_files, lines
from stepwell.connectors.registry import make_source
from stepwell.engine.bulk import BulkReader
from stepwell.engine.intakes import Alike, fold_intakes
from stepwell.engine.payload import checksum_intake
from stepwell.engine.ports import BulkRead, BulkReads, Intake, Limits, Naming
from stepwell.engine.taken_names import TakenNames
from stepwell.errors import BugError, ReplayMismatchError, UnavailableError
from stepwell.lsm import bulk
from stepwell.lsm.dead_letter import BadRow
from stepwell.lsm.equality import only_last
from stepwell.sql.statements import Table
from stepwell.testing import ManualEnv
from tests.connectors.broken_files import draw
from tests.connectors.tables import ORDERS, table
from tests.connectors.test_source_contract import NUMBERS, chunks
from tests.engine.staging import Here, put_of

ALL = Limits(rows_max=1 << 40, bytes_max=1 << 40)
SEEDS = [range(first, first + 20) for first in (0, 20, 40)]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts, chunks and tasks of a few rows."""
    monkeypatch.setattr(bulk_files, "_PART_ROWS", 60)
    monkeypatch.setattr(bulk_files, "_TASK_BYTES", (600, 600))
    monkeypatch.setattr(bulk, "FILE_ROWS", 100)


@pytest.fixture
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are split at every line end; otherwise, each file or row group is a task."""
    monkeypatch.setattr(bulk_files, "_PART_ROWS", 3)
    monkeypatch.setattr(bulk_files, "_TASK_BYTES", (1, 1))
    monkeypatch.setattr(bulk, "FILE_ROWS", 100)


class Read:
    """A source read in bulk, by tasks in this process."""

    def __init__(self, folder: Path, declared: Table, **options: object) -> None:
        given = {"type": "files", "settle": "0s", "table": declared.name, **options}
        source = make_source("s", given, declared, ManualEnv(), base=folder)
        assert isinstance(source, BulkReads)
        assert isinstance(source, Naming)
        self.source: Any = source
        self.table = declared
        self.here = Here(folder / ".staged", declared)
        self.reader = BulkReader(self.here, 0)
        self.splits = 0
        """How many bulk reads have split a text."""
        self.misaligned = 0
        """How many of them found that a record crosses a place where it was split."""

    def poll(self, after: object = None, names: Sequence[str] = (), bytes_min: int = 1) -> Any:
        taken = TakenNames("s")
        taken.add(names)
        limits = Limits(ALL.rows_max, ALL.bytes_max, bytes_min)
        return self.source.poll_new(after, limits, taken)

    def step(self) -> Intake | None:
        """Everything, step by step."""
        found: Intake | None = self.source.poll_new(None, ALL, TakenNames("s"))
        return found

    def bulk(self) -> Intake:
        read = self.poll()
        assert isinstance(read, BulkRead)
        before = self.here.tried
        found = self.reader.intake(self.source, read)
        self.splits += read.aligned is not None
        self.misaligned += self.here.tried - before - 1
        return found

    def rows(self, intake: Intake) -> list[str]:
        """The rows that an intake puts, as a set of keys or as a bag."""
        put = intake.change.put
        if intake.change.staged is not None:
            assert put is None
            put = put_of(intake.change.staged, self.table)
        elif put is not None and self.table.key:
            put = only_last(put, self.source._shape.key)
        return [] if put is None else sorted(map(repr, put.to_pylist()))

    def same(self, one: Intake, other: Intake) -> None:
        assert self.rows(one) == self.rows(other)
        assert (one.rows, letters(one), one.names) == (other.rows, letters(other), other.names)
        assert checksum_intake(one) == checksum_intake(other)


def letters(intake: Intake) -> list[BadRow]:
    """The dead letters, which are a bag: within a part of CSV, those of one kind come first."""
    return sorted(intake.bad, key=repr)


def both_ways(read: Read) -> tuple[Intake, Intake]:
    """Poll both ways, read each again both ways, and compare."""
    small, large = read.step(), read.bulk()
    assert small is not None
    read.same(large, small)
    assert large.position == small.position
    for intake in (small, large):
        reference = json.loads(json.dumps(intake.reference))
        again = read.reader.again(read.source, reference)
        assert again is not None
        for found in (again, read.source.read(reference)):
            assert read.rows(found) == read.rows(small)
            assert (found.rows, letters(found)) == (small.rows, letters(small))
            assert checksum_intake(found) == checksum_intake(small)
    return small, large


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds[0]}")
def test_broken_files_are_read_the_same_both_ways(
    tmp_path: Path, seeds: range, every_line: None
) -> None:
    """J5, J8: whatever a file holds, executors make the rows and dead letters of it that we do."""
    read_so = 0
    for seed in seeds:
        case = draw(seed)
        if case.changes != "rows" or not case.data:
            continue
        for old in tmp_path.glob("[!.]*"):
            old.unlink()
        (tmp_path / case.name).write_bytes(case.data)
        options = {"path": "*", "format": case.format}
        read = Read(tmp_path, table(case.table), **options)
        if not read.reader.serves(read.source):
            read.here.accepts = lambda name: True  # type: ignore[method-assign]
        if not isinstance(read.poll(), BulkRead):
            assert case.format == "parquet", "only a footer can tell that a step is needed"
            continue
        both_ways(read)
        read_so += 1
    assert read_so > 2


_LINES = {
    "json": (
        *(
            b'{"id":1,"word":"a"}',
            b'{"id":2}',
            b'{"id":3,"word":"b\\n"}',
            b'{"id":null}',
            b"[",
            b"",
        ),
        *(b'{"id":4,"word":"\xff"}', b'{"id":5,"word":"x"} {"id":6}', b'{"id":7}\r', b'"', b"null"),
    ),
    "csv": (
        *(b"1,a", b"2,b", b"3,", b"x,bad", b"4,c,d", b"", b"\r", b"5,e\r", b'6,"f,g"', b'7,"h""i"'),
        *(b"8,j", b"9,k", b'10,l"', b"11,\xff", b"12,m\rn"),
    ),
    "quoted": (
        *(b"1,a", b"2,b", b'3,"c', b'd"', b'4,"e\nf"', b'5,"g""', b"6,h") * 3,
        b'7,"\n',
        b'"',
    ),
}
"""Lines of texts. Only in `quoted` a record may have several, or a quote never close."""


@pytest.mark.parametrize("kind", list(_LINES))
def test_a_text_split_anywhere_is_read_as_if_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """J5, J8: ranges of a text give the rows, line numbers and checksums that a step gives.

    The lines of a range are numbered before it is known how many are before it; and in CSV, it may
    begin inside of quotes.
    """
    splits = misaligned = 0
    for seed in range(16):
        chance = random.Random(seed)
        monkeypatch.setattr(bulk_files, "_PART_ROWS", chance.choice([1, 3, 1_000]))
        monkeypatch.setattr(bulk_files, "_TASK_BYTES", (chance.choice([1, 9, 70]),) * 2)
        few = 1 if kind == "quoted" and seed % 2 else len(_LINES[kind])
        for name in "ab":
            lines = [b"id,word"] if kind != "json" else [b"\xef\xbb\xbf"] * chance.randrange(2)
            lines += chance.choices(_LINES[kind][: 2 * few], k=chance.randrange(1, 60))
            ending = chance.choice([b"\n", b""])
            (tmp_path / name).write_bytes(b"\n".join(lines) + ending)
        format = "json" if kind == "json" else "csv"
        read = Read(tmp_path, NUMBERS, path="[ab]", format=format)
        both_ways(read)
        splits, misaligned = splits + read.splits, misaligned + read.misaligned
    assert splits > 8
    assert (misaligned > 4) == (kind == "quoted"), misaligned


def test_a_line_without_an_end_is_not_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: None
) -> None:
    """J13: of a record that is too long, a range may begin in the middle."""
    monkeypatch.setattr(lines, "RECORD_BYTES_MAX", 2_000)
    monkeypatch.setattr(lines, "_BLOCK", 500)
    row = b'{"id":1,"word":"' + b"x" * 5_000 + b'"}\n'
    (tmp_path / "a.json").write_bytes(b'{"id":2}\n' * 200 + row + b'{"id":3}\n' * 200)
    read = Read(tmp_path, NUMBERS, path="*.json", format="json")
    _, large = both_ways(read)
    assert (read.splits, read.misaligned) == (1, 1)
    assert [row.where for row in large.bad] == ["a.json, line 201"]
    monkeypatch.setattr(bulk_files, "_LINE_BYTES_MAX", 100)
    (tmp_path / "a.json").write_bytes(row)
    read.bulk()
    assert read.splits == 1, "no line ends soon enough"


def test_the_ranges_of_a_large_text_are_tasks_of_about_one_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is read by all cores, and planning reads next to nothing of it."""
    row = json.dumps({"id": 1, "word": "x" * 80}) + "\n"
    (tmp_path / "a.json").write_text(row * 10_000)
    monkeypatch.setattr(bulk_files, "_TASK_BYTES", (10_000, 100_000))
    found = Read(tmp_path, NUMBERS, path="*.json", format="json").poll()
    sizes = [sum(span.size for span in share) for share in found.decode.shares]
    assert len(sizes) in range(10, 18)
    assert max(sizes) < 1.3 * min(sizes)
    assert sum(sizes) == 10_000 * len(row)


def numbers(folder: Path, ending: str, pack: Callable[[bytes], bytes]) -> dict[str, object]:
    for number, part in enumerate(chunks()):
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{number}.json{ending}").write_bytes(pack(lines.encode()))
        (folder / f"{number}x.json{ending}").write_bytes(pack(b'{"id":1\n{"id":null}\n{"id":5}\n'))
    return {"path": "*.json*", "format": "json"}


def plain_json(folder: Path) -> dict[str, object]:
    return numbers(folder, "", lambda data: data)


def gz_json(folder: Path) -> dict[str, object]:
    return numbers(folder, ".gz", gzip.compress)


def csv(folder: Path) -> dict[str, object]:
    for number, part in enumerate(chunks()):
        rows = [f'{row["id"]},"a\nb{number}"' for row in part]
        rows += ["x,bad", f"7,last of {number}"]
        (folder / f"{number}.csv").write_text("id,word\n" + "\n".join(rows) + "\n")
    return {"path": ".", "format": "csv"}


def plain_csv(folder: Path) -> dict[str, object]:
    for number, part in enumerate(chunks()):
        rows = [f'{row["id"]},"a ""quoted"", word {number}"' for row in part]
        rows += ["x,bad", f"7,last of {number}"]
        (folder / f"{number}.csv").write_text("id,word\n" + "\n".join(rows) + "\n")
    return {"path": ".", "format": "csv"}


def parquet(folder: Path) -> dict[str, object]:
    for number, part in enumerate(chunks()):
        given = [*part, {"id": None, "word": "bad"}, {"id": 7, "word": f"last of {number}"}]
        pq.write_table(
            pa.Table.from_pylist(given), folder / f"{number}.parquet", row_group_size=150
        )
    pq.write_table(pa.table({"id": [1]}).slice(0, 0), folder / "empty.parquet")
    return {"path": "*.parquet", "format": "parquet"}


FORMATS = pytest.mark.parametrize("write", [plain_json, gz_json, csv, plain_csv, parquet])
BAG = "CREATE TABLE numbers (id BIGINT, word STRING)"
NOT_NULL = "CREATE TABLE numbers (id BIGINT NOT NULL, word STRING, CONSTRAINT x PRIMARY KEY (id))"


@FORMATS
@pytest.mark.parametrize("keyed", [True, False])
def test_many_files_are_read_the_same_both_ways(
    tmp_path: Path, write: Callable[[Path], dict[str, object]], keyed: bool, tiny: None
) -> None:
    """J5, J8: the last change of a key wins, by file name and then by place, at any parallelism."""
    read = Read(tmp_path, NUMBERS if keyed else table(BAG), **write(tmp_path))
    _, large = both_ways(read)
    assert large.bad or not keyed
    assert large.rows > 1_000
    assert len(large.reference["parts"]) > 15, "it was split into many parts"
    assert read.here.merged == (3 if keyed else 0)
    assert read.splits == (write in (plain_json, csv, plain_csv))
    assert read.misaligned == (write is csv), "its records have two lines each"


def test_sorted_files_are_not_sorted_again(tmp_path: Path, every_line: None) -> None:
    """Files that follow each other by key, as exports do, become run files as they are."""
    for number, part in enumerate(chunks()):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / f"{9 - number}.parquet")
    read = Read(tmp_path, NUMBERS, path="*.parquet", format="parquet")
    _, large = both_ways(read)
    assert read.here.merged == 0
    staged = large.change.staged
    assert staged is not None
    assert staged.part.run is not None
    firsts = [pq.read_table(file).column("c0")[0].as_py() for file in staged.part.run.files]
    assert firsts == sorted(firsts), "the files of a run are in the order of its key"


def test_a_task_holds_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the size of a chunk, whatever a file holds."""
    rows = [{"id": i, "word": "x" * 1_000} for i in range(2_000)]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(bulk_files, "_PART_BYTES", 20_000)
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 100_000)
    sizes: list[int] = []
    write = bulk.Target.write

    def watched(target: bulk.Target, rows: pa.Table) -> Any:
        sizes.append(rows.nbytes)
        return write(target, rows)

    monkeypatch.setattr(bulk.Target, "write", watched)
    Read(tmp_path, NUMBERS, path="*.json", format="json").bulk()
    assert len(sizes) > 15
    assert max(sizes) < 150_000


def test_too_many_dead_letters_are_left_to_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J13: the driver holds all dead letters of a step, so a bulk read must not have many."""
    (tmp_path / "a.json").write_text("no\n" * 6)
    (tmp_path / "b.json").write_text("no\n" * 6)
    read = Read(tmp_path, NUMBERS, path="*.json", format="json")
    assert len(read.bulk().bad) == 12
    monkeypatch.setattr(bulk, "BAD_ROWS_MAX", 11)
    with pytest.raises(bulk.NotInBulkError):
        read.bulk()
    small = read.step()
    assert small is not None
    assert read.reader.again(read.source, small.reference) is None


def test_little_input_is_left_to_steps(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id":1}\n')
    read = Read(tmp_path, NUMBERS, path="*.json", format="json")
    assert isinstance(read.poll(bytes_min=10), Intake)
    assert isinstance(Read(tmp_path, NUMBERS, path="*.json", format="json").poll(), BulkRead)
    (tmp_path / "b.json").write_text('{"id":2}\n')
    assert isinstance(read.poll(bytes_min=10), Intake), "it was looked at before"
    found = read.step()
    assert found is not None
    (tmp_path / "c.json").write_text('{"id":1234}\n')
    after = read.poll(found.position, found.names, bytes_min=10)
    assert isinstance(after, BulkRead)
    assert read.reader.intake(read.source, after).names == ("c.json",)


def test_deletes_are_left_to_steps(tmp_path: Path) -> None:
    """The order of puts and deletes of one key matters, and chunks hold puts alone."""
    (tmp_path / "a.json").write_text('{"insert":{"id":1}}\n')
    options = {"path": "*.json", "format": "json", "changes": "insert_delete"}
    read = Read(tmp_path, NUMBERS, **options)
    found = read.poll()
    assert isinstance(found, Intake)
    assert read.source.read_bulk(found.reference, 1) is None


def test_a_file_that_was_changed_is_named(tmp_path: Path) -> None:
    """J8: executors compare what they read with the recorded checksums, as the driver does."""
    path = tmp_path / "a.json"
    path.write_text('{"id":1}\n{"id":2}\n')
    read = Read(tmp_path, NUMBERS, path="*.json", format="json")
    reference = read.bulk().reference
    path.write_text('{"id":1}\n{"id":3}\n')
    with pytest.raises(ReplayMismatchError, match=r"a\.json was changed"):
        read.reader.again(read.source, reference)
    path.unlink()
    assert read.reader.again(read.source, reference) is None
    with pytest.raises(ReplayMismatchError, match=r"a\.json is gone"):
        read.source.read(reference)


def test_a_file_that_changes_during_a_bulk_read_is_read_again(tmp_path: Path) -> None:
    """J8: its tasks read it at different times, and must not put two versions together."""
    path = tmp_path / "a.json"
    path.write_text('{"id":1}\n{"id":2}\n')
    read = Read(tmp_path, NUMBERS, path="*.json", format="json")
    found = read.poll()
    assert isinstance(found, BulkRead)
    staged = read.here.stage("numbers", found.decode)
    path.write_text('{"id":3}\n{"id":4}\n')
    with pytest.raises(UnavailableError, match="was changed while it was read"):
        found.intake(staged)


@pytest.mark.parametrize("seen", [None, '{"id":1234}\n'])
def test_a_file_that_workers_do_not_see_is_left_to_steps(tmp_path: Path, seen: str | None) -> None:
    """S1: a worker may have no such file on its disk, or another one of the same name."""
    path = tmp_path / "a.json"
    path.write_text('{"id":1}\n')
    read = Read(tmp_path, NUMBERS, path="*.json", format="json")
    found = read.poll()
    assert isinstance(found, BulkRead)
    path.rename(tmp_path / "elsewhere")
    if seen is not None:
        path.write_text(seen)
    with pytest.raises(bulk.NotInBulkError, match=r"worker \(.+\) does not see .+a\.json"):
        read.here.stage("numbers", found.decode)


def test_a_bulk_step_is_replayed_alone(tmp_path: Path) -> None:
    """J2: replay computes transactions together if their rows can be folded. These cannot be."""
    (tmp_path / "a.json").write_text('{"id":1}\n')
    read = Read(tmp_path, NUMBERS, path="*.json", format="json")
    small, large = both_ways(read)
    assert Alike().takes([small, small])
    assert not Alike().takes([large])
    assert fold_intakes([large], {"numbers": ("id",)})["numbers"].change.staged is not None
    with pytest.raises(BugError, match="not folded with others"):
        fold_intakes([small, large], {"numbers": ("id",)})


def test_a_compressed_file_that_is_cut_off_is_left_to_steps(tmp_path: Path) -> None:
    """It may still be written: a step waits until it has settled."""
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"id":1}\n' * 9)[:-9])
    read = Read(tmp_path, table(ORDERS), path="*.gz", format="json", settle="5s")
    found = read.poll()
    assert isinstance(found, BulkRead)
    with pytest.raises(bulk.NotInBulkError, match="cannot be read now"):
        read.here.stage("orders", found.decode)
