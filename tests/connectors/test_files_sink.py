"""The files sink: whole folders only, and rows that the files source reads again."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from stepwell.connectors.registry import make_sink, make_source
from stepwell.engine.ports import Limits, Sink
from stepwell.env import SystemEnv
from stepwell.errors import (
    ConfigError,
    ConflictError,
    CorruptError,
    InvalidError,
    UnavailableError,
)
from stepwell.testing import ManualEnv
from tests.connectors.sinks import LINEAGE, OTHER, alone, mark, put
from tests.connectors.tables import rows, table


def sink(folder: Path, format: str = "json") -> Sink:
    options = {"view": "revenue", "type": "files", "path": "out", "format": format}
    return make_sink("out", options, "revenue", SystemEnv(), base=folder)


def write(folder: Path, *numbers: int) -> None:
    made = sink(folder)
    for number in numbers:
        put(made, number, alone(number))


class Crash(BaseException):
    """The process ends here."""


CALLS = ["mkdir", "fsync", "link", "listdir", "rename", "unlink"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_call_leaves_whole_folders_only(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 84, J7: stopped before or after every system call of a write, in turn."""
    stopped_at = 0
    while True:
        folder = tmp_path / str(stopped_at)
        folder.mkdir()
        write(folder, 1)
        stopped_at += 1
        calls = iter(range(1, 1_000))

        def crash(call: object, *given: object, **named: object) -> object:
            stop = next(calls) == stopped_at
            if stop and not after:
                raise Crash
            result = call(*given, **named)  # type: ignore[operator]
            if stop:
                raise Crash
            return result

        with monkeypatch.context() as patch:
            for name in CALLS:
                call = getattr(os, name)
                patch.setattr(os, name, lambda *a, call=call, **k: crash(call, *a, **k))
            try:
                write(folder, 2)
            except Crash:
                pass
            else:
                break
        names = sorted(path.name for path in (folder / "out").glob("[0-9]*"))
        for name in names:
            found = sorted(path.name for path in (folder / "out" / name).iterdir())
            assert found == ["_transaction.json", "part.json"]
        held = sink(folder).last()
        names = sorted(path.name for path in (folder / "out").glob("[0-9]*"))
        assert held == mark(len(names)), "what was committed is published by whoever looks next"
        write(folder, *range(len(names) + 1, 4))
        assert len(list((folder / "out").glob("[0-9]*"))) == 3
        assert list((folder / "out").glob(".tmp-*")) == [], "what a crash left is cleared away"
    assert stopped_at > 8


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not tell paths")
def test_everything_is_on_disk_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 89, J7: a power cut loses what was not synced, so a rename must come after it."""
    calls: list[tuple[str, str]] = []
    fsync, rename, link = os.fsync, os.rename, os.link

    def synced(opened: int) -> None:
        calls.append(("sync", os.readlink(f"/proc/self/fd/{opened}")))
        fsync(opened)

    def renamed(old: Path, new: Path) -> None:
        calls.append(("rename", f"{old} {new}"))
        rename(old, new)

    def linked(old: Path, new: Path) -> None:
        calls.append(("link", f"{old} {new}"))
        link(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "link", linked)
    write(tmp_path, 1)
    root = str(tmp_path / "out")
    committed, published = [place for place, (what, _) in enumerate(calls) if what != "sync"]
    staged, final = calls[published][1].split()
    assert calls[committed][1] == (
        f"{staged}/_transaction.json {root}/_stepwell/00000000000000000001.json"
    )
    assert final == f"{root}/00000000000000000001"
    before = [path for what, path in calls[:committed] if what == "sync"]
    assert {f"{staged}/part.json", f"{staged}/_transaction.json"} <= set(before)
    assert before[-2:] == [staged, root], "the hidden folder, before the mark that names it"
    assert str(tmp_path) in before, "the sink's own folder"
    assert calls[committed + 1 : published] == [("sync", f"{root}/_stepwell")]
    assert calls[published + 1 :] == [("sync", root)], "its name, before the write returns"


def test_folders_may_be_removed_by_their_reader(tmp_path: Path) -> None:
    """J7: a consumer that removes what it has read must not make the sink forget."""
    write(tmp_path, 1, 2)
    for folder in (tmp_path / "out").glob("[0-9]*"):
        shutil.rmtree(folder)
    assert sink(tmp_path).last() == mark(2)
    write(tmp_path, 3)


def test_a_lost_marker_is_made_up_for_by_the_folders(tmp_path: Path) -> None:
    """J7: what was written must not be written again because a small file is gone."""
    write(tmp_path, 1, 9)
    shutil.rmtree(tmp_path / "out" / "_stepwell")
    assert sink(tmp_path).last() == mark(9)


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"checksum":"0"}'])
def test_a_damaged_marker_is_named(tmp_path: Path, damage: bytes) -> None:
    """K2: never a traceback, never a silent start from nothing."""
    write(tmp_path, 1)
    (tmp_path / "out" / "_stepwell" / "00000000000000000001.json").write_bytes(damage)
    with pytest.raises(CorruptError, match=r"_stepwell/0+1\.json"):
        sink(tmp_path).last()


def test_a_folder_of_another_pipeline_is_refused_even_without_a_marker(tmp_path: Path) -> None:
    """J7: two pipelines in one folder would overwrite each other's progress."""
    write(tmp_path, 5)
    shutil.rmtree(tmp_path / "out" / "_stepwell")
    with pytest.raises(InvalidError, match="another pipeline"):
        put(sink(tmp_path), 6, alone(6), OTHER)


