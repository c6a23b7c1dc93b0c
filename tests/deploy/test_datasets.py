"""The datasets of a project: named as other programs name them, and without credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.deploy.connections import Connection
from stepwell.deploy.datasets import _places, datasets_of
from stepwell.deploy.project import load_project
from stepwell.endpoint.open_lineage import ColumnRead, Dataset
from stepwell.env import SystemEnv
from stepwell.plan.described import DescribedView, describe
from stepwell.plan.explain import Chosen, Explained

YML = """\
name: shop
store: s3://acme/shop
sources:
  order_files: {table: orders, type: files, path: in/*.json, format: json}
  order_topic: {table: orders, type: kafka, brokers: "kafka:9092", topic: [orders, returns]}
sinks:
  revenue_out: {view: revenue, type: delta, path: "s3://acme/tables/revenue"}
"""
SQL = """\
CREATE TABLE orders (Id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount BIGINT);
CREATE TABLE prices (item STRING, price BIGINT);
CREATE VIEW large AS SELECT customer AS who, amount FROM orders WHERE Id > 10;
CREATE MATERIALIZED VIEW revenue AS SELECT who, SUM(amount) AS total FROM large GROUP BY who;
CREATE MATERIALIZED VIEW best AS SELECT MAX(total) AS most FROM revenue;
CREATE MATERIALIZED VIEW now REFRESH POLICY FULL AS SELECT COUNT(*) AS n FROM prices;
"""


def test_every_dataset_is_described(tmp_path: Path) -> None:
    """A view over views leads to the tables, or a change of a column affects less than it says."""
    (tmp_path / "stepwell.yml").write_text(YML)
    (tmp_path / "pipeline.sql").write_text(SQL)
    project = load_project(tmp_path, SystemEnv())
    explained = Explained("revenue", (), (), Chosen((), None))
    revenue = DescribedView("revenue", ("who", "total"), ("string", "bigint"), None, (), explained)
    found = datasets_of(project, describe([revenue], 1))
    files = Dataset("file", f"{tmp_path}/in/*.json")
    topics = Dataset("kafka://kafka:9092", "orders"), Dataset("kafka://kafka:9092", "returns")
    prices = Dataset("s3://acme", "shop/prices")
    assert [item.dataset for item in found.inputs] == [files, *topics, prices]
    outputs = {item.dataset.name: item for item in found.outputs}
    assert list(outputs) == ["shop/revenue", "tables/revenue", "shop/best", "shop/now"]
    view = outputs["shop/revenue"]
    assert [(c.name, c.type, c.passed_on) for c in view.columns] == [
        ("who", "string", True),
        ("total", "bigint", False),
    ]
    every = (files, *topics)
    assert view.columns[0].reads == tuple(ColumnRead(at, "customer") for at in every)
    assert view.columns[1].reads == tuple(ColumnRead(at, "amount") for at in every)
    assert set(view.rows_from) == {ColumnRead(at, c) for at in every for c in ("Id", "customer")}
    assert outputs["tables/revenue"].sink == "revenue_out"
    assert outputs["tables/revenue"].columns == view.columns
    best = outputs["shop/best"].columns
    assert [(c.name, c.type) for c in best] == [("most", None)]
    assert best[0].reads == view.columns[1].reads
    assert not outputs["shop/now"].traced, "only Spark reads its text"


@pytest.mark.parametrize(
    ("type", "options", "expected"),
    [
        (
            "postgres",
            {"dsn": "postgresql://me:secret@db.acme.com:6432/sales", "schema": "out"},
            ("postgres://db.acme.com:6432", "sales.out.v"),
        ),
        (
            "postgres",
            {"dsn": "host=db dbname=sales password='secret'", "table": "log"},
            ("postgres://db:5432", "sales.public.log"),
        ),
        (
            "iceberg",
            {
                "identifier": "sales.orders",
                "catalog": {"uri": "https://me:secret@catalog.acme.com/v1", "token": "secret"},
            },
            ("https://catalog.acme.com:v1", "sales.orders"),
        ),
        ("kafka", {"brokers": ["a", "b:9"], "topic": "t"}, ("kafka://a:9092", "t")),
        ("delta", {"path": "s3://key:secret@acme/x"}, ("s3://acme", "x")),
        ("delta", {"path": "x", "storage": {"key": "secret"}}, ("file", "{folder}/x")),
        ("datagen", {"seed": 1}, ("stepwell", "datagen/named")),
    ],
)
def test_a_name_holds_no_credentials(
    tmp_path: Path, type: str, options: dict[str, object], expected: tuple[str, str]
) -> None:
    """Lineage is shown to everybody in the company."""
    (tmp_path / "stepwell.yml").write_text(YML)
    (tmp_path / "pipeline.sql").write_text(SQL)
    project = load_project(tmp_path, SystemEnv())
    (found,) = _places(Connection("named", "v", type, options), project)
    assert (found.namespace, found.name) == (expected[0], expected[1].format(folder=tmp_path))
    assert "secret" not in str(found)
