"""Views of many CTEs: what is planned and stored grows with the text, and nothing is planned twice.

The bodies are those of `benchmarks/bodies.py`. Sizes are counted, never timed.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import tests.workloads  # noqa: F401 - finds the folder of the benchmarks
from stepwell.execution.reference.bags import Bag, plus
from stepwell.execution.reference.evaluate import bag, evaluate
from stepwell.plan.cost import rows_to_recompute
from stepwell.plan.fingerprint import fingerprint
from stepwell.plan.join_order import Estimates
from stepwell.plan.lower import Lowering
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import (
    Inner,
    Join,
    Leaf,
    Names,
    Node,
    Project,
    Scan,
    Window,
    operators,
    walk,
)
from stepwell.plan.program import Block, Full, Rows, Sums
from stepwell.plan.render import render
from stepwell.plan.typing import Typing
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query
from tests.workloads import BENCHMARKS

assert BENCHMARKS

import _bodies  # noqa: E402

KB = 1_000
SIZES = (5 * KB, 12 * KB, 50 * KB)


def lowered(text: str) -> tuple[Block, ...]:
    return _bodies.Types().lowered(text)[0]


def inputs(block: Block) -> frozenset[str]:
    assert not isinstance(block, Full)
    return frozenset(node.relation for node in walk(block.input) if isinstance(node, Scan))


def plans(block: Block, changed: frozenset[str] | None = None) -> list[Node]:
    """The queries for a change of these relations, or of all that a block reads."""
    changes = inputs(block) if changed is None else changed
    maintenance = Maintenance(Names(prefix="_m"), changes, Estimates())
    change = maintenance.plan(block)
    assert change is not None
    return [*(stage.node for stage in maintenance.stages), change]


def characters(nodes: list[Node]) -> int:
    return sum(len(render(node, lambda relation, when: "t").sql) for node in nodes)


# Size


def test_hidden_relations_of_a_body_are_pinned() -> None:
    """S6: 12 kB of CTEs kept 38 relations, 22 of them the same groups of payments."""
    stored = {size: len(lowered(_bodies.body(size))) for size in (1 * KB, *SIZES)}
    assert stored == {1 * KB: 2, 5 * KB: 8, 12 * KB: 18, 50 * KB: 68}


def test_plans_grow_with_the_text() -> None:
    """S6: a body ten times as long has at most ten times the operators, and so on."""
    counted = []
    for size in SIZES:
        text = _bodies.body(size)
        blocks = lowered(text)
        nodes = [node for block in blocks for node in plans(block)]
        counted.append(
            (
                len(text),
                sum(operators(block.input) for block in blocks if not isinstance(block, Full)),
                sum(map(operators, nodes)),
                characters(nodes),
            )
        )
    small, middle, large = counted
    for before, after in ((small, middle), (middle, large)):
        longer = after[0] / before[0]
        # The SQL of a stack of joins lists all columns at each of them.
        for one, other, most in zip(before[1:], after[1:], (1.3, 1.3, 1.5), strict=True):
            assert other <= most * longer * one, (counted, "more than the text")


def test_spark_is_asked_once_about_each_expression() -> None:
    """S6: every question shows one operator, over empty tables instead of what it reads."""
    asked: list[Node] = []

    class Counting(_bodies.Types):
        def _asked(self, node: Node, types: object) -> tuple[str, ...]:
            asked.append(node)
            return super()._asked(node, types)  # type: ignore[no-any-return, arg-type]

    for size in SIZES:
        asked.clear()
        text = _bodies.body(size)
        Counting().lowered(text)
        assert all(operators(node) == 2 for node in asked if not hasattr(node, "inputs"))
        items = Counter(expr.sql for node in asked for _, expr in getattr(node, "items", ()))
        assert sum(items.values()) < len(text) / 25, "about one for each expression"
        assert max(items.values()) <= 2


def test_a_node_is_typed_once() -> None:
    """S6: types of the same expression over the same types are known."""
    questions: list[Node] = []

    def ask(node: Node, types: object) -> tuple[str, ...]:
        questions.append(node)
        return ("int",) * len(node.columns)

    typing = Typing(lambda relation: ("int", "int"), ask)
    node = parse_query("SELECT a + b AS c FROM t", catalog_of({"t": ["a", "b"]}, {})).node
    again = Project(node.input, node.items) if isinstance(node, Project) else node
    assert typing.of(node) == typing.of(again) == typing.of(node) == ("int",)
    assert len(questions) == 1


# Sharing


def test_no_two_relations_of_a_body_hold_the_same() -> None:
    """S6: a subplan is stored and maintained once, however often the query reads it."""
    for size in SIZES:
        blocks = lowered(_bodies.body(size))
        keys = [
            (type(block), fingerprint(block.input), getattr(block, "accumulators", None))
            for block in blocks
            if not isinstance(block, Full)
        ]
        assert len(set(keys)) == len(keys)


def test_equal_subqueries_are_stored_once_without_a_name() -> None:
    """S6: equal by structure: the generated names of their columns differ."""
    sums = "(SELECT customer, SUM(quantity) AS n FROM raw_orders GROUP BY customer)"
    text = f"SELECT a.n, b.n AS m FROM {sums} a JOIN {sums} b ON a.customer = b.customer"
    first, *rest = lowered(text)
    assert isinstance(first, Sums)
    assert [type(block) for block in rest] == [Rows]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("SELECT customer, quantity + 1 AS q FROM raw_orders WHERE id > 3", True),
        ("SELECT customer AS who, quantity + 1 FROM raw_orders WHERE id > 3", True),
        ("SELECT customer, quantity + 2 AS q FROM raw_orders WHERE id > 3", False),
        ("SELECT product, quantity + 1 AS q FROM raw_orders WHERE id > 3", False),
        ("SELECT customer, quantity + 1 AS q FROM raw_orders WHERE id >= 3", False),
        ("SELECT customer, quantity + 1 AS q FROM raw_orders", False),
        ("SELECT quantity + 1 AS q, customer FROM raw_orders WHERE id > 3", False),
    ],
)
def test_fingerprints_tell_plans_apart_and_names_do_not(other: str, same: bool) -> None:
    """S1: two plans that differ must never share a relation."""
    catalog = catalog_of(_bodies.columns(), {})
    one = "SELECT customer, quantity + 1 AS q FROM raw_orders WHERE id > 3"
    nodes = [parse_query(text, catalog).node for text in (one, other)]
    assert (fingerprint(nodes[0]) == fingerprint(nodes[1])) is same


def test_a_number_is_not_taken_for_the_column_at_that_position() -> None:
    """S1: `quantity > 0.1` shared the sums of `quantity > price`, and had their result."""
    catalog = catalog_of(_bodies.columns(), {})
    column, *numbers = (
        fingerprint(parse_query(f"SELECT quantity FROM raw_orders WHERE {test}", catalog).node)
        for test in ("quantity > price", *(f"quantity > 0.{place}" for place in range(8)))
    )
    assert column not in numbers


def test_sums_that_wrap_around_are_stored_apart_from_those_of_an_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S1: without ANSI mode, SUM over BIGINT wraps around, and AVG does not."""

    def without_ansi(*given: Any, **named: Any) -> Lowering:
        return Lowering(*given, **{**named, "ansi": False})

    monkeypatch.setattr(_bodies, "Lowering", without_ansi)
    a, b = (
        f"(SELECT customer, {function}(product) AS n FROM raw_orders GROUP BY 1)"
        for function in ("SUM", "AVG")
    )
    blocks = lowered(f"SELECT a.n, b.n AS m FROM {a} a JOIN {b} b ON a.customer = b.customer")
    stored = [block for block in blocks if isinstance(block, Sums)]
    assert [block.accumulators[0].type for block in stored] == ["bigint", "decimal(38,0)"]


