"""Look-ups by Spark's Python processes, on this machine: how many jobs they are, and their rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError
from stepwell.execution.spark.executor_search import SparkSlots
from stepwell.lsm.search import Hit, Wave
from stepwell.store.local import LocalStore
from tests.execution.searching import (
    WAVES,
    counting,
    follow,
    in_this_process,
    load,
    opened,
    picture,
    waves,
)


def test_views_share_the_jobs_of_their_look_ups(spark: SparkSession, tmp_path: Path) -> None:
    """X2: jobs are counted by waves, not by views; the driver reads no run and finds all rows."""
    store = LocalStore(str(tmp_path / "store"), SystemEnv())
    with opened(store, spark, tmp_path / "cache", shared=True) as pipeline:
        load(pipeline)
    with opened(store, spark, tmp_path / "cache", shared=True) as pipeline:
        dice = random.Random(9)
        with counting(store) as read:
            follow(pipeline, dice, 2)
            before = waves(pipeline)
            follow(pipeline, dice, 1)
            needed = waves(pipeline) - before
        assert read == {"get": 0, "get_range": 0}
        follow(pipeline, dice, 2)
        there = picture(pipeline)
    here = in_this_process(LocalStore(str(tmp_path / "here"), SystemEnv()), spark)
    assert there == here
    assert needed == WAVES


def test_a_job_that_spark_cannot_run_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: a lost cluster is no error of the user's query, and the next transaction can succeed."""
    store = LocalStore(str(tmp_path / "store"), SystemEnv())
    with opened(store, spark, tmp_path / "cache", shared=True) as pipeline:
        load(pipeline)
    with opened(store, spark, tmp_path / "cache", shared=True) as pipeline:
        before = picture(pipeline)
        run = SparkSlots.run

        def failing(self: SparkSlots, wave: Wave, slots: Sequence[int]) -> list[Hit] | None:
            return run(self, Failing(), slots)  # type: ignore[arg-type]

        monkeypatch.setattr(SparkSlots, "run", failing)
        with pytest.raises(UnavailableError, match="executors cannot look up rows"):
            follow(pipeline, random.Random(1), 1)
        monkeypatch.setattr(SparkSlots, "run", run)
        assert picture(pipeline) == before
        follow(pipeline, random.Random(1), 1)
        assert picture(pipeline) != before


class Failing:
    """A wave whose tasks fail."""

    def __call__(self, slots: object) -> list[object]:
        raise RuntimeError("the executor has no more memory")
