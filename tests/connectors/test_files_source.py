"""The files source: which files, in which order, and what happens when they are not left alone."""

from __future__ import annotations

import builtins
import gzip
import json
import os
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.connectors import file_parts, files, lines
from stepwell.connectors.file_parts import FileListed, Piece, Place
from stepwell.connectors.listing import Listing
from stepwell.connectors.registry import make_source
from stepwell.engine.ports import Intake, Lags, Limits, Naming, Settles, Source
from stepwell.engine.taken_names import TakenNames
from stepwell.errors import CorruptError, ReplayMismatchError, UnavailableError
from stepwell.lsm.dead_letter import CUT
from stepwell.testing import ManualEnv
from tests.connectors.following import Following
from tests.connectors.tables import ORDERS, rows, table

GIVEN = {"table": "orders", "type": "files", "path": "*.json", "format": "json"}


def source(folder: Path, env: ManualEnv | None = None, **options: object) -> Source:
    given = {**GIVEN, **options}
    return Following(make_source("s", given, table(ORDERS), env or ManualEnv(), base=folder))


def write(path: Path, *ids: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'{{"id":{i}}}\n' for i in ids))
    return path


def poll(s: Source, after: object = None, **limits: int) -> Intake:
    taken = s.poll(after, Limits(**limits))
    assert taken is not None
    return taken


def ids(taken: Intake) -> list[object]:
    return [row[0] for row in rows(taken.change.put)]


def test_files_are_taken_in_the_order_of_their_names(tmp_path: Path) -> None:
    """J8: the order inside a step is defined, and the last change of a key wins."""
    for name, amount in (("b.json", 2), ("a.json", 1), ("c.json", 3)):
        (tmp_path / name).write_text(f'{{"id":1,"amount":{amount}}}\n')
    taken = poll(source(tmp_path))
    assert [str(row[2]) for row in rows(taken.change.put)] == ["3.00"]


def test_hidden_files_and_folders_are_left_alone(tmp_path: Path) -> None:
    """A file under construction has such a name, and so has the metadata of a sink."""
    write(tmp_path / "a" / "1.json", 1)
    for hidden in ("a/.2.json", "a/_3.json", "_b/4.json", ".c/5.json", "d.json/x.txt"):
        write(tmp_path / hidden, 9)
    (tmp_path / "a" / "fifo.json").mkdir()
    s = source(tmp_path, path="**/*.json")
    taken = poll(s)
    assert ids(taken) == [1]
    os.rename(tmp_path / "a" / "_3.json", tmp_path / "a" / "3.json")
    assert ids(poll(s, taken.position)) == [9]


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_that_sorts_before_others_already_taken_is_taken(
    tmp_path: Path, restart: bool
) -> None:
    """J8: names do not come in order, and a file that is skipped once is lost for good."""
    s, after, seen = source(tmp_path), None, []
    for name, number in (("m", 1), ("z", 2), ("a", 3), ("n", 4), ("m0", 5), ("9", 6)):
        write(tmp_path / f"{name}.json", number)
        s = source(tmp_path) if restart else s
        taken = poll(s, after)
        after = json.loads(json.dumps(taken.position))
        seen += ids(taken)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert source(tmp_path).poll(after, Limits()) is None


def test_it_says_how_many_files_wait(tmp_path: Path) -> None:
    """The status of a pipeline shows whether it keeps up."""
    s = source(tmp_path)
    assert isinstance(s, Lags)
    assert s.waiting() is None
    for number in range(5):
        write(tmp_path / f"{number}.json", number)
    said, after = [], None
    for _ in range(5):
        after = poll(s, after, rows_max=1).position
        said.append(s.waiting())
    assert said == ["4 files waiting", "3 files waiting", "2 files waiting", "1 file waiting", None]


