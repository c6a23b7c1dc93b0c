"""Wire format of the endpoint: sizes, a JSON header, and up to 16 Arrow tables.

    4 bytes   length of the header, big-endian
    header    JSON: {"format": 3, "parts": [sizes; -1: none], ...}
    parts     Arrow IPC streams, one after another

While a request is worked on, the server sends `{"beat": ...}` every second. A process that is
silent for longer is stopped or hangs.

Both sides check sizes against a limit before they read. Nothing is unpickled: tables are Arrow, the
rest is JSON, and every table is validated.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import stepwell.errors as errors
from stepwell.endpoint.arrow_input import read_table
from stepwell.errors import CorruptError, InvalidError, StepwellError

FORMAT = 3
HEADER_BYTES_MAX = 16 * 2**20
REQUEST_BYTES_MAX = 1 * 2**30
ANSWER_BYTES_MAX = 16 * 2**30
ERROR_CHARACTERS_MAX = 8192
"""An error may quote its input, which may be as large as a message can be."""
_DETAILS = (
    *("epoch", "host", "pid", "time", "object", "field", "file", "line", "column"),
    *("table", "rows", "transaction", "not_applied"),
)

Header = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    header: Header
    tables: tuple[pa.Table | None, ...] = ()


class ConnectionLost(Exception):  # noqa: N818 - not an error: the other side has hung up
    """The connection ended between two messages, or inside one."""


class Silent(ConnectionLost):
    """The peer was silent until the timeout; the connection is no longer usable."""


class Stalled(Silent):
    """The peer is alive, but has not answered in time; the connection is no longer usable."""


def send(connection: socket.socket, header: Header, tables: Sequence[pa.Table | None] = ()) -> None:
    parts = [None if table is None else _stream(table) for table in tables]
    head = encode(header, [-1 if part is None else part.size for part in parts])
    try:
        connection.sendall(head)
        for part in parts:
            if part is not None:
                connection.sendall(memoryview(part))
    except TimeoutError as error:
        raise Silent("it accepts nothing") from error
    except OSError as error:
        raise ConnectionLost(str(error)) from error


def encode(header: Header, sizes: Sequence[int] = ()) -> bytes:
    """Encode a message without its tables, which have the given sizes."""
    head = json.dumps({**header, "format": FORMAT, "parts": list(sizes)}, default=str).encode()
    if len(head) > HEADER_BYTES_MAX:
        raise InvalidError(f"a message of {len(head):,} bytes is too large")
    return struct.pack(">I", len(head)) + head


def receive(connection: socket.socket, bytes_max: int) -> Message:
    """Receive the next message; `ConnectionLost` if the connection has ended."""
    (length,) = struct.unpack(">I", _read(connection, 4))
    if length > HEADER_BYTES_MAX:
        raise CorruptError("endpoint", f"a header of {length:,} bytes is too large")
    try:
        header = json.loads(_read(connection, length))
        found, sizes = header["format"], [int(size) for size in header["parts"]]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError("endpoint", f"not a valid message: {error!r}") from error
    if found != FORMAT:
        raise InvalidError(
            f"the other side speaks format {found}, this one {FORMAT}",
            hint="use the same version of Stepwell for both",
        )
    if sum(max(0, size) for size in sizes) > bytes_max or len(sizes) > 16:
        raise InvalidError(f"a message with {sum(sizes):,} bytes of rows is too large")
    tables = [
        None if size < 0 else read_table(_read(connection, size), "endpoint") for size in sizes
    ]
    return Message(header, tuple(tables))


def error_json(error: StepwellError) -> dict[str, object]:
    """Encode an error for the other side, with the details for programs. Always a few KB."""
    details = {name: _cut(getattr(error, name)) for name in _DETAILS if hasattr(error, name)}
    kind = type(error).__name__
    known = (
        kind
        if hasattr(errors, kind)
        else next(base.__name__ for base in type(error).__mro__ if hasattr(errors, base.__name__))
    )
    return {
        "type": known,
        "message": _cut(error.message),
        "hint": _cut(error.hint),
        "details": details,
    }


def _cut(value: object) -> object:
    """Cut the middle out of a long text: both ends of a message say what is wrong."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text, half = str(value), ERROR_CHARACTERS_MAX // 2
    return text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}"


def error_from(content: Mapping[str, Any]) -> StepwellError:
    """Rebuild on this side the error that `error_json` encoded."""
    kind = getattr(errors, str(content.get("type")), StepwellError)
    if not isinstance(kind, type) or not issubclass(kind, StepwellError):
        kind = StepwellError
    # Bypass the constructor: each class has its own, and the message is already formatted.
    made = kind.__new__(kind)
    StepwellError.__init__(made, str(content.get("message")), hint=content.get("hint"))
    for name, value in dict(content.get("details") or {}).items():
        if name in _DETAILS:
            setattr(made, name, value)
    return made


def _stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def _read(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        try:
            count = connection.recv_into(view[done:])
        except TimeoutError as error:
            raise Silent("it is silent") from error
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if not count:
            raise ConnectionLost("the connection was closed")
        done += count
    return bytes(data)
