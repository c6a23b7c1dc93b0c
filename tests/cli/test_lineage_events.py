"""OpenLineage events of `stepwell run`, as a lineage server receives them over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
)

from stepwell.endpoint.open_lineage import EVERY_S, Dataset, Datasets, DescribedDataset
from stepwell.endpoint.open_lineage import LineageEvents as Events
from stepwell.engine.events import Committed, Published
from stepwell.model import Transaction
from stepwell.testing import ManualEnv
from tests.cli.conftest import Run as Command
from tests.cli.projects import put_file, write_project

SQL = """\
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE TABLE customers (name STRING NOT NULL PRIMARY KEY, city STRING);
CREATE MATERIALIZED VIEW revenue AS
  SELECT city, SUM(amount) AS total FROM orders JOIN customers ON customer = name
  WHERE id > 0 GROUP BY city;
"""


class Server(ThreadingHTTPServer):
    """Receives events, as Marquez does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.events: list[dict[str, Any]] = []
        self.answers = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Request(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/api/v1/lineage"
        self.server.events.append(json.loads(body))
        self.send_response(self.server.answers)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as made:
        serving = threading.Thread(target=made.serve_forever, args=[0.01])
        serving.start()
        monkeypatch.setenv("OPENLINEAGE_URL", made.url)
        yield made
        made.shutdown()
        serving.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_project(tmp_path / "project", sql=SQL)
    put_file(folder, "a.json", [{"id": 1, "customer": "ada", "amount": 2}])
    return folder


def checked(event: Mapping[str, Any]) -> RunEvent:
    """The event made again by the client's own classes, which refuse what is not valid."""
    facets: dict[str, Any] = {
        "errorMessage": error_message_run.ErrorMessageRunFacet,
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet,
        "jobType": job_type_job.JobTypeJobFacet,
        "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    }

    def made(given: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, facet in given.items():
            if name == "tags":
                continue  # Added by the client, which says its own version.
            assert facet["_producer"] == event["producer"]
            values = {key: value for key, value in facet.items() if not key.startswith("_")}
            if name == "schema":
                fields = [schema_dataset.SchemaDatasetFacetFields(**f) for f in values["fields"]]
                found[name] = schema_dataset.SchemaDatasetFacet(fields)
            elif name == "columnLineage":
                found[name] = column_lineage_dataset.ColumnLineageDatasetFacet(
                    {
                        column: column_lineage_dataset.Fields(read_all(field["inputFields"]))
                        for column, field in values["fields"].items()
                    },
                    read_all(values["dataset"]),
                )
            else:
                found[name] = facets[name](**values)
        return found

    def read_all(given: list[Mapping[str, Any]]) -> list[column_lineage_dataset.InputField]:
        return [
            column_lineage_dataset.InputField(
                item["namespace"],
                item["name"],
                item["field"],
                [column_lineage_dataset.Transformation(**how) for how in item["transformations"]],
            )
            for item in given
        ]

    run, job = event["run"], event["job"]
    return RunEvent(
        eventTime=event["eventTime"],
        producer=event["producer"],
        eventType=RunState[event["eventType"]],
        run=Run(run["runId"], made(run["facets"])),
        job=Job(job["namespace"], job["name"], made(job["facets"])),
        inputs=[
            InputDataset(item["namespace"], item["name"], facets=made(item["facets"]))
            for item in event["inputs"]
        ],
        outputs=[
            OutputDataset(
                item["namespace"],
                item["name"],
                made(item["outputFacets"]),
                facets=made(item["facets"]),
            )
            for item in event["outputs"]
        ],
    )


def test_a_run_is_reported_from_start_to_end(run: Command, folder: Path, server: Server) -> None:
    """A run without an end looks as if it were still going on."""
    ended = run("-C", folder, "run", "--once", "--lineage")
    assert ended.exit_code == 0, ended.stderr
    assert f"lineage events to http {server.url}" in ended.stderr
    events = [checked(event) for event in server.events]
    assert [event.eventType for event in events] == [
        RunState.START,
        RunState.RUNNING,
        RunState.COMPLETE,
    ]
    assert len({event.run.runId for event in events}) == 1
    last = events[-1]
    assert (last.job.namespace, last.job.name) == ("stepwell", "orders")
    assert last.job.facets is not None
    assert last.job.facets["jobType"].processingType == "BATCH"  # type: ignore[attr-defined]
    assert [item.name for item in last.inputs or ()] == [
        str(folder / "data/*.json"),
        f"{folder}/state/customers",
    ]
    assert [item.name for item in last.outputs or ()] == [
        f"{folder}/state/revenue",
        str(folder / "out"),
    ]
    sink = (last.outputs or ())[-1]
    assert sink.outputFacets is not None
    assert sink.outputFacets["outputStatistics"].rowCount == 0, "no customer is known"  # type: ignore[attr-defined]


def test_columns_come_with_the_columns_they_are_computed_from(
    run: Command, folder: Path, server: Server
) -> None:
    """Who asks what breaks if a column changes must get neither too few nor too many."""
    assert run("-C", folder, "run", "--once", "--lineage").exit_code == 0
    checked(server.events[-1])
    orders, customers = str(folder / "data/*.json"), f"{folder}/state/customers"
    view, sink = server.events[-1]["outputs"]
    for output in (view, sink):
        lineage = output["facets"]["columnLineage"]
        direct = {
            column: [
                (item["name"], item["field"], how["type"], how["subtype"])
                for item in field["inputFields"]
                for how in item["transformations"]
            ]
            for column, field in lineage["fields"].items()
        }
        assert direct == {
            "city": [(customers, "city", "DIRECT", "IDENTITY")],
            "total": [(orders, "amount", "DIRECT", "TRANSFORMATION")],
        }
        rows = {(item["name"], item["field"]) for item in lineage["dataset"]}
        assert {(orders, "id"), (orders, "customer"), (customers, "name")} <= rows
        assert (orders, "amount") not in rows
        assert {how["type"] for item in lineage["dataset"] for how in item["transformations"]} == {
            "INDIRECT"
        }
    schema = server.events[-1]["inputs"][0]["facets"]["schema"]["fields"]
    assert [(field["name"], field["type"]) for field in schema] == [
        ("id", "bigint"),
        ("customer", "string"),
        ("amount", "decimal(12,2)"),
    ]


def test_a_run_that_fails_says_why(run: Command, folder: Path, server: Server) -> None:
    """The pipeline could not even be opened: that is when somebody looks."""
    assert run("-C", folder, "run", "--once").exit_code == 0
    for manifest in (folder / "state" / "manifest").glob("*.json"):
        manifest.write_bytes(b"damaged")
    ended = run("-C", folder, "run", "--once", "--lineage")
    assert ended.exit_code == 1
    events = [checked(event) for event in server.events]
    assert [event.eventType for event in events] == [RunState.START, RunState.FAIL]
    assert events[-1].run.facets is not None
    message = events[-1].run.facets["errorMessage"].message  # type: ignore[attr-defined]
    assert message in ended.stderr


def test_a_server_that_refuses_events_stops_no_pipeline(
    run: Command, folder: Path, server: Server
) -> None:
    """Rows are worth more than what is told about them."""
    server.answers = 400
    ended = run("-C", folder, "run", "--once", "--lineage")
    assert ended.exit_code == 0
    assert ended.stderr.count("lineage events cannot be sent") == 1


def test_a_long_run_is_reported_now_and_then(server: Server) -> None:
    """A pipeline commits a thousand times a minute, and runs for months."""
    env = ManualEnv(7)
    events = Events("orders", "1.0", env, batch=False)
    view = DescribedDataset(Dataset("file", "/out"), (), sink="out")
    events(committed(env))
    events.opened(Datasets((), (view,)))
    for number in range(5):
        events(Published("out", Transaction(number + 1), rows=10))
        events(committed(env))
        env.advance(EVERY_S / 2)
    events.complete()
    events.close()
    told = [checked(event) for event in server.events]
    assert [event.eventType for event in told] == [
        *[RunState.RUNNING] * 3,
        RunState.COMPLETE,
    ]
    rows = [
        output["outputFacets"]["outputStatistics"]["rowCount"]
        for event in server.events
        for output in event["outputs"]
    ]
    assert rows == [0, 30, 50, 50]


def committed(env: ManualEnv) -> Committed:
    return Committed(Transaction(1), env.now(), 1, 0, ())


class DyingClient:
    """Ends the thread that sends."""

    transport = None

    def emit(self, event: object) -> None:
        raise SystemExit("killed")

    def close(self, timeout: float) -> None:
        """Nothing to close."""


def test_a_sender_that_dies_is_reported() -> None:
    """R1: otherwise the lineage would end in the middle of a run, without a word."""
    said: list[str] = []
    client: Any = DyingClient()
    events = Events("shop", "0", ManualEnv(), batch=True, client=client, say=said.append)
    events.start()
    events.complete()
    events.close()
    assert said == ["lineage events cannot be sent: killed"]
