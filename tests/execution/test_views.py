"""What the SQL files cannot say: the clock, policies, refusals, names of our own."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stepwell.errors import InvalidError, SqlError
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark import views as views_module
from stepwell.execution.spark.evaluate import Use
from stepwell.execution.spark.views import Change, Views
from stepwell.lsm.limits import MemoryLimits
from stepwell.sql import parse
from tests.comparing import difference

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP, x DOUBLE);\n"
COLUMNS = ", ".join(f"x + {i} AS c{i}" for i in range(40))
MANY = f"SELECT {COLUMNS}, id IN (SELECT id FROM t WHERE x > 1) AS i FROM t"
"""More columns than Spark shows of a plan."""


def rows(*values: tuple[int, datetime, float]) -> pa.Table:
    ids, moments, numbers = zip(*values, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "x": list(numbers),
        }
    )


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def test_the_clock_is_the_recorded_time_of_the_transaction(spark: SparkSession) -> None:
    """J11: replayed tomorrow, a view has to come out as it did today; and rows expire unchanged."""
    views = Views.open(
        spark,
        TABLE + "CREATE MATERIALIZED VIEW recent AS "
        "SELECT id, current_date() AS d FROM t WHERE at > now() - INTERVAL 2 DAYS",
    )
    assert views.explain("recent").reasons == ("TIME_DEPENDENT",)
    views.apply({"t": Change(put=rows((1, day(1), 0.0), (2, day(3), 0.0)))}, time=day(2))
    assert sorted(r["id"] for r in views.read("recent").to_pylist()) == [1, 2]
    assert {str(r["d"]) for r in views.read("recent").to_pylist()} == {"2026-01-02"}
    outcome = views.apply({}, time=day(4))
    assert [r["id"] for r in views.read("recent").to_pylist()] == [2]
    assert outcome.recomputed == ("recent",)


@pytest.mark.parametrize(
    ("query", "misread"),
    [
        ("SELECT id FROM t WHERE x > 1", "SELECT id FROM t WHERE x >= 1"),
        ("SELECT sum(x) AS s FROM t", "SELECT sum(x + id) AS s FROM t"),
        (
            "SELECT a.id FROM t a LEFT JOIN t b ON a.id = b.id",
            "SELECT a.id FROM t a JOIN t b ON a.id = b.id",
        ),
        ("SELECT id FROM t UNION SELECT 1", "SELECT id FROM t UNION ALL SELECT 1"),
        ("SELECT id, x IN (SELECT id FROM t) AS i FROM t", "SELECT id, false AS i FROM t"),
        (MANY, MANY.replace("x + 28", "x + 29")),
        (
            "SELECT a.id, a.x IN (SELECT id FROM t) AS i FROM t a LEFT JOIN u b ON a.id = b.id",
            "SELECT a.id, a.x IN (SELECT id FROM t) AS i FROM u a LEFT JOIN t b ON a.id = b.id",
        ),
    ],
)
def test_a_query_that_was_misread_is_computed_by_its_text(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, query: str, misread: str
) -> None:
    """S1: Spark's reading is asked for, and tables without rows do not hide the difference."""
    sql = f"{TABLE}{TABLE.replace('TABLE t', 'TABLE u')}CREATE MATERIALIZED VIEW v AS {query}"
    assert Views.open(spark, sql).explain("v").reasons == ()
    monkeypatch.setattr(parse, "forms_of", lambda tree: (misread,))
    assert Views.open(spark, sql).explain("v").reasons == ("PARSE_MISMATCH",)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT n FROM above",
        "SELECT count(*) AS n FROM `We``ird`",
        "SELECT count(*) AS n FROM IDENTIFIER('`wE' || '`' || '`ird`')",
        "SELECT max(n) AS n FROM (SELECT n FROM Above UNION ALL SELECT 0)",
        "SELECT n FROM counted",
    ],
)
def test_whatever_a_query_names_is_as_it_is_now(spark: SparkSession, query: str) -> None:
    """S1: what is named by another view, in other letters or by a text is shown with the rest."""
    views = Views.open(
        spark,
        "CREATE TABLE `we``ird` (id INT);\n"
        "CREATE VIEW below AS SELECT id FROM `WE``IRD`;\n"
        "CREATE VIEW above AS SELECT count(*) AS n FROM below;\n"
        "CREATE MATERIALIZED VIEW counted REFRESH POLICY FULL AS SELECT n FROM above;",
    )
    for number in (1, 2):
        views.apply({"we`ird": Change(put=pa.table({"id": pa.array([number], pa.int32())}))})
        assert views.query(query).to_pylist() == [{"n": number}]
        assert views.recompute("counted").to_pylist() == [{"n": number}]


