"""Spark's arithmetic under ANSI rules: overflow and division by zero raise.

If an operand is a float, the result is a float; else if one is a Decimal, a Decimal; else an int.
Only `/` of ints gives a float. Decimals are computed exactly, and have Spark's scale as long as the
declared types do not need more than 38 digits.

The scale of a quotient depends on declared precisions, which values do not show. Literals and casts
do (`Width`); any other Decimal is assumed to be a DECIMAL(18, its scale), an int a BIGINT. If that
guess is wrong, quotients agree with Spark's only up to the shorter scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import reduce

from stepwell.execution.reference.spark_values import (
    DECIMALS,
    INT_MAX,
    NAN,
    Value,
    exact,
    failure,
    kind,
    rescale,
    unknown,
)
from stepwell.plan.numbers import DIGITS_MAX, INTEGER_WIDTHS, Width, quotient_width

PRECISION_ASSUMED = 18


def add(a: Value, b: Value) -> Value:
    if kind(a) == "date" and isinstance(b, int):
        return a + timedelta(days=b)
    return _combine(a, b, lambda x, y: x + y, DECIMALS.add)


def subtract(a: Value, b: Value) -> Value:
    if kind(a) == "date" and isinstance(b, int):
        return a - timedelta(days=b)
    return _combine(a, b, lambda x, y: x - y, DECIMALS.subtract)


def multiply(a: Value, b: Value) -> Value:
    return _combine(a, b, lambda x, y: x * y, DECIMALS.multiply)


def remainder(a: Value, b: Value) -> Value:
    """Remainder with the sign of the dividend."""
    _divisor(b, "REMAINDER_BY_ZERO")
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(number(a)), float(number(b))
        return NAN if math.isinf(a) or a != a or b != b else math.fmod(a, b)
    return _combine(a, b, lambda x, y: x - y * _truncated(x, y), DECIMALS.remainder)


def positive_remainder(a: Value, b: Value) -> Value:
    rest = remainder(a, b)
    return remainder(add(rest, b), b) if rest < 0 else rest


def whole_quotient(a: Value, b: Value) -> int:
    """DIV: a BIGINT, truncated towards zero."""
    _divisor(b)
    if isinstance(a, float) or isinstance(b, float):
        raise unknown("DIV of a double")
    return fits_bigint(_truncated(number(a), number(b)))


def divide(a: Value, b: Value, left: Width | None = None, right: Width | None = None) -> Value:
    _divisor(b)
    floats = isinstance(number(a), float) or isinstance(b, float)
    if not floats and (isinstance(a, Decimal) or isinstance(b, Decimal)):
        _, scale = quotient_width(left or width(a), right or width(b))
        return fits_decimal(rescale(DECIMALS.divide(exact(a), exact(b)), scale))
    return float(a) / float(b)


def width(value: Value) -> Width:
    """The declared type that a value most likely has."""
    if not isinstance(value, Decimal):
        return INTEGER_WIDTHS["bigint"]
    scale = scale_of(value)
    return max(PRECISION_ASSUMED, scale, len(value.as_tuple().digits)), scale


def scale_of(value: Value) -> int:
    return max(0, -int(value.as_tuple().exponent)) if isinstance(value, Decimal) else 0


def negate(value: Value) -> Value:
    if isinstance(value, Decimal):
        return value.copy_negate()
    return fits_bigint(-value) if isinstance(number(value), int) else -value


def absolute(value: Value) -> Value:
    if isinstance(value, Decimal):
        return value.copy_abs()
    return fits_bigint(abs(value)) if isinstance(number(value), int) else abs(value)


def sign(value: Value) -> float:
    return NAN if number(value) != value else float((value > 0) - (value < 0))


def rounded(value: Value, scale: int = 0) -> Value:
    """ROUND: halves away from zero; a double is rounded by its shortest decimal representation."""
    if isinstance(value, float):
        return float(rescale(exact(value), scale)) if math.isfinite(value) else value
    if isinstance(number(value), int):
        return fits_bigint(int(rescale(Decimal(value), scale))) if scale < 0 else value
    return _whole_scale(rescale(value, min(scale, scale_of(value))))


def floor(value: Value) -> Value:
    return _to_whole(value, ROUND_FLOOR)


def ceiling(value: Value) -> Value:
    return _to_whole(value, ROUND_CEILING)


def total(values: Sequence[Value]) -> Value:
    """The sum of at least one number; only the final value has to fit."""
    if any(isinstance(value, float) for value in values):
        return float_total([float(number(value)) for value in values])
    if any(isinstance(value, Decimal) for value in values):
        return fits_decimal(reduce(DECIMALS.add, map(exact, values)))
    return fits_bigint(sum(number(value) for value in values))


def mean(values: Sequence[Value]) -> Value:
    """The average of at least one number: a double, or a decimal with four more digits."""
    decimal = any(isinstance(value, Decimal) for value in values)
    if decimal and not any(isinstance(value, float) for value in values):
        scale = max(scale_of(value) for value in values) + 4
        quotient = DECIMALS.divide(exact(total(values)), Decimal(len(values)))
        return rescale(quotient, min(scale, DIGITS_MAX))
    return float_total([float(number(value)) for value in values]) / len(values)


def float_total(values: Sequence[float]) -> float:
    """The correctly rounded sum, which unlike Spark's does not depend on the order."""
    if not all(map(math.isfinite, values)):
        return sum(values)
    try:
        return math.fsum(values)
    except OverflowError:
        return sum(values)


