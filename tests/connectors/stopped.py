"""A process whose children are stopped (SIGSTOP) inside their delivery, and go on later.

It reads requests from standard input, one a line as JSON: how to make a sink, what the child is to
write, and before which of its calls it stops. It forks the child, waits until that has stopped or
ended, and says which. Asked to go on, it wakes the child and says how its write ended. Forking
saves the time it takes to import everything.

The calls are those with which a sink touches the world outside: of the file system for files, of
the driver for a database, of the library for a Delta table.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import psycopg
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.orm import Session

from stepwell.connectors import delta, iceberg_io, iceberg_sink
from stepwell.engine.ports import Coalesces
from stepwell.errors import StepwellError
from tests.connectors.sinks import Place, evolving, in_turn, mark

CALLS: dict[str, list[tuple[Any, str]]] = {
    "files": [
        *((os, name) for name in ("mkdir", "listdir", "fsync", "link", "rename", "unlink")),
        (fcntl, "flock"),
    ],
    "delta": [
        (deltalake.DeltaTable, "update_incremental"),
        (deltalake.DeltaTable, "create_write_transaction"),
        (deltalake.table.TableAlterer, "add_columns"),
        (deltalake.table.TableMerger, "execute"),
        (deltalake, "write_deltalake"),
        (delta, "sync_file"),
    ],
    "iceberg": [
        (SqlCatalog, "load_table"),
        (iceberg_sink, "_dataframe_to_data_files"),
        (iceberg_io, "sync_file"),
        (Session, "execute"),
        (Session, "commit"),
    ],
    "postgres": [
        (psycopg.Connection, "transaction"),
        (psycopg.Cursor, "execute"),
        (psycopg.Cursor, "copy"),
        (psycopg.Cursor, "close"),
    ],
}


def calls_of(kind: str) -> list[tuple[Any, str]]:
    if kind != "kafka":
        return CALLS[kind]
    from stepwell.connectors.kafka import Cluster  # Needs an optional package.
    from stepwell.connectors.kafka_transactions import Transactions

    reads: list[tuple[Any, str]] = [(Cluster, n) for n in ("topics", "ends", "read", "create")]
    return [*reads, *((Transactions, n) for n in ("claim", "begin", "send", "commit"))]


class Stopped:
    """The process, seen from the test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def write(self, place: Place, number: int, stop_at: int, together: int = 1) -> str:
        """Write a transaction upon the one before; `stopped`, or how the write ended.

        With `together` so many in one commit, of which `number` is the first; 0: the one with which
        the columns of the view become others.
        """
        self._ask([place.kind, place.options, place.keyed, number, stop_at, together])
        return self.answer()

    def go_on(self) -> str:
        """Wake the child; how its write ended."""
        self.wake()
        return self.answer()

    def wake(self) -> None:
        """Wake the child, and do not wait for it."""
        self._ask(None)

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _ask(self, request: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()


@contextmanager
def stopping() -> Iterator[Stopped]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", __name__],
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Stopped(process)
    finally:
        process.communicate(timeout=60)
        assert process.returncode == 0


def main() -> None:
    child = reading = 0
    for line in sys.stdin:
        request = json.loads(line)
        if request is None:
            os.kill(child, signal.SIGCONT)
        else:
            child, reading = fork(*request)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            print("stopped", flush=True)
            continue
        said = os.read(reading, 1 << 16).decode()
        os.close(reading)
        print(said or f"ended with {status}", flush=True)


def fork(
    kind: str, options: dict[str, object], keyed: bool, number: int, stop_at: int, together: int
) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    said = "died"
    try:
        sink = Place(kind, options, keyed=keyed).make()
        previous = mark(number - 1) if number > 1 else None
        before = sink.last()
        said = f"before it there was {before}"
        if before == previous:
            count_calls(kind, stop_at)
            changes = [(mark(n), in_turn(n)) for n in range(number, number + together)]
            if not together:
                sink.write(previous, mark(number), evolving())
            elif together == 1:
                sink.write(previous, *changes[0])
            else:
                assert isinstance(sink, Coalesces)
                sink.write_together(previous, changes)
            said = "written"
    except StepwellError as error:
        said = type(error).__name__
    finally:
        os.write(writing, said.encode())
        os._exit(0)


def count_calls(kind: str, stop_at: int) -> None:
    """Stop this process before its n-th call from here on."""
    count = 0
    os.fsync = lambda opened: None  # It takes long, and power is not lost here.

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def stopping(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)
            return call(*given, **named)

        return stopping

    for owner, name in calls_of(kind):
        setattr(owner, name, counted(getattr(owner, name)))


if __name__ == "__main__":
    main()
