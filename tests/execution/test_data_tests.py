"""Data tests on Spark: their views are incremental, and hold what Python calls a violation."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from stepwell.deploy.project import load_project
from stepwell.env import SystemEnv
from stepwell.execution.spark.views import Change, Views

YML = """\
name: orders
store: ./state
tests:
  known: {table: orders, not_null: [customer, amount]}
  channels: {view: shown, accepted_values: {channel: [web, shop]}, on_violation: dead_letter}
  once: {view: shown, unique: [customer, channel], on_violation: dead_letter}
  negative: {query: SELECT customer FROM totals WHERE total < 0, on_violation: fail}
"""
SQL = """\
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, channel STRING, amount BIGINT);
CREATE MATERIALIZED VIEW shown AS SELECT id, customer, channel FROM orders WHERE id > 2;
CREATE MATERIALIZED VIEW totals AS
  SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
"""
Row = tuple[int, str | None, str | None, int | None]


def test_views_of_violations_are_incremental_and_right(spark: SparkSession, tmp_path: Path) -> None:
    """S3, S4: random orders come, change and go; every view is compared after every batch."""
    (tmp_path / "stepwell.yml").write_text(YML, encoding="utf-8")
    (tmp_path / "pipeline.sql").write_text(SQL, encoding="utf-8")
    project = load_project(tmp_path, SystemEnv())
    views = Views.open(spark, project.sql, declared=project.statements)
    for name in ("shown", "shown_unchecked", *(test.violations for test in project.tests)):
        assert views.explain(name).reasons == (), name
    chance = random.Random(7)
    table: dict[int, Row] = {}
    for _ in range(8):
        batch = {
            number: (
                number,
                chance.choice(["ada", "bob", "eve", None]),
                chance.choice(["web", "shop", "fax", None]),
                chance.choice([-5, 1, 9, None]),
            )
            for number in chance.sample(range(12), 4)
        }
        gone = [n for n in chance.sample(range(12), 2) if n in table and n not in batch]
        change = Change(put=_table(list(batch.values())), delete=pa.table({"id": gone}))
        views.apply({"orders": change if gone else Change(put=change.put)})
        table = {n: row for n, row in (table | batch).items() if n not in gone}
        _compare(views, list(table.values()))


def _compare(views: Views, rows: list[Row]) -> None:
    shown = [row[:3] for row in rows if row[0] > 2]
    strange = [row for row in shown if row[2] not in ("web", "shop", None)]
    keys = Counter(row[1:] for row in shown if None not in row[1:])
    repeated = [row for row in shown if keys[row[1:]] > 1]
    totals: dict[str | None, int | None] = {}
    for _, customer, _, amount in rows:
        before = totals.get(customer)
        totals[customer] = before if amount is None else amount + (before or 0)
    assert _read(views, "known_violations") == Counter(row for row in rows if None in row[1::2])
    assert _read(views, "channels_violations") == Counter(strange)
    assert _read(views, "once_violations") == Counter(repeated)
    left = [row for row in shown if row not in strange and row not in repeated]
    assert _read(views, "shown") == Counter(left)
    negative = [(customer,) for customer, total in totals.items() if (total or 0) < 0]
    assert _read(views, "negative_violations") == Counter(negative)


def _read(views: Views, relation: str) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in views.read(relation).to_pylist())


def _table(rows: list[Row]) -> pa.Table:
    ids, customers, channels, amounts = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array(customers, pa.string()),
            "channel": pa.array(channels, pa.string()),
            "amount": pa.array(amounts, pa.int64()),
        }
    )
