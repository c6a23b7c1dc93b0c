"""A view means the same in any session, on any master, in as many partitions as there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from stepwell.errors import SqlError, UserCodeError
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark.evaluate import Use
from stepwell.execution.spark.session import SessionSettings
from stepwell.execution.spark.views import Change, Views
from stepwell.lsm.limits import MemoryLimits
from tests.comparing import difference, difference_of_rows, rows_of
from tests.execution.conftest import SETTINGS
from tests.execution.test_session import FAST

# What each of these views says depends on a setting that some session has otherwise.
MEANT = """
CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP, x DECIMAL(38, 10), s STRING);
CREATE MATERIALIZED VIEW days AS SELECT CAST(at AS DATE) AS day, COUNT(*) AS n FROM t GROUP BY 1;
CREATE MATERIALIZED VIEW hours AS SELECT ID, hour(at) AS h, TIMESTAMP '2024-01-01 00:00:00' AS new
    FROM t WHERE at >= TIMESTAMP '2024-01-01 00:00:00';
CREATE MATERIALIZED VIEW products AS SELECT id, x * x AS square FROM t;
CREATE MATERIALIZED VIEW sizes AS SELECT id, size(CAST(NULL AS ARRAY<INT>)) AS n FROM t;
"""
OTHERWISE = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
NAMES = ["days", "hours", "products", "sizes"]


def rows(*of: tuple[int, int, str]) -> pa.Table:
    ids, hours, texts = zip(*of, strict=True)
    at = [datetime(2023, 12, 31, hour, tzinfo=UTC) for hour in hours]
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "at": pa.array(at, pa.timestamp("us", "UTC")),
            "x": pa.array([i * 10 + 3 for i in ids], pa.decimal128(38, 10)),
            "s": list(texts),
        }
    )


def kept(spark: SparkSession, settings: SessionSettings | None = None) -> dict[str, pa.Table]:
    """The views after rows have come, changed and gone."""
    first = rows((1, 1, "a"), (2, 16, "b"))
    views = Views.open(spark, MEANT, tables={"t": first}, settings=settings)
    views.apply({"t": Change(put=rows((2, 20, "c"), (3, 23, "d")))})
    views.apply({"t": Change(delete=pa.table({"id": pa.array([1], pa.int32())}))})
    return {name: views.read(name) for name in NAMES}


def test_a_session_with_other_settings_gives_the_same_views(spark: SparkSession) -> None:
    """S1, trap 42: every session that runs a pipeline, from any notebook, reads the same rows."""
    callers = spark.newSession()
    for name, value in OTHERWISE.items():
        callers.conf.set(name, value)
    expected, found = kept(spark), kept(callers)
    for name in NAMES:
        assert not difference(found[name], expected[name]), name
    for name, value in OTHERWISE.items():
        assert callers.conf.get(name) == value, "the session is the caller's"


def test_settings_of_the_project_do_change_views(spark: SparkSession) -> None:
    """S1: else the test above would test nothing; and a project may choose them."""
    expected = kept(spark)
    for chosen in (
        {"spark.sql.session.timeZone": "Asia/Tokyo"},
        {"spark.sql.decimalOperations.allowPrecisionLoss": False},
        {"spark.sql.ansi.enabled": False, "spark.sql.legacy.sizeOfNull": True},
    ):
        found = kept(spark, replace(SETTINGS, conf={**SETTINGS.conf, **chosen}))
        assert any(difference(found[name], expected[name]) for name in NAMES), chosen
    with pytest.raises(SqlError, match="ID"):
        kept(spark, replace(SETTINGS, conf={**SETTINGS.conf, "spark.sql.caseSensitive": True}))


def test_ansi_arithmetic_is_a_matter_of_the_project(spark: SparkSession) -> None:
    """S1: what overflows is an error unless the project says otherwise, whatever a session says."""
    text = (
        "CREATE TABLE t (a INT); CREATE MATERIALIZED VIEW v AS SELECT a + 2147483647 AS b FROM t;"
    )
    change = {"t": Change(put=pa.table({"a": pa.array([1], pa.int32())}))}
    callers = spark.newSession()
    callers.conf.set("spark.sql.ansi.enabled", "false")
    with pytest.raises(UserCodeError, match="overflow"):
        Views.open(callers, text).apply(change)
    settings = replace(SETTINGS, conf={**SETTINGS.conf, "spark.sql.ansi.enabled": False})
    views = Views.open(spark, text, settings=settings)
    views.apply(change)
    assert rows_of(views.read("v")) == [(-2147483648,)]


# Functions of the session

CALLED = """
CREATE TABLE t (k STRING, x BIGINT);
CREATE MATERIALIZED VIEW v AS SELECT twice(x) AS y, COUNT(*) AS n FROM t WHERE twice(x) > 0
    GROUP BY twice(x);
