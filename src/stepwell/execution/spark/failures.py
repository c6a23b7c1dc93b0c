"""Translate Spark's exceptions into our errors. A transaction that fails changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException

from stepwell.errors import (
    BugError,
    ConfigError,
    CorruptError,
    StepwellError,
    TruncatedError,
    UnavailableError,
    UserCodeError,
)
from stepwell.execution.spark.session import await_end, java_process
from stepwell.plan.render import NEGATIVE

_OURS = re.compile(r"^stepwell\.errors\.(\w+): (.+)(?:\nhint: (.+))?$", re.MULTILINE)
"""The end of a traceback on a worker, if our own code raised it (`lsm/remote_files`)."""


_NO_MEMORY = ("java.lang.OutOfMemoryError", "Java heap space", "GC overhead limit exceeded")
_ENDED = ("SparkContext was shut down", 'SparkContext.dagScheduler()" is null')
"""Spark's messages for a query that was running when Spark ended."""


@contextmanager
def translated() -> Iterator[None]:
    """Translate Spark's exceptions, mostly to `UserCodeError`: a query cannot compute a row."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise _translated(error) from error


def why_not_analysed(error: Exception) -> str:
    """The reason why Spark could not analyse a query, in one line.

    Errors unrelated to the query are raised: Java has ended, or ran out of memory. Spark evaluates
    some constants during the analysis, so it may fail with any Java exception.
    """
    if not isinstance(error, AnalysisException):
        made = _translated(error)
        if not isinstance(made, UserCodeError):
            raise made from error
    return _line(_said(error)).rstrip(". ")


def place_in(text: str, error: Exception) -> int:
    """The position in a query of the error that Spark reports; 0 if Spark does not say."""
    if isinstance(error, PySparkException):
        for context in error.getQueryContext() or []:
            if context.contextType().name == "SQL":
                return max(context.startIndex(), 0)
    place = re.search(r"\(line (\d+), pos (\d+)\)", str(error))
    if place is None:
        return 0
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: int(place[1]) - 1]) + int(place[2])


def _said(error: Exception) -> str:
    """The message of the innermost cause: a failure in another thread is wrapped."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        return str(cause.getMessage() or cause.toString())
    return (error.getMessage() if isinstance(error, PySparkException) else None) or str(error)


def _translated(error: Exception) -> StepwellError:
    said = _said(error)
    ours = _raised_by_us(said)
    if ours is not None:
        return ours
    words = f"{said} {error}"
    if any(sign in words for sign in _NO_MEMORY):
        return UnavailableError(
            "Spark ran out of memory",
            hint="nothing was changed. Give it more: spark.driver_memory in stepwell.yml; or ask "
            "for fewer rows at once",
        )
    if isinstance(error, Py4JNetworkError | ConnectionError) or any(
        sign in words for sign in _ENDED
    ):
        await_end(java_process())
        return UnavailableError(
            "Spark's Java process has ended",
            hint="nothing was changed. Its own output is above; if it ran out of memory, give it "
            "more: spark.driver_memory in stepwell.yml",
        )
    first = _line(said)
    if NEGATIVE in first:
        return BugError(NEGATIVE)
    return UserCodeError(
        f"Spark cannot compute a row: {first}",
        hint="nothing was changed. Fix the row, or the query: try_divide, try_cast and the like "
        "give NULL instead of an error",
    )


def _line(said: str) -> str:
    """The line to report: the first line, or the last line of a Python traceback."""
    lines = [line for line in said.strip().split("\n") if line.strip()]
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        raised = [line for line in lines[1:] if not line.startswith(" ")]
        return raised[-1] if raised else lines[0]
    return lines[0] if lines else ""


def _raised_by_us(said: str) -> StepwellError | None:
    if "No module named 'stepwell'" in said:
        return ConfigError(
            "a Spark worker cannot import the package stepwell",
            hint="install it on every worker, for the Python that Spark uses there",
        )
    found = _OURS.search(said)
    if found is None:
        return None
    kind, message, hint = found.groups()
    where, _, what = message.partition(": ")
    match kind:
        case "ConfigError":
            return ConfigError(message, hint=hint)
        case "TruncatedError":
            return TruncatedError(where, what, hint=hint)
        case "CorruptError":
            return CorruptError(where, what, hint=hint)
        case _:
            return UnavailableError(f"on a Spark worker: {message}", hint=hint)
