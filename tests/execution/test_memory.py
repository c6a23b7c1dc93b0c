"""What passes through this process: a few rows at a time, however large tables and views are.

Counted, not timed: everything that Spark hands over is refused above a limit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Sink
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.views import Change, Views
from stepwell.lsm.limits import MemoryLimits
from stepwell.store.local import LocalStore
from tests.comparing import difference
from tests.engine.doubles import Shelf, ShelfSink

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount BIGINT);
CREATE MATERIALIZED VIEW doubled AS SELECT id, customer, 2 * amount AS twice FROM orders;
CREATE MATERIALIZED VIEW ranked AS
  SELECT id, percent_rank() OVER (ORDER BY amount, id) AS place FROM orders;
CREATE MATERIALIZED VIEW same AS SELECT 1 AS one FROM orders;
"""
ROWS = 3000
PUSH = 300
LIMIT = 500
"""Rows at once; a push is smaller, and every view is larger."""
SETTINGS = Settings(checkpoint_every_s=1e9, background_delivery=False)
SETTINGS = replace(SETTINGS, outbox=replace(SETTINGS.outbox, part_rows_max=400))
QUERIES = QueryLimits(collected_rows_max=LIMIT)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows came from Spark at a time."""
    sizes: list[int] = []
    collect_arrow, collect = DataFrame._collect_as_arrow, DataFrame.collect

    def arrow(self: Any, *given: Any, **named: Any) -> Any:
        batches = collect_arrow(self, *given, **named)
        sizes.append(sum(batch.num_rows for batch in batches))
        return batches

    def rows(self: Any) -> Any:
        found = collect(self)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(DataFrame, "_collect_as_arrow", arrow)
    monkeypatch.setattr(DataFrame, "collect", rows)
    return sizes


def opened(spark: SparkSession, folder: Path, sinks: list[Sink]) -> Pipeline:
    env = SystemEnv()
    store = LocalStore(str(folder / "state"), env)
    limits = MemoryLimits(memory_rows_max=LIMIT, merged_rows_max=LIMIT)
    executor = spark_executor(SQL, spark=spark, limits=limits, queries=QUERIES)
    return Pipeline(store, env, executor=executor, sinks=sinks, settings=SETTINGS)


def orders(start: int) -> pa.Table:
    numbers = range(start, start + PUSH)
    return pa.table({"id": numbers, "customer": [f"c{n % 7}" for n in numbers], "amount": numbers})


def test_new_sinks_and_a_restore_pass_through_in_parts(
    spark: SparkSession, tmp_path: Path, collected: list[int]
) -> None:
    """J7, K9: the first content of a sink, and the difference that a restore makes."""
    with opened(spark, tmp_path, []) as pipeline:
        for start in range(0, ROWS, PUSH):
            pipeline.push("orders", orders(start))
            if start == PUSH:
                pipeline.checkpoint("early")
    collected.clear()
    shelves = {view: Shelf() for view in ("doubled", "ranked", "same")}
    sinks: list[Sink] = [ShelfSink(view, view, shelf) for view, shelf in shelves.items()]
    with opened(spark, tmp_path, sinks) as pipeline:
        for shelf in shelves.values():
            assert sum(shelf.rows().values()) == ROWS
        assert max(collected, default=0) <= LIMIT
        pipeline.restore("early")
        assert max(collected, default=0) <= LIMIT
        for shelf in shelves.values():
            assert sum(shelf.rows().values()) == 2 * PUSH
            assert max(len(batch) for _, batch in shelf.batches) <= 400
        assert shelves["doubled"].rows() == {(n, f"c{n % 7}", 2 * n): 1 for n in range(2 * PUSH)}
        assert shelves["same"].rows() == {(1,): 2 * PUSH}


def test_what_a_transaction_changes_in_a_large_view_is_left_on_the_disk(
    spark: SparkSession, tmp_path: Path, collected: list[int]
) -> None:
    """J7: few rows come in, and every row of a view changes; its sink gets them in one batch."""
    shelf = Shelf()
    with opened(spark, tmp_path, [ShelfSink("ranked", "ranked", shelf)]) as pipeline:
        for start in range(0, ROWS, PUSH):
            pipeline.push("orders", orders(start))
        collected.clear()
        held = pa.total_allocated_bytes()
        pipeline.push("orders", pa.table({"id": [-1], "customer": ["new"], "amount": [-1]}))
        assert max(collected, default=0) <= LIMIT
        assert pa.total_allocated_bytes() - held < 8 * ROWS, "not even one number of each row"
        assert len(shelf.batches[-1][1]) > ROWS
        places = sorted(place for (_, place), count in shelf.rows().items() if count == 1)
        assert places == [n / ROWS for n in range(ROWS + 1)]
        assert shelf.rows() == {
            tuple(row.values()): 1 for row in pipeline.table("ranked").to_pylist()
        }


def test_a_view_that_is_rebuilt_stays_with_spark(
    spark: SparkSession, tmp_path: Path, collected: list[int]
) -> None:
    """D11: deploying a view over a large table, maintained or recomputed."""
    with opened(spark, tmp_path, []) as pipeline:
        for start in range(0, ROWS, PUSH):
            pipeline.push("orders", orders(start))
        executor = pipeline._session.state.executor
        collected.clear()
        for view in ("doubled", "ranked", "same"):
            executor.build([view])
        assert max(collected, default=0) <= LIMIT
        for view in ("doubled", "ranked", "same"):
            pieces = executor.pieces(view, 100)
            assert pieces.rows == ROWS
            assert {piece.num_rows <= 100 for piece in pieces.pieces} == {True}
        assert max(collected, default=0) <= LIMIT


def test_a_delete_from_a_table_of_maps_collects_what_it_names(
    spark: SparkSession, collected: list[int]
) -> None:
    """J7, S4: maps that differ in one value are not taken for each other by the look-up."""
    rows = spark.range(ROWS).selectExpr("map('id', id, 'same', 0L) AS m")
    text = """CREATE TABLE t (m MAP<STRING, BIGINT>);
        CREATE MATERIALIZED VIEW v AS SELECT m['id'] AS id FROM t;"""
    pipeline = Views.open(spark, text, tables={"t": rows}, queries=QUERIES)
    maps = pa.array([[("same", 0), ("id", 5)], [("id", -1)]], pa.map_(pa.string(), pa.int64()))
    collected.clear()
    outcome = pipeline.apply({"t": Change(delete=pa.table({"m": maps}))})
    assert max(collected) <= 2
    assert outcome.changes["v"].to_pylist() == [{"id": 5, "_w": -1}]
    assert len(outcome.rejected) == 1


FAN_OUT = """
CREATE TABLE items (id BIGINT NOT NULL PRIMARY KEY, kind BIGINT);
CREATE TABLE kinds (kind BIGINT, times INT);
CREATE MATERIALIZED VIEW pairs AS
  SELECT id, times, times / 2 AS half FROM items JOIN kinds USING (kind);
