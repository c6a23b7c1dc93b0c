"""Quotients and rounded decimals, computed one by one as Spark does.

Spark rounds half up, and computes some intermediate results with fewer digits than the exact one
has. A quotient on which the two could disagree is `Declined`, and Spark computes it.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.plan.numbers import DIGITS_MAX

DIVIDED_ROWS_MAX = 2_000
"""Quotients are computed one by one."""
SURE_DIGITS = 34
"""Spark may round intermediate results with more digits, even if the type has room for them."""
_EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
_SPARK = [Context(prec=digits, rounding=ROUND_HALF_UP) for digits in (SURE_DIGITS, DIGITS_MAX)]


def divided(a: Any, b: Any, precision: int, scale: int) -> pa.Array:
    """Quotients, rounded half up at `scale` digits."""
    count = max((len(d) for d in (a, b) if not isinstance(d, pa.Scalar)), default=0)
    if not count and isinstance(a, pa.Scalar) and isinstance(b, pa.Scalar):
        raise NotSupported("a constant is divided")
    over = [a.as_py()] * count if isinstance(a, pa.Scalar) else _values(a)
    under = [b.as_py()] * count if isinstance(b, pa.Scalar) else _values(b)
    made: list[Decimal | None] = []
    for x, y in zip(over, under, strict=True):
        if x is None or y is None:
            made.append(None)
        else:
            made.append(quotient(x, y, scale))
    return pa.array(made, pa.decimal128(precision, scale))


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
