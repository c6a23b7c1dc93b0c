"""Groups and exact sums of a few rows, with NumPy.

A decimal is a whole number with a scale, so sums of decimals are sums of integers. Arrow stores the
integer in 128 bits; where all of a column fit into 64, they are added as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from stepwell.lsm.hashing import numbers
from stepwell.lsm.index import ordered

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


def groups_of(keys: Sequence[pa.Array], rows: int) -> tuple[Ints, Ints]:
    """The number of each row's group, and the position of a row of each group.

    NULL equals NULL. Without keys there is one group, even of no rows.
    """
    if not keys or rows == 1:
        return np.zeros(rows, np.int64), np.zeros(1, np.int64)
    first, group = _numbered(_codes(keys[0]))
    for key in keys[1:]:
        distinct, codes = _numbered(_codes(key))
        first, group = _numbered(group * len(distinct) + codes)
    if len(first) == rows:
        # In the order of the rows, so that callers need not take them.
        return np.arange(rows), np.arange(rows)
    return group, first


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """The position of a row of each distinct value, and the number of each row's value.

    NumPy's `unique` sorts in a stable way for the same, which takes several times as long.
    """
    order = np.argsort(values)
    in_order = values[order]
    first = np.ones(len(values), dtype=bool)
    np.not_equal(in_order[1:], in_order[:-1], out=first[1:])
    group = np.empty(len(values), np.int64)
    group[order] = np.cumsum(first) - 1
    return order[first], group


def _codes(key: pa.Array) -> Ints:
    """Numbers that are equal exactly where the values are."""
    if ordered(key.type) and not key.null_count:
        return numbers(key)
    encoded = key.dictionary_encode(null_encoding="encode")
    codes: Ints = encoded.indices.to_numpy().astype(np.int64)
    return codes


def unscaled(column: pa.Array) -> tuple[Ints | None, Mask | None]:
    """The integers of a column of integers or decimals, and a mask of those that are not NULL.

    None if one has more than 64 bits. The integer of a NULL is 0, and there is no mask without one.
    """
    valid = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(column.type):
        words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)
        words = words[column.offset : column.offset + len(column)]
        low, high = words[:, 0], words[:, 1]
        fits = high == low >> 63
        if not (fits if valid is None else fits | ~valid).all():
            return None, valid
    else:
        low = (
            column.fill_null(0).to_numpy().astype(np.int64)
            if valid is not None
            else (column.to_numpy().astype(np.int64, copy=False))
        )
    return (low if valid is None else np.where(valid, low, 0)), valid


def summed(values: Ints, group: Ints, groups: int) -> Ints:
    """The sum of each group. Exact, unlike `bincount`, which adds floating point."""
    if groups == 1:
        return np.array([values.sum()], np.int64)
    made = np.zeros(groups, np.int64)
    np.add.at(made, group, values)
    return made


def bound_of(values: Ints) -> int:
    """The largest absolute value."""
    if not len(values):
        return 0
    return max(abs(int(values.min())), abs(int(values.max())))
