"""The text of a query as it was understood, which Spark must read as it reads the user's."""

from __future__ import annotations

import pytest

from stepwell.query.parse import catalog_of, parse_query

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
    assert parse_query(text, CATALOG).qualified == understood


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("SELECT y FROM a RIGHT JOIN b USING (k) JOIN a c USING (k)", "ON `a`.`k` = `c`.`k`"),
        ("SELECT y FROM a FULL JOIN b USING (k) FULL JOIN a c USING (k)", "ON `a`.`k` = `c`.`k`"),
        ("SELECT y FROM a NATURAL RIGHT JOIN b NATURAL JOIN a c", "ON COALESCE(`a`.`k`, `b`.`k`)"),
        ("WITH r (x, k) AS (SELECT k, x FROM a ORDER BY x LIMIT 1) SELECT k FROM r", "AS `x`"),
        ("SELECT k FROM (SELECT k, x FROM a ORDER BY x LIMIT 1) AS r (x, k)", "AS `x`"),
    ],
)
def test_what_may_be_misread_stays_in_the_text(text: str, wrong: str) -> None:
    """S1: Spark is shown our reading, not the user's words again, and says that it is another."""
    assert wrong in parse_query(text, CATALOG).qualified
