"""The side of the process that runs a pipeline: answers others, one thread for each of them.

Requests are `status`, `query`, `push`, `explain`, `tail`, `checkpoint`, `compact` and `change`.
They use the same `Pipeline` as the loop, and take turns with it. A request that fails is answered
with its error, and changes nothing for anybody else.
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

import pyarrow as pa

from stepwell.endpoint.place import make_folder, socket_path
from stepwell.endpoint.wire import REQUEST_BYTES_MAX, Gone, Message, error_json, receive, send
from stepwell.engine.pipeline import Status
from stepwell.engine.ports import BadRow
from stepwell.engine.tail import Tail
from stepwell.env import Env
from stepwell.errors import InvalidError, StepwellError, UnavailableError
from stepwell.model import Transaction
from stepwell.state.manifest import CheckpointRef

CONNECTIONS_MAX = 64
_WAIT_S_MAX = 60.0
"""How long a client may be silent in the middle of a request."""
_BEAT_S = 1.0
"""How often a tail without changes says that it is alive."""
_END_S_MAX = 5.0
"""How long the end waits for requests under way."""


class Asked(Protocol):
    """What `ask` gives."""

    @property
    def transaction(self) -> Transaction: ...
    @property
    def rows(self) -> pa.Table: ...


class Explained(Protocol):
    def to_json(self) -> Mapping[str, object]: ...


class Served(Protocol):
    """What is asked of a pipeline here."""

    def status(self) -> Status: ...
    def ask(self, sql: str) -> Asked: ...
    def explain(self, view: str) -> Explained: ...
    def tail(self, view: str) -> Tail: ...
    def compact(self, *, detach: bool = False) -> bool: ...
    def checkpoint(
        self, name: str | None = None, *, keep_s: float | None = None
    ) -> CheckpointRef | None: ...
    def change(self, program: Any, before: str) -> Mapping[str, object]: ...
    def push(
        self,
        table: str,
        rows: Any | None = None,
        *,
        delete: Any | None = None,
        discard: Any | None = None,
        bad: Any = (),
    ) -> Transaction: ...


class Endpoint:
    """Serves from the moment it is made until it is closed."""

    def __init__(self, pipeline: Served, store_uri: str, env: Env) -> None:
        self._pipeline = pipeline
        self._pid = env.pid
        self._ending = threading.Event()
        self._busy: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self.path = socket_path(store_uri)
        make_folder(self.path)
        self._listener = _listen(self.path, env.pid)
        self._inode = os.stat(self.path).st_ino
        self._thread = threading.Thread(target=self._accept, name="stepwell-endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more requests, and let those under way end."""
        self._ending.set()
        with suppress(OSError):
            # A process that took over has put its own socket there.
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            busy = dict(self._busy)
        for connection in busy.values():
            with suppress(OSError):
                # Whoever waits for a next request sees the end; answers can still be sent.
                connection.shutdown(socket.SHUT_RD)
        for thread in busy:
            thread.join(_END_S_MAX)

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="stepwell-request", daemon=True
            )
            with self._lock:
                full = len(self._busy) >= CONNECTIONS_MAX
                if not full:
                    self._busy[thread] = connection
                    # Within the lock: `close` waits for those it finds, which must have begun.
                    thread.start()
            if full:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_WAIT_S_MAX)
                while not self._ending.is_set():
                    self._answer(connection, receive(connection, REQUEST_BYTES_MAX))
        except (Gone, StepwellError):
            pass  # It hung up, or does not speak our language.
        finally:
            with self._lock:
                self._busy.pop(threading.current_thread(), None)

    def _answer(self, connection: socket.socket, request: Message) -> None:
        operations: dict[str, Callable[[socket.socket, Message], None]] = {
            "status": self._status,
            "query": self._query,
            "push": self._push,
            "explain": self._explain,
            "tail": self._tail,
            "checkpoint": self._checkpoint,
            "compact": self._compact,
            "change": self._change,
        }
        try:
            name = str(request.header.get("op"))
            if name not in operations:
                raise InvalidError(f"there is no operation {name}")
            if self._ending.is_set():
                raise UnavailableError(
                    "the process that runs the pipeline is ending",
                    hint="try again in a moment",
                    not_applied=True,
                )
            operations[name](connection, request)
        except StepwellError as error:
            send(connection, {"error": error_json(error)})
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 - told to whoever asked; the loop goes on
            told = StepwellError(f"unexpected {type(error).__name__}: {error}")
            send(connection, {"error": error_json(told)})

    def _status(self, connection: socket.socket, request: Message) -> None:
        send(connection, {"status": asdict(self._pipeline.status()), "pid": self._pid})

    def _query(self, connection: socket.socket, request: Message) -> None:
        answer = self._pipeline.ask(_text(request, "sql"))
        send(connection, {"transaction": answer.transaction}, [answer.rows])

    def _push(self, connection: socket.socket, request: Message) -> None:
        if len(request.tables) != 3:
            raise InvalidError("a push has three tables: rows to put, to delete, and to discard")
        put, delete, discard = request.tables
        bad = [
            BadRow(str(item[0]), str(item[1]), str(item[2]))
            for item in request.header.get("bad", ())
        ]
        table = _text(request, "table")
        transaction = self._pipeline.push(table, put, delete=delete, discard=discard, bad=bad)
        send(connection, {"transaction": transaction})

    def _explain(self, connection: socket.socket, request: Message) -> None:
        explained = self._pipeline.explain(_text(request, "view"))
        send(connection, {"text": str(explained), "json": explained.to_json()})

    def _checkpoint(self, connection: socket.socket, request: Message) -> None:
        name, keep_s = request.header.get("name"), request.header.get("keep_s")
        ref = self._pipeline.checkpoint(
            None if name is None else _text(request, "name"),
            keep_s=None if keep_s is None else float(keep_s),
        )
        send(connection, {"id": None if ref is None else ref.id})

    def _compact(self, connection: socket.socket, request: Message) -> None:
        detach = request.header.get("detach") is True
        send(connection, {"compacted": self._pipeline.compact(detach=detach)})

    def _change(self, connection: socket.socket, request: Message) -> None:
        program, before = request.header.get("program"), _text(request, "before")
        send(connection, {"changed": self._pipeline.change(program, before)})

    def _tail(self, connection: socket.socket, request: Message) -> None:
        tail = self._pipeline.tail(_text(request, "view"))
        try:
            send(connection, {"following": tail.view})
            while not self._ending.is_set():
                changed = tail.take(_BEAT_S)
                if changed is None:
                    send(connection, {})  # Whoever has hung up is found out by this.
                else:
                    send(connection, {"transaction": changed[0]}, [changed[1]])
        finally:
            tail.close()
        send(connection, {"end": True})


def _listen(path: Path, pid: int) -> socket.socket:
    """A socket under its name at once: made under another one, and renamed."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own = path.with_suffix(f".{pid}")
    try:
        with suppress(FileNotFoundError):
            os.unlink(own)
        listener.bind(str(own))
        os.chmod(own, 0o600)
        listener.listen(CONNECTIONS_MAX)
        os.replace(own, path)
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"no endpoint can be made at {path}: {error.strerror or error}",
            hint="set TMPDIR to a directory with a short name",
            not_applied=True,
        ) from error
    return listener


def _text(request: Message, name: str) -> str:
    value = request.header.get(name)
    if not isinstance(value, str):
        raise InvalidError(f"the request has no {name}")
    return value
