"""The error tree, ordered by what the caller must do next.

Every message says what failed, on which object, what was expected and what was found. The next
command follows after `hint:`. An exception outside this tree that reaches a user is a bug in
Stepwell. `NotApplicable` stands outside: its caller always has another way.
"""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*:/{1,2})"
    r"(?:(?P<user>[^\s/'\"@]*:[^\s'\"]*)(?=@)|(?P<query>[^\s'\"?]*\?)(?P<value>[^\s'\"]+))"
)


def without_credentials(text: str) -> str:
    """Replace the credentials in every address with asterisks, one per character.

    No message may repeat credentials, even when it quotes a line of stepwell.yml, an option or a
    path.

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


_SECRETS = re.compile(
    r"(?P<name>\b[\w.]*(?:password|passwd|pwd|secret|token)[\w.]*[\"']?\s*[=:]\s*[\"']?)"
    r"(?P<value>(?!\$\{)[^\s\"',;&}]+)",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Replace credentials in addresses, and values that are called a password or the like.

    For options as their owner wrote them; references such as `${env:PASSWORD}` stay.

    >>> without_secrets('dsn: "host=db password=secret user=ann"')
    'dsn: "host=db password=*** user=ann"'
    >>> without_secrets('client: {"sasl.password": "secret", "acks": "all"}')
    'client: {"sasl.password": "***", "acks": "all"}'
    """
    return _SECRETS.sub(lambda found: found["name"] + "***", without_credentials(text))


class StepwellError(Exception):
    """The base class of every error that Stepwell raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message = without_credentials(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else without_credentials(hint)
        self.about: str | None = None
        """The table or view whose statement the error is about, if known."""

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConflictError(StepwellError):
    """Another process was first: refresh and try again."""


class ClaimedError(ConflictError):
    """Another process claimed the pipeline first: check again which process holds it."""


class FencedError(StepwellError):
    """Another writer took over: stop. Every further call on this handle fails."""

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

    If a write raises it, the write may or may not have been applied, unless `not_applied` is set:
    then it certainly was not. `lasting` means that waiting does not help, as with a wrong bucket or
    refused credentials.
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
    """The process that computes the views, such as Spark's JVM, has ended. Nothing was changed."""

    def __init__(self, why: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"{why}; nothing was changed",
            hint=hint or "try again: stepwell run starts another, and replays the journal",
            not_applied=True,
        )


class SnapshotExpiredError(UnavailableError):
    """The writer has collected files that the snapshot needs: take a new snapshot."""


class UnknownOutcomeError(StepwellError):
    """A write may or may not have been applied, and the retries are used up: reopen and check."""


class CollectedError(UnknownOutcomeError):
    """A write was either collected at once or never took effect: the two look the same."""


class InvalidError(StepwellError):
    """The request cannot be carried out as it stands: change the request."""


class RejectedError(InvalidError):
    """Every row of a push became a dead letter: inspect them, and push the corrected rows."""

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
    """A statement is invalid; the message shows line, column and a caret."""

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
    """A setting is invalid; the message names the file and line, if there is one."""


class JournalStoreMismatch(InvalidError):  # noqa: N818 - the public name in docs and messages
    """The journal store is not the one that holds this pipeline's unreplayed entries."""


class CheckpointMissing(InvalidError):  # noqa: N818 - the public name in docs and messages
    """The checkpoint does not exist, or no longer exists."""


class CorruptError(StepwellError):
    """Stored bytes differ from those written. Names the object and, where known, the field."""

    def __init__(
        self, object: str, problem: str, *, field: str | None = None, hint: str | None = None
    ) -> None:
        where = f"{object}: field {field!r}" if field else object
        super().__init__(f"{where}: {problem}", hint=hint)
        self.object = object
        self.field = field


class TruncatedError(CorruptError):
    """A required object is missing."""


class ReplayMismatchError(StepwellError):
    """A replayed transaction produced a different result from the recorded one."""


class UserCodeError(StepwellError):
    """A user-defined function raised an exception."""


class BuildError(StepwellError):
    """A resource could not be built; nothing was changed. `key` names the resource."""

    def __init__(self, key: str, cause: StepwellError) -> None:
        super().__init__(cause.message, hint=cause.hint)
        self.key = key


class BugError(StepwellError):
    """Stepwell violated one of its own invariants. The operation was stopped before it did harm."""

    def __init__(self, fact: str) -> None:
        super().__init__(f"broken invariant: {fact}", hint="this is a bug in Stepwell; report it")


class NotApplicable(Exception):  # noqa: N818 - nothing has gone wrong
    """This way to compute something does not work here, and the caller takes another.

    The message is the reason. It never reaches a user as an error.
    """


def ensure(condition: bool, fact: str) -> None:
    """Check an invariant. Unlike `assert`, the check stays on under `python -O`."""
    if not condition:
        raise BugError(fact)