def test_thousands_of_small_files_go_several_to_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8: a position that names every file would make every entry of the journal larger."""
    monkeypatch.setattr(files, "_FILES_MAX", 500)
    for i in range(2_000):
        write(tmp_path / f"part-{i:05d}.json", i)
    s, after, seen, steps = source(tmp_path), None, [], 0
    while (taken := s.poll(after, Limits())) is not None:
        after, steps = taken.position, steps + 1
        seen += ids(taken)
        assert len(json.dumps(taken.position)) < 100
        assert len(json.dumps(taken.reference)) < 50_000
    assert seen == list(range(2_000))
    assert steps == 4


@pytest.mark.parametrize("format", ["json", "csv"])
def test_small_files_are_decoded_together_as_each_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """J8: with other rows, or a bad row in another file, replay would stop the pipeline."""
    draw = random.Random(format)
    good = ['{"id":%d}', '{"ID":%d,"customer":"é\\n"}', '{"id":%d,"amount":1.50}', ""]
    bad = ["{oops %d", '{"id":"x%d"}', "[%d]", '{"id":%d,"no":1}', '{"id":%d}{"id":2}']
    if format == "csv":
        good = ["%d,", '%d,"a\nb"', '%d,"x,""y"""', '%d,""', ""]
        bad = ["%d", "x%d,a", "%d,a,b", '%d,"open', "%d,a\rb"]
    for number in range(300):
        kinds = good if draw.random() < 0.9 else [*good, *bad]
        some = [draw.choice(kinds).replace("%d", str(draw.randrange(100))) for _ in range(4)]
        head = draw.choice(["id,customer\n", "customer,id\n"]) if format == "csv" else ""
        text = head + "\n".join(some) + draw.choice(["\n", "\n", "\n", ""])
        (tmp_path / f"{number:03d}.in").write_text(text, newline="")
    results = []
    for small in (1 << 16, 50, 0):
        monkeypatch.setattr(file_parts, "_SMALL", small)
        s = source(tmp_path, path="*.in", format=format, settle="0s")
        taken = poll(s)
        again = source(tmp_path, path="*.in", format=format).read(taken.reference)
        for step in (taken, again):
            results.append((rows(step.change.put), step.bad, step.rows))
    assert len(results[0][0]) > 50
    assert len(results[0][1]) > 20
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_small_file_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """J8: over a network every open of a hundred thousand files is a round trip."""
    opened: Counter[str] = Counter()

    def counting(path: Path, *arguments: Any) -> Any:
        opened[Path(path).name] += 1
        return builtins.open(path, *arguments)

    monkeypatch.setattr(file_parts, "open", counting, raising=False)
    for number in range(20):
        (tmp_path / f"{number}.in").write_text(
            f'{{"id":{number}}}\n' if format == "json" else f"id,customer\n{number},a\n"
        )
    assert sorted(ids(poll(source(tmp_path, path="*.in", format=format)))) == list(range(20))
    assert set(opened.values()) == {1}
    assert len(opened) == 20


