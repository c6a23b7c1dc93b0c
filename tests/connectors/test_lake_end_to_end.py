"""A pipeline from a Delta and an Iceberg table to an Iceberg table, killed again and again."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from stepwell.errors import ReplayMismatchError
from tests.connectors.killed import open_pipeline, victims
from tests.connectors.sinks import Place
from tests.connectors.test_end_to_end import expected
from tests.connectors.test_iceberg_source import address

SQL = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount BIGINT);
CREATE TABLE returns (customer STRING, amount BIGINT);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n
  FROM (SELECT customer, amount FROM orders UNION ALL SELECT customer, -amount FROM returns) AS r
  GROUP BY customer;
"""


def orders(chance: random.Random, count: int) -> pa.Table:
    ids = chance.sample(range(200), count)
    rows = [{"id": i, "customer": chance.choice("abc"), "amount": i * 3 % 50} for i in ids]
    return pa.Table.from_pylist(rows)


def feed(folder: Path, returns: Table, chance: random.Random) -> None:
    """A few versions of both tables."""
    table = DeltaTable(folder / "orders")
    merge = table.merge(orders(chance, 60), "t.id = s.id", "s", "t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    table.delete(f"id % 17 = {chance.randrange(17)}")
    table.optimize.compact()
    rows = [{"customer": chance.choice("abc"), "amount": chance.randrange(5)} for _ in range(40)]
    returns.append(pa.Table.from_pylist(rows))
    returns.delete(f"amount = {chance.randrange(5)}")


def test_a_pipeline_that_is_killed_again_and_again_keeps_tables_equal(tmp_path: Path) -> None:
    """Scenario 84, J5, J7: killed anywhere, the sink ends up as the view of both tables."""
    chance = random.Random(3)
    write_deltalake(tmp_path / "orders", orders(chance, 100))
    catalog = load_catalog("default", **address(tmp_path))
    catalog.create_namespace("shop")
    schema = pa.schema([("customer", pa.string()), ("amount", pa.int64())])
    returns = catalog.create_table("shop.returns", schema)
    at = {"catalog": address(tmp_path)}
    sources = {
        "orders": {"table": "orders", "type": "delta", "path": "orders"},
        "returns": {"table": "returns", "type": "iceberg", "identifier": "shop.returns", **at},
    }
    options = {"type": "iceberg", "identifier": "shop.revenue", "key": ["customer"], **at}
    place = Place("iceberg", options, keyed=True)
    sinks = {"out": {"view": "revenue", **options}}
    given = {"folder": str(tmp_path), "sql": SQL, "sources": sources, "sinks": sinks}
    with victims() as process:
        for _ in range(5):
            feed(tmp_path, returns, chance)
            numbers = chance.choice([1, 2, 4])
            process.kill("run", numbers, chance.uniform(0, 0.2), checkpoint_every_s=0.5, **given)
    with open_pipeline(**given) as pipeline:  # type: ignore[arg-type]
        pipeline.run(once=True)
        assert pipeline.deliver()
        view = expected(pipeline.table("revenue").to_pylist())
        held = {name: pipeline.table(name).to_pylist() for name in ("orders", "returns")}
        assert not pipeline.table("orders$errors").num_rows
        assert not pipeline.table("returns$errors").num_rows
    assert counted(held["orders"]) == counted(DeltaTable(tmp_path / "orders").to_pyarrow_table())
    assert counted(held["returns"]) == counted(returns.refresh().scan().to_arrow())
    assert place.content() == view
    assert len(view) == 3


def counted(rows: pa.Table | list[dict[str, object]]) -> Counter[tuple[object, ...]]:
    listed = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return Counter(tuple(sorted(row.items())) for row in listed)


def test_a_file_that_was_vacuumed_before_replay_stops_the_pipeline(tmp_path: Path) -> None:
    """Scenario 86, J5: the source, the version and the way out are named."""
    chance = random.Random(3)
    write_deltalake(tmp_path / "orders", orders(chance, 100))
    sources = {"orders": {"table": "orders", "type": "delta", "path": "orders"}}
    given = {"folder": str(tmp_path), "sql": SQL, "sources": sources, "sinks": {}}
    with victims() as process:
        process.kill("run", 2, 0, checkpoint_every_s=1000, **given)
    table = DeltaTable(tmp_path / "orders")
    table.delete("id >= 0")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(ReplayMismatchError, match="a data file of version 0 is gone") as raised:
        open_pipeline(**given).run(once=True)  # type: ignore[arg-type]
    assert "stepwell checkpoint list" in str(raised.value.hint)
