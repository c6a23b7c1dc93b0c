"""The workloads are what they say: the same at every run, in step with themselves, not empty.

Whatever is measured or compared over them later is worth as much as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sqlglot
from pyspark.sql import SparkSession
from sqlglot import exp

import _nexmark
import _tpch
from _changes import Change, query_of, views
from tests.execution.conftest import spark

__all__ = ["spark"]  # A fixture is found in the module that uses it.

Tables = Mapping[str, pa.Table]
Step = Callable[[Any], dict[str, Change]]

SCALE = 0.01

TYPES = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DECIMAL(15, 2)": pa.decimal128(15, 2),
}

FILES = [
    pytest.param(workload.SQL, name, statement, id=f"{workload.SQL.name}-{name}")
    for workload in (_tpch, _nexmark)
    for name, statement in views(workload.SQL).items()
]

TPCH_STEPS: list[Step] = [
    lambda changes: changes.new_orders(0.02),
    lambda changes: changes.delete_orders(0.02),
    *(
        lambda changes, table=table, kind=kind: getattr(changes, kind)(table, 4)
        for table in _tpch.TABLES
        for kind in ("updates", "deletes", "inserts", "inserts", "deletes")
    ),
    *[lambda changes: changes.mixed(5)] * 5,
]

NEXMARK_STEPS: list[Step] = [
    lambda changes: changes.arrivals(500),
    *(
        lambda changes, table=table, kind=kind: getattr(changes, kind)(table, 5)
        for table in _nexmark.TABLES
        for kind in ("updates", "deletes", "updates")
    ),
    *[lambda changes: changes.mixed(20)] * 5,
    # More than there is.
    lambda changes: changes.deletes("person", 1000),
    lambda changes: changes.updates("person", 5),
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tpch")


@pytest.fixture(scope="session")
def tpch(folder: Path) -> Tables:
    """The smallest scale there is, with a tenth of its orders."""
    tables = _tpch.load(folder, SCALE)
    orders = tables["orders"].slice(0, 1500)
    lines = tables["lineitem"]
    of_these = pc.is_in(lines["l_orderkey"], orders["o_orderkey"].combine_chunks())
    return {**tables, "orders": orders, "lineitem": lines.filter(of_these)}


# --- files ----------------------------------------------------------------------------------------


def test_the_tables_of_tpch_have_the_columns_of_its_schema(tpch: Tables) -> None:
    """A type that differs would be cast on the way in, and no answer would be the standard's."""
    assert declared(_tpch.SQL) == {
        name: (table.schema, _tpch.KEYS[name]) for name, table in tpch.items()
    }


def test_the_tables_of_nexmark_have_the_columns_of_its_schema() -> None:
    """A type that differs would be cast on the way in."""
    made = {**_nexmark.events(0, 100), "side_input": _nexmark.side_input()}
    assert declared(_nexmark.SQL) == {
        name: (made[name].schema, key) for name, key in _nexmark.KEYS.items()
    }


def test_no_query_is_missing() -> None:
    """Two of Nexmark's are not views, for reasons given in its schema.sql."""
    assert list(views(_tpch.SQL)) == [f"q{number:02}" for number in range(1, 23)]
    left_out = (10, 12)
    expected = [f"q{number}" for number in range(23) if number not in left_out]
    assert list(views(_nexmark.SQL)) == expected
    reasons = (_nexmark.SQL / "schema.sql").read_text()
    assert all(f"q{number} " in reasons for number in left_out)


@pytest.mark.parametrize(("folder_of_sql", "name", "statement"), FILES)
def test_a_file_makes_one_view_of_its_own_name(
    folder_of_sql: Path, name: str, statement: str
) -> None:
    """A copied file would make one view twice and another one never."""
    comment, view, query = re.split(
        r"^CREATE MATERIALIZED VIEW (\w+) AS$", statement, flags=re.MULTILINE
    )
    assert view == name
    assert all(line.startswith("-- ") for line in comment.splitlines())
    assert comment.strip()
    assert query_of(statement) == query.strip().removesuffix(";")
    assert statement.count(";\n") == 1
    assert statement.endswith(";\n")


