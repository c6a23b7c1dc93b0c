"""Names of plan columns that users recognize, and the backends that `explain` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from stepwell.deploy.graph import column_names
from stepwell.errors import InvalidError
from stepwell.execution.local.offline import explain_offline
from stepwell.plan.column_names import ColumnNames, Tracing, renamed
from stepwell.plan.explain import Backends, Chosen, Decided, Explained, explain
from stepwell.plan.join_order import Estimates
from stepwell.plan.lower import Lowering
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import Names, relations
from stepwell.plan.program import Full, Program
from stepwell.plan.reasons import Unsupported
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query
from stepwell.sql.statements import MaterializedView, Table, fold, parse_statements
from stepwell.text import Source
from tests.sql_files import all_cases

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


def lowered(view: MaterializedView, stored: Mapping[str, Sequence[str]]) -> Program | None:
    """The program of a view, as if all columns were integers; None if it is recomputed."""
    kinds = lambda node: ("int",) * len(node.columns)  # noqa: E731 - a stand-in for Spark
    with suppress(Unsupported, InvalidError):
        parsed = parse_query(view.query, catalog_of(stored, {}))
        lowering = Lowering(view.name, parsed.names, kinds, ansi=True, unique={})
        output = lowering.view(parsed.node)
        columns = tuple(f"o{i}" for i in range(len(output.columns)))
        return Program(view.name, columns, kinds(output), tuple(lowering.blocks), output)
    return None


def test_the_columns_of_every_view_and_of_every_plan_are_traced() -> None:
    """A view that could not be explained could not be opened."""
    traced = 0
    for case in (case for case in all_cases() if case.open_error is None):
        names, stored = ColumnNames(), dict[str, list[str]]()
        for statement in parse_statements(Source("case.sql", case.sql)):
            if isinstance(statement, Table):
                stored[statement.name] = [column.name for column in statement.columns]
                names.add_table(statement.name, stored[statement.name])
            program = (
                lowered(statement, stored) if isinstance(statement, MaterializedView) else None
            )
            if program is None:
                continue
            names.add_program(program)
            backends = {block.relation: Backends() for block in program.blocks}
            explain(program, names, Decided(Chosen((), None), backends)).to_json()
            for block in program.blocks:
                if not isinstance(block, Full):
                    changed = relations(block.input)
                    plan = Maintenance(Names(prefix="_m"), changed, Estimates()).plan(block)
                    if plan is not None:
                        renamed("no kernel for _m1", plan, Tracing(names, plan))
                        traced += 1
    assert traced > 100
