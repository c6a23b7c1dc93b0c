"""The reason why a view is recomputed: what is wrong, in the user's own terms."""

from __future__ import annotations

import pytest

from stepwell.execution.local.offline import Prediction
from stepwell.plan.program import Full
from stepwell.sql.statements import parse_statements
from stepwell.text import Source

TABLES = "CREATE TABLE a (k INT, s STRING); CREATE TABLE b (y INT);"


def details(query: str) -> list[str]:
    sql = f"{TABLES} CREATE MATERIALIZED VIEW v AS {query}"
    prediction = Prediction(lambda _: ("k", "found"))
    prediction.all(parse_statements(Source("v.sql", sql)))
    [program] = prediction.programs
    return [block.reason.detail for block in program.blocks if isinstance(block, Full)]


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("SELECT k, s IN (SELECT y FROM b) FROM a", "IN inside an expression"),
        ("SELECT k, s NOT IN (SELECT y FROM b) FROM a", "IN inside an expression"),
        ("SELECT k, s FROM a WHERE k > 3 OR s IN (SELECT y FROM b)", "IN inside an expression"),
        ("SELECT k, (SELECT MAX(y) FROM b WHERE b.y = a.s) FROM a", "a correlated subquery"),
        ("SELECT k, EXISTS (SELECT 1 FROM b WHERE b.y = a.s) FROM a", "a correlated subquery"),
        ("SELECT k, k IN (SELECT y FROM b WHERE b.y = a.s) FROM a", "a correlated subquery"),
    ],
)
def test_a_subquery_over_unlike_types_is_called_what_it_is(query: str, what: str) -> None:
    """S3: only a subquery that names a column of the outer query is correlated."""
    assert details(query) == [f"{what} that compares STRING with INT"]


def test_a_condition_with_in_over_unlike_types_is_incremental() -> None:
    """S3: as `docs/concepts/views.md` says; only as a value or under OR it is not."""
    assert details("SELECT k, s FROM a WHERE s IN (SELECT y FROM b)") == []
    assert details("SELECT k, s FROM a WHERE k > 3 AND s NOT IN (SELECT y FROM b)") == []


@pytest.mark.parametrize(
    "window",
    [
        "AVG(k) OVER (ORDER BY s)",
        "LEAD(k) OVER (ORDER BY k DESC)",
        "SUM(k + 1) OVER ()",
    ],
)
def test_a_window_without_partitions_is_shown_as_it_was_written(window: str) -> None:
    """S3: `AVG(_c1) OVER (ORDER BY _c2)` names nothing that its reader knows."""
    assert details(f"SELECT q.k, {window} AS x FROM a AS q") == [window]


def test_a_join_by_name_in_parentheses_says_so() -> None:
    """S3: the reason was `Unknown table:`, with nothing behind it."""
    joins = "a JOIN (b JOIN (SELECT y FROM b) c USING (y)) ON a.k = b.y"
    assert details(f"SELECT a.k FROM {joins}") == ["USING or NATURAL inside a join in parentheses"]
