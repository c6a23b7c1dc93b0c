"""`stepwell.open`: by project, by the address of a store, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.deploy.open import open_pipeline
from stepwell.deploy.project import Project
from stepwell.errors import ConfigError, FencedError, InvalidError
from stepwell.execution.executor import ExecutorFactory
from stepwell.execution.reference.executor import ReferenceExecutor
from tests.deploy.conftest import YML, Write

ROW = {"id": 1, "customer": "ada", "amount": 5}


def test_the_snippet_of_the_design_works(write: Write) -> None:
    folder = write()
    (folder / "data").mkdir()
    (folder / "data" / "a.json").write_text(json.dumps({**ROW, "id": 2}) + "\n")
    with stepwell.open(folder) as pipeline:
        assert pipeline.push("orders", [ROW]) == 1
        with pipeline.transaction() as transaction:
            transaction.push("orders", [{**ROW, "id": 3}])
            transaction.push("orders", [{**ROW, "id": 4}])
        pipeline.run(once=True)
        rows = pipeline.query("SELECT customer, total FROM revenue")
        assert rows.to_pandas()["total"].tolist() == [20]
        assert (rows.transaction, rows.num_rows) == (3, 1)
    with stepwell.open(str(folder)) as again:
        assert again.transaction_number == 3, "the first opening created it, this one found it"


def test_importing_stepwell_loads_nothing_heavy() -> None:
    code = (
        "import sys, stepwell\n"
        "heavy = {'pyarrow', 'pyspark', 'yaml', 'sqlglot', 'typer'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_what_is_not_a_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no stepwell\.yml"):
        stepwell.open(tmp_path)
    with pytest.raises(InvalidError, match="the address of a store") as caught:
        stepwell.open("s3://acme/orders", target="test")
    assert 'store="s3://..."' in str(caught.value.hint)
    with pytest.raises(InvalidError, match="there is no pipeline in file:///") as caught:
        stepwell.open((tmp_path / "nothing").as_uri())
    assert "deploy" in str(caught.value.hint)
    assert not (tmp_path / "nothing").exists()


def test_what_is_deployed_is_opened_by_the_address_of_its_store(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """J1: a store knows its tables, views, sources and sinks; the folder they came from may go."""
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    folder = write(YML.replace("path: out,", "path: '${env:OUT}',"))
    (folder / "data").mkdir()
    (folder / "data" / "a.json").write_text(json.dumps(ROW) + "\n")
    with stepwell.open(folder) as pipeline:
        pipeline.run(once=True)
    for file in folder.glob("*.*"):
        file.unlink()
    monkeypatch.chdir(folder)
    (folder / "data" / "b.json").write_text(json.dumps({**ROW, "id": 2}) + "\n")
    with stepwell.open((folder / "state").as_uri()) as pipeline:
        pipeline.push("orders", [{**ROW, "id": 3}])
        pipeline.run(once=True)
        assert pipeline.query("SELECT total FROM revenue").to_pylist() == [{"total": 15}]
        assert pipeline.transaction_number == 3
    parts = sorted((tmp_path / "out").glob("*/part.json"))
    assert len(parts) == 3, "the sink goes on where it was"


def test_opened_by_its_address_a_pipeline_discards_nothing(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention is set in the project, and not in the store."""
    folder = write(YML + "checkpoint: {keep: 6}\n")
    monkeypatch.chdir(folder)
    for number in range(6):
        with stepwell.open(folder) as pipeline:
            pipeline.push("orders", [{**ROW, "id": number}])
    with stepwell.open((folder / "state").as_uri()) as pipeline:
        pipeline.push("orders", [{**ROW, "id": 9}])
    with stepwell.open(folder) as pipeline:
        assert len(pipeline.checkpoints()) >= 6


def test_variables_are_those_of_the_project(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """D9: a secret is stored by its name, which only the project knows the meaning of."""
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    text = YML.replace("path: out,", "path: '${var:place}',")
    folder = write(text + "variables:\n  place: '${env:OUT}'\n")
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
    with pytest.raises(InvalidError, match="cannot be opened by its address") as caught:
        stepwell.open((folder / "state").as_uri())
    assert "through its project" in str(caught.value.hint)


def test_a_journal_in_a_store_of_its_own_is_found_by_the_project_only(write: Write) -> None:
    """C3: opened by its address, a closed pipeline would start another journal next to its
    state."""
    folder = write(YML + "journal: {store: ./log}\n")
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
    with pytest.raises(InvalidError, match=r"the journal of .* is not in") as caught:
        stepwell.open((folder / "state").as_uri())
    assert "through its project" in str(caught.value.hint)
    with stepwell.open(folder) as pipeline:
        assert pipeline.push("orders", [{**ROW, "id": 2}]) == 2


def test_a_target_and_a_store_can_be_given(write: Write, tmp_path: Path) -> None:
    folder = write(YML + "targets: {test: {checkpoint: {keep: 3}}}\n")
    with stepwell.open(folder, target="test", store=str(tmp_path / "other")) as pipeline:
        assert pipeline.store.uri == f"file://{tmp_path}/other"
    assert not (folder / "state").exists()


def test_any_executor_can_be_given(write: Write) -> None:
    """The seam: a project says which executor, tests may say another."""
    given: list[Any] = []

    def make(project: Project, spark: Any) -> ExecutorFactory:
        given.append((project.name, spark))
        return lambda store, env: ReferenceExecutor(project.sql, store, env)

    with open_pipeline(write(), spark="a session", executor=make):
        assert given == [("orders", "a session")]


def test_a_fenced_pipeline_is_left_without_a_second_error(write: Write) -> None:
    """What matters is told once: the error of the call that found out."""
    folder = write()
    with pytest.raises(FencedError) as caught, stepwell.open(folder) as first:
        with stepwell.open(folder) as second:
            second.push("orders", [ROW])
        first.push("orders", [{**ROW, "id": 2}])
    assert "was not written" in caught.value.message


def test_explain_needs_an_executor_that_has_something_to_explain(write: Write) -> None:
    with stepwell.open(write()) as pipeline:
        with pytest.raises(InvalidError, match="nothing to explain"):
            pipeline.explain("revenue")
        with pytest.raises(ConfigError, match="big is a view that is not stored"):
            pipeline.explain("big")