def test_a_folder_that_was_committed_is_not_swept_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 93, J7: its writer died between the commit and the rename, just after another one
    had looked at the log.
    """
    write(tmp_path, 1)

    def crash(old: Path, new: Path) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        with pytest.raises(Crash):
            write(tmp_path, 2)
    sink(tmp_path)._sweep()  # type: ignore[attr-defined]
    assert sink(tmp_path).last() == mark(2)
    assert (tmp_path / "out" / f"{2:020d}" / "part.json").exists()


def test_a_writer_whose_lock_is_not_seen_commits_nothing_that_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 93, J7: machines may not see each other's locks. One writer stalls before its
    commit while another sweeps, up to the moment it would remove the rows.
    """
    write(tmp_path, 1)
    monkeypatch.setattr(fcntl, "flock", lambda opened, how: None)
    link, rmtree = os.link, shutil.rmtree
    linked: list[bool] = []

    def commit_too_late(path: Path, **named: bool) -> None:
        with suppress(FileNotFoundError):
            link(*stalled)
            linked.append(True)
        rmtree(path, **named)

    def stall(old: Path, new: Path) -> None:
        stalled[:] = [old, new]
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", commit_too_late)
            sink(tmp_path)._sweep()  # type: ignore[attr-defined]
        link(old, new)

    stalled: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", stall)
        with pytest.raises(ConflictError, match="was not written"):
            write(tmp_path, 2)
    assert stalled
    assert not linked
    assert sink(tmp_path).last() == mark(1)
    write(tmp_path, 2)
    assert (tmp_path / "out" / f"{2:020d}" / "part.json").exists()


