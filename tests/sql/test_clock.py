"""Clock functions in the text of a query, and names that look like them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stepwell.errors import SqlError
from stepwell.sql.clock import at_time, time_names
from stepwell.sql.statements import parse_statements
from stepwell.text import Source

TIME = datetime(2026, 1, 2, tzinfo=UTC)
MOMENT = "TIMESTAMP '2026-01-02 00:00:00.000000Z'"
DAY = f"CAST({MOMENT} AS DATE)"


@pytest.mark.parametrize(
    ("query", "fixed"),
    [
        ("SELECT now(), current_timestamp", f"SELECT {MOMENT}, {MOMENT}"),
        ("SELECT a FROM t WHERE d < current_date", f"SELECT a FROM t WHERE d < {DAY}"),
        ("SELECT -current_date, (current_date)", f"SELECT -{DAY}, ({DAY})"),
        ("SELECT 1 GROUP BY current_date", f"SELECT 1 GROUP BY {DAY}"),
        ("SELECT EXTRACT(YEAR FROM current_date)", f"SELECT EXTRACT(YEAR FROM {DAY})"),
        ("SELECT a RLIKE current_date XOR curdate()", f"SELECT a RLIKE {DAY} XOR {DAY}"),
        ("SELECT t.now, now FROM t", "SELECT t.now, now FROM t"),
        ("SELECT 'current_date', `current_date`", "SELECT 'current_date', `current_date`"),
    ],
)
def test_functions_are_replaced_by_the_time(query: str, fixed: str) -> None:
    """J11: a clock that is overlooked gives another answer when it is replayed."""
    assert at_time(query, TIME) == fixed


@pytest.mark.parametrize(
    ("query", "fixed"),
    [
        ("SELECT current_date() AS current_date", f"SELECT {DAY} AS current_date"),
        ("SELECT a + 1 current_date", "SELECT a + 1 current_date"),
        ("SELECT max(a) current_date, now()", f"SELECT max(a) current_date, {MOMENT}"),
        (
            "SELECT CASE WHEN b THEN 1 END current_time",
            "SELECT CASE WHEN b THEN 1 END current_time",
        ),
        (
            "WITH current_date AS (SELECT now()) SELECT * FROM current_date",
            f"WITH current_date AS (SELECT {MOMENT}) SELECT * FROM current_date",
        ),
        (
            "SELECT * FROM (SELECT d AS current_date FROM t) WHERE current_date > d",
            "SELECT * FROM (SELECT d AS current_date FROM t) WHERE current_date > d",
        ),
    ],
)
def test_a_name_that_a_query_declares_is_its_own(query: str, fixed: str) -> None:
    """Spark looks for a column first: the time in its place was an error, or a wrong answer."""
    assert at_time(query, TIME) == fixed
    assert time_names(query)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (a INT, current_date DATE)",
        "CREATE TABLE t (`Current_Timestamp` TIMESTAMP)",
        "CREATE TABLE current_date (a INT)",
        "CREATE VIEW localtimestamp AS SELECT 1 AS a",
        "CREATE VIEW v (a, current_time) AS SELECT 1, 2",
        "CREATE MATERIALIZED VIEW v AS SELECT a AS current_date FROM t",
        "CREATE MATERIALIZED VIEW v AS SELECT a `current_date` FROM t",
    ],
)
def test_tables_and_views_cannot_have_the_name_of_a_time(text: str) -> None:
    """Another query would read the column as the time, and nothing in its text tells the two."""
    with pytest.raises(SqlError, match="cannot be a name: a query reads it as the time"):
        parse_statements(Source("p.sql", text))


@pytest.mark.parametrize("name", ["now", "curdate", "today", "current_user", "unix_timestamp"])
def test_other_functions_are_names(name: str) -> None:
    """Without parentheses these do not read the clock."""
    text = f"CREATE TABLE t ({name} INT); CREATE VIEW v AS SELECT {name} AS {name} FROM t"
    assert len(parse_statements(Source("p.sql", text))) == 2
