"""Metrics for Prometheus: a registry of everything in `engine/metrics.py`, and its page over HTTP.

What happens is counted as it is reported. Levels (`engine/status_metrics.py`) are read from the
pipeline's status when the page is asked for, which never waits for a transaction; while a pipeline
is opening, and once it has failed, the page leaves them out. Every metric begins with `stepwell_`
and is labelled with the pipeline.

The server listens on the loopback interface unless another one is named. It only reads, and a
request that fails does not disturb the pipeline. Nothing is stored.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from stepwell import threads
from stepwell.engine.metrics import METRICS
from stepwell.engine.status import Status
from stepwell.engine.status_metrics import measured
from stepwell.errors import ConfigError, StepwellError, UnavailableError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import make_wsgi_app
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigError(
        "metrics for Prometheus need prometheus-client, which is not installed",
        hint="pip install 'stepwell[metrics]'",
    ) from error

PREFIX = "stepwell_"
LOOPBACK = "127.0.0.1"
_PIPELINE = "pipeline"
_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""A transaction takes milliseconds on Arrow, a second on Spark, and longer for large input."""
_LEVELS = frozenset(
    {
        *("epoch", "transaction", "flushed_transaction", "journal_bytes", "unflushed_bytes"),
        *("source_lag", "sink_pending", "sink_pending_bytes", "dead_letters", "test_violations"),
        *("cache_bytes", "cache_hits", "cache_misses"),
        *("memory_held_bytes", "memory_mapped_bytes", "memory_arrow_bytes", "memory_java_bytes"),
    }
)
"""Metrics that are read from the status; what events say of them is not needed."""


class PrometheusMetrics:
    """The metrics port (`stepwell.Metrics`) over a registry of `prometheus_client`.

    Pass it to `stepwell.open(..., metrics=...)`, and `follow` the pipeline to add its levels.
    """

    def __init__(self, pipeline: str, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._pipeline = pipeline
        self._made: dict[str, Any] = {
            name: _instrument(name, self.registry) for name in METRICS if name not in _LEVELS
        }
        for name, metric in METRICS.items():
            if name in self._made and not metric.labels:
                self._labelled(name, {})  # So that the page has it, as 0, from the start.

    def follow(self, status: Callable[[], Status]) -> None:
        """Add the levels of this pipeline to the registry."""
        self.registry.register(_Levels(self._pipeline, status))

    def count(self, name: str, value: int, **labels: str) -> None:
        self._labelled(name, labels).inc(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        if name not in _LEVELS:
            self._labelled(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._labelled(name, labels).observe(value)

    def _labelled(self, name: str, labels: Mapping[str, str]) -> Any:
        return self._made[name].labels(**{_PIPELINE: self._pipeline, **labels})


class _Levels(Collector):
    """Reads the status of a pipeline whenever the page is asked for."""

    def __init__(self, pipeline: str, status: Callable[[], Status]) -> None:
        self._pipeline = pipeline
        self._status = status

    def describe(self) -> list[Metric]:
        """The families without samples: asked for when this is registered."""
        return list(self._families().values())

    def collect(self) -> Iterator[Metric]:
        families = self._families()
        try:
            found = list(measured(self._status()))
        except StepwellError:
            return  # The pipeline has ended; what was counted is still shown.
        for item in found:
            labels = [self._pipeline, *(item.labels[name] for name in METRICS[item.name].labels)]
            families[item.name].add_metric(labels, item.value)
        yield from families.values()

    def _families(self) -> dict[str, Any]:
        families: dict[str, Any] = {}
        for name in sorted(_LEVELS):
            metric = METRICS[name]
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            families[name] = make(PREFIX + name, metric.meaning, labels=_labels(name))
        return families


def _instrument(name: str, registry: CollectorRegistry) -> Any:
    metric = METRICS[name]
    given = (PREFIX + name, metric.meaning, _labels(name))
    if metric.kind == "histogram":
        return Histogram(*given, registry=registry, buckets=_BUCKETS_S)
    return (Counter if metric.kind == "counter" else Gauge)(*given, registry=registry)


def _labels(name: str) -> list[str]:
    return [_PIPELINE, *METRICS[name].labels]


def parse_address(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT`, `:PORT` or `PORT`; without a host, the loopback one."""
    found = re.fullmatch(r"(?:(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]*):)?(\d{1,5})", text.strip())
    if found is None or int(found[2]) > 65_535:
        raise ConfigError(
            f"{text!r} is not an address to listen on", hint="for example 127.0.0.1:9464"
        )
    return (found[1] or LOOPBACK).strip("[]"), int(found[2])


class MetricsServer:
    """Serves the page at any path of `http://host:port/`, in threads of its own."""

    def __init__(
        self,
        metrics: PrometheusMetrics,
        host: str,
        port: int,
        failed: Callable[[BaseException], None],
    ) -> None:
        """Listen, or raise `UnavailableError`. Port 0 is any free port."""
        registry = metrics.registry
        ProcessCollector(registry=registry)
        server = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(
                host, port, make_wsgi_app(registry), server, handler_class=_Silent
            )
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {host}:{port} for metrics: {error.strerror or error}",
                hint="choose another port: --metrics 127.0.0.1:0 takes any free one",
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"
        self._thread = threads.start("stepwell-metrics", self._serve, failed=failed)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.1)


class _Server(ThreadingMixIn, WSGIServer):
    """A slow client does not keep others waiting, nor the end of the process."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: the client is gone, and standard error belongs to the command."""


class _Server6(_Server):
    """The same over IPv6."""

    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    """Logs no requests, and gives up on a client that sends none."""

    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """Standard error belongs to the command."""