def test_a_backlog_of_files_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J8: steps that each list all files there are would cost time in their square."""
    for i in range(200):
        write(tmp_path / f"part-{i:05d}.json", i)
    s, after, seen, listed = source(tmp_path), None, [], []
    names = Listing.names
    monkeypatch.setattr(Listing, "names", lambda self: listed.append(self) or names(self))
    while (taken := s.poll(after, Limits(rows_max=10))) is not None:
        after = json.loads(json.dumps(taken.position))
        seen += ids(taken)
        if len(seen) == 50:
            write(tmp_path / "a.json", 1_000)
            os.unlink(tmp_path / "part-00199.json")
            assert s.poll(None, Limits(rows_max=10)) is not None, "a step that is not recorded"
    assert seen == [*range(50), 1_000, *range(50, 199)]
    assert len(listed) == 4, "at first, twice from another position, and at the end"


def test_a_deleted_file_is_not_taken_again_when_it_comes_back(tmp_path: Path) -> None:
    """J8: a folder that was not mounted for a moment must not come in twice."""
    s, after = source(tmp_path), None
    for round in range(3):
        write(tmp_path / f"x{round}.json", round)
        taken = poll(s, after)
        assert ids(taken) == [round]
        after = taken.position
        os.unlink(tmp_path / f"x{round}.json")
        assert s.poll(after, Limits()) is None
    for round in range(3):
        write(tmp_path / f"x{round}.json", round)
    assert s.poll(after, Limits()) is None


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "json.gz"])
@pytest.mark.parametrize("what", ["changed", "truncated", "deleted"])
def test_a_file_that_was_not_left_alone_stops_replay(
    tmp_path: Path, format: str, what: str
) -> None:
    """Scenario 86, J8: replay from other input would publish something else than before."""
    path = tmp_path / f"a.{format}"

    def fill(first: int) -> None:
        text = "".join(f'{{"id":{i}}}\n' for i in range(first, 1_000))
        if format == "csv":
            path.write_text("id\n" + "".join(f"{i}\n" for i in range(first, 1_000)))
        elif format == "parquet":
            pq.write_table(pa.table({"id": range(first, 1_000)}), path)
        elif format == "json.gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)

    fill(0)
    options = {"path": "a.*", "format": format.partition(".")[0]}
    s = source(tmp_path, **options)
    taken = poll(s, rows_max=600)
    poll(s, taken.position)
    if what == "changed":
        time = path.stat().st_mtime_ns
        fill(1)
        os.utime(path, ns=(time, time))
    elif what == "truncated":
        os.truncate(path, 1_000)
    else:
        os.unlink(path)
    for fresh in (s, source(tmp_path, **options)):
        with pytest.raises(ReplayMismatchError) as caught:
            fresh.read(taken.reference)
        assert f"a.{format} " in str(caught.value)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_file_that_was_only_touched_or_grew_is_replayed(tmp_path: Path, format: str) -> None:
    """J8: what was taken is still there, so nothing is wrong with it."""
    path = tmp_path / f"a.{format}"
    path.write_text('{"id":1}\n' if format == "json" else "id\n1\n")
    s = source(tmp_path, path="a.*", format=format)
    taken = poll(s)
    with open(path, "a") as file:
        file.write('{"id":2}\n' if format == "json" else "2\n")
    again = source(tmp_path, path="a.*", format=format).read(taken.reference)
    assert (ids(again), again.bad) == ([1], ())


def test_bytes_that_come_after_a_file_was_taken_are_dead_letters(tmp_path: Path) -> None:
    """J13: rows appended to a file that counts as done would be lost without a word."""
    path = write(tmp_path / "a.json", 1)
    s = source(tmp_path)
    first = poll(s)
    assert s.poll(first.position, Limits()) is None
    write(path, 1, 2)
    late = poll(s, first.position)
    assert late.bad[0].where == "a.json"
    assert "grew from 9 to 18 bytes after it was read" in late.bad[0].reason
    assert source(tmp_path).read(late.reference).bad == late.bad
    assert s.poll(late.position, Limits()) is None


def test_a_file_that_grows_before_its_step_is_recorded_is_taken_whole(tmp_path: Path) -> None:
    """J8: a step that was never recorded has taken nothing."""
    path = write(tmp_path / "a.json", 1)
    s = source(tmp_path)
    poll(s)
    write(path, 1, 2)
    again = poll(s)
    assert (ids(again), again.bad) == ([1, 2], ())


def test_a_file_that_was_undone_and_grew_is_taken_whole(tmp_path: Path) -> None:
    """J8, J13: a restore has undone it, so nothing of it came too late; the other one did."""
    write(tmp_path / "a.json", 1)
    s = source(tmp_path)
    first = poll(s)
    assert s.poll(first.position, Limits()) is None
    write(tmp_path / "b.json", 2)
    second = poll(s, first.position)
    assert s.poll(second.position, Limits()) is None
    write(tmp_path / "a.json", 1, 3)
    write(tmp_path / "b.json", 2, 4)
    again = poll(s, first.position)
    assert ids(again) == [2, 4]
    assert [bad.where for bad in again.bad] == ["a.json"]
    assert s.poll(again.position, Limits()) is None


def test_a_folder_may_come_later(tmp_path: Path) -> None:
    """A pipeline may be started before the process that fills its folder."""
    s = source(tmp_path, path="in")
    assert s.poll(None, Limits()) is None
    write(tmp_path / "in" / "1.json", 1)
    taken = poll(s)
    assert ids(taken) == [1]
    assert ids(source(tmp_path, path="in").read(taken.reference)) == [1]
    single = source(tmp_path, path="in/1.json")
    assert ids(poll(single)) == [1]


def test_a_file_that_changes_between_two_of_its_steps_stops_the_source(tmp_path: Path) -> None:
    """Scenario 86, J8: half of one file and half of another is neither."""
    path = write(tmp_path / "a.json", *range(100))
    s = source(tmp_path)
    taken = poll(s, rows_max=10)
    write(path, *range(100), 100)
    assert len(ids(poll(s, taken.position))) == 91, "it only grew"
    write(path, *range(50, 200))
    with pytest.raises(ReplayMismatchError, match=r"a\.json was changed"):
        s.poll(taken.position, Limits())
    write(path, 1)
    with pytest.raises(ReplayMismatchError, match=r"a\.json was truncated"):
        s.poll(taken.position, Limits())
    os.unlink(path)
    with pytest.raises(ReplayMismatchError, match=r"a\.json is gone"):
        s.poll(taken.position, Limits())


def fill(path: Path, first: int, changed: int | None = None) -> None:
    """A file of 1,000 rows; another `first`, or a row `changed`, leave its size as it is."""
    numbers = [i if i != changed else 9_999 for i in range(first, first + 1_000)]
    text = "".join(f'{{"id":{i}}}\n' for i in numbers).encode()
    if path.suffix == ".csv":
        path.write_text("id\n" + "".join(f"{i}\n" for i in numbers))
    elif path.suffix == ".parquet":
        # Neither dictionary nor compression: files of as many rows are of the same size.
        data = pa.table({"id": pa.array(numbers, pa.int64())})
        options = {"use_dictionary": False, "compression": "none", "write_statistics": False}
        pq.write_table(data, path, row_group_size=100, **options)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text, 0))
    else:
        path.write_bytes(text)


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.parquet", "a.json.gz"])
@pytest.mark.parametrize("how", ["renamed", "rewritten"])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("what", ["all of it", "its first part"])
def test_a_half_taken_file_that_is_replaced_with_the_same_size_and_time_stops_the_source(
    tmp_path: Path, name: str, how: str, restart: bool, steps: int, what: str
) -> None:
    """J8, scenario 105: old rows and new ones together are a file that never was."""
    path, env = tmp_path / name, ManualEnv()
    options = {"path": "a.*", "format": name.split(".")[1]}
    fill(path, 5_000)
    before = path.stat()
    s, after = source(tmp_path, env, **options), None
    for _ in range(steps):
        after = json.loads(json.dumps(poll(s, after, rows_max=100).position))
        env.advance(3)
    other = tmp_path / "_other" if how == "renamed" else path
    other = other.with_suffix(path.suffix)
    fill(other, 6_000) if what == "all of it" else fill(other, 5_000, changed=5_007)
    os.utime(other, ns=(before.st_mtime_ns, before.st_mtime_ns))
    os.replace(other, path)
    assert path.stat().st_size == before.st_size
    s = source(tmp_path, env, **options) if restart else s
    with pytest.raises(ReplayMismatchError, match=rf"{name} was changed"):
        s.poll(after, Limits(rows_max=100))


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.parquet", "a.json.gz"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_half_taken_file_that_was_copied_back_is_gone_on_with(
    tmp_path: Path, name: str, restart: bool
) -> None:
    """J8, scenario 105: what counts is what a file holds, not when or where it was written."""
    path, env = tmp_path / name, ManualEnv()
    options = {"path": "a.*", "format": name.split(".")[1]}
    fill(path, 5_000)
    s, after, seen = source(tmp_path, env, **options), None, []
    while (taken := s.poll(after, Limits(rows_max=150))) is not None:
        seen += ids(taken)
        after = json.loads(json.dumps(taken.position))
        data = path.read_bytes()
        os.unlink(path)
        path.write_bytes(data)
        s = source(tmp_path, env, **options) if restart else s
    assert seen == list(range(5_000, 6_000))


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.parquet"])
def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8, scenario 105: a step may take several parts of a file, each read by itself."""
    path, env = tmp_path / name, ManualEnv()
    options = {"path": "a.*", "format": name.split(".")[1]}
    fill(path, 5_000)
    s = source(tmp_path, env, **options)
    reader = s._reader  # type: ignore[attr-defined]
    take, taken_parts = reader.take, []

    def take_and_replace(file: FileListed, place: Place, *limits: int, settled: bool) -> Piece:
        piece = take(file, place, 100, *limits[1:], settled=settled)
        taken_parts.append(piece)
        if len(taken_parts) == 3:
            fill(tmp_path / f"_b{path.suffix}", 6_000)
            os.replace(tmp_path / f"_b{path.suffix}", path)
        return piece

    monkeypatch.setattr(reader, "take", take_and_replace)
    with pytest.raises(UnavailableError, match="was changed while it was read"):
        s.poll(None, Limits())
    assert ids(poll(s)) == list(range(6_000, 7_000))


