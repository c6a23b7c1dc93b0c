"""A small project that is right, to be changed by tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

YML = """\
name: orders
store: ./state
sources:
  order_files: {table: orders, type: files, path: data/*.json, format: json}
sinks:
  revenue_out: {view: revenue, type: files, path: out, format: json}
"""
SQL = """\
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE VIEW big AS SELECT * FROM orders WHERE amount > 100;
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a project, and give its folder; more files by their names."""

    def written(yml: str = YML, sql: str = SQL, **files: str) -> Path:
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        (folder / "stepwell.yml").write_text(yml, encoding="utf-8")
        (folder / "pipeline.sql").write_text(sql, encoding="utf-8")
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
        return folder

    return written
