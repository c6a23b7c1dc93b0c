"""The side of every other process: asks the one that runs the pipeline, if one does.

No call waits without end. A process that works on a request says so every second; one that has said
nothing for `timeout_s` is stopped, or as good as, and is named.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from stepwell.endpoint.place import check_folder, socket_path
from stepwell.endpoint.transactions import RemoteTransaction, push_request
from stepwell.endpoint.wire import (
    ANSWER_BYTES_MAX,
    Gone,
    Message,
    Silent,
    error_from,
    receive,
    send,
)
from stepwell.engine.ports import BadRow
from stepwell.engine.pushed import Receipt, Rows
from stepwell.errors import UnavailableError, UnknownOutcomeError
from stepwell.model import Transaction

TIMEOUT_S = 30.0
PUSH_AGAIN = "push again with the same key: what is in already is not taken a second time"
_LOOK_FIRST = (
    "these rows may be in, or not: look with stepwell query before pushing again; a push with a "
    "key can be repeated without looking"
)
_RETRY_S = 0.05

Opening = Mapping[str, Any]
"""`stage` and `percent`: how far a process is that opens a pipeline."""


class Client:
    """A connection to a process that runs a pipeline, or opens it. For one thread."""

    def __init__(
        self, connection: socket.socket, *, timeout_s: float = TIMEOUT_S, pid: int | None = None
    ) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self.pid = pid
        self.opening: Opening | None = None
        """How far it was when it was last heard of; None: it is open."""
        self.on_opening: Callable[[Opening], None] = lambda opening: None
        """Told while an answer has to wait for the pipeline to be opened."""
        connection.settimeout(timeout_s)

    def hello(self) -> None:
        """Find out whether it answers at all, before anything is asked of it."""
        header = self._ask({"op": "hello"}).header
        self.pid, self.opening = int(header["pid"]), header.get("opening")

    def ready(self) -> None:
        """Wait until it has opened the pipeline."""
        self._ask({"op": "ready"})

    def status(self) -> Mapping[str, Any]:
        """Its `Status` as JSON, and `pid`; or, while it opens, `opening` and `pid`."""
        header = self._ask({"op": "status"}).header
        if "opening" in header:
            return {"opening": header["opening"], "pid": header["pid"]}
        return {**header["status"], "pid": header["pid"]}

    def query(self, sql: str) -> tuple[Transaction, pa.Table]:
        answer = self._ask({"op": "query", "sql": sql})
        return Transaction(int(answer.header["transaction"])), answer.tables[0]

    def explain(self, view: str) -> tuple[str, Mapping[str, Any]]:
        """As text, and as JSON."""
        header = self._ask({"op": "explain", "view": view}).header
        return header["text"], header["json"]

    def change(self, program: Mapping[str, Any], before: str) -> Mapping[str, Any]:
        """Have another program computed; `before` says which one it is to be changed from.

        `UnknownOutcomeError` if the process went away before it answered.
        """
        try:
            send(self._connection, {"op": "change", "program": program, "before": before})
            answer = self._answer()
        except Gone as gone:
            raise UnknownOutcomeError(
                self._lost(gone), hint="deploy again: it finds out what has happened"
            ) from gone
        changed: Mapping[str, Any] = answer.header["changed"]
        return changed

    def push(
        self,
        table: str,
        rows: Rows | None = None,
        *,
        delete: Rows | None = None,
        discard: Rows | None = None,
        bad: Sequence[BadRow] = (),
        key: str | None = None,
    ) -> Receipt:
        """Durable when it returns. `UnknownOutcomeError` if the process went away before: with a
        `key` the same push can be sent again.
        """
        request, tables = push_request("push", table, (rows, delete, discard), bad, key=key)
        try:
            send(self._connection, request, tables)
            answer = self._answer()
        except Gone as gone:
            raise UnknownOutcomeError(
                self._lost(gone),
                hint=PUSH_AGAIN if key is not None else _LOOK_FIRST,
            ) from gone
        return Receipt(*(int(answer.header[n]) for n in ("transaction", "rows", "rejected")))

    def transaction(self, *, key: str | None = None) -> RemoteTransaction:
        """Begin an explicit transaction, once no other one is open; use it in a `with`.

        While it is open everybody else waits, so it is rolled back if nothing is asked of it for 30
        seconds, after 10 minutes, and when this client goes away. It needs the connection for
        itself: ask nothing else of this client before it has ended.
        """
        self._ask({"op": "begin", "key": key})
        return RemoteTransaction(self._exchange, self.close, key)

    def _exchange(self, request: Mapping[str, object], tables: Sequence[Any]) -> Message:
        try:
            send(self._connection, request, tables)
        except Gone:
            with suppress(Gone):
                self._answer()  # It may have said why it hung up.
            raise
        return self._answer()

    def checkpoint(self, name: str | None, keep_s: float | None) -> str:
        """The id of the new checkpoint."""
        answer = self._ask({"op": "checkpoint", "name": name, "keep_s": keep_s})
        return str(answer.header["id"])

    def compact(self, *, detach: bool = False) -> bool:
        return bool(self._ask({"op": "compact", "detach": detach}).header["compacted"])

    def tail(self, view: str) -> Iterator[tuple[Transaction, pa.Table] | None]:
        """Changes as they are committed, with a None now and then; ends with the process."""
        try:
            send(self._connection, {"op": "tail", "view": view})
            while "end" not in (answer := self._answer()).header:
                if "transaction" in answer.header:
                    yield Transaction(int(answer.header["transaction"])), answer.tables[0]
                else:
                    yield None
        except Silent as silent:
            raise self._unanswered() from silent
        except Gone:
            return

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """End what is waited for, as if the other side had gone; from any thread or signal."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, request: Mapping[str, object]) -> Message:
        try:
            send(self._connection, request)
            return self._answer()
        except Silent as silent:
            raise self._unanswered() from silent
        except Gone as gone:
            raise UnavailableError(
                f"the process that runs the pipeline went away: {gone}", hint="try again"
            ) from gone

    def _answer(self) -> Message:
        while True:
            answer = receive(self._connection, ANSWER_BYTES_MAX)
            if "error" in answer.header:
                raise error_from(answer.header["error"])
            if "beat" not in answer.header:
                return answer
            self.opening = answer.header["beat"]
            if self.opening is not None:
                self.on_opening(self.opening)

    def _lost(self, gone: Gone) -> str:
        if isinstance(gone, Silent):
            return self._unanswered().message
        return f"the process that runs the pipeline went away before it answered: {gone}"

    def _unanswered(self) -> UnavailableError:
        return _unanswered(self.pid or _peer(self._connection), self._timeout_s)


