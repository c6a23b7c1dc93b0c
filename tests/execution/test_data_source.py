"""The Spark data source `stepwell`: the rows of `query`, read by executors, and their changes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as pushed
from pyspark.sql.functions import expr
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import stepwell
from pyspark_stepwell import DefaultSource, RelationSourceReader
from stepwell.deploy.reader import RelationReader
from stepwell.errors import InvalidError, SnapshotExpiredError
from stepwell.execution.local import scan as scans
from stepwell.lsm import run_file
from tests.comparing import difference

pytestmark = pytest.mark.spark

TYPES = (
    "b BOOLEAN, i TINYINT, n INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, y BINARY, "
    "c DECIMAL(12,2), big DECIMAL(38,3), day DATE, at TIMESTAMP, plain TIMESTAMP_NTZ, "
    "list ARRAY<STRING>, map MAP<STRING,DOUBLE>, part STRUCT<x: INT, y: ARRAY<DATE>>"
)
SQL = f"""
CREATE TABLE keyed (id BIGINT NOT NULL PRIMARY KEY, {TYPES});
CREATE TABLE bag (x INT, `a ``word` STRING);
CREATE MATERIALIZED VIEW totals AS
  SELECT s, COUNT(*) AS n, SUM(c) AS total, AVG(n) AS mean FROM keyed GROUP BY s;
CREATE MATERIALIZED VIEW doubled AS
  SELECT x, d FROM bag JOIN (SELECT d FROM keyed) ON true;
