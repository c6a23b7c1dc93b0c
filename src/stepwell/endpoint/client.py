"""Client side of the endpoint: sends requests to the process that runs the pipeline.

No call waits forever. A process that works on a request sends a heartbeat every second. A process
that has been silent for `timeout_s` is stopped or hangs, and the error names it. A process
may hang although it sends heartbeats:

    a request that only reads           is answered within `timeout_s`, once the pipeline is open; a
                                        query, which may compute for long, within `QUERY_S_MAX`
    one that changes the pipeline,      may take any time while the heartbeats report progress, and
    or waits until it is open           at most `STALLED_S_MAX` without any
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

import pyarrow as pa

from stepwell.endpoint.address import check_folder, socket_path
from stepwell.endpoint.transactions import RemoteTransaction, push_request, read_receipt
from stepwell.endpoint.wire import (
    ANSWER_BYTES_MAX,
    ConnectionLost,
    Message,
    Silent,
    Stalled,
    error_from,
    receive,
    send,
)
from stepwell.engine.answer import Answer
from stepwell.engine.pushed import Receipt, Rows
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError, UnknownOutcomeError
from stepwell.lsm.dead_letter import BadRow
from stepwell.model import Transaction

TIMEOUT_S = 30.0
QUERY_S_MAX = 600.0
"""Longest wait for the answer to a query, unless `timeout_s` is longer."""
STALLED_S_MAX = 3600.0
"""Longest wait without progress; one part of a large view may take long to compute."""
PUSH_AGAIN = "push again with the same key: rows that are already committed are not added twice"
_LOOK_FIRST = (
    "these rows may or may not be committed: check with stepwell query before pushing again; a "
    "push with a key can be repeated safely"
)
_END_IT = "one that hangs is ended with kill -9, and nothing that was acknowledged is lost"
_RETRY_S = 0.05


class Opening(TypedDict):
    """Progress of a process that is opening a pipeline."""

    stage: str
    percent: int


class Client:
    """A connection to the process that runs or opens a pipeline. Not thread-safe."""

    def __init__(
        self, connection: socket.socket, *, timeout_s: float = TIMEOUT_S, pid: int | None = None
    ) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._env = SystemEnv()
        self.pid = pid
        self.opening: Opening | None = None
        """Progress in the last message received; None once the pipeline is open."""
        self.on_opening: Callable[[Opening], None] = lambda opening: None
        """Called with the progress while an answer waits for the pipeline to open."""
        connection.settimeout(timeout_s)

    def _hello(self) -> None:
        """Check that the process answers at all, before sending any request."""
        header = self._ask({"op": "hello"}, reads=True).header
        self.pid, self.opening = int(header["pid"]), header.get("opening")

    def ready(self) -> None:
        """Wait until the process has opened the pipeline."""
        self._ask({"op": "ready"})

    def status(self) -> Mapping[str, object]:
        """Return the pipeline's `Status` as JSON, with the `pid` of the process that runs it.

        While that process is still opening the pipeline, return only `opening` (stage and percent)
        and `pid`.
        """
        header = self._ask({"op": "status"}, reads=True).header
        if "opening" in header:
            return {"opening": header["opening"], "pid": header["pid"]}
        return {**header["status"], "pid": header["pid"]}

    def profile(self, transactions: int | None = None) -> Mapping[str, object]:
        """Return where the time of the last transactions went, as `Profile.to_json` does."""
        answer = self._ask({"op": "profile", "transactions": transactions}, reads=True)
        found: Mapping[str, object] = answer.header["profile"]
        return found

    def query(self, sql: str) -> Answer:
        """Answer one SELECT over tables and views, as of the last transaction.

        Raises `UnavailableError` if the answer takes longer than ten minutes, or than the timeout
        of this client if that is longer.
        """
        answer = self._ask({"op": "query", "sql": sql}, reads=True, s_max=QUERY_S_MAX)
        return Answer(Transaction(int(answer.header["transaction"])), answer.tables[0])

    def explain(self, view: str) -> tuple[str, Mapping[str, object]]:
        """Explain how a materialized view is maintained, as text and as JSON."""
        header = self._ask({"op": "explain", "view": view}, reads=True).header
        return header["text"], header["json"]

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
        """Put rows into a table, as `Pipeline.push` does. The rows are durable when it returns.

        Raises `UnknownOutcomeError` if the process went away before it answered. A push with a
        `key` can then be sent again.
        """
        request, tables = push_request("push", table, (rows, delete, discard), bad, key=key)
        try:
            send(self._connection, request, tables)
            answer = self._answer()
        except ConnectionLost as gone:
            raise UnknownOutcomeError(
                self._lost(gone),
                hint=PUSH_AGAIN if key is not None else _LOOK_FIRST,
            ) from gone
        return read_receipt(answer.header)

    def transaction(self, *, key: str | None = None) -> RemoteTransaction:
        """Begin an explicit transaction, once no other one is open; use it in a `with`.

        All other writes wait for it to end. It is therefore rolled back after 30 seconds without a
        request, after 10 minutes, and when this client disconnects. It needs the connection to
        itself: call nothing else on this client before the transaction has ended.
        """
        self._ask({"op": "begin", "key": key})
        return RemoteTransaction(self._exchange, self.close, key)

    def _exchange(self, request: Mapping[str, object], tables: Sequence[Any]) -> Message:
        try:
            send(self._connection, request, tables)
        except ConnectionLost:
            with suppress(ConnectionLost):
                self._answer()  # The process may have said why it hung up.
            raise
        return self._answer()

    def checkpoint(self, name: str | None = None, *, keep_s: float | None = None) -> str:
        """Take a checkpoint, as `Pipeline.checkpoint` does; return its id."""
        answer = self._ask({"op": "checkpoint", "name": name, "keep_s": keep_s})
        return str(answer.header["id"])

    def compact(self, *, detach: bool = False) -> bool:
        """Compact the runs of each relation into one; return False if there was nothing to do."""
        return bool(self._ask({"op": "compact", "detach": detach}).header["compacted"])

    def tail(self, view: str) -> Iterator[tuple[Transaction, pa.Table] | None]:
        """Yield the changes of a view as they are committed, and None from time to time.

        The iterator ends when the process does.
        """
        try:
            send(self._connection, {"op": "tail", "view": view})
            while "end" not in (answer := self._answer(reads=True)).header:
                if "transaction" in answer.header:
                    yield Transaction(int(answer.header["transaction"])), answer.tables[0]
                else:
                    yield None
        except Silent as silent:
            raise self._unanswered(silent) from silent
        except ConnectionLost:
            return

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Disconnect and so end a waiting call. Safe in any thread or signal handler."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _ask(
        self, request: Mapping[str, object], *, reads: bool = False, s_max: float = 0
    ) -> Message:
        try:
            send(self._connection, request)
            return self._answer(reads=reads, s_max=s_max)
        except Silent as silent:
            raise self._unanswered(silent) from silent
        except ConnectionLost as gone:
            raise UnavailableError(
                f"the process that runs the pipeline went away: {gone}", hint="try again"
            ) from gone

    def _answer(
        self,
        building: Callable[[str], None] = lambda name: None,
        *,
        reads: bool = False,
        s_max: float = 0,
    ) -> Message:
        """Return the answer; `reads` says that the request changes nothing.

        An answer to a request that reads is waited for as long as `s_max`, or the timeout if that
        is longer.
        """
        moved_at, before = self._env.uptime(), None
        while True:
            answer = receive(self._connection, ANSWER_BYTES_MAX)
            if "error" in answer.header:
                raise error_from(answer.header["error"])
            if "beat" not in answer.header:
                return answer
            self.opening = answer.header["beat"]
            if self.opening is not None:
                self.on_opening(self.opening)
            if "building" in answer.header:
                building(str(answer.header["building"]))
            # A pipeline that is open makes progress with other requests, too.
            progress = self.opening if reads else answer.header
            if progress != before:
                moved_at, before = self._env.uptime(), progress
            only_reads = reads and self.opening is None
            most = max(self._timeout_s, s_max if only_reads else STALLED_S_MAX)
            if self._env.uptime() - moved_at >= most:
                raise Stalled(_stalled(reads, most))

    def _lost(self, gone: ConnectionLost) -> str:
        if isinstance(gone, Silent):
            return self._unanswered(gone).message
        return f"the process that runs the pipeline went away before it answered: {gone}"

    def _unanswered(self, silent: Silent) -> UnavailableError:
        pid = self.pid or _peer(self._connection)
        if isinstance(silent, Stalled):
            return UnavailableError(
                f"{_process(pid)}, which runs the pipeline, {silent}",
                hint=f"--timeout 1h waits longer; stepwell status shows what it does; {_END_IT}",
            )
        return _unanswered(pid, self._timeout_s)


def change_program(
    client: Client,
    program: Mapping[str, object],
    before: str,
    building: Callable[[str], None] = lambda name: None,
) -> Mapping[str, object]:
    """Switch the process to another program; `before` is the fingerprint of the current one.

    `building` is called with the name of each relation before it is computed. Raises
    `UnknownOutcomeError` if the process went away before it answered.
    """
    try:
        send(client._connection, {"op": "change", "program": program, "before": before})
        answer = client._answer(building)
    except ConnectionLost as gone:
        raise UnknownOutcomeError(
            client._lost(gone), hint="deploy again: it detects what was done"
        ) from gone
    changed: Mapping[str, object] = answer.header["changed"]
    return changed


def connect(store_uri: str, timeout_s: float = TIMEOUT_S) -> Client | None:
    """Connect to the process on this machine that runs the pipeline of a store; None if none.

    The process has answered once when this returns. Raises `UnavailableError`, which names the
    process, if it does not answer within `timeout_s`.
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
                # The listen backlog is full.
                if not left:
                    raise _unanswered(None, timeout_s) from None
                waited.wait(_RETRY_S)
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()  # The socket was left behind by a killed process.
        return None
    except UnavailableError:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise UnavailableError(f"{path} cannot be reached: {error.strerror}") from error
    client = Client(connection, timeout_s=timeout_s)
    try:
        client._hello()
    except BaseException:
        client.close()
        raise
    return client


def _unanswered(pid: int | None, timeout_s: float) -> UnavailableError:
    look = "ps" if pid is None else f"ps -p {pid}"
    end = "" if pid is None else f"; kill -CONT {pid} continues one that is stopped"
    return UnavailableError(
        f"{_process(pid)}, which runs the pipeline, has not answered for "
        f"{timeout_s:g} s: it is stopped, or too busy",
        hint=f"inspect it with {look}{end}; --timeout waits longer; {_END_IT}",
        not_applied=True,
    )


def _process(pid: int | None) -> str:
    which = "the process" if pid is None else f"process {pid}"
    return f"{which} on host {socket.gethostname()}"


def _stalled(reads: bool, seconds: float) -> str:
    what = "has not answered within" if reads else "has made no progress for"
    return f"{what} {seconds:g} s"


def _peer(connection: socket.socket) -> int | None:
    """Return the pid of the process at the other end of a Unix socket, if the system tells."""
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
