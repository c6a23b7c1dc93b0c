"""Every query has one answer, in whichever order its rows arrive, and replay gives it bit by bit.

Values are compared by their bits, never within a tolerance: `repr` of a float is exact.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.errors import SqlError
from stepwell.execution.spark.row_order import OrderDependentError, in_fixed_order
from stepwell.execution.spark.session import SessionSettings, adopt
from stepwell.execution.spark.views import Change, Views
from tests.execution.order_dependent import COLUMNS, Life, drawn_rows, drawn_views, rows_of

pytestmark = pytest.mark.spark

GROUPED = (
    "sum(x)",
    "avg(x)",
    "stddev(x)",
    "var_pop(x)",
    "skewness(x)",
    "kurtosis(x)",
    "corr(x, y)",
    "covar_samp(x, y)",
    "regr_slope(x, y)",
    "first(x)",
    "last(s)",
    "any_value(s)",
    "first(s) IGNORE NULLS",
    "collect_list(y)",
    "collect_set(s)",
    "listagg(s, ',')",
    "max_by(s, y)",
    "min_by(x, y)",
    "mode(s)",
    "percentile_approx(x, 0.3)",
    "try_sum(x)",
    "sum(x) FILTER (WHERE y > 1)",
    "sum(DISTINCT x)",
    "collect_list(DISTINCT s)",
    "avg(big)",
)
WINDOWS = (
    "sum(x) OVER (PARTITION BY k)",
    "sum(x) OVER (PARTITION BY k ORDER BY y)",
    "avg(x) OVER (PARTITION BY f ORDER BY y)",
    "first_value(s) OVER (PARTITION BY k ORDER BY y)",
    "last_value(x) OVER (PARTITION BY k ORDER BY y)",
    "collect_list(s) OVER (PARTITION BY k)",
    "row_number() OVER (PARTITION BY k ORDER BY y)",
    "row_number() OVER (ORDER BY y)",
    "lag(x) OVER (PARTITION BY k ORDER BY y)",
    "ntile(3) OVER (PARTITION BY k ORDER BY y)",
    "sum(x) OVER (PARTITION BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    "sum(x) OVER (ORDER BY y)",
)
SINGLE = (
    *(f"SELECT k, {call} AS v FROM t GROUP BY k" for call in GROUPED),
    *(f"SELECT {call} AS v FROM t" for call in GROUPED),
    *(f"SELECT *, {call} AS v FROM t" for call in WINDOWS),
)
TOGETHER = ", ".join(f"{call} AS v{i}" for i, call in enumerate(GROUPED) if "DISTINCT" not in call)
QUERIES = (
    f"SELECT k, {TOGETHER} FROM t GROUP BY k",
    f"SELECT {TOGETHER} FROM t",
    f"SELECT *, {', '.join(f'{call} AS v{i}' for i, call in enumerate(WINDOWS))} FROM t",
    "SELECT f, sum(x) AS v, sum(f) AS g, f * 2 AS h FROM t GROUP BY f",
    "SELECT k + 1 AS g, sum(x) AS v, (k + 1) * 2 AS h FROM t GROUP BY k + 1, y",
    "SELECT array(f, 1.5D) AS g, sum(x) AS v FROM t GROUP BY array(f, 1.5D)",
    "SELECT k, sum(DISTINCT x) AS v, count(DISTINCT s) AS n, sum(x) AS w, "
    "count(DISTINCT s, y) FILTER (WHERE y > 1) AS m, collect_list(DISTINCT s) AS l "
    "FROM t GROUP BY k",
    "SELECT k, s, sum(x) AS v FROM t GROUP BY CUBE (k, s)",
    "SELECT * FROM (SELECT k, s, x FROM t) PIVOT (sum(x) FOR s IN ('a', 'b'))",
    "SELECT k, map(coalesce(s, ''), y) AS m, first(x) OVER (PARTITION BY k) AS v FROM t",
    "SELECT named_struct('f', f, 'at', timestamp_micros(id)) AS g, sum(x) AS v FROM t "
    "GROUP BY named_struct('f', f, 'at', timestamp_micros(id))",
    "SELECT struct(k, s) AS g, first(struct(x, s)) AS v FROM t GROUP BY struct(k, s)",
    "SELECT *, row_number() OVER (PARTITION BY k ORDER BY y) AS v "
    "FROM (SELECT k, y, struct(x, s) AS g, array(f) AS a FROM t)",
    "SELECT window(timestamp_micros(id * 1000), '100 milliseconds') AS g, sum(x) AS v FROM t "
    "GROUP BY window(timestamp_micros(id * 1000), '100 milliseconds')",
    "SELECT k, listagg(DISTINCT s, ',') WITHIN GROUP (ORDER BY s) AS v, sum(x) AS w "
    "FROM t GROUP BY k",
    "SELECT k, CAST(first(f) AS STRING) AS a, CAST(collect_list(f) AS STRING) AS b, "
    "CAST(max(f) AS STRING) AS c, CAST(first(array(f)) AS STRING) AS d FROM t GROUP BY k",
    "SELECT s FROM t SORT BY y LIMIT 5",
    "SELECT * FROM t LIMIT 5",
    "SELECT s FROM t ORDER BY y LIMIT 5 OFFSET 2",
    "SELECT x FROM (SELECT * FROM t ORDER BY y LIMIT 50) ORDER BY s LIMIT 7",
    "WITH c AS (SELECT k, sum(x) AS q FROM t GROUP BY k) "
    "SELECT a.k, a.q, b.q AS z FROM c a JOIN c b ON a.k = b.k",
)


@pytest.fixture(scope="module")
def arranged(spark: SparkSession) -> Iterator[list[SparkSession]]:
    """The same rows in three sessions: in other orders, tasks and ways of computing."""
    dice = random.Random(7)
    rows = drawn_rows(dice, 400)
    sessions = []
    for tasks, partitions, compiled in ((1, 1, "false"), (3, 2, "true"), (5, 7, "true")):
        session = adopt(spark, SessionSettings(shuffle_partitions=partitions))
        session.conf.set("spark.sql.codegen.wholeStage", compiled)
        dice.shuffle(rows)
        frame = session.createDataFrame(rows, COLUMNS).repartition(tasks)
        frame.createOrReplaceTempView("t")
        sessions.append(session)
    yield sessions
    for session in sessions:
        session.catalog.dropTempView("t")


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_has_one_answer_however_its_rows_are_arranged(
    arranged: list[SparkSession], query: str
) -> None:
    """J6, scenario 91: floats are added, lists collected and ties broken in one order."""
    answers = {exact(in_fixed_order(session.sql(query), signs=True)) for session in arranged}
    assert len(answers) == 1


def test_keys_that_differ_in_the_last_digit_are_kept_apart(spark: SparkSession) -> None:
    """S3, J6: a key with a floating point number in it is grouped by all that it holds."""
    sql = """
        CREATE TABLE t (x DOUBLE, at TIMESTAMP);
        CREATE MATERIALIZED VIEW v REFRESH POLICY FULL AS
          SELECT named_struct('x', x * 0, 'at', at) AS g, sum(x) AS s FROM t
          GROUP BY named_struct('x', x * 0, 'at', at);
    """
    views = Views.open(spark, sql)
    at = [datetime(2024, 1, 1, microsecond=n, tzinfo=UTC) for n in (1, 2)]
    views.apply({"t": Change(put=pa.table({"x": [0.1, 0.2], "at": at}))})
    assert sorted(row["s"] for row in views.read("v").to_pylist()) == [0.1, 0.2]


@pytest.mark.slow
@pytest.mark.parametrize("query", SINGLE)
def test_a_function_by_itself_has_one_answer(arranged: list[SparkSession], query: str) -> None:
    """J6, scenario 91: not thanks to another function next to it."""
    assert len({exact(in_fixed_order(session.sql(query))) for session in arranged}) == 1


def test_spark_by_itself_gives_several_answers(arranged: list[SparkSession]) -> None:
    """Else the test above could not fail."""
    for query in ("SELECT k, sum(x) AS v FROM t GROUP BY k", "SELECT first(x) AS v FROM t"):
        assert len({exact(session.sql(query)) for session in arranged}) > 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, count(*) AS n, max(x) AS x, min(s) AS s, sum(y) AS y FROM t GROUP BY k",
        "SELECT k, count(DISTINCT s) AS n, bool_or(y > 1) AS b, median(x) AS m FROM t GROUP BY k",
        "SELECT sum(CAST(y AS DECIMAL(10,2))) AS v, avg(CAST(y AS DECIMAL(10,2))) AS a FROM t",
        "SELECT *, rank() OVER (ORDER BY y) AS r, sum(y) OVER (PARTITION BY k) AS v FROM t",
        "SELECT a.x, b.s FROM t a LEFT JOIN t b ON a.k = b.y",
        "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.y > 1 LIMIT 1)",
        "SELECT k FROM t WHERE x IN (SELECT u.x FROM t u ORDER BY u.y)",
        "SELECT k, (SELECT max(u.y) FROM t u WHERE u.k = t.k) AS m FROM t",
    ],
)
def test_a_query_that_does_not_depend_on_order_is_left_alone(
    arranged: list[SparkSession], query: str
) -> None:
    """A sort that nothing needs would make the most common views slower."""
    frame = arranged[0].sql(query)
    assert in_fixed_order(frame) is frame
    assert len({exact(session.sql(query)) for session in arranged}) == 1


def test_rows_are_added_by_an_aggregate_that_keeps_their_order(
    arranged: list[SparkSession],
) -> None:
    """One exchange and one sort; a hash aggregate could fall back to another order under load."""
    frame = in_fixed_order(arranged[1].sql("SELECT k, sum(x) AS v FROM t GROUP BY k"))
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "SortAggregate" in plan
    assert "HashAggregate" not in plan
    assert plan.count("Sort [") == 1
    assert plan.count("Exchange hashpartitioning") == 1


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT k, (SELECT sum(x) FROM t u WHERE u.k = t.k) AS v FROM t", "a subquery"),
        ("SELECT k FROM t WHERE x IN (SELECT u.x FROM t u ORDER BY u.y LIMIT 3)", "a subquery"),
        ("SELECT map('a', k) AS m, sum(x) AS v FROM t GROUP BY map('a', k)", "a key of type MAP"),
        ("SELECT * FROM t TABLESAMPLE (50 PERCENT)", "TABLESAMPLE"),
    ],
)
def test_what_cannot_have_one_answer_is_told(
    arranged: list[SparkSession], query: str, why: str
) -> None:
    """J6, scenario 91: refused by name."""
    with pytest.raises(OrderDependentError, match=why):
        in_fixed_order(arranged[0].sql(query))


def test_a_view_that_cannot_have_one_answer_is_refused_with_a_hint(spark: SparkSession) -> None:
    """J6: at deploy, not at the first replay."""
    sql = """
        CREATE TABLE t (k INT, x DOUBLE);
        CREATE MATERIALIZED VIEW v AS
          SELECT k, (SELECT sum(u.x) FROM t u WHERE u.k > t.k) AS s FROM t;
    """
    with pytest.raises(SqlError, match="depends on the order of rows") as refused:
        Views.open(spark, sql)
    assert "DECIMAL" in str(refused.value.hint)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sink_adds_up_to_its_view_bit_by_bit_after_any_number_of_crashes(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """J6, J7, scenario 91: killed after every transaction, replayed with other partitions."""
    follow(spark, tmp_path, seed, views=4, transactions=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_sink_adds_up_to_its_view_over_many_lives(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """J6, J7, scenario 91: the same with more views and transactions."""
    follow(spark, tmp_path, seed, views=8, transactions=12)


def follow(spark: SparkSession, folder: Path, seed: int, views: int, transactions: int) -> None:
    """A pipeline of random views that is left after every transaction, and opened again."""
    dice = random.Random(seed)
    life = Life(folder, drawn_views(dice, views), dice)
    life.deploy(spark)
    for _ in range(transactions):
        pipeline = life.open(adopt(spark, SessionSettings(shuffle_partitions=dice.choice([1, 5]))))
        agree(life, pipeline)
        life.step(pipeline)
        agree(life, pipeline)
        if dice.random() < 0.2:
            pipeline.flush()


def test_a_view_added_to_a_pipeline_disturbs_no_sink(spark: SparkSession, tmp_path: Path) -> None:
    """J6, scenario 91: unchanged views are replayed next to a changed program, with the same
    result."""
    dice = random.Random(5)
    life = Life(tmp_path, drawn_views(dice, 4), dice)
    life.deploy(spark)
    pipeline = life.open(adopt(spark, SessionSettings(shuffle_partitions=2)))
    for _ in range(3):
        life.step(pipeline)
    life.views["another"] = "SELECT count(*) AS n FROM t"
    life.deploy(adopt(spark, SessionSettings(shuffle_partitions=3)))
    pipeline = life.open(adopt(spark, SessionSettings(shuffle_partitions=4)))
    life.step(pipeline)
    agree(life, pipeline)


def agree(life: Life, pipeline: ProjectPipeline) -> None:
    """Each sink holds its view, bit by bit."""
    for view, query in life.views.items():
        if view != "another":
            stored = Counter(map(repr, rows_of(pipeline.table(view))))
            assert life.sent(view) == stored, query


def exact(frame: DataFrame) -> str:
    return repr(sorted(map(repr, rows_of(frame.toArrow()))))
