"""Mistakes in views that are found without Spark, and legal views that are not called wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlglot import parse_one
from sqlglot.errors import SqlglotError

from stepwell.deploy.graph import in_order
from stepwell.errors import SqlError
from stepwell.sql.mistakes import mistakes, unknown_calls, unreadable
from stepwell.sql.scope import DIALECT
from stepwell.sql.statements import MaterializedView, Table, View, parse_statements
from stepwell.text import Source
from tests.ordinary_queries import ORDINARY, SQL
from tests.random_views.cases import case_of
from tests.sql_files import all_cases

ROOT = Path(__file__).resolve().parents[2]
TABLE = "CREATE TABLE t (id INT, name STRING, s STRUCT<a: INT>, at TIMESTAMP, xs ARRAY<INT>);\n"


def view_of(query: str, kind: str = "MATERIALIZED VIEW") -> View | MaterializedView:
    made = parse_statements(Source("p.sql", f"{TABLE}CREATE {kind} v AS\n{query};"))[-1]
    assert not isinstance(made, Table)
    return made


def certain(view: View | MaterializedView) -> list[SqlError]:
    """As a project does it: what sqlglot cannot read is left to Spark."""
    try:
        tree = parse_one(view.query, dialect=DIALECT)
    except SqlglotError:
        return []
    return list(mistakes(view, tree))


@pytest.mark.parametrize(
    ("query", "said", "column"),
    [
        ("SELECT name, sum(id) AS n FROM t", "name is neither grouped nor aggregated", 8),
        ("SELECT upper(name), count(*) FROM t", "name is neither grouped nor aggregated", 14),
        ("SELECT id, name, sum(id) FROM t GROUP BY name", "id is neither grouped", 8),
        ("SELECT id, name, sum(id) FROM t GROUP BY 2", "id is neither grouped", 8),
        ("SELECT x.n FROM (SELECT id, max(name) AS n FROM t) x", "id is neither grouped", 25),
        ("WITH a AS (SELECT id, max(name) FROM t) SELECT * FROM a", "id is neither grouped", 19),
        ("SELECT id FROM t UNION SELECT id + count(*) FROM t", "id is neither grouped", 31),
        ("SELECT id, rand() AS r FROM t", "rand() gives a different answer each time", 12),
        ("SELECT id FROM t WHERE uuid() > name", "uuid() gives a different answer each time", 24),
        ("SELECT reflect('a', 'b') AS x FROM t", "the function reflect calls a method of Java", 8),
        ("SELECT id FROM t WHERE sum(id) > 1", "sum() is an aggregate, and WHERE", 24),
        ("SELECT count(*) FROM t WHERE name > 'a' AND COUNT(*) > 1", "count() is an aggregate", 45),
        ("SELECT max(id) FROM t WHERE max(id) > 1", "max() is an aggregate, and WHERE", 29),
        ("SELECT id FROM (SELECT id FROM t WHERE 1 < max(id)) x", "max() is an aggregate", 44),
        ("SELECT SUM(COUNT(*)) FROM t", "count() is nested in sum(), and both are", 12),
        ("SELECT name, max(1 + avg(id)) FROM t GROUP BY name", "avg() is nested in max()", 22),
        ("SELECT count(*) FROM t HAVING max(min(id)) > 1", "min() is nested in max()", 35),
        ("SELECT id FROM t UNION SELECT id, name FROM t", "UNION of a query with 1 column and", 31),
        ("(SELECT id, 1 FROM t) EXCEPT SELECT name FROM t", "EXCEPT of a query with 2 columns", 37),
        (
            "SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT id, 4 FROM t",
            "UNION of a query with 1",
            46,
        ),
        ("SELECT id, XPATH_int(name, 'a') FROM t", "the function xpath_int can read a file", 12),
    ],
)
def test_a_mistake_is_found_without_spark(query: str, said: str, column: int) -> None:
    """D10: `validate` and `plan` said of these that nothing was wrong with them."""
    (found, *_) = certain(view_of(query))
    assert said in found.message
    assert (found.file, found.line, found.column) == ("p.sql", 3, column)
    assert found.hint


@pytest.mark.parametrize(
    ("body", "said", "column"),
    [
        ("DROP TABLE t", "DROP", 1),
        ("DELETE FROM t", "DELETE", 1),
        ("INSERT INTO t SELECT * FROM t", "INSERT", 1),
        ("FROM t INSERT INTO u SELECT id", "INSERT", 8),
        ("WITH a AS (SELECT 1 AS id) INSERT INTO t SELECT * FROM a", "INSERT", 28),
        ("WITH a AS (SELECT 1 AS id) UPDATE t SET name = 'x'", "UPDATE", 28),
        ("CREATE TABLE u AS SELECT * FROM t", "CREATE", 1),
        ("CACHE TABLE u AS SELECT 1", "CACHE", 1),
        ("SET spark.sql.ansi.enabled = false", "SET", 1),
        ("EXPLAIN SELECT 1", "EXPLAIN", 1),
        ("CALL system.f()", "CALL", 1),
        ("SELECT TRANSFORM(id) USING 'touch x' FROM t", "TRANSFORM ... USING", 8),
        (
            "SELECT * FROM (SELECT TRANSFORM(id) USING 'touch x' AS (x INT) FROM t)",
            "TRANSFORM ... USING",
            23,
        ),
    ],
)
def test_a_body_that_does_more_than_query_is_found_without_spark(
    body: str, said: str, column: int
) -> None:
    """D10, R2: `validate` called views valid that every deploy refuses."""
    with pytest.raises(SqlError) as raised:
        in_order(parse_statements(Source("p.sql", f"{TABLE}CREATE VIEW v AS\n{body};")))
    assert raised.value.message.startswith(f"p.sql:3:{column}: v: {said} is not part of a query")
    assert raised.value.hint


@pytest.mark.parametrize(
    "query",
    [
        "SELECT /*+ BROADCAST(a), MAPJOIN(t) */ a.id FROM t a JOIN t b ON a.id = b.id",
        "SELECT /*+ REPARTITION(3, id) */ id FROM t",
        "TABLE t",
        "SELECT * FROM (TABLE t) q",
        "WITH a AS (TABLE t) SELECT id FROM a",
        "SELECT transform(xs, x -> x + 1) AS ys FROM t",
    ],
)
def test_names_in_a_legal_query_are_read_as_spark_reads_them(query: str) -> None:
    """D10: sqlglot reads the names in hints as relations, and TABLE as a name."""
    later = f"CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM w; CREATE VIEW w AS {query};"
    ordered = in_order(parse_statements(Source("p.sql", f"{TABLE}{later}")))
    assert [statement.name for statement in ordered.statements] == ["t", "w", "v"]
    assert dict(ordered.reads) == {"v": ("w",), "w": ("t",)}


@pytest.mark.parametrize("query", [q for q in ORDINARY if "$errors" not in q])
def test_whatever_only_asks_may_be_a_view(query: str) -> None:
    """D10, R2: Spark answers all of these."""
    made = parse_statements(Source("p.sql", f"{SQL}CREATE VIEW v AS {query};"))
    assert "v" in in_order(made).reads


@pytest.mark.parametrize(
    ("query", "said", "column"),
    [
        ("SELECT name, sum(id) FROM t GROUP name", "name is not expected here", 35),
        ("SELECT id FORM t", "t is not expected here", 16),
        ("SELECT id FROM t WHERE", "something is missing after WHERE", 18),
        ("SELECT id FROM t\nWHERE (id > 1", "", 1),
        ("SELECT id FROM t ORDER name", "name is not expected here", 24),
    ],
)
def test_a_query_that_cannot_be_read_is_shown_where_reading_ended(
    query: str, said: str, column: int
) -> None:
    """D10: most likely Spark cannot read it either."""
    if not said:
        with pytest.raises(SqlError, match="never closed"):
            view_of(query)
        return
    found = unreadable(view_of(query))
    assert found is not None
    assert said in found.message
    assert (found.line, found.column) == (3, column)
    assert found.hint == "to ask Spark: stepwell validate --spark"


def test_a_function_that_spark_does_not_have_is_named_once() -> None:
    """D10: it may be registered in a session, so it is a warning."""
    found, own = unknown_calls(view_of("SELECT summ(id), summ(2), my_own(id), abs(id) FROM t"))
    assert "my_own" in own.message
    assert "v calls summ(), which is not a Spark function" in found.message
    assert found.hint is not None
    assert found.hint.startswith("did you mean sum? or register it")


LEGAL = [
    "SELECT name, sum(id) AS n, n + 1 AS next FROM t GROUP BY name",
    "SELECT sum(id) AS n, n + 1 AS next FROM t",
    "SELECT name AS who, count(*) FROM t GROUP BY who",
    "SELECT name, count(*) FROM t GROUP BY ALL",
    "SELECT name, count(*) FROM t GROUP BY ROLLUP (name)",
    "SELECT name, count(*) FROM t GROUP BY name WITH CUBE",
    "SELECT upper(name), count(*) FROM t GROUP BY upper(name)",
    "SELECT s.a, count(*) FROM t GROUP BY s",
    "SELECT s.a, count(*) FROM t GROUP BY s.a",
    "SELECT id, sum(id) OVER (PARTITION BY name) FROM t",
    "SELECT id, (SELECT max(b.id) + a.id FROM t b) FROM t a",
    "SELECT id FROM t a WHERE EXISTS (SELECT a.name, count(*) FROM t)",
    "SELECT * FROM t a, LATERAL (SELECT a.id, count(*) FROM t)",
    "SELECT count(*), current_date FROM t",
    "SELECT dateadd(DAY, 1, max(at)), timestampdiff(HOUR, min(at), max(at)) FROM t",
    "SELECT transform(collect_list(id), x -> x + 1) FROM t",
    "SELECT window.start, count(*) FROM t GROUP BY window(at, '1 hour')",
    "SELECT max(id) FILTER (WHERE name > 'a') FROM t",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id) FROM t",
    "SELECT name, sum(sum(id)) OVER () FROM t GROUP BY name",
    "SELECT name, rank() OVER (ORDER BY sum(id)) FROM t GROUP BY name",
    "SELECT max(n) FROM (SELECT count(*) AS n FROM t GROUP BY name) x",
    "SELECT max(id + (SELECT max(id) FROM t)) FROM t",
    "SELECT id FROM t WHERE id = (SELECT max(id) FROM t)",
    "SELECT id FROM t WHERE aggregate(xs, 0, (a, x) -> a + x) > 1 AND exists(xs, x -> x > 1)",
    "SELECT id FROM t WHERE name LIKE ANY ('a%', 'b%')",
    "SELECT name FROM t GROUP BY name HAVING EXISTS (SELECT 1 FROM t u WHERE u.id = max(t.id))",
    "SELECT id, name FROM t UNION SELECT * FROM VALUES (1, 'a')",
    "SELECT id, name FROM t UNION ALL VALUES (1, 'a')",
    "SELECT id FROM t UNION ALL BY NAME SELECT name, id FROM t",
    "SELECT id, id FROM t UNION ALL SELECT posexplode(xs) FROM t",
    "SELECT id, id FROM t UNION ALL SELECT s.*, 1 FROM t",
    "SELECT count(*) AS n, 1 AS one, 'x' AS x FROM t HAVING count(*) > 1",
]


@pytest.mark.parametrize(
    "call", ["my_udaf(x)", "kll_sketch_agg_double(x)", "vector_sum(x)", "coalesce(my_udaf(x), 0)"]
)
def test_a_function_that_may_be_an_aggregate_is_not_called_wrong(call: str) -> None:
    """S3: a session may have registered it, and a later Spark may have it."""
    assert not certain(view_of(f"SELECT count(*) AS n, {call} AS s FROM t"))


@pytest.mark.parametrize("query", LEGAL)
def test_a_legal_query_is_not_called_wrong(query: str) -> None:
    """D10: a complaint that is wrong would keep a good project from running."""
    view = view_of(query)
    assert unreadable(view) is None
    assert not certain(view)
    assert not list(unknown_calls(view))


def test_no_legal_view_of_the_other_tests_is_called_wrong() -> None:
    """D10: thousands of views that Spark takes."""
    texts = [case.sql for case in all_cases() if case.open_error is None]
    texts += [file.read_text("utf-8") for file in ROOT.glob("benchmarks/*/*.sql")]
    texts += [file.read_text("utf-8") for file in ROOT.glob("examples/*/*.sql")]
    for seed in range(100):
        views = case_of(seed).views
        texts += [f"CREATE MATERIALIZED VIEW {v.name} AS {v.sql}" for v in views if v.stored]
    seen = 0
    wrong: list[str] = []
    for text in texts:
        for view in parse_statements(Source("t.sql", text)):
            if isinstance(view, Table):
                continue
            seen += 1
            unknown = [str(call) for call in unknown_calls(view) if "twice()" not in call.message]
            wrong += unknown + [str(mistake) for mistake in certain(view)]
            wrong += [str(found) for found in [unreadable(view)] if found is not None]
    assert not wrong, "\n".join(wrong)
    assert seen > 1_000


@pytest.mark.parametrize("call", ["abs(id, 2)", "upper()", "month(at, 1)", "nullif(id)"])
def test_a_wrong_number_of_arguments_is_found(call: str) -> None:
    """D10: as `docs/guides/deploying.md` says; `test_type_mistakes` has their types."""
    assert unreadable(view_of(f"SELECT {call} AS x FROM t")) is not None
