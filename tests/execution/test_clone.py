"""A clone on Spark: its views are its parent's, and each goes its own way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stepwell.engine.pipeline import Pipeline
from stepwell.env import SystemEnv
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.execution.spark.executor import spark_executor
from stepwell.lsm.change import Change
from stepwell.lsm.limits import MemoryLimits
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.manifest.history import History
from stepwell.manifest.manifest import Manifests
from stepwell.store.local import LocalStore
from tests.engine.doubles import SQL, click, contents, everything, order, rows_of

ENV = SystemEnv()
AT_ONCE = CollectSettings(
    grace_s=0.0, journal_keep_s=0.0, barrier_keep_s=0.0, history=History(versions=1, slack=0)
)
"""Collect whatever may ever be collected."""


def opened(spark: SparkSession, place: Path, limits: MemoryLimits | None = None) -> Pipeline:
    executor = spark_executor(SQL, spark=spark, limits=limits)
    return Pipeline(LocalStore(str(place), ENV), ENV, executor=executor)


def check(pipeline: Pipeline) -> None:
    """Views are what a recompute of the tables gives."""
    executor = ReferenceExecutor(SQL, LocalStore("unused", ENV), ENV)
    change = {name: Change(pipeline.table(name)) for name in ("orders", "clicks")}
    executor.apply(executor.execute(change, ENV.now()))
    for view in ("revenue", "visits", "buyers"):
        assert contents(pipeline, view) == rows_of(executor.read(view)), view


def push(pipeline: Pipeline, chance: random.Random) -> None:
    customers = "abcd"
    orders = [
        order(chance.randrange(60), chance.choice(customers), chance.randrange(9)) for _ in range(8)
    ]
    there = [row[0] for row in contents(pipeline, "orders")]
    gone = chance.sample(there, min(2, len(there)))
    pipeline.push("orders", orders, delete=[{"id": id} for id in gone] or None)
    pipeline.push("clicks", [click(chance.choice(customers), "/x")])


@pytest.mark.parametrize("large", [pytest.param(False, marks=pytest.mark.slow), True])
def test_parent_and_clones_diverge_on_spark(
    spark: SparkSession, tmp_path: Path, large: bool
) -> None:
    """Scenarios 57, 58 and 61, C5, C7: with runs in memory and in files, a clone begins with the
    views of its parent; then both are written, merged, checkpointed and collected, a clone of the
    clone too, and every one's views are what a recompute of its own tables gives.
    """
    limits = MemoryLimits(memory_rows_max=1) if large else None
    chance = random.Random(5)
    pipelines = {"parent": opened(spark, tmp_path / "parent", limits)}
    push(pipelines["parent"], chance)
    pipelines["parent"].checkpoint()
    push(pipelines["parent"], chance)
    for source, name in (("parent", "clone"), ("clone", "second")):
        made = pipelines[source].clone(str(tmp_path / name))
        assert made.files == 0
        push(pipelines[source], chance)
        before = everything(pipelines[source])
        pipelines[name] = opened(spark, tmp_path / name, limits)
        check(pipelines[name])
        assert everything(pipelines[source]) == before
        for each in pipelines.values():
            push(each, chance)
            each.checkpoint()
            check(each)
    for name, pipeline in pipelines.items():
        push(pipeline, chance)
        pipeline.checkpoint()
        Collector(LocalStore(str(tmp_path / name), ENV), ENV, settings=AT_ONCE).collect()
    states = {name: everything(pipeline) for name, pipeline in pipelines.items()}
    assert len({repr(state) for state in states.values()}) == 3
    for name, pipeline in pipelines.items():
        pipeline.close()
        again = opened(spark, tmp_path / name, limits)
        assert everything(again) == states[name]
        check(again)
        again.close()
    found = Manifests(LocalStore(str(tmp_path / "parent"), ENV), ENV).latest()
    assert found is not None
    assert len(found.manifest.pins) <= 1
