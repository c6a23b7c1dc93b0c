"""Connections that say nothing, half a request or nonsense; a process out of descriptors."""

from __future__ import annotations

import os
import resource
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from stepwell.endpoint import connections, wire
from stepwell.endpoint.client import Client, connect
from stepwell.endpoint.server import Endpoint
from stepwell.env import SystemEnv
from stepwell.errors import (
    ClaimedError,
    InvalidError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.cli.projects import wait

URI = "memory://endpoint"


@dataclass
class Answering:
    """What is asked of a pipeline here: a query, which takes as long as it is told to."""

    go: threading.Event = field(default_factory=threading.Event)
    transaction: int = 1
    rows: pa.Table = field(default_factory=lambda: pa.table({"n": [1]}))
    threads: set[threading.Thread] = field(default_factory=set)

    def query(self, sql: str) -> Answering:
        self.threads.add(threading.current_thread())
        assert sql == "at once" or self.go.wait(60)
        return self

    def status(self) -> Answering:
        return self.query("later")

    def tail(self, view: str) -> Answering:
        return self.query(view)

    def push(self, table: str, rows: object, **others: object) -> Answering:
        return self.query("later")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Not below tmp_path, which is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="sw") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        yield
        monkeypatch.undo()


@pytest.fixture
def endpoint(place: None) -> Iterator[Endpoint]:
    served: Any = Answering()
    made = Endpoint(served, URI, SystemEnv())
    yield made
    served.go.set()
    made.close()


def raw(endpoint: Endpoint) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(endpoint.path))
    connection.settimeout(60)
    return connection


def answers(sql: str = "at once") -> bool:
    client = connect(URI)
    assert client is not None
    with client:
        return client.query(sql).transaction == 1


def workers() -> int:
    return sum(thread.name == "stepwell-request" for thread in threading.enumerate())


def test_silent_connections_lock_nobody_out(endpoint: Endpoint) -> None:
    """R1: they cost no thread, and of too many the one that was silent longest goes."""
    with ExitStack() as stack:
        for _ in range(connections.IDLE_MAX + 20):
            stack.enter_context(raw(endpoint))
        assert answers()
        assert workers() == 1
        wait(lambda: endpoint._connections.count <= connections.IDLE_MAX)


