"""Where a block runs: decided when it is deployed, stored with the program, read when it is opened.

`tests/workloads` pins the decisions for TPC-H.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stepwell.deploy.explain import OFFLINE, explained
from stepwell.deploy.project import load_project
from stepwell.env import SystemEnv
from stepwell.execution.backend import Fallback
from stepwell.execution.local.support import VERSION
from stepwell.execution.spark.views import Change, Views
from stepwell.manifest.manifest import Manifests
from stepwell.plan.described import Description, describe, read_description
from stepwell.plan.explain import Backends, Chosen, Decided, Explained, Stored
from tests.comparing import difference
from tests.execution.deploying import SparkProject

pytestmark = pytest.mark.spark
YML = "name: orders\nstore: ./state\n"
TABLES = "CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING, amount DECIMAL(12,2));\n"
REVENUE = (
    "CREATE MATERIALIZED VIEW revenue AS SELECT name, SUM(amount) AS s FROM t GROUP BY name;\n"
)
UPPER = "CREATE MATERIALIZED VIEW upper AS SELECT id, reverse(name) AS name FROM t;\n"
REASON = "so the test has decided"


class Lab(SparkProject):
    yml = YML

    def description(self) -> Description:
        return read_description(self.manifest().described, "the manifest")

    def backends(self) -> dict[str, tuple[str, ...]]:
        """For each described view, the backends of its blocks and of its output, as stored."""
        return {
            name: (*(str(b) for b in view.decided.blocks.values()), str(view.decided.shown))
            for name, view in self.description().explained(VERSION).items()
        }

    def decide(self, change: Callable[[Explained], Explained], version: int = VERSION) -> None:
        """Change the stored decisions."""
        views = self.description().views.values()
        text = describe((replace(v, explained=change(v.explained)) for v in views), version)
        store = load_project(self.folder, self.env).open_store(self.env)
        changed = Manifests(store, self.env).amend(lambda m: replace(m, described=text), "decide")
        assert changed.manifest.described == text

    def open_and_push(self) -> tuple[dict[str, str], Mapping[str, Any]]:
        """What an open pipeline says about its views, and the Spark queries for one row."""
        row = self.manifest().transaction + 1
        with self.open() as pipeline:
            shown = {name: str(pipeline.explain(name)) for name in self.description().views}
            pipeline.push("t", [{"id": row, "name": f"n{row}", "amount": None}])
            executor: Any = pipeline._session.state.executor
            queries = executor._views._evaluator.queries
            assert pipeline.table("revenue").num_rows == row
        return shown, queries


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    made = Lab(tmp_path / "project", spark)
    made.write(TABLES + REVENUE + UPPER)
    made.deploy()
    return made


def by_spark(view: Explained) -> Explained:
    """The same view, of which every change is computed by Spark."""

    def block(stored: Stored) -> Stored:
        chosen = tuple(Chosen(c.changed, REASON) for c in stored.backends.chosen)
        return replace(stored, backends=Backends(chosen))

    return replace(view, blocks=tuple(map(block, view.blocks)))


def test_backends_are_decided_when_a_program_is_deployed(lab: Lab) -> None:
    """X3: the commit that records a program also holds the decisions; nothing ran in between."""
    store = load_project(lab.folder, lab.env).open_store(lab.env)
    manifests = Manifests(store, lab.env)
    versions = [manifests.read(number) for number in manifests.ids()]
    for version in versions:
        assert version is not None
        assert (version.manifest.program is None) == (version.manifest.described is None)
    assert lab.backends() == {
        "revenue": ("local", "local"),
        "upper": ("Spark: reverse() has no local kernel", "local"),
    }


def test_a_pipeline_is_opened_with_the_decisions_that_are_stored(lab: Lab) -> None:
    """X3: an open does not decide: what is stored holds, even where it could be decided otherwise.

    `explain` of the open pipeline and of the project that is not open say the same.
    """
    shown, before = lab.open_and_push()
    assert "backend: local" in shown["revenue"]
    lab.decide(by_spark)
    project, names = load_project(lab.folder, SystemEnv()), list(shown)
    offline = dict(zip(names, explained(project, lab.manifest(), names), strict=True))
    shown, queries = lab.open_and_push()
    assert shown["revenue"].count(f"backend: Spark: {REASON}") == 1
    assert offline["revenue"][1]["relations"][0]["backends"][0]["reason"] == REASON
    assert queries > before
    assert lab.backends()["revenue"] == (f"Spark: {REASON}", "local"), "a flush changes nothing"


def test_decisions_of_another_version_are_made_again_and_stored(lab: Lab) -> None:
    """X3: another version of the local backend may be unable to compute what one decided."""
    lab.decide(by_spark, VERSION + 1)
    assert lab.backends() == {}
    project = load_project(lab.folder, SystemEnv())
    (text, document), *_ = explained(project, lab.manifest(), ["revenue"])
    assert text.endswith(OFFLINE), "it is predicted until the pipeline was opened"
    assert document["relations"][0]["backends"][0]["reason"] is None
    shown, _ = lab.open_and_push()
    assert REASON not in shown["revenue"]
    assert lab.backends()["revenue"] == ("local", "local")


def test_decisions_for_other_blocks_are_made_again(lab: Lab) -> None:
    """A view that is compiled otherwise has blocks for which nothing was decided."""
    lab.decide(lambda view: replace(view, blocks=()))
    shown, _ = lab.open_and_push()
    assert "backend: local" in shown["revenue"]


def test_a_deploy_keeps_the_decisions_for_views_that_it_does_not_compile(lab: Lab) -> None:
    """X3: and decides only for the others."""
    lab.open_and_push()
    lab.decide(by_spark)
    lower = UPPER.replace("reverse(", "initcap(").replace("VIEW upper", "VIEW lower")
    lab.write(TABLES + REVENUE + UPPER + lower)
    lab.deploy()
    assert lab.backends() == {
        "revenue": (f"Spark: {REASON}", "local"),
        "upper": (f"Spark: {REASON}", "local"),
        "lower": ("Spark: initcap() has no local kernel", "local"),
    }


def test_a_plan_that_is_refused_against_a_decision_stops_nothing(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong decision is a bug that costs time: Spark computes the plan, and it is reported."""
    views = Views.open(spark, TABLES + UPPER)
    (block,) = views.programs[0].blocks
    local = Backends((Chosen(("t",), None),))
    views.use_decisions({"upper": Decided(Chosen((), None), {block.relation: local})})
    rows = views.read("t")
    inserted = rows.from_pylist([{"id": 1, "name": "ab"}], rows.schema)
    outcome = views.apply({"t": Change(put=inserted)})
    assert outcome.fallbacks_of == {"upper": (Fallback.REFUSED,)}
    assert views.read("upper").to_pylist() == [{"id": 1, "name": "ba"}]
    (record,) = [r for r in caplog.records if r.name == "stepwell.execution"]
    assert "reverse() has no local kernel" in record.getMessage()


