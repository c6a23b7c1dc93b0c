"""The Iceberg sink: what is special about a table whose snapshots others see and may expire."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from stepwell.connectors import iceberg_files
from stepwell.connectors.registry import make_sink
from stepwell.engine.ports import Sink
from stepwell.errors import ConfigError, ConflictError, InvalidError, UnavailableError
from stepwell.testing import ManualEnv
from tests.connectors.sinks import LINEAGE, OTHER, alone, change, in_turn, mark, put
from tests.connectors.test_files_sink import NESTED
from tests.connectors.test_iceberg_source import address


def sink(folder: Path, name: str = "out", **options: object) -> Sink:
    at = {"identifier": "shop.revenue", "catalog": address(folder)}
    given = {"view": "v", "type": "iceberg", **at, **options}
    return make_sink(name, given, "v", ManualEnv(), base=folder)


def catalog(folder: Path) -> Catalog:
    return load_catalog("default", **address(folder))


def lake(folder: Path) -> Table:
    return catalog(folder).load_table("shop.revenue")


def content(folder: Path) -> list[dict[str, Any]]:
    return sorted(lake(folder).scan().to_arrow().to_pylist(), key=repr)


@pytest.fixture(autouse=True)
def without_sync(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power here, and syncing takes most of the time."""
    if "synced" not in request.fixturenames:
        monkeypatch.setattr(os, "fsync", lambda opened: None)


def test_a_transaction_is_one_snapshot_that_names_it(tmp_path: Path) -> None:
    """J7, J16: the mark is in the snapshot's summary, for everyone to see."""
    made = sink(tmp_path, key="customer")
    for number in range(1, 8):
        put(made, number, in_turn(number))
    snapshots = lake(tmp_path).snapshots()
    summaries = [s.summary.additional_properties for s in snapshots if s.summary is not None]
    assert [int(summary["stepwell.transaction"]) for summary in summaries] == list(range(1, 8))
    assert {summary["stepwell.lineage"] for summary in summaries} == {LINEAGE}
    assert summaries[-1]["stepwell.entry"] == mark(7).entry
    assert summaries[-1]["stepwell.timeline"] == mark(7).timeline


def test_changes_are_appended_and_rows_replaced(tmp_path: Path) -> None:
    """J7: readers that follow snapshots see appends where nothing was replaced."""
    made = sink(tmp_path)
    for number in (1, 2, 3):
        put(made, number, in_turn(number))
    snapshots = lake(tmp_path).snapshots()
    assert {s.summary.operation for s in snapshots if s.summary} == {Operation.APPEND}
    assert [row["_transaction"] for row in content(tmp_path)] == [1, 2, 3]


def test_every_type_a_view_may_have(tmp_path: Path) -> None:
    """J7: a row is compared, replaced and deleted whatever its columns hold."""
    for options in ({"key": "id"}, {}):
        made = sink(tmp_path, identifier=f"shop.t{len(options)}", **options)
        put(made, 1, NESTED)
        weights = pa.array([-1, -1], pa.int64())
        put(made, 2, NESTED.set_column(NESTED.num_columns - 1, "_w", weights))
        found = catalog(tmp_path).load_table(f"shop.t{len(options)}").scan().to_arrow()
        assert found.num_rows == (0 if options else 4)


def test_columns_of_any_name(tmp_path: Path) -> None:
    """J7: a dot is no path, and a keyword no syntax."""
    names = ["Kunde", "select", 'q"x', "a.b", "s", "t", "put"]
    made = sink(tmp_path, key=["Kunde", "a.b"])
    for number in (1, 2):
        columns = {name: pa.array([f"{name}{number if name == 't' else ''}"]) for name in names}
        put(made, number, pa.table({**columns, "_w": pa.array([1], pa.int64())}))
    assert content(tmp_path) == [{**{name: name for name in names}, "t": "t2"}]


def test_keys_of_several_columns_with_nulls(tmp_path: Path) -> None:
    """J7: NULL equals NULL, and a row whose columns each match other keys is another row."""
    made = sink(tmp_path, key=["customer", "n"])
    put(made, 1, change(("a", "1.00", 1, 1), ("a", "2.00", 2, 1), (None, "3.00", 1, 1)))
    put(made, 2, change(("b", "4.00", 2, 1), (None, "3.00", 1, -1)))
    put(made, 3, change(("a", "1.00", 1, -1), ("a", "9.00", 1, 1), ("b", "4.00", 2, -1)))
    found = [(row["customer"], str(row["total"]), row["n"]) for row in content(tmp_path)]
    assert found == [("a", "2.00", 2), ("a", "9.00", 1)]


