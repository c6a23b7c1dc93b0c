"""The Iceberg source: a snapshot, then the changes of each snapshot of a branch."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from stepwell.connectors import iceberg_files, lake_rows
from stepwell.connectors.registry import make_source
from stepwell.engine.ports import Intake, Limits, Source
from stepwell.errors import ConfigError, InvalidError, ReplayMismatchError, UnavailableError
from stepwell.testing import ManualEnv
from tests.connectors.tables import Bag, Keyed, rows, table
from tests.connectors.test_delta_source import BAG, KEYED, SCHEMA, everything, numbered, same, some


def address(folder: Path) -> dict[str, str]:
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    return {"type": "sql", "uri": uri, "warehouse": warehouse}


def source(folder: Path, sql: str = KEYED, **options: object) -> Source:
    at = {"identifier": "shop.t", "catalog": address(folder), "interval": "0s", **options}
    given = {"table": "t", "type": "iceberg", **at}
    return make_source("lake", given, table(sql), ManualEnv(), base=folder)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = load_catalog("default", **address(tmp_path))
    made.create_namespace("shop")
    return made


@pytest.fixture
def lake(catalog: Catalog) -> Table:
    return catalog.create_table("shop.t", SCHEMA)


def content(lake: Table) -> list[tuple[object, ...]]:
    return sorted(rows(lake.refresh().scan().to_arrow().select(SCHEMA.names)), key=repr)


def files(lake: Table) -> list[Path]:
    found = [Path(task.file.file_path.removeprefix("file://")) for task in lake.scan().plan_files()]
    return sorted(found)


@pytest.fixture(params=["net", "all rows"])
def netting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "all rows":
        monkeypatch.setattr(lake_rows, "NET_ROWS_MAX", -1)
    return str(request.param)


def random_write(lake: Table, chance: random.Random, keyed: bool) -> None:
    """One change of a table: rows inserted, changed, deleted, rolled back, or columns added."""
    lake.refresh()
    kind = chance.choice(["append", "overwrite", "delete", "upsert", "column", "rollback", "all"])
    known = {row[0] for row in content(lake)}
    fresh = [i for i in chance.sample(range(60), 8) if not keyed or i not in known]
    low = chance.randrange(60)
    near = f"id >= {low} and id < {low + 6}"
    names = lake.schema().column_names

    def shaped(data: pa.Table) -> pa.Table:
        for name in names[len(SCHEMA.names) :]:
            data = data.append_column(name, pa.nulls(data.num_rows, pa.int64()))
        return data

    if kind == "append" and fresh:
        lake.append(shaped(numbered(*fresh, word=chance.choice("xyz"))))
    elif kind == "overwrite":
        lake.overwrite(shaped(numbered(*range(low, low + 6), word="o")), near)
    elif kind == "delete":
        lake.delete(near)
    elif kind == "upsert" and keyed and len(names) == 3:  # Else pyiceberg may refuse it.
        lake.upsert(shaped(numbered(*range(low, low + 4), word="u")), join_cols=["id"])
    elif kind == "column" and len(names) < 6:
        with lake.update_schema() as update:
            update.add_column(f"c{len(names)}", LongType())
    elif kind == "rollback":
        parent = lake.metadata.current_snapshot()
        if parent is not None and parent.parent_snapshot_id is not None:
            lake.manage_snapshots().rollback_to_snapshot(parent.parent_snapshot_id).commit()
    elif kind == "all" and chance.random() < 0.3:
        lake.overwrite(shaped(numbered(*range(low, low + 20))))


@pytest.mark.parametrize("keyed", [True, False], ids=["key", "bag"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
def test_a_source_follows_whatever_is_done_to_a_table(
    tmp_path: Path, lake: Table, keyed: bool, seed: int, netting: str
) -> None:
    """S2, J5: whatever the snapshots do and wherever steps end, the table is what Iceberg shows;
    and another process reads the same steps again.
    """
    chance = random.Random(seed)
    sql = KEYED if keyed else BAG
    lake.append(numbered(*range(20)))
    copy = Keyed((0,)) if keyed else Bag()
    steps: list[Intake] = []
    for _ in range(15):
        for _ in range(chance.choice([1, 1, 3])):
            random_write(lake, chance, keyed)
        reader = source(tmp_path, sql)
        limits = Limits(rows_max=chance.choice([1, 3, 7, 1000]))
        for step in everything(reader, steps[-1].position if steps else None, limits):
            copy.apply(step.change)
            steps.append(step)
            assert step.rows <= limits.rows_max
            assert not step.bad
        reader.close()
        found = copy.rows.values() if keyed else Counter(copy.rows).elements()
        assert sorted(found, key=repr) == content(lake)
    assert not +copy.rejected
    fresh = source(tmp_path, sql)
    for step in chance.sample(steps, len(steps)):
        assert same(fresh.read(json.loads(json.dumps(step.reference))), step)
    fresh.close()
    assert len(steps) > 12


def test_a_small_change_of_a_large_file_is_a_small_step(tmp_path: Path, lake: Table) -> None:
    """S2: a copied row is no change, and manifests that did not change are not read again."""
    for start in range(0, 3000, 1000):
        lake.append(numbered(*range(start, start + 1000)))
    reader = source(tmp_path, BAG)
    (first,) = everything(reader)
    lake.overwrite(some((7, "new", None)), "id = 7")
    (step,) = everything(reader, first.position)
    assert step.rows == 2
    assert rows(step.change.delete) == [(7, "w7", None)]
    assert rows(step.change.put) == [(7, "new", None)]
    named = {item[0] for span in step.reference["spans"] for item in span["files"]}
    assert len(named) < 5, "files that did not change are not in the reference"
    reader.close()


def test_a_renamed_column_is_the_same_column(tmp_path: Path, lake: Table) -> None:
    """S2: files that were written under the old name have the same field id."""
    lake.append(numbered(1))
    with lake.update_schema() as update:
        update.rename_column("word", "text")
        update.add_column("extra", LongType())
    data = numbered(2).rename_columns(["id", "text", "price"])
    lake.append(data.append_column("extra", pa.array([5], pa.int64())))
    sql = "CREATE TABLE t (id BIGINT, TEXT STRING, extra BIGINT DEFAULT 9)"
    reader = source(tmp_path, sql)
    (step,) = everything(reader)
    assert rows(step.change.put) == [(1, "w1", None), (2, "w2", 5)]
    assert same(source(tmp_path, sql).read(step.reference), step)
    with pytest.raises(InvalidError, match=r"the table shop.t has no column word"):
        source(tmp_path, BAG).poll(None, Limits())


def test_rows_that_do_not_fit_are_dead_letters_once(
    tmp_path: Path, lake: Table, netting: str
) -> None:
    """J13: a row that was never taken is not rejected again when its file is rewritten."""
    sql = "CREATE TABLE t (id BIGINT, word VARCHAR(3), price DECIMAL(10,2))"
    lake.append(some((1, "good", None), (2, "ok", None)))
    reader = source(tmp_path, sql)
    (first,) = everything(reader)
    assert [bad.reason for bad in first.bad] == ["word: 4 characters are too long for VARCHAR(3)"]
    lake.overwrite(some((2, "yes", None)), "id = 2")
    taken = everything(reader, first.position)
    assert [bad for step in taken for bad in step.bad] == []


def test_an_expired_snapshot_is_named(tmp_path: Path, lake: Table) -> None:
    """J5: it is not known any more what was read, so nothing can be compared with it."""
    lake.append(numbered(1))
    (first,) = everything(source(tmp_path))
    lake.append(numbered(2))
    lake.append(numbered(3))
    old = first.position["at"]
    lake.maintenance.expire_snapshots().by_id(old).commit()
    with pytest.raises(
        ReplayMismatchError, match=f"snapshot {old} of the table .* has expired"
    ) as e:
        everything(source(tmp_path), first.position)
    assert "give the source a new table" in str(e.value.hint)
    fresh = source(tmp_path)
    assert same(fresh.read(first.reference), first), "replay needs the files alone"
    for file in files(lake):
        file.unlink()
    with pytest.raises(ReplayMismatchError, match=r"a data file of version .* is gone"):
        fresh.read(first.reference)


def test_a_snapshot_that_expires_while_it_is_read_is_named(tmp_path: Path, lake: Table) -> None:
    """J5: half of a version is no state of a table."""
    lake.append(numbered(*range(10)))
    reader = source(tmp_path)
    step: Any = reader.poll(None, Limits(rows_max=4))
    lake.append(numbered(11))
    lake.maintenance.expire_snapshots().by_id(step.position["to"]).commit()
    with pytest.raises(ReplayMismatchError, match="has expired"):
        source(tmp_path).poll(step.position, Limits())


def test_a_rollback_takes_rows_back(tmp_path: Path, lake: Table) -> None:
    """S2: the branch moves to a snapshot before the one that was read."""
    lake.append(numbered(1))
    before = lake.metadata.current_snapshot_id
    lake.append(numbered(2))
    reader = source(tmp_path)
    (first,) = everything(reader)
    assert before is not None
    lake.manage_snapshots().rollback_to_snapshot(before).commit()
    lake.append(numbered(3))
    (step,) = everything(reader, first.position)
    assert rows(step.change.delete) == [(2,)]
    assert rows(step.change.put) == [(3, "w3", None)]


def test_compaction_changes_no_row(tmp_path: Path, lake: Table, netting: str) -> None:
    """S2: another engine's `replace` copies rows into other files; the position moves on."""
    for number in range(3):
        lake.append(numbered(number))
    reader = source(tmp_path)
    (first,) = everything(reader)
    compact(lake)
    assert len(files(lake)) == 1
    (step,) = everything(reader, first.position)
    assert (step.rows, step.position["at"]) == (0, lake.metadata.current_snapshot_id)
    lake.append(numbered(4))
    (step,) = everything(reader, step.position)
    assert rows(step.change.put) == [(4, "w4", None)]


