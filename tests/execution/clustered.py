"""A pipeline whose workers do not see the files of its driver, from its first push to a restore.

python -m tests.execution.clustered STORE      on local-cluster, two workers of one core each

To be started with `TMPDIR=/proc/self/cwd/...`: that is another place for every process.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.errors import StepwellError
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark import shared
from stepwell.execution.spark.evaluate import Use
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.lsm.limits import MemoryLimits
from stepwell.store.base import Store
from stepwell.store.locate import open_store

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2),
  at TIMESTAMP, tags ARRAY<STRING>);
CREATE TABLE lines (order_id BIGINT, item STRING, n INT);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n, MAX(at) AS latest
  FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW sold AS
  SELECT o.customer, l.item, SUM(l.n) AS n, MAX(o.amount) AS dearest
  FROM orders o LEFT JOIN lines l ON l.order_id = o.id GROUP BY o.customer, l.item;
CREATE MATERIALIZED VIEW tagged AS SELECT id, tags FROM orders WHERE id % 2 = 0;
CREATE MATERIALIZED VIEW ranked AS
  SELECT id, percent_rank() OVER (ORDER BY amount, id) AS place FROM orders;
CREATE MATERIALIZED VIEW wide AS SELECT a.id, l.item, a.at FROM orders a, lines l WHERE l.n > 6;
"""
RELATIONS = ("orders", "lines", "revenue", "sold", "tagged", "ranked", "wide", "orders$errors")
MASTER = "local-cluster[2,1,1024]"
LIMITS = MemoryLimits(memory_rows_max=30, merged_rows_max=20, shipped_rows_max=20)

COLLECTED = QueryLimits(collected_rows_max=40)


@contextmanager
def everything_in_files() -> Iterator[None]:
    """However few rows there are, workers read and write them (see `LIMITS`, too)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "FILE_ROWS", 150)
        yield


def live(store: Store, spark: SparkSession) -> dict[str, Any]:
    """Push, flush, merge, compact, reopen, go back; what the relations hold at each stage."""
    dice = random.Random(7)
    found: dict[str, Any] = {}
    with _open(store, spark) as pipeline:
        for number in range(3):
            gone = sorted({dice.randrange(400) for _ in range(9)})
            pipeline.push("orders", _orders(dice, 90), delete=[{"id": id} for id in gone])
            pipeline.push("lines", [_line(dice) for _ in range(60)])
            if number % 2:
                pipeline.flush()
        kept = pipeline.checkpoint("kept").id
        pipeline.push("lines", [_line(dice) for _ in range(50)])
    with _open(store, spark) as pipeline:
        found["reopened"] = _picture(pipeline)
        pipeline.push("orders", _orders(dice, 40))
        pipeline.compact()
        found["asked"] = pipeline.query("SELECT count(*) AS n, max(at) AS at FROM wide").to_pylist()
        found["asked"] = repr(found["asked"])
        pipeline.restore(kept)
        found["restored"] = _picture(pipeline)
    return found


def _open(store: Store, spark: SparkSession) -> Pipeline:
    return Pipeline(
        store,
        SystemEnv(),
        executor=spark_executor(
            SQL, spark=spark, use=Use.LOOKUPS, limits=LIMITS, queries=COLLECTED
        ),
        settings=Settings(checkpoint_every_s=1e9, background_delivery=False),
    )


def _picture(pipeline: Pipeline) -> dict[str, list[str]]:
    """The rows of each relation. Dead letters have the time at which they were rejected."""
    found = {}
    for name in RELATIONS:
        rows = pipeline.table(name).to_pylist()
        found[name] = sorted(
            repr({column: value for column, value in row.items() if column != "time"})
            for row in rows
        )
    return found


def _orders(dice: random.Random, count: int) -> list[dict[str, object]]:
    return [
        {
            "id": dice.randrange(400),
            "customer": f"c{dice.randrange(12)}",
            "amount": f"{dice.randrange(10_000)}.{dice.randrange(100):02}",
            "at": f"2026-01-{dice.randrange(1, 29):02}T10:00:00Z",
            "tags": [dice.choice("xyz") for _ in range(dice.randrange(3))],
        }
        for _ in range(count)
    ]


def _line(dice: random.Random) -> dict[str, object]:
    return {"order_id": dice.randrange(400), "item": dice.choice("xyz"), "n": dice.randrange(9)}


def _sees(spark: SparkSession, path: str) -> bool:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([pa.array([os.path.exists(path)] * batch.num_rows)], ["seen"])

    rows = spark.range(0, 4, 1, 4).mapInArrow(look, "seen boolean").collect()
    return any(row.seen for row in rows)


def main() -> None:
    settings = SessionSettings(
        master=MASTER, conf={"spark.executor.memory": "512m"}, shuffle_partitions=3
    )
    spark = open_session(settings)
    here = Path(tempfile.mkdtemp()) / "file"
    here.write_text("of the driver", encoding="utf-8")
    found: dict[str, Any] = {"seen": _sees(spark, str(here))}
    with everything_in_files():
        try:
            found |= live(open_store(sys.argv[1], SystemEnv()), spark)
        except StepwellError as error:
            found |= {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
