"""OpenTelemetry traces of a pipeline: a trace for each transaction, with a span for each phase.

    transaction                     attributes: pipeline, number, rows, rejected rows, Spark queries
      poll gather execute record apply publish
              view revenue          seconds by phase, rows that were fetched and shared
      sink revenue_out              a commit; one that failed has the status ERROR
      flush

Spans are made from the profile of a transaction (`engine/profile.py`) once it has been committed,
so a pipeline without traces pays nothing for them. They are exported by threads of the SDK: a
collector that is down delays nothing, and loses spans. The standard variables choose the exporter
and its address (`OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, ...).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from stepwell.engine.events import Committed, Event, Flushed, Published, SinkFailed
from stepwell.engine.profile import Profile, TransactionProfile
from stepwell.env import Env
from stepwell.errors import ConfigError

try:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        Status,
        StatusCode,
        set_span_in_context,
    )
except ImportError as error:
    raise ConfigError(
        "traces need opentelemetry-sdk, which is not installed",
        hint="pip install 'stepwell[traces]'",
    ) from error

_REMEMBERED = 10_000
"""Transactions to whose traces the commits of a lagging sink are still added."""
_GROUP = "opentelemetry_traces_exporter"
_OTLP = {"grpc": "otlp_proto_grpc"}
"""The OTLP exporters, by protocol; the usual one is over HTTP."""


class Traces:
    """A listener that makes a trace of each transaction, once it follows a pipeline."""

    def __init__(self, pipeline: str, provider: TracerProvider, env: Env) -> None:
        self._pipeline = pipeline
        self._provider = provider
        self._tracer = provider.get_tracer("stepwell")
        self._env = env
        self._profile: Callable[[int], Profile] | None = None
        self._lock = threading.Lock()
        self._contexts: OrderedDict[int, SpanContext] = OrderedDict()

    def follow(self, profile: Callable[[int], Profile]) -> None:
        """Trace the transactions of a pipeline from now on."""
        self._profile = profile

    def close(self) -> None:
        """Export what was not exported yet."""
        self._provider.shutdown()

    def __call__(self, event: Event) -> None:
        match event:
            case Committed():
                self._committed(event)
            case Published():
                more = {"stepwell.rows": event.rows, "stepwell.transactions": event.transactions}
                self._after(f"sink {event.sink}", event.transaction, event.seconds, more)
            case SinkFailed():
                self._after(f"sink {event.sink}", event.transaction, 0.0, {}, event.error)
            case Flushed():
                more = {"stepwell.runs": event.runs}
                self._after("flush", event.transaction, event.seconds, more)
            case _:
                pass

    def _committed(self, event: Committed) -> None:
        found = () if self._profile is None else self._profile(1).transactions
        if not found or found[0].transaction != event.transaction:
            return  # It was committed while the pipeline was opened.
        made = found[0]
        end = self._env.now().timestamp()
        begin = end - made.seconds
        attributes = {
            "stepwell.pipeline": self._pipeline,
            "stepwell.transaction": int(event.transaction),
            "stepwell.rows": event.rows,
            "stepwell.rejected": event.rejected,
            "stepwell.spark_queries": event.queries,
        }
        root = self._span("transaction", None, begin, end, attributes)
        with self._lock:
            self._contexts[int(event.transaction)] = root
            while len(self._contexts) > _REMEMBERED:
                self._contexts.popitem(last=False)
        for span in made.phases:
            at = begin + span.after_s
            phase = self._span(span.name, root, at, at + span.seconds, {})
            if span.name == "execute":
                self._views(made, phase, at)

    def _views(self, made: TransactionProfile, parent: SpanContext, began: float) -> None:
        for name, view in made.views.items():
            at = began + view.after_s
            attributes: dict[str, Any] = {
                f"stepwell.{phase}.seconds": seconds for phase, seconds in view.phases.items()
            }
            attributes["stepwell.rows_fetched"] = view.rows_fetched
            attributes["stepwell.rows_shared"] = view.rows_shared
            self._span(f"view {name}", parent, at, at + view.seconds, attributes)

    def _after(
        self,
        name: str,
        transaction: int,
        seconds: float,
        attributes: Mapping[str, Any],
        error: str | None = None,
    ) -> None:
        """A span that ends now, in the trace of a transaction or in one of its own."""
        with self._lock:
            parent = self._contexts.get(int(transaction))
        end = self._env.now().timestamp()
        known = {"stepwell.pipeline": self._pipeline, "stepwell.transaction": int(transaction)}
        self._span(name, parent, end - seconds, end, {**known, **attributes}, error)

    def _span(
        self,
        name: str,
        parent: SpanContext | None,
        begin: float,
        end: float,
        attributes: Mapping[str, Any],
        error: str | None = None,
    ) -> SpanContext:
        context = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
        span = self._tracer.start_span(
            name, context, attributes=attributes, start_time=_nanoseconds(begin)
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(_nanoseconds(end))
        return span.get_span_context()


def exported(environ: Mapping[str, str]) -> TracerProvider:
    """What exports spans as the standard variables say; `ConfigError` if that is not possible."""
    service = environ.get("OTEL_SERVICE_NAME") or "stepwell"
    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: service}), shutdown_on_exit=False
    )
    names = [
        name.strip()
        for name in environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
        if name.strip() not in ("", "none")
    ]
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name, environ)))
    return provider


def _exporter(name: str, environ: Mapping[str, str]) -> SpanExporter:
    wanted = name
    if name == "otlp":
        protocol = environ.get(
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
        )
        wanted = _OTLP.get(protocol, "otlp_proto_http")
    every = {point.name: point for point in entry_points(group=_GROUP)}
    if wanted not in every:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: the exporter {wanted} is not installed",
            hint="installed are: " + ", ".join(sorted(every)),
        )
    made: SpanExporter = every[wanted].load()()
    return made


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
