"""Explicit transactions of other processes: each lives on its connection, and ends with it.

    client                          server
    begin, perhaps with a key  ->   takes its turn of the pipeline; everybody else waits from now on
    push, any number           ->   recorded as it comes, visible to nobody
    commit or abort            ->   done; the connection is as any other again

A transaction whose connection ends before `commit` was asked for is rolled back: its client was
killed, or left. So is one whose client asks for nothing for `IDLE_S_MAX`, and one that is open for
`OPEN_S_MAX`: it is in the way of everybody else. The client is told why, and its connection ends,
so that nothing it sends later is taken for something else.

A `commit` that was asked for is carried out, whether or not its client is there to hear of it. If
the process dies meanwhile, the outcome is unknown to the client; repeated with its key, the
transaction is taken once (J14).
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
    Gone,
    Header,
    Message,
    Silent,
    error_json,
    receive,
)
from stepwell.engine.ports import BadRow
from stepwell.engine.pushed import Rows, as_table
from stepwell.env import Env
from stepwell.errors import InvalidError, StepwellError, UnavailableError, UnknownOutcomeError
from stepwell.model import Transaction

IDLE_S_MAX = 30.0
OPEN_S_MAX = 600.0
_READ_S_MAX = 10.0
"""How long a client may be silent in the middle of a request."""
_LOOK_S = 0.2
_LOOK_FIRST = (
    "it may be committed, or not: look with stepwell query before repeating it; a transaction "
    "with a key can be repeated without looking"
)
_REPEAT = "repeat it with the same key: if it is committed already, it is not taken a second time"


class OpenTransaction(Protocol):
    """What is asked of an explicit transaction here."""

    def push(
        self,
        table: str,
        rows: Any | None = None,
        *,
        delete: Any | None = None,
        discard: Any | None = None,
        bad: Sequence[BadRow] = (),
    ) -> None: ...
    def commit(self) -> Transaction: ...
    def abort(self) -> None: ...


def push_request(
    op: str, table: str, parts: Sequence[Rows | None], bad: Sequence[BadRow], **more: object
) -> tuple[Header, list[Any]]:
    """A push as it goes over the wire; `pushed_parts` is its inverse."""
    told = [(item.where, item.reason, item.text) for item in bad]
    header = {"op": op, "table": table, "bad": told, **more}
    return header, [as_table(part) for part in parts]


def pushed_parts(request: Message) -> tuple[str, Any, dict[str, Any]]:
    """Of a push the table, the rows to put, and all else by its name."""
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


# The side of the process that runs the pipeline


def serve_transaction(
    connection: Connection,
    begin: Callable[[], OpenTransaction],
    env: Env,
    ending: Callable[[], bool],
) -> None:
    """Serve one transaction to its end, in the thread that holds its turn.

    `Gone` if its connection is of no use any more; it is rolled back then. `ending` says whether
    the process is about to end: it does not wait for a client.
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
            # If the journal does not take the entry now, it will before the next one.
            with suppress(StepwellError):
                transaction.abort()


def _next(connection: Connection, env: Env, until: float, ending: Callable[[], bool]) -> Message:
    """The next request; `Gone` if none comes in time, and the client is told why it ends."""
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
        # Not a message, or too large a one: what follows it cannot be read either.
        told = error
    with suppress(Gone, OSError):
        connection.send({"error": error_json(told)})
    raise Gone(told.message)


def _has_come(connection: Connection) -> bool:
    """Whether a request has begun to arrive, or the connection has ended; waits a moment."""
    connection.socket.settimeout(_LOOK_S)
    try:
        connection.socket.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    except OSError as error:
        raise Gone(str(error)) from error
    return True


def _answer(connection: Connection, transaction: OpenTransaction, request: Message) -> bool:
    """Do what is asked for; whether the transaction has ended."""
    op, over = request.header.get("op"), False
    answer: Header = {}
    try:
        if op == "transaction_push":
            table, rows, others = pushed_parts(request)
            transaction.push(table, rows, **others)
        elif op == "commit":
            over = True  # Also when it fails: it was taken back then.
            answer = {"transaction": transaction.commit()}
        elif op == "abort":
            over = True
            transaction.abort()
        else:
            raise InvalidError(f"inside a transaction there is no operation {op}")
    except StepwellError as error:
        answer = {"error": error_json(error)}
    connection.send(answer)
    return over


# The side of the client

Exchange = Callable[[Header, Sequence[Any]], Message]
"""Sends a request and gives its answer; `Gone` if there is none, any other error as it came."""


class RemoteTransaction:
    """An explicit transaction in the process that runs the pipeline. For one thread.

    As a context it commits at the end, and aborts when its body raises.
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
        """Add rows, and before them deletes. Visible to nobody before the commit."""
        self._check()
        header, tables = push_request("transaction_push", table, (rows, delete, discard), bad)
        try:
            self._exchange(header, tables)
        except Gone as gone:
            self._end()
            raise _rolled_back(f"the process that runs the pipeline went away: {gone}") from gone
        except UnavailableError:
            # It was too slow, and rolled back; or the journal cannot be written, and it may as
            # well be.
            self._end()
            raise

    def commit(self) -> Transaction:
        """Make all of it visible at once; durable when it returns.

        `UnknownOutcomeError` if the process went away before it answered: with a key, the same
        transaction can be repeated.
        """
        self._check()
        self._over = True
        try:
            answer = self._exchange({"op": "commit"}, ())
        except Gone as gone:
            self._hang_up()
            raise UnknownOutcomeError(
                f"the process that runs the pipeline went away while it committed: {gone}",
                hint=_LOOK_FIRST if self._key is None else _REPEAT,
            ) from gone
        return Transaction(int(answer.header["transaction"]))

    def abort(self) -> None:
        """Take all of it back."""
        self._check()
        self._over = True
        try:
            self._exchange({"op": "abort"}, ())
        except Gone:
            self._hang_up()  # It is rolled back all the same.

    def _check(self) -> None:
        if self._over:
            raise InvalidError("this transaction has ended", hint="begin another one")

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
        with suppress(StepwellError):  # Why the body failed is what its caller wants to know.
            self.abort()


def _rolled_back(why: str) -> UnavailableError:
    return UnavailableError(
        f"the transaction was rolled back: {why}",
        hint="begin it again: nothing of it was taken in",
        not_applied=True,
    )
