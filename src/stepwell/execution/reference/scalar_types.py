"""The type of a scalar expression, as far as its text shows it without column types.

Spark derives some results from declared types: the scale of a quotient, the common type of the
branches of a CASE. Values do not show these types; literals and casts do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlglot import exp

from stepwell.execution.reference.spark_values import Value, exact
from stepwell.plan.numbers import DIGITS_MAX, INTEGER_WIDTHS, Width


@dataclass(frozen=True, slots=True)
class NumberType:
    """`name` is INT for any integer, DECIMAL or DOUBLE; `width` is its width as a decimal."""

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
    """A conversion of branch values to their common type, as far as the text shows it."""
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
    if name.lower() in INTEGER_WIDTHS:
        return NumberType("INT", INTEGER_WIDTHS[name.lower()])
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
