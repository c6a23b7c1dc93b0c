"""The side of every other process: asks the one that runs the pipeline, if one does."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from stepwell.endpoint.place import check_folder, socket_path
from stepwell.endpoint.wire import ANSWER_BYTES_MAX, Gone, Message, error_from, receive, send
from stepwell.engine.ports import BadRow
from stepwell.errors import UnavailableError, UnknownOutcomeError
from stepwell.model import Transaction


class Client:
    """A connection to a process that runs a pipeline. For one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def status(self) -> Mapping[str, Any]:
        """Its `Status` as JSON, and `pid`."""
        header = self._ask({"op": "status"}).header
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
                f"the process that runs the pipeline went away before it answered: {gone}",
                hint="deploy again: it finds out what has happened",
            ) from gone
        changed: Mapping[str, Any] = answer.header["changed"]
        return changed

    def push(
        self,
        table: str,
        rows: pa.Table | None = None,
        *,
        delete: pa.Table | None = None,
        discard: pa.Table | None = None,
        bad: Sequence[BadRow] = (),
    ) -> Transaction:
        """Durable when it returns. `UnknownOutcomeError` if the process went away before."""
        told = [(item.where, item.reason, item.text) for item in bad]
        request = {"op": "push", "table": table, "bad": told}
        try:
            send(self._connection, request, [rows, delete, discard])
            answer = self._answer()
        except Gone as gone:
            raise UnknownOutcomeError(
                f"the process that runs the pipeline went away before it answered: {gone}",
                hint="these rows may be in, or not: look with stepwell query before pushing again",
            ) from gone
        return Transaction(int(answer.header["transaction"]))

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
        except Gone as gone:
            raise UnavailableError(
                f"the process that runs the pipeline went away: {gone}", hint="try again"
            ) from gone

    def _answer(self) -> Message:
        answer = receive(self._connection, ANSWER_BYTES_MAX)
        if "error" in answer.header:
            raise error_from(answer.header["error"])
        return answer


def connect(store_uri: str) -> Client | None:
    """The process that runs the pipeline of a store on this machine; None if none answers."""
    path = socket_path(store_uri)
    if not path.exists():
        return None
    check_folder(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()  # A process that was killed has left its socket.
        return None
    except OSError as error:
        connection.close()
        raise UnavailableError(f"{path} cannot be reached: {error.strerror}") from error
    return Client(connection)
