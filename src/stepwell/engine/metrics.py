"""The metrics port: counters, gauges and histograms, for whichever system collects them.

`METRICS` lists everything that is reported. Counters and gauges follow from events; the phases of a
transaction are timed where they happen (`profile.py`). Metrics report, they do not decide: an
implementation that raises is not called again, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from stepwell.engine.events import (
    BackgroundTaskFailed,
    Checkpointed,
    Collected,
    CollectFailed,
    Committed,
    Event,
    ExecutorLost,
    Flushed,
    FlushFailed,
    Opened,
    Published,
    RolledBack,
    SinkFailed,
    SourceFailed,
    StoreUnavailable,
)

PHASES = {
    "poll": "reading the sources",
    "gather": "combining the input into one change for each table",
    "execute": "computing tables and views",
    "record": "writing the journal: the commit point",
    "apply": "adding the changes to the state",
    "publish": "handing changes to the outboxes of sinks",
    "flush": "writing state to the store, from time to time",
}
"""The phases that `phase_seconds` is reported for, with their meaning; see `transaction.py`."""


class Metrics(Protocol):
    """Receives measurements, from any thread. Labels are few and have few values."""

    def count(self, name: str, value: int, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add one value to a histogram."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric that is reported."""

    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()


METRICS: dict[str, Metric] = {
    "epoch": Metric("gauge", "Epoch of the writer."),
    "transaction": Metric("gauge", "Last transaction recorded in the journal."),
    "flushed_transaction": Metric("gauge", "Last transaction flushed to the manifest."),
    "runs": Metric("gauge", "Runs listed in the manifest."),
    "transactions": Metric("counter", "Transactions committed."),
    "rows": Metric("counter", "Rows ingested, including rejected ones."),
    "rejected_rows": Metric("counter", "Rows rejected as dead letters."),
    "violations": Metric("counter", "Rows added to the violations of data tests."),
    "spark_queries": Metric("counter", "Spark queries of committed transactions."),
    "rollbacks": Metric("counter", "Explicit transactions aborted."),
    "replayed_transactions": Metric(
        "counter", "Transactions replayed when the pipeline was opened."
    ),
    "published_transactions": Metric("counter", "Transactions delivered to a sink.", ("sink",)),
    "published_rows": Metric("counter", "Rows delivered to a sink.", ("sink",)),
    "sink_failures": Metric("counter", "Failed deliveries to a sink.", ("sink",)),
    "sink_pending": Metric("gauge", "Transactions waiting for a sink.", ("sink",)),
    "sink_seconds": Metric("histogram", "Time of a commit of a sink.", ("sink",)),
    "source_failures": Metric("counter", "Failed polls of a source.", ("source",)),
    "sink_pending_bytes": Metric("gauge", "Size of the output waiting for a sink.", ("sink",)),
    "source_lag": Metric(
        "gauge",
        "Input that a source has seen and not read: files, or offsets by partition.",
        ("source", "part"),
    ),
    "dead_letters": Metric(
        "gauge", "Rejected rows of a table since the pipeline began.", ("table",)
    ),
    "test_violations": Metric("gauge", "Rows that violate a data test.", ("test",)),
    "journal_bytes": Metric("counter", "Bytes appended to the journal."),
    "unflushed_bytes": Metric("gauge", "State that no run holds yet."),
    "cache_bytes": Metric("gauge", "Size of the cache on this machine."),
    "cache_hits": Metric("counter", "Runs found in the cache."),
    "cache_misses": Metric("counter", "Runs decoded because the cache did not have them."),
    "flushes": Metric("counter", "Flushes committed."),
    "flush_failures": Metric("counter", "Failed flushes, which are retried."),
    "checkpoints": Metric("counter", "Checkpoints taken."),
    "collected_objects": Metric("counter", "Objects removed by garbage collection."),
    "collected_bytes": Metric("counter", "Bytes removed by garbage collection."),
    "gc_failures": Metric("counter", "Failed garbage collections."),
    "compaction_failures": Metric("counter", "Failed background compactions."),
    "memory_held_bytes": Metric("gauge", "Memory of the process that no file backs."),
    "memory_mapped_bytes": Metric(
        "gauge", "Pages of files that are in memory; the system can drop them."
    ),
    "memory_arrow_bytes": Metric("gauge", "Rows in memory, a part of the held memory."),
    "memory_java_bytes": Metric("gauge", "Memory held by the Java of Spark."),
    "executor_losses": Metric("counter", "Executors lost and replaced."),
    "store_outages": Metric("counter", "Outages of a store."),
    "transaction_seconds": Metric("histogram", "Time of a transaction, from polling its input on."),
    "phase_seconds": Metric("histogram", "Time of one phase of a transaction.", ("phase",)),
}
"""Every metric, by its name."""


class EventMetrics:
    """Listens to a pipeline's events, and reports what they say as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, event: Event) -> None:
        metrics = self._metrics
        match event:
            case Committed():
                metrics.gauge("transaction", event.transaction)
                metrics.count("transactions", 1)
                metrics.count("rows", event.rows)
                metrics.count("rejected_rows", event.rejected)
                metrics.count("violations", sum(item.added for item in event.violations))
                metrics.count("spark_queries", event.queries)
                metrics.observe("transaction_seconds", event.seconds)
            case Opened():
                metrics.gauge("epoch", event.epoch)
                metrics.gauge("transaction", event.transaction)
                metrics.count("replayed_transactions", event.replayed)
            case RolledBack():
                metrics.count("rollbacks", 1)
            case Published():
                metrics.count("published_transactions", event.transactions, sink=event.sink)
                metrics.count("published_rows", event.rows, sink=event.sink)
                metrics.observe("sink_seconds", event.seconds, sink=event.sink)
                metrics.gauge("sink_pending", 0, sink=event.sink)
            case SinkFailed():
                metrics.count("sink_failures", 1, sink=event.sink)
                metrics.gauge("sink_pending", event.pending, sink=event.sink)
            case SourceFailed():
                metrics.count("source_failures", 1, source=event.source)
            case Flushed():
                metrics.count("flushes", 1)
                metrics.gauge("flushed_transaction", event.transaction)
                metrics.gauge("runs", event.runs)
            case Checkpointed():
                metrics.count("checkpoints", 1)
            case Collected():
                metrics.count("collected_objects", event.objects)
                metrics.count("collected_bytes", event.bytes)
            case _:
                name = _FAILURES.get(type(event))
                if name is not None:
                    metrics.count(name, 1)


_FAILURES: dict[type[Event], str] = {
    FlushFailed: "flush_failures",
    CollectFailed: "gc_failures",
    BackgroundTaskFailed: "compaction_failures",
    ExecutorLost: "executor_losses",
    StoreUnavailable: "store_outages",
}
