"""Views as a dbt project has them: one long WITH over small tables, of any length.

    staging    renames, casts, defaults
    joined     orders with their customers and products
    marts      per topic: CASE ladders, groups, the latest row of each customer, unions
    last       one wide SELECT that joins every mart to the customers

The text depends on its length alone, and so do the rows on their number.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from stepwell.errors import ensure
from stepwell.execution.local.expressions import ExpressionEvaluator, Value, arrow_of
from stepwell.plan.lower import Lowering
from stepwell.plan.nodes import Aggregate, Node, Project, Union, Window, children
from stepwell.plan.numbers import decimal_text, decimal_width, total_width
from stepwell.plan.program import Block
from stepwell.plan.types import stored_type
from stepwell.plan.typing import Typing
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query
from stepwell.sql.statements import Table, parse_statements
from stepwell.text import Source

SCHEMA = """
CREATE TABLE raw_customers (id BIGINT NOT NULL PRIMARY KEY, name STRING, region STRING,
  segment STRING, credit DECIMAL(12,2), since DATE);
CREATE TABLE raw_orders (id BIGINT NOT NULL PRIMARY KEY, customer BIGINT, product BIGINT,
  status STRING, quantity INT, price DECIMAL(12,2), placed DATE);
CREATE TABLE raw_payments (id BIGINT NOT NULL PRIMARY KEY, order_id BIGINT, method STRING,
  amount DECIMAL(12,2), paid DATE);
CREATE TABLE raw_products (id BIGINT NOT NULL PRIMARY KEY, title STRING, category STRING,
  cost DECIMAL(12,2));
"""
TABLES = ("raw_customers", "raw_orders", "raw_payments", "raw_products")
TOPICS = ("web", "shop", "phone", "partner", "export")

STAGING = """
stg_customers AS (
  SELECT CAST(id AS BIGINT) AS customer_id, COALESCE(name, 'unknown') AS customer_name,
    COALESCE(region, 'none') AS region, segment, CAST(credit AS DECIMAL(14,2)) AS credit,
    since AS customer_since
  FROM raw_customers
),
stg_orders AS (
  SELECT id AS order_id, customer AS customer_id, product AS product_id,
    COALESCE(status, 'open') AS status, quantity, price AS unit_price, placed AS ordered_on
  FROM raw_orders
  WHERE quantity > 0
),
stg_payments AS (
  SELECT id AS payment_id, order_id, COALESCE(method, 'cash') AS method,
    COALESCE(amount, 0) AS amount, paid AS paid_on
  FROM raw_payments
)"""
JOINED = """
stg_products AS (
  SELECT id AS product_id, COALESCE(title, 'untitled') AS title, category,
    CAST(cost AS DECIMAL(14,2)) AS cost
  FROM raw_products
),
order_payments AS (
  SELECT order_id, SUM(amount) AS paid_amount, COUNT(*) AS payments,
    SUM(CASE WHEN method = 'card' THEN amount ELSE 0 END) AS card_amount
  FROM stg_payments
  GROUP BY order_id
),
orders_enriched AS (
  SELECT o.order_id, o.customer_id, o.status, o.quantity, o.unit_price, o.ordered_on,
    p.title, p.category, p.cost, c.region, c.segment,
    COALESCE(t.paid_amount, 0) AS paid_amount, COALESCE(t.card_amount, 0) AS card_amount,
    o.quantity * o.unit_price AS gross
  FROM stg_orders o
  JOIN stg_products p ON o.product_id = p.product_id
  JOIN stg_customers c ON o.customer_id = c.customer_id
  LEFT JOIN order_payments t ON o.order_id = t.order_id
)"""


def body(length: int) -> str:
    """A SELECT of about so many characters, and at least one mart."""
    parts = [STAGING, JOINED] if length >= 2_000 else [STAGING]
    source = "orders_enriched" if length >= 2_000 else "stg_orders"
    makers: list[Callable[[int, str], str]] = [_sums, _latest]
    if length >= 2_000:
        makers = [_sums, _latest, _events]
    marts: list[str] = []
    number = 0
    text = ""
    while not marts or len(text) < length:
        marts.append(makers[number % len(makers)](number, source))
        number += 1
        text = _whole(parts, marts)
    return text


def _whole(parts: list[str], marts: list[str]) -> str:
    count = len(marts)
    columns = ", ".join(
        f"m{i}.a AS mart_{i}_a, COALESCE(m{i}.b, 0) AS mart_{i}_b" for i in range(count)
    )
    joins = "\n".join(
        f"  LEFT JOIN mart_{i} m{i} ON c.customer_id = m{i}.customer_id" for i in range(count)
    )
    text = "WITH" + ",".join([*parts, *marts])
    return (
        f"{text}\nSELECT c.customer_id, c.customer_name, c.region, c.segment, {columns}\n"
        f"  FROM stg_customers c\n{joins}"
    )


def _sums(number: int, source: str) -> str:
    value = "gross" if source == "orders_enriched" else "quantity * unit_price"
    return f"""
