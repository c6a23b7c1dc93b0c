"""What do transactions cost? Against the same work without a journal, and Structured Streaming.

    .venv/bin/python benchmarks/transactions.py [--only end_to_end] [--quick] [--json]

    durability   a transaction with the journal, against the same Spark work without one; no sinks
    end_to_end   from a file that appears to its output in a sink, against Structured Streaming
    recovery     from a kill to the first new transaction, against what was lost with it

Everything runs in one Spark session on all cores, in turns, so that a slow minute falls on all
alike. Prints tables, as Markdown; RESULTS.md has those of one machine. Nothing is
asserted.
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from _measure import Table, Times, in_turns, ratio, section_parser, show_sections, workspace
from stepwell.connectors.files import FilesSource
from stepwell.connectors.files_sink import FilesSink
from stepwell.connectors.writing import FileFormat
from stepwell.engine.background import BackgroundTasks
from stepwell.engine.events import Events
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Limits
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.execution.spark.evaluate import Use
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.lsm.change import Change
from stepwell.sql.statements import Table as Declared
from stepwell.sql.statements import parse_statements
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore
from stepwell.text import Source as Text

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer BIGINT, amount DECIMAL(12,2));
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
"""
CUSTOMERS = 10_000
NEVER_S = 1e9
SETTINGS = Settings(checkpoint_every_s=NEVER_S, limits=Limits(rows_max=10_000_000))
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Options:
    quick: bool


def main() -> None:
    arguments = section_parser(__doc__ or "", SECTIONS).parse_args()
    options = Options(arguments.quick)
    spark = open_session(SessionSettings(driver_memory="4g"))
    show_sections(arguments, SECTIONS, lambda name: SECTIONS[name](spark, options))


class Orders:
    """New orders, batch after batch; every key is new."""

    def __init__(self) -> None:
        self._next = 0
        self._draw = np.random.default_rng(1)

    def batch(self, rows: int) -> pa.Table:
        first, self._next = self._next, self._next + rows
        cents = self._draw.integers(1_000_000, size=rows)
        amount = pa.array(cents).cast(pa.decimal128(38, 0)).cast(pa.decimal128(38, 2))
        return pa.table(
            {
                "id": np.arange(first, first + rows),
                "customer": self._draw.integers(CUSTOMERS, size=rows),
                "amount": amount.cast(pa.decimal128(12, 2)),
            }
        )


# --- durability -----------------------------------------------------------------------------------


def durability(spark: SparkSession, options: Options) -> list[Table]:
    """The same batches, computed and kept by an executor alone, and pushed to a pipeline."""
    table = Table(
        "what durability costs: milliseconds of a transaction by median, sinks off",
        ("rows", "computed", "without journal ms", "with journal ms", "more ms", "more %", "ratio"),
        "Pushed rows, journaled with their data, on the disk of the repository; an fsync each. "
        "The view is plain enough to be computed without Spark; it is measured both ways. Both "
        "compact runs in another thread, and neither is timed while the other does.",
    )
    both = [("by Spark", Use.LOOKUPS), ("here", Use.LOCAL)]
    for rows, (computed, use) in itertools.product((1_000, 100_000), both):
        without, durable = _durable(spark, rows, use, 5 if options.quick else 60)
        more = durable.median - without.median
        table.add(
            rows,
            computed,
            1000 * without.median,
            1000 * durable.median,
            1000 * more,
            100 * more / without.median,
            str(ratio(without, durable)),
        )
    return [table]


def _durable(spark: SparkSession, rows: int, use: Use, rounds: int) -> tuple[Times, Times]:
    """Without a journal, and with one."""
    env, orders = SystemEnv(), Orders()
    make = spark_executor(SQL, spark=spark, use=use)
    bare = make(MemoryStore(env), env)
    bare.load(())
    background = BackgroundTasks(Events())
    batches = [orders.batch(rows) for _ in range(rounds + WARM_UP)]
    with workspace() as directory:
        store = LocalStore(str(directory / "state"), env)
        with Pipeline(store, env, executor=make, settings=SETTINGS) as pipeline:

            def compute(number: int) -> None:
                bare.apply(bare.execute({"orders": Change(batches[number])}, env.now()))
                # As a pipeline has it: runs are compacted in another thread.
                background.advance(bare)

            def push(number: int) -> None:
                pipeline.push("orders", batches[number])

            found = in_turns(
                {"bare": compute, "durable": push}, rounds, warm_up=WARM_UP, before=_compacted
            )
    background.end()
    return found["bare"], found["durable"]