def compact(lake: Table) -> None:
    """Replace all files by one with the same rows; pyiceberg itself cannot."""
    data = lake.refresh().scan().to_arrow()
    with lake.transaction() as transaction:
        producer: Any = transaction.update_snapshot().overwrite()
        for task in lake.scan().plan_files():
            producer.delete_data_file(task.file)
        for file in _dataframe_to_data_files(transaction.table_metadata, data, lake.io):
            producer.append_data_file(file)
        producer.commit()
        for update in transaction._updates:
            if isinstance(update, AddSnapshotUpdate) and update.snapshot.summary is not None:
                object.__setattr__(update.snapshot.summary, "operation", Operation.REPLACE)
    lake.refresh()


def test_a_branch_is_read_instead_of_main(tmp_path: Path, lake: Table) -> None:
    """S2: only its snapshots count."""
    lake.append(numbered(1))
    with pytest.raises(UnavailableError, match=r"shop.t has no branch audit"):
        source(tmp_path, branch="audit").poll(None, Limits())
    head = lake.metadata.current_snapshot_id
    assert head is not None
    lake.manage_snapshots().create_branch(head, "audit").commit()
    lake.append(numbered(2), branch="audit")
    lake.append(numbered(3))
    taken = {
        branch: [
            row[0]
            for step in everything(source(tmp_path, branch=branch))
            for row in rows(step.change.put)
        ]
        for branch in ("main", "audit")
    }
    assert taken == {"main": [1, 3], "audit": [1, 2]}