def test_a_file_that_stays_as_it_is_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8, scenario 105: to compare all that was taken at every step would cost its square."""
    env = ManualEnv()
    fill(tmp_path / "a.json", 5_000)
    s, after, compared = source(tmp_path, env), None, []
    prefix = s._reader.prefix  # type: ignore[attr-defined]
    monkeypatch.setattr(
        s._reader,  # type: ignore[attr-defined]
        "prefix",
        lambda file, end: [compared.append(end), prefix(file, end)][1],
    )
    while (taken := s.poll(after, Limits(rows_max=10))) is not None:
        after = taken.position
        env.advance(1)
    assert len(compared) == 3, "only until its time is older than a tick"


@pytest.mark.parametrize(
    ("name", "half", "whole", "expected"),
    [
        ("a.json", b'{"id":1}\n{"id":2', b'{"id":1}\n{"id":2}\n', ([1], 1)),
        ("a.csv", b"id\n1\n2", b"id\n1\n2\n", ([1, 2], 0)),
        ("a.json.gz", gzip.compress(b'{"id":1}\n', mtime=0)[:-12], b"", ([], 1)),
        ("a.parquet", b"PAR1....", b"", ([], 1)),
    ],
    ids=["json", "csv", "gz", "parquet"],
)
def test_a_file_that_ends_in_the_middle_is_given_time(
    tmp_path: Path, name: str, half: bytes, whole: bytes, expected: tuple[list[int], int]
) -> None:
    """J8: a writer that has not finished must not have half a line taken from it."""
    env = ManualEnv()
    options = {"path": "a.*", "format": name.split(".")[1], "settle": "2s"}
    s = source(tmp_path, env, **options)
    (tmp_path / name).write_bytes(half)
    assert s.poll(None, Limits()) is None
    if whole:
        (tmp_path / name).write_bytes(whole)
        assert ids(once_settled(s, env, 2.0)) == [1, 2]
        (tmp_path / name).write_bytes(half)
    taken = once_settled(source(tmp_path, env, **options), env, 2.0)
    assert (ids(taken), len(taken.bad)) == expected
    assert source(tmp_path, env, **options).read(taken.reference).bad == taken.bad


def once_settled(s: Source, env: ManualEnv, settle_s: float, after: object = None) -> Intake:
    """What a source gives when nothing has changed for `settle`, and not before."""
    start = env.uptime()
    assert s.poll(after, Limits()) is None
    while env.uptime() - start < settle_s:
        assert s.poll(after, Limits()) is None
        env.advance(settle_s / 8)
    return poll(s, after)


@pytest.mark.parametrize("skew_s", [-86400, -0.5, 0, 0.5, 86400])
@pytest.mark.parametrize("granularity_ns", [1, 10**9])
def test_a_file_that_is_being_written_is_not_taken_whatever_the_clocks_say(
    tmp_path: Path, skew_s: float, granularity_ns: int
) -> None:
    """J8, scenario 96: the writer's clock is ahead or behind; 671 of 1,000 rows are not a file.

    The writer writes blocks that end in the middle of a line, at whatever moment it likes.
    """
    env, path = ManualEnv(), tmp_path / "a.json"
    data = "".join(f'{{"id":{i}}}\n' for i in range(1_000)).encode()
    s = source(tmp_path, env)
    line_end = data.index(b"\n", 5_000) + 1
    for end in (*range(105, 5_000, 700), line_end, *range(line_end + 50, len(data), 900)):
        path.write_bytes(data[:end])
        time_ns = int((env.now().timestamp() + skew_s) * 1e9)
        time_ns -= time_ns % granularity_ns
        os.utime(path, ns=(time_ns, time_ns))
        for _ in range(3):
            assert s.poll(None, Limits()) is None, f"taken with {end} of {len(data)} bytes"
            env.advance(0.3)
    path.write_bytes(data)
    os.utime(path, ns=(time_ns, time_ns))
    settle_s = 1.0 if granularity_ns == 1 and time_ns % 10**9 else 2.0
    assert ids(once_settled(s, env, settle_s)) == list(range(1_000))


def test_after_a_restart_a_file_is_observed_again(tmp_path: Path) -> None:
    """J8, scenario 96: a new process knows of no quiet period, however old the file looks."""
    env = ManualEnv()
    (tmp_path / "a.csv").write_text("id\n1\n2")
    os.utime(tmp_path / "a.csv", ns=(1, 1))
    for _ in range(3):
        s = source(tmp_path, env, path="*.csv", format="csv")
        assert s.poll(None, Limits()) is None
        env.advance(0.4)
    assert ids(once_settled(source(tmp_path, env, path="*.csv", format="csv"), env, 1.0)) == [1, 2]


def test_a_machine_that_slept_has_seen_no_quiet_period(tmp_path: Path) -> None:
    """J8, scenario 96: writer and pipeline slept together, the file is as unfinished as before."""
    env = ManualEnv()
    (tmp_path / "a.csv").write_text("id\n1\n2")
    s = source(tmp_path, env, path="*.csv", format="csv")
    assert s.poll(None, Limits()) is None
    env.advance(8 * 3600)
    assert s.poll(None, Limits()) is None
    (tmp_path / "a.csv").write_text("id\n1\n20\n")
    assert ids(once_settled(s, env, 1.0)) == [1, 20]


def test_files_that_are_observed_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8, scenario 96: those that find no room are observed when others have been taken."""
    monkeypatch.setattr("stepwell.connectors.settling._FILES_MAX", 3)
    env = ManualEnv()
    for number in range(8):
        (tmp_path / f"{number}.csv").write_text(f"id\n{number}")
    s, after, steps = source(tmp_path, env, path="*.csv", format="csv"), None, []
    while len(steps) < 3:
        taken = once_settled(s, env, 1.0, after)
        steps.append(ids(taken))
        after = taken.position
    assert steps == [[0, 1, 2], [3, 4, 5], [6, 7]]
    (tmp_path / "9.csv").write_text("id\n9")
    assert s.poll(after, Limits()) is None
    os.unlink(tmp_path / "9.csv")
    assert s.poll(after, Limits()) is None
    assert isinstance(s, Settles)
    assert s.settles_in_s(0.0) is None, "a file that is gone is not waited for"


