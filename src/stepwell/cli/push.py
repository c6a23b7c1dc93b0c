"""`stepwell push`: push the rows of a file, or of standard input, durably into a table.

Large input is pushed in pieces, each a transaction of its own. Every push has a key, given or new,
and the key of each piece is derived from it. If a push stops in the middle, pushing the same input
again with that key pushes only the missing rows.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from stepwell.cli.choices import Changes, PushFormat
from stepwell.cli.pipeline_access import PipelineAccess
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Screen, count
from stepwell.connectors.formats import ChangeFormat
from stepwell.connectors.push import Pushed, format_of, read_pushed
from stepwell.connectors.writing import FileFormat
from stepwell.engine.ports import Limits
from stepwell.engine.push_keys import check_key, piece_key
from stepwell.engine.pushed import Receipt
from stepwell.env import SystemEnv
from stepwell.errors import InvalidError, RejectedError, UnknownOutcomeError
from stepwell.model import Transaction
from stepwell.sql.statements import Table

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Input:
    """A file, or standard input, and the way to read its records."""

    file: str
    format: FileFormat
    changes: ChangeFormat
    delimiter: str

    @classmethod
    def of(cls, file: str, format: PushFormat | None, changes: Changes, delimiter: str) -> Input:
        """Make an input. Without a format, the file name decides; standard input is JSON."""
        if len(delimiter) != 1:
            raise InvalidError(f"the delimiter must be one character, found {delimiter!r}")
        if format is not None:
            kind = FileFormat(format.value)
        else:
            kind = FileFormat.JSON if file == STDIN else format_of(file)
        return cls(file, kind, ChangeFormat(changes.value), delimiter)

    @property
    def name(self) -> str:
        return "standard input" if self.file == STDIN else Path(self.file).name

    def pieces(self, table: Table, limits: Limits) -> Iterator[Pushed]:
        """Yield the records for a table, piece by piece."""
        with _opened(self.file, self.format) as stream:
            yield from read_pushed(
                stream,
                table,
                format=self.format,
                changes=self.changes,
                delimiter=self.delimiter,
                name=self.name,
                limits=limits,
            )


def show(
    where: ProjectOptions,
    table: str,
    file: str,
    *,
    format: PushFormat | None,
    changes: Changes,
    delimiter: str,
    take_over: bool,
    key: str | None = None,
) -> None:
    env = SystemEnv()
    project = where.deployed(env)
    declared = project.table(table)
    given = Input.of(file, format, changes, delimiter)
    name = given.name
    limits = project.sections.settings().limits
    key = env.new_id() if key is None else check_key(key)
    rows = rejected = 0
    transactions: list[Transaction] = []
    access = PipelineAccess(project, env, take_over=take_over, timeout_s=where.timeout_s)
    try:
        for number, piece in enumerate(given.pieces(declared, limits), 1):
            once = piece_key(key, number)
            taken = _push(access, declared.name, piece, once)
            if taken.rows:
                transactions.append(Transaction(taken))
            rows, rejected = rows + piece.rows, rejected + taken.rejected
            if sys.stderr.isatty() and not where.json:
                print(f"\r{count(rows, 'row')} in", end="", file=sys.stderr, flush=True)
    except UnknownOutcomeError as error:
        _tell_progress(rows, name, key)
        error.hint = _again(table, file, key)
        raise
    except BaseException:
        _tell_progress(rows, name, key)
        raise
    finally:
        access.close()
    if sys.stderr.isatty() and rows and not where.json:
        print("\r\x1b[K", end="", file=sys.stderr)
    screen = Screen()
    if where.json:
        content = {"table": declared.name, "rows": rows}
        counts = {"taken": rows - rejected, "rejected": rejected}
        screen.json({**content, **counts, "transactions": sorted(set(transactions))})
    if rows and rejected >= rows:
        raise RejectedError(declared.name, rows, transactions[-1])
    if where.json:
        return
    screen.line(f"pushed {count(rows - rejected, 'row')} to {declared.name}{_in(transactions)}")
    if rejected:
        look = f"stepwell query 'SELECT * FROM `{declared.name}$errors`'"
        print(f"{count(rejected, 'row')} rejected; {look} shows why", file=sys.stderr)


def _push(access: PipelineAccess, table: str, piece: Pushed, key: str) -> Receipt:
    """Push a piece. A fully rejected piece is an error only if the whole input is rejected."""
    try:
        return access.push(table, piece.change, piece.bad, key)
    except RejectedError as error:
        return Receipt(error.transaction, piece.rows, error.rows)


def _tell_progress(rows: int, name: str, key: str) -> None:
    if rows:
        told = f"{count(rows, 'row')} of {name} were committed before it stopped"
        print(f"{told}; with --key {shlex.quote(key)} only the rest is added", file=sys.stderr)


def _again(table: str, file: str, key: str) -> str:
    command = shlex.join(["stepwell", "push", table, file, "--key", key])
    return (
        f"these rows may or may not be committed; repeating the push with the same key is safe: "
        f"{command}"
    )


def _in(transactions: list[Transaction]) -> str:
    if not transactions:
        return ""
    first, last = transactions[0], transactions[-1]
    return f", transaction {first}" if first == last else f", transactions {first} to {last}"


@contextmanager
def _opened(file: str, format: FileFormat) -> Iterator[BinaryIO]:
    if file == STDIN:
        yield sys.stdin.buffer
        return
    try:
        # Arrow decompresses by the file name; Parquet files do that themselves.
        opened = pa.input_stream(
            file, compression=None if format is FileFormat.PARQUET else "detect"
        )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidError(f"{file} cannot be read: {reason}") from error
    with opened:
        yield cast(BinaryIO, opened)
