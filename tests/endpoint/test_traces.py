"""OpenTelemetry traces: the spans of a transaction are where its time went."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from stepwell.endpoint.traces import Traces, exported
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.profile import Profile
from stepwell.errors import ConfigError
from stepwell.execution.executor import Executed
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import Letters
from stepwell.lsm.profiler import ViewProfile
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.engine.doubles import SETTINGS, SQL, Feed, FeedSource, Shelf, ShelfSink, order


class SlowExecutor(ReferenceExecutor):
    """Takes two seconds, most of them for one view."""

    env: ManualEnv

    def execute(
        self, changes: Mapping[str, Change], time: datetime, letters: Letters | None = None
    ) -> Executed:
        self.env.advance(2)
        view = ViewProfile(0.5, 1.5, {"joins": 1.0, "look-ups": 0.5}, 10, 20)
        return replace(super().execute(changes, time, letters), profile_of={"revenue": view})


class Traced:
    """A pipeline whose spans are kept in memory."""

    def __init__(self) -> None:
        self.env = ManualEnv(7)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = Traces("lab", provider, self.env)
        self.sink = ShelfSink("out", "revenue", Shelf())
        self.feed = Feed("orders")

        def make(store: Any, env: Any) -> SlowExecutor:
            executor = SlowExecutor(SQL, store, env)
            executor.env = self.env
            return executor

        self.pipeline = Pipeline(
            MemoryStore(self.env),
            self.env,
            executor=make,
            sources=[FeedSource("feed", self.feed)],
            sinks=[self.sink],
            settings=SETTINGS,
            listener=self.traces,
        )
        self.exporter.clear()
        memory = self.pipeline.status().memory
        assert memory is not None
        profiles = self.pipeline._session.profiles
        self.traces.follow(lambda number: Profile(profiles.last(number), memory))

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.traces.close()


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_transaction_is_a_trace_with_a_span_for_each_phase(traced: Traced) -> None:
    """A span in another trace, or with another length, points at the wrong thing."""
    traced.feed.put(order(1)).bad("no row")
    traced.pipeline.run(once=True)
    spans = traced.spans()
    phases = {"poll", "gather", "execute", "record", "apply", "publish"}
    assert spans.keys() == {"transaction", *phases, "view revenue", "sink out", "flush"}
    root = spans["transaction"]
    assert root.parent is None
    assert dict(root.attributes or {}) == {
        "stepwell.pipeline": "lab",
        "stepwell.transaction": 1,
        "stepwell.rows": 2,
        "stepwell.rejected": 1,
        "stepwell.spark_queries": 0,
    }
    assert seconds(root) == pytest.approx(2.0)
    assert seconds(spans["execute"]) == pytest.approx(2.0)
    for name in (*phases, "sink out", "flush"):
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == root.context.span_id
        assert spans[name].context.trace_id == root.context.trace_id


def test_a_view_is_a_span_inside_the_computation(traced: Traced) -> None:
    """Which view is slow, and why, is what somebody opens a trace for."""
    traced.pipeline.push("orders", [order(1)])
    spans = traced.spans()
    view, execute = spans["view revenue"], spans["execute"]
    assert view.parent is not None
    assert view.parent.span_id == execute.context.span_id
    assert view.start_time is not None
    assert execute.start_time is not None
    assert (view.start_time - execute.start_time) / 1e9 == pytest.approx(0.5)
    assert seconds(view) == pytest.approx(1.5)
    assert dict(view.attributes or {}) == {
        "stepwell.joins.seconds": 1.0,
        "stepwell.look-ups.seconds": 0.5,
        "stepwell.rows_fetched": 10,
        "stepwell.rows_shared": 20,
    }


def test_a_sink_that_lags_is_seen_in_the_trace_of_its_transaction(traced: Traced) -> None:
    """The transaction was committed; its output was not, for a while."""
    traced.sink.down = True
    traced.pipeline.push("orders", [order(1)])
    failed = traced.spans()["sink out"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description
    root = traced.spans()["transaction"]
    traced.exporter.clear()
    traced.sink.down = False
    traced.env.advance(60)
    assert traced.pipeline.deliver()
    sent = traced.spans()["sink out"]
    assert sent.context.trace_id == failed.context.trace_id == root.context.trace_id
    assert sent.status.status_code is StatusCode.UNSET


def test_each_transaction_has_a_trace_of_its_own(traced: Traced) -> None:
    for id in range(3):
        traced.pipeline.push("orders", [order(id)])
    roots = [s for s in traced.exporter.get_finished_spans() if s.name == "transaction"]
    assert len({root.context.trace_id for root in roots}) == 3


class Collector(HTTPServer):
    """Receives spans over HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.requests: list[tuple[str, bytes]] = []


class _Request(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_the_standard_variables_choose_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs a collector has set them already, for everything else."""
    with Collector() as collector:
        serving = threading.Thread(target=collector.serve_forever, args=[0.01])
        serving.start()
        address = f"http://127.0.0.1:{collector.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        provider = exported({"OTEL_SERVICE_NAME": "orders"})
        provider.get_tracer("stepwell").start_span("transaction").end()
        provider.shutdown()
        collector.shutdown()
        serving.join()
    ((path, body),) = collector.requests
    assert path == "/v1/traces"
    request = ExportTraceServiceRequest.FromString(body)
    (resource,) = request.resource_spans
    names = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert names["service.name"] == "orders"
    assert resource.scope_spans[0].spans[0].name == "transaction"


def test_an_exporter_that_is_not_installed_is_named() -> None:
    """Spans that go nowhere are noticed when they are needed."""
    with pytest.raises(ConfigError, match="the exporter zipkin is not installed") as caught:
        exported({"OTEL_TRACES_EXPORTER": "zipkin"})
    assert "otlp_proto_http" in str(caught.value.hint)
    exported({"OTEL_TRACES_EXPORTER": "none"}).shutdown()


def test_attributes_are_what_the_wire_can_carry(traced: Traced) -> None:
    """A value of another type is dropped by the SDK with a warning, once for each span."""
    traced.pipeline.push("orders", [order(1)])
    for span in traced.exporter.get_finished_spans():
        assert json.loads(span.to_json())["attributes"] == dict(span.attributes or {})
