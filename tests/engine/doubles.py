"""Sources, sinks and an executor for tests, all of them struck by the faults of one store.

What a source will give and what a sink has received live in a `World` outside the process, so to
speak: they survive a crash. The process is a `Pipeline` over a `FaultyStore`; its calls on sinks,
sources and executor are numbered together with its calls on the store, so that a crash test dies
at every one of them, and inside a sink's own commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from stepwell.engine.events import Event
from stepwell.engine.outbox import OutboxSettings
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Delivered, Intake, Limits
from stepwell.engine.restore_request import RestorePoint
from stepwell.engine.settings import Settings
from stepwell.errors import ConflictError, ReplayMismatchError, UnavailableError
from stepwell.execution.executor import Executed
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.journal.journal import Settings as JournalSettings
from stepwell.lsm.bulk import NotInBulkError
from stepwell.lsm.change import WEIGHT, Change
from stepwell.lsm.dead_letter import BadRow
from stepwell.lsm.large_change import LargeChange
from stepwell.lsm.table_diff import summed
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import FaultyStore, ManualEnv
from tests.connectors.large import large

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount BIGINT);
CREATE TABLE clicks (customer STRING, page STRING);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW visits AS
  SELECT customer, COUNT(*) AS n FROM clicks GROUP BY customer;
CREATE MATERIALIZED VIEW buyers AS
  SELECT o.customer, o.id, c.page FROM orders o JOIN clicks c ON o.customer = c.customer;
"""
RELATIONS = ("orders", "clicks", "revenue", "visits", "buyers", "orders$errors", "clicks$errors")
SETTINGS = Settings(
    limits=Limits(rows_max=3),
    outbox=OutboxSettings(wait_s_first=1.0, wait_s_max=4.0),
    sink_wait_s_max=20.0,
    journal=JournalSettings(barrier_keep_s=3600, retry=Retry(patience_s=0.06)),
)


def order(id: int | None, customer: str | None = "a", amount: int | None = 1) -> dict[str, object]:
    return {"id": id, "customer": customer, "amount": amount}


def click(customer: str, page: str = "/") -> dict[str, object]:
    return {"customer": customer, "page": page}


@dataclass(slots=True)
class Feed:
    """What a source will ever give: rows to put, keys to delete, and lines that are not rows."""

    table: str
    events: list[tuple[str, Any]] = field(default_factory=list)
    again: bool = True
    """Whether it can be read again. If not, its rows are journaled with their data."""

    def put(self, *rows: Mapping[str, object]) -> Feed:
        self.events += [("put", dict(row)) for row in rows]
        return self

    def delete(self, *rows: Mapping[str, object]) -> Feed:
        self.events += [("delete", dict(row)) for row in rows]
        return self

    def bad(self, *texts: str) -> Feed:
        self.events += [("bad", text) for text in texts]
        return self


class FeedSource:
    """Reads a feed. A position is how many events were read; a reference is a range of them."""

    def __init__(self, name: str, feed: Feed) -> None:
        self.name = name
        self.table = feed.table
        self._feed = feed
        self.polls: list[int] = []
        self.closed = False

    def poll(self, after: Any, limits: Limits) -> Intake | None:
        start = after or 0
        self.polls.append(start)
        end = min(len(self._feed.events), start + limits.rows_max)
        kinds = [kind for kind, _ in self._feed.events[start:end]]
        # A change deletes before it puts, so a delete behind a put is left to the next one.
        for place, kind in enumerate(kinds):
            if kind == "delete" and "put" in kinds[:place]:
                end = start + place
                break
        return self._taken(start, end) if end > start else None

    def read(self, reference: Any) -> Intake:
        start, end = reference
        if end > len(self._feed.events):
            raise ReplayMismatchError(f"{self.name} ends before event {end}")
        return self._taken(start, end)

    def _taken(self, start: int, end: int) -> Intake:
        events = list(enumerate(self._feed.events))[start:end]
        put = [row for _, (kind, row) in events if kind == "put"]
        gone = [row for _, (kind, row) in events if kind == "delete"]
        bad = tuple(
            BadRow(f"{self.name}, line {place}", "not JSON", text)
            for place, (kind, text) in events
            if kind == "bad"
        )
        change = Change(
            pa.Table.from_pylist(put) if put else None,
            pa.Table.from_pylist(gone) if gone else None,
        )
        places = [place for place, (kind, _) in events if kind == "delete"]

        def told(rows: Sequence[int]) -> list[tuple[str, str | None]]:
            return [(f"{self.name}, line {places[row]}", f"delete {gone[row]}") for row in rows]

        reference = [start, end] if self._feed.again else None
        return Intake(self.name, self.table, change, end - start, end, reference, bad, told)

    def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class Shelf:
    """What a sink holds: batches with their numbers, and the last one, changed together."""

    last: Delivered | None = None
    batches: list[tuple[int, tuple[tuple[tuple[object, ...], int], ...]]] = field(
        default_factory=list
    )

    def rows(self) -> dict[tuple[object, ...], int]:
        """All batches added up."""
        total: dict[tuple[object, ...], int] = {}
        for _, batch in self.batches:
            for row, weight in batch:
                total[row] = total.get(row, 0) + weight
        return {row: weight for row, weight in total.items() if weight}