@pytest.mark.parametrize("raised", [InvalidError("too large"), ValueError("odd"), MemoryError()])
def test_whatever_a_request_raises_ends_its_connection_only(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    """R1: an error that could not be told ended its worker, and with it the run."""
    monkeypatch.setattr("stepwell.endpoint.server.error_json", lambda error: _raise(raised))
    with raw(endpoint) as connection:
        wire.send(connection, {"op": "there is none"})
        with pytest.raises(wire.ConnectionLost):
            wire.receive(connection, 1000)
    assert answers()
    assert endpoint.error is None
    assert workers() == endpoint._connections.workers


def _raise(error: Exception) -> object:
    raise error


def test_half_a_request_locks_nobody_out(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: a worker that reads from a peer that does not go on is freed for the next request."""
    monkeypatch.setattr(connections, "_STALLED_S", 0.0)
    with ExitStack() as stack:
        for _ in range(connections.WORKERS_MAX):
            stack.enter_context(raw(endpoint)).sendall(b"\0")
        wait(lambda: endpoint._connections.workers == connections.WORKERS_MAX)
        assert answers()


def test_more_requests_than_workers_are_refused_with_a_reason(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: and told to come again; none waits without an answer."""
    monkeypatch.setattr(connections, "WORKERS_MAX", 2)
    with ExitStack() as stack:
        for _ in range(2):
            busy = stack.enter_context(raw(endpoint))
            wire.send(busy, {"op": "query", "sql": "slow"})
            assert "beat" in wire.receive(busy, 1000).header, "a request under way is told so"
        with pytest.raises(UnavailableError, match="is already serving 2 requests"):
            connect(URI)


def test_a_process_without_descriptors_serves_again_once_it_has_some(endpoint: Endpoint) -> None:
    """R1: EMFILE ended the endpoint for good, without a word."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
    taken: list[int] = []
    first = os.open("/dev/null", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + 20, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for connection in waiting:
            connection.connect(str(endpoint.path))
            wire.send(connection, {"op": "hello"})
        SystemEnv().sleep(2 * connections._PAUSE_S)
        assert endpoint.error is None, repr(endpoint.error)
    finally:
        for descriptor in (first, *taken):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for connection in waiting:
        with connection:
            connection.settimeout(60)
            assert wire.receive(connection, 1000).header["pid"] == os.getpid()
    assert answers()


def test_threads_do_not_grow_with_requests(endpoint: Endpoint) -> None:
    """R1: workers are reused; whatever a thread leaves behind in Java is left by few of them."""
    served: Any = endpoint._pipeline
    for _ in range(40):
        assert answers()
    assert len(served.threads) < 10


def test_an_accepting_thread_that_dies_is_started_again_and_then_told_of(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: thread stepwell-endpoint. It is not missed silently, however often it dies."""
    told: list[BaseException] = []
    endpoint.serve(Answering(), told.append)  # type: ignore[arg-type]
    accept, left = connections.Connections._accept, [connections._RESTARTS]

    def dying(self: connections.Connections) -> None:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("out of luck")
        accept(self)

    monkeypatch.setattr(connections.Connections, "_accept", dying)
    assert answers()
    assert told == []
    left[0] = 1
    with raw(endpoint):
        wait(lambda: bool(told))
    assert str(told[0]) == "out of luck"
    assert endpoint.error is told[0]


def test_a_worker_that_dies_is_told_of(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: thread stepwell-request."""
    told: list[BaseException] = []
    endpoint.serve(Answering(), told.append)  # type: ignore[arg-type]

    def dying(self: connections.Connections, connection: connections.Connection) -> bool:
        raise SystemExit("out of luck")

    monkeypatch.setattr(connections.Connections, "_serve", dying)
    with raw(endpoint) as connection:
        connection.sendall(b"\0")
        wait(lambda: bool(told))
    assert isinstance(endpoint.error, SystemExit)


def test_a_socket_that_was_removed_is_made_again(endpoint: Endpoint) -> None:
    """R1: cleaning the temporary directory must not make a process unreachable for good."""
    os.unlink(endpoint.path)
    wait(endpoint.path.exists)
    assert answers()


def test_of_two_that_start_at_once_one_has_the_endpoint(endpoint: Endpoint) -> None:
    """R1: the other finds out at once; one that takes over has it for itself."""
    with pytest.raises(ClaimedError, match="another process on this machine has the endpoint"):
        Endpoint(None, URI, SystemEnv())
    served: Any = Answering(transaction=1, rows=pa.table({"n": [2]}))
    second = Endpoint(served, URI, SystemEnv(), take_over=True)
    client = connect(URI)
    assert client is not None
    with client:
        assert client.query("at once").to_pylist() == [{"n": 2}]
    endpoint.close()
    assert answers(), "the first must not take the socket of the second with it"
    second.close()
    assert connect(URI) is None
    Endpoint(None, URI, SystemEnv()).close()


def test_until_it_is_open_a_process_says_how_far_it_is(place: None) -> None:
    """R1: reachable from the first moment; what is asked of it is answered once it can be."""
    endpoint = Endpoint(None, URI, SystemEnv())
    endpoint.report_opening("replaying", 40)
    try:
        client = connect(URI)
        assert client is not None
        with client:
            assert client.opening == {"stage": "replaying", "percent": 40}
            assert client.status()["opening"]["percent"] == 40
            told: list[object] = []

            def on_opening(opening: Any) -> None:
                told.append(opening["percent"])
                endpoint.serve(Answering(), lambda error: None)  # type: ignore[arg-type]

            client.on_opening = on_opening
            assert client.query("at once").transaction == 1
            assert told[0] == 40
    finally:
        endpoint.close()


def test_who_waits_for_a_process_that_ends_instead_of_opening_is_told(place: None) -> None:
    """R1: nothing was applied."""
    endpoint = Endpoint(None, URI, SystemEnv())
    client = connect(URI)
    assert client is not None
    client.on_opening = lambda opening: threading.Thread(target=endpoint.close).start()
    with client, pytest.raises(UnavailableError, match="is ending"):
        client.query("at once")
    endpoint.close()


def test_a_process_that_says_nothing_is_named_after_the_time_that_was_given(place: None) -> None:
    """R1: by the number the system has for the other end."""
    endpoint = Endpoint(None, URI, SystemEnv())
    endpoint.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(str(endpoint.path))
        deaf.listen(1)
        with pytest.raises(UnavailableError) as caught:
            connect(URI, 0.2)
        assert f"process {os.getpid()} on host {socket.gethostname()}" in caught.value.message
        assert "has not answered for 0.2 s" in caught.value.message
        assert f"kill -CONT {os.getpid()}" in str(caught.value.hint)
        with ExitStack() as stack:
            for _ in range(2):
                other = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                other.setblocking(False)
                other.connect_ex(str(endpoint.path))
            with pytest.raises(UnavailableError, match="has not answered"):
                connect(URI, 0.2)


def test_nested_json_without_end_only_ends_its_connection(endpoint: Endpoint) -> None:
    """R1: whatever a peer sends."""
    told: list[BaseException] = []
    endpoint.serve(Answering(), told.append)  # type: ignore[arg-type]
    deep = b"[" * 200_000
    with raw(endpoint) as connection:
        connection.sendall(struct.pack(">I", len(deep)) + deep)
        assert connection.recv(1) == b""
    assert answers()
    assert told == []


def test_a_client_of_a_dead_peer_is_told(place: None) -> None:
    ours, theirs = socket.socketpair()
    told = pytest.raises(UnavailableError, match="process 7 on host")
    with Client(ours, timeout_s=0.1, pid=7) as client, theirs, told:
        client.status()


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.query("later"),
        lambda client: client.status(),
        lambda client: next(client.tail("later")),
    ],
    ids=["query", "status", "tail"],
)
def test_a_request_that_reads_has_a_deadline_although_the_process_is_alive(
    endpoint: Endpoint, ask: Callable[[Client], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: a worker may hang while the thread next to it sends heartbeats."""
    monkeypatch.setattr("stepwell.endpoint.client.QUERY_S_MAX", 1.0)
    client = connect(URI, 1.5)
    assert client is not None
    with client, pytest.raises(UnavailableError, match=r"not answered within 1\.5 s") as told:
        ask(client)
    assert f"process {os.getpid()} on host" in told.value.message
    assert "--timeout 1h waits longer" in str(told.value.hint)


def test_a_query_may_take_longer_than_the_timeout(place: None) -> None:
    """Heartbeats tell a process that computes from one that does not answer."""
    served: Any = Answering()
    endpoint = Endpoint(served, URI, SystemEnv())
    released = threading.Timer(3.0, served.go.set)
    try:
        client = connect(URI, 2.0)
        assert client is not None
        released.start()
        with client:
            client._connection.settimeout(30)  # A busy machine sends heartbeats late.
            assert client.query("later").to_pylist() == [{"n": 1}]
    finally:
        released.cancel()
        served.go.set()
        endpoint.close()


def test_a_push_is_waited_for_as_long_as_the_process_makes_progress(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: and given up once it makes none; whether it is in is unknown then."""
    monkeypatch.setattr("stepwell.endpoint.connections.BEAT_S", 0.1)
    monkeypatch.setattr("stepwell.endpoint.client.STALLED_S_MAX", 1.0)
    client = connect(URI, 1.0)
    assert client is not None
    until = SystemEnv().uptime() + 3

    def work() -> None:
        while SystemEnv().uptime() < until:
            endpoint.report_progress()
            done.wait(0.05)

    done = threading.Event()
    working = threading.Thread(target=work)
    working.start()
    told = pytest.raises(UnknownOutcomeError, match="has made no progress for 1 s")
    try:
        with client, told:
            client.push("orders", [{"id": 1}])
        assert SystemEnv().uptime() >= until
    finally:
        done.set()
        working.join()


def test_opening_is_waited_for_as_long_as_it_goes_on(
    place: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: opening may take longer than any timeout; one that stands still is given up."""
    monkeypatch.setattr("stepwell.endpoint.client.STALLED_S_MAX", 2.0)
    endpoint = Endpoint(None, URI, SystemEnv())
    endpoint.report_opening("replaying", 40)
    try:
        client = connect(URI, 0.5)
        assert client is not None
        client._connection.settimeout(30)  # The heartbeats of this test are slower.
        told: list[int] = []

        def on_opening(opening: Any) -> None:
            told.append(opening["percent"])
            if opening["percent"] < 43:
                endpoint.report_opening("replaying", opening["percent"] + 1)

        client.on_opening = on_opening
        with client, pytest.raises(UnavailableError, match="has not answered within 2 s"):
            client.query("at once")
        assert told[:3] == [40, 41, 42]
        assert told.count(43) >= 2
    finally:
        endpoint.close()
