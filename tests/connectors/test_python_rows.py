"""Rows pushed from Python: taken in, or dead letters, as the same rows of a file would be."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stepwell.connectors import python_rows
from stepwell.connectors.push import Pushed, read_pushed
from stepwell.connectors.python_rows import pushed_rows
from stepwell.engine.payload import POSITION
from stepwell.errors import InvalidError
from tests.connectors.tables import table

SQL = """CREATE TABLE t (
  id BIGINT NOT NULL PRIMARY KEY, name STRING DEFAULT 'none', amount DECIMAL(6,2), n INT,
  ok BOOLEAN, day DATE, at TIMESTAMP, many ARRAY<INT>, pairs MAP<STRING, INT>)"""
TABLE = table(SQL)
BAG = table("CREATE TABLE b (id BIGINT NOT NULL, name STRING)")

ROWS: list[Any] = [
    {"id": 1, "name": "a", "amount": "1.50"},
    {"id": 2, "name": None, "n": 7, "ok": True},
    {"ID": 3, "Day": "2026-01-02", "at": "2026-01-02T03:04:05Z"},
    {"id": 4, "many": [1, 2], "pairs": {"a": 1}},
    {"id": "five"},
    {"id": None},
    {"name": "no id"},
    {"id": 6, "nonsense": 1},
    {"id": 7, "name": 7},
    {"id": 8, "amount": 12345.6},
    {"id": 9, "amount": 0.125},
    {"id": 10, "n": 2**40},
    {"id": 2**70},
    {"id": 11, "n": 1.0},
    {"id": 12, "n": 1.5},
    {"id": 13, "ok": "yes"},
    {"id": 14, "many": "x"},
    {"id": 15, "day": "2026-02-30"},
    "not a row",
    5,
    None,
    {"id": 1, "name": "twice"},
]


@pytest.fixture(autouse=True, params=[16, -1], ids=["few", "many"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: row by row, and as Arrow holds them."""
    monkeypatch.setattr(python_rows, "_FEW_ROWS", request.param)


def seen(pushed: Pushed) -> tuple[list[Any], list[Any]]:
    put = pushed.change.put
    rows = [] if put is None else put.to_pylist()
    return rows, [(bad.where.replace("line", "row"), bad.reason) for bad in pushed.bad]


def from_file(rows: list[Any]) -> Pushed:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (piece,) = read_pushed(io.BytesIO(data), TABLE)
    return piece


@pytest.mark.parametrize("rows", [ROWS, *([row] for row in ROWS[:-1])], ids=range(len(ROWS)))
def test_a_row_is_taken_or_rejected_as_the_same_row_of_a_file(rows: list[Any]) -> None:
    """J13: with the same value, default and reason, whether it comes from Python or from JSON."""
    found, wanted = seen(pushed_rows(TABLE, rows)), seen(from_file(rows))
    if len(rows) > 1:
        assert len(wanted[0]) == 5
        assert found[0][-1]["name"] == "twice"  # A file's are folded, of which the last is left.
        found = (found[0][1:], found[1])
    key = "id"
    assert sorted(found[0], key=lambda row: row[key]) == sorted(wanted[0], key=lambda row: row[key])
    assert [place for place, _ in found[1]] == [place for place, _ in wanted[1]]
    for (_, reason), (_, other) in zip(found[1], wanted[1], strict=True):
        # JSON keeps every digit of a number, so it is shown as a decimal.
        assert reason == other or "Decimal" in other