@pytest.mark.parametrize("committed", [True, False])
def test_what_a_sweep_left_half_done_is_gone_on_with(
    tmp_path: Path, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 93, J7: the process that swept died after its rename; a mark may name the folder or
    not."""
    write(tmp_path, 1)

    def crash(*given: Path) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename" if committed else "link", crash)
        with pytest.raises(Crash):
            write(tmp_path, 2)
    (hidden,) = (tmp_path / "out").glob(".tmp-*")
    hidden.rename(hidden.with_name(hidden.name.replace(".tmp-", ".gone-")))
    assert sink(tmp_path).last() == mark(2 if committed else 1)
    write(tmp_path, *([3] if committed else [2, 3]))
    assert len(list((tmp_path / "out").glob("[0-9]*/part.json"))) == 3
    assert not list((tmp_path / "out").glob(".gone-*"))


def test_a_process_that_publishes_for_a_dead_writer_makes_its_mark_durable_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 89, K8: a power cut must not leave the folder and lose the mark."""
    write(tmp_path, 1)

    def crash(*given: Path) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        with pytest.raises(Crash):
            write(tmp_path, 2)
    calls: list[str] = []
    rename = os.rename

    def renamed(old: Path, new: Path) -> None:
        calls.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", lambda o: calls.append(os.readlink(f"/proc/self/fd/{o}")))
    monkeypatch.setattr(os, "rename", renamed)
    assert sink(tmp_path).last() == mark(2)
    root = str(tmp_path / "out")
    assert calls[:3] == [f"{root}/_stepwell", "rename", root]


def test_an_earlier_format_is_refused_by_its_number(tmp_path: Path) -> None:
    """J12: its one mark says nothing of the history it belongs to."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "_stepwell.json").write_bytes(b"{}")
    for call in (lambda s: s.last(), lambda s: put(s, 1, alone(1))):
        with pytest.raises(InvalidError, match="filessink format 1; this Stepwell reads 2"):
            call(sink(tmp_path))


def test_a_link_that_was_sent_twice_is_known_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J7: a network file system may answer a repeated link by what the first one made."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    write(tmp_path, 1)
    monkeypatch.setattr(os, "link", twice)
    write(tmp_path, 2)
    assert sink(tmp_path).last() == mark(2)
    assert len(list((tmp_path / "out").glob("[0-9]*"))) == 2


def test_the_log_of_marks_stays_small(tmp_path: Path) -> None:
    """J7: a transaction costs a folder, which readers may remove, and nothing forever."""
    write(tmp_path, *range(1, 40))
    log = sorted(path.name for path in (tmp_path / "out" / "_stepwell").iterdir())
    assert log == [f"{number:020d}.json" for number in range(24, 40)]


def test_a_folder_that_was_put_there_by_hand_is_named(tmp_path: Path) -> None:
    """J7: it is not ours to replace, and trying again would not help."""
    write(tmp_path, 1)
    (tmp_path / "out" / f"{2:020d}").mkdir()
    with pytest.raises(InvalidError, match="did not write"):
        write(tmp_path, 2)


def test_a_place_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    """A full or missing disk is waited for, not given up on."""
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(UnavailableError, match="sink out cannot use"):
        write(tmp_path, 1)


NOON = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)
EVERYTHING = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "s": pa.array(['a"b\\c\nd,é', None]),
        "d": pa.array([Decimal("-0.10"), None], pa.decimal128(20, 2)),
        "f": pa.array([0.1, float("nan")], pa.float64()),
        "b": pa.array([True, None], pa.bool_()),
        "day": pa.array([date(2026, 1, 2), None], pa.date32()),
        "at": pa.array([NOON, None], pa.timestamp("us", "UTC")),
        "local": pa.array([NOON.replace(tzinfo=None), None], pa.timestamp("us")),
        "bin": pa.array([b"\x00\xff", None], pa.binary()),
        "_w": pa.array([1, 1], pa.int64()),
    }
)
STRUCT = pa.struct({"x": "int32", "Y": "string"})
NESTED = (
    EVERYTHING.remove_column(9)
    .append_column("a", pa.array([[NOON, None], None], pa.list_(pa.timestamp("us", "UTC"))))
    .append_column("m", pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())))
    .append_column(
        "st", pa.array([{"x": 1, "Y": None}, None], pa.struct({"x": "int32", "Y": "string"}))
    )
    .append_column("_w", EVERYTHING.column("_w"))
)
COLUMNS = """CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING, d DECIMAL(20,2), f DOUBLE, b BOOLEAN,
    day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, bin BINARY"""


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_what_a_sink_writes_a_source_reads(tmp_path: Path, format: str) -> None:
    """One pipeline can feed another through files, without losing a digit."""
    nested = (
        ""
        if format == "csv"
        else ", a ARRAY<TIMESTAMP>, m MAP<STRING, DOUBLE>, st STRUCT<x: INT, Y: STRING>"
    )
    given = EVERYTHING if format == "csv" else NESTED
    put(sink(tmp_path, format), 1, given)
    options = {"table": "t", "type": "files", "path": f"out/*/part.{format}", "format": format}
    reading = table(f"{COLUMNS}{nested}, `_w` INT)")
    taken = make_source("s", options, reading, ManualEnv(), base=tmp_path).poll(None, Limits())
    assert taken is not None
    assert taken.bad == ()
    assert repr(rows(taken.change.put)) == repr(rows(given))


def test_metadata_says_what_a_folder_is(tmp_path: Path) -> None:
    """It must be possible to tell where a folder comes from."""
    write(tmp_path, 7)
    lines = tmp_path / "out" / "00000000000000000007" / "_transaction.json"
    found = json.loads(lines.read_text())
    assert (found["lineage"], found["transaction"], found["rows"]) == (LINEAGE, 7, 1)
    assert found["view"] == "revenue"


@pytest.mark.parametrize(
    ("mode", "files", "folders"), [("0600", 0o600, 0o700), ("640", 0o640, 0o750)]
)
def test_output_has_the_permissions_that_were_asked_for(
    tmp_path: Path, mode: str, files: int, folders: int
) -> None:
    """J7: output may be as secret as the store, which is for its owner alone."""
    given = {"view": "v", "type": "files", "path": "out", "format": "json", "mode": mode}
    sink = make_sink("s", given, "v", ManualEnv(), base=tmp_path)
    put(sink, 1, pa.table({"a": [1], "_w": [1]}))
    found = list((tmp_path / "out").rglob("*"))
    assert len(found) == 5
    for path in found:
        assert path.stat().st_mode & 0o777 == (folders if path.is_dir() else files), path


def test_permissions_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """A number that YAML has read in another base would open the files to everybody."""
    given = {"view": "v", "type": "files", "path": "out", "format": "json"}
    for wrong in (416, 640, "0888", "0044", "rw", ""):
        with pytest.raises(ConfigError, match="option mode must be permissions such as"):
            make_sink("s", {**given, "mode": wrong}, "v", ManualEnv(), base=tmp_path)