def number(value: Value) -> Value:
    if kind(value) != "number":
        raise unknown(f"arithmetic on a {kind(value)}")
    return value


def fits_bigint(value: int) -> int:
    if not -INT_MAX["BIGINT"] <= value < INT_MAX["BIGINT"]:
        raise failure("ARITHMETIC_OVERFLOW", f"{value} is not a valid BIGINT")
    return value


def fits_decimal(value: Decimal) -> Decimal:
    """At most 38 digits: drops fractional digits first, and raises if that is not enough."""
    if value and value.adjusted() >= DIGITS_MAX:
        raise failure("NUMERIC_VALUE_OUT_OF_RANGE", f"{value} has more than {DIGITS_MAX} digits")
    if len(value.as_tuple().digits) <= DIGITS_MAX:
        return value
    return rescale(value, DIGITS_MAX - 1 - max(0, value.adjusted()))


def _combine(
    a: Value,
    b: Value,
    plain: Callable[[Value, Value], Value],
    decimal: Callable[[Decimal, Decimal], Decimal],
) -> Value:
    if isinstance(number(a), float) or isinstance(number(b), float):
        return plain(float(a), float(b))
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return fits_decimal(decimal(exact(a), exact(b)))
    return fits_bigint(plain(a, b))


def _divisor(value: Value, condition: str = "DIVIDE_BY_ZERO") -> None:
    if not number(value):
        raise failure(condition, "division by zero")


def _truncated(a: Value, b: Value) -> int:
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return int(DECIMALS.divide_int(exact(a), exact(b)))
    quotient = abs(a) // abs(b)
    return int(quotient if (a < 0) == (b < 0) else -quotient)


def _to_whole(value: Value, rounding: str) -> Value:
    if isinstance(value, Decimal):
        return rescale(value, 0, rounding)
    if isinstance(number(value), int):
        return value
    if value != value:
        return 0
    if math.isinf(value):
        raise failure("ARITHMETIC_OVERFLOW", f"{value} is not a valid BIGINT")
    return fits_bigint(int(exact(value).to_integral_value(rounding)))


def _whole_scale(value: Decimal) -> Decimal:
    """Give the decimal a non-negative scale."""
    return rescale(value, 0) if int(value.as_tuple().exponent) > 0 else value
