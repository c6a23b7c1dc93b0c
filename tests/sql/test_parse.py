"""The text of a query as it was understood, which Spark must read as it reads the user's."""

from __future__ import annotations

import pytest

from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.shape import unresolved
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query, read

CATALOG = catalog_of({"a": ["k", "x"], "b": ["k", "y"]}, {})


@pytest.mark.parametrize(
    ("text", "understood"),
    [
        ("SELECT x FROM a", "SELECT `a`.`x` FROM `a` AS `a`"),
        ("SELECT x AS z FROM a", "SELECT `a`.`x` AS `z` FROM `a` AS `a`"),
        (
            "SELECT k, y FROM a FULL JOIN b USING (k)",
            "SELECT `k`, `b`.`y` FROM `a` AS `a` FULL JOIN `b` AS `b` USING (k)",
        ),
        (
            "SELECT * FROM a NATURAL LEFT JOIN b",
            "SELECT `a`.`k`, `a`.`x`, `b`.`y` FROM `a` AS `a` NATURAL LEFT JOIN `b` AS `b`",
        ),
        (
            "WITH r (p, q) AS (SELECT k, SUM(x) FROM a GROUP BY k) SELECT q FROM r",
            "WITH `r`(p, q) AS (SELECT `a`.`k`, SUM(`a`.`x`) FROM `a` AS `a` GROUP BY `a`.`k`) "
            "SELECT `r`.`q` FROM `r` AS `r`",
        ),
        (
            "SELECT x FROM a QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY x) = 1",
            "SELECT `a`.`x` FROM `a` AS `a` "
            "QUALIFY ROW_NUMBER() OVER (PARTITION BY `a`.`k` ORDER BY `a`.`x`) = 1",
        ),
        (
            "SELECT x FROM a WHERE x = (SELECT MAX(y) FROM b WHERE b.k = a.k)",
            "SELECT `a`.`x` FROM `a` AS `a` "
            "WHERE `a`.`x` = (SELECT MAX(`b`.`y`) FROM `b` AS `b` WHERE `b`.`k` = `a`.`k`)",
        ),
    ],
)
def test_names_are_written_out_and_the_rest_stays(text: str, understood: str) -> None:
    """S1: every name with its table, and nothing else that Spark would make another plan of."""
    assert parse_query(text, CATALOG).forms[0] == understood


@pytest.mark.parametrize(
    "text",
    [
        "SELECT y FROM a RIGHT JOIN b USING (k) JOIN a c USING (k)",
        "SELECT y FROM a FULL JOIN b USING (k) FULL JOIN a c USING (k)",
        "SELECT y FROM a JOIN b USING (k) FULL JOIN a c ON c.k = b.y",
        "SELECT y FROM a NATURAL JOIN b NATURAL JOIN a c",
        "WITH r (x, k) AS (SELECT k, x FROM a ORDER BY x LIMIT 1) SELECT k FROM r",
        "SELECT k FROM (SELECT k, x FROM a ORDER BY x LIMIT 1) AS r (x, k)",
        "SELECT k FROM (SELECT k, SUM(x) FROM a GROUP BY k HAVING k > 1) AS r (x, k)",
        "SELECT k FROM a WHERE EXISTS (SELECT 1 FROM b HAVING COUNT(*) > 1)",
        "SELECT k FROM a WHERE NOT EXISTS (SELECT MAX(y) + 1 FROM b HAVING COUNT(*) > 1)",
        "SELECT k FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k HAVING COUNT(*) > a.x)",
    ],
)
def test_what_may_be_misread_is_refused(text: str) -> None:
    """S1: nobody compares what is refused, so that nothing depends on noticing it."""
    with pytest.raises(Unsupported):
        parse_query(text, CATALOG)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("SELECT k FROM a JOIN b USING (k)", "`a`.`k`"),
        ("SELECT k FROM a LEFT JOIN b USING (k)", "`a`.`k`"),
        ("SELECT k FROM a RIGHT JOIN b USING (k)", "`b`.`k`"),
        ("SELECT k FROM a FULL JOIN b USING (k)", "COALESCE(`a`.`k`, `b`.`k`)"),
        (
            "SELECT COALESCE(b.k, a.k) AS k FROM a LEFT JOIN b USING (k)",
            "COALESCE(`b`.`k`, `a`.`k`)",
        ),
        (
            "SELECT y, k FROM a JOIN (SELECT k, y FROM b FULL JOIN a c USING (k)) s USING (k)",
            "COALESCE(`b`.`k`, `c`.`k`)",
        ),
    ],
)
def test_of_columns_that_are_joined_by_name_the_one_is_taken_that_spark_takes(
    text: str, column: str
) -> None:
    """S1, S4: and what the user wrote, or another SELECT joins, is not touched."""
    assert f"{column} AS `k`" in read(text, CATALOG).sql(dialect="spark")


