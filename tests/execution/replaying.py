"""A pipeline that crashed with everything unflushed, and its replay, on any Spark.

python -m tests.execution.replaying FOLDER OUT      on local-cluster, two workers of one core each
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stepwell.connectors.files_sink import FilesSink
from stepwell.connectors.writing import FileFormat
from stepwell.engine.events import Event, Replayed
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.execution.spark.evaluate import Use
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.lsm.limits import MemoryLimits
from stepwell.store.local import LocalStore

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE TABLE lines (order_id BIGINT, item STRING, n INT);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW sold AS
  SELECT o.customer, l.item, SUM(l.n) AS n, MAX(o.amount) AS dearest
  FROM orders o LEFT JOIN lines l ON l.order_id = o.id GROUP BY o.customer, l.item;
CREATE MATERIALIZED VIEW best AS
  SELECT customer, id, amount FROM orders
  QUALIFY ROW_NUMBER() OVER (PARTITION BY customer ORDER BY amount DESC, id) <= 3;
"""
VIEWS = ("revenue", "sold", "best")
SETTINGS = Settings(checkpoint_every_s=1e9, background_delivery=False)
TRANSACTIONS = 8
_LIMITS = MemoryLimits(memory_rows_max=100)
"""So few rows are held in memory, so that there are files, too."""


def crash(folder: Path, spark: SparkSession) -> None:
    """Make a journal of several transactions of all kinds, and leave without a word."""
    pipeline = _open(folder, folder / "out", spark, [])
    dice = random.Random(4)
    for number in range(TRANSACTIONS // 2):
        orders = [_order(dice) for _ in range(120)]
        gone = sorted({dice.randrange(300) for _ in range(10)})
        pipeline.push("orders", orders, delete=[{"id": id} for id in gone])
        with pipeline.transaction() as transaction:
            transaction.push("lines", [_line(dice) for _ in range(80)])
            transaction.push("orders", [_order(dice)])
            transaction.push("orders", None, delete=[{"id": 1000 + number}])


def replay(folder: Path, out: Path, spark: SparkSession) -> dict[str, Any]:
    """Open the pipeline with an empty sink: what it is then, and what the sink was sent."""
    events: list[Event] = []
    pipeline = _open(folder, out, spark, events)
    found: dict[str, Any] = {
        relation: sorted(map(repr, pipeline.table(relation).to_pylist()))
        for relation in (*VIEWS, "orders", "lines", "orders$errors")
    }
    pipeline.close()
    found["replayed"] = sum(event.together for event in events if isinstance(event, Replayed))
    return found | sent_to(out)


def sent_to(out: Path) -> dict[str, Any]:
    """What the sink of each view was sent, by transaction."""
    return {
        f"{view} {part.parent.name}": sorted(part.read_text(encoding="utf-8").splitlines())
        for view in VIEWS
        for part in sorted((out / view).glob("[0-9]*/part.json"))
    }


def _open(folder: Path, out: Path, spark: SparkSession, events: list[Event]) -> Pipeline:
    env = SystemEnv()
    return Pipeline(
        LocalStore(str(folder / "state"), env),
        env,
        # Otherwise there would be little for Spark to do.
        executor=spark_executor(SQL, spark=spark, use=Use.LOOKUPS, limits=_LIMITS),
        sinks=[
            FilesSink(view, view, env, path=str(out / view), format=FileFormat.JSON)
            for view in VIEWS
        ],
        settings=SETTINGS,
        listener=events.append,
    )


def _order(dice: random.Random) -> dict[str, object]:
    amount = f"{dice.randrange(10_000)}.{dice.randrange(100):02}"
    return {"id": dice.randrange(300), "customer": f"c{dice.randrange(12)}", "amount": amount}


def _line(dice: random.Random) -> dict[str, object]:
    return {"order_id": dice.randrange(300), "item": dice.choice("xyz"), "n": dice.randrange(9)}


def main() -> None:
    settings = SessionSettings(
        master="local-cluster[2,1,1024]",
        conf={"spark.executor.memory": "512m"},
        shuffle_partitions=3,
    )
    spark = open_session(settings)
    print(json.dumps(replay(Path(sys.argv[1]), Path(sys.argv[2]), spark)))
    spark.stop()


if __name__ == "__main__":
    main()
