"""The queries of TPC-H, all kept at once while every table changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tests.workloads  # noqa: F401 - finds the folder of the benchmarks
from stepwell.execution.spark.views import Change, Views
from stepwell.lsm.limits import MemoryLimits
from tests.comparing import difference, difference_of_rows, rows_of
from tests.execution.elsewhere import runs_elsewhere, waves
from tests.execution.following import assert_decisions_held
from tests.workloads import tpch_explain

SCALE = tpch_explain.SCALE
QUICK = ["q02", "q04", "q09", "q13", "q15", "q21"]
"""Joins of many tables, subqueries, an outer join, first rows, existence."""


def test_some_queries_of_tpch_follow_changes_of_every_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """S5, with everything in runs: looked up and merged as large tables are."""
    follow(spark, tmp_path, QUICK, batches=1, runs=True)


def test_some_queries_of_tpch_follow_changes_with_look_ups_on_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    """S5, X2: rows that another process finds and sends are those that this one would find."""
    follow(spark, tmp_path, ["q02", "q13", "q21"], batches=1, runs=True, elsewhere=True)


@pytest.mark.slow
def test_all_queries_of_tpch_follow_changes_with_look_ups_on_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    """S5, X2: under all kinds of changes, some of them to rows that were just stored."""
    follow(spark, tmp_path, None, batches=3, runs=True, elsewhere=True)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [False, True], ids=["in memory", "in runs"])
def test_all_queries_of_tpch_follow_changes_of_every_table(
    spark: SparkSession, tmp_path: Path, runs: bool
) -> None:
    """S5: joins of eight tables, nested subqueries and outer joins, under all kinds of changes."""
    follow(spark, tmp_path, None, batches=3, runs=runs)


def test_a_small_change_of_tpch_is_computed_as_explain_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As predicted without Spark, and without a Spark query for 0.1 % of the orders."""
    import _tpch

    _tpch.generate(tmp_path, SCALE)
    tables = _tpch.load(tmp_path, SCALE)
    views = Views.open(spark, tpch_explain.sql(), tables=tables)
    for predicted in tpch_explain.explained():
        assert str(views.explain(predicted.view)) == str(predicted)
    costs = tpch_explain.costs(views, _tpch.Changes(tables, 1))
    for orders in ("new orders", "deleted orders"):
        assert costs[orders]["queries"] == {}, "no view needs Spark"
    assert costs == json.loads(tpch_explain.COSTS.read_text(encoding="utf-8"))


def follow(
    spark: SparkSession,
    folder: Path,
    names: list[str] | None,
    *,
    batches: int,
    runs: bool,
    elsewhere: bool = False,
) -> None:
    import _tpch
    from _changes import views as statements

    files = _tpch.generate(folder, SCALE)
    tables = _tpch.load(folder, SCALE)
    given: dict[str, Any] = dict(tables)
    if runs:
        given = {name: spark.read.parquet(str(file)) for name, file in files.items()}
    queries = statements(_tpch.SQL)
    names = names or list(queries)
    schema = (_tpch.SQL / "schema.sql").read_text(encoding="utf-8")
    sql = "\n".join([schema, *(queries[n] for n in names)])
    limits = MemoryLimits(memory_rows_max=30) if runs else None
    ways: dict[str, Any] = {"limits": limits}
    if elsewhere:
        ways = runs_elsewhere(MemoryLimits(memory_rows_max=30, merged_rows_max=0))
    views = Views.open(spark, sql, tables=given, **ways)
    recomputed = [name for name in names if views.explain(name).recomputed]
    assert not recomputed
    changes = _tpch.Changes(tables, 1)
    for batch in range(batches):
        drawn = {t: Change(c.put, c.delete) for t, c in changes.mixed(20).items()}
        outcome = views.apply(drawn)
        assert_decisions_held(outcome)
        assert not outcome.rejected
        for name, rows in changes.current().items():
            assert not difference_of_rows(rows_of(views.read(name)), rows_of(rows)), name
        assert not elsewhere or waves(views), "what is tested must happen"
        for name in names:
            wrong = difference(views.read(name), views.recompute(name))
            assert not wrong, f"{name} after batch {batch}:\n{wrong}"
