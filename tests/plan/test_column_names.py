"""Names of plan columns that users recognize, and the backends that `explain` shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.deploy.graph import column_names
from stepwell.execution.local.offline import explain_offline
from stepwell.plan.explain import Backends, Chosen, Explained
from stepwell.sql.statements import fold, parse_statements
from stepwell.text import Source

TABLES = """
CREATE TABLE item (id BIGINT NOT NULL PRIMARY KEY, parent BIGINT, price DECIMAL(10,2), kind STRING);
CREATE TABLE other (id BIGINT NOT NULL PRIMARY KEY, note STRING);
"""


def explained(sql: str) -> dict[str, Explained]:
    statements = parse_statements(Source("t.sql", TABLES + sql))
    by_name = {fold(s.name): s for s in statements}
    found = explain_offline(statements, lambda name: column_names(name, by_name.get))
    assert all(isinstance(view, Explained) for view in found.values()), found
    return {name: view for name, view in found.items() if isinstance(view, Explained)}


def operators(view: Explained) -> list[str]:
    return [line.operator for block in view.blocks for line in block.lines]


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("SELECT id, price * 2 AS twice FROM item WHERE price > 1", "filter price > 1"),
        (
            "SELECT kind, SUM(price + 1) AS s FROM item GROUP BY kind",
            "accumulate by (kind) SUM(price + 1), COUNT(price + 1)",
        ),
        (
            "SELECT kind, COUNT(*) FILTER (WHERE price > 1) AS n FROM item GROUP BY kind",
            "accumulate by (kind) COUNT(*) FILTER(WHERE price > 1)",
        ),
        (
            "SELECT a.id FROM item a JOIN item b ON a.parent = b.id",
            "join on item.parent = item_2.id",
        ),
        (
            "SELECT a.id, note FROM item a LEFT JOIN other o ON a.id = o.id AND o.note = a.kind",
            "left outer join on item.id = other.id AND kind = note",
        ),
        (
            "SELECT x * 3 AS y FROM (SELECT price + 1 AS x FROM item)",
            "project (price + 1) * 3",
        ),
        ("SELECT kind, MAX(price) AS m FROM item GROUP BY kind", "aggregate by (kind) MAX(price)"),
        (
            "SELECT id, price FROM item ORDER BY price DESC LIMIT 3",
            "first 3 by price DESC, id",
        ),
    ],
)
def test_operators_show_the_columns_of_the_user(query: str, shown: str) -> None:
    view = explained(f"CREATE MATERIALIZED VIEW v AS {query};")["v"]
    assert shown in operators(view), operators(view)


def test_an_average_is_shown_as_one_and_not_as_a_quotient_of_sums() -> None:
    query = "SELECT kind, AVG(price) AS mean, SUM(price) AS total FROM item GROUP BY kind"
    view = explained(f"CREATE MATERIALIZED VIEW v AS {query};")["v"]
    assert view.output[0].operator == "project kind, AVG(price) AS mean, SUM(price) AS total"


def test_a_view_over_a_view_shows_the_names_that_the_view_gives() -> None:
    found = explained(
        "CREATE MATERIALIZED VIEW v AS SELECT kind, SUM(price) AS total FROM item GROUP BY kind;"
        "CREATE MATERIALIZED VIEW w AS SELECT kind AS k, total FROM v WHERE total > 10;"
    )
    assert "filter total > 10" in operators(found["w"])
    assert found["w"].blocks[-1].columns == ("k", "total")


def test_a_reason_names_the_columns_of_the_user() -> None:
    query = "SELECT kind, COUNT(DISTINCT parent, price) AS n FROM item GROUP BY kind"
    (block,) = explained(f"CREATE MATERIALIZED VIEW v AS {query};")["v"].blocks
    assert str(block.backends) == "Spark: COUNT(DISTINCT parent, price) has no local kernel"
    assert [chosen.backend for chosen in block.backends.chosen] == ["Spark"]


def test_backends_that_differ_are_shown_with_the_inputs_that_change() -> None:
    backends = Backends((Chosen(("a",), None), Chosen(("b",), "why"), Chosen(("a", "b"), "why")))
    assert str(backends) == "local (change of a); Spark: why (change of b, a and b)"


def test_look_ups_are_shown_with_the_columns_they_go_by() -> None:
    query = "SELECT i.kind, o.note FROM item i JOIN other o ON i.parent = o.id"
    (block,) = explained(f"CREATE MATERIALIZED VIEW v AS {query};")["v"].blocks
    assert str(block.backends) == "local"
    assert [str(lookup) for lookup in block.backends.lookups] == [
        "item by (parent)",
        "other by (id)",
    ]
    assert block.backends.whole == ()


def test_rows_are_shown_only_if_they_are_known() -> None:
    view = explained("CREATE MATERIALIZED VIEW v AS SELECT kind FROM item;")["v"]
    assert "row" not in str(view)
    assert view.counted() is view
    opened = replace(view, count=lambda: {"item": 1234, "v$1": 1}).counted()
    assert "scan item, 1,234 rows" in str(opened)
    assert "v$1: rule 1 changes pass through, 1 row\n" in str(opened)
    assert opened.to_json()["relations"][0]["rows"] == 1  # type: ignore[index]
