"""The metrics port: counted exactly, and of no consequence to the pipeline."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from stepwell.engine.events import Event
from stepwell.engine.memory import Memory
from stepwell.engine.metrics import METRICS, PHASES, EventMetrics, Metrics
from stepwell.engine.outbox import SinkStatus
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.profile import Profiles
from stepwell.engine.sources import SourceStatus
from stepwell.engine.status import DataTestStatus, Status
from stepwell.engine.status_metrics import measured
from stepwell.errors import InvalidError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.cache import Usage
from stepwell.model import Epoch, Position, Transaction
from stepwell.store.memory import MemoryStore
from stepwell.testing import InMemoryMetrics, ManualEnv
from tests.engine.doubles import SETTINGS, SQL, Feed, FeedSource, Shelf, ShelfSink, order


class Lab:
    """A pipeline with one source and one sink."""

    def __init__(self) -> None:
        self.env = ManualEnv(7)
        self.store = MemoryStore(self.env)
        self.feed = Feed("orders")
        self.shelf = Shelf()

    def open(self, metrics: Metrics | None) -> Pipeline:
        return Pipeline(
            self.store,
            self.env,
            executor=lambda store, env: ReferenceExecutor(SQL, store, env),
            sources=[FeedSource("feed", self.feed)],
            sinks=[ShelfSink("out", "revenue", self.shelf)],
            settings=SETTINGS,
            metrics=metrics,
        )


@pytest.fixture
def lab() -> Lab:
    return Lab()


def phases(metrics: InMemoryMetrics) -> dict[str, int]:
    """How often each phase was observed."""
    return {
        phase: len(metrics.histograms.get(f"phase_seconds{{phase={phase}}}", ()))
        for phase in PHASES
    }


def test_a_known_run_is_counted_exactly(lab: Lab) -> None:
    """A count that is nearly right hides exactly the transaction that somebody looks for."""
    metrics = InMemoryMetrics()
    pipeline = lab.open(metrics)
    before = phases(metrics)["flush"]
    pipeline.push("orders", [order(1), order(2, "b")])
    with pipeline.transaction() as transaction:
        transaction.push("orders", [order(3)])
        transaction.push("orders", [order(4)])
    with pytest.raises(ZeroDivisionError), pipeline.transaction() as aborted:
        aborted.push("orders", [order(5)])
        raise ZeroDivisionError
    lab.feed.put(*(order(id) for id in range(10, 14))).bad("no row")
    assert pipeline.run(once=True) == 2, "at most three rows a transaction"
    counted = metrics.counters
    assert (counted["transactions"], counted["rows"]) == (4, 9)
    assert (counted["rejected_rows"], counted["rollbacks"]) == (1, 1)
    assert counted["published_transactions{sink=out}"] == 4
    assert metrics.gauges["transaction"] == pipeline.transaction_number == 4
    assert metrics.gauges["epoch"] == pipeline.status().epoch
    assert metrics.gauges["flushed_transaction"] == pipeline.status().flushed == 4
    assert len(metrics.histograms["transaction_seconds"]) == 4
    seen = phases(metrics)
    assert seen.pop("flush") - before >= 1
    assert metrics.counters["flushes"] == len(metrics.histograms["phase_seconds{phase=flush}"])
    assert seen == {"poll": 2, "gather": 4, "execute": 4, "record": 4, "apply": 4, "publish": 4}


def test_a_transaction_that_is_refused_is_not_counted(lab: Lab) -> None:
    """Phases that did not end are not observed, and nothing was committed."""
    metrics = InMemoryMetrics()
    pipeline = lab.open(metrics)
    with pytest.raises(InvalidError):
        pipeline.push("nowhere", [order(1)])
    assert "transactions" not in metrics.counters
    assert phases(metrics)["record"] == 0


def test_replay_is_told_apart_from_new_transactions(lab: Lab) -> None:
    """After a crash the counters must not say that rows came in twice."""
    lab.open(None).push("orders", [order(1)])
    metrics = InMemoryMetrics()
    lab.open(metrics)  # The first one has crashed: it was never closed.
    assert metrics.counters["replayed_transactions"] == 1
    assert "transactions" not in metrics.counters
    assert phases(metrics)["execute"] == 0


def test_failures_are_counted_by_name(lab: Lab) -> None:
    """An alert on a sink must say which."""
    metrics = InMemoryMetrics()
    pipeline = lab.open(metrics)
    (sink,) = (outbox.sink for outbox in pipeline._session.state.outboxes)
    assert isinstance(sink, ShelfSink)
    sink.down = True
    pipeline.push("orders", [order(1)])
    assert metrics.counters["sink_failures{sink=out}"] >= 1
    assert metrics.gauges["sink_pending{sink=out}"] == 1
    sink.down = False
    lab.env.advance(60)
    assert pipeline.deliver()
    assert metrics.gauges["sink_pending{sink=out}"] == 0


class Broken:
    """Raises whatever is reported."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        def report(*_: object, **__: object) -> None:
            self.calls += 1
            raise RuntimeError("the collector is down")

        return report