def test_a_last_line_without_a_line_end_is_taken_if_it_is_whole(tmp_path: Path) -> None:
    """J8: many programs write no last line end, and no part of an object is an object."""
    env = ManualEnv()
    path = tmp_path / "a.json"
    path.write_text('{"id":1}\n{"id":2}')
    assert ids(poll(source(tmp_path, env))) == [1, 2]


def test_bad_rows_in_csv_are_dead_letters(tmp_path: Path) -> None:
    """Scenario 90, J13: each kind of damage costs its own line only, and is shown in place."""
    text = (
        b"\xef\xbb\xbfID,customer,amount,at\r\n"
        b"1,ada,1.50,2026-01-02 03:04:05\r\n"
        b"x,bob,1,\r\n"
        b"2,\xff,1,\r\n"
        b"3,short\r\n"
        b"\r\n"
        b'4,"two\nlines",,\r\n'
        b",none,1,\r\n"
        b"5,long,1,,,\r\n"
        b'6,"",0.125,\r\n'
        b"7,,,2026-02-30\r\n"
        b'8,"",,\r\n'
        b'9,"never closed,,\r\n'
        b"10,last,,\r\n"
    )
    (tmp_path / "a.csv").write_bytes(text)
    for limit in (100, 1, 3):
        s, after, good, bad = source(tmp_path, path="*.csv", format="csv"), None, [], []
        while (taken := s.poll(after, Limits(rows_max=limit))) is not None:
            after = taken.position
            good += [row[:2] for row in rows(taken.change.put)]
            bad += taken.bad
            assert s.read(taken.reference).bad == taken.bad
        assert good == [(1, "ada"), (4, "two\nlines"), (8, ""), (10, "last")]
        found = {(row.where.removeprefix("a.csv, line "), row.reason) for row in bad}
        assert found == {
            ("3", "id: 'x' is not a valid BIGINT"),
            ("4", "not UTF-8: byte 3 is 0xff"),
            ("5", "expected 4 fields, found 2"),
            ("8", "the column id is NULL"),
            ("9", "expected 4 fields, found 6"),
            ("10", "amount: '0.125' has more than 2 decimals"),
            ("11", "at: '2026-02-30' is not a valid TIMESTAMP"),
            ("13", "a quote is opened and never closed"),
        }
        assert "3,short" in {row.text.strip() for row in bad}