def test_whatever_holds_rows_can_be_pushed() -> None:
    """J8: a table, a batch, a data frame, a dictionary of lists, a generator."""
    columns = {"id": [1, 2, None], "name": ["a", None, "c"]}
    listed = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    arrow = pa.table(columns)
    frame = pd.DataFrame({"id": pd.array([1, 2, None], "Int64"), "name": columns["name"]})
    given = (arrow, arrow.to_batches()[0], frame, columns, listed, (row for row in listed))
    for rows in given:
        found = pushed_rows(TABLE, rows)
        assert [(row["id"], row["name"]) for row in found.change.put.to_pylist()] == [
            (1, "a"),
            (2, None),
        ]
        assert [(bad.where, bad.reason) for bad in found.bad] == [
            ("row 3", "the column id is NULL")
        ]
        assert json.loads(found.bad[0].text) == {"id": None, "name": "c"}
        assert found.rows == 3


def test_a_column_of_several_types_costs_the_rows_that_do_not_fit() -> None:
    """J13: Arrow holds no such column; the others are accepted anyway."""
    found = pushed_rows(TABLE, {"id": [1, "x", 3], "name": ["a", "b", 5]})
    assert [row["id"] for row in found.change.put.to_pylist()] == [1]
    assert [bad.where for bad in found.bad] == ["row 2", "row 3"]


def test_values_of_numpy_and_pandas_are_values() -> None:
    """Who computes with NumPy has its numbers in their rows."""
    row = {
        "id": np.int64(5),
        "name": np.str_("x"),
        "amount": Decimal("1.5"),
        "n": np.int32(3),
        "ok": np.bool_(True),
        "day": date(2026, 1, 2),
        "at": pd.Timestamp("2026-01-02T03:04:05Z"),
        "many": np.array([1, 2]),
        "pairs": {"a": np.int64(1)}["a"] and {"a": 1},
    }
    found = pushed_rows(TABLE, [row])
    assert found.bad == ()
    assert found.change.put.to_pylist() == [
        {
            **row,
            "amount": Decimal("1.50"),
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "many": [1, 2],
            "pairs": [("a", 1)],
        }
    ]


@pytest.mark.parametrize("as_arrow", [False, True])
def test_deletes_and_discards_are_read_by_the_same_rules(as_arrow: bool) -> None:
    """J13: a key that is none is a dead letter, and the others keep their places."""
    keys: Any = [{"id": 1, "name": 5}, {"id": None}, {"id": 3}]
    if as_arrow:
        keys = pa.table({"id": [1, None, 3], "name": [5, None, None]})
    found = pushed_rows(TABLE, [], delete=keys, discard=keys)
    assert found.change.put is None
    assert found.change.delete.to_pylist() == [
        {"id": 1, POSITION: "delete, row 1"},
        {"id": 3, POSITION: "delete, row 3"},
    ]
    assert found.change.discard.to_pylist() == [{"id": 1}, {"id": 3}]
    assert [bad.where for bad in found.bad] == ["delete, row 2", "discard, row 2"]
    assert found.rows == 6
    whole = pushed_rows(BAG, delete=[{"id": 1, "name": "a"}])
    assert whole.change.delete.to_pylist() == [{"id": 1, "name": "a"}]


def test_what_is_read_already_stays_as_it_is() -> None:
    """J8: rows of a file are read by the command and once more by the process that takes them."""
    given = pa.table({"id": [4, 5], POSITION: ["a.json, line 3", "a.json, line 9"]})
    put = from_file([ROWS[0], ROWS[3]]).change.put
    found = pushed_rows(TABLE, put, delete=given)
    assert found.change.delete == given
    assert found.change.put == put
    assert found.bad == ()


@pytest.mark.parametrize("rows", [5, "text", b"bytes", {"id": 5}, {"id": [1], "name": []}])
def test_what_holds_no_rows_is_refused(rows: object) -> None:
    """J13: a mistake in a program is not a dead letter."""
    with pytest.raises(InvalidError, match="these rows cannot be read"):
        pushed_rows(TABLE, rows)


def test_nothing_is_nothing() -> None:
    for empty in (None, [], {}, pa.table({"id": pa.array([], pa.int64())})):
        found = pushed_rows(TABLE, empty, delete=empty)
        assert (found.change.parts, found.rows, found.bad) == ((), 0, ())
