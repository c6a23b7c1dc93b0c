"""The cache of a pipeline on Spark: opened again, a transaction pays for nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stepwell.env import SystemEnv
from stepwell.execution.executor import Executor
from stepwell.execution.spark.executor import SparkExecutor, spark_executor
from stepwell.lsm import index
from stepwell.lsm.cache import Cache, Usage
from stepwell.lsm.change import Change
from stepwell.lsm.limits import MemoryLimits
from stepwell.store.local import LocalStore
from stepwell.testing import ManualEnv
from tests.execution.executor_contract import CONTRACT_SQL, orders, run, state


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "store"), SystemEnv())


def opened(spark: SparkSession, store: LocalStore, folder: Path) -> Executor:
    cache = Cache(folder, SystemEnv())
    # Everything is in run files.
    limits = MemoryLimits(memory_rows_max=1)
    factory = spark_executor(CONTRACT_SQL, spark=spark, cache=lambda env: cache, limits=limits)
    made = factory(store, ManualEnv())
    assert isinstance(made, SparkExecutor)
    return made


def usage(executor: Executor) -> Usage:
    assert isinstance(executor, SparkExecutor)
    return executor.cache_usage()


def change(number: int) -> dict[str, Change]:
    return {"orders": Change(orders((number, "ab"[number % 2], 5), (number + 100, "b", 1)))}


def test_the_first_transaction_after_opening_again_decodes_nothing(
    spark: SparkSession, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: columns and indexes outlive the process, and a clone of the run uses them as well."""
    env = ManualEnv()
    first = opened(spark, store, tmp_path / "cache")
    for number in range(4):
        run(first, env, change(number))
    first.compact()
    runs = first.flush()
    first.on_flushed(runs)
    run(first, env, change(1))
    expected = state(first)
    assert usage(first).misses

    decoded: list[object] = []
    read = index.RunIndex._decoded
    monkeypatch.setattr(
        index.RunIndex, "_decoded", lambda *given: decoded.append(given) or read(*given)
    )
    again = opened(spark, store, tmp_path / "cache")
    again.load(runs)
    run(again, env, change(1))
    assert state(again) == expected
    assert decoded == []
    assert usage(again).misses == 0
    assert usage(again).hits > 0

    without = opened(spark, store, tmp_path / "another")
    without.load(runs)
    run(without, env, change(1))
    assert state(without) == expected
    assert decoded, "what is measured must happen where there is no cache"


def test_a_compacted_run_is_indexed_before_it_takes_its_place(
    spark: SparkSession, store: LocalStore, tmp_path: Path
) -> None:
    """X2: the transaction after a compaction finds its indexes built."""
    env = ManualEnv()
    executor = opened(spark, store, tmp_path / "cache")
    for number in range(6):
        run(executor, env, change(number))
        executor.on_flushed(executor.flush())
    tasks = 0
    while (task := executor.background_task()) is not None:
        task.run()
        task.adopt()
        tasks += 1
    assert tasks
    before = usage(executor).misses
    run(executor, env, change(2))
    after = usage(executor).misses - before
    runs = executor.flush()
    executor.on_flushed(runs)
    cold = opened(spark, store, tmp_path / "another")
    cold.load(runs)
    before = usage(cold).misses
    run(cold, env, change(2))
    assert after < usage(cold).misses - before
