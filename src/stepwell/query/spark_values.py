"""Spark's values as Python's: which are the same, which comes first, how one turns into another.

NULL is None, STRUCT and ARRAY are tuples, TIMESTAMP is a datetime without a zone. A value is
*clean* when Python agrees with Spark about what equals it: NaN is the one object `NAN`, so that it
equals itself as a key, and zero has no sign. Everything in a bag is clean.

Numbers carry no width: an int is a BIGINT, and the scale of a DECIMAL is that of its Decimal. Equal
numbers of different types are one key in Python, as they are in Spark once it has widened them;
only a DECIMAL beside a DOUBLE is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple, TypeAlias

from stepwell.errors import InvalidError, UserCodeError

Value: TypeAlias = Any
"""None, bool, int, float, Decimal, str, bytes, date, datetime, or a tuple of values."""

NAN = float("nan")
DECIMALS = Context(prec=100, rounding=ROUND_HALF_UP)
"""Wide enough to compute exactly what is then rounded to Spark's 38 digits."""
DIGITS_MAX = 38
INT_MAX = {"TINYINT": 2**7, "SMALLINT": 2**15, "INT": 2**31, "BIGINT": 2**63}


class TimeWindow(NamedTuple):
    """What `window(...)` makes: a struct of two times."""

    start: datetime
    end: datetime


_KINDS = {
    bool: "boolean",
    int: "number",
    float: "number",
    Decimal: "number",
    str: "text",
    bytes: "binary",
    date: "date",
    datetime: "timestamp",
    tuple: "array or struct",
    TimeWindow: "array or struct",
}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)?"
)
_TRUE = {"t", "true", "y", "yes", "1"}
_FALSE = {"f", "false", "n", "no", "0"}


def unknown(what: str) -> InvalidError:
    """What the reference evaluator answers where it cannot promise Spark's answer."""
    return InvalidError(f"the reference evaluator does not know {what}")


def clean(value: Value) -> Value:
    """The value under which Python finds it again wherever Spark would."""
    if isinstance(value, TimeWindow):
        return value
    if isinstance(value, float):
        # Adding zero takes the sign off negative zero and changes nothing else.
        return NAN if value != value else value + 0.0
    if isinstance(value, tuple | list):
        return tuple(clean(item) for item in value)
    return value


def kind(value: Value) -> str:
    """What a value can be compared with."""
    try:
        return _KINDS[type(value)]
    except KeyError:
        raise unknown(f"values of type {type(value).__name__}") from None


def order(value: Value) -> Any:
    """A key that sorts values of one column as Spark does: NULL first, NaN after every number."""
    if value is None:
        return (False,)
    if isinstance(value, float) and value != value:
        return (True, True, 0)
    if kind(value) == "number":
        return (True, False, value)
    if isinstance(value, tuple):
        return (True, tuple(order(item) for item in value))
    return (True, value)


def compare(a: Value, b: Value) -> int:
    """Negative, zero or positive, as the first of two values comes before, with, or after."""
    left, right = (order(value) for value in alike(a, b))
    return int(left > right) - int(left < right)


def alike(a: Value, b: Value) -> tuple[Value, Value]:
    """Both values in the type in which Spark compares them."""
    kinds = kind(a), kind(b)
    if kinds == ("number", "number"):
        return (float(a), float(b)) if isinstance(a, float) or isinstance(b, float) else (a, b)
    if kinds[0] == kinds[1]:
        return a, b
    if "timestamp" in kinds and set(kinds) <= {"timestamp", "date", "text"}:
        return to_timestamp(a), to_timestamp(b)
    if set(kinds) == {"date", "text"}:
        return to_date(a), to_date(b)
    raise unknown(f"how a {kinds[0]} compares with a {kinds[1]}")


def cast(value: Value, target: str, precision: int = 10, scale: int = 0) -> Value:
    """CAST under ANSI rules, for the targets the evaluator knows; `target` as sqlglot names it."""
    if value is None:
        return None
    if target in INT_MAX:
        return to_int(value, target)
    if target == "DECIMAL":
        return to_decimal(value, precision, scale)
    if target not in _CASTS:
        raise unknown(f"the cast to {target}")
    return _CASTS[target](value)


def to_int(value: Value, target: str = "BIGINT") -> int:
    if isinstance(value, str):
        number = int(_matching(_INTEGER, value, target))
    elif isinstance(value, float) and (value != value or abs(value) == float("inf")):
        raise failure("CAST_OVERFLOW", f"{value} is not in the range of {target}")
    elif kind(value) in ("number", "boolean"):
        number = int(value)
    else:
        raise unknown(f"the cast of a {kind(value)} to {target}")
    if not -INT_MAX[target] <= number < INT_MAX[target]:
        raise failure("CAST_OVERFLOW", f"{value} is not in the range of {target}")
    return number


