"""A pipeline's events as records of the standard `logging`, under the name `stepwell.pipeline`.

Every record has the attributes `pipeline`, `epoch` and `transaction`, the name of its `event`, and
the event's own fields as `details`. Nothing is formatted unless the logger is enabled for the
level. Progress of long work (loading, compacting) is DEBUG, other events are INFO, and events that
need attention are WARNING.
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from stepwell.durations import duration_text
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
    OpeningAt,
    Published,
    Replayed,
    RolledBack,
    Settled,
    SinkFailed,
    SourceFailed,
    Stopped,
    StoreAvailable,
    StoreUnavailable,
    TransactionAt,
    Waiting,
    Working,
)
from stepwell.model import Epoch, Transaction

LOGGER = logging.getLogger("stepwell.pipeline")

_LEVELS: dict[type[Event], int] = {
    OpeningAt: logging.DEBUG,
    Working: logging.DEBUG,
    TransactionAt: logging.DEBUG,
    Replayed: logging.DEBUG,
    Published: logging.DEBUG,
    Flushed: logging.DEBUG,
    Opened: logging.INFO,
    Committed: logging.INFO,
    RolledBack: logging.INFO,
    Settled: logging.INFO,
    Checkpointed: logging.INFO,
    Collected: logging.INFO,
    StoreAvailable: logging.INFO,
    Waiting: logging.INFO,
    Stopped: logging.INFO,
    SinkFailed: logging.WARNING,
    SourceFailed: logging.WARNING,
    FlushFailed: logging.WARNING,
    BackgroundTaskFailed: logging.WARNING,
    CollectFailed: logging.WARNING,
    StoreUnavailable: logging.WARNING,
    ExecutorLost: logging.ERROR,
}


class EventLog:
    """A listener that logs what happens to one pipeline. Called from any of its threads."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._epoch: Epoch | None = None
        self._transaction: Transaction | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._epoch = event.epoch
        if isinstance(event, Opened | Committed | Stopped):
            self._transaction = event.transaction
        level = level_of(event)
        if not LOGGER.isEnabledFor(level):
            return
        fields = {
            "pipeline": self._pipeline,
            "epoch": self._epoch,
            "transaction": getattr(event, "transaction", self._transaction),
            "event": type(event).__name__,
            "details": asdict(event),
        }
        LOGGER.log(level, "%s", message_of(event), extra=fields)


def level_of(event: Event) -> int:
    """The level of an event; one that needs attention is raised."""
    if isinstance(event, Committed) and (event.rejected or event.violations):
        return logging.WARNING
    if isinstance(event, SinkFailed) and event.stops:
        return logging.ERROR
    return _LEVELS[type(event)]


def message_of(event: Event) -> str:
    """An event in one line."""
    match event:
        case Opened():
            return f"opened at transaction {event.transaction}, {event.replayed} replayed"
        case OpeningAt():
            return f"opening: {event.stage}, {event.percent} %"
        case Working():
            return f"{event.what}: {event.done} of {event.total} {event.unit}"
        case TransactionAt():
            return f"transaction {event.transaction}: {event.done} of {event.rows} rows"
        case Replayed():
            return f"replayed up to transaction {event.transaction}: {event.rows} rows"
        case Settled():
            how = "committed" if event.committed else "rolled back"
            return f"transaction {event.transaction} was open when the last writer ended: {how}"
        case Committed():
            return _committed(event)
        case RolledBack():
            return f"transaction {event.transaction} rolled back"
        case Published():
            return f"sink {event.sink} took transaction {event.transaction}: {event.rows} rows"
        case SinkFailed() | SourceFailed():
            return _connector_failed(event)
        case Flushed():
            return f"flushed transaction {event.transaction}: {event.runs} runs"
        case Checkpointed():
            name = "" if event.name is None else f" ({event.name})"
            return f"checkpoint {event.id}{name} of transaction {event.transaction}"
        case Collected():
            return f"garbage collection removed {event.objects} objects, {event.bytes} bytes"
        case Stopped():
            return f"stopped at transaction {event.transaction}: {event.transactions} in this run"
        case Waiting():
            return f"{event.what} waits until {event.until}"
        case _:
            return _trouble(event)


def _committed(event: Committed) -> str:
    text = f"committed transaction {event.transaction}: {event.rows} rows in {event.seconds:.3f} s"
    if event.rejected:
        text += f", {event.rejected} rejected"
    for item in event.violations:
        text += f", {item.added} new violations of data test {item.test}"
    return text


def _connector_failed(event: SinkFailed | SourceFailed) -> str:
    if isinstance(event, SourceFailed):
        which = f"source {event.source} cannot be read"
    else:
        which = f"sink {event.sink} did not take transaction {event.transaction}"
    again = f"retry in {event.retry_in_s:.1f} s"
    if isinstance(event, SinkFailed) and event.stops:
        again = "the pipeline stops"
    return f"{which}, {again}: {event.error}"


def _trouble(event: Event) -> str:
    match event:
        case FlushFailed():
            return f"flush failed, nothing is lost, will be tried again: {event.error}"
        case BackgroundTaskFailed():
            return f"background compaction failed, will be tried again: {event.error}"
        case CollectFailed():
            return f"garbage collection failed, will be tried again: {event.error}"
        case ExecutorLost():
            again = f"starting another, {event.time} of {event.times_max}"
            return f"{event.why}: {again}, and replaying what is not flushed"
        case StoreUnavailable():
            since, until = (f"{t.astimezone():%H:%M:%S}" for t in (event.since, event.until))
            return f"{event.store} unavailable since {since}, retrying until {until}: {event.error}"
        case StoreAvailable():
            return f"{event.store} is available again, after {duration_text(event.after_s)}"
        case _:
            return type(event).__name__
