"""Views built from their tables: several blocks at a time, in an order that does not matter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stepwell.errors import UserCodeError
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark import building
from stepwell.execution.spark.evaluate import Evaluator
from stepwell.execution.spark.views import Change, Views
from stepwell.lsm.limits import MemoryLimits
from tests.comparing import difference

SQL = """
CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, g INT, x DECIMAL(10,2), s STRING);
CREATE TABLE u (g INT, name STRING);
CREATE MATERIALIZED VIEW totals AS
  SELECT g, sum(x) AS total, avg(x) AS mean, count(s) AS n, count(*) AS every FROM t GROUP BY g;
CREATE MATERIALIZED VIEW named AS
  SELECT u.name, total FROM totals LEFT JOIN u ON totals.g = u.g;
CREATE MATERIALIZED VIEW largest AS SELECT g, max(x) AS top FROM t GROUP BY g;
CREATE MATERIALIZED VIEW both AS
  SELECT g, s FROM t WHERE x > 3 UNION ALL SELECT g, name FROM u;
CREATE MATERIALIZED VIEW absent AS SELECT id FROM t WHERE NOT EXISTS
  (SELECT 1 FROM u WHERE u.g = t.g);
CREATE MATERIALIZED VIEW whole REFRESH POLICY FULL AS SELECT count(*) AS n FROM named;
CREATE MATERIALIZED VIEW first AS SELECT id, x FROM t ORDER BY x DESC, id LIMIT 3;
CREATE MATERIALIZED VIEW over AS SELECT sum(n) AS n, count(*) AS every FROM totals;
"""
VIEWS = ("totals", "named", "largest", "both", "absent", "whole", "first", "over")
LARGE = {"limits": MemoryLimits(memory_rows_max=1), "queries": QueryLimits(small_rows_max=0)}
"""Every row is in a file, and no block is computed by the calling thread."""


def t_rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    numbers = [None if i % 7 == 0 else Decimal(i % 5) for i in ids]
    amounts = pa.array(numbers, pa.decimal128(10, 2))
    texts = [None if i % 3 == 0 else f"s{i % 4}" for i in ids]
    return pa.table({"id": list(ids), "g": [i % 6 for i in ids], "x": amounts, "s": texts})


# Several rows are equal, and one group has no name.
U_ROWS = pa.table({"g": [0, 1, 1, 2, 2, None], "name": ["a", "b", "b", None, "c", "d"]})


def opened(spark: SparkSession, **given: Any) -> Views:
    tables = {"t": spark.createDataFrame(t_rows(0, 40)), "u": spark.createDataFrame(U_ROWS)}
    return Views.open(spark, SQL, tables=tables, **{**LARGE, **given})


def check(views: Views) -> None:
    for name in VIEWS:
        assert difference(views.read(name), views.recompute(name)) == "", name


def test_views_are_built_as_spark_computes_them(spark: SparkSession) -> None:
    """S3: with weights that are all 1, which are not read, and with others, which are."""
    views = opened(spark, limits=MemoryLimits(memory_rows_max=20))
    check(views)
    views.apply({"t": Change(put=t_rows(35, 10)), "u": Change(delete=U_ROWS.slice(1, 1))})
    check(views)
    assert not all(part.ones for part in views.stored["u"].parts), "no row was retracted"
    views.build(VIEWS)
    check(views)
    views.apply({"t": Change(put=t_rows(44, 5))})
    check(views)


@dataclass
class Watched:
    begun: list[str] = field(default_factory=list)
    """The relations whose computation began, in order."""
    most: int = 0
    """The largest number that were computed at once."""


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None] = lambda relation: None
) -> Iterator[Watched]:
    """Watch a build; `before` is called with a relation as its computation begins."""
    seen, lock, running = Watched(), threading.Lock(), [0]
    plain = Evaluator.part

    def part(self: Evaluator, relation: str, *given: Any) -> Any:
        with lock:
            seen.begun.append(relation)
            running[0] += 1
            seen.most = max(seen.most, running[0])
        try:
            before(relation)
            return plain(self, relation, *given)
        finally:
            with lock:
                running[0] -= 1

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "part", part)
        yield seen


def view_of(relation: str) -> str:
    return relation.partition("$")[0]


def test_two_blocks_are_computed_at_once_and_no_more(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds memory; and one at a time leaves cores idle."""
    views = opened(spark)
    together = threading.Barrier(2)

    def before(relation: str) -> None:
        if view_of(relation) in ("totals", "largest"):
            together.wait(60)

    told: list[str] = []
    with watched(monkeypatch, before) as seen:
        views.build(VIEWS, told.append)
    assert told == list(VIEWS), "each view is told of once, in order"
    assert len(seen.begun) == len(set(seen.begun))
    assert seen.most == building.QUERIES
    check(views)


def test_a_block_waits_for_those_that_it_reads(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: it would be computed from rows that are not there yet."""
    views = opened(spark)
    tasks = {task.block.relation: task for task in building.tasks_of(views.programs)}
    waited: list[str] = []

    def before(relation: str) -> None:
        for name in tasks[relation].reads & tasks.keys():
            waited.append(name)
            assert views.stored[name].parts, (relation, name)

    with watched(monkeypatch, before):
        views.build(VIEWS)
    assert len(waited) >= 2


def test_a_build_that_fails_names_the_first_view_that_fails(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: also if another one fails before it, in another thread."""
    views = opened(spark)
    later = threading.Event()

    def before(relation: str) -> None:
        if view_of(relation) == "totals":
            assert later.wait(60)
            raise UserCodeError("the first")
        if view_of(relation) == "largest":
            later.set()
            raise UserCodeError("the other")

    with (
        watched(monkeypatch, before),
        pytest.raises(UserCodeError, match="the first") as raised,
    ):
        views.build(VIEWS)
    assert raised.value.about == "totals"
    views.build(VIEWS)
    check(views)


def test_an_interrupted_build_leaves_no_query_running(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: what is asked for by a signal would otherwise wait for queries to end."""
    views = opened(spark)
    cancelled: list[str] = []
    plain = type(spark.sparkContext).cancelJobGroup
    monkeypatch.setattr(
        type(spark.sparkContext),
        "cancelJobGroup",
        lambda self, group: cancelled.append(group) or plain(self, group),
    )

    def starting(view: str) -> None:
        if view == "both":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        views.build(VIEWS, starting)
    assert len(cancelled) == 1
    assert not [t for t in threading.enumerate() if t.name.startswith("stepwell-build")]
    views.build(VIEWS)
    check(views)
