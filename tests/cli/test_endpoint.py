"""The local endpoint of a pipeline: what it answers, what it refuses, and whom it lets in."""

from __future__ import annotations

import json
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from stepwell.cli.pipeline_access import PipelineAccess
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.endpoint import wire
from stepwell.endpoint.address import socket_path
from stepwell.endpoint.client import Client, connect
from stepwell.endpoint.server import Endpoint
from stepwell.env import SystemEnv
from stepwell.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    SqlError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import BadRow
from stepwell.plan.explain import Chosen, Explained
from tests.cli.projects import load, wait, write_project

ROWS = pa.table({"id": [1, 2], "customer": ["ada", "bob"], "amount": [1, 2]})


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProjectPipeline]:
    project = load(write_project(tmp_path / "project"))
    # Not below tmp_path, which is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="sw") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        with ProjectPipeline(project, SystemEnv()) as opened:
            yield opened
        monkeypatch.undo()


def test_a_place_that_is_too_long_for_a_socket_is_told(
    pipeline: ProjectPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(UnavailableError, match="no endpoint can be created") as caught:
        Endpoint(pipeline, pipeline.store.uri, SystemEnv())
    assert "TMPDIR" in str(caught.value.hint)


@pytest.fixture
def endpoint(pipeline: ProjectPipeline) -> Iterator[Endpoint]:
    made = Endpoint(pipeline, pipeline.store.uri, SystemEnv())
    yield made
    made.close()


@pytest.fixture
def client(endpoint: Endpoint, pipeline: ProjectPipeline) -> Iterator[Client]:
    found = connect(pipeline.store.uri)
    assert found is not None
    with found:
        yield found


def raw(endpoint: Endpoint) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(str(endpoint.path))
    return connection


def test_everything_can_be_asked_over_one_connection(client: Client) -> None:
    bad = [BadRow("line 3", "no number", "x")]
    assert client.push("orders", ROWS, bad=bad) == 1
    assert client.push("Orders", None, delete=pa.table({"id": [2]})) == 2
    answer = client.query("SELECT customer, n FROM revenue")
    assert (answer.transaction, answer.to_pylist()) == (2, [{"customer": "ada", "n": 1}])
    status = client.status()
    assert (status["transaction"], status["pid"]) == (2, os.getpid())
    assert status["dead_letters"] == {"orders": 1}


def test_an_error_arrives_as_what_it_is(client: Client) -> None:
    """By what the caller must do next, not as a text."""
    with pytest.raises(InvalidError, match="there is no table order") as caught:
        client.push("order", ROWS)
    assert caught.value.hint == "did you mean orders?"
    with pytest.raises(SqlError, match="expected SELECT") as wrong:
        client.query("DROP TABLE orders")
    assert (wrong.value.line, wrong.value.column) == (1, 1)
    fence = FencedError("gone", epoch=3, host="h", pid=7, time="t", hint="stop")
    told = wire.error_from(json.loads(json.dumps(wire.error_json(fence))))
    assert isinstance(told, FencedError)
    assert (told.message, told.hint, told.epoch, told.pid) == ("gone", "stop", 3, 7)
    odd = wire.error_from({"type": "ensure", "message": "not a kind of error"})
    assert str(odd) == "not a kind of error"


def test_an_error_about_a_huge_request_is_cut_and_ends_nothing(
    endpoint: Endpoint, client: Client
) -> None:
    """R1: an error that quoted a request of 16 MiB was too large to be sent, and ended the run."""
    with pytest.raises(InvalidError) as caught:
        client.push("x" * (wire.HEADER_BYTES_MAX - 120), ROWS)
    message = caught.value.message
    assert message.startswith("there is no table xxx"), message[:100]
    assert len(message) <= wire.ERROR_CHARACTERS_MAX + 10
    assert client.push("orders", ROWS) == 1
    assert endpoint.error is None
    long = "x" * 99_999
    told = wire.error_json(SqlError(long, file=long, line=1, column=2, hint=long))
    assert len(json.dumps(told)) < 4 * wire.ERROR_CHARACTERS_MAX
    assert wire.error_from(told).line == 1  # type: ignore[attr-defined]


def test_a_tail_is_told_of_changes_until_the_end(
    endpoint: Endpoint, client: Client, pipeline: ProjectPipeline
) -> None:
    seen: list[object] = []

    def follow() -> None:
        seen.extend(changed for changed in client.tail("revenue") if changed is not None)

    thread = threading.Thread(target=follow)
    thread.start()
    wait(lambda: bool(pipeline._tails))
    pipeline.push("orders", ROWS)
    wait(lambda: len(seen) == 1)
    endpoint.close()
    thread.join(10)
    assert not thread.is_alive()


def test_an_invalid_message_is_refused_and_harms_no_client(
    endpoint: Endpoint, client: Client
) -> None:
    """Sizes are bounded before anything is read."""
    header = json.dumps({"format": 2, "parts": [wire.REQUEST_BYTES_MAX + 1], "op": "push"}).encode()
    for junk in (
        struct.pack(">I", wire.HEADER_BYTES_MAX + 1),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", len(header)) + header,
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with raw(endpoint) as connection:
            connection.sendall(junk)
            try:
                answer = connection.recv(1)
            except ConnectionResetError:
                answer = b""
            assert answer == b"", "it hangs up"
    assert client.status()["transaction"] == 0


def test_an_unknown_operation_or_rows_that_are_none_are_answered(endpoint: Endpoint) -> None:
    with raw(endpoint) as connection:
        for request, said in (
            ({"op": "destroy"}, "no operation destroy"),
            ({"op": "query"}, "the request has no sql"),
            ({"op": "push", "table": "orders"}, "a push has three tables"),
        ):
            wire.send(connection, request)
            answer = wire.receive(connection, 1000)
            assert said in answer.header["error"]["message"]


def test_another_format_is_named() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        head = json.dumps({"format": 9, "parts": []}).encode()
        theirs.sendall(struct.pack(">I", len(head)) + head)
        with pytest.raises(InvalidError, match="speaks format 9, this one 3"):
            wire.receive(ours, 10)
        head = json.dumps({"format": 3, "parts": [3]}).encode()
        theirs.sendall(struct.pack(">I", len(head)) + head + b"abc")
        with pytest.raises(CorruptError, match="cannot be read"):
            wire.receive(ours, 10)


def test_a_push_whose_answer_does_not_come_has_an_unknown_outcome() -> None:
    """J1: a client without an answer must check, and not push again blindly."""
    ours, theirs = socket.socketpair()
    with Client(ours) as client:
        theirs.close()
        with pytest.raises(UnknownOutcomeError, match="went away before it answered"):
            client.push("orders", ROWS)
    ours, theirs = socket.socketpair()
    with Client(ours) as client:
        theirs.close()
        with pytest.raises(UnavailableError):
            client.status()


def test_only_this_user_can_get_in(endpoint: Endpoint, pipeline: ProjectPipeline) -> None:
    """Security: the folder is what guards the socket."""
    folder = endpoint.path.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert endpoint.path.stat().st_mode & 0o777 == 0o600
    folder.chmod(0o755)
    with pytest.raises(UnavailableError, match="no other user can enter"):
        connect(pipeline.store.uri)
    with pytest.raises(UnavailableError, match="no other user can enter"):
        Endpoint(pipeline, pipeline.store.uri, SystemEnv())
    folder.chmod(0o700)


def test_a_socket_without_a_listener_counts_as_none(pipeline: ProjectPipeline) -> None:
    """A process that was killed leaves one."""
    assert connect(pipeline.store.uri) is None
    path = socket_path(pipeline.store.uri)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    assert connect(pipeline.store.uri) is None
    made = Endpoint(pipeline, pipeline.store.uri, SystemEnv())
    found = connect(pipeline.store.uri)
    assert found is not None
    found.close()
    made.close()
    assert not path.exists()


def test_the_same_directory_by_another_name_is_the_same_pipeline(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "state")
    assert socket_path(f"file://{tmp_path}/link") == socket_path(f"file://{tmp_path}/state")
    assert socket_path("s3://a/b") != socket_path("s3://a/c")


def test_closing_does_not_wait_for_a_client_that_says_nothing(
    endpoint: Endpoint, pipeline: ProjectPipeline
) -> None:
    env = SystemEnv()
    with raw(endpoint):
        wait(lambda: endpoint._connections.count == 1)
        before = env.uptime()
        endpoint.close()
        assert env.uptime() - before < 2


def test_an_explanation_is_asked_of_the_process_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Explaining(ReferenceExecutor):
        def explain(self, view: str) -> Explained:
            return Explained(view, (), (), Chosen((), None))

    project, env = load(write_project(tmp_path / "project")), SystemEnv()
    with (
        tempfile.TemporaryDirectory(prefix="sw") as short,
        monkeypatch.context() as patch,
        ProjectPipeline(
            project, env, executor=lambda p, _: lambda s, e: Explaining(p.sql, s, e)
        ) as pipeline,
    ):
        patch.setattr("tempfile.tempdir", short)
        endpoint = Endpoint(pipeline, pipeline.store.uri, env)
        found = connect(pipeline.store.uri)
        assert found is not None
        with found:
            text, document = found.explain("REVENUE")
        assert (text, document["view"]) == ("revenue\n  backend: local", "revenue")
        endpoint.close()


def test_a_push_that_is_fenced_goes_to_the_new_writer(pipeline: ProjectPipeline) -> None:
    """`run` may start while a push has the pipeline; no row is lost, and none comes twice."""
    env = SystemEnv()
    pipeline.close()
    reach = PipelineAccess(pipeline.project, env, take_over=False)
    assert reach.push("orders", Change(ROWS), ()) == 1
    with ProjectPipeline(pipeline.project, env) as second:
        endpoint = Endpoint(second, second.store.uri, env)
        assert reach.push("orders", Change(ROWS.slice(1)), ()) == 2
        gone = ROWS.select(["id"]).slice(1)
        assert reach.push("orders", Change(None, gone), ()) == 3
        assert reach.push("orders", Change(discard=gone), ()) == 4
        assert second.table("orders$errors").num_rows == 0
        reach.close()
        endpoint.close()
        assert second.query("SELECT id FROM orders").to_pylist() == [{"id": 1}]


def test_a_pipeline_whose_process_does_not_answer_is_not_fenced(
    pipeline: ProjectPipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """F3: it may be starting, or be somebody's notebook."""
    other = SystemEnv()
    # Seen from its parent, which is alive as long as this process is.
    parent = replace(other.process, pid=os.getppid(), started=None)
    monkeypatch.setattr(type(other), "process", property(lambda self: parent))
    reach = PipelineAccess(pipeline.project, other, take_over=False, timeout_s=0.1)
    with pytest.raises(ConflictError, match="and does not answer") as caught:
        reach.push("orders", Change(ROWS), ())
    assert "--take-over" in str(caught.value.hint)
    assert "waiting for process" in capsys.readouterr().err
    monkeypatch.undo()
