"""Spark cannot start, or runs out of memory: real processes, and what they tell their user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.testing import EXECUTOR_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.slow]

YML = """\
name: texts
store: ./state
spark: {driver_memory: 512m}
sources:
  texts: {table: texts, type: files, path: data/*.parquet, format: parquet, settle: 0s}
"""
SQL = """\
CREATE TABLE texts (id BIGINT, t STRING);
CREATE MATERIALIZED VIEW together AS SELECT COLLECT_LIST(t) AS texts FROM texts;
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "data").mkdir(parents=True)
    (made / "stepwell.yml").write_text(YML)
    (made / "pipeline.sql").write_text(SQL)
    return made


def run_once(folder: Path, **variables: str) -> str:
    """Run the pipeline, which has to fail in an orderly way; return what it says."""
    inherited = {name: value for name, value in os.environ.items() if name != EXECUTOR_VARIABLE}
    ended = subprocess.run(
        [sys.executable, "-m", "stepwell", "-C", str(folder), "run", "--once"],
        env={**inherited, **variables, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = ended.stderr + ended.stdout
    assert ended.returncode == 1, said
    assert "unexpected" not in said
    assert "Traceback" not in said
    assert "error: " in said
    return said


def test_a_spark_home_that_is_none_is_named(folder: Path) -> None:
    said = run_once(folder, SPARK_HOME="/nowhere")
    assert "SPARK_HOME is /nowhere, which is not a Spark; unset it" in said


def test_arguments_that_spark_does_not_know_are_named(folder: Path) -> None:
    said = run_once(folder, PYSPARK_SUBMIT_ARGS="--no-such-option pyspark-shell")
    assert "PYSPARK_SUBMIT_ARGS is '--no-such-option pyspark-shell': unset it" in said


def test_too_little_memory_for_a_large_load_says_what_to_change(folder: Path) -> None:
    """Nothing was changed, and with more memory the same input is taken in."""
    texts = [f"{number:06d}" * 800 for number in range(60_000)]
    table = pa.table({"id": range(len(texts)), "t": texts})
    pq.write_table(table, folder / "data" / "a.parquet", compression="zstd")
    said = run_once(folder)
    assert "out of memory" in said
    assert "spark.driver_memory in stepwell.yml" in said
