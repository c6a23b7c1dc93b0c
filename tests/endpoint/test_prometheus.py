"""Metrics for Prometheus: the page says what happened, and the dashboard finds all of it."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stepwell.endpoint.prometheus import PREFIX, MetricsServer, PrometheusMetrics, parse_address
from stepwell.engine.metrics import METRICS
from stepwell.engine.pipeline import Pipeline
from stepwell.errors import ConfigError, UnavailableError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.engine.doubles import SETTINGS, SQL, Feed, FeedSource, Shelf, ShelfSink, order

ROOT = Path(__file__).resolve().parent.parent.parent
DASHBOARD = ROOT / "examples" / "grafana" / "stepwell.json"
GUIDE = ROOT / "docs" / "guides" / "metrics.md"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class LaggingSource(FeedSource):
    """Knows how far it lags."""

    def lag(self) -> dict[str, int]:
        return {"feed [0]": len(self._feed.events)}


class Served:
    """A pipeline whose metrics are served."""

    def __init__(self) -> None:
        self.env = ManualEnv(7)
        self.feed = Feed("orders")
        self.shelf = Shelf()
        self.died: list[BaseException] = []
        self.metrics = PrometheusMetrics("lab")
        self.sink = ShelfSink("out", "revenue", self.shelf)
        self.pipeline = Pipeline(
            MemoryStore(self.env),
            self.env,
            executor=lambda store, env: ReferenceExecutor(SQL, store, env),
            sources=[LaggingSource("feed", self.feed)],
            sinks=[self.sink],
            settings=SETTINGS,
            metrics=self.metrics,
        )
        self.metrics.follow(self.pipeline.status)
        self.server = MetricsServer(self.metrics, "127.0.0.1", 0, self.died.append)

    def page(self) -> str:
        with urllib.request.urlopen(self.server.url, timeout=30) as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            return str(response.read().decode())

    def samples(self) -> Samples:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.page())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((PREFIX + name, frozenset({"pipeline": "lab", **labels}.items())))


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.server.close()
    assert served.died == []


def test_the_page_counts_what_happened(served: Served) -> None:
    """A number that is nearly right hides exactly the transaction that somebody looks for."""
    served.pipeline.push("orders", [order(1), order(2, "b")])
    served.feed.put(order(3)).bad("no row")
    served.pipeline.run(once=True)
    assert served.value("transactions_total") == 2
    assert served.value("rows_total") == 4
    assert served.value("rejected_rows_total") == 1
    assert served.value("dead_letters", table="orders") == 1
    assert served.value("published_transactions_total", sink="out") == 2
    assert served.value("transaction") == served.value("flushed_transaction") == 2
    assert served.value("transaction_seconds_count") == 2
    assert served.value("phase_seconds_count", phase="record") == 2
    written = served.value("journal_bytes_total")
    assert written is not None
    assert written > 0
    served.pipeline.push("orders", [order(4)])
    assert (served.value("journal_bytes_total") or 0) > written


def test_levels_are_those_of_the_moment(served: Served) -> None:
    """A sink that is down does not report again and again that it is still down."""
    served.sink.down = True
    served.pipeline.push("orders", [order(1)])
    served.pipeline.push("orders", [order(2)])
    assert served.value("sink_pending", sink="out") == 2
    assert (served.value("sink_pending_bytes", sink="out") or 0) > 0
    served.feed.put(order(3), order(4))
    assert served.value("source_lag", source="feed", part="feed [0]") == 2
    served.sink.down = False
    served.env.advance(60)
    served.pipeline.deliver()
    assert served.value("sink_pending", sink="out") == 0


def test_a_pipeline_that_has_failed_still_shows_what_it_counted(served: Served) -> None:
    """A page that fails looks like a machine that is gone."""
    served.pipeline.push("orders", [order(1)])
    served.pipeline.close()
    assert served.value("transactions_total") == 1
    assert served.value("transaction") is None, "nobody knows what another writer did since"


def test_every_metric_is_on_the_page(served: Served) -> None:
    """A metric of the list that Prometheus never sees is found out during an incident."""
    told = re.findall(r"^# HELP (\S+) (.*)$", served.page(), re.MULTILINE)
    meanings = dict(told)
    for name, metric in METRICS.items():
        shown = PREFIX + name + ("_total" if metric.kind == "counter" else "")
        assert meanings.get(shown) == metric.meaning, shown


def test_the_queries_of_the_dashboard_find_something(served: Served) -> None:
    """A panel that asks for a metric or a label that does not exist stays empty for ever."""
    served.pipeline.push("orders", [order(1)])
    on_page: dict[str, set[str]] = {}
    for name, labels in served.samples():
        on_page.setdefault(name, set()).update(label for label, _ in labels)
    for family in text_string_to_metric_families(served.page()):
        for name in (family.name, f"{family.name}_total"):
            metric = METRICS.get(family.name.removeprefix(PREFIX))
            on_page.setdefault(name, set()).update(() if metric is None else metric.labels)
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    targets = [target for panel in panels for target in panel["targets"]]
    guide = re.findall(r"^\| [^|]+ \| `(.+)` \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(panels) == 16
    assert len(guide) == 5
    for query in [*(target["expr"] for target in targets), *guide]:
        names = re.findall(r"\b(?:stepwell_\w+|up\b)", query)
        assert names, query
        known = {"le", "job", "pipeline"}
        for name in names:
            assert name == "up" or name in on_page, f"{query}: there is no metric {name}"
            known |= on_page.get(name, set())
        used = set(re.findall(r"(\w+)(?==)", query)) | set(re.findall(r"\bby \((\w+)\)", query))
        assert used <= known, f"{query}: there is no label {used - known}"
    for target in targets:
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert f"({label})" in target["expr"] or label in on_page[_only_name(target)]


def _only_name(target: dict[str, Any]) -> str:
    (name,) = set(re.findall(r"\bstepwell_\w+", target["expr"]))
    return str(name)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:0", ("::1", 0)),
        ("metrics.example.com:80", ("metrics.example.com", 80)),
    ],
)
def test_an_address_without_a_host_is_the_loopback_one(text: str, address: tuple[str, int]) -> None:
    """Names of tables are not for the whole network unless somebody says so."""
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "localhost", "70000", "a b:1", "1:2:3", "http://x:1", ":"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """A typo must not listen somewhere else."""
    with pytest.raises(ConfigError, match="not an address"):
        parse_address(text)


def test_a_port_that_is_taken_is_refused() -> None:
    """The page of another process would be taken for this one's."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match="cannot listen on") as raised:
            MetricsServer(PrometheusMetrics("x"), "127.0.0.1", taken.getsockname()[1], print)
    assert "choose another port" in str(raised.value.hint)


def test_a_client_that_says_nothing_keeps_nobody_waiting(served: Served) -> None:
    """One scraper behind a broken network must not blind the others, nor hold the process."""
    host, port = parse_address(served.server.url.split("/")[2])
    with socket.create_connection((host, port)) as silent:
        silent.sendall(b"GET /metr")
        assert served.value("epoch") == 1
        for nonsense in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n"):
            with socket.create_connection((host, port)) as other:
                other.sendall(nonsense)
                other.settimeout(30)
                other.recv(100)
        assert served.value("epoch") == 1
        served.server.close()
        with pytest.raises(urllib.error.URLError):
            served.page()
        served.server = MetricsServer(
            PrometheusMetrics("another"), "127.0.0.1", 0, served.died.append
        )


def test_a_server_that_dies_is_reported(served: Served) -> None:
    """R1: dashboards would show a gap, and the process would say that all is well."""
    broken = OSError("out of sockets")

    def fail() -> None:
        raise broken

    served.server._server.service_actions = fail  # type: ignore[method-assign]
    served.server._thread.join(30)
    assert served.died == [broken]
    served.died.clear()
