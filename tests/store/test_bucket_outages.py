"""R1: a bucket that goes away for a while, and one that was never there; through real sockets."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepwell.engine.events import Event, StoreAvailable, StoreUnavailable
from stepwell.engine.pipeline import Pipeline
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.store import retry
from stepwell.store.base import Store
from stepwell.store.objects import ObjectsStore
from stepwell.store.patient import PatientStore
from stepwell.store.retry import BRIEF_S, Retry
from stepwell.testing import ManualEnv
from tests.cli.projects import YML, Process, put_file, sink_rows, stepwell, wait, write_project
from tests.engine.doubles import SQL, contents, order
from tests.store.conftest import BUCKET
from tests.store.http_stub import HASTY, OPTIONS, Reply, Request, Stub, at, error, every_call

ENV = SystemEnv()


class Proxy:
    """Passes bytes between a port of its own and a server; `down` cuts all of it off."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listening = self._listen(0)
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []

    def up(self) -> None:
        self._listening = self._listen(self.port)

    def down(self) -> None:
        """Refuse connections, and end those there are in the middle of whatever they carry."""
        for each in (self._listening, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def _listen(self, port: int) -> socket.socket:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen()
        threading.Thread(target=self._accept, args=[listening], daemon=True).start()
        return listening

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[Proxy]:
    made = Proxy(int(s3_endpoint.rpartition(":")[2]))
    yield made
    made.down()


def test_a_pipeline_continues_when_its_bucket_is_back(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy run ended after three seconds without its bucket; now it waits, and says so."""
    monkeypatch.setattr(retry, "TELL_S", 0.3)
    options = {**OPTIONS, "endpoint": f"http://127.0.0.1:{proxy.port}"}
    bucket = ObjectsStore("s3", BUCKET, f"outage/{ENV.new_id()}", ENV, HASTY, **options)
    told: list[Event] = []

    def listen(event: Event) -> None:
        told.append(event)
        if isinstance(event, StoreUnavailable):
            proxy.up()

    pipeline = Pipeline(
        PatientStore(bucket, ENV, Retry(120)),
        ENV,
        executor=lambda store, env: ReferenceExecutor(SQL, store, env),
        listener=listen,
    )
    for id in range(3):
        pipeline.push("orders", [order(id)])
        proxy.down()
        if id == 1:
            assert pipeline.checkpoint() is not None
    pipeline.push("orders", [order(3)])
    assert [row[0] for row in contents(pipeline, "orders")] == [0, 1, 2, 3]
    pipeline.close()
    outages = [type(e) for e in told if isinstance(e, (StoreUnavailable, StoreAvailable))]
    assert outages == [StoreUnavailable, StoreAvailable] * 3


@pytest.mark.slow
def test_a_command_rides_out_an_outage_and_status_tells_of_it(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` in a process of its own: says so, goes on; Ctrl-C in an outage is heard at once."""
    for name, value in {
        "AWS_ENDPOINT": f"http://127.0.0.1:{proxy.port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test-key-id",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
    }.items():
        monkeypatch.setenv(name, value)
    address = f"s3://{BUCKET}/outage/{ENV.new_id()}"
    folder = write_project(tmp_path / "project", YML.replace("./state", address))
    running = Process(folder, "run")
    try:
        running.until("running")
        proxy.down()
        put_file(folder, "1.json", [{"id": 1, "customer": "ada", "amount": "1.00"}])
        running.until(f"{address} unavailable since")
        shown = stepwell(folder, "status")
        assert re.search(rf"outage +{address} unavailable since .*, retrying until", shown.stdout)
        asked = stepwell(folder, "query", "--timeout", "1s", "SELECT * FROM orders")
        assert asked.returncode == 1
        assert f"cannot list {address}" in asked.stderr
        proxy.up()
        running.until("transaction 1: 1 row in")
        assert running.text.count(f"{address} is available again") == 1
        proxy.down()
        put_file(folder, "2.json", [{"id": 2, "customer": "ada", "amount": "1.00"}])
        wait(lambda: running.text.count("unavailable since") == 2, lambda: running.text)
        running.send(signal.SIGINT)
        assert running.end() == 1
        assert "tried" in running.text
        assert "Traceback" not in running.text
    finally:
        running.kill()
    proxy.up()
    assert stepwell(folder, "run", "--once").returncode == 0
    assert sink_rows(folder) == {("ada", "2.00", 2): 1}


@pytest.mark.parametrize("honest", [True, False], ids=["cut off", "ends early"])
def test_a_listing_that_is_cut_short_is_asked_for_again(stub: Stub, honest: bool) -> None:
    """A LIST is retried like a GET, however it breaks: half of it must never be all of it."""
    names = "".join(
        f"<Contents><Key>orders/a/{number:03d}</Key><Size>1</Size>"
        "<LastModified>2025-01-01T00:00:00.000Z</LastModified><ETag>1</ETag></Contents>"
        for number in range(100)
    )
    whole = f"<ListBucketResult><KeyCount>100</KeyCount>{names}</ListBucketResult>".encode()

    def answer(request: Request) -> Reply:
        if len(stub.requests) > 20:
            return Reply(200, whole)
        # `honest`: the length that was announced is that of the whole.
        headers = {"Content-Length": str(len(whole))} if honest else {}
        return Reply(200, whole[: len(whole) // 2], headers)

    stub.answer = answer
    env = ManualEnv()
    store = PatientStore(at(stub.endpoint), env, Retry(300))
    assert len(store.list("a/")) == 100
    assert len(stub.requests) == 21


@every_call
@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_error_that_is_not_an_outage_is_reported_at_once(
    stub: Stub, call: Callable[[Store], object], status: int
) -> None:
    """Refused credentials, a missing bucket: five minutes later they would be just that."""
    code = {401: "InvalidToken", 403: "AccessDenied", 404: "NoSuchBucket"}[status]
    stub.answer = lambda request: Reply(status, error(code))
    env = ManualEnv()
    with pytest.raises(UnavailableError) as caught:
        call(PatientStore(at(stub.endpoint), env, Retry(300)))
    assert caught.value.lasting
    assert env.uptime() <= BRIEF_S + 1


@every_call
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_bucket_is_waited_for(
    stub: Stub, call: Callable[[Store], object], status: int
) -> None:
    """An error of the storage's own is an outage, and ends as one."""
    stub.answer = lambda request: Reply(status, error("SlowDown"))
    env = ManualEnv()
    with pytest.raises(UnavailableError, match=r"tried \d+ times in 30s") as caught:
        call(PatientStore(at(stub.endpoint), env, Retry(30)))
    assert not caught.value.lasting
    assert env.uptime() >= 30