@pytest.mark.parametrize("call", ["rand()", "uuid()", "monotonically_increasing_id()"])
def test_what_has_no_stable_answer_is_refused(spark: SparkSession, call: str) -> None:
    """J11: a stored view that replay cannot repeat would differ from what its sinks were sent."""
    with pytest.raises(SqlError) as caught:
        Views.open(spark, TABLE + f"CREATE MATERIALIZED VIEW v AS SELECT id, {call} AS r FROM t")
    assert "v is stored" in caught.value.message
    assert caught.value.hint is not None


def test_a_policy_decides_between_recomputing_and_refusing(spark: SparkSession) -> None:
    """S6: INCREMENTAL refuses a view that would be recomputed; FULL recomputes any view."""
    query = "SELECT id, ntile(2) OVER (ORDER BY id) AS n FROM t"
    views = Views.open(spark, TABLE + f"CREATE MATERIALIZED VIEW v AS {query}")
    assert views.explain("v").reasons == ("WINDOW_WITHOUT_PARTITION",)
    with pytest.raises(SqlError) as caught:
        Views.open(
            spark, TABLE + f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}"
        )
    assert "WINDOW_WITHOUT_PARTITION" in caught.value.message
    full = "CREATE MATERIALIZED VIEW v REFRESH POLICY FULL AS SELECT id FROM t"
    assert Views.open(spark, TABLE + full).explain("v").reasons == ("POLICY_FULL",)


def test_a_mistake_in_a_query_is_shown_where_it_is(spark: SparkSession) -> None:
    """S3: Spark's complaint about a column leads to the line in the user's file."""
    with pytest.raises(SqlError) as caught:
        Views.open(spark, TABLE + "CREATE MATERIALIZED VIEW v AS\nSELECT id,\n  amuont FROM t")
    assert (caught.value.line, caught.value.column) == (4, 3)
    assert "amuont" in caught.value.message


def test_char_is_refused(spark: SparkSession) -> None:
    """S2: better no CHAR than one that compares otherwise than Spark's."""
    with pytest.raises(SqlError, match="CHAR"):
        Views.open(spark, "CREATE TABLE t (c CHAR(3))")


def test_a_change_of_an_unknown_table_or_column_changes_nothing(spark: SparkSession) -> None:
    """S2: a typing error in a push must not look like success."""
    views = Views.open(spark, TABLE)
    with pytest.raises(InvalidError, match="no table"):
        views.apply({"tt": Change(put=rows((1, day(1), 0.0)))})
    with pytest.raises(InvalidError, match="no column y"):
        views.apply({"t": Change(put=pa.table({"id": [1], "y": [1]}))})
    assert views.read("t").num_rows == 0