def test_bad_rows_in_parquet_are_dead_letters(tmp_path: Path) -> None:
    """Scenario 90, J13: a file has types of its own, which need not be the table's."""
    columns = {
        "id": pa.array([1, None, 3, 4], pa.int32()),
        "amount": pa.array([1.5, 2.0, 0.125, None], pa.float64()),
        "customer": pa.array(["a", "b", "c", "d"]).dictionary_encode(),
        "at": pa.array([0, 1, 2, 3], pa.timestamp("ns")),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"not parquet")
    taken = poll(source(tmp_path, path="*.parquet", format="parquet", settle="0s"))
    assert ids(taken) == [1, 4]
    assert [(bad.where, bad.reason.partition(":")[0]) for bad in taken.bad] == [
        ("a.parquet, row 2", "the column id is NULL"),
        ("a.parquet, row 3", "amount"),
        ("b.parquet", "not Parquet"),
    ]


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_inserts_and_deletes_by_a_column(tmp_path: Path, format: str) -> None:
    """S2: where records have no envelope, the column _op says what they do."""
    operations = ["insert", "I", "delete", "d", "oops", None]
    data = pa.table({"_op": operations, "id": [1, 2, 1, 7, 8, 9]})
    path = tmp_path / f"a.{format}"
    if format == "csv":
        lines = [f"{op or ''},{i}" for op, i in zip(operations, [1, 2, 1, 7, 8, 9], strict=True)]
        path.write_text("\n".join(["_op,id", *lines, ""]))
    else:
        pq.write_table(data, path)
    taken = poll(source(tmp_path, path="a.*", format=format, changes="insert_delete"))
    assert ids(taken) == [2]
    assert rows(taken.change.discard) == [(1,)]
    assert rows(taken.change.delete) == [(7,)]
    assert {bad.reason for bad in taken.bad} == {"_op is neither insert nor delete"}
    assert len(taken.bad) == 2


def test_a_csv_file_without_a_usable_header_is_one_dead_letter(tmp_path: Path) -> None:
    """J13: nobody can tell what the fields of such a file are."""
    (tmp_path / "a.csv").write_text("id,ID\n1,2\n")
    (tmp_path / "b.csv").write_text("id\n3\n")
    (tmp_path / "c.csv").write_bytes(b"id\r4\r")
    taken = poll(source(tmp_path, path="*.csv", format="csv", settle="0s"))
    assert ids(taken) == [3]
    assert [bad.reason.partition(" - ")[0] for bad in taken.bad] == [
        "not CSV: the header names id twice",
        "not CSV: the header cannot be read: new-line character seen in unquoted field",
    ]
    assert source(tmp_path, path="*.csv", format="csv").read(taken.reference).bad == taken.bad


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_line_longer_than_any_may_be_is_cut_out(tmp_path: Path, ending: str) -> None:
    """Scenario 90, J13: ten megabytes without a line end must not stop what comes after them."""
    long = b'{"id":5,"customer":"' + b"x" * 10_000_000 + b'"}\n'
    data = b'{"id":1}\n' + long + b'{"id":2}\n' + long[:-3]
    (tmp_path / f"a.json{ending}").write_bytes(gzip.compress(data, 1) if ending else data)
    s, after, seen, bad = source(tmp_path, path="a.*", settle="0s"), None, [], []
    while (taken := s.poll(after, Limits(bytes_max=1_000_000))) is not None:
        after = taken.position
        seen += ids(taken)
        bad += taken.bad
        assert s.read(taken.reference).bad == taken.bad
    assert seen == [1, 2]
    assert [row.where for row in bad] == ["a.json" + ending + f", line {n}" for n in (2, 4)]
    assert all("longer than 8388608" in row.reason and row.text.endswith(CUT) for row in bad)


