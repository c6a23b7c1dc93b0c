"""Which changes of a view's columns a sink can follow, and what becomes of the rows it holds."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from stepwell.connectors.evolving import check_evolution, names_refusal
from stepwell.engine.evolution import Evolution, columns_before, evolution, evolved
from stepwell.engine.ports import Pieces
from stepwell.errors import InvalidError

TYPES = {
    "TINYINT": pa.int8(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(5,2)": pa.decimal128(5, 2),
    "DECIMAL(12,2)": pa.decimal128(12, 2),
    "DECIMAL(38,0)": pa.decimal128(38, 0),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "BOOLEAN": pa.bool_(),
    "ARRAY<INT>": pa.list_(pa.int32()),
}
WIDER = {
    ("TINYINT", "INT"),
    ("TINYINT", "BIGINT"),
    ("INT", "BIGINT"),
    ("FLOAT", "DOUBLE"),
    ("DECIMAL(5,2)", "DECIMAL(12,2)"),
    ("TINYINT", "DECIMAL(5,2)"),
    ("TINYINT", "DECIMAL(12,2)"),
    ("INT", "DECIMAL(12,2)"),
    *((name, "DECIMAL(38,0)") for name in ("TINYINT", "INT", "BIGINT")),
}


@pytest.mark.parametrize("old", TYPES)
def test_a_type_may_only_become_one_that_holds_all_its_values(old: str) -> None:
    """D7: a value that does not fit would stop the sink, long after the deploy."""
    for new, kind in TYPES.items():
        before, after = pa.schema([("c", TYPES[old])]), pa.schema([("c", kind)])
        decimals = old.startswith("DECIMAL") and new.startswith("DECIMAL")
        if (old, new) in WIDER:
            assert evolution(before, after) == Evolution(widened=("c",))
        elif old == new or decimals:
            assert evolution(before, after) == Evolution()
        else:
            with pytest.raises(InvalidError, match="not every value of the old type fits"):
                evolution(before, after)


def test_rows_are_taken_to_new_columns_by_name() -> None:
    """D11: what is lost goes, what is gained is NULL, what is wider is the same number."""
    rows = pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"], "c": [None, 1.5]})
    after = pa.schema([("z", pa.string()), ("a", pa.decimal128(12, 2)), ("c", pa.float64())])
    made = evolved(Pieces(rows.schema, 2, [rows]), after)
    (piece,) = made.pieces
    assert made.schema == piece.schema == after
    assert piece.to_pylist() == [
        {"z": None, "a": Decimal(1), "c": None},
        {"z": None, "a": Decimal(2), "c": 1.5},
    ]
    assert columns_before(piece) is None


def test_what_names_alone_refuse() -> None:
    """D7: a key that is lost, a name in another case, a Delta table that could not tell rows."""
    delta = {"type": "delta"}
    assert "part of its key" in str(names_refusal({**delta, "key": ["A"]}, ["a", "b"], ["b"]))
    assert "part of its key" in str(names_refusal({"key": "a"}, ["a", "b"], ["b", "c"]))
    assert "in their case only" in str(names_refusal({}, ["a", "b"], ["A", "b"]))
    assert "without a key" in str(names_refusal(delta, ["a", "b"], ["b"]))
    for options in ({**delta, "key": "b"}, {**delta, "mode": "changes"}, {"type": "files"}):
        assert names_refusal(options, ["a", "b"], ["b"]) is None
    assert names_refusal(delta, ["a"], ["a", "b"]) is None
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(InvalidError, match="the sink cannot follow: it would lose a"):
        check_evolution({"key": "a"}, schema, pa.schema([("b", pa.int64())]))