def test_the_callers_session_is_left_as_it_was(spark: SparkSession) -> None:
    """S1: views and settings of ours must not show up in the user's session."""
    before = tables(spark)
    Views.open(spark, TABLE + "CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
    assert tables(spark) == before


def tables(spark: SparkSession) -> set[str]:
    return {row["tableName"] for row in spark.sql("SHOW TABLES").collect()}


def test_what_a_transaction_cost_is_counted(spark: SparkSession) -> None:
    """S4: no job for what is computed here, one for a view that needs Spark, more from scratch."""
    views = Views.open(
        spark,
        TABLE + "CREATE TABLE other (k INT);\n"
        "CREATE MATERIALIZED VIEW sums AS SELECT id + 1 AS i, count(*) AS n FROM t GROUP BY 1;\n"
        "CREATE MATERIALIZED VIEW plain AS SELECT hex(id) AS i FROM t;\n"
        "CREATE MATERIALIZED VIEW apart AS SELECT k FROM other;\n"
        "CREATE MATERIALIZED VIEW whole REFRESH POLICY FULL AS\n"
        "  SELECT a.id FROM t a JOIN t b ON a.id = b.id;",
    )
    outcome = views.apply({"t": Change(put=rows((1, day(1), 0.0), (2, day(3), 0.0)))})
    assert outcome.queries_of == {"sums": 0, "plain": 1, "apart": 0, "whole": 1}
    assert outcome.queries == 2
    assert outcome.jobs_of["sums"] == 0
    assert outcome.jobs_of["plain"] == 1
    assert outcome.jobs_of["apart"] == 0
    assert outcome.jobs_of["whole"] > 1, "a broadcast is a job of its own"


def test_a_large_table_with_a_key_is_read_without_summing_it_up(
    spark: SparkSession,
) -> None:
    """S4: a recomputed view reads tables of millions of rows, of which a few have changed."""
    first = rows(*((i, day(1), float(i)) for i in range(100)))
    views = Views.open(
        spark,
        TABLE + "CREATE MATERIALIZED VIEW v REFRESH POLICY FULL AS SELECT id, x FROM t;",
        tables={"t": spark.createDataFrame(first)},
        limits=MemoryLimits(memory_rows_max=50),
    )
    assert views._frames.plain_rows(views.stored["t"], None) is not None
    views.apply({"t": Change(put=rows((1, day(1), 7.0), (1000, day(1), 8.0)))})
    views.apply({"t": Change(put=rows((1, day(1), 1.0), (2, day(1), 9.0)))})
    gone = pa.table({"id": pa.array([3, 1000], pa.int32())})
    outcome = views.apply({"t": Change(delete=gone)})
    assert outcome.changes["v"].num_rows == 2
    expected = {i: float(i) for i in range(100) if i != 3} | {2: 9.0}
    assert {r["id"]: r["x"] for r in views.read("v").to_pylist()} == expected
    assert {r["id"]: r["x"] for r in views.read("t").to_pylist()} == expected
    plan = views.frame("t")._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, x, y, z FROM a RIGHT JOIN b USING (k) JOIN c USING (k)",
        "SELECT k, x, y, z FROM a FULL JOIN b USING (k) FULL JOIN c USING (k)",
        "SELECT * FROM a NATURAL RIGHT JOIN b NATURAL JOIN c",
        "SELECT length(k) AS n, y FROM a LEFT JOIN b USING (k)",
        "SELECT length(k) AS n, y FROM b RIGHT JOIN a USING (k)",
        "SELECT COALESCE(b.k, c.k) AS k2, z FROM c LEFT JOIN b USING (k)",
        "SELECT k, x, z FROM a JOIN (SELECT k, z FROM b FULL JOIN c USING (k)) s USING (k)",
        "WITH r (x, k) AS (SELECT k, x FROM a ORDER BY x LIMIT 1) SELECT k FROM r",
        "SELECT k FROM (SELECT k, x FROM a ORDER BY x LIMIT 1) AS r (x, k)",
    ],
)
@pytest.mark.parametrize("through", [False, True], ids=["itself", "through a view"])
def test_joins_by_name_are_those_of_spark(spark: SparkSession, query: str, through: bool) -> None:
    """S1, S4: whatever is compared with what, and of whichever type the column is."""
    asked = f"CREATE VIEW p AS {query}; CREATE MATERIALIZED VIEW v AS SELECT * FROM p"
    views = Views.open(
        spark,
        "CREATE TABLE a (k STRING, x INT); CREATE TABLE b (k BIGINT, y STRING);"
        "CREATE TABLE c (k BIGINT, z STRING);"
        + (asked if through else f"CREATE MATERIALIZED VIEW v AS {query}"),
    )
    views.apply({"a": Change(put=pa.table({"k": ["1", "02"], "x": pa.array([9, 3], pa.int32())}))})
    views.apply({"b": Change(put=pa.table({"k": [2, 3], "y": ["b2", "b3"]}))})
    views.apply({"c": Change(put=pa.table({"k": [2, 3, 4], "z": ["c2", "c3", "c4"]}))})
    assert not difference(views.read("v"), views.recompute("v"))
    assert views.read("v").num_rows


