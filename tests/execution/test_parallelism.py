"""The same journal, replayed with another number of partitions and on workers: the same output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from stepwell.execution.spark.session import SessionSettings, adopt
from tests.execution.replaying import TRANSACTIONS, crash, replay, sent_to


@pytest.fixture
def crashed(tmp_path: Path, spark: SparkSession) -> Path:
    """The folder of a pipeline that has all of its transactions in the journal only."""
    crash(tmp_path / "crashed", spark)
    os.rename(tmp_path / "crashed" / "state", tmp_path / "crashed" / "kept")
    return tmp_path / "crashed"


def replayed(crashed: Path, name: str, spark: SparkSession) -> dict[str, Any]:
    return replay(put_back(crashed), crashed.parent / name / "out", spark)


def put_back(crashed: Path) -> Path:
    """The pipeline as it was after the crash, where it was: a copy elsewhere would be refused."""
    shutil.rmtree(crashed / "state", ignore_errors=True)
    shutil.copytree(crashed / "kept", crashed / "state")
    return crashed


def test_replay_with_other_parallelism_gives_the_same_output(
    crashed: Path, spark: SparkSession
) -> None:
    """Scenario 85, J2, J5, J6: 1 and 4 partitions where there were 2; what came in is compared on
    the way."""
    found = {}
    for partitions in (1, 4):
        session = adopt(spark, SessionSettings(shuffle_partitions=partitions))
        assert adopt(session).conf.get("spark.sql.shuffle.partitions") == str(partitions)
        found[partitions] = replayed(crashed, str(partitions), session)
    assert adopt(spark).conf.get("spark.sql.shuffle.partitions") == "2"
    assert found[1]["replayed"] == TRANSACTIONS
    assert len(found[1]["orders$errors"]) >= TRANSACTIONS // 2
    assert sum(name.startswith("sold ") for name in found[1]) == TRANSACTIONS
    assert found[1] == found[4]
    sent = sent_to(crashed / "out")
    assert len(sent) > TRANSACTIONS
    assert sent == {name: found[1][name] for name in sent}, "replay sends what was sent before"


@pytest.mark.slow
def test_replay_on_workers_gives_the_same_output(
    crashed: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """Scenario 85, J2, S1: two workers in processes of their own."""
    here = replayed(crashed, "here", spark)
    folder, out = put_back(crashed), tmp_path / "workers" / "out"
    # Workers work below Spark's home. This one is not the installed one, which stays as it is.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.execution.replaying", str(folder), str(out)],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == here
    assert (home / "work").is_dir(), "the workers were here"
