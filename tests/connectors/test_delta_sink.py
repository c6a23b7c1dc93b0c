"""The Delta sink: what is special about a table whose log others write to as well."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stepwell.connectors.registry import make_sink
from stepwell.engine.ports import Delivered, Sink
from stepwell.errors import ConfigError, ConflictError, InvalidError, UnavailableError
from stepwell.model import Checksum, Position, Transaction
from stepwell.testing import ManualEnv
from tests.connectors.sinks import LINEAGE, OTHER, alone, change, mark, put
from tests.connectors.test_files_sink import EVERYTHING, NESTED


def sink(folder: Path, name: str = "out", **options: object) -> Sink:
    given = {"view": "v", "type": "delta", "path": "table", **options}
    return make_sink(name, given, "v", ManualEnv(), base=folder)


def content(folder: Path) -> list[dict[str, object]]:
    rows = DeltaTable(folder / "table").to_pyarrow_table().to_pylist()
    return sorted(rows, key=repr)


@pytest.mark.parametrize("options", [{"key": "id"}, {"mode": "changes"}, {}], ids=repr)
def test_every_type_a_view_may_have(tmp_path: Path, options: dict[str, object]) -> None:
    """J7: a row is compared, replaced and deleted whatever its columns hold."""
    given = EVERYTHING if not options else NESTED
    made = sink(tmp_path, **options)
    put(made, 1, given)
    weights = pa.array([-1, -1], pa.int64())
    put(made, 2, given.set_column(given.num_columns - 1, "_w", weights))
    assert len(content(tmp_path)) == (4 if options.get("mode") else 0)


def test_columns_of_any_name(tmp_path: Path) -> None:
    """J7: names go into the text of a merge, and must come out of it unharmed."""
    names = ["Kunde", "select", 'q"x', "a.b", "s", "t", "put"]
    made = sink(tmp_path, key=["Kunde", 'q"x'])
    for number in (1, 2):
        columns = {name: pa.array([f"{name}{number if name == 't' else ''}"]) for name in names}
        rows = pa.table({**columns, "_w": pa.array([1], pa.int64())})
        put(made, number, rows)
    assert content(tmp_path) == [{**{name: name for name in names}, "t": "t2"}]


def test_rows_without_a_key_are_counted(tmp_path: Path) -> None:
    """J7: a view may hold a row several times, and a table of Delta has no other way to say so."""
    made = sink(tmp_path)
    put(made, 1, change(("a", "1.00", 1, 3), (None, "2.00", 2, 1)))
    put(made, 2, change(("a", "1.00", 1, -1), (None, "2.00", 2, -1)))
    put(made, 3, change(("a", "1.00", 1, -1), ("a", "1.00", 1, 1)))
    assert [(row["customer"], row["_count"]) for row in content(tmp_path)] == [("a", 2)]


@pytest.mark.parametrize("options", [{"key": "customer"}, {}], ids=["key", "bag"])
def test_a_change_that_alters_nothing_is_committed_anyway(
    tmp_path: Path, options: dict[str, object]
) -> None:
    """Scenario 107, J7: without its number the sink would seem to have lost the transaction, and
    the pipeline could not be opened.
    """
    made = sink(tmp_path, **options)
    put(made, 1, change(("a", "1.00", 1, 1)))
    absent = change(("b", "2.00", 2, -1))
    if not options:
        absent = change(("b", "2.00", 2, 1), ("b", "2.00", 2, -1))
    made.write(mark(1), mark(2), absent)
    assert made.last() == mark(2)
    made.write(mark(2), mark(3), change(("c", "3.00", 3, 1)))
    assert sink(tmp_path, **options).last() == mark(3)
    assert [row["customer"] for row in content(tmp_path)] == ["a", "c"]


@pytest.mark.parametrize(
    ("mask", "file", "entered"), [(0o077, 0o600, 0o700), (0o022, 0o644, 0o755)]
)
def test_the_umask_decides_about_permissions(
    tmp_path: Path, mask: int, file: int, entered: int
) -> None:
    """As `docs/connectors/delta.md` says: `deltalake` has no option for them."""
    before = os.umask(mask)
    try:
        put(sink(tmp_path / "out"), 1, change(("a", "1.00", 1, 1)))
    finally:
        os.umask(before)
    made = [path for path in (tmp_path / "out").rglob("*") if not path.name.startswith(".")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {file}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {entered}


def test_a_mark_is_stored_bit_by_bit(tmp_path: Path) -> None:
    """J16: the numbers of Delta's application transactions have a sign, checksums have none."""
    made, held = sink(tmp_path), None
    for number, digit in enumerate("0f7f8f", start=1):
        given = Delivered(
            LINEAGE,
            "7" + "Z" * 25 if digit == "f" else LINEAGE,
            Transaction(number),
            Position(number * 10**12),
            Checksum(digit * 32),
        )
        made.write(held, given, alone(number))
        held = sink(tmp_path).last()
        assert held == given
        assert held is not None
        assert held.timeline == given.timeline


