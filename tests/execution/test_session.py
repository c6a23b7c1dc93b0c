"""The session: what a view means in it, and what it leaves alone.

What can only be seen in a process of its own (standard error, the current directory, masters that
do not exist) runs in one, from a script.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import ArithmeticException, PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from stepwell.errors import ConfigError, UnavailableError
from stepwell.execution.spark import session
from stepwell.execution.spark.failures import translated
from stepwell.execution.spark.session import SessionSettings, adopt, beside, open_session, within
from tests.execution.conftest import SETTINGS

OPTIONS = "spark.driver.extraJavaOptions"
FAST = SETTINGS.conf[OPTIONS]


def test_sums_that_overflow_are_errors(spark: SparkSession) -> None:
    """S1: a result that is silently wrong or null is worse than none."""
    with pytest.raises(ArithmeticException, match="ARITHMETIC_OVERFLOW"):
        spark.sql("SELECT sum(x) FROM VALUES (9223372036854775807), (1) AS t(x)").collect()


def test_names_of_columns_are_the_same_in_any_case(spark: SparkSession) -> None:
    """S1: the compiler takes them so, and Spark must agree."""
    assert spark.range(1).toDF("Id").select("ID", "id").collect() == [(0, 0)]


def test_a_small_job_is_one_wave_of_tasks_that_is_planned_once(spark: SparkSession) -> None:
    """200 tasks for 10 rows, or a new plan after each shuffle, take longer than the work."""
    grouped = spark.range(10).groupBy((f.col("id") % 3).alias("k")).count()
    plan = grouped._jdf.queryExecution().executedPlan().toString()
    assert "Exchange hashpartitioning" in plan
    assert "Adaptive" not in plan
    assert grouped.rdd.getNumPartitions() == 2


def test_tables_go_in_and_out_by_arrow_unchanged(spark: SparkSession) -> None:
    """Change sets travel this way, so a type that changed on it would change the data."""
    table = pa.table(
        {
            "id": pa.array([1, None], pa.int64()),
            "name": ["é", None],
            "amount": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
            "at": pa.array(
                [datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC), None],
                pa.timestamp("us", "UTC"),
            ),
            "tags": pa.array([["a", None], None], pa.list_(pa.field("element", pa.string()))),
            "raw": pa.array([b"\x00", None]),
        }
    )
    assert spark.createDataFrame(table).toArrow().equals(table)


def test_functions_run_in_the_interpreter_that_runs_stepwell(spark: SparkSession) -> None:
    """The first python3 on the path may be another version, without the user's packages."""
    where = f.udf(lambda _: os.path.realpath(__import__("sys").executable), "string")
    assert spark.range(1).select(where("id")).collect() == [(os.path.realpath(sys.executable),)]


