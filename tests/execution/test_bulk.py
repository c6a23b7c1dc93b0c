"""Bulk reads on Spark: a pipeline that loads files by executors holds what one holds without."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from stepwell.connectors import bulk_files
from stepwell.connectors.registry import make_sink, make_source
from stepwell.engine.events import Committed
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Sink
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark import blocks, executor, shared
from stepwell.execution.spark.bulk import BulkInput
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.runs import LocalRuns
from stepwell.execution.spark.shared import SharedRuns
from stepwell.lsm import large_change
from stepwell.lsm.bulk import Decode, Staged
from stepwell.lsm.large_change import LargeChange
from stepwell.lsm.limits import MemoryLimits
from stepwell.sql.statements import Table, parse_statements
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.text import Source as Text

SQL = """
CREATE TABLE items (id BIGINT, part INT, word STRING, amount DECIMAL(12,2), tags ARRAY<INT>{key});
CREATE MATERIALIZED VIEW words AS
  SELECT word, COUNT(*) AS n, SUM(amount) AS total FROM items GROUP BY word;
CREATE MATERIALIZED VIEW large AS SELECT id, part, amount FROM items WHERE amount > 500;
"""
KEYED, BAG = SQL.format(key=", PRIMARY KEY (id, part)"), SQL.format(key="")
RELATIONS = ("items", "words", "large", "items$errors")
SMALL = MemoryLimits(memory_rows_max=500, shipped_rows_max=100)
"""Relations and change sets of this size are in files."""


def write(path: Path, ids: list[int], chance: random.Random) -> None:
    rows = [
        {
            "id": id,
            "part": chance.randrange(2),
            "word": chance.choice(["a", "b", None]),
            "amount": f"{chance.randrange(1_000)}.5",
            "tags": [1] * chance.randrange(3),
        }
        for id in ids
    ]
    rows[len(rows) // 2]["amount"] = "much"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=150)


def new_store(folder: Path) -> Store:
    folder.mkdir()
    return LocalStore(str(folder), SystemEnv())


@contextmanager
def opened(
    spark: SparkSession,
    folder: Path,
    sql: str,
    store: Store,
    bulk: int | None,
    committed: Callable[[], object] = lambda: None,
    queries: QueryLimits | None = None,
    sinks: Sequence[Sink] = (),
) -> Iterator[tuple[Pipeline, list[Committed]]]:
    env = SystemEnv()
    tables = [s for s in parse_statements(Text("", sql)) if isinstance(s, Table)]
    options = {"table": "items", "type": "files", "path": "*.parquet", "format": "parquet"}
    events: list[Committed] = []

    def hear(event: object) -> None:
        if isinstance(event, Committed):
            events.append(event)
            committed()

    with Pipeline(
        store,
        env,
        executor=spark_executor(sql, spark=spark, limits=SMALL, queries=queries),
        sinks=sinks,
        sources=[make_source("s", options, tables[0], env, base=folder)],
        settings=Settings(bulk_bytes=bulk, replay_rows_max=10_000),
        listener=hear,
    ) as pipeline:
        yield pipeline, events


def contents(pipeline: Pipeline) -> dict[str, list[str]]:
    """The rows of every relation, without what differs because of other transactions."""
    found: dict[str, list[str]] = {}
    for name in RELATIONS:
        rows: list[dict[str, Any]] = pipeline.table(name).to_pylist()
        for row in rows:
            if name.endswith("$errors"):
                del row["time"], row["transaction"]
        found[name] = sorted(map(repr, rows))
    return found


@pytest.mark.parametrize(
    ("sql", "local"), [(KEYED, True), (BAG, True), (KEYED, False)], ids=["keyed", "bag", "cluster"]
)
def test_a_load_in_bulk_makes_the_same_tables_and_views(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, sql: str, local: bool
) -> None:
    """J5, J8: first loads, later ones that replace rows, and replay of each by either way.

    "cluster": workers write to the store, as if they saw nothing of this machine but the input.
    """
    monkeypatch.setattr(bulk_files, "_TASK_BYTES", (1, 1))
    monkeypatch.setattr(executor, "on_this_machine", lambda spark: local)
    staged: list[str] = []
    stage = BulkInput.stage

    def counted(given: BulkInput, table: str, decode: Decode) -> Staged:
        staged.append(table)
        return stage(given, table, decode)

    monkeypatch.setattr(BulkInput, "stage", counted)
    chance = random.Random(7)
    write(tmp_path / "b.parquet", list(range(1_000)), chance)
    write(tmp_path / "a.parquet", [chance.randrange(1_200) for _ in range(1_000)], chance)
    stores = {bulk: new_store(tmp_path / f"state-{bulk}") for bulk in (1, None)}
    held = []
    for bulk, store in stores.items():
        with opened(spark, tmp_path, sql, store, bulk) as (pipeline, events):
            pipeline.run(once=True)
            first = contents(pipeline)
            assert [event.rows for event in events] == [2_000]
        held.append(first)
    assert held[0] == held[1]
    assert len(first["items$errors"]) == 2
    # Sorted files follow each other by key, and need not be sorted together.
    write(tmp_path / "c.parquet", list(range(500, 900)), chance)
    write(tmp_path / "d.parquet", list(range(900, 1_700)), chance)
    held = []
    for bulk, store in stores.items():
        state, copy = tmp_path / f"state-{bulk}", tmp_path / f"copy-{bulk}"

        def crash(state: Path = state, copy: Path = copy) -> None:
            shutil.copytree(state, copy)

        with opened(spark, tmp_path, sql, store, bulk, crash) as (pipeline, _):
            pipeline.run(once=True)
            held.append(contents(pipeline))
        for again in (1, None):
            shutil.rmtree(state)
            shutil.copytree(copy, state)
            copied = LocalStore(str(state), SystemEnv())  # It knows which directories there are.
            with opened(spark, tmp_path, sql, copied, again) as (pipeline, _):
                assert pipeline.status().transaction == 2, "it was replayed"
                held.append(contents(pipeline))
    assert held[1:] == held[:1] * 5
    assert len(staged) == 4, "two loads, and the replay of a load of either kind"


def test_a_bulk_load_leaves_no_files_behind(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that were sorted together are deleted: only the result stays."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", list(range(1_000)), random.Random(1))
    write(folder / "b.parquet", list(range(500, 1_500)), random.Random(2))
    store = LocalStore(str(tmp_path / "state"), SystemEnv())
    with opened(spark, folder, KEYED, store, 1) as (pipeline, _):
        pipeline.run(once=True)
        left = list(temporary.rglob("items/*/part-*"))
        rows = sum(pq.read_metadata(file).num_rows for file in left)
        assert rows == pipeline.table("items").num_rows, "only the run that is in use"


class ThroughTheDriver:
    """Counts the rows that Spark returns to this process, and those it reads from run files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: Counter[str] = Counter()
        to_arrow, mapped = DataFrame.toArrow, blocks.mapped
        read = {kind: kind.read for kind in (LocalRuns, SharedRuns)}

        def counted(what: str, call: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
            def count(*given: Any) -> pa.Table:
                found = call(*given)
                self.rows[what] += found.num_rows
                return found

            return count

        monkeypatch.setattr(DataFrame, "toArrow", counted("Spark", to_arrow))
        monkeypatch.setattr(blocks, "mapped", counted("mapped", mapped))
        for kind, method in read.items():
            monkeypatch.setattr(kind, "read", counted("files", method))
        monkeypatch.setattr(LargeChange, "table", counted("change", LargeChange.table))


@pytest.mark.parametrize("local", [True, False], ids=["local", "cluster"])
def test_a_load_passes_from_files_to_files_without_the_driver(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """J7, S1: input, state, what a sink receives, and a view that is computed from its start:
    executors read and write all rows of a large transaction.
    """
    sql = (
        "CREATE TABLE items (id BIGINT, part INT, word STRING, amount DECIMAL(12,2), "
        "tags ARRAY<INT>, PRIMARY KEY (id, part));"
        "CREATE MATERIALIZED VIEW every AS SELECT id, part, word, tags FROM items;"
    )
    monkeypatch.setattr(executor, "on_this_machine", lambda spark: local)
    monkeypatch.setattr(bulk_files, "_TASK_BYTES", (1, 1))
    monkeypatch.setattr(large_change, "SHARE_ROWS", 300)
    monkeypatch.setattr(shared, "FILE_ROWS", 250)
    options = {"view": "every", "type": "files", "path": "out", "format": "json"}
    sink = make_sink("out", options, "every", SystemEnv(), base=tmp_path)
    queries = QueryLimits(collected_rows_max=40, local_rows_max=40, bulk_rows=100)
    store = new_store(tmp_path / "state")
    chance = random.Random(3)
    write(tmp_path / "a.parquet", list(range(1_000)), chance)
    with opened(spark, tmp_path, sql, store, 1, queries=queries, sinks=[sink]) as (pipeline, _):
        passed = ThroughTheDriver(monkeypatch)
        pipeline.run(once=True)
        pipeline.flush()
        assert sum(passed.rows.values()) <= 40, passed.rows
        # As a deploy of a changed view does, and one of a new view.
        pipeline._session.state.executor.build(["every"])
        assert sum(passed.rows.values()) <= 40, passed.rows
        monkeypatch.undo()
        expected = sorted(map(json_text, pipeline.table("every").to_pylist()))
        assert len(expected) == 999
    (mark,) = (tmp_path / "out").glob("[0-9]*/_transaction.json")
    parts = sorted(mark.parent.glob("part-*.json"))
    assert json.loads(mark.read_text().splitlines()[-1])["parts"] == len(parts) >= 1
    lines = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert {line.pop("_w") for line in lines} == {1}
    assert sorted(map(json_text, lines)) == expected


def json_text(row: object) -> str:
    return json.dumps(row, sort_keys=True)
