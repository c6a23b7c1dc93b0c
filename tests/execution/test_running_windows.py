"""Windows without PARTITION BY, under rows that come at the end of their order and elsewhere.

Random views rarely draw a batch that is all at the end, so here every other one is.
"""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stepwell.execution.spark.blocks import all_after
from stepwell.execution.spark.views import Change, Views
from stepwell.plan.maintain import Maintenance
from tests.comparing import difference

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, k INT, d DATE, x INT, m DECIMAL(8,2), s STRING);"
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("k", pa.int32()),
        ("d", pa.date32()),
        ("x", pa.int32()),
        ("m", pa.decimal128(8, 2)),
        ("s", pa.string()),
    ]
)
QUERIES = (
    "SELECT id, row_number() OVER (ORDER BY k, id) AS a, rank() OVER (ORDER BY k) AS b, "
    "dense_rank() OVER (ORDER BY k) AS c FROM t",
    "SELECT id, sum(x) OVER (ORDER BY d) AS a, sum(m) OVER (ORDER BY d, id ROWS UNBOUNDED "
    "PRECEDING) AS b, count(x) OVER (ORDER BY d) AS c FROM t",
    "SELECT id, min(s) OVER (ORDER BY k DESC) AS a, max(m) OVER (ORDER BY k DESC) AS b FROM t",
    "SELECT id, lag(x) OVER (ORDER BY k, id) AS a, lag(m, 2, 0.5) OVER (ORDER BY k, id) AS b, "
    "sum(x) OVER (PARTITION BY 'all' ORDER BY k) AS c FROM t WHERE x >= 0 OR x IS NULL",
    "SELECT k, count(*) AS n FROM t GROUP BY k QUALIFY row_number() OVER (ORDER BY k) > 2",
)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
def test_running_windows_are_what_spark_computes(
    spark: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: ties, NULLs, duplicates and deletes at the end are where a shortcut would be wrong."""
    ends: list[object] = []
    real = Maintenance.at_the_end
    monkeypatch.setattr(Maintenance, "at_the_end", lambda *args: ends.append(args) or real(*args))
    named = {f"v{i}": query for i, query in enumerate(QUERIES)}
    text = "".join(f"CREATE MATERIALIZED VIEW {n} AS {q};" for n, q in named.items())
    views = Views.open(spark, TABLE + text)
    assert not any(views.explain(name).reasons for name in named)
    random = Random(seed)
    there: set[int] = set()
    for step in range(8):
        later = 10 * step if random.random() < 0.7 else 0
        rows = [row(random, later) for _ in range(1 + random.randrange(4))]
        gone = random.sample(sorted(there), min(len(there), random.choice([0, 0, 0, 2])))
        rows = list({r["id"]: r for r in rows if r["id"] not in gone}.values())
        there = (there - set(gone)) | {r["id"] for r in rows}
        views.apply(
            {
                "t": Change(
                    put=pa.Table.from_pylist(rows, SCHEMA) if rows else None,
                    delete=pa.table({"id": pa.array(gone, pa.int32())}) if gone else None,
                )
            }
        )
        for name in named:
            wrong = difference(views.read(name), views.recompute(name))
            assert not wrong, f"{named[name]} after step {step}: {wrong}"
    assert ends


def row(random: Random, later: int) -> dict[str, object]:
    key = later + random.randrange(10)
    day = date(2024, 1, 1) + timedelta(days=later + random.randrange(4))
    return {
        "id": later * 10 + random.randrange(30),
        "k": key if random.random() < 0.95 else None,
        "d": day if random.random() < 0.95 else None,
        "x": random.choice([None, -1, 0, 3, 7]),
        "m": random.choice([None, Decimal("1.25"), Decimal("-3.50")]),
        "s": random.choice([None, "a", "B", ""]),
    }


@pytest.mark.parametrize(
    "type_", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("us")]
)
def test_values_beyond_those_of_python_are_compared(type_: pa.DataType) -> None:
    """S3: one row of the year 20000 must not stop a pipeline for good."""
    whole = pa.int32() if type_ == pa.date32() else pa.int64()
    far = 2**31 - 2 if type_ == pa.date32() else 2**62
    old, new = (pa.chunked_array([pa.array([far + n], whole).cast(type_)]) for n in (0, 1))
    assert all_after(old, new, descending=False)
    assert all_after(new, old, descending=True)
    assert not all_after(old, old, descending=False)
    assert not all_after(new, old, descending=False)


def test_values_that_arrow_cannot_compare_are_not_at_the_end() -> None:
    rows = pa.chunked_array([pa.array([[1], [2]])])
    assert not all_after(rows, rows, descending=False)