@pytest.mark.parametrize("options", [{"key": "customer"}, {"mode": "changes"}], ids=repr)
def test_a_commit_is_on_disk_before_it_is_told(
    tmp_path: Path, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 89, K8: Delta syncs nothing on a local disk; a power cut would take back what the
    pipeline was told to be delivered.
    """
    synced: dict[str, int] = {}
    fsync = os.fsync

    def recorded(opened: int) -> None:
        path = os.readlink(f"/proc/self/fd/{opened}")
        synced[path] = os.fstat(opened).st_size
        fsync(opened)

    def unsynced() -> set[str]:
        """Files and folders that hold something which no fsync came after."""
        found = {str(path) for path in [root, *root.rglob("*")]} | {str(tmp_path)}
        return {
            path
            for path in found
            if path not in synced
            or (os.path.isfile(path) and synced[path] != os.path.getsize(path))
        }

    monkeypatch.setattr(os, "fsync", recorded)
    root = tmp_path / "table"
    made = sink(tmp_path, **options)
    for number in (1, 2):
        put(made, number, alone(number))
        assert unsynced() == set()
        # A folder counts for what was made in it since.
        synced = {path: size for path, size in synced.items() if os.path.isfile(path)}
    # A writer that died before it synced: the next writer does it.
    with monkeypatch.context() as patch:
        patch.setattr("stepwell.connectors.delta.DeltaSink._sync", lambda self, version: None)
        put(made, 3, alone(3))
    assert unsynced()
    assert sink(tmp_path, **options).last() == mark(3)
    assert unsynced() == set()


def test_others_may_maintain_the_table(tmp_path: Path) -> None:
    """J7: progress is part of the table's state, not of its last commit."""
    made = sink(tmp_path, mode="changes")
    for number in range(1, 6):
        put(made, number, alone(number))
    table = DeltaTable(tmp_path / "table")
    table.optimize.compact()
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert sink(tmp_path, mode="changes").last() == mark(5)
    put(made, 6, alone(6))
    assert len(content(tmp_path)) == 6


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """J7: a table that Stepwell did not create is not its to change."""
    write_deltalake(tmp_path / "table", pa.table({"a": [1]}))
    for call in (lambda s: s.last(), lambda s: put(s, 1, alone(1))):
        with pytest.raises(InvalidError, match="Stepwell did not create"):
            call(sink(tmp_path))
    assert content(tmp_path) == [{"a": 1}]


def test_two_sinks_cannot_share_a_table(tmp_path: Path) -> None:
    """J7: each would take the other's progress for none."""
    put(sink(tmp_path, "one"), 1, alone(1))
    with pytest.raises(InvalidError, match="belongs to sink one"):
        sink(tmp_path, "two").last()


def test_a_table_made_but_never_filled_keeps_its_owner(tmp_path: Path) -> None:
    """Scenario 84, J7: killed between making the table and its first rows."""
    made = sink(tmp_path)
    made._create(LINEAGE, alone(1))  # type: ignore[attr-defined]
    assert sink(tmp_path).last() is None
    with pytest.raises(InvalidError, match="another pipeline"):
        put(sink(tmp_path), 1, alone(1), OTHER)
    put(sink(tmp_path), 1, alone(1))
    assert sink(tmp_path).last() == mark(1)


def test_a_view_that_changed_its_columns_is_refused(tmp_path: Path) -> None:
    """A table with half of its rows in another shape is of no use to anybody."""
    put(sink(tmp_path, mode="changes"), 1, alone(1))
    with pytest.raises(InvalidError, match="does not match the view v"):
        put(sink(tmp_path, mode="changes"), 2, EVERYTHING)


def test_a_key_that_does_not_tell_rows_apart_is_refused(tmp_path: Path) -> None:
    """J7: one of the rows would silently replace the other."""
    two = change(("a", "1.00", 1, 1), ("a", "2.00", 2, 1))
    with pytest.raises(InvalidError, match="several rows with the same customer"):
        put(sink(tmp_path, key="customer"), 1, two)
    with pytest.raises(InvalidError, match="the view v has no column id"):
        put(sink(tmp_path, key="id"), 1, two)


def test_a_store_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    """J7: a sink that is down is waited for."""
    storage = {"aws_endpoint": "http://127.0.0.1:9", "aws_allow_http": "true", "aws_region": "x"}
    storage |= {"aws_access_key_id": "x", "aws_secret_access_key": "x", "max_retries": "0"}
    with pytest.raises(UnavailableError, match="sink out cannot use s3://bucket/table"):
        sink(tmp_path, path="s3://bucket/table", storage=storage).last()


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """Settings for a bucket called `bucket` in a stand-in for S3."""
    standin = Path(__file__).resolve().parents[1] / "store" / "s3_standin.py"
    process = subprocess.Popen(
        [sys.executable, str(standin)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    endpoint = f"http://127.0.0.1:{process.stdout.readline().strip()}"
    request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
    urllib.request.urlopen(request).close()
    yield {
        "aws_endpoint": endpoint,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "x",
        "aws_secret_access_key": "x",
    }
    process.communicate(timeout=30)


def test_a_table_in_an_object_store(tmp_path: Path, bucket: dict[str, str]) -> None:
    """J7: the same on S3, where a commit is a conditional PUT, and a late writer is refused."""
    options = {"path": "s3://bucket/table", "storage": bucket, "key": "customer"}
    made, late = sink(tmp_path, **options), sink(tmp_path, **options)
    assert made.last() is None
    put(made, 1, change(("a", "1.00", 1, 1)))
    assert late.last() == mark(1)
    put(made, 2, change(("a", "1.00", 1, -1), ("a", "2.00", 2, 1)))
    with pytest.raises(ConflictError):
        late.write(mark(1), mark(2), change(("a", "1.00", 1, -1), ("a", "2.00", 2, 1)))
    table = DeltaTable("s3://bucket/table", storage_options=bucket)
    assert [row["n"] for row in table.to_pyarrow_table().to_pylist()] == [2]
    assert not (tmp_path / "s3:").exists()


def test_a_log_of_changes_has_no_key(tmp_path: Path) -> None:
    """An option that would be ignored is a mistake."""
    with pytest.raises(ConfigError, match="has no key"):
        sink(tmp_path, mode="changes", key="id")