CREATE MATERIALIZED VIEW most AS
  SELECT kind, id % 1000 AS part, max_by(times, id) AS last
  FROM items JOIN kinds USING (kind) GROUP BY kind, id % 1000;
CREATE MATERIALIZED VIEW numbers AS SELECT kind, number
  FROM kinds LATERAL VIEW explode(sequence(1, times)) AS number;
CREATE MATERIALIZED VIEW lists AS
  SELECT id, array(kind, times) AS both,
    named_struct('of', map(kind, timestamp_seconds(times))) AS m
  FROM items JOIN kinds USING (kind);
CREATE MATERIALIZED VIEW spans AS
  SELECT id, make_dt_interval(times) AS days FROM items JOIN kinds USING (kind);
CREATE MATERIALIZED VIEW again REFRESH POLICY FULL AS
  SELECT kind, explode(sequence(1, times)) AS number FROM kinds;
"""
TIMES = 1500


def test_one_row_that_becomes_many_is_not_collected(
    spark: SparkSession, collected: list[int]
) -> None:
    """S4, J7: how much comes of a row is not known before; what is too much Spark writes."""
    numbers = range(TIMES)
    items = pa.table({"id": numbers, "kind": [7] * TIMES})
    tables = {"items": spark.createDataFrame(items)}
    pipeline = Views.open(spark, FAN_OUT, tables=tables, queries=QUERIES)
    names = ("pairs", "most", "numbers", "lists", "spans", "again")
    kind = pa.table({"kind": [7], "times": pa.array([TIMES], pa.int32())})
    collected.clear()
    came = pipeline.apply({"kinds": Change(put=kind)})
    # Of each task one row more than may be, so that it is known there are more.
    assert max(collected, default=0) <= 2 * (LIMIT + 1)
    assert {name: came.changes[name].num_rows for name in names} == {
        **dict.fromkeys(names, TIMES),
        "most": 1000,
    }
    for name in names:
        assert not difference(pipeline.read(name), pipeline.recompute(name)), name
    assert max(collected) >= TIMES, "what is collected is seen here"
    pipeline.apply({"items": Change(put=pa.table({"id": [3], "kind": [8]}))})
    for name in names:
        assert not difference(pipeline.read(name), pipeline.recompute(name)), name
    collected.clear()
    went = pipeline.apply({"kinds": Change(delete=kind)})
    assert max(collected, default=0) <= 2 * (LIMIT + 1)
    for name in names:
        assert pipeline.read(name).num_rows == 0
        assert set(went.changes[name].column("_w").to_pylist()) == {-1}
