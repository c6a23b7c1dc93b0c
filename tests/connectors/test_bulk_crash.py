"""Bulk steps through the engine: killed at every store call, mixed with other input, refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from stepwell.connectors.registry import make_source
from stepwell.engine.events import Event, SourceFailed
from stepwell.engine.payload import PUSHED
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.errors import InvalidError, StepwellError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.journal.journal import Settings as JournalSettings
from stepwell.journal.log import Log
from stepwell.lsm import bulk
from stepwell.model import Position
from stepwell.sql.statements import Table, parse_statements
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at
from stepwell.text import Source as Text
from tests.engine.staging import Here, Staging

SQL = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount BIGINT);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
"""
ORDERS = next(s for s in parse_statements(Text("", SQL)) if isinstance(s, Table))
JOURNAL = JournalSettings(barrier_keep_s=3600, retry=Retry(patience_s=0.06))


def write(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(3):
        lines = [f'{{"id":{i},"customer":"c{i % 3}","amount":{number}}}' for i in range(number, 9)]
        lines.insert(2, '{"id":null}')
        (folder / f"{number}.json").write_text("\n".join(lines) + "\n")
    return folder


class Opened:
    """A pipeline over these files whose executor reads in bulk from one byte on, or never."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        *,
        bulk_bytes: int | None = 1,
        names: Sequence[str] = ("files",),
        **settings: object,
    ) -> None:
        env = ManualEnv()
        self.here = Here(folder / ".staged" / env.new_id(), ORDERS)
        self.events: list[Event] = []
        options = {"table": "orders", "type": "files", "format": "json", "settle": "0s"}
        paths = {name: "*.json" if name == "files" else f"{name}/*.json" for name in names}
        self.pipeline = Pipeline(
            store,
            env,
            executor=lambda store, env: Staging(  # type: ignore[arg-type,return-value]
                ReferenceExecutor(SQL, store, env), self.here, ORDERS
            ),
            sources=[
                make_source(name, {**options, "path": path}, ORDERS, env, base=folder)
                for name, path in paths.items()
            ],
            settings=Settings(bulk_bytes=bulk_bytes, journal=JOURNAL, **settings),  # type: ignore[arg-type]
            listener=self.events.append,
        )

    def contents(self) -> dict[str, list[str]]:
        found = {}
        for name in ("orders", "revenue", "orders$errors"):
            rows = self.pipeline.table(name).to_pylist()
            for row in rows:
                row.pop("time", None)
            found[name] = sorted(map(repr, rows))
        return found


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_store_call_a_bulk_step_takes_effect_once(
    tmp_path: Path, when: str
) -> None:
    """J5, J8, F1: replay reads it again, in bulk or step by step, and finds the same checksum."""
    folder = write(tmp_path / "in")

    replayed = []

    def work(store: Store, bulk_bytes: int | None) -> dict[str, list[str]]:
        opened = Opened(folder, store, bulk_bytes=bulk_bytes)
        replayed.append(opened.here.staged)
        opened.pipeline.run(once=True)
        found = opened.contents()
        opened.pipeline.flush()
        opened.pipeline.close()
        return found

    expected = work(MemoryStore(ManualEnv()), None)
    assert len(expected["orders$errors"]) == 3
    watched = FaultyStore(MemoryStore(ManualEnv()))
    assert work(watched, 1) == expected
    for number in range(1, len(watched.calls) + 1):
        store = MemoryStore(ManualEnv())
        with pytest.raises(Crash):
            work(FaultyStore(store, crash_at(number, when)), 1)
        assert work(store, 1 if number % 2 else None) == expected, number
        assert work(store, None) == expected, number
    assert sum(replayed) > 1, "some replays read in bulk as well"


def test_a_bulk_step_is_a_transaction_of_its_own(tmp_path: Path) -> None:
    """Its rows are in files, so they are not folded with those of other sources and steps."""
    folder = write(tmp_path / "in")
    write(folder / "more")
    store = MemoryStore(ManualEnv())
    opened = Opened(folder, store, names=("files", "more"), latency_s_max=60.0)
    opened.pipeline.push("orders", [{"id": 100, "customer": "x", "amount": 1}])
    with opened.pipeline.transaction() as both:
        assert both.take() == 54
        both.abort()
    assert opened.here.staged == 0, "inside a transaction, steps are small"
    opened.pipeline.run(once=True)
    assert opened.here.staged == 2
    found = opened.contents()
    every = (Log(store).read(Position(number)) for number in range(1, 100))
    drafts = [item.entry.draft for item in every if item and not item.entry.is_barrier]
    inputs = [tuple(item.source for item in draft.inputs) for draft in drafts if draft.inputs]
    assert sorted(inputs[-2:]) == [("files",), ("more",)]
    assert inputs[0] == (PUSHED,)
    again = Opened(folder, store, names=("files", "more"))
    assert again.contents() == found
    again.pipeline.close()


def test_a_bulk_step_with_a_bad_row_is_refused_as_any(tmp_path: Path) -> None:
    """J13: with on_error: fail nothing of it is recorded, and the row is named."""
    opened = Opened(write(tmp_path / "in"), MemoryStore(ManualEnv()), on_error="fail")
    with pytest.raises(InvalidError, match=r"source files, 0\.json, line 3: "):
        opened.pipeline.run(once=True)
    assert opened.here.staged > 0
    with suppress(StepwellError):
        opened.pipeline.close()


def test_what_cannot_be_read_in_bulk_is_read_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that declines costs time, and neither rows nor an error."""
    monkeypatch.setattr(bulk, "BAD_ROWS_MAX", 1)
    opened = Opened(write(tmp_path / "in"), MemoryStore(ManualEnv()))
    opened.pipeline.run(once=True)
    assert opened.here.staged == 0
    assert len(opened.contents()["orders$errors"]) == 3
    assert not [event for event in opened.events if isinstance(event, SourceFailed)]
    opened.pipeline.close()
