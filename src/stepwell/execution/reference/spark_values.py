"""Spark's values in Python: equality, order and casts.

NULL is None, STRUCT and ARRAY are tuples, TIMESTAMP is a datetime without a zone. A value is
*clean* when Python's equality for it is Spark's: NaN is the one object `NAN`, so that it equals
itself as a key, and zero has no sign. Everything in a bag is clean.

Numbers have no width: an int is a BIGINT, and the scale of a DECIMAL is that of its Decimal. Equal
numbers of different types are one key in Python, as they are in Spark after widening; the exception
is a DECIMAL next to a DOUBLE.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple, TypeAlias

from stepwell.errors import InvalidError, UserCodeError
from stepwell.plan.numbers import INTEGER_BITS

Value: TypeAlias = Any
"""None, bool, int, float, Decimal, str, bytes, date, datetime, or a tuple of values."""

NAN = float("nan")
DECIMALS = Context(prec=100, rounding=ROUND_HALF_UP)
"""Wide enough to compute exactly before rounding to Spark's 38 digits."""
INT_MAX = {name.upper(): 2 ** (bits - 1) for name, bits in INTEGER_BITS.items()}


class TimeWindow(NamedTuple):
    """The result of `window(...)`: a struct of two times."""

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
    """The error for anything on which the reference evaluator cannot guarantee Spark's answer."""
    return InvalidError(f"the reference evaluator does not know {what}")


def clean(value: Value) -> Value:
    """The clean form of a value, equal in Python to another one where Spark calls them equal."""
    if isinstance(value, TimeWindow):
        return value
    if isinstance(value, float):
        # Adding zero takes the sign off negative zero and changes nothing else.
        return NAN if value != value else value + 0.0
    if isinstance(value, tuple | list):
        return tuple(clean(item) for item in value)
    return value


def kind(value: Value) -> str:
    """The kind of a value: only values of one kind compare directly."""
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
    """Compare two values: negative, zero or positive if a < b, a = b or a > b."""
    left, right = (order(value) for value in alike(a, b))
    return int(left > right) - int(left < right)


def alike(a: Value, b: Value) -> tuple[Value, Value]:
    """Both values cast to the type in which Spark compares them."""
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
    """CAST under ANSI rules, for the supported targets; `target` is sqlglot's name."""
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
        wanted = f"DECIMAL({precision},{scale})"
        raise failure("NUMERIC_VALUE_OUT_OF_RANGE", f"{value} is not a valid {wanted}")
    return rounded


def exact(value: Value) -> Decimal:
    """A number as a Decimal; a float by its shortest decimal representation, as in Spark."""
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
        # Java's decimals have no negative zero.
        return format(value if value else value.copy_abs(), "f")
    if isinstance(value, datetime):
        # Spark drops trailing zeros of the fraction, and the point if no digit is left.
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
        raise failure("CAST_INVALID_INPUT", f"{value!r} is not a valid DATE") from None


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
        raise failure("CAST_INVALID_INPUT", f"{value!r} is not a valid TIMESTAMP") from None
    return moment + timedelta(microseconds=int(fraction.ljust(6, "0")))


def to_boolean(value: Value) -> bool:
    if isinstance(value, str):
        text = value.strip().lower()
        if text not in _TRUE | _FALSE:
            raise failure("CAST_INVALID_INPUT", f"{value!r} is not a valid BOOLEAN")
        return text in _TRUE
    if kind(value) not in ("number", "boolean"):
        raise unknown(f"the cast of a {kind(value)} to BOOLEAN")
    return bool(value)


def failure(condition: str, text: str) -> UserCodeError:
    """The error that Spark raises at run time, with the name of its error condition."""
    return UserCodeError(f"[{condition}] {text}")


def _matching(pattern: re.Pattern[str], text: str, target: str) -> str:
    if pattern.fullmatch(text.strip()) is None:
        raise failure("CAST_INVALID_INPUT", f"{text!r} is not a valid {target}")
    return text.strip()


def _double_text(value: float) -> str:
    """Java's format: `1.0E7` from ten million on and below a thousandth, at least one decimal."""
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
    # sqlglot's name for Spark's TIMESTAMP.
    "TIMESTAMPTZ": to_timestamp,
}
