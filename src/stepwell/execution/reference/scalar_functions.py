"""Spark SQL scalar functions that evaluate all their arguments first, in tables by name.

Names are those of `scalar.name_of`: sqlglot's class name, or the function's own name, without
underscores. For functions in `STRICT`, a NULL argument makes the result NULL without a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from itertools import chain

from stepwell.errors import UserCodeError
from stepwell.execution.reference import spark_numbers as numbers
from stepwell.execution.reference.spark_values import (
    Value,
    compare,
    failure,
    kind,
    order,
    to_date,
    to_int,
    to_text,
    unknown,
)


def invert(value: Value) -> bool:
    if not isinstance(value, bool):
        raise unknown(f"NOT of a {kind(value)}")
    return not value


def null_safe_equal(a: Value, b: Value) -> bool:
    if a is None or b is None:
        return a is b
    return compare(a, b) == 0


def null_if(a: Value, b: Value) -> Value:
    return None if a is not None and null_safe_equal(a, b) else a


def length(value: Value) -> int:
    return len(value) if isinstance(value, bytes) else len(to_text(value))


def concat(*values: Value) -> Value:
    if values and all(isinstance(value, bytes) for value in values):
        return b"".join(values)
    if values and all(isinstance(value, tuple) for value in values):
        return tuple(chain.from_iterable(values))
    return "".join(map(to_text, values))


def substring(value: Value, start: int, count: int | None = None) -> Value:
    """SUBSTRING: counts from 1, or from the end if `start` is negative; 0 means 1."""
    text = value if isinstance(value, bytes) else to_text(value)
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    last = len(text) if count is None else first + count
    return text[max(0, first) : max(0, last)]


def like(text: Value, pattern: Value, escape: str) -> bool:
    return _like(to_text(pattern), escape).fullmatch(to_text(text)) is not None


@lru_cache(maxsize=1024)
def _like(pattern: str, escape: str) -> re.Pattern[str]:
    parts = []
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            escaped = next(letters, "")
            if escaped not in ("_", "%", escape):
                raise failure("INVALID_FORMAT", f"{pattern!r} escapes what needs no escape")
            parts.append(re.escape(escaped))
        else:
            parts.append({"_": ".", "%": ".*"}.get(letter) or re.escape(letter))
    return re.compile("".join(parts), re.DOTALL)


def size(value: Value) -> int:
    if not isinstance(value, tuple):
        raise unknown(f"the size of a {kind(value)}")
    return len(value)


def _items(value: Value) -> tuple[Value, ...]:
    if not isinstance(value, tuple):
        raise unknown(f"a {kind(value)} as an array")
    return value


def sort_array(value: Value, ascending: Value = True) -> Value:
    return tuple(sorted(_items(value), key=order, reverse=ascending is False))


def array_join(value: Value, between: Value) -> str:
    return to_text(between).join(to_text(item) for item in _items(value) if item is not None)


def split(value: Value, pattern: Value) -> Value:
    return tuple(re.split(to_text(pattern), to_text(value)))


def sequence(start: Value, stop: Value) -> Value:
    first, last = to_int(start), to_int(stop)
    return tuple(range(first, last + 1) if first <= last else range(first, last - 1, -1))


def raise_error(message: Value) -> Value:
    raise UserCodeError(f"[USER_RAISED_EXCEPTION] {message}")


def assert_true(fact: Value, message: Value = "it is not true") -> None:
    if fact is not True:
        raise_error(message)


def _whole(value: Value) -> int:
    if type(value) is not int:
        raise unknown(f"the bits of a {kind(value)}")
    return value


def days_between(a: Value, b: Value) -> int:
    return (to_date(a) - to_date(b)).days


def days_later(a: Value, days: Value) -> Value:
    return to_date(a) + timedelta(days=numbers.number(days))


STRICT: dict[str, Callable[..., Value]] = {
    "eq": lambda a, b: compare(a, b) == 0,
    "neq": lambda a, b: compare(a, b) != 0,
    "lt": lambda a, b: compare(a, b) < 0,
    "lte": lambda a, b: compare(a, b) <= 0,
    "gt": lambda a, b: compare(a, b) > 0,
    "gte": lambda a, b: compare(a, b) >= 0,
    "not": invert,
    "add": numbers.add,
    "sub": numbers.subtract,
    "mul": numbers.multiply,
    "mod": numbers.remainder,
    "pmod": numbers.positive_remainder,
    "intdiv": numbers.whole_quotient,
    "bitwiseand": lambda a, b: _whole(a) & _whole(b),
    "bitwiserightshift": lambda a, b: _whole(a) >> _whole(b),
    "neg": numbers.negate,
    "abs": numbers.absolute,
    "sign": numbers.sign,
    "round": numbers.rounded,
    "floor": lambda value: numbers.floor(value),
    "ceil": lambda value: numbers.ceiling(value),
    "length": length,
    "upper": lambda value: to_text(value).upper(),
    "lower": lambda value: to_text(value).lower(),
    "trim": lambda value: to_text(value).strip(" "),
    "concat": concat,
    "dpipe": concat,
    "substring": substring,
    "bigint": to_int,
    "tsordstodate": to_date,
    "datediff": days_between,
    "year": lambda value: to_date(value).year,
    "month": lambda value: to_date(value).month,
    "day": lambda value: to_date(value).day,
    "dayofmonth": lambda value: to_date(value).day,
    "arraysort": sort_array,
    "sortarray": sort_array,
    "arraytostring": array_join,
    "regexpsplit": split,
    "generateseries": sequence,
    "arraysize": size,
    "cardinality": size,
}

FUNCTIONS: dict[str, Callable[..., Value]] = {
    "nullsafeeq": null_safe_equal,
    "nullsafeneq": lambda a, b: not null_safe_equal(a, b),
    "nullif": null_if,
    "nvl2": lambda value, present, absent: absent if value is None else present,
    "isnull": lambda value: value is None,
    "isnotnull": lambda value: value is not None,
    "isnan": lambda value: isinstance(value, float) and value != value,
    "raiseerror": raise_error,
    "asserttrue": assert_true,
}