def connect(store_uri: str, timeout_s: float = TIMEOUT_S) -> Client | None:
    """The process that runs the pipeline of a store on this machine; None if there is none.

    It has answered. `UnavailableError` if it does not within `timeout_s`, which names it.
    """
    path = socket_path(store_uri)
    if not path.exists():
        return None
    check_folder(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    waited = threading.Event()
    try:
        for left in range(int(timeout_s / _RETRY_S), -1, -1):
            try:
                connection.connect(str(path))
                break
            except BlockingIOError:
                # So many wait to be accepted that there is no room for one more.
                if not left:
                    raise _unanswered(None, timeout_s) from None
                waited.wait(_RETRY_S)
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()  # A process that was killed has left its socket.
        return None
    except UnavailableError:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise UnavailableError(f"{path} cannot be reached: {error.strerror}") from error
    client = Client(connection, timeout_s=timeout_s)
    try:
        client.hello()
    except BaseException:
        client.close()
        raise
    return client


def _unanswered(pid: int | None, timeout_s: float) -> UnavailableError:
    which = "the process" if pid is None else f"process {pid}"
    look = "ps" if pid is None else f"ps -p {pid}"
    end = "" if pid is None else f"; kill -CONT {pid} continues one that is stopped"
    return UnavailableError(
        f"{which} on host {socket.gethostname()}, which runs the pipeline, has not answered for "
        f"{timeout_s:g} s: it is stopped, or too busy",
        hint=f"look at it with {look}{end}; --timeout waits longer; one that hangs is ended with "
        "kill -9, and nothing that was acknowledged is lost",
        not_applied=True,
    )


def _peer(connection: socket.socket) -> int | None:
    """The process at the other end of a Unix socket, as far as the system tells."""
    try:
        if sys.platform == "darwin":
            return connection.getsockopt(0, 0x002)  # SOL_LOCAL, LOCAL_PEERPID
        size = struct.calcsize("3i")
        return (
            int(
                struct.unpack(
                    "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                )[0]
            )
            or None
        )
    except (OSError, AttributeError):
        return None
