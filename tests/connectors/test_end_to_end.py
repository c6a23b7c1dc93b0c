"""A whole pipeline between real files and real sinks, killed again and again.

The engine and its journal are the real ones; the reference executor stands in for Spark.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from stepwell.connectors.registry import make_sink, make_source
from stepwell.engine.pipeline import Pipeline
from stepwell.env import SystemEnv
from stepwell.errors import ReplayMismatchError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.sql.statements import Table, parse_statements
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from stepwell.text import Source as Text
from tests.connectors.killed import open_pipeline, victims
from tests.connectors.sinks import Place

SQL = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount BIGINT);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
"""
SOURCES: dict[str, object] = {
    "files": {"table": "orders", "type": "files", "path": "in/*.json", "format": "json"},
    "more": {
        "table": "orders",
        "type": "files",
        "path": "in/*.csv",
        "format": "csv",
        "changes": "insert_delete",
    },
}


def feed(folder: Path, round: int, chance: random.Random) -> None:
    """Two files more, with updates and deletes, and in each a bad row."""
    (folder / "in").mkdir(exist_ok=True)
    lines = []
    for _ in range(300):
        id, customer = chance.randrange(200), chance.choice("abc")
        lines.append(f'{{"id":{id},"customer":"{customer}","amount":{chance.randrange(999)}}}')
    lines[7] = '{"id":null}'
    (folder / "in" / f"{round}.json").write_text("\n".join(lines) + "\n")
    deletes = [f"delete,{chance.randrange(200)},," for _ in range(20)]
    text = "\n".join(["_op,id,customer,amount", "insert,1,z,1", *deletes, "oops,1,,"])
    (folder / "in" / f"{round}.csv").write_text(text + "\n")


def expected(rows: list[dict[str, object]]) -> Counter[tuple[object, ...]]:
    return Counter((row["customer"], f"{row['total']:.2f}", row["n"]) for row in rows)


def summed(log: Counter[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    """The view that a log of changes adds up to."""
    view: Counter[tuple[object, ...]] = Counter()
    for (_, *row, weight), times in log.items():
        assert times == 1, "a change is there twice"
        view[tuple(row)] += weight  # type: ignore[assignment]
    return Counter({row: count for row, count in view.items() if count})


def test_a_pipeline_that_is_killed_again_and_again_delivers_each_row_once(
    tmp_path: Path, postgres: str
) -> None:
    """Scenario 84, J7: killed anywhere between files and sinks, every sink ends up as the view."""
    places = [
        Place("files", {"type": "files", "path": str(tmp_path / "out"), "format": "json"}),
        Place(
            "delta",
            {"type": "delta", "path": str(tmp_path / "delta"), "mode": "table", "key": "customer"},
            keyed=True,
        ),
        Place("postgres", {"type": "postgres", "dsn": postgres, "mode": "changes", "table": "e2e"}),
    ]
    sinks = {place.kind: {"view": "revenue", **place.options} for place in places}
    given = {"folder": str(tmp_path), "sql": SQL, "sources": SOURCES, "sinks": sinks}
    chance = random.Random(7)
    with victims() as process:
        for round in range(6):
            feed(tmp_path, round, chance)
            numbers = chance.choice([1, 2, 5])
            process.kill("run", numbers, chance.uniform(0, 0.1), checkpoint_every_s=0.05, **given)
    with open_pipeline(**given) as pipeline:  # type: ignore[arg-type]
        pipeline.run(once=True)
        assert pipeline.deliver()
        view = expected(pipeline.table("revenue").to_pylist())
        letters = Counter(row["position"] for row in pipeline.table("orders$errors").to_pylist())
    assert len(view) >= 3
    for round in range(6):
        assert (letters[f"{round}.json, line 8"], letters[f"{round}.csv, line 23"]) == (1, 1)
    files, delta, log = (place.content() for place in places)
    assert summed(files) == view
    assert delta == view
    assert summed(log) == view


def test_a_file_that_was_changed_between_run_and_replay_stops_the_pipeline(
    tmp_path: Path,
) -> None:
    """Scenario 86, J8: the file and the transaction are named, and nothing is published."""
    for round in range(9):
        feed(tmp_path, round, random.Random(round))
    out = {"view": "revenue", "type": "files", "path": "out", "format": "json"}
    given = {"folder": str(tmp_path), "sql": SQL, "sources": SOURCES, "sinks": {"out": out}}
    with victims() as process:
        process.kill("run", 4, 0, checkpoint_every_s=1000, **given)
    held = make_sink("out", out, "revenue", SystemEnv(), base=tmp_path).last()
    for path in (tmp_path / "in").iterdir():
        path.write_text(path.read_text().replace("1", "2"))
    with pytest.raises(
        ReplayMismatchError, match=r"transaction \d+, source \w+: \d\.\w+ was changed"
    ):
        open_pipeline(**given).run(once=True)  # type: ignore[arg-type]
    assert make_sink("out", out, "revenue", SystemEnv(), base=tmp_path).last() == held


class WritingEnv(ManualEnv):
    """A world in which somebody adds to a file whenever the pipeline rests."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        with open(self._path, "a") as file:
            file.write("0\n1")


def test_run_once_takes_files_that_settle_and_leaves_those_that_are_written(
    tmp_path: Path,
) -> None:
    """J8, scenario 96: a file without a last line end is taken by a process that runs once, too."""
    (tmp_path / "quiet.csv").write_text("id,customer,amount\n1,a,5\n2,b,7")
    (tmp_path / "written.csv").write_text("id\n3")
    env = WritingEnv(tmp_path / "written.csv")
    table = next(s for s in parse_statements(Text("", SQL)) if isinstance(s, Table))
    options = {"table": "orders", "type": "files", "path": "*.csv", "format": "csv"}
    pipeline = Pipeline(
        MemoryStore(env),
        env,
        executor=lambda store, env: ReferenceExecutor(SQL, store, env),
        sources=[make_source("files", options, table, env, base=tmp_path)],
    )
    pipeline.run(once=True)
    rows = pipeline.table("orders").to_pylist()
    assert [row["id"] for row in rows] == [1, 2], "the other one is left to the next run"
    assert pipeline.table("orders$errors").num_rows == 0
    assert env.uptime() < 5.0
