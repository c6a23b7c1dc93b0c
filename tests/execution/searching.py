"""Look-ups by executors that share nothing with the driver but the store.

python -m tests.execution.searching STORE      on local-cluster, two workers of one core each

Counts what the driver reads, and kills an executor in the middle of a wave. To be started like
`tests.execution.clustered`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.execution.spark.executor import SparkExecutor, spark_executor
from stepwell.execution.spark.executor_search import SparkSlots
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.lsm.cache import CachePlace
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.search import Hit, Wave
from stepwell.store.base import Object, Store
from stepwell.store.locate import open_store
from tests.execution.clustered import MASTER, _sees
from tests.execution.elsewhere import waves as waves_of

SQL = """
CREATE TABLE customers (id BIGINT NOT NULL PRIMARY KEY, name STRING, nation INT);
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer BIGINT, amount DECIMAL(12,2));
CREATE TABLE lines (order_id BIGINT, item STRING, n INT);
CREATE MATERIALIZED VIEW sold AS
  SELECT c.name, l.item, SUM(l.n) AS n FROM orders o
  JOIN lines l ON l.order_id = o.id JOIN customers c ON c.id = o.customer GROUP BY c.name, l.item;
CREATE MATERIALIZED VIEW dearest AS
  SELECT c.nation, MAX(o.amount) AS amount FROM orders o
  JOIN customers c ON c.id = o.customer GROUP BY c.nation;
CREATE MATERIALIZED VIEW wide AS
  SELECT o.id, o.amount, l.item, l.n FROM orders o JOIN lines l ON l.order_id = o.id WHERE l.n > 2;
CREATE MATERIALIZED VIEW idle AS
  SELECT o.id FROM orders o LEFT ANTI JOIN lines l ON l.order_id = o.id;
"""
RELATIONS = ("customers", "orders", "lines", "sold", "dearest", "wide", "idle")
WAVES = 8
"""Of a transaction with a push to each of the three tables, below four views."""
LIMITS = MemoryLimits(memory_rows_max=20, merged_rows_max=0)
"""Every run is in the store only."""


def follow(pipeline: Pipeline, dice: random.Random, times: int) -> None:
    """Change few rows of every table."""
    for _ in range(times):
        with pipeline.transaction() as transaction:
            transaction.push("orders", [_order(dice) for _ in range(3)])
            transaction.push("lines", [_line(dice) for _ in range(3)])
            transaction.push("customers", [_customer(dice.randrange(60), dice)])


def load(pipeline: Pipeline) -> None:
    dice = random.Random(5)
    pipeline.push("customers", [_customer(id, dice) for id in range(60)])
    pipeline.push("orders", [_order(dice) for _ in range(300)])
    pipeline.push("lines", [_line(dice) for _ in range(500)])
    pipeline.flush()


def opened(store: Store, spark: SparkSession, cache: Path | None, *, shared: bool) -> Pipeline:
    place = None if cache is None else CachePlace(str(cache))
    return Pipeline(
        store,
        SystemEnv(),
        executor=spark_executor(
            SQL, spark=spark, limits=LIMITS, workers_cache=place, shared=shared
        ),
        settings=Settings(checkpoint_every_s=1e9, background_delivery=False),
    )


def picture(pipeline: Pipeline) -> dict[str, list[str]]:
    return {name: sorted(map(repr, pipeline.table(name).to_pylist())) for name in RELATIONS}


def _customer(id: int, dice: random.Random) -> dict[str, object]:
    return {"id": id, "name": f"c{id}", "nation": dice.randrange(5)}


def _order(dice: random.Random) -> dict[str, object]:
    amount = f"{dice.randrange(10_000)}.{dice.randrange(100):02}"
    return {"id": dice.randrange(400), "customer": dice.randrange(60), "amount": amount}


def _line(dice: random.Random) -> dict[str, object]:
    return {"order_id": dice.randrange(400), "item": dice.choice("xyz"), "n": dice.randrange(9)}


@contextmanager
def counting(store: Store) -> Iterator[dict[str, int]]:
    """The bytes of runs that this process reads, by the name of the call."""
    read = {"get": 0, "get_range": 0}
    kind = type(store)
    get, get_range = kind.get, kind.get_range

    def counted(self: Any, path: str) -> Object | None:
        found = get(self, path)
        if path.startswith(("runs/", "spill/")):
            read["get"] += 0 if found is None else len(found.data)
        return found

    def ranged(self: Any, path: str, start: int, length: int) -> bytes | None:
        found = get_range(self, path, start, length)
        if path.startswith(("runs/", "spill/")):
            read["get_range"] += 0 if found is None else len(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "get", counted)
        patch.setattr(kind, "get_range", ranged)
        yield read


@dataclass(frozen=True)
class Dying:
    """A wave whose first task kills its executor, after it has searched a file."""

    wave: Wave
    sign: str
    """A file that the first task creates."""

    def __call__(self, slots: Iterable[int]) -> Iterator[Hit]:
        for number, hit in enumerate(self.wave(slots)):
            yield hit
            if not number and _create(self.sign):
                os.kill(_java_of(os.getppid()), signal.SIGKILL)
                while True:  # Until the signal of the executor's end arrives here as well.
                    signal.pause()


def _create(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _java_of(daemon: int) -> int:
    """The process that has started the daemon of Python's workers."""
    fields = Path(f"/proc/{daemon}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[1])


@contextmanager
def an_executor_dies(sign: Path) -> Iterator[None]:
    run = SparkSlots.run

    def dying(self: SparkSlots, wave: Wave, slots: Sequence[int]) -> list[Hit] | None:
        return run(self, Dying(wave, str(sign)), slots)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSlots, "run", dying)
        yield


def waves(pipeline: Pipeline) -> int:
    """The number of jobs that have looked up rows."""
    executor = pipeline._session.state.executor
    assert isinstance(executor, SparkExecutor)
    return waves_of(executor._views)


def on_a_cluster(store: Store, spark: SparkSession, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with opened(store, spark, folder / "cache", shared=True) as pipeline:
        load(pipeline)
    with opened(store, spark, folder / "cache", shared=True) as pipeline:
        dice = random.Random(9)
        with counting(store) as read:
            follow(pipeline, dice, 2)
            before = waves(pipeline)
            follow(pipeline, dice, 1)
            found["waves"] = waves(pipeline) - before
        found["read"] = dict(read)
        with an_executor_dies(folder / "sign"):
            follow(pipeline, dice, 1)
        found["killed"] = (folder / "sign").exists()
        follow(pipeline, dice, 1)
        found["rows"] = picture(pipeline)
    return found


def in_this_process(store: Store, spark: SparkSession) -> dict[str, list[str]]:
    """The same rows, looked up by the driver."""
    with opened(store, spark, None, shared=False) as pipeline:
        load(pipeline)
        follow(pipeline, random.Random(9), 5)
        return picture(pipeline)


def main() -> None:
    settings = SessionSettings(
        master=MASTER, conf={"spark.executor.memory": "512m"}, shuffle_partitions=3
    )
    spark = open_session(settings)
    here = Path(tempfile.mkdtemp()) / "file"
    here.write_text("of the driver", encoding="utf-8")
    found: dict[str, Any] = {"seen": _sees(spark, str(here))}
    found |= on_a_cluster(open_store(sys.argv[1], SystemEnv()), spark, Path(sys.argv[2]))
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
