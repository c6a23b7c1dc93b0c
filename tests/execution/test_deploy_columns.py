"""Columns of tables that change under views on Spark: what is stored stays where it is right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import load_project
from stepwell.execution.spark import executor as executors
from stepwell.execution.spark.compiler import Compiler
from stepwell.execution.spark.executor import SparkExecutor
from stepwell.execution.spark.views import Views
from stepwell.lsm.limits import MemoryLimits
from tests.execution.deploying import SparkProject, query_runs

pytestmark = pytest.mark.spark
YML = """\
name: orders
store: ./state
sinks:
  revenue: {view: revenue, type: files, path: revenue, format: json}
  cities: {view: cities, type: files, path: cities, format: json}
  rich: {view: rich, type: files, path: rich, format: json}
"""
ORDERS = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount DECIMAL(12,2), n INT);\n"
)
PEOPLE = "CREATE TABLE people (name STRING PRIMARY KEY, city STRING);\n"
VIEWS = """\
CREATE VIEW big AS SELECT * FROM orders WHERE amount > 10;
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW rich AS SELECT customer, total FROM revenue WHERE total > 40;
CREATE MATERIALIZED VIEW cities AS
  SELECT p.city, COUNT(*) AS n, MAX(o.amount) AS top
  FROM orders o JOIN people p ON o.customer = p.name GROUP BY p.city;
CREATE MATERIALIZED VIEW everything AS SELECT COUNT(*) AS n, COUNT(n) AS s FROM orders;
CREATE MATERIALIZED VIEW names AS SELECT DISTINCT customer FROM big;
CREATE MATERIALIZED VIEW ranked AS
  SELECT id, RANK() OVER (PARTITION BY customer ORDER BY amount DESC) AS place FROM orders;
CREATE MATERIALIZED VIEW top AS SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3;
CREATE MATERIALIZED VIEW lonely AS
  SELECT o.id FROM orders o LEFT JOIN people p ON o.customer = p.name WHERE p.name IS NULL;
CREATE MATERIALIZED VIEW copies AS SELECT * FROM big;
CREATE MATERIALIZED VIEW per AS SELECT customer, COUNT(*) AS n FROM copies GROUP BY customer;
"""
TEN = ("revenue", "rich", "cities", "everything", "names", "ranked", "top", "lonely", "copies")
TEN = (*TEN, "per")
SINKS = ("revenue", "cities", "rich")
NAMES = ("ada", "bob", "eve", "sue", "tom")


class Lab(SparkProject):
    def __init__(
        self,
        folder: Path,
        spark: SparkSession,
        views: tuple[str, ...] = TEN,
        sinks: tuple[str, ...] = SINKS,
    ) -> None:
        super().__init__(folder, spark)
        self.views, self.sinks = views, sinks
        self.yml = YML if sinks else YML.split("sinks")[0]

    def runs(self, *owners: str) -> set[str]:
        return {r.path for r in self.manifest().runs if r.relation.partition("$")[0] in owners}

    def batches(self) -> dict[str, int]:
        return {sink: len(list((self.folder / sink).glob("*/part.json"))) for sink in SINKS}

    def check(self, pipeline: ProjectPipeline) -> None:
        """Every view is what Spark answers for its query over the tables; sinks have the same."""
        executor = pipeline._session.state.executor
        assert isinstance(executor, SparkExecutor)
        for view in self.views:
            found = Counter(map(repr, executor.read(view).to_pylist()))
            assert found == Counter(map(repr, executor._views.recompute(view).to_pylist())), view
        pipeline.run(once=True)
        for sink in self.sinks:
            got: Counter[tuple[str, ...]] = Counter()
            for part in sorted((self.folder / sink).glob("*/part.json")):
                for line in part.read_text(encoding="utf-8").splitlines():
                    row = json.loads(line, parse_float=str)
                    got[tuple(str(v) for name, v in row.items() if name != "_w")] += row["_w"]
            rows = executor.read(sink).to_pylist()
            assert +got == Counter(tuple(str(v) for v in row.values()) for row in rows), sink


def order(id: int, **more: object) -> dict[str, object]:
    return {"id": id, "customer": NAMES[id % 5], "amount": f"{id * 7 % 40}.50", "n": id, **more}


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Ten views and three sinks over a table of several runs, some of them read from files."""
    in_files = partial(executors.spark_executor, limits=MemoryLimits(memory_rows_max=20))
    monkeypatch.setattr(executors, "spark_executor", in_files)
    made = Lab(tmp_path / "project", spark)
    made.write(ORDERS + PEOPLE + VIEWS)
    assert not made.deploy().failed
    with made.open() as pipeline:
        pipeline.push("people", [{"name": n, "city": n[0]} for n in NAMES[:4]])
        pipeline.push("orders", [order(id) for id in range(40)])
        pipeline.push("orders", delete=[{"id": 3}])
        pipeline.push("orders", [order(7, amount="99.00")])
        pipeline.run(once=True)
    return made


