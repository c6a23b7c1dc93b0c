"""An HTTP server on the loopback address that answers as a test tells it to, and a store at it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote

import pytest

from stepwell.errors import StepwellError, UnavailableError
from stepwell.store.base import Store
from stepwell.store.objects import ObjectsStore, Settings
from stepwell.testing import ManualEnv

# Nothing here waits for somebody else's machine, so failing fast is right.
HASTY = Settings(
    connect_timeout_s=5,
    request_timeout_s=20,
    retry_timeout_s=20,
    retries_max=2,
    backoff_s_min=0.001,
    backoff_s_max=0.002,
    attempts_max=3,
)
SECRET = "test-secret"
# Always given, so that no test looks for credentials elsewhere.
OPTIONS: dict[str, str | bool] = {
    "region": "us-east-1",
    "access_key_id": "test-key-id",
    "secret_access_key": SECRET,
    "allow_http": True,
}
FOUND = {"ETag": '"1"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
CALLS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("a/b"),
    "get_range": lambda store: store.get_range("a/b", 0, 1),
    "get_range of nothing": lambda store: store.get_range("a/b", 0, 0),
    "exists": lambda store: store.exists("a/b"),
    "list": lambda store: store.list("a/"),
    "put_new": lambda store: store.put_new("a/b", b"x"),
    "replace_if": lambda store: store.replace_if("a/b", b"x", '"1"'),
    "delete": lambda store: store.delete("a/b"),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
READS = ("get", "get_range", "exists", "list")


def at(
    endpoint: str, settings: Settings = HASTY, bucket: str = "acme", **more: str
) -> ObjectsStore:
    """A store at a stub, with a clock that never waits."""
    options = {**OPTIONS, "endpoint": endpoint, **more}
    return ObjectsStore("s3", bucket, "orders", ManualEnv(), settings, **options)


def refusal(call: Callable[[Store], object], store: Store) -> StepwellError:
    """The error of a call that must fail as unavailable, and must not tell our secret."""
    with pytest.raises(UnavailableError) as caught:
        call(store)
    assert store.uri in str(caught.value)
    assert SECRET not in str(caught.value)
    return caught.value


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Reply(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Stub:
    """An HTTP server that answers by `answer` and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[Request], Reply] = lambda request: Reply(500)
        self.requests: list[Request] = []
        self.released = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = Request(self.command, self.path, self.headers, self.rfile.read(length))
                stub.requests.append(request)
                reply = stub.answer(request)
                self.send_response(reply.status)
                for name, value in {
                    "Content-Length": str(len(reply.body)),
                    **reply.headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that hung up before its answer came is not reported."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def stall(self, request: Request) -> Reply:
        """Do not answer until the test is over."""
        self.released.wait()
        return Reply(500)


class Versions:
    """A bucket with as much of S3, Google and Azure as conditional writes need.

    One that does not `honour` conditions accepts every write, as some S3-compatible servers do.
    """

    def __init__(self, *, honour: bool = True, missing: str = "NoSuchKey") -> None:
        self.honour = honour
        self.missing = missing
        self.objects: dict[str, tuple[int, bytes]] = {}
        self._writes = 0

    def __call__(self, request: Request) -> Reply:
        key = unquote(request.path)
        if request.method == "POST":  # S3 deletes many at once.
            names = re.findall(rb"<Key>(.*?)</Key>", request.body)
            for name in names:
                self.objects.pop(f"{key.partition('?')[0]}/{name.decode()}", None)
            gone = b"".join(b"<Deleted><Key>" + name + b"</Key></Deleted>" for name in names)
            return Reply(200, b"<DeleteResult>" + gone + b"</DeleteResult>")
        version, data = self.objects.get(key, (0, b""))
        if request.method == "PUT":
            if self.honour and not self._holds(request.headers, version):
                return Reply(412, error("PreconditionFailed"))
            self._writes += 1
            self.objects[key] = (self._writes, request.body)
            return Reply(200, b"", _headers(self._writes))
        if not version:
            return Reply(404, error(self.missing))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range") or "")
        if not wanted:
            return Reply(200, data, _headers(version))
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        if start >= len(data):
            return Reply(416, error("InvalidRange"))
        place = f"bytes {start}-{end - 1}/{len(data)}"
        return Reply(206, data[start:end], {**_headers(version), "Content-Range": place})

    @staticmethod
    def _holds(headers: Mapping[str, str], version: int) -> bool:
        generation = headers.get("x-goog-if-generation-match")
        if generation is not None:
            return int(generation) == version
        if headers.get("If-None-Match") == "*":
            return version == 0
        expected = headers.get("If-Match")
        return expected is None or (version > 0 and expected == f'"{version}"')


def error(code: str, message: str = "") -> bytes:
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


def _headers(version: int) -> dict[str, str]:
    return {
        "ETag": f'"{version}"',
        "x-goog-generation": str(version),
        "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT",
    }


def listing(*keys: str, more: bool = False) -> bytes:
    items = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified>"
        f'<ETag>"1"</ETag><Size>1</Size></Contents>'
        for key in keys
    )
    token = "<NextContinuationToken>more</NextContinuationToken>" if more else ""
    return f"<ListBucketResult>{items}{token}</ListBucketResult>".encode()