def _compacted() -> None:
    """Wait for background compactions of either."""
    for thread in threading.enumerate():
        if thread.name == "stepwell-background":
            thread.join()


# --- end to end -----------------------------------------------------------------------------------

SIZES = ((1_000, 30), (10_000, 20), (100_000, 12), (1_000_000, 4))


def end_to_end(spark: SparkSession, options: Options) -> list[Table]:
    """A file appears; how long until its output is in the sink? One file after another."""
    table = Table(
        "from a Parquet file that appears to Parquet files in the sink, file after file",
        (
            *("rows", "ours rows/s", "p50 s", "p99 s"),
            *("streaming rows/s", "p50 s", "p99 s", "RocksDB p50 s", "times faster"),
        ),
        f"Sum and count of orders by customer, {CUSTOMERS:,} of them. Streaming: update mode, "
        "foreachBatch, its better state store. Ours keeps the orders as well, by their key.",
    )
    for rows, rounds in SIZES[: 2 if options.quick else None]:
        found = _given(spark, rows, 3 if options.quick else rounds)
        ours, plain, rocks = found["ours"], found["HDFSBacked"], found["RocksDB"]
        best = min(plain, rocks, key=lambda times: times.median)
        table.add(
            rows,
            *(rows * ours.per_second, ours.median, ours.percentile(99)),
            *(rows * best.per_second, best.median, best.percentile(99)),
            rocks.median,
            str(ratio(best, ours)),
        )
    return [table]


def _given(spark: SparkSession, rows: int, rounds: int) -> dict[str, Times]:
    orders = Orders()
    with workspace() as directory, _systems(spark, directory) as systems:
        seconds: dict[str, list[float]] = {name: [] for name in systems}

        def giving(name: str) -> Callable[[int], None]:
            def give(number: int) -> None:
                waiting = directory / "waiting.parquet"
                pq.write_table(orders.batch(rows), waiting)
                seconds[name].append(systems[name](number, waiting))

            return give

        in_turns({name: giving(name) for name in systems}, WARM_UP + rounds, warm_up=0)
    return {name: Times(tuple(found[WARM_UP:])) for name, found in seconds.items()}


Give = Callable[[int, Path], float]
"""Give a file to a system; the seconds until its output is in the sink."""


@contextmanager
def _systems(spark: SparkSession, directory: Path) -> Iterator[dict[str, Give]]:
    with (
        _ours(spark, directory / "ours") as ours,
        _streaming(spark, directory / "plain", "HDFSBacked") as plain,
        _streaming(spark, directory / "rocks", "RocksDB") as rocks,
    ):
        yield {"ours": ours, "HDFSBacked": plain, "RocksDB": rocks}


@contextmanager
def _ours(spark: SparkSession, folder: Path) -> Iterator[Give]:
    """A pipeline that runs as `stepwell run` runs it, asked to look when a file is there."""
    (folder / "in").mkdir(parents=True)
    env = SystemEnv()
    (declared,) = [s for s in parse_statements(Text("", SQL)) if isinstance(s, Declared)]
    path = str(folder / "in" / "*.parquet")
    source = FilesSource("files", declared, env, path=path, format=FileFormat.PARQUET, settle_s=0.0)
    sink = FilesSink("out", "revenue", env, path=str(folder / "out"), format=FileFormat.PARQUET)
    pipeline = Pipeline(
        LocalStore(str(folder / "state"), env),
        env,
        executor=spark_executor(SQL, spark=spark),
        sources=[source],
        sinks=[sink],
        # Streaming looks for new files every 10 ms, so we do as well.
        settings=replace(SETTINGS, idle_s=0.01),
    )
    loop = threading.Thread(target=pipeline.run)
    loop.start()

    def give(number: int, waiting: Path) -> float:
        begin = time.perf_counter()
        waiting.rename(folder / "in" / f"{number:06}.parquet")
        done = folder / "out" / f"{number + 1:020}"
        while not done.exists():
            time.sleep(0.001)
        return time.perf_counter() - begin

    try:
        yield give
    finally:
        pipeline.stop()
        loop.join()
        pipeline.close()