def test_what_is_not_a_view_has_no_query() -> None:
    """Half a statement given to Spark would be an error about something else."""
    with pytest.raises(ValueError, match="CREATE MATERIALIZED VIEW"):
        query_of("SELECT 1")


# --- TPC-H ----------------------------------------------------------------------------------------


def test_tables_are_generated_once(folder: Path) -> None:
    """At scale factor 1 it takes a while, and every benchmark needs them."""
    made = {path: path.stat().st_mtime_ns for path in _tpch.generate(folder, SCALE).values()}
    again = _tpch.generate(folder, SCALE)
    assert list(again) == list(_tpch.TABLES)
    assert {path: path.stat().st_mtime_ns for path in again.values()} == made


def test_a_scale_without_keys_is_refused(tmp_path: Path) -> None:
    """Two rows with one key are one row to a table, and the answers would differ."""
    with pytest.raises(ValueError, match="expected 800 keys in partsupp, found 700"):
        _tpch.generate(tmp_path, 0.001)
    assert list(tmp_path.iterdir()) == []


def test_the_changes_of_tpch_lead_to_what_it_says_is_there(tpch: Tables) -> None:
    """A generator out of step with itself would accuse the views of its own mistakes."""
    changes = _tpch.Changes(tpch, seed=3)
    check(changes, tpch, _tpch.KEYS, TPCH_STEPS)


def test_the_same_seed_gives_the_same_changes(tpch: Tables) -> None:
    """What failed once has to fail again."""
    one, same, other = (_tpch.Changes(tpch, seed=seed) for seed in (5, 5, 6))
    for step in TPCH_STEPS:
        assert step(one) == step(same)
        step(other)
    assert one.current() == same.current()
    assert one.current() != other.current()


def test_new_orders_come_with_their_lines(tpch: Tables) -> None:
    """Orders without lines would leave most queries as they were."""
    changes = _tpch.Changes(tpch)
    new = changes.new_orders(0.1)
    orders, lines = new["orders"].put, new["lineitem"].put
    keys = set(orders["o_orderkey"].to_pylist())
    assert len(keys) == orders.num_rows == round(0.1 * tpch["orders"].num_rows)
    assert not keys & set(tpch["orders"]["o_orderkey"].to_pylist())
    assert set(lines["l_orderkey"].to_pylist()) == keys
    pairs = set(zip(*columns(tpch["partsupp"], "ps_partkey", "ps_suppkey"), strict=True))
    assert set(zip(*columns(lines, "l_partkey", "l_suppkey"), strict=True)) <= pairs
    charge = Counter[int]()
    for order, price, discount, tax in zip(
        *columns(lines, "l_orderkey", "l_extendedprice", "l_discount", "l_tax"), strict=True
    ):
        charge[order] += price * (1 - discount) * (1 + tax)
    for order, total in zip(*columns(orders, "o_orderkey", "o_totalprice"), strict=True):
        assert abs(charge[order] - total) <= 0.01
    pieces = lines.group_by("l_orderkey").aggregate([("l_quantity", "sum")])
    assert pc.max(pieces["l_quantity_sum"]).as_py() > 300, "Q18 finds none of them"


def test_deleted_orders_take_their_lines_along(tpch: Tables) -> None:
    """Lines without an order are another kind of change, and come from deletes()."""
    changes = _tpch.Changes(tpch)
    gone = changes.delete_orders(0.1)
    keys = set(gone["orders"].delete["o_orderkey"].to_pylist())
    assert len(keys) == round(0.1 * tpch["orders"].num_rows)
    assert set(gone["lineitem"].delete["l_orderkey"].to_pylist()) == keys
    assert not keys & set(changes.current()["lineitem"]["l_orderkey"].to_pylist())


@pytest.mark.parametrize("table", _tpch.TABLES)
def test_keys_that_were_deleted_come_back(tpch: Tables, table: str) -> None:
    """A key that left traces in some state is found out only when it returns."""
    changes = _tpch.Changes(tpch)
    gone = set(keys_of(changes.deletes(table, 3)[table].delete, _tpch.KEYS[table]))
    back = set(keys_of(changes.inserts(table, 3)[table].put, _tpch.KEYS[table]))
    assert len(gone) == len(back) == 3
    assert len(gone & back) == 1


