"""Spark's exact numbers: the widths of integers and decimals, and of the results of arithmetic.

A width is the precision and scale of a decimal: DECIMAL(12,2) is (12, 2).

BIGINT has two widths. Its values have at most 19 digits (`value_width`), which decides whether
another type can hold them all. Spark computes with it as DECIMAL(20,0) (`width_of`), which decides
the types of results. The other integers have the same width in both senses.

The rules of arithmetic are Spark's DecimalPrecision with its default of allowing precision
loss; `test_numbers` compares each of them with Spark.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

Width: TypeAlias = tuple[int, int]
"""Precision and scale."""

INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Ordered from the narrowest to the widest."""
DIGITS_MAX = 38
SCALE_KEPT = 6
"""The number of fractional digits that Spark keeps when it shortens a result that is too wide."""
INTEGER_WIDTHS: dict[str, Width] = {
    "tinyint": (3, 0),
    "smallint": (5, 0),
    "int": (10, 0),
    "bigint": (20, 0),
}
"""The decimal types that Spark uses for integers in arithmetic."""
INTEGER_VALUES: dict[str, Width] = {**INTEGER_WIDTHS, "bigint": (19, 0)}
"""The narrowest decimals that hold all values of each integer type."""
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


@lru_cache(maxsize=10_000)
def decimal_width(type: str) -> Width | None:
    """The width of a decimal type; None for any other type."""
    found = _DECIMAL.fullmatch(type)
    return None if found is None else (int(found[1]), int(found[2]))


@lru_cache(maxsize=10_000)
def width_of(type: str) -> Width | None:
    """The decimal width that Spark uses for this type in arithmetic; None if it is not exact.

    >>> width_of("bigint"), width_of("decimal(12,2)"), width_of("double")
    ((20, 0), (12, 2), None)
    """
    return INTEGER_WIDTHS.get(type) or decimal_width(type)


def value_width(type: str) -> Width | None:
    """The narrowest decimal that holds every value of this type; None if it is not exact.

    >>> value_width("bigint"), value_width("int")
    ((19, 0), (10, 0))
    """
    return INTEGER_VALUES.get(type) or decimal_width(type)


def decimal_text(width: Width) -> str:
    return f"decimal({width[0]},{width[1]})"


def holds(column: Width, values: Width) -> bool:
    """Whether a decimal of one width holds every value of another."""
    return column[0] - column[1] >= values[0] - values[1] and column[1] >= values[1]


def common_width(*widths: Width) -> Width:
    """The narrowest width that holds all values of the others; may exceed the decimal limits."""
    scale = max(scale for _, scale in widths)
    return max(precision - scale for precision, scale in widths) + scale, scale


def bounded(width: Width) -> Width:
    """The width that Spark gives to a result whose exact width would be this one.

    >>> bounded((40, 10)), bounded((76, 4)), bounded((20, 2))
    ((38, 8), (38, 4), (20, 2))
    """
    precision, scale = width
    if precision <= DIGITS_MAX:
        return width
    return DIGITS_MAX, max(DIGITS_MAX - (precision - scale), min(scale, SCALE_KEPT))


# Result widths of operators and aggregates. The first two may exceed the limits until `bounded`.


def sum_width(a: Width, b: Width) -> Width:
    """Width of `a + b` and `a - b`, unbounded."""
    precision, scale = common_width(a, b)
    return precision + 1, scale


def product_width(a: Width, b: Width) -> Width:
    """Width of `a * b`, unbounded."""
    return a[0] + b[0] + 1, a[1] + b[1]


def quotient_width(a: Width, b: Width) -> Width:
    """Width of `a / b`."""
    scale = max(SCALE_KEPT, a[1] + b[0] + 1)
    return bounded((a[0] - a[1] + b[1] + scale, scale))


def total_width(width: Width) -> Width:
    """Width of `sum` over decimals."""
    return min(width[0] + 10, DIGITS_MAX), width[1]


def average_width(width: Width) -> Width:
    """Width of `avg` over decimals."""
    return min(width[0] + 4, DIGITS_MAX), min(width[1] + 4, DIGITS_MAX)