class ShelfSink:
    """Takes each transaction once, in order. `down` says whether it can be reached now."""

    def __init__(self, name: str, view: str, shelf: Shelf) -> None:
        self.name = name
        self.view = view
        self.shelf = shelf
        self.down = False
        self.lose_answers = 0
        self.writes = 0
        self.closed = False

    def last(self) -> Delivered | None:
        self._reach()
        return self.shelf.last

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        self._reach()
        self.writes += 1
        if self.shelf.last != previous:
            raise ConflictError(f"{self.name} holds {self.shelf.last}, not {previous}")
        self.shelf.batches.append((mark.transaction, batch_of(change)))
        self.shelf.last = mark
        if self.lose_answers:
            self.lose_answers -= 1
            raise UnavailableError("the answer was lost")

    @property
    def coalesces(self) -> bool:
        return False

    def write_together(
        self, previous: Delivered | None, changes: Sequence[tuple[Delivered, pa.Table]]
    ) -> None:
        assert len(changes) > 1, "one transaction is written alone"
        rows = pa.concat_tables([change for _, change in changes])
        self.write(previous, changes[-1][0], summed(rows))

    def _reach(self) -> None:
        if self.down:
            raise UnavailableError(f"{self.name} is down")

    def close(self) -> None:
        self.closed = True


class CoalescingSink(ShelfSink):
    """Takes several transactions as one if it lags, as their sum."""

    @property
    def coalesces(self) -> bool:
        return True


class BulkSink(ShelfSink):
    """Takes large changes as what tasks report of them."""

    declines = False

    def write_bulk(self, previous: Delivered | None, mark: Delivered, change: LargeChange) -> None:
        if self.declines:
            raise NotInBulkError("no worker sees the shelf")
        reports = change.write(_rows_of_task)
        self.write(previous, mark, pa.concat_tables(reports))


def _rows_of_task(task: int, rows: Iterator[pa.Table]) -> pa.Table:
    return pa.concat_tables(rows)


