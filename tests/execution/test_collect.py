"""Rows of a query arrive, or an error does; nobody waits for a thread of Java that has died."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from stepwell.errors import UnavailableError
from stepwell.execution.spark import collect
from stepwell.execution.spark.collect import to_arrow
from stepwell.execution.spark.failures import translated


def test_all_rows_are_collected_with_their_types(spark: SparkSession) -> None:
    """R1: as Spark's own `toArrow` returns them, without rows as well."""
    frame = spark.sql("SELECT id, CAST(id AS STRING) AS text, array(id) AS list FROM range(5)")
    for found in (frame, frame.where("id < 0"), frame.limit(1)):
        assert to_arrow(found).equals(found.toArrow())


def test_a_constant_too_large_for_java_ends_its_query(spark: SparkSession) -> None:
    """R1: the error ended the thread that sends rows, and the query waited for it forever."""
    frame = spark.sql("SELECT repeat('x', 2147483647) AS x")
    with pytest.raises(UnavailableError, match="Spark ran out of memory"), translated():
        to_arrow(frame)
    assert to_arrow(spark.range(2)).num_rows == 2


def test_a_thread_that_does_not_say_how_it_ended_is_not_waited_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: whatever ended it."""
    monkeypatch.setattr(collect, "REPORT_S_MAX", 1)
    # Nobody connects to this one, so it reports nothing within its time.
    _, _, server = cast(Any, spark.range(1))._jdf.collectAsArrowToPython()
    with pytest.raises(UnavailableError, match="while it sent the rows"):
        collect._Server(server, spark._jvm).getResult()