CREATE MATERIALIZED VIEW counted AS SELECT COUNT(*) AS n FROM bag;
"""
RELATIONS = ("keyed", "bag", "totals", "doubled", "counted", "keyed$errors")
EDGES: dict[str, list[Any]] = {
    "b": [True, False],
    "i": [-128, 127, 0],
    "n": [-(2**31), 2**31 - 1],
    "l": [-(2**63), 2**63 - 1, 5],
    "f": [0.0, -0.0, float("nan"), float("inf")],
    "d": [0.0, -0.0, float("nan"), -1.5],
    "s": ["", "ada", "ad", "\u00fc\x00", "bob"],
    "y": [b"", b"\xff\x00"],
    "c": [Decimal("0.01"), Decimal("-9999999999.99"), Decimal("5.00")],
    "big": [Decimal("-12345678901234567890123456789012345.678")],
    "day": [date(1, 1, 1), date(2024, 2, 29)],
    "at": [datetime(2024, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    "plain": [datetime(2024, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "list": [[], [None, "x"], ["y"]],
    "map": [{}, {"b": None, "a": -0.0}],
    "part": [{"x": None, "y": [date(2024, 1, 1), None]}, {"x": 3, "y": None}],
}
ROWS = st.fixed_dictionaries(
    {name: st.sampled_from([None, *values]) for name, values in EDGES.items()}
)
CHANGES = st.tuples(
    st.lists(st.tuples(st.integers(1, 6), ROWS), max_size=4),
    st.lists(st.sampled_from([1, 2, None]), max_size=4),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shop")
    (made / "stepwell.yml").write_text("name: shop\nstore: ./state\n", encoding="utf-8")
    (made / "pipeline.sql").write_text(SQL, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def pipeline(folder: Path, spark: SparkSession) -> Iterator[stepwell.Pipeline]:
    with stepwell.open(folder, spark=spark) as opened:
        row = {name: values[0] for name, values in EDGES.items()}
        opened.push("keyed", [{"id": 100, **row}, {"id": 101}])
        opened.push("bag", [{"x": 7, "a `word": "w"}] * 2)
        opened.flush()
        yield opened


def load(spark: SparkSession, folder: Path, relation: str, **options: object) -> DataFrame:
    reader = spark.read.format("stepwell").option("relation", relation)
    return reader.options(**{k: str(v) for k, v in options.items()}).load(str(folder))


def scanned(scan: scans.RelationScan) -> pa.Table:
    """What all tasks of a job read."""
    empty = scan.schema.empty_table().drop_columns(["w"])
    return pa.concat_tables([empty, *(t for share in scan.shares() for t in scan.rows(share))])


@settings(max_examples=6, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(changes=st.lists(CHANGES, min_size=1, max_size=2), ranges=st.booleans())
def test_a_scan_has_exactly_the_rows_of_a_query(
    folder: Path,
    pipeline: stepwell.Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    changes: list[Any],
    ranges: bool,
) -> None:
    """A retraction in one run cancels a row of another, and a row of weight two is there twice;
    whether a task reads all runs, or a range of keys of each."""
    for keyed, bags in changes:
        pipeline.push("keyed", [{"id": id, **row} for id, row in keyed])
        pipeline.push("bag", [{"x": x, "a `word": "w"} for x in bags])
        pipeline.flush()
    monkeypatch.setattr(run_file, "FILE_ROWS", 2 if ranges else 10**6)
    for relation in RELATIONS:
        pinned = RelationReader(folder, relation).latest()
        found = scanned(pinned.scan).rename_columns(list(pinned.scan.shown.columns))
        assert difference(found, pipeline.table(relation)) == "", relation
        assert pinned.transaction == pipeline.status().transaction


def test_spark_reads_what_a_query_answers(
    folder: Path, pipeline: stepwell.Pipeline, spark: SparkSession
) -> None:
    """Spark finds the source by itself; every type arrives as the type that the view has."""
    for relation in ("keyed", "totals"):
        frame, rows = load(spark, folder, relation), pipeline.table(relation)
        assert difference(frame.toArrow(), rows) == "", relation
        assert frame.toArrow().schema.types == rows.schema.types
    before = load(spark, folder, "bag", columns="A `word")
    assert before.columns == ["a `word"], "in any case, and only the columns that are named"
    count = before.count()
    pipeline.push("bag", [{"x": 1}])
    pipeline.flush()
    assert before.count() == count, "a DataFrame stays as of its transaction"
    assert load(spark, folder, "bag").count() == count + 1


def test_filters_keep_the_rows_that_spark_keeps(
    folder: Path, pipeline: stepwell.Pipeline, spark: SparkSession
) -> None:
    """A filter that drops one row too many loses data without a word: Spark cannot see it."""
    rows = [
        {"id": 1000 + place, **{name: (values * 9)[place] for name, values in EDGES.items()}}
        for place in range(6)
    ]
    pipeline.push("keyed", [*rows, {"id": 1100}])
    pipeline.flush()
    cases: list[tuple[str, pushed.Filter]] = []
    orders = {
        "=": pushed.EqualTo,
        "<=>": pushed.EqualNullSafe,
        "<": pushed.LessThan,
        "<=": pushed.LessThanOrEqual,
        ">": pushed.GreaterThan,
        ">=": pushed.GreaterThanOrEqual,
    }
    literals = {
        "n": "2147483647",
        "l": "5L",
        "i": "0Y",
        "c": "5.00BD",
        "s": "'ada'",
        "b": "true",
        "day": "DATE'2024-02-29'",
        "y": "X'FF00'",
        "at": "TIMESTAMP'2024-01-01 00:00:00'",
        "plain": "TIMESTAMP_NTZ'2024-01-01 00:00:00'",
        "d": "double('NaN')",
        "f": "float(0)",
    }
    for name, sql in literals.items():
        value = {"n": 2**31 - 1, "l": 5, "i": 0, "s": "ada", "b": True}.get(name, EDGES[name][-1])
        value = {"d": float("nan"), "f": 0.0, "at": EDGES["at"][0], "plain": EDGES["plain"][0]}.get(
            name, value
        )
        for operator, kind in orders.items():
            cases.append((f"{name} {operator} {sql}", kind((name,), value)))
        cases.append((f"{name} IN ({sql})", pushed.In((name,), (value,))))
        cases.append((f"{name} IN ({sql}, NULL)", pushed.In((name,), (value, None))))
    for name in EDGES:
        cases.append((f"{name} IS NULL", pushed.IsNull((name,))))
        cases.append((f"{name} IS NOT NULL", pushed.IsNotNull((name,))))
    cases += [
        ("s <=> NULL", pushed.EqualNullSafe(("s",), None)),
        ("startswith(s, 'ad')", pushed.StringStartsWith(("s",), "ad")),
        ("endswith(s, 'a')", pushed.StringEndsWith(("s",), "a")),
        ("contains(s, '\u00fc')", pushed.StringContains(("s",), "\u00fc")),
    ]
    cases += [(f"NOT ({sql})", pushed.Not(filter)) for sql, filter in cases]
    scan = RelationReader(folder, "keyed").latest().scan
    truths = pipeline.to_spark("keyed").select(
        "id", *(expr(sql).alias(f"t{place}") for place, (sql, _) in enumerate(cases))
    )
    expected = truths.toArrow()
    narrowed = 0
    for place, (sql, filter) in enumerate(cases):
        reader = RelationSourceReader(scan, StructType())
        assert list(reader.pushFilters([filter])) == [filter], "Spark evaluates it, too"
        found = set(scanned(reader.scan).column(0).to_pylist())
        kept = expected.filter(expected.column(f"t{place}"))
        every = set(expected.column("id").to_pylist())
        assert found == set(kept.column("id").to_pylist()) or (
            not reader.scan.filters and found == every
        ), sql
        narrowed += found != every
    assert narrowed > len(cases) / 2, "most filters are evaluated by the reader"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, folder, "keyed").where(
            "s = 'ada' AND c > 0 AND id BETWEEN 1000 AND 1100"
        )
        same = pipeline.to_spark("keyed").where("s = 'ada' AND c > 0 AND id BETWEEN 1000 AND 1100")
        assert difference(frame.toArrow(), same.toArrow()) == ""
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_row_group_is_skipped_only_if_no_row_of_it_can_match(folder: Path) -> None:
    """The statistics of a file must save reading, and must not lose a row."""
    from stepwell.execution.local.pushdown import Pushed, Test, may_match
    from stepwell.lsm.run_ranges import Group, Range

    group, kind = Group(10, 3, 7, False), pa.int64()
    expected = {
        (Test.EQUAL, 2): False,
        (Test.EQUAL, 3): True,
        (Test.LESS, 3): False,
        (Test.LESS_OR_EQUAL, 3): True,
        (Test.GREATER, 7): False,
        (Test.GREATER_OR_EQUAL, 7): True,
        (Test.IN, 9): False,
        (Test.SAME, 99): True,
    }
    for (test, value), there in expected.items():
        assert may_match(Pushed(0, test, (value,)), group, kind) is there, (test, value)
        assert may_match(Pushed(0, test, (value,), negated=True), group, kind)
        assert may_match(Pushed(0, test, (value,)), Group(10, None, None, True), kind)
    assert [
        group.overlaps(Range(0, low, high)) for low, high in ((None, 3), (7, None), (8, 9))
    ] == [
        False,
        True,
        False,
    ]
    assert Group(10, 3, 7, True).overlaps(Range(0, None, 3)), "NULL is in the first range"


def test_a_row_is_repeated_as_often_as_its_weight_says() -> None:
    """A weight may be larger than a batch, and than memory."""
    table = pa.table({"c0": [1, 2, 3], "w": [2, 100_000, 1]})
    tables = list(scans._repeated(None, table))  # type: ignore[arg-type]
    assert max(t.num_rows for t in tables) <= scans.BATCH_ROWS
    assert Counter(pa.concat_tables(tables).column(0).to_pylist()) == {1: 2, 2: 100_000, 3: 1}


def test_a_transaction_is_read_as_long_as_it_is_kept(
    folder: Path, pipeline: stepwell.Pipeline
) -> None:
    """A state that is no longer kept must not be replaced by another one."""
    kept = pipeline.status().transaction
    rows = pipeline.table("bag")
    pipeline.checkpoint("kept")
    pipeline.push("bag", [{"x": 50}])
    reader = RelationReader(folder, "bag")
    assert reader.latest().behind == 1
    assert reader.latest().transaction == kept, "the last flush"
    assert RelationReader(folder, "totals").latest().behind == 0, "it does not read bag"
    options = {"path": str(folder), "relation": "bag"}
    with pytest.raises(InvalidError, match="the 1 after it may have changed it"):
        DefaultSource({**options, "unflushed": "fail"}).schema()
    pipeline.flush()
    pinned = RelationReader(folder, "bag").at(kept)
    assert difference(scanned(pinned.scan).rename_columns(["x", "a `word"]), rows) == ""
    with pytest.raises(InvalidError, match=r"does not keep its state as of transaction 99999"):
        DefaultSource({**options, "transaction": "99999"}).schema()
    for more, message in (
        ({"relation": "bags"}, "there is no table or view bags"),
        ({"columns": "x, z"}, "bag has no column z"),
        ({"colums": "x"}, "unknown option colums"),
        ({"transaction": "last"}, "transaction must be a number"),
    ):
        with pytest.raises(InvalidError, match=message):
            DefaultSource({**options, **more}).schema()


def test_files_collected_under_a_reader_are_named(
    folder: Path, pipeline: stepwell.Pipeline
) -> None:
    """A reader whose files are gone must neither return fewer rows nor report damage."""
    pipeline.flush()
    pinned = RelationReader(folder, "keyed").latest()
    shares = pinned.scan.shares()
    path = folder / "state" / pinned.scan.runs[0].path
    moved = path.rename(path.with_suffix(".away"))
    try:
        for read in (pinned.scan.shares, lambda: [list(pinned.scan.rows(s)) for s in shares]):
            with pytest.raises(SnapshotExpiredError, match="garbage collection has deleted") as got:
                read()
            assert "gc.grace" in str(got.value.hint)
    finally:
        moved.rename(path)


def test_a_stream_follows_changes_exactly_once_across_restarts(
    folder: Path, pipeline: stepwell.Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    """A batch that runs again after a crash must have the rows it had, also after a compaction."""
    source = spark.readStream.format("stepwell").option("relation", "totals")
    source = source.option("changes", "true")
    seen: list[tuple[int, Counter[Any], list[Any]]] = []

    def follow(crash: bool = False) -> None:
        def handle(frame: DataFrame, number: int) -> None:
            rows = frame.toArrow()
            weights = rows.column("_w").to_pylist()
            found: Counter[Any] = Counter()
            for row, weight in zip(
                rows.drop_columns(["_w", "_transaction"]).to_pylist(), weights, strict=True
            ):
                found[tuple(row.values())] += weight
            seen.append((number, found, rows.column("_transaction").to_pylist()))
            if crash:
                raise RuntimeError("crash before the batch is committed")

        query = source.load(str(folder)).writeStream.foreachBatch(handle)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    def state() -> Counter[Any]:
        return Counter(tuple(row.values()) for row in pipeline.table("totals").to_pylist())

    follow()
    stored = pipeline.status().epoch
    pipeline.push("keyed", [{"id": 1, "s": "eve", "c": 1}])
    pipeline.push("keyed", [{"id": 1, "s": "bob", "c": 2}])
    pipeline.flush()
    with pytest.raises(Exception, match="crash before the batch"):
        follow(crash=True)
    pipeline.push("keyed", [{"id": 2, "s": "eve", "c": 3}])
    pipeline.compact()
    pipeline.flush()
    follow()
    first, crashed, again, last = seen
    assert crashed == again, "the same rows, though the runs were compacted meanwhile"
    assert [number for number, *_ in seen] == [0, 1, 1, 2]
    whole: Counter[Any] = Counter()
    for _, rows, transactions in (first, again, last):
        whole.update(rows)
        assert len(set(transactions)) == 1, "a batch leads to the state of one transaction"
    assert {row: n for row, n in whole.items() if n} == state()
    assert last[2][0] == pipeline.status().transaction
    assert pipeline.status().epoch == stored, "nobody was fenced"
    following = DefaultSource({"path": str(folder), "relation": "totals", "changes": "true"})
    reader = following.streamReader(StructType())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["transaction"] == last[2][0]
    assert reader.latestOffset(end, ReadAllAvailable()) == end, "nothing is new"
    other = {**end, "lineage": "another", "transaction": end["transaction"] + 7}
    with pytest.raises(InvalidError, match="now holds the pipeline"):
        reader.partitions(other, reader.latestOffset(other, ReadAllAvailable()))
    gone = {**end, "manifest": 10**6, "transaction": 10**6}
    with pytest.raises(SnapshotExpiredError, match="no longer kept"):
        reader.partitions(gone, end)
    with pytest.raises(InvalidError, match="a stream reads changes"):
        DefaultSource({"relation": "bag"}).streamReader(StructType())


def test_the_examples_of_the_guide_run(spark: SparkSession, tmp_path: Path) -> None:
    """What is copied from there must work."""
    root = Path(__file__).resolve().parents[2]
    shutil.copytree(root / "examples" / "orders", tmp_path / "orders")
    with stepwell.open(tmp_path / "orders", spark=spark) as pipeline:
        pipeline.run(once=True)
    page = (root / "docs" / "guides" / "reading.md").read_text(encoding="utf-8")
    snippets = [
        s for s in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "spark." in s
    ]
    assert len(snippets) == 2
    names: dict[str, Any] = {"spark": spark}
    for snippet in snippets:
        for name in ("orders", "changes", "changes-checkpoint"):
            for before in (".load(", '"path", ', '"checkpointLocation", '):
                snippet = snippet.replace(f'{before}"{name}"', f'{before}"{tmp_path / name}"')
        exec(snippet, names)
    assert names["orders"].count() == 6
    assert names["revenue"].columns == ["customer", "total"]
    names["query"].awaitTermination()
    files = (tmp_path / "changes").glob("*.json")
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == names["revenue"].count()


def test_finding_the_source_costs_other_sessions_nothing() -> None:
    """Spark imports the module in every session that uses any Python data source."""
    code = (
        "import sys, pyspark_stepwell; print([m for m in sys.modules if m.startswith('stepwell')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]", ended.stderr