def test_ctes_that_each_read_the_one_before_twice_do_not_double() -> None:
    """S6: 12 steps would be 4,096 joins."""
    steps = ["s0 AS (SELECT id AS k, quantity AS q FROM raw_orders)"]
    steps += [
        f"s{i} AS (SELECT a.k, b.q FROM s{i - 1} a JOIN s{i - 1} b ON a.k = b.k)"
        for i in range(1, 13)
    ]
    blocks = lowered(f"WITH {', '.join(steps)} SELECT k, q FROM s12")
    total = sum(operators(block.input) for block in blocks if not isinstance(block, Full))
    assert total < 300
    assert len(blocks) <= 12


def test_a_join_that_is_read_twice_is_not_stored_unless_it_saves_much() -> None:
    """S5: state is as small as it can be: two joins are computed again for less."""
    join = "j AS (SELECT o.id, p.amount FROM raw_orders o JOIN raw_payments p ON o.id = p.order_id)"
    blocks = lowered(f"WITH {join} SELECT a.id, b.amount FROM j a JOIN j b ON a.id = b.id")
    assert len(blocks) == 1


def test_a_left_join_that_cannot_matter_is_left_out() -> None:
    """S6: nothing of its right side is read, and every row has one match at most."""
    groups = "(SELECT order_id, SUM(amount) AS n FROM raw_payments GROUP BY order_id)"
    text = "SELECT o.id, o.quantity FROM raw_orders o LEFT JOIN {} p ON o.{} = p.order_id"
    [block] = lowered(text.format(groups, "id"))
    assert inputs(block) == {"raw_orders"}
    [block] = lowered("SELECT o.id FROM raw_orders o LEFT JOIN raw_products p ON o.product = p.id")
    assert inputs(block) == {"raw_orders"}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT o.id FROM raw_orders o LEFT JOIN raw_payments p ON o.id = p.order_id",
        "SELECT o.id, p.title FROM raw_orders o LEFT JOIN raw_products p ON o.product = p.id",
        "SELECT o.id FROM raw_orders o LEFT JOIN raw_products p ON o.product > p.id",
        "SELECT o.id FROM raw_orders o JOIN raw_products p ON o.product = p.id",
    ],
)
def test_a_join_that_matters_stays(text: str) -> None:
    """S1: it repeats rows, drops some, or its columns are read."""
    [block] = lowered(text)
    assert len(inputs(block)) == 2


