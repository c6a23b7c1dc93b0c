"""A sink follows a view whose columns change, with the types that Spark gives them."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from stepwell.deploy.apply import deploy
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import load_project
from stepwell.env import SystemEnv

pytestmark = pytest.mark.spark
YML = """\
name: orders
store: ./state
sinks:
  lake: {view: revenue, type: delta, path: lake, key: customer, evolve: true}
"""
SQL = """\
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE MATERIALIZED VIEW revenue AS SELECT customer, CAST(COUNT(*) AS INT) AS n, MIN(id) AS first,
  CAST(SUM(amount) AS DECIMAL(14,2)) AS total FROM orders GROUP BY customer;
"""
NOW = """COUNT(*) AS n, MAX(amount) AS largest,
  CAST(SUM(amount) AS DECIMAL(20,3)) AS total"""


def test_a_delta_table_gets_the_columns_that_spark_computes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D11, J7: one column is gained, one lost, two are wider; a narrower one is refused."""
    env = SystemEnv()

    def write(sql: str) -> None:
        (tmp_path / "stepwell.yml").write_text(YML, encoding="utf-8")
        (tmp_path / "pipeline.sql").write_text(sql, encoding="utf-8")

    def deployed() -> dict[str, str]:
        project = load_project(tmp_path, env)
        return dict(deploy(project, env, approve=lambda plan: True, spark=spark).failed)

    def push(*rows: tuple[int, str, str]) -> None:
        with ProjectPipeline(load_project(tmp_path, env), env, spark=spark) as pipeline:
            for id, customer, amount in rows:
                row = {"id": id, "customer": customer, "amount": Decimal(amount)}
                pipeline.push("orders", [row])

    def rows() -> Counter[tuple[object, ...]]:
        found = DeltaTable(tmp_path / "lake").to_pyarrow_table().to_pylist()
        assert {tuple(sorted(row)) for row in found} == {("customer", "largest", "n", "total")}
        names = ("customer", "n", "largest", "total")
        return Counter(tuple(row[name] for name in names) for row in found)

    write(SQL)
    assert deployed() == {}
    push((1, "ada", "5.00"), (2, "ada", "2.50"), (3, "bob", "1.00"))
    begin = SQL.index("CAST(COUNT")
    after = SQL[:begin] + NOW + SQL[SQL.index(" FROM orders") :]
    write(after)
    assert deployed() == {}
    push((4, "bob", "9.00"))
    two = Decimal
    assert rows() == Counter(
        [("ada", 2, two("5.00"), two("7.500")), ("bob", 2, two("9.00"), two("10.000"))]
    )
    write(after.replace("COUNT(*) AS n", "CAST(COUNT(*) AS INT) AS n"))
    failed = deployed()
    assert "column n changes from int64 to int32" in failed["sink.lake"]
