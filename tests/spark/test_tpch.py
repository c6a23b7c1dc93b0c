"""The queries of TPC-H, all kept at once while every table changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tests.workloads  # noqa: F401 - finds the folder of the benchmarks
from stepwell.spark.views import Change, Views
from tests.comparing import difference

SCALE = 0.01
BATCHES = 2


@pytest.mark.slow
def test_all_queries_of_tpch_follow_changes_of_every_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """S5: joins of eight tables, nested subqueries and outer joins, under all kinds of changes."""
    import _tpch
    from _changes import views as statements

    _tpch.generate(tmp_path, SCALE)
    tables = _tpch.load(tmp_path, SCALE)
    queries = statements(_tpch.SQL)
    text = "\n".join([(_tpch.SQL / "schema.sql").read_text(encoding="utf-8"), *queries.values()])
    views = Views.open(spark, text, tables=tables)
    anew = [name for name in queries if views.explain(name).recomputed]
    assert not anew, f"computed anew: {anew}"
    changes = _tpch.Changes(tables, 1)
    for batch in range(BATCHES):
        given = {t: Change(c.put, c.delete) for t, c in changes.mixed(20).items()}
        outcome = views.apply(given)
        assert not outcome.rejected
        for name in queries:
            wrong = difference(views.read(name), views.recompute(name))
            assert not wrong, f"{name} after batch {batch}:\n{wrong}"