CREATE MATERIALIZED VIEW rowwise AS SELECT k, twice(x) + 1 AS z FROM t;
"""


def test_functions_of_the_session_can_be_called(spark: SparkSession) -> None:
    """S4, trap 48: a deterministic function is kept incrementally like any other expression."""
    callers = spark.newSession()
    callers.udf.register("twice", lambda x: None if x is None else x * 2, "bigint")
    views = Views.open(callers, CALLED)
    for name in ("v", "rowwise"):
        assert not views.explain(name).reasons
    table = pa.table({"k": ["a", "b", None], "x": pa.array([1, 1, None], pa.int64())})
    views.apply({"t": Change(put=table)})
    outcome = views.apply({"t": Change(delete=table.slice(0, 1))})
    assert not outcome.recomputed
    assert rows_of(views.read("v")) == [(2, 1)]
    assert not difference_of_rows(rows_of(views.read("rowwise")), [("b", 3), (None, None)])


def test_functions_that_are_not_deterministic_are_refused(spark: SparkSession) -> None:
    """J11, trap 48: replayed, they would give another answer."""
    callers = spark.newSession()
    once = f.udf(lambda x: x, "bigint").asNondeterministic()
    callers.udf.register("twice", once)
    with pytest.raises(SqlError, match="v is stored, but its query gives a different answer"):
        Views.open(callers, CALLED)


def test_a_function_that_nobody_registered_is_an_error_in_the_text(spark: SparkSession) -> None:
    """S1: told where it stands, not by a stack of Spark's."""
    with pytest.raises(SqlError, match="`twice`") as raised:
        Views.open(spark.newSession(), CALLED)
    assert "pipeline.sql:4:14" in str(raised.value)


# Masters and partitions

PLACES = """
CREATE TABLE a (id INT PRIMARY KEY, k STRING, x DECIMAL(8, 2), d DOUBLE);
CREATE TABLE b (k STRING, y INT);
CREATE MATERIALIZED VIEW sums AS SELECT a.k, SUM(x) AS s, AVG(d) AS m, COUNT(DISTINCT y) AS n
    FROM a LEFT JOIN b ON a.k = b.k GROUP BY a.k;
CREATE MATERIALIZED VIEW firsts AS SELECT k, id, RANK() OVER (PARTITION BY k ORDER BY x) AS r
    FROM a;
CREATE MATERIALIZED VIEW lone AS SELECT k FROM a EXCEPT SELECT k FROM b;
CREATE MATERIALIZED VIEW top AS SELECT id, x FROM a ORDER BY x DESC, id LIMIT 3;
"""


def places(spark: SparkSession, partitions: int | None = None) -> dict[str, list[str]]:
    """The views after some changes; with `partitions` by Spark alone: nothing is looked up by the
    process that drives it, and little is held by it."""
    if partitions is None:
        return followed(Views.open(spark, PLACES))
    views = Views.open(
        spark,
        PLACES,
        settings=replace(SETTINGS, shuffle_partitions=partitions),
        use=Use.SPARK,
        limits=MemoryLimits(memory_rows_max=20),
        queries=QueryLimits(small_rows_max=-1),
    )
    return followed(views)


def followed(views: Views) -> dict[str, list[str]]:
    def a(ids: range) -> pa.Table:
        values = [Decimal(i * 7 % 23) / 4 for i in ids]
        return pa.table(
            {
                "id": pa.array(ids, pa.int32()),
                "k": [None if i % 7 == 6 else "abcdef"[i % 7] for i in ids],
                "x": pa.array(values, pa.decimal128(8, 2)),
                "d": [float("nan") if i == 8 else i / 4 for i in ids],
            }
        )

    b = pa.table({"k": ["a", "b", "b", None], "y": pa.array([1, 2, 3, 4], pa.int32())})
    views.apply({"a": Change(put=a(range(40))), "b": Change(put=b)})
    views.apply({"a": Change(put=a(range(35, 45)), delete=a(range(9)).select(["id"]))})
    views.apply({"b": Change(put=b.slice(0, 1), delete=b.slice(1, 1))})
    found = {name: views.read(name) for name in ("sums", "firsts", "lone", "top")}
    for name, table in found.items():
        wrong = difference(table, views.recompute(name))
        assert not wrong, f"{name}: {wrong}"
    return {name: sorted(map(str, rows_of(table))) for name, table in found.items()}


@pytest.mark.parametrize("partitions", [1, 4])
def test_the_answer_is_the_same_in_any_number_of_partitions(
    spark: SparkSession, partitions: int
) -> None:
    """S1: what is spread over tasks is added up in another order, and looked at in pieces."""
    assert places(spark, partitions) == places(spark)


SCRIPT = f"""
import json, sys
from stepwell.execution.spark.session import SessionSettings, open_session
from tests.execution.test_meaning import places

conf = {{"spark.driver.extraJavaOptions": "{FAST}"}}
if "cluster" in sys.argv[1]:
    conf |= {{"spark.executor.extraJavaOptions": "{FAST}", "spark.executor.memory": "512m"}}
spark = open_session(SessionSettings(sys.argv[1], conf=conf))
print(json.dumps(places(spark, int(sys.argv[2]))))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local[*]", 4), ("local-cluster[2,1,1024]", 1), ("local-cluster[2,1,1024]", 4)],
)
def test_the_answer_is_the_same_wherever_it_is_computed(
    spark: SparkSession, master: str, partitions: int, tmp_path: Path
) -> None:
    """S1: workers in other processes see files and plans, and nothing that this process holds."""
    # Workers work below Spark's home. This one is not the installed one, which stays as it is.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, master, str(partitions)],
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == places(spark)