NULLS = """
CREATE TABLE a (id BIGINT PRIMARY KEY, x INT, y STRING);
CREATE TABLE b (id BIGINT PRIMARY KEY, x INT, y STRING);
CREATE MATERIALIZED VIEW both AS
  SELECT a.id, b.id AS other FROM a JOIN b ON a.x <=> b.x AND a.y = b.y;
CREATE MATERIALIZED VIEW later AS
  SELECT a.id, m.n FROM a, LATERAL (SELECT COUNT(*) AS n FROM b WHERE b.id > a.x) m;
CREATE MATERIALIZED VIEW after AS
  SELECT a.id, m.y FROM a, LATERAL (SELECT DISTINCT y FROM b WHERE b.id > a.x) m;
"""


def test_null_safe_joins_run_locally_whatever_the_rows_are(spark: SparkSession) -> None:
    """S3: NULL on both sides left such a join to Spark, although it was decided otherwise."""
    views = Views.open(spark, NULLS)
    rows = [
        {"id": i, "x": x, "y": y}
        for i, (x, y) in enumerate([(None, "p"), (None, None), (1, "p"), (1, None), (2, "q")])
    ]
    schema = views.read("a").schema
    for put in ({"a": rows[:3], "b": rows[1:]}, {"a": rows[3:]}, {"b": rows[:1]}):
        changes = {t: Change(put=views.read(t).from_pylist(r, schema)) for t, r in put.items()}
        outcome = views.apply(changes)
        assert (outcome.queries, outcome.fallbacks_of) == (0, {})
        for name in ("both", "later", "after"):
            assert not difference(views.read(name), views.recompute(name)), name
