"""Sinks whose view gets other columns: the table follows, with the transaction that says so."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.json as arrow_json
import pytest
from deltalake import DeltaTable
from psycopg import sql

from stepwell.connectors import postgres as connector
from stepwell.engine.evolution import EvolvingDifference, columns_before, evolved
from stepwell.engine.ports import Coalesces, Sink
from stepwell.errors import BugError, ConflictError, InvalidError, UnavailableError
from stepwell.lsm.table_diff import Difference, Pieces, difference, weighted
from tests.connectors.conftest import make_place
from tests.connectors.sinks import Place, evolving, in_turn, mark, read_iceberg
from tests.connectors.stopped import Stopped, stopping

PLACES = [
    *("files-json", "delta-key", "delta-changes", "postgres-key", "postgres-changes"),
    *("iceberg-key", "iceberg-changes"),
]
KEY = {f"{kind}-key": {"key": ["k"]} for kind in ("delta", "iceberg", "postgres")}
BEFORE = pa.schema([("k", pa.string()), ("n", pa.int32()), ("x", pa.string())])
OLD = pa.Table.from_pylist(
    [{"k": "a", "n": 1, "x": "p"}, {"k": "b", "n": 2, "x": None}], schema=BEFORE
)
Z = ("z", pa.decimal128(12, 2))
AFTER = {
    "gains": pa.schema([*BEFORE, pa.field(*Z)]),
    "loses": pa.schema([("k", pa.string()), ("n", pa.int32())]),
    "widens": pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.string())]),
    "all": pa.schema([pa.field(*Z), ("k", pa.string()), ("n", pa.int64())]),
    "order": pa.schema([BEFORE.field(2), BEFORE.field(1), BEFORE.field(0)]),
}


@pytest.fixture(autouse=True)
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power here, and syncing takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda opened: None)


def place_of(word: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    made = make_place(word, request, folder)
    return Place(made.kind, {**made.options, **KEY.get(word, {})}, keyed=made.keyed)


def view(after: pa.Schema) -> pa.Table:
    """The rows of the new view: one as it was, one that is other, one that is new."""
    rows = [
        {"k": "a", "n": 1, "x": "p"},
        {"k": "b", "n": 2**40 if after.field("n").type == pa.int64() else 7, "z": "1.25"},
        {"k": "c", "n": 3, "x": "q", "z": None},
    ]
    for row in rows:
        if "z" in row and row["z"] is not None:
            row["z"] = Decimal(str(row["z"]))
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in after.names} for row in rows], schema=after
    )


def evolve(new: pa.Table) -> pa.Table:
    """What a deploy makes of it: the difference between the old rows in new columns and the new."""
    old = evolved(Pieces(BEFORE, OLD.num_rows, [OLD]), new.schema)
    made = difference(old, Pieces(new.schema, new.num_rows, [new]), 1000)
    (part,) = EvolvingDifference(made, BEFORE, new.schema).parts(1000)
    return part


def read(place: Place, columns: list[str]) -> Counter[tuple[object, ...]]:
    """The rows of the view, by its columns, as a reader of the sink computes them."""
    found: list[dict[str, object]]
    if place.kind == "delta":
        found = DeltaTable(str(place.options["path"])).to_pyarrow_table().to_pylist()
    elif place.kind == "iceberg":
        found = read_iceberg(place.options).to_pylist()
    elif place.kind == "postgres":
        query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(str(place.options["table"])))
        with psycopg.connect(str(place.options["dsn"])) as connection:
            cursor = connection.execute(query)
            names = [item.name for item in cursor.description or ()]
            found = [dict(zip(names, row, strict=True)) for row in cursor]
    else:
        found = []
        for part in sorted(Path(str(place.options["path"])).glob("[0-9]*/part.json")):
            if part.stat().st_size:
                found += arrow_json.read_json(part).to_pylist()
    rows: Counter[tuple[object, ...]] = Counter()
    for row in found:
        if place.keyed:
            assert set(row) == set(columns), "the table has the columns of the view"
        weight = row.get("_w", 1)
        assert isinstance(weight, int)
        rows[tuple(_plain(row.get(name)) for name in columns)] += weight
    return Counter({row: n for row, n in rows.items() if n})


def _plain(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value


def expected(rows: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(map(_plain, row.values())) for row in rows.to_pylist())


@pytest.mark.parametrize("kind", AFTER)
@pytest.mark.parametrize("word", PLACES)
def test_a_sink_follows_a_view_whose_columns_change(
    word: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """D11, J7: read back, it holds the new view, and goes on with it."""
    place = place_of(word, request, tmp_path)
    sink = place.make()
    sink.write(None, mark(1), weighted(OLD, 1))
    assert read(place, BEFORE.names) == expected(OLD)
    new = view(AFTER[kind])
    sink.write(mark(1), mark(2), evolve(new))
    assert sink.last() == mark(2)
    assert read(place, new.column_names) == expected(new)
    sink.write(mark(2), mark(3), weighted(new.slice(0, 1), -1))
    assert read(place, new.column_names) == expected(new.slice(1))
    sink.close()
    again = place.make()
    assert isinstance(again, Coalesces)
    again.write(mark(3), mark(4), weighted(new.slice(0, 1), 1))
    again.close()
    assert read(place, new.column_names) == expected(new)


@pytest.mark.parametrize("word", PLACES)
def test_columns_change_also_where_no_row_does(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """D11: a column that is lost leaves every row as it is without it."""
    place = place_of(word, request, tmp_path)
    sink = place.make()
    sink.write(None, mark(1), weighted(OLD, 1))
    less = OLD.drop_columns(["x"])
    change = evolve(less)
    assert change.num_rows == 0
    assert columns_before(change) == ("k", "n", "x")
    with pytest.raises(BugError):
        sink.write(mark(1), mark(2), change.replace_schema_metadata(None))
    sink.write(mark(1), mark(2), change)
    assert sink.last() == mark(2)
    sink.close()
    assert read(place, ["k", "n"]) == expected(less)


@pytest.mark.parametrize(
    "word", ["delta-key", "delta-changes", "iceberg-key", "postgres-key", "files-coalesce"]
)
def test_a_change_of_columns_comes_together_with_what_follows_it(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """J7: a sink that lags receives it as the first of several."""
    place = place_of(word, request, tmp_path)
    sink = place.make()
    assert isinstance(sink, Coalesces)
    sink.write(None, mark(1), weighted(OLD, 1))
    new = view(AFTER["gains"])
    changes = [(mark(2), evolve(new)), (mark(3), weighted(new.slice(2), -1))]
    sink.write_together(mark(1), changes)
    assert sink.last() == mark(3)
    sink.close()
    if place.kind != "files":
        assert read(place, new.column_names) == expected(new.slice(0, 2))


def test_a_column_that_is_not_the_views_stays(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """D11: somebody has added a column to the table; only what the view lost is dropped."""
    place = place_of("postgres-key", request, tmp_path)
    sink = place.make()
    sink.write(None, mark(1), weighted(OLD, 1))
    table = sql.Identifier(str(place.options["table"]))
    with psycopg.connect(str(place.options["dsn"]), autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN note text").format(table))
    sink.write(mark(1), mark(2), evolve(OLD.drop_columns(["x"])))
    sink.close()
    with psycopg.connect(str(place.options["dsn"])) as connection:
        found = connection.execute(sql.SQL("SELECT * FROM {}").format(table))
        assert [item.name for item in found.description or ()] == ["k", "n", "note"]


def test_a_gained_column_is_not_taken_from_somebody_else(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """D11: the table has a column of that name already; it is refused by name, and stays."""
    place = place_of("postgres-key", request, tmp_path)
    sink = place.make()
    sink.write(None, mark(1), weighted(OLD, 1))
    table = sql.Identifier(str(place.options["table"]))
    with psycopg.connect(str(place.options["dsn"]), autocommit=True) as connection:
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD COLUMN z numeric(12,2) DEFAULT 9").format(table)
        )
    new = view(AFTER["gains"])
    with pytest.raises(InvalidError, match="a column of that name that Stepwell did not create"):
        sink.write(mark(1), mark(2), evolve(new))
    assert sink.last() == mark(1)
    assert read(place, [*BEFORE.names, "z"]) == Counter({("a", 1, "p", 9): 1, ("b", 2, None, 9): 1})
    with psycopg.connect(str(place.options["dsn"]), autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER TABLE {} DROP COLUMN z").format(table))
    sink.write(mark(1), mark(2), evolve(new))
    sink.close()
    assert read(place, new.column_names) == expected(new)


@pytest.mark.parametrize("word", PLACES)
def test_columns_change_with_the_first_of_several_parts(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """D11: the others find the new columns there, and take them for the view's."""
    place = place_of(word, request, tmp_path)
    sink = place.make()
    sink.write(None, mark(1), weighted(OLD, 1))
    new = view(AFTER["all"])
    old = evolved(Pieces(BEFORE, OLD.num_rows, [OLD]), new.schema)
    made = difference(old, Pieces(new.schema, new.num_rows, [new]), 1)
    parts = list(EvolvingDifference(made, BEFORE, new.schema).parts(1))
    assert len(parts) > 2
    for number, part in enumerate(parts, 1):
        sink.write(mark(number), mark(number + 1), part)
    sink.close()
    assert read(place, new.column_names) == expected(new)


