"""Runs that Spark's Python processes read, as executors on other machines do, but on this one.

`runs_elsewhere` holds the arguments of `Views.open` for it: runs are in a store, this process has
no files of them, and rows are looked up in tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stepwell.env import SystemEnv
from stepwell.execution.spark.shared import SharedRuns
from stepwell.execution.spark.views import Views
from stepwell.lsm.cache import CachePlace
from stepwell.lsm.limits import MemoryLimits
from stepwell.store.local import LocalStore


def runs_elsewhere(limits: MemoryLimits) -> dict[str, Any]:
    def made(spark: SparkSession, folder: Path) -> SharedRuns:
        env = SystemEnv()
        store = LocalStore(str(folder / "store"), env)
        cache = CachePlace(str(folder / "workers-cache"))
        return SharedRuns(spark, store, env, folder / "files", limits, cache)

    return {"runs": made, "limits": limits}


def waves(views: Views) -> int:
    """The number of jobs that looked up rows."""
    search = views._evaluator._elsewhere
    return 0 if search is None else search.jobs  # type: ignore[attr-defined]
