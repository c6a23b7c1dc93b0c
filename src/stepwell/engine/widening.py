"""Which types hold each other's values: what a column may become, and what it may be given."""

from __future__ import annotations

import pyarrow as pa

DECIMAL_DIGITS_MAX = 38
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def holds(column: pa.DataType, values: pa.DataType) -> bool:
    """Whether a column of one type can hold every value of another exactly.

    >>> holds(pa.decimal128(12, 2), pa.decimal128(5, 2))
    True
    >>> holds(pa.decimal128(38, 0), pa.decimal128(12, 2))
    False
    """
    if column == values or pa.types.is_null(values):
        return True
    if column in _INTEGERS and values in _INTEGERS:
        return _INTEGERS.index(values) < _INTEGERS.index(column)
    if pa.types.is_decimal(column) and (pa.types.is_decimal(values) or values in _DIGITS):
        (whole, scale), (needed, places) = _digits(column), _digits(values)
        return whole >= needed and scale >= places
    return bool(pa.types.is_float32(values) and pa.types.is_float64(column))


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a type holds every value of another, and more."""
    return bool(old != new and not pa.types.is_null(old) and holds(new, old))


def are_decimals(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(one) and pa.types.is_decimal(other))


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds the values of both, if there is one.

    >>> print(common_type(pa.decimal128(10, 4), pa.decimal128(12, 2)))
    decimal128(14, 4)
    >>> print(common_type(pa.decimal128(38, 0), pa.decimal128(12, 2)))
    None
    """
    if holds(one, other):
        return one
    if holds(other, one):
        return other
    if are_decimals(one, other):
        (whole, scale), (needed, places) = _digits(one), _digits(other)
        scale = max(scale, places)
        precision = max(whole, needed) + scale
        return pa.decimal128(precision, scale) if precision <= DECIMAL_DIGITS_MAX else None
    return None


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """How many digits a number has before the point and behind it."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return _DIGITS[kind], 0
