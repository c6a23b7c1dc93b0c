"""Changes that are large for the memory they may take: same answers, and each is written once."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark.runs import LocalRuns
from stepwell.execution.spark.views import Change, Views
from stepwell.lsm.limits import MemoryLimits
from tests.comparing import difference

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer BIGINT, amount DECIMAL(12,2));
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW large AS SELECT id, amount FROM orders WHERE amount > 50;
CREATE MATERIALIZED VIEW best AS
  SELECT customer, total FROM revenue WHERE total = (SELECT MAX(total) FROM revenue);
"""
MEMORY = 60
LIMITS = MemoryLimits(memory_rows_max=MEMORY, shipped_rows_max=30)


@pytest.mark.spark
@pytest.mark.parametrize("groups", [5, 1000], ids=["written by Spark", "collected"])
def test_changes_of_every_size(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    queries = QueryLimits(collected_rows_max=40, collected_groups_max=groups, local_rows_max=50)
    written: list[tuple[str, int]] = []
    write = LocalRuns.write

    def noted(
        runs: LocalRuns, relation: str, pieces: Iterable[pa.Table], key: tuple[int, ...]
    ) -> object:
        tables = list(pieces)
        written.append((relation, sum(table.num_rows for table in tables)))
        return write(runs, relation, tables, key)

    monkeypatch.setattr(LocalRuns, "write", noted)
    draw = random.Random(groups)
    views = Views.open(spark, SQL, limits=LIMITS, queries=queries)
    there: dict[int, tuple[int, str]] = {}
    for rows in (200, 10, 61, 45, 300, 5):
        ids = [draw.randrange(600) for _ in range(rows)]
        put = {i: (draw.randrange(20), f"{draw.randrange(10_000) / 100:.2f}") for i in ids}
        gone = [i for i in draw.sample(sorted(there), min(len(there), rows // 3)) if i not in put]
        change = Change(
            pa.table(
                {
                    "id": list(put),
                    "customer": [c for c, _ in put.values()],
                    "amount": pa.array([a for _, a in put.values()]).cast(pa.decimal128(12, 2)),
                }
            ),
            pa.table({"id": pa.array(gone, pa.int64())}),
        )
        moved = len(put) + sum(i in there for i in (*put, *gone))
        written.clear()
        outcome = views.apply({"orders": change})
        assert not outcome.rejected
        there |= put
        for i in gone:
            del there[i]
        if len(put) > MEMORY:
            assert written.count(("orders", moved)) == 1, "as the relation's run"
            assert not any(n == "$shipped" and r == moved for n, r in written), "and only once"
        for name in ("revenue", "large", "best"):
            assert not difference(views.read(name), views.recompute(name)), name
        assert views.read("orders").num_rows == len(there)


@pytest.mark.spark
def test_a_row_that_comes_back_in_a_run_merged_with_its_first(
    spark: SparkSession,
) -> None:
    """The run then holds two rows of one key, and what took the first one out is in memory."""
    views = Views.open(
        spark,
        "CREATE TABLE t (k BIGINT NOT NULL PRIMARY KEY, v STRING);\n"
        "CREATE MATERIALIZED VIEW f REFRESH POLICY FULL AS SELECT k, v FROM t WHERE k < 5;",
        limits=LIMITS,
    )

    def rows(keys: range, v: str) -> pa.Table:
        return pa.table({"k": list(keys), "v": [v] * len(keys)})

    views.apply({"t": Change(rows(range(100), "first"))})
    views.apply({"t": Change(delete=pa.table({"k": [0]}))})
    come = pa.concat_tables([rows(range(1), "second"), rows(range(100, 200), "first")])
    views.apply({"t": Change(come)})
    parts = views.stored["t"].parts
    assert [part.rows for part in parts if part.table is None] == [201], "one run, two rows of 0"
    expected = pa.concat_tables([rows(range(1), "second"), rows(range(1, 200), "first")])
    found = {row["k"]: row["v"] for row in views.read("t").to_pylist()}
    assert found == {row["k"]: row["v"] for row in expected.to_pylist()}
    assert sorted(views.read("f").column("k").to_pylist()) == [0, 1, 2, 3, 4]