def test_damaged_compression_is_a_dead_letter_behind_what_could_be_read(tmp_path: Path) -> None:
    """J13: what comes before the damage is good."""
    data = "".join(f'{{"id":{i},"customer":"{i * 7919}"}}\n' for i in range(100_000)).encode()
    packed = bytearray(gzip.compress(data))
    packed[len(packed) // 2 :] = b"\xff" * 10
    (tmp_path / "a.json.gz").write_bytes(packed)
    write(tmp_path / "b.json", 7)
    s, after, seen, bad = source(tmp_path, path="*", settle="0s"), None, [], []
    while (taken := s.poll(after, Limits(rows_max=10_000))) is not None:
        after = taken.position
        seen += ids(taken)
        bad += taken.bad
        again = source(tmp_path, path="*").read(taken.reference)
        assert (again.bad, ids(again)) == (taken.bad, ids(taken))
    assert seen[-1] == 7
    assert seen[:-1] == list(range(len(seen) - 1))
    assert len(seen) > 10_000
    assert "cannot be decompressed" in bad[-1].reason


def test_empty_files_wait_and_blank_ones_pass(tmp_path: Path) -> None:
    """A file that was only created so far is not done."""
    (tmp_path / "a.json").write_text("")
    (tmp_path / "b.json").write_text("\n \n")
    s = source(tmp_path)
    taken = poll(s)
    assert (taken.rows, taken.change.put) == (0, None)
    assert s.poll(taken.position, Limits()) is None
    write(tmp_path / "a.json", 1)
    assert ids(poll(s, taken.position)) == [1]


def test_a_file_that_may_not_be_read_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person fixes a mistake in permissions, and then the source continues."""

    def refuse(path: object, mode: str) -> object:
        raise PermissionError(13, "Permission denied")

    write(tmp_path / "a.json", 1)
    s = source(tmp_path)
    with monkeypatch.context() as patch:
        # The superuser, as whom tests may run, can read everything.
        patch.setattr("stepwell.connectors.file_parts.open", refuse, raising=False)
        with pytest.raises(UnavailableError, match=r"a\.json cannot be read: Permission denied"):
            s.poll(None, Limits())
    assert ids(poll(s)) == [1]


def test_a_damaged_position_is_named(tmp_path: Path) -> None:
    """K2: a position that cannot be read is an error of ours, not a traceback."""
    s = make_source("s", GIVEN, table(ORDERS), ManualEnv(), base=tmp_path)
    for damaged in ({"files": 1}, {"files": 1, "names": "x", "open": None}, [], 7):
        with pytest.raises(CorruptError, match="position of a files source"):
            s.poll(damaged, Limits())


def test_names_that_do_not_fit_the_position_stop_the_source(tmp_path: Path) -> None:
    """J8: with other names than those it took, a file would come in twice, or never."""
    write(tmp_path / "a.json", 1)
    s = make_source("s", GIVEN, table(ORDERS), ManualEnv(), base=tmp_path)
    assert isinstance(s, Naming)
    after = poll(s).position
    write(tmp_path / "b.json", 2)
    for names in ([], ["b.json"], ["a.json", "b.json"]):
        taken = TakenNames("s")
        taken.add(names)
        with pytest.raises(CorruptError, match="its position says 1 with"):
            s.poll_new(after, Limits(), taken)
    taken = TakenNames("s")
    taken.add(["a.json"])
    found = s.poll_new(after, Limits(), taken)
    assert found is not None
    assert found.names == ("b.json",)


def test_records_are_cut_where_they_end() -> None:
    """J8: a line end inside of quotes ends no record; a quote inside a field opens nothing."""
    data = b'1,"a\nb""\n,",2\n3,x"y\n'
    hidden, unclosed = lines.hide_quoted_line_ends(data, ",")
    assert (len(hidden), hidden.count(b"\n"), unclosed) == (len(data), 2, None)
    assert lines.hide_quoted_line_ends(b'1,2\n"x\n', ",") == (b'1,2\n"x ', 4)


def test_a_folder_in_which_nothing_happens_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand old files must not cost a second at every look; new ones must count."""
    env = ManualEnv()
    write(tmp_path / "a.json", 1)
    s = source(tmp_path, env)
    first = poll(s)
    env.advance(3)
    assert s.poll(first.position, Limits()) is None
    with monkeypatch.context() as patch:
        patch.setattr("glob.iglob", lambda *given, **named: pytest.fail("listed again"))
        assert s.poll(first.position, Limits()) is None
    assert ids(poll(s, None)) == [1], "from another position there may be something"
    assert s.poll(first.position, Limits()) is None
    (tmp_path / "b.json").touch()
    assert s.poll(first.position, Limits()) is None
    write(tmp_path / "b.json", 2)
    assert ids(poll(s, first.position)) == [2], "the folder did not change, but the file did"


@pytest.mark.parametrize("skew_s", [-3600, 3600])
def test_names_that_come_within_one_tick_are_found_whatever_the_clocks_say(
    tmp_path: Path, skew_s: float
) -> None:
    """J8, scenario 96: a folder's time that looks old by our clock may be of this very moment."""
    env = ManualEnv()
    time_ns = int((env.now().timestamp() + skew_s) * 1e9)
    s, after = source(tmp_path, env), None
    for number in range(5):
        write(tmp_path / f"{number}.json", number)
        os.utime(tmp_path, ns=(time_ns, time_ns))  # All within one tick of the file server.
        taken = poll(s, after)
        assert ids(taken) == [number]
        after = taken.position
        env.advance(0.3)
        assert s.poll(after, Limits()) is None


def test_the_time_of_a_file_may_lie_in_the_future(tmp_path: Path) -> None:
    """A wrong clock must not make a file wait forever."""
    env = ManualEnv()
    path = tmp_path / "a.csv"
    path.write_text("id\n1")
    future = datetime(2040, 1, 1, tzinfo=UTC).timestamp()
    os.utime(path, (future, future))
    s = source(tmp_path, env, path="*.csv", format="csv")
    assert ids(once_settled(s, env, 2.0)) == [1]


def linked(tmp_path: Path) -> Path:
    """A folder with links inside of it, out of it, to itself, and in loops."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    write(inside / "a" / "1.json", 1)
    write(inside / "b" / "2.json", 2)
    write(outside / "3.json", 3)
    write(outside / "deep" / "4.json", 4)
    (inside / "5.json").symlink_to("a/1.json")
    (inside / "6.json").symlink_to(outside / "3.json")
    (inside / "a" / "out").symlink_to(outside)
    (inside / "b" / "up").symlink_to("..")
    (inside / "b" / "over").symlink_to("../a")
    (inside / "a" / "over").symlink_to("../b")
    (inside / "7.json").symlink_to("7.json")
    (inside / "8.json").symlink_to("nowhere")
    (inside / "a" / "9.json").symlink_to("../../out/3.json")
    return inside


@pytest.mark.parametrize(
    ("path", "expected", "followed"),
    [
        ("in/*.json", ["5.json"], ["6.json"]),
        ("in/**/*.json", ["5.json", "a/1.json", "b/2.json"], ["6.json", "a/9.json"]),
        ("in/*/*.json", ["a/1.json", "b/2.json"], ["a/9.json"]),
        ("in/*/*/*.json", ["a/over/2.json", "b/over/1.json"], ["a/out/3.json", "b/over/9.json"]),
        ("in", ["in/5.json"], ["in/6.json"]),
        ("in/6.json", ["6.json"], []),
        ("in/a/out/*.json", ["3.json"], []),
    ],
)
def test_links_are_followed_as_far_as_they_stay_in_the_folder(
    tmp_path: Path, path: str, expected: list[str], followed: list[str]
) -> None:
    """J8: to put a link into the folder must not be enough to have any file read, or a loop."""
    linked(tmp_path)
    listing = Listing(str(tmp_path / path), ManualEnv())
    found = [name for name in listing.names() if listing.find(name)]
    assert found == expected
    every = Listing(str(tmp_path / path), ManualEnv(), follow_links=True)
    names = [name for name in every.names() if every.find(name)]
    assert set(names) >= {*expected, *followed}
    assert len(names) < 60, "loops end"
    assert every.left_alone == ()


def test_a_link_out_of_the_folder_is_named_and_makes_no_dead_letter(tmp_path: Path) -> None:
    """J13: what a link leads to must not be copied anywhere, and somebody has to be told."""
    (tmp_path / "secret").write_text("root:x:0:0\n")
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "x.json").symlink_to(tmp_path / "secret")
    s = source(tmp_path, path="in/*.json")
    assert isinstance(s, Lags)
    assert s.poll(None, Limits()) is None
    assert (
        s.waiting() == "x.json leads out of the folder: set follow_links: true to follow such links"
    )
    (inside / "empty.json").touch()
    assert s.poll(None, Limits()) is None
    assert "x.json leads out" in str(s.waiting()), "an empty file does not hide it"
    write(inside / "y.json", 1)
    assert ids(poll(s)) == [1]
    taken = poll(source(tmp_path, path="in/*.json", follow_links=True))
    assert [bad.text for bad in taken.bad] == ["root:x:0:0"]


def test_what_waits_without_rows_says_why(tmp_path: Path) -> None:
    """J13: `1 file waiting` for ever, and nothing to do about it."""
    (tmp_path / "a.json").symlink_to("a.json")
    (tmp_path / "b.json").touch()
    s = source(tmp_path, path="*.json")
    assert isinstance(s, Lags)
    assert s.poll(None, Limits()) is None
    assert s.waiting() == "2 files waiting: a.json is not a file, or links to none"
    (tmp_path / "a.json").unlink()
    assert s.poll(None, Limits()) is None
    assert s.waiting() == "1 file waiting: b.json is empty"
    write(tmp_path / "b.json", 1)
    assert ids(poll(s)) == [1]
