"""Collect the rows of a query as one Arrow table, without waiting for a thread of Java that died.

A thread of Java sends the rows, and Spark's `toArrow` waits until that thread reports how it ended.
A fatal error, such as a lack of memory, ends it without a report: `toArrow` would wait forever.
Here, Spark plans the query before, in a call that raises whatever happens; and once nothing more
can be read, the report is waited for no longer than `REPORT_S_MAX`.
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from stepwell.errors import UnavailableError

REPORT_S_MAX = 60


def to_arrow(frame: DataFrame) -> pa.Table:
    """The rows of a frame."""
    plain = cast(Any, frame)
    # Evaluates constants, among others.
    plain._jdf.queryExecution().executedPlan()
    bounded = type(plain)(_Frame(plain._jdf, plain._sc._jvm), plain.sparkSession)
    found: pa.Table = bounded.toArrow()
    return found


class _Frame:
    """Java's frame, except that collecting its rows waits for a bounded time."""

    def __init__(self, frame: Any, jvm: Any) -> None:
        self._frame = frame
        self._jvm = jvm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)

    def collectAsArrowToPython(self) -> tuple[Any, Any, Any]:  # noqa: N802 - Spark's name
        where, secret, server = self._frame.collectAsArrowToPython()
        return where, secret, _Server(server, self._jvm)


class _Server:
    """The thread of Java that sends the rows."""

    def __init__(self, server: Any, jvm: Any) -> None:
        self._server = server
        self._jvm = jvm

    def getResult(self) -> Any:  # noqa: N802 - Spark's name
        wait = self._jvm.scala.concurrent.duration.Duration.create(REPORT_S_MAX, "s")
        try:
            return self._server.getResult(wait)
        except Py4JJavaError as error:
            if "TimeoutException" not in error.java_exception.getClass().getName():
                raise
            raise UnavailableError(
                "Spark ran out of memory while it sent the rows of a query",
                hint="nothing was changed. Give it more: spark.driver_memory in stepwell.yml; or "
                "ask for fewer rows at once",
            ) from error
