"""Join kernels on Arrow and NumPy: positions of rows with equal values in tables in memory.

Both sides of a join get integer codes: rows have the same code exactly if their keys are equal. A
join is then a lookup in an array. For the few rows of a change this costs a fraction of a general
hash join, whose fixed cost is a millisecond.

The kernels apply only to values whose equality is the same in Arrow and in Spark
(`values.comparable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.lsm.hashing import numbers
from stepwell.lsm.index import ordered
from stepwell.lsm.values import comparable
from stepwell.plan.nodes import Side

Positions = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Columns = Sequence[pa.ChunkedArray]

PRODUCT_ROWS_MAX = 100_000
"""Maximum size of a cross product. Joins without an equality often have a one-row sum as a side."""
_DENSITY = 8
"""Numbers are their own codes if their range has at most as many times more values than rows."""
_CODES_MAX = 1024
"""Codes of several columns are multiplied. Above this limit, and four times the number of rows,
they are renumbered: kernels allocate an entry for each code."""


def product_of(places: list[np.ndarray], rows: int) -> list[np.ndarray] | None:
    """The cross product with another table; conditions are tested later. None if too large."""
    if len(places[0]) * rows > PRODUCT_ROWS_MAX:
        return None
    return [
        *(np.repeat(p, rows) for p in places),
        np.tile(np.arange(rows), len(places[0])),
    ]


def comparable_pair(
    one: pa.ChunkedArray, two: pa.ChunkedArray, types: tuple[str, str]
) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
    """Two columns on which Arrow's equality is Spark's; None if their types do not allow it."""
    if not all(map(comparable, types)):
        return None
    if one.type != two.type:
        if not (pa.types.is_integer(one.type) and pa.types.is_integer(two.type)):
            return None
        one, two = one.cast(pa.int64()), two.cast(pa.int64())
    return one, two


def pairs_of(
    left: Columns, right: Columns, most: int, null_safe: Sequence[bool] = ()
) -> tuple[Positions, Positions] | None:
    """Positions of rows with equal values on both sides; None if there are more than `most`.

    `null_safe` says for each column whether NULL equals NULL in it, by default in none.
    """
    mine, theirs, count = _codes(left, right, null_safe or [False] * len(left))
    # Group the right side by code: `starts` are the bounds of each group in `known`.
    known = np.flatnonzero(theirs >= 0)
    codes = theirs[known]
    if not bool((codes[:-1] <= codes[1:]).all()):
        known = known[np.argsort(codes)]
    starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=count))])
    rows = np.flatnonzero(mine >= 0)
    first = starts[mine[rows]]
    matches = starts[mine[rows] + 1] - first
    total = int(matches.sum())
    if total > most:
        return None
    at_left = np.repeat(rows, matches)
    before = np.cumsum(matches) - matches
    at = np.arange(total) + np.repeat(first - before, matches)
    return at_left, known[at]


def matched(left: Columns, right: Columns, *, null_safe: bool = False) -> Mask:
    """Mask of the rows on the left whose values occur on the right."""
    mine, theirs, count = _codes(left, right, [null_safe] * len(left))
    # One more place, for rows without a code.
    there = np.zeros(count + 1, dtype=bool)
    there[theirs[theirs >= 0]] = True
    found: Mask = there[mine]
    return found


def joined_rows(
    side: Side, rows: int, at_left: np.ndarray, at_right: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions on the left that the join returns, each with the position of its match or -1."""
    unmatched = np.ones(rows, dtype=bool)
    unmatched[at_left] = False
    places = np.flatnonzero(~unmatched if side is Side.SEMI else unmatched)
    none = np.full(len(places), -1)
    if side is Side.LEFT:
        return np.concatenate([at_left, places]), np.concatenate([at_right, none])
    return places, none


def among_rows(columns: Columns, values: Columns) -> pa.Array | None:
    """Mask of rows whose values are among `values`, NULL equal to NULL; None if types differ."""
    if any(one.type != two.type for one, two in zip(columns, values, strict=True)):
        return None
    if len(columns) == 1:
        return pc.is_in(columns[0], value_set=pc.unique(values[0]))
    return pa.array(matched(columns, values, null_safe=True))


def _codes(
    left: Columns, right: Columns, null_safe: Sequence[bool]
) -> tuple[Positions, Positions, int]:
    """A code for the key of each row, from 0, or -1 for NULL unless `null_safe`; and their count.

    Rows of both sides have the same code exactly if their keys are equal.
    """
    if len(left) == 1:
        coded = _number_codes(left[0], right[0])
        if coded is not None:
            return coded
    rows = len(left[0])
    codes, count = np.zeros(rows + len(right[0]), dtype=np.int64), 1
    for one, two, with_null in zip(left, right, null_safe, strict=True):
        column, distinct = _encoded(one, two, with_null)
        missing = (codes < 0) | (column < 0)
        codes, count = codes * distinct + column, count * distinct
        codes[missing] = -1
        if count > _CODES_MAX + 4 * len(codes):
            found, codes = np.unique(codes, return_inverse=True)
            empty = int(len(found) > 0 and found[0] < 0)
            codes, count = codes - empty, len(found) - empty
    return codes[:rows], codes[rows:], count


def _number_codes(
    left: pa.ChunkedArray, right: pa.ChunkedArray
) -> tuple[Positions, Positions, int] | None:
    """Codes of numbers that are dense or in order, without hashing; None for other columns."""
    if not ordered(left.type) or left.null_count or right.null_count:
        return None
    if not len(left) or not len(right):
        return np.zeros(len(left), np.int64) - 1, np.zeros(len(right), np.int64), 1
    mine, theirs = (numbers(column.combine_chunks()) for column in (left, right))
    low, high = int(theirs.min()), int(theirs.max())
    span = high - low + 1
    if span <= _DENSITY * (len(mine) + len(theirs)):
        outside = (mine < low) | (mine > high)
        # Only differences between numbers of the range are known not to overflow.
        codes = np.where(outside, low, mine).astype(np.int64) - low
        codes[outside] = -1
        return codes, theirs.astype(np.int64) - low, span
    if not bool((mine[:-1] <= mine[1:]).all() and (theirs[:-1] <= theirs[1:]).all()):
        return None
    first = np.ones(len(theirs), dtype=bool)
    np.not_equal(theirs[1:], theirs[:-1], out=first[1:])
    distinct = theirs[first]
    at = np.minimum(distinct.searchsorted(mine), len(distinct) - 1)
    return np.where(distinct[at] == mine, at, -1), np.cumsum(first) - 1, len(distinct)


def _encoded(one: pa.ChunkedArray, two: pa.ChunkedArray, null_safe: bool) -> tuple[Positions, int]:
    """The number of each value among the distinct values of two columns, and how many these are."""
    both = pa.chunked_array([*one.chunks, *two.chunks], one.type)
    nulls = "encode" if null_safe else "mask"
    # All chunks of the result have the same dictionary.
    chunks = both.dictionary_encode(null_encoding=nulls).chunks
    numbers = [chunk.indices.fill_null(-1).to_numpy() for chunk in chunks]
    found: Positions = np.concatenate([np.zeros(0, np.int64), *numbers])
    return found, len(chunks[0].dictionary) if chunks else 0
