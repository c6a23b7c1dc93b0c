"""Runs of tables whose columns have changed since: read in their new shape."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from stepwell.errors import CorruptError
from stepwell.lsm.reshape import reshaped, reshaping
from stepwell.manifest.run_ref import RUN as RECORD
from stepwell.manifest.run_ref import Run
from stepwell.model import Checksum
from stepwell.store.sealed import Fields

RUN = Run("t", "runs/t/1.parquet", 1, 2, Checksum("0" * 32))


def test_columns_come_go_and_move() -> None:
    """D11: by position, with weights last, and NULL for what the file does not have."""
    rows = pa.table({"c0": [1, 2], "c1": ["a", "b"], "c2": [True, None], "w": [1, -1]})
    assert reshaped(rows, None) is rows
    made = reshaped(rows, (2, None, 0))
    assert made.to_pylist() == [
        {"c0": True, "c1": None, "c2": 1, "w": 1},
        {"c0": None, "c1": None, "c2": 2, "w": -1},
    ]


@pytest.mark.parametrize(
    "type_",
    ["int32", "string", "decimal128(12, 2)", "list", "struct", "map", "timestamp"],
)
def test_a_column_that_is_missing_can_be_of_any_type(type_: str) -> None:
    """D11: NULL of no type is cast to what the table says."""
    kinds = {
        "int32": pa.int32(),
        "string": pa.string(),
        "decimal128(12, 2)": pa.decimal128(12, 2),
        "list": pa.list_(pa.string()),
        "struct": pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
        "map": pa.map_(pa.string(), pa.int32()),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    rows = pa.table({"c0": [1], "w": [1]})
    schema = pa.schema([("c0", pa.int64()), ("c1", kinds[type_]), ("w", pa.int64())])
    assert reshaped(rows, (0, None)).cast(schema).column("c1").to_pylist() == [None]


def test_one_change_after_another() -> None:
    """D11: each deploy knows where the one before it had the columns, not where the file has."""
    once = reshaping(RUN, (2, None, 0))
    run = Run(**{**run_fields(RUN), "columns": once})
    assert reshaping(run, (1, 2, None)) == (None, 0, None)
    assert reshaping(run, (2, 0)) == (0, 2)


def test_places_are_stored_and_checked() -> None:
    """D11: a run without them is as it always was."""
    assert "columns" not in RECORD.write(RUN)
    run = Run(**{**run_fields(RUN), "columns": (2, None, 0)})
    stored = json.loads(json.dumps(RECORD.write(run)))
    assert RECORD.read(Fields(stored, "here", "run")) == run
    for wrong in ("x", [1, "2"], [-1], [True], {"0": 1}):
        with pytest.raises(CorruptError, match="columns"):
            RECORD.read(Fields({**stored, "columns": wrong}, "here", "run"))


def run_fields(run: Run) -> dict[str, object]:
    return {name: getattr(run, name) for name in ("relation", "path", "size", "rows", "checksum")}
