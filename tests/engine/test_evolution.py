"""Which changes of a view's columns a sink can follow, and what becomes of the rows it holds."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import cast

import pyarrow as pa
import pytest

from stepwell.connectors.evolving import check_evolution, names_refusal
from stepwell.engine.evolution import Evolution, columns_before, evolution, evolved
from stepwell.engine.program_swap import _difference
from stepwell.errors import InvalidError
from stepwell.execution.executor import Executor
from stepwell.lsm.table_diff import Pieces

TYPES = {
    "TINYINT": pa.int8(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(5,2)": pa.decimal128(5, 2),
    "DECIMAL(12,2)": pa.decimal128(12, 2),
    "DECIMAL(10,4)": pa.decimal128(10, 4),
    "DECIMAL(38,0)": pa.decimal128(38, 0),
    "DECIMAL(38,4)": pa.decimal128(38, 4),
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
    ("DECIMAL(10,4)", "DECIMAL(38,4)"),
    ("DECIMAL(12,2)", "DECIMAL(38,4)"),
    ("DECIMAL(5,2)", "DECIMAL(10,4)"),
    ("DECIMAL(5,2)", "DECIMAL(38,4)"),
    *((name, "DECIMAL(38,4)") for name in ("TINYINT", "INT", "BIGINT")),
    ("TINYINT", "DECIMAL(10,4)"),
}
NARROWER = {(new, old) for old, new in WIDER if old.startswith("DECIMAL")}
"""A decimal that fits into the old type on both sides of the point: the sink's column stays."""


@pytest.mark.parametrize("old", TYPES)
def test_a_type_may_only_become_one_that_holds_all_its_values(old: str) -> None:
    """D7: a value that does not fit would stop the sink, long after the deploy."""
    for new, kind in TYPES.items():
        before, after = pa.schema([("c", TYPES[old])]), pa.schema([("c", kind)])
        if (old, new) in WIDER:
            assert evolution(before, after) == Evolution(widened=("c",))
        elif old == new or (old, new) in NARROWER:
            assert evolution(before, after) == Evolution()
        else:
            with pytest.raises(InvalidError, match="cannot hold every value of the old type"):
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


@dataclass
class OneView:
    """An executor of which only the rows of a view are read."""

    rows: pa.Table
    inferred: bool = False

    def pieces(self, view: str, rows_max: int) -> Pieces:
        return Pieces(self.rows.schema, self.rows.num_rows, [self.rows], self.inferred)


def changes_of(
    old: tuple[str, int, int], new: tuple[str, int, int], evolve: bool, inferred: bool
) -> pa.Table:
    """What a sink is sent when one decimal becomes another; of (value, precision, scale)."""
    before, after = (
        OneView(pa.table({"c": pa.array([Decimal(value)], pa.decimal128(*kind))}), inferred)
        for value, *kind in (old, new)
    )
    check = partial(check_evolution, {"type": "postgres"}) if evolve else None
    made = _difference(cast(Executor, before), cast(Executor, after), "v", "v", 10, check)
    (part,) = made.parts(10)
    return part


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize(
    ("old", "new"), [(("7", 38, 0), ("1.25", 12, 2)), (("1.2345", 10, 4), ("1234567890.12", 12, 2))]
)
def test_a_decimal_that_would_be_rounded_is_refused(
    old: tuple[str, int, int], new: tuple[str, int, int], evolve: bool
) -> None:
    """D7: a sink rounds what does not fit into its column, and says nothing."""
    with pytest.raises(InvalidError, match="cannot hold every value of the old type") as refused:
        changes_of(old, new, evolve, inferred=False)
    assert "evolve: true" not in str(refused.value)


def test_a_wider_decimal_needs_evolve_and_a_narrower_one_does_not() -> None:
    """D7, D11: rows have the one type that holds all of them."""
    with pytest.raises(InvalidError, match="set evolve: true on the sink"):
        changes_of(("1.25", 5, 2), ("1.25", 12, 4), evolve=False, inferred=False)
    wider = changes_of(("1.25", 5, 2), ("1.2501", 12, 4), evolve=True, inferred=False)
    assert columns_before(wider) == ("c",)
    assert wider.schema.field("c").type == pa.decimal128(12, 4)
    for evolve in (False, True):
        narrower = changes_of(("1.2500", 12, 4), ("1.26", 5, 2), evolve, inferred=False)
        assert columns_before(narrower) is None
        assert narrower.schema.field("c").type == pa.decimal128(12, 4)
        assert narrower.to_pylist() == [
            {"c": Decimal("1.2500"), "_w": -1},
            {"c": Decimal("1.2600"), "_w": 1},
        ]


@pytest.mark.parametrize("evolve", [False, True])
def test_a_decimal_of_inferred_type_is_as_wide_as_its_values(evolve: bool) -> None:
    """D7: it says nothing about the statement, so that no deploy is refused for it."""
    rows = changes_of(("1.2345", 5, 4), ("123456.12", 8, 2), evolve, inferred=True)
    assert rows.schema.field("c").type == pa.decimal128(10, 4)
    assert columns_before(rows) == (("c",) if evolve else None)
    with pytest.raises(InvalidError, match=r"column c (changes from|was)"):
        changes_of(("1" * 38, 38, 0), ("1.25", 3, 2), evolve, inferred=True)


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