@pytest.mark.parametrize("table", _tpch.TABLES)
def test_updates_change_every_column_that_a_query_of_tpch_looks_at(
    tpch: Tables, table: str
) -> None:
    """A column that never changes hides whatever is wrong with updating it."""
    changes = _tpch.Changes(tpch)
    found: set[str] = set()
    for _ in range(3):
        before = changes.current()[table]
        put = changes.updates(table, before.num_rows)[table].put
        found |= changed_columns(before, put, _tpch.KEYS[table])
    text = " ".join(views(_tpch.SQL).values())
    asked = {name for name in tpch[table].column_names if re.search(rf"\b{name}\b", text)}
    never = {"s_name", "c_name"} | set(_tpch.KEYS[table])
    assert asked - found == asked & never


# --- Nexmark --------------------------------------------------------------------------------------


def test_events_do_not_depend_on_the_portions_they_are_made_in() -> None:
    """Else a benchmark with larger batches would run on other data."""
    whole = _nexmark.events(0, 1000)
    for cut in (1, 50, 777):
        first, rest = _nexmark.events(0, cut), _nexmark.events(cut, 1000 - cut)
        for table, rows in whole.items():
            assert pa.concat_tables([first[table], rest[table]]).combine_chunks() == rows
    assert _nexmark.events(0, 1000, seed=2) != whole


def test_events_are_mixed_and_skewed_as_in_nexmark() -> None:
    """Without hot keys a benchmark is kinder than life."""
    made = _nexmark.events(0, 10_000)
    assert {name: table.num_rows for name, table in made.items()} == {
        "person": 200,
        "auction": 600,
        "bid": 9200,
    }
    bids = made["bid"].to_pylist()
    for column, share in (("auction", 0.05), ("bidder", 0.3)):
        assert Counter(bid[column] for bid in bids).most_common(1)[0][1] > share * len(bids)
    twice = len(bids) - len({tuple(bid.values()) for bid in bids})
    assert 0 < twice < 0.01 * len(bids)


def test_events_refer_only_to_what_came_before() -> None:
    """A bid for an auction yet to come would make every join look later than it is."""
    made = _nexmark.events(0, 10_000)
    since = {
        name: dict(zip(*columns(made[name], "id", "date_time"), strict=True))
        for name in ("person", "auction")
    }
    for auction in made["auction"].to_pylist():
        assert since["person"][auction["seller"]] < auction["date_time"] < auction["expires"]
    for bid in made["bid"].to_pylist():
        assert since["person"][bid["bidder"]] < bid["date_time"]
        assert since["auction"][bid["auction"]] < bid["date_time"]


def test_the_changes_of_nexmark_lead_to_what_it_says_is_there() -> None:
    """A generator out of step with itself would accuse the views of its own mistakes."""
    changes = _nexmark.Changes(seed=3)
    check(changes, changes.current(), _nexmark.KEYS, NEXMARK_STEPS)


def test_the_same_seed_gives_the_same_events_and_changes() -> None:
    """What failed once has to fail again."""
    one, same = _nexmark.Changes(seed=5), _nexmark.Changes(seed=5)
    for step in NEXMARK_STEPS:
        assert step(one) == step(same)


@pytest.mark.parametrize("table", _nexmark.TABLES)
def test_updates_change_what_the_queries_of_nexmark_look_at(table: str) -> None:
    """A column that never changes hides whatever is wrong with updating it."""
    changes = _nexmark.Changes()
    changes.arrivals(2000)
    before = changes.current()[table]
    change = changes.updates(table, before.num_rows)[table]
    if _nexmark.KEYS[table]:
        found = changed_columns(before, change.put, _nexmark.KEYS[table])
    else:
        assert change.delete == before
        found = {name for name in before.column_names if before[name] != change.put[name]}
    expected = {
        "person": {"name", "city", "state", "date_time"},
        "auction": {"category", "seller", "date_time", "expires", "item_name", "reserve"},
        "bid": set(before.column_names),
        "side_input": {"value"},
    }
    assert found == expected[table]