def test_a_plain_view_that_was_misread_is_not_built_upon(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: what we read of it would go into every view over it, unseen by Spark."""
    sql = f"{TABLE}CREATE VIEW p AS SELECT id FROM t WHERE x > 1; CREATE MATERIALIZED VIEW v AS "
    assert Views.open(spark, f"{sql}SELECT * FROM p").explain("v").reasons == ()
    wrong = ("SELECT id FROM t WHERE x < 1",)
    monkeypatch.setattr(views_module, "forms_of", lambda tree: wrong)
    assert Views.open(spark, f"{sql}SELECT * FROM p").explain("v").recomputed


@pytest.mark.parametrize("cuts", [(2, 2), (0, 0), (2, 2, 3), (1, 1, 5)])
def test_rows_behind_an_empty_chunk_are_not_lost(
    spark: SparkSession, cuts: tuple[int, ...]
) -> None:
    """J2, S2: Spark 4.3 reads an Arrow table up to its first empty batch, and says nothing."""
    ends = [0, *cuts, 5]
    numbers = [pa.array(range(a, b), pa.int64()) for a, b in itertools.pairwise(ends)]
    views = Views.open(
        spark,
        "CREATE TABLE t (n BIGINT); CREATE MATERIALIZED VIEW v AS SELECT hex(n) AS h FROM t;",
    )
    outcome = views.apply({"t": Change(put=pa.table({"n": pa.chunked_array(numbers)}))})
    assert outcome.changes["v"].num_rows == 5
    part = views.stored["t"].parts[0]
    weights = pa.chunked_array([[1] * 2, [], [1] * 3], pa.int64())
    part.table = pa.table({"c0": pa.chunked_array(numbers), "w": weights})
    part.shown = None
    assert sorted(views.read("t").column("n").to_pylist()) == list(range(5))


STAR = """
CREATE TABLE f (id INT NOT NULL PRIMARY KEY, a INT, b INT);
CREATE TABLE da (a INT NOT NULL PRIMARY KEY, x STRING);
CREATE TABLE db (b INT NOT NULL PRIMARY KEY, y STRING);
CREATE MATERIALIZED VIEW v AS
  SELECT id, x, y FROM f LEFT JOIN da ON f.a = da.a LEFT JOIN db ON f.b = db.b
  WHERE NOT EXISTS (SELECT 1 FROM db AS gone WHERE gone.b = f.id);
"""
SOME = {
    "f": Change(put=pa.table({"id": [1, 2, 3], "a": [1, None, 7], "b": [1, 1, 2]})),
    "da": Change(put=pa.table({"a": [1], "x": ["one"]})),
    "db": Change(put=pa.table({"b": [1, 3], "y": ["eins", "drei"]})),
}


def test_left_and_anti_joins_of_few_rows_need_no_spark(spark: SparkSession) -> None:
    """S4: looking a row up takes a millisecond, asking Spark for it a hundred."""
    views = Views.open(spark, STAR)
    assert views.apply(SOME).queries == 0
    both = Change(put=pa.table({"a": [1, 7], "x": ["ONE", "seven"]}))
    outcome = views.apply({"da": both, "db": Change(delete=pa.table({"b": [3]}))})
    assert (outcome.queries, outcome.recomputed) == (0, ())
    found = {tuple(row.values()) for row in views.read("v").to_pylist()}
    assert found == {(2, None, "eins"), (3, "seven", None)}


def test_a_part_that_is_recomputed_because_its_plan_is_too_large_says_so(
    spark: SparkSession,
) -> None:
    """S3: it is right anyway, and the time it took is explained."""
    views = Views.open(spark, STAR, use=Use.LOOKUPS)
    assert views.apply(SOME).recomputed == ()
    short = QueryLimits(sql_length_max=100)
    views = Views.open(spark, STAR, use=Use.LOOKUPS, queries=short)
    assert views.apply(SOME).recomputed == ("v",)
    outcome = views.apply({"f": Change(put=pa.table({"id": [4], "a": [1], "b": [3]}))})
    assert outcome.recomputed == ("v",)
    assert outcome.changes["v"].to_pylist() == [{"id": 4, "x": "one", "y": "drei", "_w": 1}]
