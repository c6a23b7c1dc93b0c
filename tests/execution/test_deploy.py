"""Changing a pipeline on Spark: fresh views are computed from runs, the others keep theirs."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.plan import fingerprint
from stepwell.deploy.program import as_deployed, identified, program_json, read_program
from stepwell.deploy.project import load_project
from stepwell.deploy.resources import resources_of
from stepwell.deploy.serving import RunningPipeline
from stepwell.execution.spark.compiler import Analysed, Compiler
from stepwell.execution.spark.executor import SparkExecutor
from stepwell.plan.program import Program
from stepwell.sql.statements import MaterializedView, View
from tests.execution.deploying import SparkProject

pytestmark = pytest.mark.spark
# A source and a sink may be called as a table and a view are.
YML = """\
name: orders
store: ./state
sources:
  orders: {table: orders, type: files, path: data/*.json, format: json}
sinks:
  revenue: {view: revenue, type: files, path: out, format: json}
"""
SQL = """\
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE TABLE people (name STRING PRIMARY KEY, city STRING);
CREATE VIEW big AS SELECT * FROM orders WHERE amount > 10;
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW cities AS
  SELECT p.city, COUNT(*) AS n, MAX(o.amount) AS top
  FROM orders o JOIN people p ON o.customer = p.name GROUP BY p.city;
CREATE MATERIALIZED VIEW everything AS SELECT COUNT(*) AS n FROM orders;
"""
CHANGED = (
    SQL.replace("amount > 10", "amount > 20")
    .replace("SUM(amount) AS total", "CAST(MIN(amount) AS DECIMAL(22,2)) AS total")
    .replace("city STRING)", "city STRING, zip INT DEFAULT 7)")
    + """
CREATE MATERIALIZED VIEW ranked AS
  SELECT id, RANK() OVER (PARTITION BY customer ORDER BY amount DESC) AS place FROM big;
CREATE MATERIALIZED VIEW top AS SELECT customer, total FROM revenue ORDER BY total DESC LIMIT 2;
CREATE MATERIALIZED VIEW zips AS SELECT zip, COUNT(*) AS n FROM people GROUP BY zip;
"""
)
NAMES = ("ada", "bob", "eve", "sue", "tom")


class Lab(SparkProject):
    yml = YML

    def check(self, pipeline: ProjectPipeline, *views: str) -> None:
        """Every view is what Spark answers for its query over the tables."""
        executor = pipeline._session.state.executor
        assert isinstance(executor, SparkExecutor)
        for view in views:
            found = Counter(map(repr, executor.read(view).to_pylist()))
            assert found == Counter(map(repr, executor._views.recompute(view).to_pylist())), view


def order(id: int) -> dict[str, object]:
    return {"id": id, "customer": NAMES[id % 5], "amount": f"{id * 7 % 40}.50"}


def test_a_changed_project_comes_out_as_spark_would_compute_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D11: new, changed and untouched views, hidden relations, columns, and what comes after."""
    lab = Lab(tmp_path / "project", spark)
    lab.write(SQL)
    assert not lab.deploy().failed
    with lab.open() as pipeline:
        pipeline.push("orders", [order(id) for id in range(40)])
        pipeline.push("people", [{"name": n, "city": n[0]} for n in NAMES])
        pipeline.push("orders", delete=[{"id": 3}])
        pipeline.run(once=True)
    before = {run.path for run in lab.manifest().runs if run.relation.startswith("everything")}
    lab.write(CHANGED)
    done = lab.deploy()
    assert not done.failed
    actions = {step.key: step.action.value for step in done.plan.changes}
    assert "view.everything" not in actions
    assert actions["view.revenue"] == "rebuild"
    assert actions["view.cities"] == "rebind", "it does not read the column that is new"
    after = {run.path for run in lab.manifest().runs if run.relation.startswith("everything")}
    assert before
    assert before == after, "nobody has touched it"
    views = ("revenue", "cities", "everything", "ranked", "top", "zips")
    with lab.open() as pipeline:
        pipeline.run(once=True)
        lab.check(pipeline, *views)
        assert sum_of(lab.folder / "out") == rows(pipeline, "revenue")
        pipeline.push("orders", [order(id) for id in range(30, 60)])
        pipeline.push("people", [{"name": "ada", "city": "z"}])
        pipeline.push("orders", delete=[{"id": 5}])
        lab.check(pipeline, *views)
        pipeline.run(once=True)
        assert sum_of(lab.folder / "out") == rows(pipeline, "revenue")


def test_a_view_that_spark_does_not_take_fails_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: the name of the view and Spark's own words, and the others are there."""
    lab = Lab(tmp_path / "project", spark)
    lab.write(
        SQL
        + "CREATE MATERIALIZED VIEW wrong AS SELECT upper(amount, id, id) AS x FROM orders;\n"
        + "CREATE MATERIALIZED VIEW behind AS SELECT x FROM wrong;\n"
    )
    tried: list[str] = []
    analyse = Compiler.analyse

    def watched(
        self: Compiler, view: View | MaterializedView, relations: Collection[str]
    ) -> Analysed:
        tried.append(view.name)
        return analyse(self, view, relations)

    monkeypatch.setattr(Compiler, "analyse", watched)
    done = lab.deploy()
    assert set(done.failed) == {"view.wrong", "view.behind"}
    assert tried.count("wrong") == 1, "what is wrong is known at once"
    assert "upper" in done.failed["view.wrong"].lower()
    with lab.open() as pipeline:
        pipeline.push("orders", [order(1)])
        lab.check(pipeline, "revenue", "everything")


def test_a_change_to_one_view_is_that_views_work(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: what is not changed is not compiled, nor read, nor written; and is right afterwards."""
    lab = Lab(tmp_path / "project", spark)
    sql = SQL + (
        "CREATE MATERIALIZED VIEW best AS SELECT customer, total FROM revenue WHERE total > 20;\n"
        "CREATE MATERIALIZED VIEW worst AS SELECT MIN(total) AS least FROM revenue;\n"
    )
    lab.write(sql)
    assert not lab.deploy().failed
    with lab.open() as pipeline:
        pipeline.push("orders", [order(id) for id in range(40)])
        pipeline.push("people", [{"name": n, "city": n[0]} for n in NAMES])
        pipeline.run(once=True)
    before = {run.path for run in lab.manifest().runs}
    compiled: list[str] = []
    compile_view = Compiler.compile

    def watched(self: Compiler, view: MaterializedView, *rest: Any) -> Program:
        compiled.append(view.name)
        return compile_view(self, view, *rest)

    monkeypatch.setattr(Compiler, "compile", watched)
    lab.write(sql.replace("MIN(total) AS least", "MAX(total) AS least"))
    assert not lab.deploy().failed
    assert sorted(compiled) == ["revenue", "worst"]
    gone = before - {run.path for run in lab.manifest().runs}
    assert all("worst" in path for path in gone)
    compiled.clear()
    sql = sql.replace("SUM(amount) AS total", "CAST(MAX(amount) AS DECIMAL(22,2)) AS total")
    lab.write(sql)
    assert not lab.deploy().failed
    # Twice the one that a sink follows: what it was, and what it is.
    assert sorted(compiled) == ["best", "revenue", "revenue", "worst"]
    compiled.clear()
    lab.write(
        sql.replace("CREATE MATERIALIZED VIEW everything AS SELECT COUNT(*) AS n FROM orders;", "")
    )
    assert not lab.deploy().failed
    assert not any(run.relation.startswith("everything") for run in lab.manifest().runs)
    views = ("revenue", "cities", "best", "worst")
    with lab.open() as pipeline:
        assert sorted(set(compiled) & set(views)) == sorted(views)
        pipeline.run(once=True)
        lab.check(pipeline, *views)
        assert sum_of(lab.folder / "out") == rows(pipeline, "revenue")
        pipeline.push("orders", [order(id) for id in range(30, 60)])
        pipeline.push("people", [{"name": "ada", "city": "z"}])
        lab.check(pipeline, *views)


RATES = (
    "CREATE MATERIALIZED VIEW rates AS SELECT * FROM VALUES ('EUR', 1), ('USD', 2) AS r (c, x);\n"
)


def test_what_is_put_aside_is_there_afterwards(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: views with rows over no rows, other spellings, and views that are stored no more."""
    lab = Lab(tmp_path / "project", spark)
    lab.write(SQL + RATES)
    assert not lab.deploy().failed
    lab.write(SQL + RATES + "CREATE MATERIALIZED VIEW some AS SELECT COUNT(*) AS n FROM people;\n")
    assert not lab.deploy().failed, "before anything was pushed"
    more = "CREATE MATERIALIZED VIEW late AS SELECT MAX(amount) AS top FROM orders;\n"
    with lab.open() as pipeline:
        assert pipeline.table("rates").num_rows == 2
        assert pipeline.table("some").to_pylist() == [{"n": 0}]
        pipeline.push("orders", [order(id) for id in range(20)])
        pipeline.run(once=True)
    for sql in (
        SQL.replace("VIEW everything", "VIEW Everything") + RATES,
        SQL.replace("VIEW everything", "VIEW Everything") + RATES + more,
        SQL.replace("MATERIALIZED VIEW everything", "VIEW everything") + RATES + more,
        SQL.replace("TABLE people", "TABLE People") + RATES.replace("EUR", "CHF") + more,
    ):
        lab.write(sql)
        assert not lab.deploy().failed
        with lab.open() as pipeline:
            assert pipeline.query("SELECT n FROM everything").to_pylist() == [{"n": 20}]
            assert pipeline.table("rates").num_rows == 2
            assert sum(rows(pipeline, "revenue").values()) == 5
            pipeline.push("orders", [order(3)])
            stored = [view for view in ("revenue", "late") if view in sql]
            lab.check(pipeline, *stored)


def test_a_view_that_is_not_stored_is_asked_of_spark_as_well(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D8: a plain view fails alone, and so does one over a view that has other columns now."""
    lab = Lab(tmp_path / "project", spark)
    over = "CREATE VIEW over AS SELECT n + 1 AS m FROM everything;\n"
    lab.write(SQL + over)
    assert not lab.deploy().failed
    with lab.open() as pipeline:
        pipeline.push("orders", [order(id) for id in range(20)])
    lab.write(SQL + over + "CREATE VIEW wrong AS SELECT sha2(array(id), 256) AS x FROM orders;\n")
    assert set(lab.deploy().failed) == {"view.wrong"}
    lab.write(
        SQL.replace("COUNT(*) AS n FROM orders", "sequence(1L, COUNT(*)) AS n FROM orders") + over
    )
    assert set(lab.deploy().failed) == {"view.over", "view.everything"}
    with lab.open() as pipeline:
        assert pipeline.query("SELECT m FROM over").to_pylist() == [{"m": 21}]


def rows(pipeline: ProjectPipeline, view: str) -> Counter[tuple[str, ...]]:
    found = pipeline.table(view).to_pylist()
    return Counter(tuple(str(value) for value in row.values()) for row in found)


def sum_of(folder: Path) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for part in sorted(folder.glob("*/part.json")):
        for line in part.read_text(encoding="utf-8").splitlines():
            row = json.loads(line, parse_float=str)
            found[tuple(str(v) for name, v in row.items() if name != "_w")] += row["_w"]
    return +found


def test_a_shadow_build_runs_while_spark_continues_with_transactions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D11: two executors at work in one Spark, in two threads, neither in the other's way."""
    lab = Lab(tmp_path / "project", spark)
    lab.write(SQL)
    lab.deploy()
    project = as_deployed(load_project(lab.folder, lab.env), lab.manifest().program)
    answers: list[dict[str, Any]] = []
    with RunningPipeline(project, lab.env, spark=spark) as pipeline:
        pipeline.push("orders", [order(id) for id in range(40)])
        changed = CHANGED.replace(", zip INT DEFAULT 7", "")
        lab.write(changed.replace("SELECT zip,", "SELECT city,").replace("BY zip", "BY city"))
        manifest = lab.manifest()
        deployed, executor = read_program(manifest.program, "")
        wanted = resources_of(load_project(lab.folder, lab.env))
        program = program_json(identified(deployed, wanted, manifest.lineage, 2), executor)
        before = fingerprint(deployed, executor)
        thread = threading.Thread(target=lambda: answers.append(pipeline.change(program, before)))
        thread.start()
        pushed = 40
        while thread.is_alive():
            pipeline.push("orders", [order(pushed)])
            pipeline.push("people", [{"name": NAMES[pushed % 5], "city": f"{pushed % 3}"}])
            pushed += 1
        thread.join()
        assert answers[0]["failed"] == {}
        views = ("revenue", "cities", "everything", "ranked", "top", "zips")
        lab.check(pipeline, *views)
        pipeline.push("orders", [order(id) for id in range(10, 90)])
        lab.check(pipeline, *views)
        pipeline.run(once=True)
        assert sum_of(lab.folder / "out") == rows(pipeline, "revenue")
    assert pushed > 40
