"""What Spark raises, as one of our errors. A transaction that fails changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from stepwell.errors import BugError, StepwellError, UserCodeError
from stepwell.query.render import NEGATIVE


@contextmanager
def translated() -> Iterator[None]:
    """Raise what Spark raises as a `UserCodeError`: the query met a row it cannot compute."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> StepwellError:
    said = error.getMessage() if isinstance(error, PySparkException) else None
    if isinstance(error, Py4JJavaError):
        # What went wrong in another thread comes wrapped, and only the innermost says what it was.
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        said = cause.getMessage() or cause.toString()
    first = (said or str(error)).strip().split("\n")[0]
    if NEGATIVE in first:
        return BugError(NEGATIVE)
    return UserCodeError(
        f"Spark could not compute a view: {first}",
        hint="nothing was changed. Mend the row, or the query: try_divide, try_cast and the like "
        "give NULL instead of an error",
    )
