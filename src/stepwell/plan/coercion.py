"""How Spark converts types by itself, with ANSI arithmetic: what it refuses, and what comes out.

Both answers are partial. `never_alike` and the other refusals hold only where Spark certainly
refuses, and a result type is None where it is not certain. A type that is None is unknown, and
nothing is said about it. `tests/execution/test_offline_types.py` compares all of it with Spark.
"""

from __future__ import annotations

from stepwell.plan.numbers import (
    DIGITS_MAX,
    INTEGER_BITS,
    Width,
    average_width,
    bounded,
    common_width,
    decimal_text,
    decimal_width,
    product_width,
    quotient_width,
    sum_width,
    total_width,
    width_of,
)
from stepwell.plan.types import SparkType, parse_type

Known = SparkType | None
"""A type, or None if it is unknown."""

VOID = parse_type("void")
BOOLEAN = parse_type("boolean")
INT = parse_type("int")
BIGINT = parse_type("bigint")
DOUBLE = parse_type("double")
STRING = parse_type("string")
DATE = parse_type("date")
TIMESTAMP = parse_type("timestamp")

_FLOATING = ("float", "double")
_NUMBERS = (*INTEGER_BITS, "decimal", *_FLOATING)
_TIMES = ("date", "timestamp", "timestamp_ntz")
_NESTED = ("array", "map", "struct")
_PLAIN = (*_NUMBERS, *_TIMES, "boolean", "string", "binary")
_INTERVALS = {
    **dict.fromkeys(("year", "month"), "months"),
    **dict.fromkeys(("day", "hour", "minute", "second"), "seconds"),
}


def known(type: SparkType) -> Known:
    """The type in which Spark computes with a declared column; None if its rules are not known."""
    if any(part.collation is not None for part in type.walk()):
        return None
    return STRING if type.name in ("char", "varchar") else type


def kind(type: Known) -> str | None:
    """The kind of a type: types of one kind behave alike. None if nothing is known about it."""
    if type is None or type.name == "void":
        return None
    if type.name in _NUMBERS:
        return "number"
    if type.name in _TIMES:
        return "time"
    if type.name == "interval":
        return _INTERVALS.get(type.parameters.split(" ")[0])
    return type.name if type.name in (*_PLAIN, *_NESTED) else None


def never_alike(a: Known, b: Known) -> bool:
    """Whether there is no type to which Spark converts both, to compare or to choose from them.

    >>> never_alike(parse_type("int"), parse_type("date")), never_alike(INT, STRING)
    (True, False)
    """
    one, other = kind(a), kind(b)
    if a is None or b is None or one is None or other is None:
        return False
    if one == other:
        if one == "struct":
            return len(a.fields) != len(b.fields) or any(
                never_alike(x.type, y.type) for x, y in zip(a.fields, b.fields, strict=True)
            )
        return any(never_alike(x, y) for x, y in zip(a.elements, b.elements, strict=False))
    if "string" in (one, other):
        # Spark reads texts as values of plain types.
        return one in _NESTED or other in _NESTED
    return True


def contains_map(type: Known) -> bool:
    """Whether the type has a map in it, which Spark neither compares nor orders."""
    return type is not None and any(part.name == "map" for part in type.walk())


def common_type(a: Known, b: Known) -> Known:
    """The type to which Spark converts both.

    >>> str(common_type(INT, BIGINT)), str(common_type(VOID, DATE)), common_type(INT, STRING)
    ('bigint', 'date', None)
    """
    if a is None or b is None:
        return None
    if a == b or b == VOID:
        return a
    if a == VOID:
        return b
    if a.name in INTEGER_BITS and b.name in INTEGER_BITS:
        return max(a, b, key=lambda item: INTEGER_BITS[item.name])
    if kind(a) == kind(b) == "number":
        if a.name in _FLOATING or b.name in _FLOATING:
            return DOUBLE if {a.name, b.name} != {"float"} else a
        widths = [width for width in map(_width, (a, b)) if width is not None]
        common = common_width(*widths)
        return _decimal(common) if common[0] <= DIGITS_MAX else None
    if {a.name, b.name} == {"date", "timestamp"}:
        return TIMESTAMP
    return None


def refuses_arithmetic(sign: str, a: Known, b: Known) -> bool:
    """Whether Spark certainly refuses `a + b` and the like."""
    one, other = kind(a), kind(b)
    if one is None or other is None:
        # NULL, or an unknown type: whatever it is, it cannot be computed with the other.
        return (one or other) in ("boolean", "binary", *_NESTED)
    both = {one, other}
    if both & {"boolean", "binary", *_NESTED}:
        return True
    if "string" in both or both == {"number"}:
        return False
    if sign in ("+", "-") and both == {"time"}:
        return sign == "+"
    if sign in ("+", "-") and both == {"time", "number"}:
        time = a if one == "time" else b
        return (sign == "-" and other == "time") or time is None or time.name != "date"
    if sign in ("+", "-") and "time" in both:
        return sign == "-" and other == "time"
    if sign in ("+", "-"):
        return one != other
    if sign in ("*", "/") and both in ({"months", "number"}, {"seconds", "number"}):
        return sign == "/" and other != "number"
    return not (sign == "div" and one == other and one != "time")


def arithmetic(sign: str, a: Known, b: Known) -> Known:
    """The type of `a + b` and the like, of numbers."""
    if a is None or b is None or kind(a) != "number" or kind(b) != "number":
        if sign == "-" and a is not None and a == b == DATE:
            return parse_type("interval day")
        return None
    if a.name in _FLOATING or b.name in _FLOATING:
        return common_type(a, b) if sign != "/" else DOUBLE
    if a.name in INTEGER_BITS and b.name in INTEGER_BITS:
        return DOUBLE if sign == "/" else common_type(a, b)
    one, other = _width(a), _width(b)
    if one is None or other is None or sign == "%":
        return None
    if sign == "/":
        return _decimal(quotient_width(one, other))
    return _decimal(bounded((product_width if sign == "*" else sum_width)(one, other)))


def summed(type: Known) -> Known:
    if type is None or kind(type) != "number":
        return None
    if type.name in INTEGER_BITS:
        return BIGINT
    width = decimal_width(str(type))
    return DOUBLE if width is None else _decimal(total_width(width))


def averaged(type: Known) -> Known:
    if type is None or kind(type) != "number":
        return None
    width = decimal_width(str(type))
    return DOUBLE if width is None else _decimal(average_width(width))


def refuses_cast(value: Known, to: Known) -> bool:
    """Whether Spark certainly refuses CAST from one type to another."""
    one, other = kind(value), kind(to)
    if value is None or to is None or one is None or other is None or other == "string":
        return False
    if one == other:
        if one == "struct":
            return len(value.fields) != len(to.fields) or any(
                refuses_cast(x.type, y.type) for x, y in zip(value.fields, to.fields, strict=True)
            )
        return any(refuses_cast(x, y) for x, y in zip(value.elements, to.elements, strict=False))
    if one in _NESTED or other in _NESTED:
        return True
    if one == "time" and other in ("number", "boolean"):
        return value.name != "timestamp" or other == "boolean"
    if other == "time" and one in ("number", "boolean", "binary"):
        return to.name == "date" or one == "binary"
    return one == "binary" and other in ("number", "boolean")


def _width(type: SparkType) -> Width | None:
    return width_of(str(type))


def _decimal(width: Width) -> SparkType:
    return parse_type(decimal_text(width))
