"""Mistakes in types that are found without Spark, and legal views that are not called wrong.

`tests/execution/test_offline_types.py` puts the same rules to Spark, for all pairs of types.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.deploy.graph import in_order
from stepwell.errors import SqlError
from stepwell.sql.statements import parse_statements
from stepwell.text import Source
from tests.random_views.cases import case_of
from tests.sql_files import all_cases

ROOT = Path(__file__).resolve().parents[2]
TABLES = """\
CREATE TABLE t (id INT, name STRING, ok BOOLEAN, day DATE, at TIMESTAMP, amount DECIMAL(12,2),
  xs ARRAY<INT>, m MAP<STRING, INT>, s STRUCT<a: INT, b: STRING>);
CREATE TABLE u (id BIGINT, day DATE, names ARRAY<STRING>, raw BINARY);
"""


def check(query: str, before: str = "") -> None:
    in_order(parse_statements(Source("p.sql", f"{TABLES}{before}CREATE VIEW v AS\n{query};")))


WRONG = [
    # Comparisons and joins.
    ("SELECT 1 FROM t WHERE id = xs", "id is INT and xs is ARRAY<INT>: they cannot be", 23),
    ("SELECT 1 FROM t JOIN u ON t.id = u.day", "t.id is INT and u.day is DATE", 27),
    ("SELECT 1 FROM t JOIN u ON t.ok = u.id", "t.ok is BOOLEAN and u.id is BIGINT", 27),
    (
        "SELECT 1 FROM t JOIN (SELECT names AS id FROM u) q USING (id)",
        "USING (id), which is INT",
        30,
    ),
    ("SELECT 1 FROM t WHERE day BETWEEN 1 AND 2", "day is DATE and 1 is INT", 23),
    ("SELECT 1 FROM t WHERE m = m", "a value of type MAP<STRING,INT> cannot be compared", 23),
    ("SELECT 1 FROM t, u WHERE raw < amount", "raw is BINARY and amount is DECIMAL(12,2)", 26),
    ("SELECT CASE id WHEN day THEN 1 END AS x FROM t", "id is INT and day is DATE", 21),
    # Arithmetic.
    ("SELECT ok + 1 AS x FROM t", "ok + 1 cannot be computed: ok is BOOLEAN and 1 is INT", 8),
    ("SELECT xs * 2 AS x FROM t", "xs * 2 cannot be computed: xs is ARRAY<INT> and 2 is INT", 8),
    ("SELECT day + ok AS x FROM t", "day is DATE and ok is BOOLEAN", 8),
    ("SELECT day * 2 AS x FROM t", "day * 2 cannot be computed", 8),
    ("SELECT at + 1 AS x FROM t", "at is TIMESTAMP and 1 is INT", 8),
    ("SELECT day + day AS x FROM t", "day + day cannot be computed", 8),
    ("SELECT -ok AS x FROM t", "- takes a number, but ok is BOOLEAN", 9),
    ("SELECT s % 2 AS x FROM t", "s % 2 cannot be computed: s is struct<a:int,b:string>", 8),
    # Conditions.
    ("SELECT 1 FROM t WHERE id", "WHERE needs a condition, but id is INT", 23),
    ("SELECT 1 FROM t WHERE name", "WHERE needs a condition, but name is STRING", 23),
    ("SELECT 1 FROM t WHERE ok AND id", "AND needs a condition, but id is INT", 30),
    ("SELECT NOT day AS x FROM t", "NOT needs a condition, but day is DATE", 12),
    ("SELECT 1 FROM t JOIN u ON t.id", "ON needs a condition, but t.id is INT", 27),
    ("SELECT CASE WHEN id THEN 1 END AS x FROM t", "WHEN needs a condition, but id is INT", 18),
    ("SELECT IF(amount, 1, 2) AS x FROM t", "IF needs a condition", 11),
    ("SELECT count(*) FILTER (WHERE id) AS n FROM t", "FILTER needs a condition", 31),
    ("SELECT id FROM t GROUP BY id HAVING max(day)", "HAVING needs a condition", 41),
    ("SELECT max(day) AS n FROM t HAVING n", "HAVING needs a condition, but n is DATE", 36),
    # Arguments.
    ("SELECT sum(ok) AS x FROM t", "sum() takes a number, but ok is BOOLEAN", 12),
    ("SELECT sum(day) AS x FROM t", "sum() takes a number, but day is DATE", 12),
    ("SELECT avg(DISTINCT xs) AS x FROM t", "avg() takes a number, but xs is ARRAY<INT>", 21),
    ("SELECT max(m) AS x FROM t", "max() compares m, but a value of type MAP", 12),
    ("SELECT count_if(id) AS x FROM t", "count_if() takes a condition, but id is INT", 17),
    ("SELECT sum(ok) OVER () AS x FROM t", "sum() takes a number", 12),
    (
        "SELECT explode(name) AS x FROM t",
        "explode() takes an array or a map, but name is STRING",
        16,
    ),
    ("SELECT x FROM t LATERAL VIEW explode(id) AS x", "explode() takes an array or a map", 38),
    ("SELECT month(xs) AS x FROM t", "month() takes a date, but xs is ARRAY<INT>", 14),
    ("SELECT upper(xs) AS x FROM t", "upper() takes a text, but xs is ARRAY<INT>", 14),
    ("SELECT round(day) AS x FROM t", "round() takes a number, but day is DATE", 14),
    # Choices.
    ("SELECT coalesce(id, day) AS x FROM t", "COALESCE chooses between id, which is INT", 21),
    ("SELECT CASE WHEN ok THEN id ELSE xs END AS x FROM t", "CASE chooses between id", 34),
    ("SELECT IF(ok, day, amount) AS x FROM t", "IF chooses between day, which is DATE", 20),
    # Casts.
    ("SELECT CAST(day AS INT) AS x FROM t", "day is DATE, which Spark does not convert", 13),
    ("SELECT xs::BIGINT AS x FROM t", "xs is ARRAY<INT>, which Spark does not convert", 8),
    ("SELECT CAST(id AS DATE) AS x FROM t", "id is INT, which Spark does not convert", 13),
    # Set operations.
    ("SELECT id FROM t UNION ALL SELECT day FROM u", "UNION of a column id of type INT and", 35),
    (
        "SELECT * FROM t UNION ALL SELECT * FROM u",
        "UNION of a query with 9 columns and one with 4",
        41,
    ),
    ("SELECT xs FROM t EXCEPT SELECT id FROM u", "EXCEPT of a column xs of type ARRAY<INT>", 32),
    (
        "SELECT m FROM t INTERSECT SELECT m FROM t",
        "INTERSECT compares rows, but a value of type",
        34,
    ),
    # Subqueries.
    ("SELECT 1 FROM t WHERE day IN (1, 2)", "day is DATE and 1 is INT", 23),
    ("SELECT 1 FROM t WHERE id IN (SELECT day FROM u)", "id is INT, and the subquery of IN", 23),
    ("SELECT 1 FROM t WHERE id IN (SELECT id, day FROM u)", "IN compares 1 with 2 columns", 23),
    ("SELECT 1 FROM t WHERE (id, day) IN (SELECT id FROM u)", "IN compares 2 with 1 columns", 24),
    ("SELECT (SELECT id, day FROM u) AS x FROM t", "stands for a value has 2 columns", 16),
    ("SELECT 1 FROM t WHERE id > (SELECT max(day) FROM u)", "id is INT and", 23),
    (
        "SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.day = t.id)",
        "u.day is DATE and t.id",
        53,
    ),
    # Order and limits.
    ("SELECT id FROM t ORDER BY m", "ORDER BY sorts by m, but a value of type MAP", 27),
    ("SELECT rank() OVER (ORDER BY m) AS x FROM t", "ORDER BY sorts by m", 30),
    ("SELECT DISTINCT id, m FROM t", "DISTINCT compares the column m", 17),
    ("SELECT id FROM t LIMIT 1.5", "LIMIT must be a whole number, found 1.5", 8),
    # Fields.
    ("SELECT s.c FROM t", "s.c: there is no such field", 8),
    ("SELECT id.a FROM t", "id.a reads a field of a value that is INT", 8),
    ("SELECT id[0] AS x FROM t", "[] takes an array, a map or a struct, but id is INT", 8),
    # Through other queries.
    (
        "WITH q AS (SELECT sum(id) AS n FROM t) SELECT 1 FROM q WHERE n = DATE'2020-01-01'",
        "n is BIGINT",
        62,
    ),
    (
        "SELECT 1 FROM (SELECT s.b AS b FROM t) q WHERE b = q.b AND q.b + ARRAY(1)",
        "cannot be computed",
        60,
    ),
    ("SELECT 1 FROM (SELECT id FROM t UNION ALL SELECT 5) q WHERE id", "but id is INT", 61),
]


@pytest.mark.parametrize(("query", "said", "column"), WRONG)
def test_a_mistake_in_a_type_is_found_without_spark(query: str, said: str, column: int) -> None:
    """D10: `validate` and `plan` said of these that nothing was wrong with them."""
    with pytest.raises(SqlError) as caught:
        check(query)
    found = caught.value
    assert said in found.message
    assert found.message.startswith("p.sql:5:")
    assert (found.file, found.line, found.column) == ("p.sql", 5, column)
    assert found.hint


@pytest.mark.parametrize(
    ("view", "query"),
    [
        ("CREATE VIEW w AS SELECT id, max(day) AS last FROM t GROUP BY id", "last > id"),
        ("CREATE MATERIALIZED VIEW w (who, last) AS SELECT id, day FROM t", "who = last"),
        ("CREATE VIEW w AS SELECT *, amount / id AS share FROM t", "share = day"),
        ("CREATE VIEW w AS SELECT avg(amount) AS a, count(*) AS n FROM t", "n = true OR a > 1"),
        ("CREATE VIEW w AS SELECT CAST(name AS TIMESTAMP) AS a FROM t", "a < 1"),
        ("CREATE VIEW w AS SELECT t.* FROM t LEFT SEMI JOIN u ON t.id = u.id", "day = 1"),
    ],
)
def test_types_pass_through_views(view: str, query: str) -> None:
    """D10: a view over views is where nobody remembers the types."""
    check("SELECT 1", f"{view};\n")
    with pytest.raises(SqlError, match="cannot be compared"):
        check(f"SELECT 1 FROM w WHERE {query}", f"{view};\n")


LEGAL = [
    "SELECT 1 FROM t WHERE '1' = id AND day = '2020-01-01' AND ok = 'true' AND at > day",
    "SELECT day + 1 AS a, day - 1 AS b, day - day AS c, at - INTERVAL 1 DAY AS d FROM t",
    "SELECT day - DATE'2020-01-01' AS x, INTERVAL 1 DAY * 2 AS y, at - at AS z FROM t",
    "SELECT name + 1 AS x, -name AS y, sum(name) AS z FROM t GROUP BY name",
    "SELECT coalesce(id, NULL, '1') AS a, coalesce(xs, NULL) AS b, if(NULL, 1, 2.5) AS c FROM t",
    "SELECT 1 FROM t WHERE NULL",
    "SELECT transform(xs, id -> id = 1 AND id > 0) AS x FROM t",
    "SELECT filter(names, day -> day = 'a') AS x FROM u",
    "SELECT id AS n, n + 1 AS x FROM u",
    "SELECT my_own(day) + 1 AS x, my_own(day) = xs AS y FROM t",
    "SELECT count(*) AS ok FROM t GROUP BY ok HAVING ok",
    "SELECT id AS day FROM t ORDER BY day",
    "SELECT m, count(*) AS n FROM t GROUP BY m",
    "SELECT m.a AS x, m['a'] + 1 AS y, s.A + 1 AS z, xs[0] + id AS w FROM t",
    "SELECT k.day FROM (SELECT named_struct('day', day) AS k FROM t) q",
    "SELECT t.id FROM t JOIN u USING (id, day) WHERE id = 1 AND day > '2020-01-01'",
    "SELECT v.day + 1 AS x FROM t LATERAL VIEW explode(array(1)) v AS day",
    "SELECT id + 1 AS x FROM t, LATERAL (SELECT t.id AS other) q",
    "SELECT 1 FROM t WHERE (id, name) IN (SELECT id, 'a' FROM u)",
    "SELECT day = 5 AS x FROM VALUES (1) AS q(day)",
    "SELECT CAST(at AS BIGINT) AS x, CAST(ok AS INT) AS y, CAST(xs AS ARRAY<STRING>) AS z FROM t",
    "SELECT id FROM t UNION ALL SELECT '5' UNION ALL SELECT NULL",
    "SELECT sum(id) AS n FROM t HAVING n > 1 ORDER BY n",
    "SELECT day FROM t WHERE (SELECT max(id) FROM u WHERE u.day = t.day) > 1",
    "SELECT avg(at) AS a, sum(DISTINCT at) AS b FROM t HAVING max(amount)",
    "SELECT count(*) AS n FROM t HAVING n",
    "SELECT 1 FROM t WHERE struct(id, name) IN (SELECT id, 'a' FROM u)",
    "SELECT id FROM t LIMIT ALL",
    "SELECT 1 FROM t WHERE ok AND name OR NOT name HAVING name",
    "SELECT name LIKE id AS x, id || name AS y, upper(id) AS z FROM t",
    "SELECT window.start + INTERVAL 1 HOUR AS x FROM t GROUP BY window(at, '1 hour')",
]


@pytest.mark.parametrize("query", LEGAL)
def test_a_legal_query_is_not_called_wrong(query: str) -> None:
    """D10: a complaint that is wrong would keep a good project from running."""
    check(query)


def test_no_legal_view_of_the_other_tests_is_called_wrong() -> None:
    """D10: thousands of views that Spark takes, with the types of their tables."""
    texts = [case.sql for case in all_cases() if case.open_error is None]
    for name in ("tpch", "nexmark"):
        folder = ROOT / "benchmarks" / name
        schema = (folder / "schema.sql").read_text("utf-8")
        texts += [f"{schema}\n{file.read_text('utf-8')}" for file in folder.glob("q*.sql")]
    for example in ROOT.glob("examples/*"):
        texts.append("\n".join(file.read_text("utf-8") for file in sorted(example.glob("*.sql"))))
    for seed in range(100):
        case = case_of(seed)
        statements = []
        for table in case.tables:
            columns = ", ".join(f"`{name}` {type}" for name, type in table.columns.items())
            statements.append(f"CREATE TABLE {table.name} ({columns})")
        statements += [view.sql for view in case.views]
        texts.append(";\n".join(statements))
    seen = 0
    wrong = []
    for text in texts:
        statements_read = parse_statements(Source("t.sql", text))
        seen += len(statements_read)
        try:
            in_order(statements_read)
        except SqlError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
    assert seen > 1_000


def test_nothing_is_said_about_types_that_follow_other_rules() -> None:
    """S1: a project may turn ANSI off, and then a BOOLEAN is compared with a number."""
    statements = parse_statements(
        Source("p.sql", f"{TABLES}CREATE VIEW v AS SELECT 1 FROM t WHERE ok = 1")
    )
    with pytest.raises(SqlError):
        in_order(statements)
    in_order(statements, types=False)


@pytest.mark.parametrize("query", ["1 " + "+ 1 " * 3_000, "(" * 900 + "1" + ")" * 900])
def test_an_expression_that_is_too_deep_is_left_to_spark(query: str) -> None:
    """D10: every command ended with it, as a bug."""
    check(
        f"SELECT {query} AS x FROM t", f"CREATE VIEW w AS SELECT {query} AS x, count(*) FROM t;\n"
    )