def test_casts_of_a_column_to_its_own_type_are_dropped() -> None:
    """S6: a column that is joined as it is can be looked up."""
    same = "SELECT CAST(id AS BIGINT) AS i, CAST(credit AS DECIMAL(12, 2)) AS c FROM raw_customers"
    other = "SELECT CAST(id AS STRING) AS i, CAST(credit AS DECIMAL(14, 2)) AS c FROM raw_customers"
    for text, plain in ((same, True), (other, False)):
        [block] = lowered(text)
        assert not isinstance(block, Full)
        found = [e for n in walk(block.input) if isinstance(n, Project) for _, e in n.items]
        assert all(expr.column is not None for expr in found) is plain


# Changes


def test_each_arm_of_a_star_of_left_joins_is_read_a_fixed_number_of_times() -> None:
    """S6: the change of a stack of left joins would double with each of them."""
    arms = 30
    joins = "\n".join(
        f"LEFT JOIN (SELECT order_id, MAX(amount) + {i} AS m FROM raw_payments "
        f"GROUP BY order_id) p{i} ON o.id = p{i}.order_id"
        for i in range(arms)
    )
    columns = ", ".join(f"p{i}.m AS m{i}" for i in range(arms))
    *_, last = lowered(f"SELECT o.id, {columns} FROM raw_orders o {joins}")
    nodes = plans(last)
    joined = Counter(type(n) for node in nodes for n in walk(node))
    assert joined[Join] == 3 * arms, "new rows of the base, and old ones before and after"
    assert sum(map(operators, nodes)) < 25 * arms


def test_a_join_of_many_tables_is_computed_in_halves() -> None:
    """S6: each of the 32 terms would look up the 31 other inputs."""
    leaves = {}
    for ways in (8, 16, 32):
        [block] = lowered(_bodies.self_join(ways))
        nodes = plans(block)
        leaves[ways] = sum(isinstance(n, Leaf) for node in nodes for n in walk(node))
        assert max(len(n.inputs) for q in nodes for n in walk(q) if isinstance(n, Inner)) <= ways
    assert leaves[32] <= 3 * leaves[16] <= 9 * leaves[8]
    assert leaves[32] < 32 * 32 / 2


# Answers


def rows_of(name: str, ids: range, draw: random.Random) -> list[tuple[object, ...]]:
    made = _bodies.MADE[name](ids, 6, draw.randrange(10_000))
    return [tuple(row.values()) for row in made.to_pylist()]


def batches(seed: int) -> Iterator[dict[str, Bag]]:
    """Random change sets of the tables: rows come, go, and are replaced."""
    draw = random.Random(seed)
    there: dict[str, dict[object, tuple[object, ...]]] = {name: {} for name in _bodies.TABLES}
    for number in range(5):
        found: dict[str, Bag] = {}
        for name in _bodies.TABLES:
            if number and draw.random() < 0.4:
                continue
            delta: Bag = Counter()
            for row in rows_of(name, range(1, 7), draw):
                if draw.random() < 0.5:
                    old = there[name].pop(row[0], None)
                    if old is not None:
                        delta[old] -= 1
                    if draw.random() < 0.7:
                        there[name][row[0]] = row
                        delta[row] += 1
            found[name] = Counter({row: weight for row, weight in delta.items() if weight})
        yield {name: delta for name, delta in found.items() if delta}


def change_of(block: Block, state: Mapping[str, Bag], deltas: Mapping[str, Bag]) -> Bag | None:
    """The change of a block's relation, by its plan and stages."""
    changed = inputs(block) & deltas.keys()
    maintenance = Maintenance(Names(prefix="_m"), changed, Estimates())
    change = maintenance.plan(block)
    if change is None:
        return None
    known = dict(deltas)
    for stage in maintenance.stages:
        known[stage.relation] = evaluate(stage.node, state, known)
    found = evaluate(change, state, known)
    assert isinstance(found, Counter)
    return found


