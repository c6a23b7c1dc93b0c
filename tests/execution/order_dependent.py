"""A pipeline whose views depend on the order of rows unless somebody takes care, and its lives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from stepwell.deploy.apply import deploy
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import load_project
from stepwell.env import SystemEnv
from stepwell.manifest.manifest import Manifests

COLUMNS = "id BIGINT, k INT, x DOUBLE, y INT, s STRING, f DOUBLE, big BIGINT"
TABLE = f"CREATE TABLE t ({COLUMNS.replace('id BIGINT', 'id BIGINT NOT NULL PRIMARY KEY')});"
_CALLS = (
    "sum(x) AS {0}",
    "avg(x) AS {0}",
    "stddev(x) AS {0}",
    "corr(x, y) AS {0}",
    "first(x) AS {0}",
    "last(s) AS {0}",
    "any_value(s) AS {0}",
    "collect_list(x) AS {0}",
    "collect_set(s) AS {0}",
    "listagg(s) AS {0}",
    "max_by(s, y) AS {0}",
    "sum(DISTINCT x) AS {0}",
    "avg(big) AS {0}",
    "sum(x * 0.1D) FILTER (WHERE y > 0) AS {0}",
)
_WINDOWS = (
    "sum(x) OVER (PARTITION BY k) AS {0}",
    "sum(x) OVER (PARTITION BY k ORDER BY y) AS {0}",
    "avg(x) OVER (PARTITION BY f ORDER BY y DESC) AS {0}",
    "first_value(x) OVER (PARTITION BY k ORDER BY y) AS {0}",
    "collect_list(x) OVER (PARTITION BY k ORDER BY y) AS {0}",
    "row_number() OVER (PARTITION BY k ORDER BY y) AS {0}",
    "lag(x) OVER (PARTITION BY s ORDER BY y) AS {0}",
    "sum(x) OVER (PARTITION BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS {0}",
    # Recomputed as a whole, for want of a partition.
    "sum(x) OVER (ORDER BY y) AS {0}",
)


class Life:
    """One pipeline in a folder, whose input is drawn at random."""

    def __init__(self, folder: Path, views: Mapping[str, str], dice: random.Random) -> None:
        self.folder = folder
        self.views = dict(views)
        self._sinks = tuple(views)
        self._dice = dice
        self._env = SystemEnv()

    def deploy(self, spark: SparkSession) -> None:
        """The project with the views as they are now."""
        sinks = [
            f"  {view}: {{view: {view}, type: files, path: out/{view}, format: parquet}}"
            for view in self._sinks
        ]
        lines = ["name: life", "store: ./state", "checkpoint: {every: 10h}", "sinks:", *sinks]
        views = [f"CREATE MATERIALIZED VIEW {v} AS {q};" for v, q in self.views.items()]
        (self.folder / "stepwell.yml").write_text("\n".join(lines), encoding="utf-8")
        (self.folder / "pipeline.sql").write_text("\n".join([TABLE, *views]), encoding="utf-8")
        project = load_project(self.folder, self._env)
        done = deploy(project, self._env, approve=lambda plan: True, spark=spark)
        assert not done.failed

    def open(self, spark: SparkSession) -> ProjectPipeline:
        """A handle that is to be left without a word: the next one replays what is not flushed."""
        project = load_project(self.folder, self._env)
        found = Manifests(project.open_store(self._env), self._env).latest()
        assert found is not None
        return ProjectPipeline(as_deployed(project, found.manifest.program), self._env, spark=spark)

    def step(self, pipeline: ProjectPipeline) -> None:
        """One transaction, delivered."""
        rows = drawn_rows(self._dice, 40)
        names = [column.split()[0] for column in COLUMNS.split(", ")]
        put = [dict(zip(names, row, strict=True)) for row in rows]
        held = [row["id"] for row in pipeline.table("t").to_pylist()]
        gone = self._dice.sample(held, min(5, len(held)))
        put = [row for row in put if row["id"] not in gone]
        pipeline.push("t", put, delete=[{"id": id} for id in gone] or None)
        assert pipeline.deliver()

    def sent(self, view: str) -> Counter[str]:
        """What all batches of a sink come to; a row never goes that did not come."""
        total: Counter[str] = Counter()
        for part in sorted((self.folder / "out" / view).glob("[0-9]*/part.parquet")):
            for *values, weight in rows_of(pq.read_table(part)):
                total[repr(tuple(values))] += weight
            assert min(total.values(), default=0) >= 0, f"{view} takes back what it never gave"
        return +total


def drawn_rows(dice: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Rows that tie, with numbers whose sum depends on the order in which they are added."""
    sizes = (1e16, -1e16, 1.0, 0.1, 1e-9, 3.3)
    return [
        (
            id,
            dice.randrange(4),
            dice.choice(sizes) * dice.random(),
            dice.randrange(3),
            dice.choice(["a", "b", "c", None]),
            dice.choice([0.0, -0.0, 1.5]),
            2**60 + dice.randrange(2**59),
        )
        for id in dice.sample(range(10 * count), count)
    ]


def drawn_views(dice: random.Random, count: int) -> dict[str, str]:
    """Queries of groups and windows, some of them over one another."""
    views: dict[str, str] = {}
    for number in range(count):
        calls = dice.sample(_WINDOWS if dice.random() < 0.4 else _CALLS, 3)
        named = ", ".join(call.format(f"v{i}") for i, call in enumerate(calls))
        if calls[0] in _WINDOWS:
            query = f"SELECT id, k, {named} FROM t"
        else:
            key = dice.choice(["k", "f", "s", "k + y", ""])
            query = f"SELECT {f'{key} AS g, ' if key else ''}{named} FROM t"
            query += f" GROUP BY {key}" if key else ""
        if dice.random() < 0.3:
            query = f"SELECT q.*, d.n FROM ({query}) q CROSS JOIN (SELECT count(*) AS n FROM t) d"
        views[f"view{number}"] = query
    return views


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))
