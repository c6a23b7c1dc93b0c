"""A pipeline that runs for a long time: does it stay fast and small?

    python benchmarks/steady.py [--quick] [--only steady|during] [--json]

steady   small transactions that insert, update and delete, on Spark, with checkpoints and
compaction:
         the last 100 against the first 100, the runs of each relation, and the store against what
         is alive in it, before it is collected and after
during   ten transactions after a checkpoint, against ten without one, in turns
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from _measure import Table, Times, section_parser, show_sections, timed, workspace
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.journal import paths
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as Collect
from stepwell.manifest.manifest import Manifests
from stepwell.store.local import LocalStore

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer BIGINT, amount BIGINT, note STRING);
CREATE TABLE customers (id BIGINT NOT NULL PRIMARY KEY, name STRING);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW named AS
  SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON o.customer = c.id;
"""
BASE = 200_000
CUSTOMERS = 5_000
ROWS = 1_000
"""Per transaction: half new, a quarter updated, a quarter deleted."""
TURN = 10


def main() -> None:
    arguments = section_parser(__doc__ or "", SECTIONS).parse_args()
    spark = open_session(SessionSettings())
    with workspace() as directory:
        show_sections(
            arguments,
            SECTIONS,
            lambda name: SECTIONS[name](spark, directory / name, arguments.quick),
        )


class Orders:
    """Changes drawn from a seed; every transaction touches as many rows as the one before."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._next = BASE
        self._alive = list(range(BASE))

    def base(self) -> pa.Table:
        return self._rows(self._alive)

    def change(self) -> tuple[pa.Table, pa.Table]:
        """Rows to put, and keys to delete."""
        draw, quarter = self._random, ROWS // 4
        new = list(range(self._next, self._next + 2 * quarter))
        self._next += 2 * quarter
        places = draw.sample(range(len(self._alive)), 2 * quarter)
        updated = [self._alive[place] for place in places[:quarter]]
        deleted = [self._alive[place] for place in places[quarter:]]
        gone = set(deleted)
        self._alive = [id for id in self._alive if id not in gone] + new
        return self._rows(new + updated), pa.table({"id": pa.array(deleted, pa.int64())})

    def _rows(self, ids: list[int]) -> pa.Table:
        draw = self._random
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "customer": pa.array([draw.randrange(CUSTOMERS) for _ in ids], pa.int64()),
                "amount": pa.array([draw.randrange(1000) for _ in ids], pa.int64()),
                "note": [f"order {draw.random():.12f}" for _ in ids],
            }
        )


def opened(spark: SparkSession, directory: Path, settings: Settings, orders: Orders) -> Pipeline:
    env = SystemEnv()
    store = LocalStore(str(directory), env)
    executor = spark_executor(SQL, spark=spark)
    pipeline = Pipeline(store, env, executor=executor, settings=settings)
    names = [f"customer {id}" for id in range(CUSTOMERS)]
    pipeline.push("customers", pa.table({"id": range(CUSTOMERS), "name": names}))
    pipeline.push("orders", orders.base())
    pipeline.checkpoint()
    return pipeline


def steady(spark: SparkSession, directory: Path, quick: bool) -> list[Table]:
    count, share = (60, 15) if quick else (500, 100)
    orders = Orders()
    settings = Settings(checkpoint_every_s=5.0)
    pipeline = opened(spark, directory, settings, orders)
    env, store = SystemEnv(), LocalStore(str(directory), SystemEnv())
    seconds: list[float] = []
    most = 0
    for number in range(count):
        put, gone = orders.change()
        seconds.append(timed(lambda p=put, g=gone: pipeline.push("orders", p, delete=g)))
        if number % 20 == 19:
            found = Manifests(store, env).latest()
            runs = Counter(run.relation for run in found.manifest.runs) if found else Counter()
            most = max([most, *runs.values()])
    pipeline.checkpoint()
    uncollected, _ = sizes(store, env)
    Collector(store, env, settings=Collect(grace_s=0.0)).collect()
    before, alive = sizes(store, env)
    pipeline.compact()
    pipeline.checkpoint()
    _, least = sizes(store, env)
    pipeline.close()
    first, last = Times(tuple(seconds[5 : 5 + share])), Times(tuple(seconds[-share:]))
    speed = Table(
        f"{count} transactions of {ROWS} rows on {BASE:,} (half new, the rest updates and deletes)",
        ("which", "p50 ms", "p99 ms", "mean ms", "against the first"),
        f"Checkpoints every {settings.checkpoint_every_s:g} s, compaction in the background. The "
        "first five are not counted.",
    )
    for name, times in ((f"first {share}", first), (f"last {share}", last)):
        speed.add(
            name,
            times.median * 1000,
            times.percentile(99) * 1000,
            times.mean * 1000,
            f"{times.median / first.median:.2f}",
        )
    space = Table(
        "What lies in the store afterwards",
        ("what", "value"),
        "Alive: the runs that the manifest names, merged into one per relation.",
    )
    space.add("most runs of one relation", most)
    for kind, size in sorted(before.items()):
        space.add(f"{kind}, MB", size / 1e6)
    space.add("named by the manifest, MB", alive / 1e6)
    space.add("alive, MB", least / 1e6)
    for name, found in (("before collecting", uncollected), ("after", before)):
        held = found["run"] + found["outbox"]
        space.add(f"runs and outbox against alive, {name}", f"{held / least:.1f}")
    return [speed, space]


def sizes(store: LocalStore, env: SystemEnv) -> tuple[Counter[str], int]:
    """Bytes in the store by kind, and those of the runs that the manifest names."""
    by_kind: Counter[str] = Counter()
    for item in store.list():
        by_kind[paths.parse(item.path).kind] += item.size
    found = Manifests(store, env).latest()
    return by_kind, sum(run.size for run in found.manifest.runs) if found else 0


def during(spark: SparkSession, directory: Path, quick: bool) -> list[Table]:
    turns = 4 if quick else 80
    orders = Orders()
    pipeline = opened(spark, directory, Settings(checkpoint_every_s=1e9), orders)
    # In an order drawn at random: runs are compacted every few transactions, in either kind.
    order = [True, False] * (turns // 2)
    random.Random(1).shuffle(order)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    taken: list[float] = []
    for turn, with_one in enumerate([False, *order]):
        if with_one:
            taken.append(timed(pipeline.checkpoint))
        for _ in range(TURN):
            put, gone = orders.change()
            took = timed(lambda p=put, g=gone: pipeline.push("orders", p, delete=g))
            if turn:
                seconds[with_one].append(took)
    pipeline.close()
    table = Table(
        f"Transactions of {ROWS} rows with checkpoints, and without, in turns of {TURN}",
        ("which", "transactions", "p50 ms", "p99 ms", "p99 against without"),
        f"A checkpoint itself: {statistics.median(taken) * 1000:.0f} ms by median.",
    )
    without = Times(tuple(seconds[False]))
    for name, times in (("without", without), ("with", Times(tuple(seconds[True])))):
        p99 = times.percentile(99)
        against = f"{p99 / without.percentile(99):.2f}"
        table.add(name, len(times.seconds), times.median * 1000, p99 * 1000, against)
    return [table]


SECTIONS: Mapping[str, Callable[[SparkSession, Path, bool], list[Table]]] = {
    "steady": steady,
    "during": during,
}

if __name__ == "__main__":
    main()