def test_metrics_that_raise_change_nothing(lab: Lab) -> None:
    """K1: a measurement between the record and its application must not break the pipeline."""
    broken = Broken()
    pipeline = lab.open(broken)
    for id in range(3):
        pipeline.push("orders", [order(id)])
    assert pipeline.table("orders").num_rows == 3
    assert broken.calls == 2, "once for an event, once for a phase, and never again"


def test_everything_that_is_reported_is_listed() -> None:
    """A metric that is not in the list is not in the docs either."""

    class Checked:
        def __init__(self) -> None:
            self.kinds: dict[str, str] = {}

        def check(self, kind: str, name: str, labels: dict[str, str]) -> None:
            assert METRICS[name].kind == kind
            assert METRICS[name].labels == tuple(labels)
            self.kinds[name] = kind

        def count(self, name: str, value: int, **labels: str) -> None:
            self.check("counter", name, labels)

        def gauge(self, name: str, value: float, **labels: str) -> None:
            self.check("gauge", name, labels)

        def observe(self, name: str, value: float, **labels: str) -> None:
            self.check("histogram", name, labels)

    checked = Checked()
    listener = EventMetrics(checked)
    for kind in get_args(Event):
        listener(example(kind))
    Profiles(ManualEnv(), checked).start()("gather")
    for item in measured(busy_status()):
        assert METRICS[item.name].labels == tuple(item.labels)
        checked.kinds[item.name] = METRICS[item.name].kind
    assert set(checked.kinds) == set(METRICS)


def busy_status() -> Status:
    """A status with something in each field that is measured."""
    return Status(
        lineage="x",
        epoch=Epoch(1),
        transaction=Transaction(2),
        flushed=Transaction(1),
        position=Position(3),
        replay=Position(2),
        unflushed_bytes=1,
        open=None,
        sources=(SourceStatus("feed", "orders", None, lag={"topic [0]": 3}),),
        sinks=(SinkStatus("out", "v", Transaction(1), 2, 3, False, None, 0.0, False),),
        dead_letters={"orders": 4},
        tests=(DataTestStatus("t", "v", "warn", 5),),
        cache=Usage("c", 1, 2, 3),
        memory=Memory(held=1, mapped=2, peak=3, arrow=4, java=5),
    )


_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def example(kind: type[Any]) -> Any:
    """An event with some value in each field."""
    values = {"int": 1, "float": 1.0, "str": "x", "bool": True, "datetime": _NOW}
    fields = kind.__dataclass_fields__.values()
    given = {f.name: values.get(str(f.type), ()) for f in fields}
    given |= {f.name: 1 for f in fields if str(f.type) in ("Transaction", "Epoch", "Position")}
    return kind(**given)