def test_a_damaged_page_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Disks flip bits, and without a checksum the number read would be computed with."""
    written = str(tmp_path / "run")
    # Not compressed, and without Hadoop's own checksum file, which object stores do not have.
    frame = spark.range(1000).select((f.col("id") * 1000003).alias("n")).coalesce(1)
    frame.write.option("compression", "none").parquet(written)
    (file,) = Path(written).glob("*.parquet")
    for checksum in Path(written).glob(".*.crc"):
        checksum.unlink()
    good = sorted(row.n for row in spark.read.parquet(written).collect())
    data = bytearray(file.read_bytes())
    data[len(data) // 4] ^= 1
    file.write_bytes(data)
    # Spark's Python side knows no class of its own for this one, and raises what Java raised.
    with pytest.raises(Py4JJavaError, match="CRC checksum verification failed"):
        spark.read.parquet(written).collect()
    # The damage lies where it counts: unchecked, other numbers are read and nothing is noticed.
    with setting(spark, "parquet.page.verify-checksum.enabled", "false"):
        assert sorted(row.n for row in spark.read.parquet(written).collect()) != good


def test_times_are_written_with_their_range(spark: SparkSession, tmp_path: Path) -> None:
    """Without one, a run cannot be skipped by time."""
    written = str(tmp_path / "run")
    spark.sql("SELECT TIMESTAMP '2024-02-29 01:02:03' AS at").coalesce(1).write.parquet(written)
    (file,) = Path(written).glob("*.parquet")
    statistics = pq.ParquetFile(file).metadata.row_group(0).column(0).statistics
    assert statistics.max == datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)


def test_a_second_session_shares_spark_and_nothing_else(spark: SparkSession) -> None:
    """Two pipelines in one process: one Spark, but settings and views of their own."""
    conf = {**SETTINGS.conf, "spark.sql.ansi.enabled": False}
    settings = replace(SETTINGS, name="another", conf=conf, shuffle_partitions=3)
    second = open_session(settings)
    assert second.sparkContext is spark.sparkContext
    assert second.sql("SELECT 1 / 0 AS x").collect() == [(None,)]
    second.range(1).createOrReplaceTempView("of_the_second")
    assert not spark.catalog.tableExists("of_the_second")
    assert second.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    with pytest.raises(ArithmeticException):
        spark.sql("SELECT 1 / 0 AS x").collect()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"master": "local[1]"}, "spark.master"),
        ({"driver_memory": "3g"}, "spark.driver.memory"),
        ({"conf": {**SETTINGS.conf, OPTIONS: ""}}, OPTIONS),
        ({"conf": {**SETTINGS.conf, "spark.ui.enabled": True}}, "spark.ui.enabled"),
    ],
)
def test_spark_is_not_opened_twice_with_different_settings(
    spark: SparkSession, change: dict[str, object], key: str
) -> None:
    """The second would run with the settings of the first, and nobody would know."""
    with pytest.raises(ConfigError) as raised:
        open_session(replace(SETTINGS, **change))  # type: ignore[arg-type]
    assert raised.value.message.startswith(f"Spark runs in this process already, with {key}=")
    assert "spark=spark" in (raised.value.hint or "")


def test_an_adopted_session_is_left_as_it_was(spark: SparkSession) -> None:
    """It belongs to the caller, who goes on using it with settings of his own."""
    callers = spark.newSession()
    callers.conf.set("spark.sql.ansi.enabled", "false")
    callers.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    callers.udf.register("twice", lambda x: x * 2, "bigint")
    callers.range(3).createOrReplaceTempView("of_the_caller")
    # Read once, so that what follows is a change and not a beginning.
    assert callers.sql("SELECT 1 / 0 AS x").collect() == [(None,)]
    ours = adopt(callers)
    with pytest.raises(ArithmeticException):
        ours.sql("SELECT 1 / 0 AS x").collect()
    midnight = "SELECT unix_seconds(TIMESTAMP '2024-01-01 00:00:00') AS s"
    assert ours.sql(midnight).collect() == [(1704067200,)]
    assert callers.sql(midnight).collect() == [(1704067200 - 9 * 3600,)]
    assert callers.sql("SELECT 1 / 0 AS x").collect() == [(None,)]
    assert ours.sql("SELECT twice(id) AS x FROM of_the_caller WHERE id = 2").collect() == [(4,)]
    ours.range(1).createOrReplaceTempView("of_ours")
    assert not callers.catalog.tableExists("of_ours")


def test_a_second_session_computes_with_its_own_settings(
    spark: SparkSession, tmp_path: Path
) -> None:
    """S5: a compaction in the background is parallel, whatever the transaction has set."""
    ours = adopt(spark)
    ours.conf.set("spark.sql.shuffle.partitions", "3")
    other = beside(ours)
    ours.conf.set("spark.sql.shuffle.partitions", "1")
    frame = ours.range(900).selectExpr("id % 300 AS k").groupBy("k").count()
    for name, rows, tasks in (("ours", frame, 1), ("other", within(other, frame), 3)):
        rows.write.parquet(str(tmp_path / name))
        assert len(list((tmp_path / name).glob("part-*"))) == tasks
        assert pq.read_table(tmp_path / name).num_rows == 300


def test_an_adopted_session_writes_and_checks_page_checksums(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The caller's Spark was started without them."""
    callers = spark.newSession()
    for key in ("write", "verify"):
        callers.conf.set(f"parquet.page.{key}-checksum.enabled", "false")
    ours = adopt(callers)
    sizes = []
    for number, writer in enumerate((callers, ours)):
        frame = writer.range(1000).coalesce(1).write
        frame.option("compression", "none").parquet(str(tmp_path / str(number)))
        (file,) = (tmp_path / str(number)).glob("*.parquet")
        sizes.append(file.stat().st_size)
    assert sizes[1] > sizes[0], "a checksum takes some bytes"
    assert ours.conf.get("parquet.page.verify-checksum.enabled") == "true"