class Work:
    """What a deploy compiles and computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: list[str] = []
        self.built: list[str] = []
        self.filled: list[str] = []
        compile_view, build, fill = Compiler.compile, Views.build, Views.fill

        def compiling(compiler: Compiler, view: Any, *rest: Any) -> Any:
            self.compiled.append(view.name)
            return compile_view(compiler, view, *rest)

        def building(views: Views, names: Sequence[str], *rest: Any) -> None:
            self.built.extend(names)
            build(views, names, *rest)

        def filling(views: Views, name: str, rows: Any) -> Any:
            self.filled.append(name)
            return fill(views, name, rows)

        monkeypatch.setattr(Compiler, "compile", compiling)
        monkeypatch.setattr(Views, "build", building)
        monkeypatch.setattr(Views, "fill", filling)


def test_a_new_column_costs_what_reads_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """D11: one of ten views is computed, no row of the table is written, and no sink is sent any.

    The runs of the table are read where they lie, in memory, by Spark and by indexes, and are as
    good as others when they are merged.
    """
    table, others = lab.runs("orders"), lab.runs(*(set(TEN) - {"copies"}))
    batches, work = lab.batches(), Work(monkeypatch)
    lab.write(ORDERS.replace("amount DEC", "country STRING, amount DEC") + PEOPLE + VIEWS)
    done = lab.deploy()
    assert not done.failed
    assert (work.built, work.filled) == (["copies"], [])
    actions = {step.key: step.action.value for step in done.plan.steps}
    assert {view for view in TEN if actions[f"view.{view}"] == "rebuild"} == {"copies"}
    assert actions["view.rich"] == "unchanged"
    assert "rich" not in work.compiled
    assert table <= lab.runs("orders"), "still named"
    assert lab.runs("orders") == table
    assert lab.runs(*(set(TEN) - {"copies"})) == others
    project = as_deployed(load_project(lab.folder, lab.env), lab.manifest().program)
    seen = query_runs(project, lab.env, "SELECT id, country, amount FROM orders WHERE id = 8")
    assert [str(list(row.values())) for row in seen.rows.to_pylist()] == [
        "[8, None, Decimal('16.50')]"
    ], "also without Spark"
    with lab.open() as pipeline:
        pipeline.run(once=True)
        assert lab.batches() == batches
        lab.check(pipeline)
        assert pipeline.query("SELECT COUNT(country) AS n FROM orders").to_pylist() == [{"n": 0}]
        pipeline.push("orders", [order(id, country="at") for id in range(30, 70)])
        pipeline.push("orders", delete=[{"id": 5}, {"id": 31}])
        pipeline.push("people", [{"name": "tom", "city": "t"}])
        lab.check(pipeline)
        pipeline.compact()
        lab.check(pipeline)
    with lab.open() as pipeline:
        lab.check(pipeline)
        assert pipeline.query("SELECT COUNT(country) AS n FROM orders").to_pylist() == [{"n": 39}]
    assert not any(run.columns for run in lab.manifest().runs), "merged runs have all columns"


def test_columns_that_go_move_widen_and_are_renamed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: step by step, over runs of every shape there was before; then pushed into and opened."""
    renamed = VIEWS.replace("amount", "price").replace("id, price FROM", "id, price AS amount FROM")
    steps = [
        # Moved, and one more; COUNT(n) does not mind that n is wider.
        (
            "n BIGINT, x STRUCT<a: INT, b: ARRAY<STRING>>, id BIGINT PRIMARY KEY, "
            "amount DECIMAL(12,2), customer STRING",
            VIEWS,
            {"copies"},
            True,
        ),
        (
            "n BIGINT, id BIGINT PRIMARY KEY, y MAP<STRING, INT>, "
            "price DECIMAL(12,2) RENAMED FROM amount, customer STRING",
            renamed,
            {"copies"},
            False,
        ),
        (
            "id BIGINT PRIMARY KEY, customer STRING, price DECIMAL(12,2), n BIGINT",
            renamed,
            {"copies"},
            False,
        ),
    ]
    called = "amount"
    for number, (columns, views, rebuilt, filled) in enumerate(steps):
        work = Work(monkeypatch)
        table = lab.runs("orders")
        lab.write(f"CREATE TABLE orders ({columns});\n{PEOPLE}{views}")
        done = lab.deploy()
        assert not done.failed, done.failed
        assert set(work.built) == rebuilt
        assert bool(work.filled) is filled
        assert filled or lab.runs("orders") == table
        called = "price" if "price" in columns else called
        with lab.open() as pipeline:
            lab.check(pipeline)
            some = [order(id) for id in range(20 * number, 20 * number + 40)]
            pipeline.push(
                "orders", [{called if k == "amount" else k: v for k, v in r.items()} for r in some]
            )
            pipeline.push("orders", delete=[{"id": 20 * number + 1}])
            lab.check(pipeline)
    with lab.open() as pipeline:
        pipeline.compact()
        lab.check(pipeline)


