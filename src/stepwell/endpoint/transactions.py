"""Explicit transactions of other processes: each belongs to its connection and ends with it.

    client                          server
    begin, optionally with a key -> takes its turn of the pipeline; all other writes wait from here
    push, any number             -> recorded at once, not visible yet
    commit or abort              -> done; the connection is an ordinary one again

A transaction whose connection ends before `commit` was requested is rolled back: its client was
killed or left. A transaction is also rolled back if its client sends no request for `IDLE_S_MAX`,
or if it is open for `OPEN_S_MAX`, because it blocks all other writes. The client is told the
reason, and its connection is closed, so that nothing it sends later is mistaken for another
request.

A requested `commit` is carried out even if its client has gone. If the process dies during the
commit, the client does not know the outcome. If the client repeats the transaction with its key,
the transaction is applied once (J14).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from stepwell.endpoint.connections import Connection
from stepwell.endpoint.wire import (
    REQUEST_BYTES_MAX,
    ConnectionLost,
    Header,
    Message,
    Silent,
    error_json,
    receive,
)
from stepwell.engine.pushed import Receipt, Rows, as_table
from stepwell.env import Env
from stepwell.errors import InvalidError, StepwellError, UnavailableError, UnknownOutcomeError
from stepwell.lsm.dead_letter import BadRow

IDLE_S_MAX = 30.0
OPEN_S_MAX = 600.0
_READ_S_MAX = 10.0
"""Longest silence of a client in the middle of a request."""
_LOOK_S = 0.2
_LOOK_FIRST = (
    "it may or may not be committed: check with stepwell query before repeating it; a transaction "
    "with a key can be repeated safely"
)
_REPEAT = "repeat it with the same key: if it is already committed, it is not applied twice"


class OpenTransaction(Protocol):
    """The part of an explicit transaction that the endpoint uses."""

    def push(
        self,
        table: str,
        rows: Any | None = None,
        *,
        delete: Any | None = None,
        discard: Any | None = None,
        bad: Sequence[BadRow] = (),
    ) -> None: ...
    def commit(self) -> Receipt: ...
    def abort(self) -> None: ...


def push_request(
    op: str, table: str, parts: Sequence[Rows | None], bad: Sequence[BadRow], **more: object
) -> tuple[Header, list[Any]]:
    """Encode a push for the wire; the inverse of `pushed_parts`."""
    told = [(item.where, item.reason, item.text) for item in bad]
    header = {"op": op, "table": table, "bad": told, **more}
    return header, [as_table(part) for part in parts]


def pushed_parts(request: Message) -> tuple[str, Any, dict[str, Any]]:
    """Return the table, the rows to put, and the other arguments of a push by name."""
    if len(request.tables) != 3:
        raise InvalidError("a push has three tables: rows to put, to delete, and to discard")
    table = request.header.get("table")
    if not isinstance(table, str):
        raise InvalidError("the request has no table")
    put, delete, discard = request.tables
    bad = [
        BadRow(str(item[0]), str(item[1]), str(item[2])) for item in request.header.get("bad", ())
    ]
    return table, put, {"delete": delete, "discard": discard, "bad": bad}


def receipt_json(receipt: Receipt) -> Header:
    """Encode a receipt for the wire; the inverse of `read_receipt`."""
    return {"transaction": receipt, "rows": receipt.rows, "rejected": receipt.rejected}


def read_receipt(header: Header) -> Receipt:
    return Receipt(*(int(header[name]) for name in ("transaction", "rows", "rejected")))


# Server side


def serve_transaction(
    connection: Connection,
    begin: Callable[[], OpenTransaction],
    env: Env,
    ending: Callable[[], bool],
) -> None:
    """Serve one transaction to its end, in the thread that holds its turn.

    Raises `ConnectionLost`, after rolling the transaction back, if the connection is unusable.
    `ending` tells whether the process is about to end; the process does not wait for a client.
    """
    transaction = begin()
    over = False
    try:
        connection.send({"begun": True})
        until = env.uptime() + OPEN_S_MAX
        while not over:
            request = _next(connection, env, until, ending)
            connection.enter("working", env.uptime())
            over = _answer(connection, transaction, request)
    finally:
        if not over:
            # If the abort cannot be written to the journal now, it is written before the next
            # entry.
            with suppress(StepwellError):
                transaction.abort()


def _next(connection: Connection, env: Env, until: float, ending: Callable[[], bool]) -> Message:
    """The next request; if none comes in time, tell the client and raise `ConnectionLost`."""
    now = env.uptime()
    connection.enter("waiting", now)
    told: StepwellError
    try:
        while not _has_come(connection):
            if ending():
                raise _rolled_back("the process that runs the pipeline is ending")
            if env.uptime() >= until:
                raise _rolled_back(f"it was open for {OPEN_S_MAX:g} s")
            if env.uptime() >= now + IDLE_S_MAX:
                raise _rolled_back(f"its client asked for nothing for {IDLE_S_MAX:g} s")
        connection.socket.settimeout(_READ_S_MAX)
        return receive(connection.socket, REQUEST_BYTES_MAX)
    except Silent as silent:
        told = _rolled_back(f"its client stopped inside a request: {silent}")
    except StepwellError as error:
        # Not a message, or one that is too large: the bytes after it cannot be read either.
        told = error
    with suppress(ConnectionLost, OSError):
        connection.send({"error": error_json(told)})
    raise ConnectionLost(told.message)


def _has_come(connection: Connection) -> bool:
    """Return whether a request or the end of the connection has arrived; waits a moment."""
    connection.socket.settimeout(_LOOK_S)
    try:
        connection.socket.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    except OSError as error:
        raise ConnectionLost(str(error)) from error
    return True


def _answer(connection: Connection, transaction: OpenTransaction, request: Message) -> bool:
    """Carry out a request; return whether the transaction has ended."""
    op, over = request.header.get("op"), False
    answer: Header = {}
    try:
        if op == "transaction_push":
            table, rows, others = pushed_parts(request)
            transaction.push(table, rows, **others)
        elif op == "commit":
            over = True  # Also if the commit fails: the transaction was rolled back then.
            answer = receipt_json(transaction.commit())
        elif op == "abort":
            over = True
            transaction.abort()
        else:
            raise InvalidError(f"unknown operation inside a transaction: {op}")
    except StepwellError as error:
        answer = {"error": error_json(error)}
    connection.send(answer)
    return over


# Client side

Exchange = Callable[[Header, Sequence[Any]], Message]
"""Sends a request and returns its answer, or raises the error it carries or `ConnectionLost`."""


class RemoteTransaction:
    """An explicit transaction in the process that runs the pipeline. Not thread-safe.

    As a context manager it commits at the end, and aborts if the body raises.
    """

    def __init__(self, exchange: Exchange, hang_up: Callable[[], None], key: str | None) -> None:
        self._exchange = exchange
        self._hang_up = hang_up
        self._key = key
        self._over = False

    def push(
        self,
        table: str,
        rows: Rows | None = None,
        *,
        delete: Rows | None = None,
        discard: Rows | None = None,
        bad: Sequence[BadRow] = (),
    ) -> None:
        """Add deletes, then rows. Not visible before the commit."""
        self._check()
        header, tables = push_request("transaction_push", table, (rows, delete, discard), bad)
        try:
            self._exchange(header, tables)
        except ConnectionLost as gone:
            self._end()
            raise _rolled_back(f"the process that runs the pipeline went away: {gone}") from gone
        except UnavailableError:
            # The transaction timed out and was rolled back, or the journal cannot be written and
            # the transaction can be given up.
            self._end()
            raise

    def commit(self) -> Receipt:
        """Make the whole transaction visible at once. It is durable when this returns.

        Rejected rows are stored as dead letters, and do not make the commit fail.

        Raises `UnknownOutcomeError` if the process went away before it answered. A transaction with
        a key can then be repeated.
        """
        self._check()
        self._over = True
        try:
            answer = self._exchange({"op": "commit"}, ())
        except ConnectionLost as gone:
            self._hang_up()
            raise UnknownOutcomeError(
                f"the process that runs the pipeline went away while it committed: {gone}",
                hint=_LOOK_FIRST if self._key is None else _REPEAT,
            ) from gone
        return read_receipt(answer.header)

    def abort(self) -> None:
        """Roll the whole transaction back."""
        self._check()
        self._over = True
        try:
            self._exchange({"op": "abort"}, ())
        except ConnectionLost:
            self._hang_up()  # The server rolls it back anyway.

    def _check(self) -> None:
        if self._over:
            raise InvalidError("this transaction has ended", hint="begin a new one")

    def _end(self) -> None:
        self._over = True
        self._hang_up()

    def __enter__(self) -> RemoteTransaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._over:
            return
        if error is None:
            self.commit()
            return
        with suppress(StepwellError):  # The caller wants to know why the body failed.
            self.abort()


def _rolled_back(why: str) -> UnavailableError:
    return UnavailableError(
        f"the transaction was rolled back: {why}",
        hint="begin it again: nothing of it was committed",
        not_applied=True,
    )