class LargeOutput:
    """An executor whose changes are all too large for memory, in files of one row."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def execute(self, *given: Any) -> Executed:
        found: Executed = self._executor.execute(*given)
        changes = {view: large(change) for view, change in found.changes.items()}
        return replace(found, changes=changes)


def batch_of(change: pa.Table) -> tuple[tuple[tuple[object, ...], int], ...]:
    names = [name for name in change.column_names if name != WEIGHT]
    rows = [tuple(row[name] for name in names) for row in change.to_pylist()]
    return tuple(sorted(zip(rows, change.column(WEIGHT).to_pylist(), strict=True), key=repr))


class Struck:
    """Anything, with every call numbered and struck like a call on the store."""

    def __init__(self, inner: Any, faulty: FaultyStore, *methods: str) -> None:
        self._inner = inner
        self._faulty = faulty
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._methods:
            return found
        label = type(self._inner).__name__

        def call(*arguments: Any) -> Any:
            return self._faulty._call(name, label, lambda: found(*arguments))

        return call


@dataclass(slots=True)
class World:
    """What is there before a process begins and after it dies."""

    env: ManualEnv = field(default_factory=ManualEnv)
    feeds: dict[str, Feed] = field(default_factory=dict)
    shelves: dict[str, Shelf] = field(default_factory=dict)
    store: Store = field(init=False)
    events: list[Event] = field(default_factory=list)
    sinks: dict[str, ShelfSink] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Sinks that cannot be reached when a process begins."""
    coalescing: set[str] = field(default_factory=set)
    """Sinks that take several transactions as one."""
    bulk: set[str] = field(default_factory=set)
    """Sinks that take large changes."""
    large: bool = False
    """Whether all changes are large."""
    views: dict[str, str] = field(
        default_factory=lambda: {"revenue": "revenue", "visits": "visits", "buyers": "buyers"}
    )

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.env)

    def open(
        self,
        faulty: FaultyStore | None = None,
        settings: Settings = SETTINGS,
        *,
        journal_store: Store | None = None,
        sinks: Mapping[str, str] | None = None,
        strike: bool = True,
        base: RestorePoint | None = None,
    ) -> Pipeline:
        """A process that opens the pipeline; on a faulty store everything it touches is struck."""
        store = faulty or self.store
        views = self.views if sinks is None else sinks
        self.sinks = {
            name: self._kind(name)(name, view, self.shelves.setdefault(name, Shelf()))
            for name, view in views.items()
        }
        for name, sink in self.sinks.items():
            sink.down = name in self.down
        sources: list[Any] = [FeedSource(name, feed) for name, feed in self.feeds.items()]
        taking: list[Any] = list(self.sinks.values())
        if faulty is not None and strike:
            sources = [Struck(source, faulty, "poll", "read") for source in sources]
            writes = ("write", "write_together", "write_bulk")
            taking = [Struck(sink, faulty, "last", *writes) for sink in taking]

        def executor(store: Store, env: Any) -> Any:
            made: Any = ReferenceExecutor(SQL, store, env)
            made = LargeOutput(made) if self.large else made
            if faulty is None or not strike:
                return made
            return Struck(made, faulty, "execute", "apply", "flush", "on_flushed", "load")

        return Pipeline(
            store,
            self.env,
            executor=executor,
            sources=sources,
            sinks=taking,
            settings=settings,
            journal_store=journal_store,
            listener=self.events.append,
            base=base,
        )

    def _kind(self, name: str) -> type[ShelfSink]:
        if name in self.bulk:
            return BulkSink
        return CoalescingSink if name in self.coalescing else ShelfSink

    def check(self, pipeline: Pipeline) -> None:
        """What always holds: views follow from tables, and sinks hold views, each batch once."""
        executor = ReferenceExecutor(SQL, self.store, self.env)
        change = {t: Change(pipeline.table(t)) for t in ("orders", "clicks")}
        executor.apply(executor.execute(change, self.env.now()))
        for view in ("revenue", "visits", "buyers"):
            assert contents(pipeline, view) == rows_of(executor.read(view))
        for name, sink in self.sinks.items():
            shelf = self.shelves[name]
            numbers = [number for number, _ in shelf.batches]
            assert numbers == sorted(set(numbers)), f"{name} holds {numbers}"
            if name not in self.coalescing:
                assert all(batch for _, batch in shelf.batches), f"{name} was sent nothing"
            counted: dict[tuple[object, ...], int] = {}
            for row in contents(pipeline, sink.view):
                counted[row] = counted.get(row, 0) + 1
            if not pipeline.deliver():
                continue
            assert shelf.rows() == counted, f"{name} is not {sink.view}"


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def contents(pipeline: Pipeline, relation: str) -> list[tuple[object, ...]]:
    return rows_of(pipeline.table(relation))


def everything(pipeline: Pipeline) -> dict[str, list[tuple[object, ...]]]:
    return {relation: contents(pipeline, relation) for relation in RELATIONS}