FLOATS = """\
CREATE MATERIALIZED VIEW sums AS
  SELECT customer, SUM(CAST(amount AS DOUBLE)) AS s, COUNT(*) AS n, {more} FROM orders
  GROUP BY customer;
CREATE MATERIALIZED VIEW much AS SELECT customer, s FROM sums WHERE s > 10;
CREATE MATERIALIZED VIEW lists AS
  SELECT customer, collect_list(n) AS l FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW whole REFRESH POLICY FULL AS SELECT customer, n FROM orders;
"""


def test_what_the_compiler_does_not_vouch_for_is_rebuilt(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: values that may come out differently when a view below is computed again, lists whose
    order hangs on the columns, and a view that is computed from its text.
    """
    lab.write(ORDERS + PEOPLE + VIEWS + FLOATS.format(more="1 AS m"))
    assert not lab.deploy().failed
    work = Work(monkeypatch)
    lab.write(ORDERS + PEOPLE + VIEWS + FLOATS.format(more="MAX(n) AS m"))
    done = lab.deploy()
    assert {s.key: s.action.value for s in done.plan.changes}["view.much"] == "rebind"
    assert sorted(work.built) == ["much", "sums"], "sums in DOUBLE are not taken on trust"
    work.built.clear()
    moved = ORDERS.replace(", n INT", "").replace("(id", "(n INT, id")
    lab.write(moved + PEOPLE + VIEWS + FLOATS.format(more="MAX(n) AS m"))
    assert not lab.deploy().failed
    assert {"whole", "copies"} <= set(work.built)
    assert not {"revenue", "rich", "cities", "everything"} & set(work.built)
    with lab.open() as pipeline:
        lab.check(pipeline)
        pipeline.push("orders", [order(id) for id in range(30, 50)])
        lab.check(pipeline)


HIDDEN = """\
CREATE TABLE t (id BIGINT, k BIGINT NOT NULL, PRIMARY KEY (id));
CREATE TABLE l (x BIGINT, y BIGINT);
CREATE VIEW p AS SELECT id, k FROM t;
CREATE VIEW q AS SELECT id FROM p;
CREATE MATERIALIZED VIEW v AS
  SELECT x, y FROM l WHERE NOT EXISTS (SELECT 1 FROM p WHERE l.x = p.id);
CREATE MATERIALIZED VIEW w AS SELECT x, y FROM l LEFT SEMI JOIN q ON l.x = q.id;
CREATE MATERIALIZED VIEW plain AS SELECT COUNT(*) AS n FROM q;
"""


def test_a_key_that_a_plain_view_hides(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """D7: without the key something else is stored for the same answer; what is, is not taken for
    it. A view that is stored as before keeps its rows.
    """
    lab = Lab(tmp_path / "hidden", spark, views=("v", "w", "plain"), sinks=())
    lab.write(HIDDEN)
    assert not lab.deploy().failed
    with lab.open() as pipeline:
        pipeline.push("t", [{"id": i, "k": i} for i in range(0, 6, 2)])
        pipeline.push("l", [{"x": x, "y": y} for x in range(8) for y in range(2)])
        lab.check(pipeline)
    work = Work(monkeypatch)
    lab.write(HIDDEN.replace("KEY (id)", "KEY (id, k)"))
    done = lab.deploy()
    assert not done.failed
    actions = {step.key: step.action.value for step in done.plan.steps}
    assert {actions[f"view.{view}"] for view in lab.views} == {"rebind"}
    assert sorted(work.built) == ["v", "w"], "plain is stored as it was"
    with lab.open() as pipeline:
        lab.check(pipeline)
        pipeline.push("t", [{"id": 2, "k": 9}, {"id": 7, "k": 1}, {"id": 7, "k": 2}])
        lab.check(pipeline)
        pipeline.push("t", delete=[{"id": 7, "k": 1}, {"id": 4, "k": 4}])
        lab.check(pipeline)
    with lab.open() as pipeline:
        lab.check(pipeline)
