"""`stepwell transaction`: push the rows of several files into several tables, as one transaction.

The transaction has a key, given or new. If the process that was asked has gone, the whole
transaction is sent once more. If that fails, too, the hint names the key, so that the user can
repeat the command.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell.cli.choices import Changes, PushFormat
from stepwell.cli.pipeline_access import PipelineAccess
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.push import STDIN, Input
from stepwell.cli.screen import Screen, count
from stepwell.deploy.project import Project
from stepwell.endpoint.wire import Silent
from stepwell.engine.push_keys import check_key
from stepwell.engine.pushed import Receipt
from stepwell.env import SystemEnv
from stepwell.errors import InvalidError, RejectedError, StepwellError, UnknownOutcomeError
from stepwell.sql.statements import Table

Work = Sequence[tuple[Table, Input]]


@dataclass(frozen=True, slots=True)
class Committed:
    receipt: Receipt
    rows: Mapping[str, int]
    """The number of rows for each table."""


def show(
    where: ProjectOptions,
    files: Sequence[str],
    *,
    format: PushFormat | None,
    changes: Changes,
    delimiter: str,
    take_over: bool,
    key: str | None,
) -> None:
    env = SystemEnv()
    project = where.deployed(env)
    pairs = [_pair(text) for text in files]
    if [file for _, file in pairs].count(STDIN) > 1:
        raise InvalidError("standard input can be read once only")
    work = [
        (project.table(table), Input.of(file, format, changes, delimiter)) for table, file in pairs
    ]
    key = env.new_id() if key is None else check_key(key)
    access = PipelineAccess(project, env, take_over=take_over, timeout_s=where.timeout_s)
    again = all(file != STDIN for _, file in pairs)
    try:
        done = _commit(project, access, work, key, again=again)
    except UnknownOutcomeError as error:
        command = shlex.join(["stepwell", "transaction", *files, "--key", key])
        error.hint = (
            f"it may or may not be committed; repeating it with the same key is safe: {command}"
        )
        raise
    _tell(where, done)


def _pair(text: str) -> tuple[str, str]:
    table, equals, file = text.partition("=")
    if not (table and equals and file):
        raise InvalidError(
            f"expected TABLE=FILE, found {text!r}", hint="for example orders=more.json"
        )
    return table, file


def _commit(
    project: Project, access: PipelineAccess, work: Work, key: str, *, again: bool
) -> Committed:
    try:
        return _commit_once(project, access, work, key)
    except UnknownOutcomeError as unknown:
        # Only if the process has gone. Repeating it to a silent process would only wait once more.
        if not again or unknown.__cause__ is None or isinstance(unknown.__cause__, Silent):
            raise
        try:
            return _commit_once(project, access, work, key)
        except StepwellError:
            raise unknown from None  # The first one may be committed, whatever the second did.


def _commit_once(project: Project, access: PipelineAccess, work: Work, key: str) -> Committed:
    rows: Counter[str] = Counter()
    limits = project.sections.settings().limits
    with access.transaction(key) as transaction:
        for table, given in work:
            for piece in given.pieces(table, limits):
                change = piece.change
                transaction.push(
                    table.name,
                    change.put,
                    delete=change.delete,
                    discard=change.discard,
                    bad=piece.bad,
                )
                rows[table.name] += piece.rows
            rows[table.name] += 0
        return Committed(transaction.commit(), rows)


def _tell(where: ProjectOptions, done: Committed) -> None:
    screen, receipt = Screen(), done.receipt
    if where.json:
        counts = {"rows": receipt.rows, "taken": receipt.taken, "rejected": receipt.rejected}
        screen.json({"transaction": int(receipt), **counts, "tables": done.rows})
    given = [table for table, rows in done.rows.items() if rows]
    if receipt.rows and not receipt.taken:
        raise _all_rejected(given, receipt)
    if where.json:
        return
    tables = ", ".join(given or done.rows)
    screen.line(f"pushed {count(receipt.taken, 'row')} to {tables}, transaction {receipt}")
    if receipt.rejected:
        letters = ", ".join(f"{table}$errors" for table in given)
        print(f"{count(receipt.rejected, 'row')} rejected: see {letters}", file=sys.stderr)


def _all_rejected(tables: Sequence[str], receipt: Receipt) -> InvalidError:
    if len(tables) == 1:
        return RejectedError(tables[0], receipt.rows, receipt)
    letters = ", ".join(f"{table}$errors" for table in tables)
    return InvalidError(
        f"all {receipt.rows:,} rows pushed to {', '.join(tables)} were rejected, and kept in "
        f"{letters} (transaction {receipt})",
        hint=f"stepwell query 'SELECT position, reason, text FROM `{tables[0]}$errors`' shows why",
    )
