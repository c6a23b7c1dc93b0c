"""Spark's errors are shown in the file of the statement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stepwell.deploy.pipeline import make_executor
from stepwell.deploy.program import as_deployed, program_of
from stepwell.deploy.project import load_project
from stepwell.env import SystemEnv
from stepwell.errors import SqlError
from stepwell.store.memory import MemoryStore


@pytest.mark.parametrize("deployed", [False, True])
def test_a_mistake_keeps_its_file_its_line_and_its_caret(
    spark: SparkSession, tmp_path: Path, deployed: bool
) -> None:
    """D10: of several files the place was one in a text that nobody had written."""
    (tmp_path / "stepwell.yml").write_text("name: shop\nstore: ./state\n")
    (tmp_path / "b_tables.sql").write_text("-- one\nCREATE TABLE t (id INT);\n")
    (tmp_path / "a_views.sql").write_text(
        "CREATE MATERIALIZED VIEW fine AS SELECT id FROM t;\n\n"
        "CREATE MATERIALIZED VIEW wrong AS\n  SELECT upper(id, id) AS x FROM t;\n"
    )
    env = SystemEnv()
    project = load_project(tmp_path, env)
    if deployed:
        project = as_deployed(project, program_of(project, "spark"))
    with pytest.raises(SqlError) as raised:
        make_executor(project, spark)(MemoryStore(env), env)
    error = raised.value
    assert (error.file, error.line, error.column) == ("a_views.sql", 4, 10)
    assert "  SELECT upper(id, id) AS x FROM t;\n         ^" in error.message
    elsewhere = replace(project, statements=project.statements[:2])
    make_executor(elsewhere, spark)(MemoryStore(env), env)
