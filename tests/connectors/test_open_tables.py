"""A view as a table for everyone: other engines read what sinks write, while the pipeline runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.connectors.killed import open_pipeline

SQL = """
CREATE TABLE sales (id BIGINT PRIMARY KEY, customer STRING, amount BIGINT);
CREATE MATERIALIZED VIEW totals AS
  SELECT customer, COUNT(*) AS n, SUM(amount) AS total FROM sales GROUP BY customer;
"""
CUSTOMERS = 5
FILE_ROWS = 50
FILES = 12
Totals = Mapping[str, tuple[int, int]]
"""By customer: the number of sales, and their sum."""


def write_file(folder: Path, number: int) -> None:
    """Ten sales of each customer, which are one transaction."""
    (folder / "in").mkdir(exist_ok=True)
    first = number * FILE_ROWS
    rows = [{"id": first + i, "customer": f"c{i % CUSTOMERS}", "amount": 2} for i in range(50)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "in" / f".{number:03}").write_text(text)
    (folder / "in" / f".{number:03}").rename(folder / "in" / f"{number:03}.json")


def catalog_at(folder: Path) -> dict[str, str]:
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    return {"type": "sql", "uri": uri, "warehouse": warehouse}


def totals(rows: list[tuple[str, int, int]]) -> Totals:
    return {customer: (n, total) for customer, n, total in rows}


QUERY = "SELECT customer, n, total FROM lake"


def delta_by_arrow(folder: Path) -> Totals:
    found = DeltaTable(folder / "delta").to_pyarrow_table(columns=["customer", "n", "total"])
    return totals([tuple(row.values()) for row in found.to_pylist()])


def delta_by_duckdb(folder: Path) -> Totals:
    with duckdb.connect() as connection:
        connection.register("lake", DeltaTable(folder / "delta").to_pyarrow_dataset())
        return totals(connection.sql(QUERY).fetchall())


def delta_by_polars(folder: Path) -> Totals:
    found = pl.scan_delta(str(folder / "delta")).select("customer", "n", "total")
    return totals(found.collect().rows())


def iceberg_by_arrow(folder: Path) -> Totals:
    found = load_catalog("default", **catalog_at(folder)).load_table("shop.totals").scan()
    return totals([tuple(row.values()) for row in found.to_arrow().to_pylist()])


def iceberg_by_duckdb(folder: Path) -> Totals:
    found = load_catalog("default", **catalog_at(folder)).load_table("shop.totals").scan()
    with duckdb.connect() as connection:
        connection.register("lake", found.to_arrow_batch_reader())
        return totals(connection.sql(QUERY).fetchall())


def iceberg_by_polars(folder: Path) -> Totals:
    table = load_catalog("default", **catalog_at(folder)).load_table("shop.totals")
    return totals(pl.scan_iceberg(table).select("customer", "n", "total").collect().rows())


READERS: Mapping[str, Callable[[Path], Totals]] = {
    reader.__name__: reader
    for reader in (
        *(delta_by_arrow, delta_by_duckdb, delta_by_polars),
        *(iceberg_by_arrow, iceberg_by_duckdb, iceberg_by_polars),
    )
}


def test_every_engine_reads_whole_transactions_while_the_pipeline_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J7: a reader sees the view as it was after a transaction, and never goes back to an earlier
    one; Arrow, DuckDB and Polars read the same rows.
    """
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    sources = {"in": {"table": "sales", "type": "files", "path": "in/*.json", "format": "json"}}
    sources["in"]["settle"] = "0s"
    iceberg = {"identifier": "shop.totals", "catalog": catalog_at(tmp_path)}
    sinks = {
        "lake": {"view": "totals", "type": "delta", "path": "delta", "key": "customer"},
        "ice": {"view": "totals", "type": "iceberg", "key": "customer", **iceberg},
    }
    write_file(tmp_path, 0)
    failed: list[BaseException] = []
    written, read_once = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with open_pipeline(str(tmp_path), SQL, sources, sinks) as pipeline:
                pipeline.run(once=True)
                written.set()
                for number in range(1, FILES):
                    write_file(tmp_path, number)
                    pipeline.run(once=True)
                    if number == FILES // 2:
                        assert read_once.wait(60)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)
        finally:
            written.set()

    running = threading.Thread(target=run)
    running.start()
    seen: dict[str, list[int]] = {name: [] for name in READERS}
    try:
        assert written.wait(60)
        while running.is_alive() and not failed:
            for name, reader in READERS.items():
                seen[name].append(transactions(reader(tmp_path)))
            read_once.set()
    finally:
        read_once.set()
        running.join()
    assert not failed, failed
    expected = {f"c{i}": (10 * FILES, 20 * FILES) for i in range(CUSTOMERS)}
    for name, reader in READERS.items():
        assert reader(tmp_path) == expected, name
        assert seen[name] == sorted(seen[name]), name
        assert 1 <= seen[name][0] < FILES, "it was read while the pipeline ran"


def transactions(found: Totals) -> int:
    """How many transactions a reader sees."""
    ((n, total),) = set(found.values())  # Otherwise, it is a part of a transaction.
    assert (len(found), total) == (CUSTOMERS, 2 * n)
    return n // (FILE_ROWS // CUSTOMERS)
