"""Converting one input value to its column's type, or giving the reason why it does not fit.

Strict: nothing is rounded, truncated or guessed. A number that fits exactly is accepted however it
is written (`1.0` is an INT, `"1.50"` a DECIMAL). A number is never taken for a text, nor a text for
a number, except in CSV, where every value is text (`read_text`).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation

from stepwell.lsm.arrow_types import numbers_of
from stepwell.plan.numbers import INTEGER_BITS
from stepwell.plan.types import SparkType

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,6})?", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r" ?(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_SPECIAL = {"nan": math.nan, "infinity": math.inf, "inf": math.inf}
_EXACT = Context(prec=80, traps=[Inexact, InvalidOperation])


class Unfit(Exception):  # noqa: N818 - not an error: bad rows are expected, and become dead letters
    """The reason why a value or record is not a valid row of its table."""

    def __init__(self, reason: str, *, cut_off: bool = False) -> None:
        super().__init__(reason)
        self.cut_off = cut_off
        """Whether it may become valid: the file that holds it is cut off."""


def fit(value: object, kind: SparkType) -> object:
    """Convert a decoded value (from JSON, Parquet or Python) for an Arrow column of this type."""
    return None if value is None else _FIT[kind.name](value, kind)


def read_text(text: str, kind: SparkType) -> object:
    """Parse a text: a field of a CSV file, or the key of a JSON object."""
    if kind.name in _STRINGS:
        return _text(text, kind)
    if kind.name in INTEGER_BITS or kind.name == "decimal":
        return fit(_number(text, kind), kind)
    if kind.name in ("float", "double"):
        special = _SPECIAL.get(text.lower().lstrip("+-"))
        if special is not None:
            return -special if text.startswith("-") else special
        return fit(_number(text, kind), kind)
    if kind.name == "boolean":
        if text.lower() not in ("true", "false"):
            raise _unfit(text, kind)
        return text.lower() == "true"
    if kind.name in ("array", "map", "struct"):
        raise Unfit(f"a {kind.name} cannot be given as text")
    return fit(text, kind)


def shown(value: object, length_max: int = 60) -> str:
    """A value as shown in a message, truncated to a sensible length."""
    text = repr(value)
    return text if len(text) <= length_max else text[: length_max - 3] + "..."


def _unfit(value: object, kind: SparkType) -> Unfit:
    return Unfit(f"{shown(value)} is not a valid {str(kind).upper()}")


def _number(text: str, kind: SparkType) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise _unfit(text, kind)
    return Decimal(text)  # An exponent of six digits is always in range.


def _boolean(value: object, kind: SparkType) -> object:
    if not isinstance(value, bool):
        raise _unfit(value, kind)
    return value


def _whole(value: object, kind: SparkType) -> object:
    if isinstance(value, (Decimal, float)) and _is_whole(value):
        value = int(value)
    if type(value) is not int:
        raise _unfit(value, kind)
    limit = 1 << (INTEGER_BITS[kind.name] - 1)
    if not -limit <= value < limit:
        raise Unfit(f"{shown(value)} is too large for {str(kind).upper()}")
    return value


def _is_whole(value: Decimal | float) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    # A short text such as 1e999999 would become a number of a million digits.
    return value.is_finite() and value.adjusted() < 40 and value == value.to_integral_value()


def _decimal(value: object, kind: SparkType) -> object:
    if isinstance(value, str):
        value = _number(value, kind)
    elif isinstance(value, float):
        value = Decimal(repr(value))
    elif type(value) is int:
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        raise _unfit(value, kind)
    precision, scale = numbers_of(kind)
    if value and value.adjusted() >= precision - scale:
        raise Unfit(f"{shown(str(value))} is too large for {str(kind).upper()}")
    try:
        return value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except (Inexact, InvalidOperation):
        raise Unfit(f"{shown(str(value))} has more than {scale} decimals") from None


def _floating(value: object, kind: SparkType) -> object:
    if isinstance(value, str):
        if value not in ("NaN", "Infinity", "-Infinity"):
            raise _unfit(value, kind)
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise _unfit(value, kind)
    try:
        number = float(value)
        if math.isinf(number) and not isinstance(value, float):
            raise OverflowError
        if kind.name == "float":
            struct.pack("f", number)
    except OverflowError:
        raise Unfit(f"{shown(str(value))} is too large for {kind.name.upper()}") from None
    return number


def _text(value: object, kind: SparkType) -> object:
    if not isinstance(value, str):
        raise _unfit(value, kind)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{shown(value)} is not valid Unicode") from None
    if kind.name != "string" and len(value) > numbers_of(kind)[0]:
        raise Unfit(f"{len(value)} characters are too long for {str(kind).upper()}")
    return value


def _binary(value: object, kind: SparkType) -> object:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _unfit(value, kind)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise Unfit(f"{shown(value)} is not Base64") from None


def _date(value: object, kind: SparkType) -> object:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    found = _DATE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _unfit(value, kind)
    try:
        return date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        raise _unfit(value, kind) from None


def _timestamp(value: object, kind: SparkType) -> object:
    moment = value if isinstance(value, datetime) else _moment(value, kind)
    if kind.name == "timestamp_ntz":
        if moment.tzinfo is not None:
            raise Unfit(f"{shown(value)} has a time zone, and TIMESTAMP_NTZ has none")
        return moment
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise _unfit(value, kind) from None


def _moment(value: object, kind: SparkType) -> datetime:
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _unfit(value, kind)
    # Truncate to microseconds, as Spark does.
    fraction = int((found[7] or "").ljust(6, "0")[:6])
    parts = [int(found[i] or 0) for i in range(1, 7)]
    try:
        return datetime(*parts, fraction, tzinfo=_zone(found[8]))  # type: ignore[arg-type,misc]
    except ValueError:
        raise _unfit(value, kind) from None


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text == "Z":
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if minutes > 59:
        raise ValueError("no such time zone")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)


def _array(value: object, kind: SparkType) -> object:
    if not isinstance(value, list):
        raise _unfit(value, kind)
    return [fit(item, kind.elements[0]) for item in value]


def _map(value: object, kind: SparkType) -> object:
    key, item = kind.elements
    if isinstance(value, Mapping):
        return [(read_text(name, key), fit(v, item)) for name, v in value.items()]
    if not isinstance(value, list) or not all(isinstance(pair, tuple) for pair in value):
        raise _unfit(value, kind)
    if any(name is None for name, _ in value):
        raise Unfit("the key of a map is NULL")
    return [(fit(name, key), fit(v, item)) for name, v in value]


def _struct(value: object, kind: SparkType) -> object:
    if not isinstance(value, Mapping):
        raise _unfit(value, kind)
    given = {str(name).lower(): item for name, item in value.items()}
    made = {}
    for field in kind.fields:
        try:
            made[field.name] = fit(given.pop(field.name.lower(), None), field.type)
        except Unfit as unfit:
            raise Unfit(f"{field.name}: {unfit}") from None
        if made[field.name] is None and not field.nullable:
            raise Unfit(f"{field.name} is NULL")
    if given:
        raise Unfit(f"the struct has no field {sorted(given)[0]}")
    return made


_STRINGS = ("string", "varchar", "char")
_FIT: dict[str, Callable[[object, SparkType], object]] = {
    **dict.fromkeys(INTEGER_BITS, _whole),
    **dict.fromkeys(_STRINGS, _text),
    "boolean": _boolean,
    "float": _floating,
    "double": _floating,
    "decimal": _decimal,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp,
    "array": _array,
    "map": _map,
    "struct": _struct,
}
