"""Dead letters on Spark: those of the reference executor, to the column, also after a replay."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import load_project
from stepwell.errors import RejectedError
from stepwell.testing import ManualEnv, reference_executor

pytestmark = pytest.mark.spark
SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(8,2));
CREATE TABLE clicks (id BIGINT, page STRING);
CREATE MATERIALIZED VIEW visits AS SELECT page, COUNT(*) AS n FROM clicks GROUP BY page;
"""
YML = """\
name: letters
store: ./state
transaction: {max_rows: 3}
checkpoint: {every: 1d}
sources:
  files: {table: orders, type: files, path: "*.json", format: json, changes: insert_delete}
"""
LINES: list[Any] = [
    {"insert": {"id": 1, "customer": "a", "amount": 5}},
    {"delete": {"id": 1}},
    {"delete": {"id": 1, "customer": "again"}},
    {"insert": {"id": "x"}},
    {"delete": {"id": 7}},
]


def filled(folder: Path, spark: SparkSession | None) -> list[Any]:
    """Everything a pipeline can reject, then a crash; what it had, and what replay gives."""
    folder.mkdir()
    (folder / "pipeline.sql").write_text(SQL)
    (folder / "stepwell.yml").write_text(YML)
    (folder / "a.json").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    env = ManualEnv()
    pipeline = ProjectPipeline(load_project(str(folder), env), env, spark=spark)
    pipeline.run(once=True)
    env.advance(60)
    pipeline.push("orders", [{"id": 2}, {"id": None}], delete=[{"id": 8}, {"id": "y"}, {"id": 8}])
    with pytest.raises(RejectedError):
        pipeline.push("clicks", [], delete=[{"id": 1, "page": "/"}])
    env.advance(60)
    with pipeline.transaction() as several:
        several.push("clicks", [{"id": 1, "page": "/"}])
        several.push("clicks", [], delete=[{"id": 1, "page": "/"}, {"id": 1, "page": "/"}])
        several.push("orders", delete=[{"id": 2}, {"id": 2}])
    found = letters(pipeline)
    later = ManualEnv(1)
    later.advance(3600)
    again = ProjectPipeline(load_project(str(folder), later), later, spark=spark)
    assert letters(again) == found
    again.close()
    return found


def letters(pipeline: ProjectPipeline) -> list[Any]:
    start = ManualEnv().now()
    return sorted(
        (table, (row.pop("time") - start) / timedelta(minutes=1), *row.values())
        for table in ("orders", "clicks")
        for row in pipeline.table(f"{table}$errors").to_pylist()
    )


def test_letters_are_those_of_the_reference_executor(tmp_path: Path, spark: SparkSession) -> None:
    """J6, J13: sources, pushes, explicit transactions; bad rows and deletes; before and after."""
    found = filled(tmp_path / "spark", spark)
    with reference_executor():
        assert found == filled(tmp_path / "reference", None)
    missing, absent = "delete of a key that is not there", "delete of a row that is not there"
    invalid = "is not a valid BIGINT"
    row = '{"id":1,"page":"/"}'
    assert found == [
        ("clicks", 1, 4, "push", "delete, row 1", absent, row),
        ("clicks", 2, 5, "push", "delete, row 2", absent, row),
        ("orders", 0, 1, "files", "a.json, line 3", missing, json.dumps(LINES[2])),
        ("orders", 0, 2, "files", "a.json, line 4", f"id: 'x' {invalid}", json.dumps(LINES[3])),
        ("orders", 0, 2, "files", "a.json, line 5", missing, json.dumps(LINES[4])),
        ("orders", 1, 3, "push", "delete, row 1", missing, '{"id":8}'),
        ("orders", 1, 3, "push", "delete, row 2", f"id: 'y' {invalid}", '{"id":"y"}'),
        ("orders", 1, 3, "push", "delete, row 3", missing, '{"id":8}'),
        ("orders", 1, 3, "push", "row 2", "the column id is NULL", '{"id":null}'),
        ("orders", 2, 5, "push", "delete, row 2", missing, '{"id":2}'),
    ]
