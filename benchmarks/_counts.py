"""What the driver does for a load and for a small change: counts, which no other load disturbs.

Executors are made to work as on other machines: they read and write the store themselves, so the
driver's requests are those that it makes for itself.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
from pyspark.sql import DataFrame, SparkSession

from _measure import Table, workspace
from stepwell.connectors.registry import make_sink, make_source
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark.executor import spark_executor
from stepwell.model import Bytes
from stepwell.sql import statements
from stepwell.store.base import Object
from stepwell.store.local import LocalStore
from stepwell.text import Source

SQL = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, amount DECIMAL(12,2), note STRING);
CREATE MATERIALIZED VIEW every AS SELECT id, customer, amount FROM orders;
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
"""
BULK_ROWS = 50_000
LIMITS = QueryLimits(collected_rows_max=BULK_ROWS, bulk_rows=BULK_ROWS)


class Counts(LocalStore):
    """A store that counts the requests of this process, and their bytes."""

    def __init__(self, root: str) -> None:
        super().__init__(root, SystemEnv())
        self.counted: Counter[str] = Counter()

    def get(self, path: str) -> Object | None:
        found = super().get(path)
        self.counted += Counter(GET=1, read=0 if found is None else len(found.data))
        return found

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        found = super().get_range(path, start, length)
        self.counted += Counter(GET=1, read=0 if found is None else len(found))
        return found

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        parts = [data] if isinstance(data, bytes | bytearray | memoryview) else list(data)
        self.counted += Counter(PUT=1, written=sum(len(bytes(part)) for part in parts))
        super().put_new(path, data)


def count_requests(spark: SparkSession, sizes: Sequence[int]) -> Table:
    """Load one CSV file, then change 0.1 % of its rows."""
    head = ("rows", "what", "jobs", "GET", "MB read", "PUT", "MB written", "rows in the driver")
    table = Table("Requests of the driver", head)
    with workspace() as folder:
        for rows in sizes:
            for what, counted in _phases(spark, rows, folder / str(rows)):
                numbers = (counted[name] for name in ("jobs", "GET", "read", "PUT", "written"))
                jobs, gets, read, puts, written = numbers
                table.add(
                    *(f"{rows:,}", what, str(jobs), str(gets), f"{read / 1e6:.3f}"),
                    *(str(puts), f"{written / 1e6:.3f}", f"{counted['rows']:,}"),
                )
            shutil.rmtree(folder / str(rows))
    return table


def _phases(spark: SparkSession, rows: int, folder: Path) -> Iterator[tuple[str, Counter[str]]]:
    (folder / "in").mkdir(parents=True)
    ids = pa.array(range(rows), pa.int64())
    amounts = pa.array([f"{n % 1000}.50" for n in range(rows)]).cast(pa.decimal128(12, 2))
    customers = pa.array([n % 20_000 for n in range(rows)], pa.int64())
    notes = pa.array([f"note {n:040d}" for n in range(rows)])
    names = ["id", "customer", "amount", "note"]
    arrow_csv.write_csv(pa.table([ids, customers, amounts, notes], names), folder / "in" / "a.csv")
    env, store = SystemEnv(), Counts(str(folder / "state"))
    parsed = statements.parse_statements(Source("orders.sql", SQL))
    declared = next(s for s in parsed if isinstance(s, statements.Table))
    options = {"table": "orders", "type": "files", "path": "*.csv", "format": "csv"}
    out = {"view": "every", "type": "files", "path": "out", "format": "parquet"}
    with Pipeline(
        store,
        env,
        executor=spark_executor(SQL, spark=spark, queries=LIMITS, shared=True),
        sources=[make_source("s", options, declared, env, base=folder / "in")],
        sinks=[make_sink("out", out, "every", env, base=folder)],
        settings=Settings(bulk_bytes=1_000_000),
    ) as pipeline:
        with _counting(spark, store) as counted:
            pipeline.run(once=True)
        yield "load", counted
        with _counting(spark, store) as counted:
            pipeline.flush()
        yield "flush", counted
        changed = rows // 1000
        for what in ("first change", "next change"):
            lines = [
                json.dumps({"id": n * 7, "customer": n, "amount": 1, "note": what})
                for n in range(changed)
            ]
            given: list[dict[str, Any]] = [json.loads(line) for line in lines]
            with _counting(spark, store) as counted:
                pipeline.push("orders", given)
            yield what, counted


@contextmanager
def _counting(spark: SparkSession, store: Counts) -> Iterator[Counter[str]]:
    """Count within this block: jobs, requests and their bytes, and rows that Spark returned."""
    found: Counter[str] = Counter()
    jobs, store.counted = _jobs(spark), Counter()
    to_arrow = DataFrame.toArrow

    def counted(frame: DataFrame) -> pa.Table:
        table = to_arrow(frame)
        found["rows"] += table.num_rows
        return table

    DataFrame.toArrow = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        DataFrame.toArrow = to_arrow  # type: ignore[method-assign]
        found["jobs"] = _jobs(spark) - jobs
        found.update(store.counted)


def _jobs(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
