"""How large is what is asked when something changes, and in which order are tables joined?"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stepwell.plan.join_order import Estimates
from stepwell.plan.lower import Lowering
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import (
    Inner,
    Leaf,
    Names,
    Node,
    Scan,
    When,
    children,
    relations,
    walk,
)
from stepwell.plan.program import Block, Full, Rows, Top
from stepwell.plan.reasons import Unsupported
from stepwell.plan.render import render
from stepwell.plan.types import one_to_one
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query

DIMENSIONS = 8
TABLES = {
    "fact": [*(f"x{i}" for i in range(DIMENSIONS)), "v"],
    **{f"d{i}": [f"k{i}", f"v{i}"] for i in range(DIMENSIONS)},
}


def blocks_of(query: str) -> list[Block]:
    """What is kept for a view over tables of numbers."""
    parsed = parse_query(query, catalog_of(TABLES, {}))
    kinds = lambda node: ("int",) * len(node.columns)  # noqa: E731 - a stand-in for Spark
    lowering = Lowering("v", parsed.names, kinds, ansi=True, unique={})
    lowering.view(parsed.node)
    return lowering.blocks


def plans(block: Block, changed: Iterable[str] | None = None) -> list[Node]:
    """The queries that bring a block up to date when these relations have changed, or all."""
    assert not isinstance(block, Full)
    every = {node.relation for node in walk(block.input) if isinstance(node, Scan)}
    moved = frozenset(every if changed is None else every & set(changed))
    maintenance = Maintenance(Names(prefix="_m"), moved, Estimates())
    change = maintenance.plan(block)
    assert change is not None
    return [*(stage.node for stage in maintenance.stages), change]


def size(node: Node) -> int:
    return sum(1 for _ in walk(node))


def depth(node: Node) -> int:
    return 1 + max(map(depth, children(node)), default=0)


def star(count: int, kind: str = "LEFT") -> str:
    joins = " ".join(f"{kind} JOIN d{i} ON fact.x{i} = d{i}.k{i}" for i in range(count))
    return f"SELECT v, {', '.join(f'v{i}' for i in range(count))} FROM fact {joins}"


def chain(count: int) -> str:
    joins = " ".join(f"LEFT JOIN d{i} ON d{i - 1}.v{i - 1} = d{i}.k{i}" for i in range(1, count))
    return f"SELECT {', '.join(f'v{i}' for i in range(count))} FROM d0 {joins}"


def test_a_changed_row_with_many_left_joins_is_one_query_that_grows_with_their_number() -> None:
    """S4: each used to double the plan, so that a view of six was silently recomputed."""
    small, large = (plans(*blocks_of(star(count)), ["fact"]) for count in (4, 8))
    assert len(small) == len(large) == 1
    assert size(large[0]) <= 2 * size(small[0])


@pytest.mark.parametrize("query", [star, chain])
def test_many_left_joins_whose_tables_all_change_do_not_double_the_plan(query: object) -> None:
    """S4: one term for each table that changes, and each as long as there are joins."""
    small, large = (plans(*blocks_of(query(count))) for count in (4, 8))  # type: ignore[operator]
    assert sum(map(size, large)) <= 4.5 * sum(map(size, small))


def test_a_left_join_is_made_after_the_inner_join_above_it_and_nothing_is_stored() -> None:
    """S4: the inner join needs all rows of what it joins, and these would be stored."""
    first = "SELECT fact.x1, v, v0 FROM fact LEFT JOIN d0 ON fact.x0 = d0.k0"
    for query in (
        f"SELECT v, v0, v1 FROM ({first}) a JOIN d1 ON a.x1 = d1.k1",
        "SELECT v, v0, v1, v2 FROM fact LEFT JOIN d0 ON x0 = k0 LEFT JOIN d1 ON x1 = k1 "
        "JOIN d2 ON x2 = k2",
    ):
        assert len(blocks_of(query)) == 1


def test_an_inner_join_by_a_column_of_the_left_joins_right_side_is_not_made_before_it() -> None:
    """S4: it would be a product, and a wrong one where nothing matches."""
    query = "SELECT v, v0, v1 FROM fact LEFT JOIN d0 ON x0 = k0 JOIN d1 ON v0 = k1"
    for block in blocks_of(query):
        assert not isinstance(block, Full)
        for node in walk(block.input):
            if isinstance(node, Inner):
                assert "CROSS" not in render(node, lambda relation, when: relation).sql


def test_windows_over_one_another_are_stored_in_between() -> None:
    """S4: a plan more than doubled with each; five were more than Spark can read."""
    calls = ", ".join(f"rank() OVER (PARTITION BY x{i} ORDER BY v) AS r{i}" for i in range(6))
    blocks = blocks_of(f"SELECT v, {calls} FROM fact")
    assert len(blocks) == 3
    assert max(size(plan) for block in blocks for plan in plans(block)) < 30


def test_rows_at_the_end_of_an_order_are_computed_from_the_last_ones() -> None:
    """S4: a window without PARTITION BY is one partition, which an append must not read."""
    calls = "row_number() OVER (ORDER BY x0) AS n, lag(v, 3) OVER (ORDER BY x0) AS l"
    rows, last = blocks_of(f"SELECT v, {calls}, sum(v) OVER (ORDER BY x0) AS s FROM fact")
    assert isinstance(rows, Rows)
    assert isinstance(last, Top)
    assert last.input.limit == 3
    maintenance = Maintenance(Names(prefix="_m"), frozenset({"fact"}), Estimates())
    coming = maintenance.coming(rows)
    assert coming is not None
    plan = maintenance.at_the_end(rows, Leaf("added", coming.columns, When.DELTA))
    assert {n.when for n in walk(coming) if isinstance(n, Leaf)} == {When.DELTA}
    assert relations(plan) == {"added", last.relation}
    # Anywhere else, all rows are compared.
    assert relations(plans(rows)[-1]) == {"fact", rows.relation}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT v, m.n FROM fact, LATERAL (SELECT count(*) AS n FROM d0 WHERE k0 = x0) m",
        "SELECT v, m.n FROM fact, LATERAL (SELECT max(v0) AS n FROM d0 WHERE k0 < x0) m",
        "SELECT v, m.v0 FROM fact LEFT JOIN LATERAL (SELECT v0 FROM d0 WHERE k0 = x0 "
        "ORDER BY v0 LIMIT 2) m",
        "SELECT x0, max((SELECT max(v0) FROM d0 WHERE k0 = x0)) AS m FROM fact GROUP BY x0",
        "SELECT v IN (SELECT v0 FROM d0) AS k, count(*) AS n FROM fact GROUP BY k",
        "SELECT window(v, '1 hour').start AS s FROM fact JOIN d0 ON k0 = x0",
        "SELECT x0, count(*) AS n FROM fact JOIN d0 ON k0 = x0 GROUP BY x0 LIMIT 3",
    ],
)
def test_a_change_is_met_by_what_it_matches(query: str) -> None:
    """S4: a plan without a change in each of its joins would read whole tables every time."""
    for block in blocks_of(query):
        if isinstance(block, Top):
            continue
        every = {n.relation for n in walk(block.input) if isinstance(n, Scan)}
        for relation in every:
            for plan in plans(block, [relation]):
                assert any(isinstance(n, Leaf) and n.when is When.DELTA for n in walk(plan))


def test_many_unions_are_one() -> None:
    """S4: each stood within the next, deeper than Spark can read."""
    query = " UNION ALL ".join(f"SELECT x0 + {i} AS x FROM fact WHERE v > {i}" for i in range(200))
    (plan,) = plans(*blocks_of(query))
    assert depth(plan) < 10


def test_a_whole_join_is_made_along_equalities_from_the_largest_table() -> None:
    """S4: tables that only a third one connects were multiplied first, 10 GB of rows at a time."""
    text = "SELECT v FROM d0, d1, fact, d2 WHERE x0 = k0 AND x1 = k1 AND x2 = k2 AND v2 = 5"
    (block,) = blocks_of(text)
    rows = {"fact": 6_000_000, "d0": 10_000, "d1": 1_000, "d2": 500_000}
    whole = Maintenance(Names(prefix="_m"), frozenset(), Estimates(rows)).whole(block)
    (join,) = (node for node in walk(whole) if isinstance(node, Inner))
    order = [next(n.relation for n in walk(i) if isinstance(n, Leaf)) for i in join.inputs]
    # The filtered one first, since it leaves fewest.
    assert order == ["fact", "d2", "d1", "d0"]
    assert "CROSS" not in render(join, lambda relation, when: relation).sql


@pytest.mark.parametrize(
    "query",
    [
        "SELECT v, (SELECT MAX(v0) FROM d0 WHERE k0 = x0) AS m FROM fact",
        "SELECT v FROM fact WHERE v < (SELECT SUM(v0) FROM d0 WHERE k0 = x0)",
        "SELECT v, EXISTS (SELECT 1 FROM d0 WHERE k0 = x0) AS e FROM fact",
    ],
)
def test_a_subquery_is_not_grouped_by_texts_that_are_compared_with_a_number(query: str) -> None:
    """S3: the groups of '1' and '01' both equal 1, and the row would be there twice."""
    parsed = parse_query(query, catalog_of(TABLES, {}))

    def kinds(node: Node) -> tuple[str, ...]:
        texts = {
            c
            for part in walk(node)
            if isinstance(part, Scan) and part.relation == "d0"
            for c in part.columns[:1]
        }
        return tuple("string" if c in texts else "int" for c in node.columns)

    (grouped,) = parsed.grouped
    with pytest.raises(Unsupported, match="compares INT with STRING"):
        Lowering("v", parsed.names, kinds, ansi=True, unique={}).check(*grouped)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("int", "int", True),
        ("int", "bigint", True),
        ("decimal(8,2)", "int", True),
        ("decimal(38,0)", "decimal(10,4)", False),
        ("double", "int", True),
        ("double", "bigint", False),
        ("float", "int", False),
        ("date", "timestamp", True),
        ("string", "int", False),
        ("string", "date", False),
        ("decimal(8,2)", "double", False),
        ("boolean", "int", False),
        ("array<int>", "array<bigint>", False),
    ],
)
def test_values_that_several_others_equal_are_known(a: str, b: str, expected: bool) -> None:
    """S3: rows that match the same row must match each other, or their key says nothing."""
    assert one_to_one(a, b) is one_to_one(b, a) is expected


@pytest.mark.parametrize("ones", [True, False])
def test_weights_that_are_all_one_are_not_read(ones: bool) -> None:
    """X2: building a view multiplies and adds nothing that its own query does not."""
    query = (
        "SELECT v0, sum(v) AS s, count(*) AS n FROM (SELECT * FROM fact "
        "JOIN d0 ON fact.x0 = d0.k0 LEFT JOIN d1 ON fact.x1 = d1.k1) GROUP BY v0"
    )
    [block] = blocks_of(query)
    whole = Maintenance(Names(prefix="_m"), frozenset(), Estimates()).whole(block)
    made = render(whole, lambda relation, when: relation, once=lambda relation, when: ones)
    weighed = ("w *", "CASE w", "sum(w)", ", w FROM fact")
    assert [text for text in weighed if text in made.sql] == ([] if ones else list(weighed))