CTES = """
t AS (SELECT order_id, SUM(amount) AS n, COUNT(*) AS k FROM raw_payments GROUP BY order_id),
e AS (SELECT o.id, o.customer, o.product, o.quantity, t.n, t.k, p.category FROM raw_orders o
  LEFT JOIN t ON o.id = t.order_id LEFT JOIN raw_products p ON o.product = p.id
  LEFT JOIN raw_customers c ON o.customer = c.id)
"""
VIEWS = {
    "5 kB": _bodies.body(5 * KB),
    "1 kB": _bodies.body(1 * KB),
    "self-join": _bodies.self_join(9),
    "star with several keys": """
        SELECT o.id, c.name, p.title, t.amount, u.credit FROM raw_orders o
        LEFT JOIN raw_customers c ON o.customer = c.id
        LEFT JOIN raw_products p ON o.product = p.id AND p.cost > 5
        LEFT JOIN raw_payments t ON o.id = t.order_id
        LEFT JOIN raw_customers u ON o.customer = u.id AND o.quantity > 3""",
    "snowflake": """
        SELECT t.id, o.quantity, c.name, p.title FROM raw_payments t
        LEFT JOIN raw_orders o ON t.order_id = o.id
        LEFT JOIN raw_customers c ON o.customer = c.id
        LEFT JOIN raw_products p ON o.product = p.id""",
    "chain of tables": """
        SELECT a.id, b.quantity, d.title FROM raw_payments a JOIN raw_orders b ON a.order_id = b.id
        JOIN raw_customers c ON b.customer = c.id JOIN raw_products d ON b.product = d.id
        JOIN raw_payments e ON e.order_id = b.id JOIN raw_orders f ON f.customer = c.id
        JOIN raw_products g ON f.product = g.id""",
    "shared": f"""
        WITH {CTES} SELECT a.id, a.n, b.k, b.category FROM e a JOIN e b ON a.customer = b.customer
        UNION ALL SELECT id, n, k, category FROM e WHERE quantity > 4
        UNION ALL SELECT order_id, n, k, 'x' FROM t
        UNION ALL SELECT customer, SUM(n), COUNT(*), 'y' FROM e GROUP BY customer""",
    "window over what is shared": f"""
        WITH {CTES}, w AS (SELECT e.id, e.customer, e.n,
          ROW_NUMBER() OVER (PARTITION BY e.customer ORDER BY e.quantity DESC, e.id) AS place
          FROM e)
        SELECT c.id, w.n, x.n AS m, z.id AS other FROM raw_customers c
        LEFT JOIN w ON c.id = w.customer AND w.place = 1
        LEFT JOIN w x ON c.id = x.customer AND x.place = 2
        LEFT JOIN e z ON c.id = z.customer""",
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("seed", range(3))
def test_changes_of_shared_and_split_plans_are_right(name: str, seed: int) -> None:
    """S1, S5: every relation is what its own plan computes over the tables as they then are."""
    blocks, output = _bodies.Types().lowered(VIEWS[name])
    whole = parse_query(VIEWS[name], catalog_of(_bodies.columns(), {})).node
    state: dict[str, Bag] = {table: bag([]) for table in _bodies.TABLES}
    maintenance = Maintenance(Names(prefix="_m"), frozenset(), Estimates())
    for block in blocks:
        found = evaluate(maintenance.whole(block), state)
        assert isinstance(found, Counter)
        state[block.relation] = found
    for batch in batches(seed):
        deltas = dict(batch)
        for block in blocks:
            moved = change_of(block, state, deltas)
            if moved:
                deltas[block.relation] = moved
        for relation, delta in deltas.items():
            state[relation] = plus(state[relation], delta)
        for block in blocks:
            assert state[block.relation] == evaluate(maintenance.whole(block), state)
        assert evaluate(output, state) == evaluate(whole, state)


# Recomputing


def test_only_large_plans_over_few_rows_are_recomputed() -> None:
    """S6: a plan of few operators is never worth it; the larger it is, the more rows are."""
    assert rows_to_recompute(incremental=100, recompute=1) == 0
    assert rows_to_recompute(incremental=200, recompute=300) == 0
    few, many = rows_to_recompute(300, 100), rows_to_recompute(900, 100)
    assert 0 < few < many


def test_a_date_is_a_date() -> None:
    """The rows of the bodies have the types that their tables declare."""
    [customer] = rows_of("raw_customers", range(1, 2), random.Random(1))
    assert isinstance(customer[-1], datetime.date)
    assert any(isinstance(n, Window) for b in lowered(VIEWS["5 kB"]) for n in walk(b.input))  # type: ignore[union-attr]
