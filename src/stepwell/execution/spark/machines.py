"""Ask every executor about its machine, by jobs whose tasks wait until the others have one, too."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from stepwell.env import SystemEnv
from stepwell.execution.machine import Machine, report
from stepwell.execution.spark.failures import translated
from stepwell.lsm.bulk import REPORT
from stepwell.lsm.remote_files import Batches, MapArrow
from stepwell.store.address import Address

_ROUNDS_MAX = 20
_TASK_S = 0.3
"""How long a task keeps its core, so that others go to other executors."""


def machines(spark: SparkSession, address: Address, token: bytes) -> tuple[list[Machine], int]:
    """A report of each executor that took a task, and the number of executors that there are.

    Executors register one by one. Known numbers are waited for, within bounds.
    """
    found: dict[tuple[str, int], Machine] = {}
    for _ in range(_ROUNDS_MAX):
        tasks = 4 * max(2, spark.sparkContext.defaultParallelism)
        with translated():
            numbers = spark.range(0, tasks, 1, tasks)
            lines = numbers.mapInArrow(_asking(address, token), REPORT).collect()
        for line in lines:
            machine: Machine = pickle.loads(line.report)
            found.setdefault(machine.executor, machine)
        if len(found) >= max(executors(spark), _wanted(spark)):
            break
    return sorted(found.values(), key=lambda machine: machine.executor), executors(spark)


def executors(spark: SparkSession) -> int:
    """The number of executors that are registered now, without the driver."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    return max(1, len(tracker.getExecutorInfos()) - 1)


def _wanted(spark: SparkSession) -> int:
    """The number of executors that were asked for; 1 if that is not known."""
    local = re.match(r"local-cluster\[\s*(\d+)", str(spark.sparkContext.master))
    given = local[1] if local else spark.conf.get("spark.executor.instances", "1")
    return int(given or 1)


def _asking(address: Address, token: bytes) -> MapArrow:
    def ask(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for _ in range(batch.num_rows):
                data = pickle.dumps(report(address, token))
                SystemEnv().sleep(_TASK_S)
                yield pa.RecordBatch.from_arrays([pa.array([data])], names=["report"])

    return ask
