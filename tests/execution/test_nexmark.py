"""The queries of Nexmark as views, while bids arrive, are corrected and are taken back."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import tests.workloads  # noqa: F401 - finds the folder of the benchmarks
from stepwell.execution.spark.views import Change, Views
from tests.comparing import difference
from tests.execution.following import assert_decisions_held

QUICK = ["q4", "q5", "q6", "q8", "q13", "q18", "q20"]
"""An average of maxima, sliding windows, windows over joins, sessions of people, last bids."""

SESSIONS = "q11"
"""Its sessions merge when a bid falls between them; Spark recomputes them."""


def test_some_queries_of_nexmark_follow_the_stream(spark: SparkSession) -> None:
    """S5: event time is data like any other, so a late or corrected bid needs no watermark."""
    follow(spark, QUICK, batches=1)


@pytest.mark.slow
def test_all_queries_of_nexmark_follow_the_stream(spark: SparkSession) -> None:
    """S5: all of them, for longer."""
    follow(spark, None, batches=4)


def follow(spark: SparkSession, names: list[str] | None, *, batches: int) -> None:
    import _nexmark
    from _changes import views as statements

    queries = statements(_nexmark.SQL)
    names = names or list(queries)
    schema = (_nexmark.SQL / "schema.sql").read_text(encoding="utf-8")
    changes = _nexmark.Changes(per_second=20)
    views = Views.open(
        spark,
        "\n".join([schema, *(queries[name] for name in names)]),
        tables={"side_input": _nexmark.side_input()},
    )
    recomputed = {name for name in names if views.explain(name).recomputed}
    assert recomputed <= {SESSIONS}
    for batch in range(1 + batches):
        drawn = changes.mixed(10) if batch else changes.arrivals(500)
        outcome = views.apply({t: Change(c.put, c.delete) for t, c in drawn.items()})
        assert_decisions_held(outcome)
        assert not outcome.rejected
        for name in names:
            wrong = difference(views.read(name), views.recompute(name))
            assert not wrong, f"{name} after batch {batch}:\n{wrong}"