@pytest.mark.parametrize(
    "item",
    [
        "count(DISTINCT *)",
        "count(a.*)",
        "hash(*)",
        "struct(a.*)",
        "concat_ws(',', *)",
        "count(*, x)",
    ],
)
def test_a_star_inside_a_call_is_refused(item: str) -> None:
    """S1: it stands for columns, which nothing below would know to be needed."""
    with pytest.raises(Unsupported) as caught:
        parse_query(f"SELECT {item} AS z FROM a", CATALOG)
    assert caught.value.reason.code is Code.UNSUPPORTED_OPERATOR


@pytest.mark.parametrize("items", ["*", "a.*", "count(*)", "count(*) OVER (PARTITION BY k)"])
def test_a_star_that_is_all_rows_or_the_whole_list_is_understood(items: str) -> None:
    assert parse_query(f"SELECT {items} FROM a", CATALOG)


@pytest.mark.parametrize(
    "inside",
    [
        "SELECT y FROM b WHERE b.k = a.k ORDER BY abs(y - a.x) LIMIT 1",
        "SELECT y, abs(y - a.x) AS d FROM b ORDER BY d LIMIT 1",
        "SELECT y FROM b WHERE b.k = a.k QUALIFY row_number() OVER (ORDER BY y) <= a.x",
        "SELECT sum(y * a.x) AS y FROM b WHERE b.k = a.k",
        "SELECT sum(a.x) OVER (ORDER BY y) AS y FROM b",
        "SELECT y + a.x AS y FROM b WHERE b.k = a.k GROUP BY y + a.x HAVING count(*) > a.x",
        "SELECT y FROM b WHERE EXISTS (SELECT 1 FROM b c WHERE c.k > a.x AND c.y = b.y)",
    ],
)
def test_outer_columns_anywhere_in_a_lateral_query_are_columns_of_their_input(inside: str) -> None:
    """S3: the rest of the plan has no such column, and Spark would refuse it by a name of ours."""
    parsed = parse_query(f"SELECT a.k, m.y FROM a, LATERAL ({inside}) m", CATALOG)
    assert not unresolved(parsed.node)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k FROM a, LATERAL (SELECT c.y FROM b LEFT JOIN b c ON c.k = a.k) m",
        "SELECT k FROM a, LATERAL (SELECT b.y FROM b FULL JOIN b c ON c.k = a.k) m",
        "SELECT a.k FROM a, LATERAL (SELECT a.x AS y FROM b WHERE b.k = a.k HAVING count(*) > 0) m",
        "SELECT a.k FROM a, LATERAL (SELECT a.x AS y FROM b WHERE b.k < a.k HAVING count(*) > 0) m",
        "SELECT a.k, m.y FROM a, LATERAL (SELECT a.x AS y FROM b UNION SELECT a.x FROM a) m",
        "SELECT a.k, m.y FROM a, LATERAL (VALUES (a.x)) m (y)",
        "SELECT k FROM a WHERE EXISTS (SELECT y FROM b GROUP BY y HAVING count(*) > a.x)",
        "SELECT k FROM a WHERE EXISTS (SELECT 1 FROM b JOIN b c ON c.k = a.k)",
        "SELECT k FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k HAVING count(*) > 1)",
        "SELECT k, (SELECT sum(y) + 1 FROM b HAVING count(*) > 1) AS s FROM a",
        "SELECT k, (SELECT max(y + a.x) FROM b WHERE b.k = a.k) AS s FROM a",
        "SELECT k FROM a WHERE x IN (SELECT count(*) FROM b WHERE b.k = a.k)",
    ],
)
def test_a_subquery_that_no_join_expresses_says_so(query: str) -> None:
    """S1, S3: recomputed for an honest reason, and never with a clause left out."""
    with pytest.raises(Unsupported) as caught:
        parse_query(query, CATALOG)
    assert caught.value.reason.code is Code.UNSUPPORTED_SUBQUERY
    assert "_c" not in caught.value.reason.detail
