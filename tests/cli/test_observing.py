"""What `stepwell run` reports to other systems, and what it does if it cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.cli.conftest import Run
from tests.cli.projects import put_file, write_project


class Collector(ThreadingHTTPServer):
    """Receives spans over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.spans: list[str] = []


class _Request(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += [span.name for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        serving = threading.Thread(target=made.serve_forever, args=[0.01])
        serving.start()
        address = f"http://127.0.0.1:{made.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        yield made
        made.shutdown()
        serving.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_project(tmp_path / "project")
    put_file(folder, "a.json", [{"id": 1, "customer": "ada", "amount": 2}])
    return folder


def test_a_run_exports_its_traces_before_it_ends(
    run: Run, folder: Path, collector: Collector
) -> None:
    """A run of a schedule takes seconds: what is exported later is never exported."""
    assert run("-C", folder, "run", "--once", "--traces").exit_code == 0
    assert {"transaction", "poll", "execute", "record", "sink revenue_out", "flush"} <= {
        *collector.spans
    }
    assert collector.spans.count("transaction") == 1


def test_without_the_option_nothing_is_exported(
    run: Run, folder: Path, collector: Collector
) -> None:
    """The variables are often set for all programs of a machine."""
    assert run("-C", folder, "run", "--once").exit_code == 0
    assert collector.spans == []


def test_an_option_that_cannot_be_followed_claims_nothing(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong variable must not fence the process that runs the pipeline."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    ended = run("-C", folder, "run", "--once", "--traces")
    assert ended.exit_code == 1
    assert "the exporter zipkin is not installed" in ended.stderr
    assert not (folder / "state").exists()
