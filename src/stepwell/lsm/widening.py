"""Type widening: the types a column may change to, and the types it accepts."""

from __future__ import annotations

import pyarrow as pa

from stepwell.lsm.arrow_types import INTEGERS
from stepwell.plan import numbers


def holds(column: pa.DataType, values: pa.DataType) -> bool:
    """Whether a column of one type can hold every value of another exactly.

    >>> holds(pa.decimal128(12, 2), pa.decimal128(5, 2))
    True
    >>> holds(pa.decimal128(38, 0), pa.decimal128(12, 2))
    False
    """
    if column == values or pa.types.is_null(values):
        return True
    if column in INTEGERS and values in INTEGERS:
        return bool(values.bit_width < column.bit_width)
    if pa.types.is_decimal(column) and (pa.types.is_decimal(values) or values in INTEGERS):
        return numbers.holds(_width(column), _width(values))
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
        width = numbers.common_width(_width(one), _width(other))
        return pa.decimal128(*width) if width[0] <= numbers.DIGITS_MAX else None
    return None


def _width(kind: pa.DataType) -> numbers.Width:
    if pa.types.is_decimal(kind):
        return kind.precision, kind.scale
    return numbers.INTEGER_VALUES[INTEGERS[kind]]
