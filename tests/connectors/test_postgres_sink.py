"""The PostgreSQL sink, against a real server."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from stepwell.connectors.registry import make_sink
from stepwell.engine.ports import Sink
from stepwell.errors import ConfigError, ConflictError, InvalidError, UnavailableError
from stepwell.testing import ManualEnv
from tests.connectors.sinks import alone, change, mark, put
from tests.connectors.test_files_sink import NESTED, NOON

NUMBERS = count(1)


@pytest.fixture
def schema(postgres: str) -> str:
    return f"schema {next(NUMBERS)}"


def sink(dsn: str, schema: str, name: str = "out", **options: object) -> Sink:
    given = {"view": "v", "type": "postgres", "dsn": dsn, "schema": schema, **options}
    return make_sink(name, given, "v", ManualEnv(), base=Path("."))


def query(dsn: str, text: str, *names: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(sql.SQL(text).format(*map(sql.Identifier, names)))  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def test_every_type_a_view_may_have(postgres: str, schema: str) -> None:
    """J7: each column gets a type of the database that holds all of its values."""
    made = sink(postgres, schema, key="id")
    put(made, 1, NESTED)
    made.close()
    (row, empty) = query(postgres, "SELECT * FROM {}.{} ORDER BY id", schema, "v")
    assert row[:3] == (1, 'a"b\\c\nd,é', NESTED.column("d")[0].as_py())
    assert row[3:6] == (0.1, True, NOON.date())
    assert row[6] == NOON
    assert row[7:9] == (NOON.replace(tzinfo=None), b"\x00\xff")
    assert row[9:] == (["2026-01-02T12:00:00.123456Z", None], {"k": 1.5}, {"x": 1, "Y": None})
    assert empty[1:3] == (None, None)
    assert str(empty[3]) == "nan"
    assert empty[4:] == (None,) * 8


def test_identifiers_are_quoted(postgres: str, schema: str) -> None:
    """Names come from a project's files, and must never become part of a command."""
    name, column = 'v"; DROP TABLE x; --', 'a"b; SELECT'
    for number in (1, 2):
        rows = pa.table({column: ["k"], "n": [number], "_w": pa.array([1], pa.int64())})
        made = sink(postgres, schema, table=name, key=column)
        put(made, number, rows)
        made.close()
    assert query(postgres, "SELECT * FROM {}.{}", schema, name) == [("k", 2)]


def test_texts_that_mean_something_to_copy(postgres: str, schema: str) -> None:
    """J7: the end of data, NULL and quotes are written down as what they are."""
    texts = ["\\.", "", "NULL", '"', "\\N", "a\nb", " ", "\\"]
    made = sink(postgres, schema, key="a")
    for number, text in enumerate(texts, start=1):
        rows = pa.table({"a": [text], "_w": pa.array([1], pa.int64())})
        put(made, number, rows)
    made.close()
    found = {row[0] for row in query(postgres, "SELECT a FROM {}.{}", schema, "v")}
    assert found == set(texts)


def test_a_view_that_is_all_key(postgres: str, schema: str) -> None:
    """J7: a row without anything to update comes and goes anyway."""
    made = sink(postgres, schema, key=["a", "b"])
    for number, weight in ((1, 1), (2, -1), (3, 1)):
        rows = pa.table({"a": ["x"], "b": pa.array([None], pa.int64()), "_w": [weight]})
        put(made, number, rows)
        held = query(postgres, "SELECT * FROM {}.{}", schema, "v")
        assert held == ([("x", None)] if weight > 0 else [])
    made.close()


def test_a_server_that_is_down_is_unavailable(tmp_path: Path) -> None:
    """J7: a sink that is down is waited for, and its password is not shown."""
    dsn = f"host={tmp_path} dbname=d password=secret"
    for call in (lambda s: s.last(), lambda s: put(s, 1, alone(1))):
        with pytest.raises(UnavailableError, match="sink out cannot reach d on") as caught:
            call(sink(dsn, "public"))
        assert "secret" not in str(caught.value)


def test_a_connection_that_was_cut_is_made_again(postgres: str, schema: str) -> None:
    """Scenario 84, J7: a restart of the database costs one attempt."""
    made = sink(postgres, schema)
    put(made, 1, alone(1))
    query(
        postgres,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
    )
    with pytest.raises(UnavailableError):
        put(made, 2, alone(2))
    assert made.last() == mark(1)
    put(made, 2, alone(2))
    made.close()
    assert len(query(postgres, "SELECT * FROM {}.{}", schema, "v")) == 2


def test_a_table_of_somebody_else_is_refused(postgres: str, schema: str) -> None:
    """J7: a table that Stepwell did not create is not its to change, nor to take for its own."""
    query(postgres, "CREATE SCHEMA {}", schema)
    query(postgres, "CREATE TABLE {}.{} (a int)", schema, "v")
    made = sink(postgres, schema)
    with pytest.raises(InvalidError, match="Stepwell did not create"):
        put(made, 1, alone(1))
    assert made.last() is None
    made.close()


def test_two_sinks_cannot_share_a_table(postgres: str, schema: str) -> None:
    """J7: each would take the other's progress for its own."""
    one, two = sink(postgres, schema, "one"), sink(postgres, schema, "two")
    put(one, 1, alone(1))
    with pytest.raises(InvalidError, match="belongs to sink one"):
        put(two, 2, alone(2))
    one.close()
    two.close()


@pytest.mark.parametrize("name", ["out", "another"])
def test_a_table_that_was_dropped_starts_over(postgres: str, schema: str, name: str) -> None:
    """J16: as the hint of a refused sink says. The mark of the dropped table tells of nothing."""
    before = sink(postgres, schema, mode="changes", table="t")
    put(before, 1, alone(1))
    query(postgres, "DROP TABLE {}.{}", schema, "t")
    with pytest.raises(ConflictError, match="holds nothing"):
        before.write(mark(1), mark(2), alone(2))
    assert before.last() is None
    after = sink(postgres, schema, name, mode="changes", table="t")
    assert after.last() is None
    after.write(None, mark(3), alone(3))
    assert after.last() == mark(3)
    assert query(postgres, "SELECT customer FROM {}.{}", schema, "t") == [("t3",)]
    before.close()
    after.close()


def test_rows_the_database_refuses_stop_the_sink(postgres: str, schema: str) -> None:
    """J7: trying again would not help, and nothing of the transaction is there."""
    made = sink(postgres, schema)
    put(made, 1, alone(1))
    with pytest.raises(InvalidError, match="refuses the rows of the view v"):
        put(made, 2, change(("nul \0 character", "1.00", 1, 1)))
    with pytest.raises(InvalidError, match="refuses the rows"):
        put(made, 2, NESTED)
    assert made.last() == mark(1)
    made.close()


def test_a_key_that_does_not_tell_rows_apart_is_refused(postgres: str, schema: str) -> None:
    """J7: one of the rows would silently replace the other."""
    two = change(("a", "1.00", 1, 1), ("a", "2.00", 2, 1))
    made = sink(postgres, schema, key="customer")
    with pytest.raises(InvalidError, match="several rows with the same customer"):
        put(made, 1, two)
    made.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "table"}, "mode: table needs a key"),
        ({"mode": "changes", "key": "id"}, "mode: changes has no key"),
        ({"dsn": "postgresql://[broken"}, "option dsn cannot be read"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], reason: str) -> None:
    """A mistake is found when the project is read, not when the first row comes."""
    given: dict[str, object] = {"dsn": "dbname=d", **options}
    with pytest.raises(ConfigError, match=reason):
        sink(str(given.pop("dsn")), "public", **given)
