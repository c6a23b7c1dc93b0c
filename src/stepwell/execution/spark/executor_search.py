"""Run the searches of `lsm/search` as Spark jobs, each file on the executor that had it before.

A persisted RDD has one tiny element per slot. Spark runs the task of a slot where its element is,
so an executor gets the same files again, whose columns it has mapped. An executor that is lost
takes elements with it; Spark makes them again elsewhere, and the cache of that machine fills.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stepwell.errors import UnavailableError, UserCodeError
from stepwell.execution.spark.failures import translated
from stepwell.execution.spark.machines import executors
from stepwell.execution.spark.runs import Runs
from stepwell.execution.spark.shared import SharedRuns
from stepwell.lsm.search import ExecutorSearch, Hit, Wave

SLOTS_PER_CORE = 4
"""More slots than cores, so that files are spread evenly; each slot is a task."""
_SLOTS_MIN = 32
_TOO_LARGE = "spark.driver.maxResultSize"
"""Named by Spark in the error when the results of a job are too large."""


def search_of(spark: SparkSession, runs: Runs) -> ExecutorSearch | None:
    """Looks up rows of these runs on executors; None if this process has all runs."""
    if not isinstance(runs, SharedRuns):
        return None
    return ExecutorSearch(runs.locate, SparkSlots(spark), runs.cache)


class SparkSlots:
    """Implements `Slots`. Safe to use from several threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._lock = threading.Lock()
        self._elements: Any = None
        self._executors = 0
        """The greatest number of executors that there was."""
        self._count: int | None = None

    @property
    def count(self) -> int:
        """The number of slots. It stays, also if executors are added or lost."""
        with self._lock:
            if self._count is None:
                self._count = max(_SLOTS_MIN, SLOTS_PER_CORE * self._context.defaultParallelism)
            return self._count

    def _placed(self) -> Any:
        """The RDD of the elements.

        It is made again when there are more executors than ever: tasks would stay with those that
        were the first.
        """
        count, now = self.count, executors(self._spark)
        with self._lock:
            if now > self._executors:
                before, self._executors = self._elements, now
                elements = self._context.parallelize(list(range(count)), count)
                self._elements = elements.persist(StorageLevel.MEMORY_ONLY)
                if before is not None:
                    before.unpersist()
            return self._elements

    def run(self, wave: Wave, slots: Sequence[int]) -> list[Hit] | None:
        """Run a wave as one job; None if its hits are too large to return."""
        try:
            with translated():
                elements = self._placed()
                try:
                    return list(self._context.runJob(elements, wave, list(slots)))
                except (PySparkException, Py4JJavaError) as error:
                    if _TOO_LARGE in str(error):
                        return None
                    raise
        except UserCodeError as error:
            # No query is run here: executors were lost, or cannot be reached.
            raise UnavailableError(
                f"executors cannot look up rows: {error.message}",
                hint="nothing was changed; see also: stepwell doctor --cluster",
            ) from error