def test_a_table_that_was_created_again_is_refused(
    tmp_path: Path, catalog: Catalog, lake: Table
) -> None:
    """J5: it has another id, and other rows."""
    lake.append(numbered(1))
    (first,) = everything(source(tmp_path))
    catalog.drop_table("shop.t")
    catalog.create_table("shop.t", SCHEMA).append(numbered(2))
    with pytest.raises(ReplayMismatchError, match="the table is another one"):
        everything(source(tmp_path), first.position)


def test_delete_files_are_refused_by_name(
    tmp_path: Path, lake: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: with them a data file holds rows that the table does not have."""
    from pyiceberg.manifest import ManifestContent, ManifestFile

    lake.append(numbered(1, 2))
    monkeypatch.setattr(ManifestFile, "content", ManifestContent.DELETES)
    with pytest.raises(InvalidError, match=r"delete files .* not supported") as raised:
        everything(source(tmp_path))
    assert "copy-on-write" in str(raised.value.hint)


def test_files_of_a_migrated_table_are_read(tmp_path: Path, catalog: Catalog) -> None:
    """S2: they have no field ids, and no columns for their partition."""
    made = catalog.create_table("shop.t", SCHEMA)
    with made.update_spec() as update:
        update.add_field("word", IdentityTransform(), "word")
    folder = tmp_path / "warehouse" / "word=a"
    folder.mkdir(parents=True)
    pq.write_table(numbered(1), folder / "plain.parquet")
    made.refresh().append(numbered(2))
    (step,) = everything(source(tmp_path))
    assert rows(step.change.put) == [(2, "w2", None)]
    with made.transaction() as change:
        change.set_properties({"x": "y"})
    pq.write_table(numbered(5), folder / "more.parquet")
    other = catalog.create_table("shop.plain", SCHEMA)
    other.add_files([str(folder / "more.parquet")])
    reader = source(tmp_path, identifier="shop.plain")
    assert [rows(s.change.put) for s in everything(reader)] == [[(5, "w5", None)]]


def test_a_table_that_is_not_there_is_waited_for(tmp_path: Path, catalog: Catalog) -> None:
    """J15: it may be created later; and so may the catalog's answer."""
    reader = source(tmp_path)
    with pytest.raises(UnavailableError, match=r"there is no table shop.t"):
        reader.poll(None, Limits())
    catalog.create_table("shop.t", SCHEMA)
    assert reader.poll(None, Limits()) is None
    catalog.load_table("shop.t").append(numbered(1))
    assert [step.rows for step in everything(reader)] == [1]
    down = {"type": "rest", "uri": "http://127.0.0.1:9"}
    with pytest.raises(UnavailableError, match=r"source lake cannot use shop.t"):
        source(tmp_path, catalog=down).poll(None, Limits())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"identifier": "t"}, "option identifier must be a namespace and a table"),
        ({"catalog": "x"}, "option catalog must be a mapping"),
        ({"branches": "x"}, "has no option branches\nhint: did you mean branch"),
    ],
)
def test_options_are_checked(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    """D10: at deploy, without connecting to anything."""
    with pytest.raises(ConfigError) as raised:
        source(tmp_path, **change)
    assert reason in str(raised.value)


def test_relative_paths_of_a_catalog_start_at_the_project(tmp_path: Path, lake: Table) -> None:
    """D10: not where the process was started."""
    lake.append(numbered(1))
    near = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse"}
    (step,) = everything(source(tmp_path, catalog=near))
    assert step.rows == 1


def test_manifests_are_read_once(
    tmp_path: Path, lake: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They never change, and there may be thousands."""
    lake.append(numbered(1))
    reader = source(tmp_path)
    (first,) = everything(reader)
    reads = iceberg_files.MANIFESTS.reads
    lake.append(numbered(2))
    everything(reader, first.position)
    assert iceberg_files.MANIFESTS.reads == reads + 1


def test_few_files_of_many_manifests_stay_in_memory(lake: Table) -> None:
    """A large table would leave hundreds of megabytes behind after its snapshot was read."""
    for number in range(7):
        lake.append(numbered(number))
    snapshot = lake.refresh().current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(lake.io)
    cache = iceberg_files.ManifestCache(3)
    for manifest in (*manifests, *manifests[-3:], manifests[0]):
        assert len(cache.files_of(manifest, lake.io)) == 1
        assert cache.files <= 3
    assert (len(manifests), cache.reads) == (7, 8)
