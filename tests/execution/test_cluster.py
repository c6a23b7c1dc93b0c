"""Workers that see nothing of the driver's: the same pipeline, wherever Spark runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from stepwell.env import SystemEnv
from stepwell.store.local import LocalStore
from stepwell.store.objects import ObjectsStore
from tests.execution import searching
from tests.execution.clustered import everything_in_files, live
from tests.store.conftest import BUCKET, s3_endpoint
from tests.store.http_stub import OPTIONS

__all__ = ["s3_endpoint"]

ROOT = Path(__file__).resolve().parents[2]


def on_a_cluster(
    tmp_path: Path, store: str, variables: dict[str, str], script: str = "clustered", *more: str
) -> dict[str, Any]:
    """What the pipeline says of itself, driven from a process whose files no other sees."""
    # Workers work below Spark's home. This one is not the installed one, which stays as it is.
    home, driver = tmp_path / "spark", tmp_path / "driver"
    home.mkdir()
    (driver / "tmp").mkdir(parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    ended = subprocess.run(
        [sys.executable, "-m", f"tests.execution.{script}", store, *more],
        cwd=driver,
        env={
            **os.environ,
            **variables,
            "SPARK_HOME": str(home),
            "TMPDIR": "/proc/self/cwd/tmp",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    assert not found.pop("seen"), "workers must not see the driver's files, or this tests nothing"
    return found


@pytest.mark.slow
def test_a_pipeline_in_a_bucket_runs_on_workers_that_share_no_disk(
    tmp_path: Path, spark: SparkSession, s3_endpoint: str
) -> None:
    """S1, K2: pushes, flushes, merges, compaction, reopening and restore, by workers' hands."""
    with everything_in_files():
        here = live(LocalStore(str(tmp_path / "here"), SystemEnv()), spark)
    prefix = f"cluster/{SystemEnv().new_id()}"
    variables = {
        "AWS_ENDPOINT": s3_endpoint,
        **{f"AWS_{name.upper()}": str(value).lower() for name, value in OPTIONS.items()},
    }
    there = on_a_cluster(tmp_path, f"s3://{BUCKET}/{prefix}", variables)
    assert there == here
    store = ObjectsStore("s3", BUCKET, prefix, SystemEnv(), endpoint=s3_endpoint, **OPTIONS)
    assert store.list("runs/")
    assert not store.list("spill/"), "what was spilled went with the process"


@pytest.mark.slow
def test_executors_look_up_rows_and_one_of_them_is_killed(
    tmp_path: Path, spark: SparkSession, s3_endpoint: str
) -> None:
    """S1, X2: the driver reads no run, views share the jobs, and a lost executor loses no row."""
    here = searching.in_this_process(LocalStore(str(tmp_path / "here"), SystemEnv()), spark)
    variables = {
        "AWS_ENDPOINT": s3_endpoint,
        **{f"AWS_{name.upper()}": str(value).lower() for name, value in OPTIONS.items()},
    }
    store = f"s3://{BUCKET}/search/{SystemEnv().new_id()}"
    there = on_a_cluster(tmp_path, store, variables, "searching", str(tmp_path))
    assert there["read"] == {"get": 0, "get_range": 0}
    assert there["killed"], "an executor must die in the middle of a wave, or this tests nothing"
    assert there["rows"] == here
    assert there["waves"] == searching.WAVES


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")
def test_a_directory_that_workers_do_not_see_is_named(tmp_path: Path) -> None:
    """S1: rows that a worker writes to a disk of its own would be lost without a word."""
    found = on_a_cluster(tmp_path, "/proc/self/cwd/state", {})
    assert found["error"] == "ConfigError"
    assert "does not see file:///proc/self/cwd/state" in found["message"]
    assert "shared with all workers" in found["hint"]
