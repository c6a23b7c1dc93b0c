"""What Spark raises, as one of our errors. A transaction that fails changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from stepwell.errors import (
    BugError,
    ConfigError,
    CorruptError,
    StepwellError,
    TruncatedError,
    UnavailableError,
    UserCodeError,
)
from stepwell.query.render import NEGATIVE
from stepwell.spark.session import await_end, java_process

_OURS = re.compile(r"^stepwell\.errors\.(\w+): (.+)(?:\nhint: (.+))?$", re.MULTILINE)
"""The end of a traceback on a worker, if our own code raised it (`worker`)."""


_NO_MEMORY = ("java.lang.OutOfMemoryError", "Java heap space", "GC overhead limit exceeded")
_ENDED = ("SparkContext was shut down", 'SparkContext.dagScheduler()" is null')
"""What Spark says of a query that it was computing when it ended."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise what Spark raises as a `UserCodeError`: the query met a row it cannot compute."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> StepwellError:
    said = error.getMessage() if isinstance(error, PySparkException) else None
    if isinstance(error, Py4JJavaError):
        # What went wrong in another thread comes wrapped, and only the innermost says what it was.
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        said = cause.getMessage() or cause.toString()
    ours = _raised_by_us(said or str(error))
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
            hint="nothing was changed. Its own words stand above; if it ran out of memory, give it "
            "more: spark.driver_memory in stepwell.yml",
        )
    first = _line(said or str(error))
    if NEGATIVE in first:
        return BugError(NEGATIVE)
    return UserCodeError(
        f"Spark could not compute a view: {first}",
        hint="nothing was changed. Mend the row, or the query: try_divide, try_cast and the like "
        "give NULL instead of an error",
    )


def _line(said: str) -> str:
    """What to tell of it: the first line, or what a traceback of Python's ends with."""
    lines = [line for line in said.strip().split("\n") if line.strip()]
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        raised = [line for line in lines[1:] if not line.startswith(" ")]
        return raised[-1] if raised else lines[0]
    return lines[0] if lines else ""


def _raised_by_us(said: str) -> StepwellError | None:
    if "No module named 'stepwell'" in said:
        return ConfigError(
            "a worker of Spark's cannot import the package stepwell",
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
            return UnavailableError(f"on a worker of Spark's: {message}", hint=hint)
