"""Columns as Python lists, for changes of so few rows that an Arrow call costs more than the work.

Every value has one Python form, equal and ordered exactly where Spark's values are:

    integers              int
    decimal(p, s)         int, without its scale
    date, timestamp       int, in days and microseconds
    string, binary        str, bytes: code points are in the order of their UTF-8 bytes
    boolean               bool
    double                float, in results only: doubles are not compared here
    NULL                  None
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_TEMPORAL = {pa.date32().id: pa.int32(), pa.timestamp("us").id: pa.int64()}
_DECIMAL = pa.decimal128(1, 0).id
_INTEGERS = {kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}
_BYTES = 16
"""The size of a decimal in Arrow."""


def to_list(column: pa.Array) -> list[Any]:
    """The values of a column in their Python form."""
    kind = column.type.id
    if kind == _DECIMAL:
        return _unscaled(column)
    if kind in _TEMPORAL:
        column = column.view(_TEMPORAL[kind])
    if column.null_count or not (kind in _TEMPORAL or kind in _INTEGERS):
        return column.to_pylist()  # type: ignore[no-any-return]
    return column.to_numpy().tolist()  # type: ignore[no-any-return]


def to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of values in their Python form. Each must fit the type."""
    if kind.id == _DECIMAL:
        return _decimals(values, kind)
    if kind.id in _TEMPORAL:
        return pa.array(values, _TEMPORAL[kind.id]).view(kind)
    return pa.array(values, kind)


def decimals(values: np.ndarray[Any, np.dtype[np.int64]], kind: pa.DataType) -> pa.Array:
    """Integers as decimals of a scale."""
    words = np.empty((len(values), 2), np.int64)
    words[:, 0] = values
    words[:, 1] = values >> 63
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(words)])


def _unscaled(column: pa.Array) -> list[Any]:
    words = np.frombuffer(column.buffers()[1], np.int64)
    words = words[2 * column.offset : 2 * (column.offset + len(column))]
    low, high = words[0::2], words[1::2]
    values: list[Any]
    if (high == low >> 63).all():
        values = low.tolist()
    else:
        unsigned = low.astype(np.uint64).tolist()
        values = [(a << 64) | b for a, b in zip(high.tolist(), unsigned, strict=True)]
    if column.null_count:
        valid = column.is_valid().to_pylist()
        values = [v if there else None for v, there in zip(values, valid, strict=True)]
    return values


def _decimals(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return decimals(np.array(values, np.int64), kind)
    except (OverflowError, TypeError):  # More than 64 bits, or NULL.
        pass
    valid = pa.array([v is not None for v in values], pa.bool_()).buffers()[1]
    data = b"".join((v or 0).to_bytes(_BYTES, "little", signed=True) for v in values)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(data)])
