"""The Delta source: a snapshot, then the changes of each version, and the same rows at replay."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake

from stepwell.connectors import lake_rows
from stepwell.connectors.registry import make_source
from stepwell.engine.ports import Intake, Limits, Source
from stepwell.errors import ConfigError, InvalidError, ReplayMismatchError, UnavailableError
from stepwell.testing import ManualEnv
from tests.connectors.tables import Bag, Keyed, rows, table

KEYED = "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, word STRING, price DECIMAL(10,2))"
BAG = "CREATE TABLE t (id BIGINT, word STRING, price DECIMAL(10,2))"
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("price", pa.decimal128(10, 2))])
FEED = {"delta.enableChangeDataFeed": "true"}


def source(
    folder: Path, sql: str = KEYED, env: ManualEnv | None = None, interval: str = "0s"
) -> Source:
    options = {"table": "t", "type": "delta", "path": "d", "interval": interval}
    return make_source("lake", options, table(sql), env or ManualEnv(), base=folder)


def some(*given: tuple[object, ...]) -> pa.Table:
    listed = [dict(zip(SCHEMA.names, row, strict=False)) for row in given]
    return pa.Table.from_pylist(listed, SCHEMA)


def numbered(*ids: int, word: str = "w") -> pa.Table:
    return some(*((i, f"{word}{i}", None) for i in ids))


def write(folder: Path, data: pa.Table, mode: Any = "append", **given: Any) -> None:
    write_deltalake(folder / "d", data, mode=mode, **given)


def everything(reader: Source, after: object = None, limits: Limits | None = None) -> list[Intake]:
    taken: list[Intake] = []
    while (step := reader.poll(after, limits or Limits())) is not None:
        assert isinstance(step, Intake)
        taken.append(step)
        after = json.loads(json.dumps(step.position))
    return taken


def content(folder: Path) -> list[tuple[object, ...]]:
    found = rows(DeltaTable(folder / "d").to_pyarrow_table().select(SCHEMA.names))
    return sorted(found, key=repr)


def counted(taken: list[Intake]) -> tuple[int, int]:
    """How many rows were put, and deleted."""
    return (
        sum(len(rows(step.change.put)) for step in taken),
        sum(len(rows(step.change.delete)) for step in taken),
    )


def same(one: Intake, other: Intake) -> bool:
    return all(
        rows(getattr(one.change, part)) == rows(getattr(other.change, part))
        for part in ("put", "delete", "discard")
    ) and (one.rows, one.bad) == (other.rows, other.bad)


@pytest.fixture(params=["net", "all rows"])
def netting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "all rows":
        monkeypatch.setattr(lake_rows, "NET_ROWS_MAX", -1)
    return str(request.param)


def random_write(folder: Path, chance: random.Random, keyed: bool) -> None:
    """One version of a table: rows inserted, changed, deleted, or only rewritten."""
    there = DeltaTable(folder / "d")
    kind = chance.choice(["append", "update", "delete", "merge", "overwrite", "compact", "none"])
    known = {row[0] for row in content(folder)}
    fresh = [i for i in chance.sample(range(60), 8) if not keyed or i not in known]
    low, high = sorted(chance.sample(range(60), 2))
    if kind == "append" and fresh:
        write(folder, numbered(*fresh, word=chance.choice("xyz")))
    elif kind == "update":
        there.update(predicate=f"id between {low} and {high}", updates={"word": "word || 'u'"})
    elif kind == "delete":
        there.delete(f"id between {low} and {low + 5}")
    elif kind == "merge" and fresh and keyed:
        merge = there.merge(numbered(*fresh, low, word="m"), "t.id = s.id", "s", "t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    elif kind == "overwrite" and chance.random() < 0.3:
        write(folder, numbered(*range(low, high)), "overwrite")
    elif kind == "compact":
        there.optimize.compact()


@pytest.mark.parametrize("feed", [False, True], ids=["files", "feed"])
@pytest.mark.parametrize("keyed", [True, False], ids=["key", "bag"])
@pytest.mark.parametrize("seed", range(2))
def test_a_source_follows_whatever_is_done_to_a_table(
    tmp_path: Path, keyed: bool, feed: bool, seed: int, netting: str
) -> None:
    """S2, J5: whatever the versions do and wherever steps end, the table is what Delta shows; and
    another process reads the same steps again.
    """
    chance = random.Random(seed)
    sql = KEYED if keyed else BAG
    write(tmp_path, numbered(*range(20)), configuration=FEED if feed else None)
    copy = Keyed((0,)) if keyed else Bag()
    steps: list[Intake] = []
    for _ in range(25):
        for _ in range(chance.choice([1, 1, 3])):
            random_write(tmp_path, chance, keyed)
        reader = source(tmp_path, sql)
        limits = Limits(rows_max=chance.choice([1, 3, 7, 1000]))
        for step in everything(reader, steps[-1].position if steps else None, limits):
            copy.apply(step.change)
            steps.append(step)
            assert step.rows <= limits.rows_max
            assert not step.bad
        reader.close()
        found = copy.rows.values() if keyed else Counter(copy.rows).elements()
        assert sorted(found, key=repr) == content(tmp_path)
    assert not +copy.rejected
    fresh = source(tmp_path, sql)
    for step in chance.sample(steps, len(steps)):
        assert same(fresh.read(json.loads(json.dumps(step.reference))), step)
    assert len(steps) > 25


def test_a_small_change_of_a_large_file_is_a_small_step(tmp_path: Path) -> None:
    """S2: Delta rewrites whole files; the rows that are only copied are no change."""
    write(tmp_path, numbered(*range(1000)))
    reader = source(tmp_path, BAG)
    (first,) = everything(reader)
    DeltaTable(tmp_path / "d").update(predicate="id = 7", updates={"word": "'new'"})
    (step,) = everything(reader, first.position)
    assert step.rows == 2
    assert rows(step.change.delete) == [(7, "w7", None)]
    assert rows(step.change.put) == [(7, "new", None)]


def test_a_change_data_feed_is_read_instead_of_files(tmp_path: Path) -> None:
    """S2: with a feed the removed file need not be there any more."""
    write(tmp_path, numbered(*range(1000)), configuration=FEED)
    reader = source(tmp_path)
    (first,) = everything(reader)
    DeltaTable(tmp_path / "d").update(predicate="id = 7", updates={"word": "'new'"})
    for file in (tmp_path / "d").glob("*.parquet"):
        file.unlink()
    (step,) = everything(reader, first.position)
    assert step.rows == 2
    assert rows(step.change.put) == [(7, "new", None)]


def test_compaction_changes_no_row(tmp_path: Path, netting: str) -> None:
    """S2: its files are added and removed without `dataChange`; the position moves on."""
    for number in range(3):
        write(tmp_path, numbered(number))
    reader = source(tmp_path)
    (first,) = everything(reader)
    DeltaTable(tmp_path / "d").optimize.compact()
    (step,) = everything(reader, first.position)
    assert (step.rows, step.position["at"]) == (0, 3)
    assert same(source(tmp_path).read(step.reference), step)
    assert everything(reader, step.position) == []


def test_versions_are_counted_that_wait(tmp_path: Path) -> None:
    """The lag is what the last poll saw and did not return."""
    write(tmp_path, numbered(0, 1, 2))
    reader: Any = source(tmp_path)
    first = reader.poll(None, Limits())
    for number in range(3, 8):
        write(tmp_path, numbered(number))
    step = reader.poll(first.position, Limits(rows_max=2))
    assert (step.rows, reader.waiting()) == (2, "3 versions behind")
    assert reader.lag() == {"": 3}
    everything(reader, step.position)
    assert (reader.waiting(), reader.lag()) == (None, {})


def test_a_table_without_news_is_not_looked_at_all_the_time(tmp_path: Path) -> None:
    """The engine polls ten times a second; and a run that ends waits for the next look."""
    env = ManualEnv()
    write(tmp_path, numbered(1))
    reader: Any = source(tmp_path, env=env, interval="5s")
    (first,) = everything(reader)
    assert reader.settles_in_s(env.uptime()) is None, "the last poll has looked"
    write(tmp_path, numbered(2))
    env.advance(2)
    assert reader.poll(first.position, Limits()) is None
    assert reader.settles_in_s(env.uptime()) == pytest.approx(3)
    assert reader.settles_in_s(0.0) is None, "a run that began before has looked"
    env.advance(3)
    assert reader.poll(first.position, Limits()).rows == 1
    assert reader.settles_in_s(env.uptime()) is None


def test_two_tables_are_not_waited_for_in_turns(tmp_path: Path) -> None:
    """J8: looked at at different times, one of them always rests; `run --once` must end."""
    env = ManualEnv()
    write(tmp_path, numbered(1))
    readers: list[Any] = [source(tmp_path, env=env, interval="5s") for _ in range(2)]
    began = env.uptime()
    after = [everything(reader)[-1].position for reader in readers]
    for _ in range(3):
        env.advance(3)
        found = [r.poll(at, Limits()) for r, at in zip(readers, after, strict=True)]
        assert found == [None, None]
        assert [reader.settles_in_s(began) for reader in readers] == [None, None]


def test_partition_values_are_columns(tmp_path: Path) -> None:
    """S2: they stand in the log and not in the files, as text, and NULL is a value."""
    sql = "CREATE TABLE t (id BIGINT, p STRING, d DATE, n INT, b BOOLEAN, at TIMESTAMP_NTZ)"
    given = pa.table(
        {
            "id": [1, 2],
            "p": ["a b/ü%", None],
            "d": pa.array([1, None], pa.int32()).cast(pa.date32()),
            "n": pa.array([5, None], pa.int32()),
            "b": [True, None],
            "at": pa.array([1_000_000, None], pa.timestamp("us")),
        }
    )
    write(tmp_path, given.slice(0, 1), partition_by=["p", "d", "n", "b", "at"])
    reader = source(tmp_path, sql)
    (first,) = everything(reader)
    write(tmp_path, given.slice(1))
    (second,) = everything(reader, first.position)
    assert rows(first.change.put) + rows(second.change.put) == rows(given)
    DeltaTable(tmp_path / "d").delete("id = 1")
    (third,) = everything(reader, second.position)
    assert rows(third.change.delete) == rows(given.slice(0, 1))
    fresh = source(tmp_path, sql)
    for step in (first, second, third):
        assert not step.bad
        assert same(fresh.read(step.reference), step)


@pytest.mark.parametrize("feed", [False, True], ids=["files", "feed"])
def test_an_empty_partition_value_is_null_wherever_it_is_read(tmp_path: Path, feed: bool) -> None:
    """The row would be inserted with NULL by the snapshot, and retracted with an empty text."""
    settings = FEED if feed else {}
    write(tmp_path, numbered(1, 2), partition_by=["word"], configuration=settings)
    write(tmp_path, some((3, "", None), (4, "", None)))
    reader = source(tmp_path, BAG)
    taken = everything(reader)
    DeltaTable(tmp_path / "d").delete("id = 3")
    write(tmp_path, some((5, "", None)))
    [more] = everything(reader, taken[-1].position)
    assert rows(more.change.delete) == [(3, None, None)]
    assert rows(more.change.put) == [(5, None, None)]
    assert content(tmp_path)[-2:] == [(4, None, None), (5, None, None)]


def test_columns_that_were_added_are_null_in_older_files(tmp_path: Path) -> None:
    """S2: a column that no file has yet is not a missing column."""
    write(tmp_path, numbered(1))
    write(
        tmp_path,
        numbered(2).drop_columns(["price"]).append_column("extra", [["e"]]),
        schema_mode="merge",
    )
    sql = "CREATE TABLE t (id BIGINT, EXTRA STRING DEFAULT 'd', word STRING)"
    (step,) = everything(source(tmp_path, sql))
    assert sorted(rows(step.change.put)) == [(1, None, "w1"), (2, "e", "w2")]


def test_a_declared_column_that_the_table_lacks_is_named(tmp_path: Path) -> None:
    """S2: a misspelt name must not become NULL."""
    write(tmp_path, numbered(1))
    with pytest.raises(InvalidError, match="has no column wrod"):
        source(tmp_path, "CREATE TABLE t (id BIGINT, wrod STRING)").poll(None, Limits())


def test_rows_that_do_not_fit_are_dead_letters_once(tmp_path: Path, netting: str) -> None:
    """J13: a row that was never taken is not rejected again when its file is rewritten."""
    sql = "CREATE TABLE t (id BIGINT, word VARCHAR(3), price DECIMAL(10,2))"
    write(tmp_path, some((1, "good", None), (2, "ok", None)))
    reader = source(tmp_path, sql)
    (first,) = everything(reader)
    assert [(bad.reason, "version 0, " in bad.where) for bad in first.bad] == [
        ("word: 4 characters are too long for VARCHAR(3)", True)
    ]
    assert rows(first.change.put) == [(2, "ok", None)]
    DeltaTable(tmp_path / "d").update(predicate="id = 2", updates={"word": "'yes'"})
    (second,) = everything(reader, first.position)
    assert not second.bad
    assert rows(second.change.put) == [(2, "yes", None)]
    DeltaTable(tmp_path / "d").delete()
    (third,) = everything(reader, second.position)
    assert not third.bad
    assert same(source(tmp_path, sql).read(second.reference), second)


def test_a_delete_without_a_row_says_where_it_stands(tmp_path: Path) -> None:
    """J13: the dead letter names version, file and row."""
    write(tmp_path, numbered(1, 2))
    reader = source(tmp_path)
    (first,) = everything(reader)
    DeltaTable(tmp_path / "d").delete("id = 2")
    (step,) = everything(reader, first.position)
    assert step.deleted is not None
    ((where, text),) = step.deleted([0])
    assert where.startswith("version 1, part-")
    assert where.endswith(".parquet, row 2")
    assert text is not None
    assert json.loads(text)["id"] == 2


@pytest.mark.parametrize("rows_max", [7, 100, 130])
def test_a_file_of_several_row_groups_is_read_from_anywhere(tmp_path: Path, rows_max: int) -> None:
    """J5: a step in the middle of a large file is read again without what is before it."""
    small = WriterProperties(max_row_group_size=100)
    write(tmp_path, numbered(*range(450)), writer_properties=small)
    steps = everything(source(tmp_path), limits=Limits(rows_max=rows_max))
    ids = [row[0] for step in steps for row in rows(step.change.put)]
    assert ids == list(range(450))
    fresh = source(tmp_path)
    for step in reversed(steps):
        assert same(fresh.read(step.reference), step)
    after: Any = steps[1].position
    assert rows(everything(source(tmp_path), after)[0].change.put)[0][0] == 2 * rows_max


def test_another_process_continues_inside_a_version(tmp_path: Path, netting: str) -> None:
    """J8: the log does not tell how many rows a removed file has."""
    for start in (0, 10, 20):
        write(tmp_path, numbered(*range(start, start + 10)))
    (first,) = everything(source(tmp_path, BAG))
    write(tmp_path, numbered(*range(5, 40), word="new"), "overwrite")
    copy, position = Bag(rows(first.change.put)), first.position
    while (step := source(tmp_path, BAG).poll(position, Limits(rows_max=4))) is not None:
        assert isinstance(step, Intake)
        copy.apply(step.change)
        position = step.position
    assert sorted(Counter(copy.rows).elements(), key=repr) == content(tmp_path)
    assert not +copy.rejected


def test_a_table_of_partition_columns_alone_has_rows(tmp_path: Path) -> None:
    """S2: nothing is read from its files but the number of rows."""
    write(tmp_path, pa.table({"id": [1, 2], "p": ["a", "a"]}), partition_by=["p"])
    (step,) = everything(source(tmp_path, "CREATE TABLE t (p STRING)"))
    assert rows(step.change.put) == [("a",), ("a",)]


def test_a_vacuumed_file_is_named_at_replay(tmp_path: Path) -> None:
    """J5: what cannot be read again must not be replayed as something else."""
    for number in range(3):
        write(tmp_path, numbered(number))
    (step,) = everything(source(tmp_path))
    there = DeltaTable(tmp_path / "d")
    there.optimize.compact()
    there.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(ReplayMismatchError, match="a data file of version 2 is gone") as raised:
        source(tmp_path).read(step.reference)
    assert "restore the pipeline from a checkpoint" in str(raised.value.hint)


def test_replay_needs_no_log(tmp_path: Path) -> None:
    """J5: logs are cleaned up sooner than files are vacuumed."""
    write(tmp_path, numbered(1, 2))
    reader = source(tmp_path)
    (first,) = everything(reader)
    DeltaTable(tmp_path / "d").update(predicate="id = 2", updates={"word": "'new'"})
    (second,) = everything(reader, first.position)
    for file in (tmp_path / "d" / "_delta_log").iterdir():
        file.unlink()
    fresh = source(tmp_path)
    assert same(fresh.read(first.reference), first)
    assert same(fresh.read(second.reference), second)


def test_a_file_that_changed_is_a_mismatch(tmp_path: Path) -> None:
    """J5: data files never change; one that did holds other rows than those that were taken."""
    import pyarrow.parquet as pq

    write(tmp_path, numbered(1, 2))
    (step,) = everything(source(tmp_path))
    (file,) = (tmp_path / "d").glob("*.parquet")
    pq.write_table(numbered(1, 3), file)
    with pytest.raises(ReplayMismatchError, match="version 0 had 2 rows with checksum"):
        source(tmp_path).read(step.reference)
    file.write_bytes(b"PAR1 not Parquet PAR1")
    with pytest.raises(UnavailableError, match="cannot read a data file of version 0"):
        source(tmp_path).read(step.reference)


def test_an_unread_version_that_is_gone_is_named(tmp_path: Path) -> None:
    """J5: neither its log nor its files can be skipped silently."""
    write(tmp_path, numbered(1))
    reader = source(tmp_path)
    (first,) = everything(reader)
    for number in (2, 3, 4):
        write(tmp_path, numbered(number))
    there = DeltaTable(tmp_path / "d")
    there.create_checkpoint()
    log = tmp_path / "d" / "_delta_log" / f"{1:020d}.json"
    kept = log.read_bytes()
    log.unlink()
    with pytest.raises(
        ReplayMismatchError, match=r"version 1 of the table .* is gone from its log"
    ):
        everything(source(tmp_path), first.position)
    log.write_bytes(kept)
    there.optimize.compact()
    there.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(ReplayMismatchError, match="a data file of version 1 is gone"):
        everything(reader, first.position)
    assert everything(source(tmp_path)), "a new table starts with a snapshot"


@pytest.mark.parametrize("versions", [1, 5])
def test_a_table_that_was_created_again_is_refused(tmp_path: Path, versions: int) -> None:
    """J5: its versions have the same numbers, and other rows."""
    import shutil

    env = ManualEnv()
    for number in range(3):
        write(tmp_path, numbered(number))
    reader = source(tmp_path, env=env)
    (first,) = everything(reader)
    shutil.rmtree(tmp_path / "d")
    for number in range(versions):
        write(tmp_path, numbered(number + 10))
    env.advance(11)
    with pytest.raises(ReplayMismatchError, match="the table is another one"):
        everything(reader, first.position)


def test_a_log_that_was_cut_is_refused(tmp_path: Path) -> None:
    """J5: the versions to come will have numbers that were read already."""
    for number in range(3):
        write(tmp_path, numbered(number))
    (first,) = everything(source(tmp_path))
    (tmp_path / "d" / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(
        ReplayMismatchError, match="ends at version 1, but was read up to version 2"
    ):
        everything(source(tmp_path), first.position)


def edit_log(folder: Path, version: int, change: Callable[[dict[str, Any]], None]) -> None:
    log = folder / "d" / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        change(action)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_deletion_vectors_and_column_mapping_are_refused_by_name(tmp_path: Path) -> None:
    """S2: with them, a data file does not hold the rows of the table."""
    write(tmp_path, numbered(1, 2))
    (first,) = everything(source(tmp_path))
    write(tmp_path, numbered(3))
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}

    def add_vector(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["deletionVector"] = vector

    edit_log(tmp_path, 1, add_vector)
    with pytest.raises(InvalidError, match=r"deletion vector of part-.* in version 1") as raised:
        everything(source(tmp_path), first.position)
    assert "REORG" in str(raised.value.hint)

    def map_columns(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"

    edit_log(tmp_path, 0, map_columns)
    with pytest.raises(InvalidError, match=r"column mapping .*=name"):
        everything(source(tmp_path))


def test_a_table_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    """J15: it may be created later."""
    reader = source(tmp_path)
    with pytest.raises(UnavailableError, match="there is no table at"):
        reader.poll(None, Limits())
    write(tmp_path, numbered(1))
    assert counted(everything(reader)) == (1, 0)


def test_options_are_checked(tmp_path: Path) -> None:
    """D10: at deploy, without opening anything."""
    with pytest.raises(ConfigError, match="option path must be a text"):
        make_source("s", {"table": "t", "type": "delta"}, table(BAG), ManualEnv(), base=tmp_path)
    wrong = {"table": "t", "type": "delta", "path": "d", "format": "json"}
    with pytest.raises(ConfigError, match="has no option format"):
        make_source("s", wrong, table(BAG), ManualEnv(), base=tmp_path)
