"""A folded change does what its operations do one by one."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stepwell.connectors.folding import fold_operations
from stepwell.connectors.formats import operations_table
from stepwell.connectors.shape import Row, Shape, shape_of
from stepwell.engine.ports import Change
from tests.connectors.tables import Bag, Keyed, rows, table

KEYED = shape_of(table("CREATE TABLE t (a INT, b STRING, c DOUBLE, PRIMARY KEY (a, b))"))
BAG = shape_of(table("CREATE TABLE t (a INT, b STRING, `_put` DOUBLE)"))
NESTED = shape_of(table("CREATE TABLE t (a ARRAY<INT>, m MAP<STRING, INT>)"))

ROWS = st.tuples(st.integers(0, 2), st.sampled_from("xy"), st.sampled_from([None, 0.5]))
OPERATIONS = st.lists(st.tuples(st.booleans(), ROWS), max_size=20)


def fold(shape: Shape, operations: list[tuple[bool, Row]]) -> Change:
    made = operations_table([row for _, row in operations], [put for put, _ in operations], shape)
    return fold_operations(shape, made)


@given(OPERATIONS, st.lists(ROWS, max_size=6))
def test_a_folded_change_of_a_keyed_table_is_its_operations_one_by_one(
    operations: list[tuple[bool, tuple[object, ...]]], start: list[tuple[object, ...]]
) -> None:
    """J8: a step is one change; it must leave the table as each of its rows would have."""
    one_by_one, folded = Keyed((0, 1), start), Keyed((0, 1), start)
    for put, row in operations:
        one_by_one.operate(put, row)
    folded.apply(fold(KEYED, [(put, list(row)) for put, row in operations]))
    assert folded.rows == one_by_one.rows


@given(OPERATIONS, st.lists(ROWS, max_size=6))
def test_a_folded_change_of_a_bag_is_its_operations_one_by_one(
    operations: list[tuple[bool, tuple[object, ...]]], start: list[tuple[object, ...]]
) -> None:
    """J8: equal rows are counted, and a delete that finds nothing does nothing."""
    one_by_one, folded = Bag(start), Bag(start)
    for put, row in operations:
        one_by_one.operate(put, row)
    folded.apply(fold(BAG, [(put, list(row)) for put, row in operations]))
    assert folded.rows == one_by_one.rows


def test_rows_arrow_cannot_compare_are_folded_all_the_same() -> None:
    """S2: an array or a map is a value like any other, and the order of a map means nothing."""
    change = fold(
        NESTED,
        [
            (True, [[1, 2], [("a", 1), ("b", 2)]]),
            (True, [[1], None]),
            (False, [[1, 2], [("b", 2), ("a", 1)]]),
            (False, [[2, 1], None]),
        ],
    )
    assert rows(change.put) == [([1], None)]
    assert rows(change.delete) == [([2, 1], None)]


def test_zero_has_one_sign_and_nan_equals_nan() -> None:
    """S2: rows that are equal for Spark are equal here, or a delete would miss its row."""
    change = fold(
        BAG,
        [
            (True, [1, "x", 0.0]),
            (True, [1, "x", math.nan]),
            (False, [1, "x", -0.0]),
            (False, [1, "x", -math.nan]),
            (True, [2, "y", 1.0]),
        ],
    )
    assert (Counter(rows(change.put)), change.delete) == (Counter([(2, "y", 1.0)]), None)


def test_nothing_comes_to_nothing() -> None:
    """An empty step changes nothing."""
    assert fold(KEYED, []) == Change()
    assert fold(BAG, [(True, [1, "x", None]), (False, [1, "x", None])]) == Change()