@contextmanager
def _streaming(spark: SparkSession, folder: Path, store: str) -> Iterator[Give]:
    """A stream of the same files into the same kind of sink, a folder for each batch."""
    (folder / "in").mkdir(parents=True)
    session = spark.newSession()
    provider = f"org.apache.spark.sql.execution.streaming.state.{store}StateStoreProvider"
    for key, value in {
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        session.conf.set(key, value)
    schema = "id BIGINT, customer BIGINT, amount DECIMAL(12,2)"
    stream = session.readStream.schema(schema).parquet(str(folder / "in"))
    grouped = stream.groupBy("customer").agg({"amount": "sum", "id": "count"})

    def write(frame: Any, number: int) -> None:
        named = frame.toDF("customer", "total", "n")
        named.write.mode("overwrite").parquet(str(folder / "out" / f"{number:020}"))

    query = (
        grouped.writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(write)
        .start()
    )

    def give(number: int, waiting: Path) -> float:
        begin = time.perf_counter()
        waiting.rename(folder / "in" / f"{number:06}.parquet")
        done = folder / "out" / f"{number:020}" / "_SUCCESS"
        while not done.exists():
            time.sleep(0.001)
            if not query.isActive:
                raise RuntimeError(str(query.exception()))
        return time.perf_counter() - begin

    try:
        yield give
        query.processAllAvailable()
    finally:
        query.stop()


# --- recovery -------------------------------------------------------------------------------------


def recovery(spark: SparkSession, options: Options) -> list[Table]:
    """A pipeline that goes without a word, and the next one that opens it."""
    rows = 1_000
    table = Table(
        f"recovery: from opening to the first new transaction, {rows:,} rows in each before",
        ("unflushed", "processing them took s", "recovery s", "share", "with all to be sent s"),
        "A files sink is attached. It holds everything, as it does after most crashes; or it is "
        "empty, and all output is computed and sent again.",
    )
    for count in (10, 100) if options.quick else (10, 100, 1_000):
        with workspace() as directory:
            orders = Orders()
            pipeline = _recovering(spark, directory, directory / "out")
            began = time.perf_counter()
            for _ in range(count):
                pipeline.push("orders", orders.batch(rows))
            took = time.perf_counter() - began
            del pipeline  # It neither flushes nor closes: that is what a kill leaves.
            shutil.copytree(directory / "state", directory / "kept")
            found = _recovered(spark, directory, "out", orders.batch(rows))
            # Put back where it was: a copy elsewhere would be refused.
            shutil.rmtree(directory / "state")
            shutil.move(directory / "kept", directory / "state")
            again = _recovered(spark, directory, "empty", orders.batch(rows))
            table.add(count, took, found, found / took, again)
    return [table]


def _recovered(spark: SparkSession, folder: Path, out: str, batch: pa.Table) -> float:
    """Seconds until a new transaction is done."""
    began = time.perf_counter()
    pipeline = _recovering(spark, folder, folder / out)
    pipeline.push("orders", batch)
    took = time.perf_counter() - began
    pipeline.close()
    return took


def _recovering(spark: SparkSession, folder: Path, out: Path) -> Pipeline:
    env = SystemEnv()
    return Pipeline(
        LocalStore(str(folder / "state"), env),
        env,
        executor=spark_executor(SQL, spark=spark),
        sinks=[FilesSink("out", "revenue", env, path=str(out), format=FileFormat.PARQUET)],
        settings=SETTINGS,
    )


SECTIONS: Mapping[str, Callable[[SparkSession, Options], list[Table]]] = {
    "durability": durability,
    "end_to_end": end_to_end,
    "recovery": recovery,
}

if __name__ == "__main__":
    main()
