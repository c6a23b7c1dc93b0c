"""Files in, files out: a pipeline with real connectors on a real disk, killed on the way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from stepwell.connectors.files import FilesSource
from stepwell.connectors.files_sink import FilesSink
from stepwell.connectors.writing import FileFormat
from stepwell.engine.pipeline import Pipeline
from stepwell.env import Env
from stepwell.errors import ReplayMismatchError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.sql.statements import Table, parse_statements
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.testing import Crash, Fault, FaultyStore, ManualEnv, When, crash_at
from stepwell.text import Source as Text
from tests.engine.doubles import SETTINGS, SQL


class Place:
    """A directory with input, output and state, and processes that come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = ManualEnv()
        (path / "in").mkdir(parents=True)

    def put(self, name: str, *lines: object) -> None:
        text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
        (self.path / "in" / name).write_text(text, encoding="utf-8")

    def open(self, crash: int = 0, when: When = "before") -> tuple[Pipeline, FaultyStore]:
        (table,) = [
            statement
            for statement in parse_statements(Text("pipeline.sql", SQL))
            if isinstance(statement, Table) and statement.name == "orders"
        ]
        store = FaultyStore(LocalStore(str(self.path / "state"), self.env), crash_at(crash, when))
        pattern, out = str(self.path / "in" / "*.json"), str(self.path / "out")

        def executor(store: Store, env: Env) -> ReferenceExecutor:
            return ReferenceExecutor(SQL, store, env)

        pipeline = Pipeline(
            store,
            self.env,
            executor=executor,
            sources=[
                FilesSource(
                    "files", table, self.env, path=pattern, format=FileFormat.JSON, settle_s=0.0
                )
            ],
            sinks=[FilesSink("out", "revenue", self.env, path=out, format=FileFormat.JSON)],
            settings=SETTINGS,
        )
        return pipeline, store

    def output(self) -> Counter[tuple[object, ...]]:
        """What the files of the sink add up to."""
        rows: Counter[tuple[object, ...]] = Counter()
        for file in sorted((self.path / "out").rglob("*.json")):
            for line in file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                if isinstance(row, dict) and "_w" in row:
                    rows[row["customer"], row["total"], row["n"]] += row["_w"]
        return Counter({row: weight for row, weight in rows.items() if weight})


def filled(path: Path) -> Place:
    place = Place(path)
    place.put("1.json", *({"id": id, "customer": "a", "amount": 1} for id in range(4)), "{oops")
    place.put("2.json", {"id": 1, "customer": "b", "amount": 5}, {"id": 9, "amount": 2})
    return place


EXPECTED = Counter({("a", 3, 3): 1, ("b", 5, 1): 1, (None, 2, 1): 1})


def test_what_is_in_the_files_is_in_the_output_once(tmp_path: Path) -> None:
    """J7, J13: with real connectors; what cannot be read is a dead letter that names its line."""
    place = filled(tmp_path)
    pipeline, _ = place.open()
    pipeline.run(once=True)
    assert place.output() == EXPECTED
    (letter,) = pipeline.table("orders$errors").to_pylist()
    assert letter["source"] == "files"
    assert "1.json" in letter["position"]
    pipeline.close()
    again, store = place.open()
    assert again.run(once=True) == 0
    again.close()
    assert place.output() == EXPECTED
    assert len(store.calls) < 40


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_on_the_way_the_output_is_the_same(tmp_path: Path, when: When) -> None:
    """Scenarios 75, 84, J6: on disk, with files as source and sink."""
    place = filled(tmp_path / "whole")
    pipeline, store = place.open()
    pipeline.run(once=True)
    pipeline.close()
    for number in range(3 if when == "before" else 6, len(store.calls), 7):
        place = filled(tmp_path / f"{number}")
        with pytest.raises(Crash):
            place.open(number, when)[0].run(once=True)
            raise Crash
        last, _ = place.open()
        last.run(once=True)
        assert last.table("orders").num_rows == 5
        last.close()
        assert place.output() == EXPECTED


def test_a_file_changed_before_replay_is_named(tmp_path: Path) -> None:
    """Scenario 86, J5: the message names the file and the transaction."""
    place = filled(tmp_path)
    pipeline, store = place.open()
    store.plan = lambda call: Fault("crash") if "runs/" in call.path else None
    with pytest.raises(Crash):
        pipeline.run(once=True)
    place.put("2.json", {"id": 1, "customer": "b", "amount": 6}, {"id": 9, "amount": 2})
    with pytest.raises(ReplayMismatchError, match=r"transaction \d") as mismatch:
        place.open()
    assert "2.json" in str(mismatch.value)
