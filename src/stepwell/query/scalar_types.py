"""What the text of a scalar expression shows of its type, without knowing any column's.

Spark decides some results by declared types: the scale of a quotient, the one type that all
branches of a CASE get. Values do not show them; literals and casts do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlglot import exp

from stepwell.query.spark_numbers import Width
from stepwell.query.spark_values import DIGITS_MAX, Value, exact

_INT_WIDTHS: dict[str, Width] = {
    "TINYINT": (3, 0),
    "SMALLINT": (5, 0),
    "INT": (10, 0),
    "BIGINT": (20, 0),
}


@dataclass(frozen=True, slots=True)
class NumberType:
    """`name` is INT for any integer, DECIMAL or DOUBLE; `width` is what it takes as a decimal."""

    name: str
    width: Width | None = None


def declared(node: exp.Expr) -> NumberType | None:
    """The type of a number, if the text shows it."""
    if isinstance(node, exp.Paren | exp.Neg):
        return declared(node.this)
    if isinstance(node, exp.Cast):
        return _of_cast(node.to)
    if isinstance(node, exp.Literal) and not node.is_string:
        return _of_digits(str(node.this))
    return None


def common(branches: Iterable[exp.Expr]) -> Callable[[Value], Value]:
    """What brings a value of any branch to the type all of them get, as far as it shows."""
    names = {type.name for type in map(declared, branches) if type is not None}
    if "DOUBLE" in names:
        return lambda value: float(value) if _is_exact(value) else value
    if "DECIMAL" in names:
        return lambda value: exact(value) if _is_exact(value) else value
    return lambda value: value


def _of_cast(target: exp.DataType) -> NumberType | None:
    name = str(target.this.value)
    if name == "DECIMAL":
        sizes = [int(size.name) for size in target.expressions]
        return NumberType(name, (sizes[0] if sizes else 10, sizes[1] if len(sizes) > 1 else 0))
    if name in _INT_WIDTHS:
        return NumberType("INT", _INT_WIDTHS[name])
    return NumberType(name) if name == "DOUBLE" else None


def _of_digits(text: str) -> NumberType:
    if "e" in text.lower():
        return NumberType("DOUBLE")
    whole, point, fraction = text.partition(".")
    digits = len(whole.lstrip("0") + fraction)
    return NumberType(
        "DECIMAL" if point else "INT", (min(max(digits, 1), DIGITS_MAX), len(fraction))
    )


def _is_exact(value: Value) -> bool:
    return value is not None and not isinstance(value, bool | float | str)