def test_a_change_that_alters_nothing_is_committed_anyway(tmp_path: Path) -> None:
    """Scenario 107, J7: without its number the sink would seem to have lost the transaction."""
    made = sink(tmp_path, key="customer")
    put(made, 1, change(("a", "1.00", 1, 1)))
    made.write(mark(1), mark(2), change(("b", "2.00", 2, -1)))
    assert sink(tmp_path, key="customer").last() == mark(2)
    made.write(mark(2), mark(3), change(("c", "3.00", 3, 1)))
    assert [row["customer"] for row in content(tmp_path)] == ["a", "c"]


def test_small_files_are_merged(tmp_path: Path) -> None:
    """Each transaction adds a file, and every reader opens all of them."""
    made = sink(tmp_path, key="customer")
    held = None
    counts = []
    for number in range(1, 61):
        made.write(held, mark(number), alone(number))
        held = mark(number)
        counts.append(len(lake(tmp_path).inspect.files()))
    assert max(counts) <= iceberg_files.SMALL_FILES_MAX
    assert counts.count(1) > 2
    assert len(content(tmp_path)) == 60


def test_files_that_cannot_hold_a_key_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: bounds of the key in the manifests tell; pinned by counting."""
    monkeypatch.setattr(iceberg_files, "SMALL_FILES_MAX", 1000)
    made = sink(tmp_path, key=["n"])
    put(made, 1, alone(1))
    for number in range(2, 30):
        put(made, number, alone(number))
    read: list[int] = []
    original = iceberg_files.KeyedFiles._read

    def counted(self: Any, *given: Any) -> pa.Table:
        read.append(1)
        return original(self, *given)

    monkeypatch.setattr(iceberg_files.KeyedFiles, "_read", counted)
    put(made, 30, change(("t7", "7.50", 7, -1), ("new", "7.50", 7, 1)))
    assert len(read) == 2, "the key of one file, and its rows"
    assert len(content(tmp_path)) == 29


def test_others_may_expire_snapshots(tmp_path: Path) -> None:
    """J7: the mark survives its snapshot."""
    made = sink(tmp_path)
    for number in range(1, 6):
        put(made, number, alone(number))
    table = lake(tmp_path)
    with table.transaction() as transaction:
        # As a compaction by another engine: a snapshot without a mark.
        transaction.update_snapshot().fast_append().commit()
    old = [s.snapshot_id for s in table.refresh().snapshots()][:-1]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert sink(tmp_path).last() == mark(5)
    put(made, 6, alone(6))
    assert sink(tmp_path).last() == mark(6)
    assert len(content(tmp_path)) == 6


def test_a_rollback_takes_the_mark_back(tmp_path: Path) -> None:
    """J16: rows and mark belong together, so the pipeline notices."""
    made = sink(tmp_path)
    for number in range(1, 4):
        put(made, number, alone(number))
    table = lake(tmp_path)
    second = table.snapshots()[1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    assert sink(tmp_path).last() == mark(2)
    with pytest.raises(ConflictError):
        sink(tmp_path).write(mark(3), mark(4), alone(4))


def test_a_table_that_another_engine_replaced_has_no_mark(tmp_path: Path) -> None:
    """J16: CREATE OR REPLACE keeps the properties, and with them a mark, but none of the rows."""
    made = sink(tmp_path, key="customer")
    for number in range(1, 4):
        put(made, number, in_turn(number))
    table = lake(tmp_path)
    rows = table.scan().to_arrow()
    with table.transaction() as transaction:
        transaction._apply((RemoveSnapshotRefUpdate(ref_name="main"),))
    lake(tmp_path).append(rows.slice(0, 1))
    replaced = lake(tmp_path)
    assert replaced.properties["stepwell.transaction"] == "3"
    assert sink(tmp_path, key="customer").last() is None
    with pytest.raises(ConflictError):
        sink(tmp_path, key="customer").write(mark(3), mark(4), in_turn(4))


@pytest.mark.parametrize("marked", [True, False], ids=["sink", "another engine"])
def test_a_commit_upon_another_snapshot_changes_nothing(
    tmp_path: Path, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J16: the catalog compares snapshots; the library would try again on the other one."""
    made = sink(tmp_path, key="customer")
    put(made, 1, alone(1))

    def between() -> None:
        if marked:
            put(sink(tmp_path, key="customer"), 2, alone(2))
        else:
            with lake(tmp_path).transaction() as transaction:
                transaction.update_snapshot().fast_append().commit()

    original = Table._do_commit
    calls: list[int] = []

    def late(self: Table, *given: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            between()
        original(self, *given, **named)

    monkeypatch.setattr(Table, "_do_commit", late)
    before = set((tmp_path / "warehouse").rglob("*.parquet"))
    with pytest.raises(ConflictError if marked else UnavailableError):
        made.write(mark(1), mark(2), alone(2))
    assert len(content(tmp_path)) == (2 if marked else 1)
    if not marked:
        assert set((tmp_path / "warehouse").rglob("*.parquet")) == before, "nothing is left behind"
        assert made.last() == mark(1)
        made.write(mark(1), mark(2), alone(2))
        assert len(content(tmp_path)) == 2


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """J7: a table that Stepwell did not create is not its to change."""
    at = catalog(tmp_path)
    at.create_namespace("shop")
    at.create_table("shop.revenue", pa.schema([("a", pa.int64())]))
    for call in (lambda s: s.last(), lambda s: put(s, 1, alone(1))):
        with pytest.raises(InvalidError, match="Stepwell did not create"):
            call(sink(tmp_path))
    assert content(tmp_path) == []


def test_two_sinks_cannot_share_a_table(tmp_path: Path) -> None:
    """J7: each would take the other's progress for none."""
    put(sink(tmp_path, "one"), 1, alone(1))
    with pytest.raises(InvalidError, match="belongs to sink one"):
        sink(tmp_path, "two").last()


def test_a_table_made_but_never_filled_keeps_its_owner(tmp_path: Path) -> None:
    """Scenario 84, J7: killed between making the table and its first rows."""
    made: Any = sink(tmp_path)
    made._create(LINEAGE, alone(1))
    assert sink(tmp_path).last() is None
    with pytest.raises(InvalidError, match="another pipeline"):
        put(sink(tmp_path), 1, alone(1), OTHER)
    put(sink(tmp_path), 1, alone(1))
    assert sink(tmp_path).last() == mark(1)


def test_a_key_that_does_not_tell_rows_apart_is_refused(tmp_path: Path) -> None:
    """J7: one of the rows would silently replace the other."""
    two = change(("a", "1.00", 1, 1), ("a", "2.00", 2, 1))
    with pytest.raises(InvalidError, match="several rows with the same customer"):
        put(sink(tmp_path, key="customer"), 1, two)
    with pytest.raises(InvalidError, match="the view v has no column id"):
        put(sink(tmp_path, key="id"), 1, two)


def test_a_widening_that_iceberg_does_not_have_is_refused(tmp_path: Path) -> None:
    """J7: an integer cannot become a decimal; the table stays as it was."""
    put(sink(tmp_path), 1, alone(1))
    rows = alone(2)
    wide = rows.set_column(2, "n", rows.column("n").cast(pa.decimal128(38, 0)))
    with pytest.raises(InvalidError, match=r"column n of the table shop\.revenue is int64"):
        put(sink(tmp_path), 2, wide)
    assert sink(tmp_path).last() == mark(1)


def test_a_commit_is_on_disk_before_the_catalog_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: set[str]
) -> None:
    """Scenario 89, K8: the catalog's database syncs; what it refers to must have been synced."""
    unsynced: list[set[str]] = []
    from pyiceberg.catalog.sql import Session

    original = Session.commit

    def looked(self: Any) -> None:
        found = {str(path) for path in (tmp_path / "warehouse").rglob("*")}
        unsynced.append(found - synced)
        original(self)

    monkeypatch.setattr(Session, "commit", looked)
    made = sink(tmp_path, key="customer")
    for number in (1, 2):
        put(made, number, alone(number))
    assert len(unsynced) > 3
    assert set().union(*unsynced) == set()
    assert any(path.endswith(".parquet") for path in synced)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every path that was synced."""
    found: set[str] = set()
    fsync = os.fsync

    def recorded(opened: int) -> None:
        found.add(os.readlink(f"/proc/self/fd/{opened}"))
        fsync(opened)

    monkeypatch.setattr(os, "fsync", recorded)
    return found


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "changes", "key": "id"}, "a log of changes has no key"),
        ({"mode": "table"}, "mode: table needs a key"),
        ({"identifier": "revenue"}, "option identifier must be a namespace and a table"),
        ({"path": "x"}, "sink out has no option path"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, object], reason: str) -> None:
    """D10: without connecting to anything."""
    with pytest.raises(ConfigError, match=reason):
        sink(tmp_path, **options)


def test_a_catalog_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    """J7: a sink that is down is waited for."""
    down = {"type": "rest", "uri": "http://127.0.0.1:9"}
    with pytest.raises(UnavailableError, match=r"sink out cannot use shop\.revenue"):
        sink(tmp_path, catalog=down).last()
    with pytest.raises(ConfigError, match="option catalog"):
        sink(tmp_path, catalog={"type": "nothing"}).last()