def to_decimal(value: Value, precision: int, scale: int) -> Decimal:
    if isinstance(value, str):
        number = Decimal(_matching(_NUMBER, value, "DECIMAL"))
    else:
        number = exact(int(value) if isinstance(value, bool) else value)
    try:
        rounded = rescale(number, scale)
    except InvalidOperation:
        rounded = Decimal("Infinity")
    too_long = bool(rounded) and rounded.adjusted() >= precision - scale
    if too_long or not rounded.is_finite():
        raise failure("NUMERIC_VALUE_OUT_OF_RANGE", f"{value} is no DECIMAL({precision},{scale})")
    return rounded


def exact(value: Value) -> Decimal:
    """A number as a Decimal; a float by its shortest digits, as Spark takes it."""
    if isinstance(value, Decimal):
        return value
    if kind(value) != "number":
        raise unknown(f"a {kind(value)} as a number")
    return Decimal(repr(value))


def rescale(value: Decimal, scale: int, rounding: str = ROUND_HALF_UP) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-scale), rounding=rounding, context=DECIMALS)


def to_double(value: Value) -> float:
    if isinstance(value, str):
        text = value.strip().lower()
        if text.lstrip("+-") in ("nan", "inf", "infinity"):
            return float(text)
        return float(_matching(_NUMBER, text[:-1] if text.endswith(("d", "f")) else text, "DOUBLE"))
    if kind(value) not in ("number", "boolean"):
        raise unknown(f"the cast of a {kind(value)} to DOUBLE")
    return float(value)


def to_text(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, Decimal):
        # A zero of Java's decimals has no sign.
        return format(value if value else value.copy_abs(), "f")
    if isinstance(value, datetime):
        # Spark drops the zeros at the end of the fraction, and the point when nothing is left.
        text = value.isoformat(sep=" ", timespec="microseconds")
        return text.rstrip("0").rstrip(".") if value.microsecond else text[:19]
    if isinstance(value, date):
        return value.isoformat()
    raise unknown(f"the text of a {kind(value)}")


def to_date(value: Value) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    if not isinstance(value, str):
        raise unknown(f"the cast of a {kind(value)} to DATE")
    match = _DATE.fullmatch(value.strip())
    try:
        if match is None:
            raise ValueError
        year, month, day = (int(part or 1) for part in match.groups())
        return date(year, month, day)
    except ValueError:
        raise failure("CAST_INVALID_INPUT", f"{value!r} is no DATE") from None


def to_timestamp(value: Value) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    if not isinstance(value, str):
        raise unknown(f"the cast of a {kind(value)} to TIMESTAMP")
    text = value.strip()
    if _TIME.fullmatch(text) is None:
        raise unknown(f"the TIMESTAMP {value!r}")
    whole, _, fraction = text.partition(".")
    try:
        moment = datetime.fromisoformat(whole)
    except ValueError:
        raise failure("CAST_INVALID_INPUT", f"{value!r} is no TIMESTAMP") from None
    return moment + timedelta(microseconds=int(fraction.ljust(6, "0")))


def to_boolean(value: Value) -> bool:
    if isinstance(value, str):
        text = value.strip().lower()
        if text not in _TRUE | _FALSE:
            raise failure("CAST_INVALID_INPUT", f"{value!r} is no BOOLEAN")
        return text in _TRUE
    if kind(value) not in ("number", "boolean"):
        raise unknown(f"the cast of a {kind(value)} to BOOLEAN")
    return bool(value)


def failure(condition: str, text: str) -> UserCodeError:
    """What Spark raises while it runs the query, under the name of its error condition."""
    return UserCodeError(f"[{condition}] {text}")


def _matching(pattern: re.Pattern[str], text: str, target: str) -> str:
    if pattern.fullmatch(text.strip()) is None:
        raise failure("CAST_INVALID_INPUT", f"{text!r} is no {target}")
    return text.strip()


def _double_text(value: float) -> str:
    """Java's way: `1.0E7` from ten millions on and below a thousandth, at least one decimal."""
    if value != value:
        return "NaN"
    if abs(value) == float("inf"):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    written = "".join(map(str, digits))
    power = int(exponent) + len(written) - 1
    rest = written[1:].rstrip("0") or "0"
    return f"{'-' if sign else ''}{written[0]}.{rest}E{power}"


_CASTS: dict[str, Callable[[Value], Value]] = {
    "BOOLEAN": to_boolean,
    "DATE": to_date,
    "DOUBLE": to_double,
    "TEXT": to_text,
    "TIMESTAMPNTZ": to_timestamp,
    # What sqlglot calls Spark's TIMESTAMP.
    "TIMESTAMPTZ": to_timestamp,
}
