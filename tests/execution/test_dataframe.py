"""Tables and views as DataFrames: of the user's session, and as of one transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stepwell
from stepwell.testing import reference_executor

pytestmark = pytest.mark.spark

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
"""
ROWS = [{"id": n, "customer": "ada" if n % 2 else "bob", "amount": n} for n in range(1, 5)]
TOTALS = {"ada": 4, "bob": 6}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stepwell.yml").write_text("name: shop\nstore: ./state\n", encoding="utf-8")
    (tmp_path / "pipeline.sql").write_text(SQL, encoding="utf-8")
    return tmp_path


def test_a_dataframe_stays_as_of_its_transaction(folder: Path, spark: SparkSession) -> None:
    """A frame that read the live state would change, or break, under a running Spark job."""
    with stepwell.open(folder, spark=spark) as pipeline:
        pipeline.push("orders", ROWS)
        frame = pipeline.to_spark("Revenue")
        snapshot = stepwell.read(folder, spark=spark)
        pipeline.push("orders", [{"id": 9, "customer": "eve", "amount": 1}])
        pipeline.compact()
        assert {row["customer"]: row["total"] for row in frame.collect()} == TOTALS
        assert pipeline.to_spark("orders").count() == 5
        assert frame.sparkSession is spark, "it can be joined with the user's own frames"
        frames = {name: snapshot.to_spark(spark, name) for name in ("revenue", "orders$errors")}
    assert {row["customer"]: row["total"] for row in frames["revenue"].collect()} == TOTALS
    assert frames["orders$errors"].columns[:2] == ["time", "transaction"]
    assert frames["orders$errors"].count() == 0
    other = spark.createDataFrame([("ada", "London")], ["customer", "city"])
    joined = frames["revenue"].join(other, "customer").collect()
    assert [(row["city"], row["total"]) for row in joined] == [("London", 4)]


def test_a_pipeline_without_spark_gives_dataframes_of_a_given_session(
    folder: Path, spark: SparkSession
) -> None:
    """The reference's runs are its own: Spark must not read them as if they were Spark's."""
    with reference_executor():
        with stepwell.open(folder) as pipeline:
            pipeline.push("orders", ROWS)
            with pytest.raises(stepwell.InvalidError, match="without Spark"):
                pipeline.to_spark("revenue")
        snapshot = stepwell.read(folder)
    found = snapshot.to_spark(spark, "revenue").collect()
    assert {row["customer"]: row["total"] for row in found} == TOTALS
    assert snapshot.to_spark(spark, "orders$errors").count() == 0
