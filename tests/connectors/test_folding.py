"""A folded change does what its operations do one by one."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.connectors.folding import fold_numbered
from stepwell.connectors.formats import operations_table
from stepwell.connectors.shape import Row, Shape, shape_of
from stepwell.lsm.change import Change
from stepwell.lsm.fold import fold_traced
from tests.connectors.tables import Bag, Keyed, rows, table

KEYED = shape_of(table("CREATE TABLE t (a INT, b STRING, c DOUBLE, PRIMARY KEY (a, b))"))
BAG = shape_of(table("CREATE TABLE t (a INT, b STRING, `_put` DOUBLE)"))
NESTED = shape_of(table("CREATE TABLE t (a ARRAY<INT>, m MAP<STRING, INT>)"))

ROWS = st.tuples(st.integers(0, 2), st.sampled_from("xy"), st.sampled_from([None, 0.5]))
OPERATIONS = st.lists(st.tuples(st.booleans(), ROWS), max_size=20)


def fold(shape: Shape, operations: list[tuple[bool, Row]]) -> Change:
    made = operations_table([row for _, row in operations], [put for put, _ in operations], shape)
    return fold_numbered(shape, made)[0]


@given(OPERATIONS, st.lists(ROWS, max_size=6))
def test_a_folded_change_of_a_keyed_table_is_its_operations_one_by_one(
    operations: list[tuple[bool, tuple[object, ...]]], start: list[tuple[object, ...]]
) -> None:
    """J8, J13: a step is one change; it must leave the table as each of its rows would have, and
    reject the same deletes.
    """
    one_by_one, folded = Keyed((0, 1), start), Keyed((0, 1), start)
    for put, row in operations:
        one_by_one.operate(put, row)
    folded.apply(fold(KEYED, [(put, list(row)) for put, row in operations]))
    assert (folded.rows, folded.rejected) == (one_by_one.rows, one_by_one.rejected)


@given(OPERATIONS, st.lists(ROWS, max_size=6))
def test_a_folded_change_of_a_bag_is_its_operations_one_by_one(
    operations: list[tuple[bool, tuple[object, ...]]], start: list[tuple[object, ...]]
) -> None:
    """J8, J13: equal rows are counted, and so are the deletes that find nothing."""
    one_by_one, folded = Bag(start), Bag(start)
    for put, row in operations:
        one_by_one.operate(put, row)
    folded.apply(fold(BAG, [(put, list(row)) for put, row in operations]))
    assert (folded.rows, folded.rejected) == (one_by_one.rows, one_by_one.rejected)


SPLIT = st.lists(st.sampled_from(["", "step", "transaction"]), min_size=20, max_size=20)


@given(OPERATIONS, SPLIT, st.lists(ROWS, max_size=4))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("shape", [KEYED, BAG], ids=["keyed", "bag"])
def test_however_operations_are_split_they_come_to_the_same(
    shape: Shape,
    operations: list[tuple[bool, tuple[object, ...]]],
    split: list[str],
    start: list[tuple[object, ...]],
) -> None:
    """J2, J13: into steps, and steps into transactions; a key that is put and deleted at once is
    not a dead letter, and one that was not there when it was deleted always is.
    """
    key = tuple(shape.columns[place].name for place in shape.key)

    def made() -> Keyed | Bag:
        return Keyed(shape.key, start) if shape.key else Bag(start)

    one_by_one, folded = made(), made()
    steps: list[Change] = []
    step: list[tuple[bool, Row]] = []
    for (put, row), end in zip(operations, split, strict=False):
        one_by_one.operate(put, row)
        step.append((put, list(row)))
        if end:
            steps.append(fold(shape, step))
            step = []
        if end == "transaction":
            folded.apply(fold_traced(steps, key).change)
            steps = []
    steps.append(fold(shape, step))
    folded.apply(fold_traced(steps, key).change)
    assert (folded.rows, folded.rejected) == (one_by_one.rows, one_by_one.rejected)


def test_what_was_put_and_deleted_in_one_step_is_discarded() -> None:
    """J13: it may have been there before the step, and need not have been."""
    change = fold(
        KEYED,
        [
            (True, [1, "x", None]),
            (False, [1, "x", None]),
            (False, [2, "x", None]),
            (True, [2, "x", 0.5]),
            (True, [3, "x", None]),
            (False, [3, "x", None]),
            (False, [3, "x", None]),
            (True, [3, "x", 0.5]),
        ],
    )
    assert rows(change.discard) == [(1, "x"), (3, "x")]
    assert rows(change.delete) == [(2, "x"), (3, "x")]
    assert rows(change.put) == [(2, "x", 0.5), (3, "x", 0.5)]


def test_rows_arrow_cannot_compare_are_folded_anyway() -> None:
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
