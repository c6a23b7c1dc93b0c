"""Java is killed under a run: it is started again, and the run goes on; or ends clearly."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast

from tests.cli.projects import YML, Process, stepwell, write_project

pytestmark = pytest.mark.spark

SPARK = YML + 'spark: {master: "local[1]"}\n'


def java_of(pid: int) -> int | None:
    """The Java that a process has started."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if "java" in Path(f"/proc/{child}/comm").read_text():
                return int(child)
    return None


def push(folder: Path, id: int) -> str:
    given = json.dumps({"id": id, "customer": "ada", "amount": "1.25"})
    done = stepwell(folder, "push", "orders", "-", given=given)
    return done.stdout + done.stderr


def test_a_run_whose_java_is_killed_starts_another_and_replays(tmp_path: Path) -> None:
    """R1: at once, also while nothing is asked of it. How often is tested without Spark."""
    folder = write_project(tmp_path / "project", yml=SPARK)
    run = Process(folder, "run")
    try:
        run.until("running;")
        assert "transaction 1" in push(folder, 1)
        java = java_of(run.pid)
        assert java is not None
        os.kill(java, signal.SIGKILL)
        run.until(f"process {java}, was killed by signal 9: starting another, 1 of")
        assert "transaction 2" in push(folder, 2)
        asked = stepwell(folder, "query", "SELECT n FROM revenue", "--format", "json")
        assert asked.stdout == '{"n":2}\n', asked.stderr
        run.send(signal.SIGTERM)
        assert run.end() == 130
        assert "Traceback" not in run.text
    finally:
        run.kill()


def test_threads_of_java_do_not_grow_with_queries(spark: SparkSession) -> None:
    """R1: every broadcast join took one more, up to 128."""
    ids = spark.range(3)
    for number in range(20):
        few = spark.range(number + 1).withColumnRenamed("id", "other")
        assert ids.join(broadcast(few), ids.id == few.other).count() == min(3, number + 1)
    jvm: Any = spark._jvm
    threads = [thread.getName() for thread in jvm.Thread.getAllStackTraces().keySet()]
    assert 0 < sum(name.startswith("broadcast-exchange") for name in threads) <= 16
