"""The error tree, ordered by what the caller must do next.

Every message says what failed, on which object, what was expected and what was found; then, after
`hint:`, the next command. An exception outside this tree that reaches a user is a bug of ours.
"""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*:/{1,2})"
    r"(?:(?P<user>[^\s/'\"@]*:[^\s'\"]*)(?=@)|(?P<query>[^\s'\"?]*\?)(?P<value>[^\s'\"]+))"
)


def without_credentials(text: str) -> str:
    """A text in which the credentials of every address are as many asterisks.

    No message may repeat them, whatever it quotes: a line of stepwell.yml, an option, a path.

    >>> without_credentials("store: s3://KEY:secret@bucket/x")
    'store: s3://**********@bucket/x'
    >>> without_credentials("az://container/x?sig=abc")
    'az://container/x?*******'
    """
    if "@" not in text and "?" not in text:
        return text

    def hidden(found: re.Match[str]) -> str:
        kept = found["scheme"] + (found["query"] or "")
        return kept + "*" * (len(found[0]) - len(kept))

    return _CREDENTIALS.sub(hidden, text)


class StepwellError(Exception):
    """The root: catch this to catch everything Stepwell raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message = without_credentials(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else without_credentials(hint)
        self.about: str | None = None
        """The table or view whose statement it is about, where somebody has noted that."""

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConflictError(StepwellError):
    """Somebody else was first: refresh and try again."""


class ClaimedError(ConflictError):
    """Another process claimed the pipeline while this one was about to: look again who has it."""


class FencedError(StepwellError):
    """Another writer took over: stop. Nothing on this handle works any more."""

    def __init__(
        self,
        message: str,
        *,
        epoch: int,
        host: str | None = None,
        pid: int | None = None,
        time: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.epoch = epoch
        self.host = host
        self.pid = pid
        self.time = time


class UnavailableError(StepwellError):
    """The storage or a sink did not answer, or answered with an error: try later.

    Raised by a write, it does not tell whether the write was applied, unless `not_applied` says
    that it certainly was not. `lasting`: waiting does not help, as with a wrong bucket or refused
    credentials.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        not_applied: bool = False,
        lasting: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.not_applied = not_applied
        self.lasting = lasting


class ExecutorLostError(UnavailableError):
    """What computes the views has ended, as Spark's Java may. Nothing was changed."""

    def __init__(self, why: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"{why}; nothing was changed",
            hint=hint or "try again: stepwell run starts another, and replays the journal",
            not_applied=True,
        )


class UnknownOutcomeError(StepwellError):
    """A write may or may not have been applied, and the retries are spent: reopen and look."""


class CollectedError(UnknownOutcomeError):
    """What was written was collected at once, or never counted: the two look the same."""


class InvalidError(StepwellError):
    """What was asked for cannot be done as asked: change the request."""


class RejectedError(InvalidError):
    """Every row of a push went to the dead letters: look at them, and push what is corrected."""

    def __init__(self, table: str, rows: int, transaction: int) -> None:
        which = "the row" if rows == 1 else f"all {rows:,} rows"
        letters = f"{table}$errors"
        super().__init__(
            f"{which} pushed to {table} {'was' if rows == 1 else 'were'} rejected, and kept in "
            f"{letters} (transaction {transaction})",
            hint=f"stepwell query 'SELECT position, reason, text FROM `{letters}`' shows why",
        )
        self.table = table
        self.rows = rows
        self.transaction = transaction


class SqlError(InvalidError):
    """A statement is wrong; the message shows line, column and a caret."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.line = line
        self.column = column


class ConfigError(InvalidError):
    """A setting is wrong; the message names file and line where there is one."""


class JournalStoreMismatch(InvalidError):  # noqa: N818 - the public name in docs and messages
    """The journal store is not the one that holds this pipeline's unreplayed entries."""


class CheckpointMissing(InvalidError):  # noqa: N818 - the public name in docs and messages
    """There is no such checkpoint, or not any more."""


class CorruptError(StepwellError):
    """Stored bytes are not what was written. Names the object and, where known, the field."""

    def __init__(
        self, object: str, problem: str, *, field: str | None = None, hint: str | None = None
    ) -> None:
        where = f"{object}: field {field!r}" if field else object
        super().__init__(f"{where}: {problem}", hint=hint)
        self.object = object
        self.field = field


class TruncatedError(CorruptError):
    """An object that must be there is gone."""


class ReplayMismatchError(StepwellError):
    """A replayed transaction did not come out as it was recorded."""


class UserCodeError(StepwellError):
    """A user's function raised."""


class BugError(StepwellError):
    """Stepwell broke a rule of its own. The operation was stopped before it could do harm."""

    def __init__(self, fact: str) -> None:
        super().__init__(f"broken invariant: {fact}", hint="this is a bug in Stepwell; report it")


def ensure(condition: bool, fact: str) -> None:
    """Check an invariant; unlike `assert` it stays on with `python -O`."""
    if not condition:
        raise BugError(fact)
