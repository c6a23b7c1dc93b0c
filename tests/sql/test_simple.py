"""What is taken for a simple query. A mistake here would be a wrong answer, so doubt is enough."""

from __future__ import annotations

import pytest

from stepwell.sql.simple import Item, NotSimple, Order, parse_simple

LEFT_TO_SPARK = [
    # Other queries
    "VALUES (1)",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    "SELECT 1",
    "SELECT * FROM t UNION SELECT * FROM t",
    "SELECT * FROM t, u",
    "SELECT * FROM t JOIN u",
    "SELECT * FROM t GROUP BY a",
    "SELECT * FROM (SELECT * FROM t)",
    "SELECT DISTINCT a FROM t",
    "SELECT ALL a FROM t",
    "SELECT a.b.c FROM t",
    "SELECT * FROM db.t",
    "SELECT * FROM text.`/etc/shadow`",
    "SELECT * FROM t TABLESAMPLE (10 PERCENT)",
    "SELECT * FROM t WHERE a IN (SELECT b FROM u)",
    "SELECT * FROM t; SELECT * FROM u",
    "FROM t SELECT a",
    # Other items
    "SELECT a b FROM t",
    "SELECT * FROM t x",
    "SELECT *, a FROM t",
    "SELECT t.* FROM t",
    "SELECT * EXCEPT (a) FROM t",
    "SELECT a + 1 FROM t",
    "SELECT upper(a) FROM t",
    "SELECT current_date FROM t",
    "SELECT NULL FROM t",
    "SELECT TRUE FROM t",
    "SELECT 'a' FROM t",
    "SELECT a AS (b) FROM t",
    "SELECT sum(a) FROM t",
    "SELECT count(DISTINCT a) FROM t",
    "SELECT count(a, b) FROM t",
    "SELECT count(1) FROM t",
    "SELECT count (*) FROM t",
    "SELECT count(*) FILTER (WHERE a) FROM t",
    "SELECT count(*) OVER () FROM t",
    "SELECT a, count(*) FROM t",
    "SELECT count(*) FROM t ORDER BY 1",
    "SELECT a[0] FROM t",
    "SELECT a:b FROM t",
    "SELECT a::INT FROM t",
    # Other conditions
    "SELECT * FROM t WHERE a = 1 = TRUE",
    "SELECT * FROM t WHERE a = b IS NULL",
    "SELECT * FROM t WHERE (a) = 1",
    "SELECT * FROM t WHERE NOT a = 1 IS NULL",
    "SELECT * FROM t WHERE a IS TRUE",
    "SELECT * FROM t WHERE a IS DISTINCT FROM b",
    "SELECT * FROM t WHERE a NOT = 1",
    "SELECT * FROM t WHERE a NOT",
    "SELECT * FROM t WHERE NULL",
    "SELECT * FROM t WHERE a = NULL",
    "SELECT * FROM t WHERE a LIKE 'x' ESCAPE '!'",
    "SELECT * FROM t WHERE a LIKE ANY ('x')",
    "SELECT * FROM t WHERE a LIKE b",
    "SELECT * FROM t WHERE a ILIKE 'x'",
    "SELECT * FROM t WHERE a RLIKE 'x'",
    "SELECT * FROM t WHERE a !< 1",
    "SELECT * FROM t WHERE a = 1 + 1",
    "SELECT * FROM t WHERE a = -b",
    "SELECT * FROM t WHERE a = + 1",
    "SELECT * FROM t WHERE a = 1e5",
    "SELECT * FROM t WHERE a = 1L",
    "SELECT * FROM t WHERE a = 1.5BD",
    "SELECT * FROM t WHERE a = .5",
    "SELECT * FROM t WHERE a = 5.",
    'SELECT * FROM t WHERE a = "x"',
    "SELECT * FROM t WHERE a = r'x'",
    "SELECT * FROM t WHERE a = x'1F'",
    "SELECT * FROM t WHERE a = 'x' 'y'",
    "SELECT * FROM t WHERE a = 'x\\n'",
    "SELECT * FROM t WHERE a = INTERVAL '1' DAY",
    "SELECT * FROM t WHERE a = TIMESTAMP_NTZ '2020-01-01'",
    "SELECT * FROM t WHERE a = u.b",
    "SELECT * FROM t WHERE a = ${x}",
    "SELECT * FROM t WHERE a = :x",
    "SELECT * FROM t WHERE a = ?",
    "SELECT * FROM t WHERE exists(a, x -> x)",
    "SELECT * FROM t WHERE " + "(" * 60 + "a" + ")" * 60,
    "SELECT * FROM t WHERE " + "NOT " * 60 + "a",
    # Other ends
    "SELECT * FROM t ORDER BY t.a",
    "SELECT * FROM t ORDER BY a + 1",
    "SELECT * FROM t ORDER BY ALL",
    "SELECT * FROM t ORDER BY a COLLATE x",
    "SELECT * FROM t SORT BY a",
    "SELECT * FROM t LIMIT ALL",
    "SELECT * FROM t LIMIT 1 + 1",
    "SELECT * FROM t LIMIT -1",
    "SELECT * FROM t LIMIT 3000000000",
    "SELECT * FROM t OFFSET 1 LIMIT 1",
    "SELECT * FROM t LIMIT 1 OFFSET",
    # Other texts
    "SELECT /*+ BROADCAST(t) */ a FROM t",
    "SELECT a\u00a0FROM t",
    "SELECT a\u2028FROM t",
    "SELECT a FROM t\x00",
    "SELECT ä FROM t",
    "SELECT a FROM t$x",
    "",
]


@pytest.mark.parametrize("sql", LEFT_TO_SPARK)
def test_what_may_mean_something_else_is_left_to_spark(sql: str) -> None:
    with pytest.raises(NotSimple):
        parse_simple(sql)


def test_a_simple_query_is_read_as_it_stands() -> None:
    found = parse_simple(
        "select A, t.`b``c` as d -- these\nfrom T as t /* all */ "
        "where x = 1 and not y or z <=> 'it''s' order by 1 desc, d nulls last limit 5 offset 2 ;"
    )
    assert found.relation.value == "T"
    assert found.items == (Item("A"), Item("b`c", alias="d"))
    assert found.where is not None
    assert found.where.sql("spark") == "`x` = 1 AND NOT `y` OR `z` IS NOT DISTINCT FROM 'it\\'s'"
    assert found.order == (Order(1, True, False), Order("d", False, False))
    assert (found.limit, found.offset) == (5, 2)
    assert not found.aggregates


def test_not_binds_more_than_and_which_binds_more_than_or() -> None:
    where = parse_simple("SELECT * FROM t WHERE NOT a OR b AND c = 1 OR NOT d IS NULL").where
    assert where is not None
    first, second = where.left, where.right
    assert type(where).__name__ == "Or"
    assert [type(first.left).__name__, type(first.right).__name__] == ["Not", "And"]
    assert second.sql("spark") == "NOT `d` IS NULL"
