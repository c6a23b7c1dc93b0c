"""Metrics that follow from a pipeline's status: levels, read on request.

`EventMetrics` reports what happens; these describe the state between two events, such as the lag
of a source. They are a complete picture each time: a partition that has gone is not in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stepwell.engine.status import Status


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of one metric of `metrics.METRICS`, for one set of labels."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def measured(status: Status) -> Iterator[Measured]:
    """Every metric that a status has; those that events report too have the same values."""
    yield Measured("epoch", status.epoch)
    yield Measured("transaction", status.transaction)
    yield Measured("flushed_transaction", status.flushed)
    yield Measured("journal_bytes", status.journal_bytes)
    yield Measured("unflushed_bytes", status.unflushed_bytes)
    for source in status.sources:
        for part, lag in source.lag.items():
            yield Measured("source_lag", lag, {"source": source.name, "part": part})
    for sink in status.sinks:
        yield Measured("sink_pending", sink.pending, {"sink": sink.name})
        yield Measured("sink_pending_bytes", sink.pending_bytes, {"sink": sink.name})
    for table, rows in status.dead_letters.items():
        yield Measured("dead_letters", rows, {"table": table})
    for test in status.tests:
        yield Measured("test_violations", test.violations, {"test": test.name})
    if status.cache is not None:
        yield Measured("cache_bytes", status.cache.bytes)
        yield Measured("cache_hits", status.cache.hits)
        yield Measured("cache_misses", status.cache.misses)
    if status.memory is not None:
        for kind in ("held", "mapped", "arrow", "java"):
            used = getattr(status.memory, kind)
            if used is not None:
                yield Measured(f"memory_{kind}_bytes", used)