mart_{number} AS (
  SELECT customer_id,
    SUM(CASE WHEN quantity > {3 + number} THEN 3 WHEN quantity > 2 THEN 2 ELSE 1 END) AS a,
    SUM(CASE WHEN status = 'open' THEN {value} ELSE 0 END) AS b,
    COUNT(*) AS orders, MAX(ordered_on) AS last_on
  FROM {source}
  WHERE status <> '{TOPICS[number % len(TOPICS)]}'
  GROUP BY customer_id
)"""


def _latest(number: int, source: str) -> str:
    return f"""
ranked_{number} AS (
  SELECT customer_id, order_id, quantity, status, ordered_on,
    ROW_NUMBER() OVER (PARTITION BY customer_id ORDER BY ordered_on DESC, order_id) AS place
  FROM {source}
  WHERE quantity < {90 + number}
),
mart_{number} AS (
  SELECT customer_id, CASE WHEN status = 'paid' THEN 'done' WHEN status = 'open' THEN 'waiting'
    ELSE status END AS a, CAST(quantity AS BIGINT) AS b
  FROM ranked_{number}
  WHERE place = 1
)"""


def _events(number: int, source: str) -> str:
    return f"""
events_{number} AS (
  SELECT customer_id, ordered_on AS happened_on, CAST(quantity AS BIGINT) AS weight
  FROM {source}
  WHERE category = 'c{number % 5}'
  UNION ALL
  SELECT o.customer_id, p.paid_on AS happened_on, CAST({number} AS BIGINT) AS weight
  FROM stg_payments p
  JOIN stg_orders o ON p.order_id = o.order_id
),
mart_{number} AS (
  SELECT customer_id, MAX(happened_on) AS a, SUM(weight) AS b
  FROM events_{number}
  GROUP BY customer_id
)"""


def self_join(ways: int) -> str:
    """The orders joined with themselves so many times."""
    columns = ", ".join(f"r{i}.quantity AS q{i}" for i in range(ways))
    joins = "\n".join(f"JOIN raw_orders r{i} ON r{i - 1}.id = r{i}.id" for i in range(1, ways))
    return f"SELECT r0.id AS id, {columns}\nFROM raw_orders r0\n{joins}"


def rows(count: int, seed: int = 1) -> dict[str, pa.Table]:
    """Rows of every table, each referring to the others."""
    return {name: made(range(1, count + 1), count, seed) for name, made in MADE.items()}


def _customers(ids: range, count: int, seed: int) -> pa.Table:
    draw = random.Random(seed)
    return pa.Table.from_pylist(
        [
            {
                "id": i,
                "name": draw.choice([None, f"customer {i}"]),
                "region": draw.choice(["north", "south", None]),
                "segment": draw.choice(["a", "b", "c"]),
                "credit": Decimal(draw.randrange(100_000)) / 100,
                "since": _day(draw),
            }
            for i in ids
        ]
    )


def _orders(ids: range, count: int, seed: int) -> pa.Table:
    draw = random.Random(seed + 1)
    return pa.Table.from_pylist(
        [
            {
                "id": i,
                "customer": draw.randint(1, count),
                "product": draw.randint(1, count),
                "status": draw.choice([None, "open", "paid", "web", "shop"]),
                "quantity": draw.randint(0, 12),
                "price": Decimal(draw.randrange(10_000)) / 100,
                "placed": _day(draw),
            }
            for i in ids
        ]
    )


def _payments(ids: range, count: int, seed: int) -> pa.Table:
    draw = random.Random(seed + 2)
    return pa.Table.from_pylist(
        [
            {
                "id": i,
                "order_id": draw.randint(1, count),
                "method": draw.choice([None, "card", "cash"]),
                "amount": Decimal(draw.randrange(10_000)) / 100,
                "paid": _day(draw),
            }
            for i in ids
        ]
    )


def _products(ids: range, count: int, seed: int) -> pa.Table:
    draw = random.Random(seed + 3)
    return pa.Table.from_pylist(
        [
            {
                "id": i,
                "title": draw.choice([None, f"product {i}"]),
                "category": f"c{draw.randrange(5)}",
                "cost": Decimal(draw.randrange(5_000)) / 100,
            }
            for i in ids
        ]
    )


def _day(draw: random.Random) -> datetime.date:
    return datetime.date(2026, 1, 1) + datetime.timedelta(days=draw.randrange(300))


MADE = dict(zip(TABLES, (_customers, _orders, _payments, _products), strict=True))


class Types:
    """The types of the columns of plans over these tables, as Spark would tell them."""

    def __init__(self) -> None:
        statements = parse_statements(Source("bodies.sql", SCHEMA))
        self.known = {
            table.name: tuple(stored_type(column.type) for column in table.columns)
            for table in statements
            if isinstance(table, Table)
        }
        """By relation; those of the blocks of a view are added while it is lowered."""
        self._evaluator = ExpressionEvaluator(lambda sql: None)
        self._typing = Typing(lambda name: self.known[name], self._asked)

    def lowered(self, text: str, name: str = "v") -> tuple[tuple[Block, ...], Node]:
        """The blocks and the output of a view."""
        parsed = parse_query(text, catalog_of(columns(), {}), share=True)
        lowering: Lowering

        def types(node: Node) -> tuple[str, ...]:
            for block in lowering.blocks:
                self.known[block.relation] = tuple(field.type for field in block.fields)
            return self._typing.of(node)

        unique = dict.fromkeys(TABLES, (0,))
        lowering = Lowering(
            name, parsed.names, types, ansi=True, unique=unique, shared=parsed.shared
        )
        output = lowering.view(parsed.node)
        types(output)
        return tuple(lowering.blocks), output

    def of(self, node: Node) -> tuple[str, ...]:
        return self._typing.of(node)

    def _asked(self, node: Node, inputs: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        if isinstance(node, Union):
            return inputs[0]
        ensure(isinstance(node, Project | Aggregate | Window), "the bodies have nothing else")
        items = node.items if isinstance(node, Project) else node.calls  # type: ignore[union-attr]
        below = dict(zip(children(node)[0].columns, inputs[0], strict=True))
        made = tuple(self._expression(expr.tree, below) for _, expr in items)
        return (*inputs[0], *made) if isinstance(node, Window) else made

    def _expression(self, tree: exp.Expr, types: Mapping[str, str]) -> str:
        match tree:
            case exp.Coalesce():
                return self._expression(tree.this, types)
            case exp.Cast():
                return stored_type(tree.to.sql("spark").lower())
            case exp.Window() | exp.RowNumber():
                return "int"
            case exp.Count():
                return "bigint"
            case exp.Sum():
                inside = self._expression(tree.this, types)
                width = decimal_width(inside)
                return decimal_text(total_width(width)) if width else "bigint"
            case exp.Max():
                return self._expression(tree.this, types)
            case exp.Case():
                branches = [branch.args["true"] for branch in tree.args["ifs"]]
                found = [self._expression(b, types) for b in (*branches, tree.args["default"])]
                return next(kind for kind in found if kind != "void")
            case exp.Column():
                return types[tree.name]
            case exp.Null():
                return "void"
        values = {n: Value(pa.array([], arrow_of(t)), t) for n, t in types.items()}
        return self._evaluator.type_of(tree, values)


def columns() -> dict[str, list[str]]:
    """The columns of every table."""
    statements = parse_statements(Source("bodies.sql", SCHEMA))
    return {t.name: [c.name for c in t.columns] for t in statements if isinstance(t, Table)}