def step(before: pa.Schema, rows: pa.Table) -> pa.Table:
    """Rows that are new, as the first ones in other columns."""
    nothing = weighted(rows.slice(0, 0), -1)
    (part,) = EvolvingDifference(Difference(nothing, weighted(rows, 1)), before, rows.schema).parts(
        100
    )
    return part


LOGS = ["delta-changes", "iceberg-changes", "postgres-changes"]
WITHOUT = pa.table({"k": ["b"]})


def log_that_lost(place: Place, column: pa.Array) -> Sink:
    """A log that keeps a column c that its view has lost."""
    sink = place.make()
    first = pa.table({"k": ["a"], "c": column})
    sink.write(None, mark(1), weighted(first, 1))
    sink.write(mark(1), mark(2), step(first.schema, WITHOUT))
    return sink


@pytest.mark.parametrize("word", LOGS)
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.date32(), pa.bool_(), pa.list_(pa.int64())], ids=str
)
def test_a_log_refuses_a_column_that_returns_with_another_type(
    kind: pa.DataType, word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """D7: both types are named; the log stays as it is, and nothing is tried forever."""
    place = place_of(word, request, tmp_path)
    sink = log_that_lost(place, pa.array([5]))
    values = {"string": "6", "bool": True, "date32[day]": date(2026, 1, 1)}.get(str(kind), [1])
    back = pa.table({"k": ["c"], "c": pa.array([values], kind)})
    with pytest.raises(InvalidError, match=r"sink out: column c of .* (int64|bigint)") as refused:
        sink.write(mark(2), mark(3), step(WITHOUT.schema, back))
    assert "hint" in str(refused.value)
    assert sink.last() == mark(2)
    sink.close()
    assert read(place, ["k", "c"]) == Counter({("a", 5): 1, ("b", None): 1})


@pytest.mark.parametrize("word", LOGS)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.array([5], pa.int64()), pa.array([6], pa.int32())),
        (pa.array([5], pa.int32()), pa.array([2**40], pa.int64())),
        (pa.array([1.5], pa.float64()), pa.array([2.5], pa.float32())),
        (
            pa.array([Decimal("1.2345")], pa.decimal128(10, 4)),
            pa.array([Decimal("1234567890.12")], pa.decimal128(12, 2)),
        ),
        (pa.array(["x"]), pa.array(["y"])),
        (pa.array([[1]]), pa.array([[2]])),
        (pa.array([datetime(2026, 1, 1)]), pa.array([datetime(2026, 1, 2)])),
    ],
    ids=lambda column: str(column.type),
)
def test_a_log_continues_with_a_column_that_returns(
    old: pa.Array, new: pa.Array, word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """D11: its type becomes one that holds what is there and what comes, digit by digit."""
    place = place_of(word, request, tmp_path)
    sink = log_that_lost(place, old)
    back = pa.table({"k": ["c"], "c": new})
    sink.write(mark(2), mark(3), step(WITHOUT.schema, back))
    sink.write(mark(3), mark(4), weighted(back, 1))
    sink.close()
    if pa.types.is_nested(old.type):
        return
    (one,), (other,) = old.to_pylist(), new.to_pylist()
    rows = Counter({("a", _plain(one)): 1, ("b", None): 1, ("c", _plain(other)): 2})
    assert read(place, ["k", "c"]) == rows


@pytest.mark.parametrize("word", ["delta-key", "delta-changes", "delta"])
def test_delta_stores_a_decimal_exactly_or_not_at_all(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """J7: 1.25 in a column without digits behind the point would be 1, and nobody would know."""
    made = make_place("delta-key" if word == "delta" else word, request, tmp_path)
    options = {**made.options, "key": ["k"]} if word == "delta-key" else dict(made.options)
    if word == "delta":
        del options["key"]
    place = Place(made.kind, options)
    sink = place.make()

    def rows(key: str, value: str, precision: int, scale: int) -> pa.Table:
        kind = pa.decimal128(precision, scale)
        return weighted(pa.table({"k": [key], "c": pa.array([Decimal(value)], kind)}), 1)

    sink.write(None, mark(1), rows("a", "7", 20, 0))
    with pytest.raises(
        InvalidError, match=r"column c .* decimal128\(20, 0\).* decimal128\(12, 2\)"
    ):
        sink.write(mark(1), mark(2), rows("b", "1.25", 12, 2))
    sink.write(mark(1), mark(2), rows("b", "3.00", 12, 2))
    sink.write(mark(2), mark(3), rows("c", "4", 5, 0))
    sink.close()
    found = DeltaTable(str(options["path"])).to_pyarrow_table().to_pylist()
    assert {row["k"]: row["c"] for row in found} == {"a": 7, "b": 3, "c": 4}


def test_a_database_that_refuses_says_why_and_changes_nothing(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """D11, J7: a view of the database reads the column; the whole transaction is rolled back."""
    place = place_of("postgres-key", request, tmp_path)
    sink = place.make()
    sink.write(None, mark(1), weighted(OLD, 1))
    table = sql.Identifier(str(place.options["table"]))
    with psycopg.connect(str(place.options["dsn"]), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE VIEW reads_x AS SELECT x FROM {}").format(table))
    new = view(AFTER["all"])
    with pytest.raises(InvalidError, match="cannot drop"):
        sink.write(mark(1), mark(2), evolve(new))
    assert sink.last() == mark(1)
    assert read(place, BEFORE.names) == expected(OLD)
    with psycopg.connect(str(place.options["dsn"]), autocommit=True) as connection:
        connection.execute("DROP VIEW reads_x")
    sink.write(mark(1), mark(2), evolve(new))
    sink.close()
    assert read(place, new.column_names) == expected(new)


@pytest.mark.parametrize("word", ["delta-key", "iceberg-key", "postgres-key"])
def test_a_writer_that_is_late_alters_nothing(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """J16: its belief is compared before a column is touched."""
    place = place_of(word, request, tmp_path)
    sink = place.make()
    sink.write(None, mark(1), weighted(OLD, 1))
    sink.write(mark(1), mark(2), weighted(OLD.slice(0, 1), -1))
    late = place.make()
    with pytest.raises(ConflictError):
        late.write(mark(1), mark(2), evolve(view(AFTER["all"])))
    late.close()
    sink.close()
    assert read(place, BEFORE.names) == expected(OLD.slice(1))


@pytest.fixture(scope="module")
def stopped() -> Iterator[Stopped]:
    with stopping() as process:
        yield process


@pytest.mark.parametrize(
    ("word", "first"), [("delta-key", True), ("delta-key", False), ("postgres-key", False)]
)
def test_a_writer_stopped_or_killed_while_columns_change(
    word: str,
    first: bool,
    stopped: Stopped,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenarios 84, 93, J7, J16: before each of its calls in turn. It comes back `first`, or its
    successor is faster; the table has the new columns and each row once.
    """
    monkeypatch.setitem(connector._WAITS_MS, "lock_timeout", 30)
    stop_at, ended = 1, ""
    while ended != "written at once":
        place = make_place(word, request, tmp_path / str(stop_at))
        sink = place.make()
        for number in (1, 2):
            sink.write(sink.last(), mark(number), in_turn(number))
        sink.close()
        ended = stopped.write(place, 3, stop_at, together=0)
        if ended == "stopped":
            if not first:
                with suppress(UnavailableError):  # The database holds the lock of the first.
                    follow(place)
            ended = stopped.go_on()
            assert ended in ("written", "ConflictError", "UnavailableError"), ended
        else:
            assert ended == "written", ended
            ended = "written at once"
        follow(place)
        sink = place.make()
        assert sink.last() == mark(3), f"stopped before call {stop_at}"
        sink.close()
        rows = read(place, ["customer", "total", "z"])
        assert rows == Counter([("c1", 1.5, 7.0), ("c2", 2.5, None), ("c3", 3.5, 0.5)])
        stop_at += 1
    assert stop_at > 5


def follow(place: Place) -> None:
    """Do what is left to do."""
    sink = place.make()
    try:
        if sink.last() == mark(2):
            sink.write(mark(2), mark(3), evolving())
    finally:
        sink.close()


def test_a_difference_says_once_what_the_columns_were() -> None:
    """D11: of several parts the first says it, and there is at least one part."""
    rows = pa.table({"a": [1, 2, 3]})
    nothing = weighted(rows.slice(0, 0), 1)
    parts = list(EvolvingDifference(Difference(nothing, nothing), BEFORE, rows.schema).parts(2))
    assert [(part.num_rows, columns_before(part)) for part in parts] == [(0, ("k", "n", "x"))]
    made = EvolvingDifference(Difference(nothing, weighted(rows, 1)), BEFORE, rows.schema)
    assert [columns_before(part) for part in made.parts(2)] == [("k", "n", "x"), None]
    assert made.count(2) == 2
