"""Server side of the endpoint: answers other processes as soon as the pipeline's process starts.

Requests are `hello`, `ready`, `status`, `profile`, `query`, `push`, `explain`, `tail`,
`checkpoint`, `compact`, `change`, and `begin` of an explicit transaction (`transactions.py`). They
use the same `Pipeline` as the ingest loop, and take turns with it. Until the pipeline is open,
`hello` and `status` report the progress of opening, and all other requests wait. A request that
fails is answered with its error and affects no other request.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from stepwell.endpoint.address import make_folder, socket_path, take_lock
from stepwell.endpoint.connections import Connection, Connections
from stepwell.endpoint.transactions import (
    OpenTransaction,
    pushed_parts,
    receipt_json,
    serve_transaction,
)
from stepwell.endpoint.wire import ConnectionLost, Header, Message, encode, error_json
from stepwell.engine.answer import Answer
from stepwell.engine.profile import Profile
from stepwell.engine.pushed import Receipt
from stepwell.engine.status import Status
from stepwell.engine.tail import Tail
from stepwell.env import Env
from stepwell.errors import ClaimedError, InvalidError, StepwellError, UnavailableError
from stepwell.manifest.manifest import CheckpointRef

_BACKLOG = 128
_BEAT_S = 1.0
"""Interval of the heartbeats of a tail without changes."""
_END_S_MAX = 5.0
"""Longest wait of `close` for requests in progress."""


class Explained(Protocol):
    def to_json(self) -> Mapping[str, object]: ...


class Served(Protocol):
    """The part of a pipeline that the endpoint uses."""

    @property
    def stopping(self) -> bool: ...
    def status(self) -> Status: ...
    def profile(self, transactions: int | None = None) -> Profile: ...
    def query(self, sql: str) -> Answer: ...
    def explain(self, view: str) -> Explained: ...
    def tail(self, view: str) -> Tail: ...
    def compact(self, *, detach: bool = False) -> bool: ...
    def checkpoint(
        self, name: str | None = None, *, keep_s: float | None = None
    ) -> CheckpointRef | None: ...
    def change(
        self, program: Any, before: str, building: Callable[[str], None]
    ) -> Mapping[str, object]: ...
    def push(
        self,
        table: str,
        rows: Any | None = None,
        *,
        delete: Any | None = None,
        discard: Any | None = None,
        bad: Any = (),
        key: str | None = None,
    ) -> Receipt: ...
    def transaction(self, *, key: str | None = None) -> OpenTransaction: ...


class Endpoint:
    """Reachable from construction until `close`; answers all requests after `serve`."""

    def __init__(
        self,
        pipeline: Served | None,
        store_uri: str,
        env: Env,
        *,
        take_over: bool = False,
    ) -> None:
        """Raise `ClaimedError` if another process of this machine has the endpoint.

        With `take_over` the endpoint is taken from that process.
        """
        self._pipeline = pipeline
        self._env = env
        self._progress = 0
        self._pid, self._host = env.pid, env.host
        self._opening: dict[str, object] = {"stage": "starting", "percent": 0}
        self._serving = threading.Condition()
        self._closing = False
        self.failed: Callable[[BaseException], None] | None = None
        """Called with the error that a thread of this endpoint died of."""
        self.error: BaseException | None = None
        self.path = socket_path(store_uri)
        make_folder(self.path)
        locked = take_lock(self.path, force=take_over)
        if locked is None:
            raise ClaimedError(f"another process on this machine has the endpoint {self.path}")
        self._locked = locked
        self._inode = 0
        try:
            self._connections = Connections(
                self._listener, env, self._answer, self._beat, self._thread_failed
            )
        except BaseException:
            os.close(self._locked)
            raise

    def report_opening(self, stage: str, percent: int) -> None:
        """Set the progress of opening, for clients that ask in the meantime."""
        self._opening = {"stage": stage, "percent": percent}

    def report_progress(self) -> None:
        """Tell waiting clients that the process makes progress, whatever it works on."""
        self._progress += 1

    def serve(self, pipeline: Served, failed: Callable[[BaseException], None]) -> None:
        """Answer all requests from now on; `failed` is called if a thread dies or has died."""
        with self._serving:
            self._pipeline, self.failed = pipeline, failed
            self._serving.notify_all()
        if self.error is not None:
            failed(self.error)

    def close(self) -> None:
        """Accept no more requests, and let those in progress finish."""
        with suppress(OSError):
            # A process that took over has put its own socket there.
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        self._inode = 0
        self._connections.stop()
        with self._serving:
            self._closing = True
            self._serving.notify_all()
        self._connections.close(_END_S_MAX)
        if self._locked >= 0:
            os.close(self._locked)
            self._locked = -1

    def _listener(self, listener: socket.socket | None) -> socket.socket:
        """Return a listener at our path: the given one, unless its name was removed."""
        if listener is not None and (self._closing or os.path.lexists(self.path)):
            return listener
        try:
            make_folder(self.path)
            made = _listen(self.path, self._pid)
            self._inode = os.stat(self.path).st_ino
        except (StepwellError, OSError):
            if listener is None:
                raise
            return listener  # Tried again in a second.
        return made

    def _thread_failed(self, error: BaseException) -> None:
        self.error = self.error or error
        if self.failed is not None:
            self.failed(error)

    def _beat(self) -> Header:
        opening = self._opening if self._pipeline is None else None
        return {"beat": opening, "progress": self._progress}

    def _ready(self) -> Served:
        """Wait until the pipeline is open, and return it."""
        with self._serving:
            self._serving.wait_for(lambda: self._pipeline is not None or self._closing)
            if self._pipeline is None or self._closing:
                raise UnavailableError(
                    "the process that runs the pipeline is ending",
                    hint="try again in a moment",
                    not_applied=True,
                )
            return self._pipeline

    def _answer(self, connection: Connection, request: Message) -> None:
        operations: dict[str, Callable[[Connection, Message], None]] = {
            "hello": self._hello,
            "ready": self._is_open,
            "status": self._status,
            "profile": self._profile,
            "query": self._query,
            "push": self._push,
            "explain": self._explain,
            "tail": self._tail,
            "checkpoint": self._checkpoint,
            "compact": self._compact,
            "change": self._change,
            "begin": self._begin,
        }
        try:
            name = str(request.header.get("op"))
            if name not in operations:
                raise InvalidError(f"there is no operation {name}")
            operations[name](connection, request)
        except StepwellError as error:
            connection.send({"error": error_json(error)})
        except ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - reported to the client; the loop continues
            told = StepwellError(f"unexpected {type(error).__name__}: {error}")
            connection.send({"error": error_json(told)})

    def _hello(self, connection: Connection, request: Message) -> None:
        opening = self._opening if self._pipeline is None else None
        connection.send({"pid": self._pid, "host": self._host, "opening": opening})

    def _is_open(self, connection: Connection, request: Message) -> None:
        self._ready()
        connection.send({})

    def _status(self, connection: Connection, request: Message) -> None:
        pipeline = self._pipeline
        if pipeline is None:
            connection.send({"opening": self._opening, "pid": self._pid})
        else:
            status = {**asdict(pipeline.status()), "profile": pipeline.profile().summary()}
            connection.send({"status": status, "pid": self._pid})

    def _profile(self, connection: Connection, request: Message) -> None:
        number = request.header.get("transactions")
        profile = self._ready().profile(None if number is None else int(number))
        connection.send({"profile": profile.to_json()})

    def _query(self, connection: Connection, request: Message) -> None:
        answer = self._ready().query(_text(request, "sql"))
        connection.send({"transaction": answer.transaction}, [answer.rows])

    def _push(self, connection: Connection, request: Message) -> None:
        table, rows, others = pushed_parts(request)
        taken = self._ready().push(table, rows, **others, key=_key(request))
        connection.send(receipt_json(taken))

    def _begin(self, connection: Connection, request: Message) -> None:
        pipeline, key = self._ready(), _key(request)
        serve_transaction(
            connection,
            lambda: pipeline.transaction(key=key),
            self._env,
            lambda: self._closing or pipeline.stopping,
        )

    def _explain(self, connection: Connection, request: Message) -> None:
        explained = self._ready().explain(_text(request, "view"))
        connection.send({"text": str(explained), "json": explained.to_json()})

    def _checkpoint(self, connection: Connection, request: Message) -> None:
        name, keep_s = request.header.get("name"), request.header.get("keep_s")
        ref = self._ready().checkpoint(
            None if name is None else _text(request, "name"),
            keep_s=None if keep_s is None else float(keep_s),
        )
        connection.send({"id": None if ref is None else ref.id})

    def _compact(self, connection: Connection, request: Message) -> None:
        detach = request.header.get("detach") is True
        connection.send({"compacted": self._ready().compact(detach=detach)})

    def _change(self, connection: Connection, request: Message) -> None:
        program, before = request.header.get("program"), _text(request, "before")

        def building(name: str) -> None:
            connection.beat(encode({"beat": None, "building": name}))

        connection.send({"changed": self._ready().change(program, before, building)})

    def _tail(self, connection: Connection, request: Message) -> None:
        tail = self._ready().tail(_text(request, "view"))
        try:
            connection.send({"following": tail.view})
            while not self._closing:
                changed = tail.take(_BEAT_S)
                if changed is None:
                    connection.send({})  # This detects a client that has hung up.
                else:
                    connection.send({"transaction": changed[0]}, [changed[1]])
        finally:
            tail.close()
        connection.send({"end": True})


def _listen(path: Path, pid: int) -> socket.socket:
    """Listen at a path. The socket is created under another name and renamed atomically."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own = path.with_suffix(f".{pid}")
    try:
        with suppress(FileNotFoundError):
            os.unlink(own)
        listener.bind(str(own))
        os.chmod(own, 0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        os.replace(own, path)
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"no endpoint can be created at {path}: {error.strerror or error}",
            hint="set TMPDIR to a directory with a short name",
            not_applied=True,
        ) from error
    return listener


def _key(request: Message) -> str | None:
    return None if request.header.get("key") is None else _text(request, "key")


def _text(request: Message, name: str) -> str:
    value = request.header.get(name)
    if not isinstance(value, str):
        raise InvalidError(f"the request has no {name}")
    return value