def test_what_cannot_be_adopted_is_refused_with_the_reason(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: half of it would work, and the rest would fail in the middle of a run."""
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigError, match="a session of Spark Connect"):
        adopt(remote)
    with pytest.raises(ConfigError, match=r"expected a SparkSession, found builtins\.str"):
        adopt("local[2]")  # type: ignore[arg-type]
    monkeypatch.setattr(session, "SPARK", "5.0")
    with pytest.raises(ConfigError, match=r"is version 4\.3\.\d+, and Stepwell needs 5\.0"):
        adopt(spark)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SessionSettings(master="sc://host"), "spark.master asks for Spark Connect"),
        (SessionSettings(master="mesos://host"), "'mesos://host' is not a Spark master"),
        (SessionSettings(master="localhost"), "'localhost' is not a Spark master"),
        (SessionSettings(conf={"fs.s3a.endpoint": "x"}), "does not start with 'spark.'"),
        (SessionSettings(conf={"spark.master": "local"}), "spark.master cannot be set in conf"),
    ],
)
def test_a_request_that_cannot_work_is_refused_before_spark_starts(
    settings: SessionSettings, message: str
) -> None:
    """Spark ignores some of these, and answers to others seconds later with a stack of its own."""
    with pytest.raises(ConfigError) as raised:
        open_session(settings)
    assert message in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize("value", ["abc", "-3"])
def test_a_setting_whose_value_spark_refuses_is_named(spark: SparkSession, value: str) -> None:
    """It ended as a bug in Stepwell, with a page of Java."""
    conf = {"spark.sql.shuffle.partitions": value}
    with pytest.raises(ConfigError, match=f"spark.sql.shuffle.partitions cannot be '{value}'"):
        adopt(spark, SessionSettings(conf=conf))


@pytest.mark.parametrize(
    ("error", "variables", "hint"),
    [
        (
            ValueError("[INVALID_DRIVER_MEMORY.SYSTEM_MEMORY] Insufficient driver memory"),
            {},
            "give it more than 600m: spark.driver_memory in stepwell.yml",
        ),
        (
            FileNotFoundError("/nowhere/bin/spark-submit"),
            {"SPARK_HOME": "/nowhere"},
            "SPARK_HOME is /nowhere, which is not a Spark; unset it",
        ),
        (
            ValueError("[JAVA_GATEWAY_EXITED] Java gateway process exited"),
            {"PYSPARK_SUBMIT_ARGS": "--foo pyspark-shell"},
            "its own output is above; PYSPARK_SUBMIT_ARGS is '--foo pyspark-shell': unset it",
        ),
        (
            ValueError("[JAVA_GATEWAY_EXITED] Java gateway process exited"),
            {},
            "its own output is above; Java is java, with 600m of memory (spark.driver_memory); "
            "see also: stepwell doctor",
        ),
    ],
)
def test_what_kept_spark_from_starting_is_named(
    error: Exception, variables: dict[str, str], hint: str
) -> None:
    """Memory, and variables that nobody remembers to have set."""
    settings = SessionSettings(driver_memory="600m")
    java = session.Java("java", "17", "PATH")
    told = session._not_started(settings, java, error, variables)
    assert isinstance(told, ConfigError)
    assert told.hint == hint


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (Py4JNetworkError("Error while sending or receiving"), "Java process has ended"),
        (ConnectionRefusedError(111, "Connection refused"), "Java process has ended"),
        (PySparkRuntimeError("java.lang.OutOfMemoryError: Java heap space"), "out of memory"),
        (PySparkRuntimeError("Job 3 cancelled because SparkContext was shut down"), "has ended"),
    ],
)
def test_a_spark_that_ran_out_of_memory_says_so(raised: Exception, said: str) -> None:
    """It was told as a row that cannot be computed, or as a bug in Stepwell."""
    with pytest.raises(UnavailableError, match=said) as told, translated():
        raise raised
    assert "spark.driver_memory in stepwell.yml" in str(told.value.hint)


def test_an_environment_that_asks_for_spark_connect_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark would quietly connect to a server in place of the master that was asked for."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(ConfigError, match="SPARK_REMOTE asks for Spark Connect"):
        open_session(SETTINGS)


ALONE = f"""
import os, signal, sys
from stepwell.errors import ConfigError
from stepwell.execution.spark.session import SessionSettings, open_session

mine = lambda *_: None
signal.signal(signal.SIGINT, mine)
before = dict(os.environ)
conf = {{"spark.driver.extraJavaOptions": "{FAST}"}}
try:
    open_session(SessionSettings("local[0]", conf=conf))
except ConfigError as error:
    print(error.message)
spark = open_session(SessionSettings("local[2]", conf=conf))
print(spark.sql("SELECT unix_seconds(TIMESTAMP '2024-01-01 00:00:00') AS s").first().s)
print(spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.driver.host"))
spark.sql("SELECT id, row_number() OVER (ORDER BY id) AS n FROM range(9)").collect()
spark.sql("CREATE TABLE kept USING parquet AS SELECT 1 AS x")
print(spark.table("kept").first().x)
for query in ("SELECT 1 / 0", "SELECT assert_true(id < 5) FROM range(9)"):
    try:
        spark.sql(query).collect()
    except Exception as error:
        print(type(error).__name__)
print(signal.getsignal(signal.SIGINT) is mine)
names = ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON")
print([name for name in names if os.environ.get(name) != before.get(name)])
"""


@pytest.mark.spark
def test_spark_is_quiet_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """S1: standard error belongs to progress, the current directory to the project.

    In a time zone of its own, since the answer must not depend on it.
    """
    (tmp_path / "project").mkdir()
    (tmp_path / "temporary").mkdir()
    ended = run(ALONE, tmp_path / "project", TZ="Asia/Tokyo", TMPDIR=str(tmp_path / "temporary"))
    assert ended.stdout.splitlines() == [
        "Spark with master local[0] did not start: Asked to run locally with 0 threads",
        "1704067200",
        "2 127.0.0.1",
        "1",
        "ArithmeticException",
        "SparkRuntimeException",
        "True",
        "[]",
    ]
    assert ended.stderr == ""
    assert os.listdir(tmp_path / "project") == []
    assert not list((tmp_path / "temporary").glob("stepwell-*"))


ON_WORKERS = f"""
import os
from pyspark.sql import functions as f
from stepwell.execution.spark.session import SessionSettings, open_session

settings = SessionSettings(
    master="local-cluster[2,1,1024]",
    conf={{
        "spark.driver.extraJavaOptions": "{FAST}",
        "spark.executor.extraJavaOptions": "{FAST}",
        "spark.executor.memory": "512m",
    }},
    shuffle_partitions=2,
)
spark = open_session(settings)
frame = spark.range(0, 1000, 1, 4)
print(frame.groupBy((f.col("id") % 3).alias("k")).agg(f.sum("id")).orderBy("k").collect())
directory = f.udf(lambda _: os.getcwd(), "string")
print(os.getcwd() in [row.d for row in frame.select(directory("id").alias("d")).collect()])
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_the_same_code_runs_on_workers_in_other_processes(tmp_path: Path) -> None:
    """S1: only the master differs; nothing may rest on one process doing all of it."""
    # Workers work below Spark's home. This one is not the installed one, which stays as it is.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    ended = run(ON_WORKERS, tmp_path, SPARK_HOME=str(home))
    assert ended.stdout.splitlines() == [
        "[Row(k=0, sum(id)=166833), Row(k=1, sum(id)=166167), Row(k=2, sum(id)=166500)]",
        "False",
    ]
    assert ended.stderr == ""
    assert (home / "work").is_dir(), "the workers were here"


def run(script: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a new process, in that directory."""
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@contextmanager
def setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Set for a while, in a session that other tests use, too."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)


def test_a_java_that_was_just_killed_is_not_taken_for_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R1: its sockets close a moment before it is gone, and a run would end for nothing."""
    with subprocess.Popen(["sleep", "0.2"]) as dying:
        monkeypatch.setattr("stepwell.execution.spark.failures.java_process", lambda: dying)
        with pytest.raises(UnavailableError, match="has ended"), translated():
            raise ConnectionRefusedError
        assert session.has_ended(dying) is not None


def test_a_setting_that_replay_needs_cannot_be_turned_off() -> None:
    """J6: sums would depend on memory again."""
    conf = {"spark.sql.execution.replaceHashWithSortAgg": "false"}
    with pytest.raises(ConfigError, match="identical only if it is true"):
        open_session(SessionSettings(conf=conf))