# --- Spark ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spark
def test_spark_answers_every_query_over_changed_tables(folder: Path, spark: SparkSession) -> None:
    """A query that Spark refuses, or that finds nothing, would test nothing.

    At this scale a few queries find one row or two, so another seed may leave one without any.
    """
    tpch = _tpch.Changes(_tpch.load(folder, SCALE), seed=1)
    tpch.new_orders(0.05)
    tpch.delete_orders(0.05)
    for table in _tpch.TABLES:
        tpch.updates(table, tpch.count(table) // 20)
    # The second time brings back the region and the nation that the first one takes away.
    tpch.mixed(10)
    tpch.mixed(10)
    nexmark = _nexmark.Changes(seed=1, per_second=20)
    nexmark.arrivals(4000)
    nexmark.mixed(50)
    assert list(nothing_found(spark, _tpch.SQL, tpch.current())) == []
    assert list(nothing_found(spark, _nexmark.SQL, nexmark.current())) == []


def nothing_found(spark: SparkSession, sql: Path, tables: Tables) -> Iterator[str]:
    """The queries without an answer; a global sum of nothing is NULL, which is none either."""
    for name, table in tables.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    try:
        for name, statement in views(sql).items():
            answer = spark.sql(query_of(statement)).toArrow()
            assert len(set(answer.column_names)) == answer.num_columns, name
            if all(column.null_count == answer.num_rows for column in answer.columns):
                yield name
    finally:
        for name in tables:
            spark.catalog.dropTempView(name)


# --- a table as rows by key -----------------------------------------------------------------------


def check(
    changes: Any, tables: Tables, keys: Mapping[str, tuple[str, ...]], steps: list[Step]
) -> None:
    """Follow the changes with plain dicts and counters, which come to the same tables."""
    by_key = {name: rows_by_key(tables[name], key) for name, key in keys.items() if key}
    bags = {name: bag(tables[name]) for name, key in keys.items() if not key}
    for step in steps:
        for name, change in step(changes).items():
            assert change.put is not None or change.delete is not None
            if name in bags:
                gone = bag(change.delete)
                assert gone <= bags[name], f"{name}: deletes what is not there"
                bags[name] = bags[name] - gone + bag(change.put)
                continue
            put, delete = (rows_by_key(rows, keys[name]) for rows in (change.put, change.delete))
            assert not put.keys() & delete.keys()
            for key, row in delete.items():
                assert by_key[name].pop(key) == row, f"{name}: deletes what is not there"
            by_key[name].update(put)
    current = changes.current()
    for name, rows in by_key.items():
        assert rows_by_key(current[name], keys[name]) == rows
    for name, rows in bags.items():
        assert bag(current[name]) == rows


def rows_by_key(table: pa.Table | None, key: tuple[str, ...]) -> dict[tuple[Any, ...], Any]:
    if table is None:
        return {}
    found = dict(zip(keys_of(table, key), table.to_pylist(), strict=True))
    assert len(found) == table.num_rows, "a key is there twice"
    return found


def keys_of(table: pa.Table, key: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*columns(table, *key), strict=True))


def bag(table: pa.Table | None) -> Counter[tuple[Any, ...]]:
    rows = [] if table is None else table.to_pylist()
    return Counter(tuple(row.values()) for row in rows)


def columns(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def changed_columns(before: pa.Table, after: pa.Table, key: tuple[str, ...]) -> set[str]:
    old, new = rows_by_key(before, key), rows_by_key(after, key)
    assert old.keys() == new.keys()
    return {name for one, row in new.items() for name in row if row[name] != old[one][name]}


def declared(sql: Path) -> dict[str, tuple[pa.Schema, tuple[str, ...]]]:
    """The tables of a schema.sql: columns, and the names of the key's."""
    tables = {}
    for statement in sqlglot.parse((sql / "schema.sql").read_text(), dialect="spark"):
        assert statement is not None
        fields, key = [], []
        for part in statement.this.expressions:
            if isinstance(part, exp.PrimaryKey):
                key += [column.name for column in part.expressions]
                continue
            constraints = [type(constraint.kind) for constraint in part.constraints]
            nullable = exp.NotNullColumnConstraint not in constraints
            fields.append(pa.field(part.name, TYPES[part.kind.sql("spark")], nullable))
            key += [part.name] * constraints.count(exp.PrimaryKeyColumnConstraint)
        tables[statement.this.this.name] = (pa.schema(fields), tuple(key))
    return tables
