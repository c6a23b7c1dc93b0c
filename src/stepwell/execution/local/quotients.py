"""Quotients and rounded decimals, as Spark computes them.

Spark rounds half up, and computes some intermediate results with fewer digits than the exact one
has. A quotient on which the two could disagree is `Declined`, and Spark computes it.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.local.small_sums import Ints, Mask, bound_of, unscaled
from stepwell.lsm.row_values import decimals
from stepwell.plan.numbers import DIGITS_MAX

DIVIDED_ROWS_MAX = 2_000
"""Quotients of large numbers are computed one by one."""
SURE_DIGITS = 34
"""Spark may round intermediate results with more digits, even if the type has room for them."""
_INT_DIGITS = 18
_SURE_DIVISOR = 10**13
_EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
_SPARK = [Context(prec=digits, rounding=ROUND_HALF_UP) for digits in (SURE_DIGITS, DIGITS_MAX)]


def divided(a: Any, b: Any, precision: int, scale: int) -> pa.Array:
    """Quotients, rounded half up at `scale` digits."""
    count = max((len(d) for d in (a, b) if not isinstance(d, pa.Scalar)), default=0)
    if not count and isinstance(a, pa.Scalar) and isinstance(b, pa.Scalar):
        raise NotSupported("a constant is divided")
    found = _of_integers(a, b, precision, scale)
    if found is not None:
        return found
    over = [a.as_py()] * count if isinstance(a, pa.Scalar) else _values(a)
    under = [b.as_py()] * count if isinstance(b, pa.Scalar) else _values(b)
    made: list[Decimal | None] = []
    for x, y in zip(over, under, strict=True):
        if x is None or y is None:
            made.append(None)
        else:
            made.append(quotient(x, y, scale))
    return pa.array(made, pa.decimal128(precision, scale))


def _of_integers(a: Any, b: Any, precision: int, scale: int) -> pa.Array | None:
    """Quotients of columns as integers of 64 bits; None if that is not certainly exact.

    With a divisor below 10^13, a quotient of at most 18 digits is farther from the middle of two
    neighbours than 34 digits can tell, or exactly there. So Spark rounds it as we do.
    """
    over, under = _integers(a), _integers(b)
    if over is None or under is None:
        return None
    (x, has_x), (y, has_y) = over, under
    more = scale + b.type.scale - a.type.scale
    if not 0 <= more < _INT_DIGITS or bound_of(y) >= _SURE_DIVISOR:
        return None
    if bound_of(x) >= 10 ** (_INT_DIGITS - more) // 2:
        return None
    there = has_x & has_y
    if not y[there].all():
        raise Declined(Fallback.ARITHMETIC)
    divisor = np.abs(np.where(there, y, 1))
    found = (2 * np.abs(x) * 10**more + divisor) // (2 * divisor)
    return _decimals(np.where((x < 0) != (y < 0), -found, found), there, precision, scale)


def _integers(data: Any) -> tuple[Ints, Mask] | None:
    """The unscaled values of a column, and which are not NULL; None if one is too large."""
    if isinstance(data, pa.Scalar) or not len(data) or not pa.types.is_decimal128(data.type):
        return None
    column = data.combine_chunks() if isinstance(data, pa.ChunkedArray) else data
    values, valid = unscaled(column)
    if values is None:
        return None
    return values, np.ones(len(values), dtype=bool) if valid is None else valid


def _decimals(values: Ints, there: Mask, precision: int, scale: int) -> pa.Array | None:
    """Decimals, NULL where they are not there; None if one has more digits."""
    if bound_of(values) >= 10**precision:
        return None
    made = decimals(values, pa.decimal128(precision, scale))
    return made if there.all() else pc.if_else(pa.array(there), made, pa.scalar(None, made.type))


def quotient(x: Decimal, y: Decimal, scale: int) -> Decimal:
    """A quotient, rounded half up at `scale` digits. Declines if rounding is uncertain."""
    if not y:
        raise Declined(Fallback.ARITHMETIC)
    found = _half_up(_EXACT.divide(x, y), scale)
    if any(found != _half_up(context.divide(x, y), scale) for context in _SPARK):
        raise Declined(Fallback.ARITHMETIC)
    return found


def rounded(data: Any, precision: int, scale: int) -> pa.Array:
    """Decimals, rounded half up at `scale` digits."""
    whole = _integers(data)
    if whole is not None and 0 < data.type.scale - scale < _INT_DIGITS:
        unit = 10 ** (data.type.scale - scale)
        if bound_of(whole[0]) < 2**62:
            found = (np.abs(whole[0]) + unit // 2) // unit
            made = _decimals(np.where(whole[0] < 0, -found, found), whole[1], precision, scale)
            if made is not None:
                return made
    values = [None if v is None else _half_up(v, scale) for v in _values(data)]
    return pa.array(values, pa.decimal128(precision, scale))


def _values(data: Any) -> list[Decimal | None]:
    if isinstance(data, pa.Scalar):
        raise NotSupported("a constant is divided")
    if len(data) > DIVIDED_ROWS_MAX:
        raise Declined(Fallback.TOO_MANY_ROWS)
    return data.to_pylist()  # type: ignore[no-any-return]


def _half_up(value: Decimal, scale: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=_EXACT)
