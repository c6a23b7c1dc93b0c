"""The claims of fencing and durability against a real S3 server, also over a bad network."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stepwell.engine.pipeline import Pipeline
from stepwell.env import SystemEnv
from stepwell.errors import FencedError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.journal.journal import Settings
from stepwell.store.base import Store
from stepwell.store.objects import ObjectsStore
from stepwell.store.patient import PatientStore
from stepwell.store.retry import Retry
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at
from tests.engine.doubles import SQL, contents, order
from tests.engine.test_crash import finish, work
from tests.store.conftest import BUCKET, ENV
from tests.store.http_stub import HASTY, OPTIONS
from tests.tiny import Tiny, stored_rows


class Unreliable:
    """Passes requests on to a server, but for those that it loses, delays or refuses."""

    def __init__(self, endpoint: str, seed: int, rate: float) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self.faults: dict[str, int] = {}
        target = endpoint.removeprefix("http://")
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                proxy.answer(self, target)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, target: str) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        fault = self._fault()
        if fault == "refused":
            request.send_response(503)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if fault == "delayed":
            time.sleep(0.05)
        if fault != "dropped":
            self._pass(request, target, body, lost=fault == "lost")
        if fault in ("dropped", "lost"):
            self._reset(request)

    def _fault(self) -> str | None:
        if self._random.random() > self._rate:
            return None
        fault = self._random.choice(["refused", "delayed", "dropped", "lost"])
        self.faults[fault] = self.faults.get(fault, 0) + 1
        return fault

    def _pass(
        self, request: BaseHTTPRequestHandler, target: str, body: bytes, *, lost: bool
    ) -> None:
        server = http.client.HTTPConnection(target, timeout=30)
        server.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            server.putheader(name, value)
        server.endheaders(body)
        answer = server.getresponse()
        content = answer.read()
        server.close()
        if lost:  # The server has done it, and nobody hears of it.
            return
        request.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                request.send_header(name, value)
        length = answer.getheader("Content-Length") if request.command == "HEAD" else len(content)
        request.send_header("Content-Length", str(length or 0))
        request.end_headers()
        request.wfile.write(content)

    def _reset(self, request: BaseHTTPRequestHandler) -> None:
        linger = struct.pack("ii", 1, 0)
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        request.close_connection = True


@pytest.fixture
def at(real_s3_endpoint: str) -> Callable[..., Store]:
    """Opens the same empty place in the bucket as often as it is called."""
    prefix = f"tests/{ENV.new_id()}"

    def opened(endpoint: str = real_s3_endpoint) -> Store:
        bucket = ObjectsStore("s3", BUCKET, prefix, ENV, HASTY, endpoint=endpoint, **OPTIONS)
        return PatientStore(bucket, ENV, Retry(120))

    return opened


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)])
def unreliable(real_s3_endpoint: str, request: pytest.FixtureRequest) -> Iterator[Unreliable]:
    made = Unreliable(real_s3_endpoint, request.param, rate=0.15)
    yield made
    made.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_a_call_nothing_is_lost_or_doubled(
    at: Callable[..., Store], real_s3_endpoint: str, when: str, stride: int
) -> None:
    """F1, F2, F7: as on the simulated stores, a process dies at a call, and another goes on."""

    def place() -> Store:
        prefix = f"tests/{ENV.new_id()}"
        endpoint = {"endpoint": real_s3_endpoint}
        bucket = ObjectsStore("s3", BUCKET, prefix, ENV, HASTY, **endpoint, **OPTIONS)
        made = PatientStore(bucket, ENV, Retry(60))
        Tiny(made, ManualEnv(5)).close()  # So that no call is part of the race of a new bucket.
        return made

    watched = FaultyStore(place())
    work(watched, ManualEnv(), [], None)
    assert len(watched.calls) > 60
    for number in range(1 + (when == "after"), len(watched.calls) + 1, stride):
        store, acknowledged = place(), list[str]()
        with pytest.raises(Crash):
            work(FaultyStore(store, crash_at(number, when)), ManualEnv(), acknowledged, None)  # type: ignore[arg-type]
        finish(store, None, acknowledged)


def test_of_four_writers_each_fences_the_one_before(at: Callable[..., Store]) -> None:
    """F1: what a writer was told is durable is there once, and what it was refused is not."""
    Tiny(at(), SystemEnv()).close()
    acknowledged: list[str] = []
    refused: list[str] = []
    gate = threading.Barrier(4)

    def write(name: str) -> None:
        gate.wait()
        for attempt in range(3):
            try:
                tiny = Tiny(at(), SystemEnv(), settings=Settings(retry=Retry(patience_s=30)))
            except FencedError:
                continue
            for number in range(5):
                row = f"{name}-{attempt}-{number}"
                try:
                    tiny.push(row)
                except FencedError:
                    refused.append(row)
                    break
                acknowledged.append(row)

    writers = [threading.Thread(target=write, args=[name]) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
    rows = stored_rows(at(), SystemEnv())
    assert sorted(rows) == sorted(set(rows)), "a row is there twice"
    assert set(acknowledged) <= set(rows), "an acknowledged row is lost"
    assert not set(refused) & set(rows), "a row that was refused is there"
    assert acknowledged


def test_a_pipeline_over_a_bad_network_loses_and_doubles_nothing(
    at: Callable[..., Store], unreliable: Unreliable
) -> None:
    """R1, F7: requests are refused, delayed, dropped, and done without an answer."""

    def opened() -> Pipeline:
        store = at(unreliable.endpoint)
        return Pipeline(store, ENV, executor=lambda store, env: ReferenceExecutor(SQL, store, env))

    pipeline = opened()
    for id in range(20):
        pipeline.push("orders", [order(id)])
        if id % 6 == 5:
            assert pipeline.checkpoint() is not None
        if id == 11:
            pipeline.close()
            pipeline = opened()
    assert sorted(row[0] for row in contents(pipeline, "orders")) == list(range(20))  # type: ignore[type-var]
    assert contents(pipeline, "revenue") == [("a", 20, 20)]
    pipeline.close()
    assert set(unreliable.faults) == {"refused", "delayed", "dropped", "lost"}
