"""Aggregates to which a change can be added: rule 3.

A group stores accumulators, from which the result is computed. A change of the input becomes a
change of the accumulators without reading the group's other rows. Accumulators must be exact: a
floating-point sum would drift with insertions and retractions, so it is not supported here.

    count(x)          the number of non-NULL values
    sum(x), avg(x)    the exact sum and the number of non-NULL values (if 0, the result is NULL)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from stepwell.plan import functions
from stepwell.plan.expressions import Expr, both, build, cast, column, is_not_null, substitute
from stepwell.plan.numbers import (
    DIGITS_MAX,
    INTEGER_WIDTHS,
    average_width,
    decimal_text,
    decimal_width,
    total_width,
)

_SMALL = ("tinyint", "smallint", "int")
_FIRST, _SECOND = column("a0"), column("a1")


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One stored number of a group: a count or a sum."""

    argument: Expr | None
    """The summed expression; None for a count."""
    present: Expr | None
    """The condition under which a row counts; None if every row does."""
    type: str


@dataclass(frozen=True, slots=True)
class Sum:
    """A decomposed aggregate call: its accumulators, and the result computed from them."""

    accumulators: tuple[Accumulator, ...]
    _result: Expr
    """Over the columns `a0`, `a1`, which stand for the accumulators."""

    def result(self, columns: Sequence[str]) -> Expr:
        """The value of the call, from the columns that hold its accumulators."""
        return substitute(self._result, {f"a{i}": name for i, name in enumerate(columns)})


def argument_of(call: Expr) -> Expr | None:
    """The argument whose type decides whether the call has accumulators, if it may have any."""
    function, _ = _unfilter(call.tree)
    if _kind(function) not in ("sum", "avg"):
        return None
    return call.part(_first(function))


def take_apart(call: Expr, type_: str | None, *, ansi: bool) -> Sum | None:
    """The accumulators of a call; None if it has none. `type_` is the type of its argument."""
    function, condition = _unfilter(call.tree)
    kind = _kind(function)
    given = call.part(condition) if condition is not None else None
    if kind == "count":
        return Sum((_count(function, given, call),), _FIRST)
    if kind == "count_if":
        present = _both(call.part(function.this), given)
        return Sum((Accumulator(None, present, "bigint"),), _FIRST)
    if kind not in ("sum", "avg") or type_ is None:
        return None
    argument = replace(call.part(_first(function)), type=type_)
    accumulator = _accumulator(type_, kind, ansi)
    result = _result(type_, kind)
    if accumulator is None or result is None:
        return None
    present = _both(is_not_null(argument), given)
    value = build("CASE WHEN n = 0 THEN NULL ELSE result END", n=_SECOND, result=result)
    return Sum(
        (Accumulator(argument, given, accumulator), Accumulator(None, present, "bigint")),
        replace(value, type=result.type),
    )


def _unfilter(node: exp.Expr) -> tuple[exp.Expr, exp.Expr | None]:
    if isinstance(node, exp.Filter):
        return node.this, node.expression.this
    return node, None


def _first(function: exp.Expr) -> exp.Expr:
    """The first argument of a call; sqlglot does not know `mean`."""
    found: exp.Expr = (
        function.expressions[0] if isinstance(function, exp.Anonymous) else function.this
    )
    return found


def _kind(function: exp.Expr) -> str | None:
    name = functions.name_of(function)
    if name == "mean":
        name = "avg"
    if any(isinstance(part, exp.Distinct) for part in function.iter_expressions()):
        return None
    return name


def _count(function: exp.Expr, given: Expr | None, call: Expr) -> Accumulator:
    arguments = [function.this, *function.expressions] if function.this is not None else []
    counted = [a for a in arguments if not isinstance(a, exp.Star | exp.Literal)]
    present = given
    for argument in counted:
        present = _both(is_not_null(call.part(argument)), present)
    return Accumulator(None, present, "bigint")


def _accumulator(type_: str, kind: str, ansi: bool) -> str | None:
    decimal = decimal_width(type_)
    if decimal is not None:
        precision, scale = decimal
        # With more digits, the product with a weight would be rounded.
        exact = precision <= 28 or scale <= 6
        return decimal_text((DIGITS_MAX, scale)) if exact else None
    if type_ in _SMALL:
        return "bigint"
    if type_ == "bigint":
        # Outside ANSI mode an overflowing sum wraps around, so the accumulator must too. In ANSI
        # mode the running sum may exceed the limit temporarily and come back.
        return decimal_text((DIGITS_MAX, 0)) if ansi or kind == "avg" else "bigint"
    return None


def _result(type_: str, kind: str) -> Expr | None:
    decimal = decimal_width(type_)
    if decimal is None:
        if kind == "sum":
            return cast(_FIRST, "bigint")
        mean = build("CAST(total AS DOUBLE) / n", total=_FIRST, n=_SECOND)
        return replace(mean, type="double")
    precision, scale = decimal
    total = cast(_FIRST, decimal_text(total_width(decimal)))
    if kind == "sum":
        return total
    if precision > 18 or scale > 8:
        # The quotient would be rounded before its last digit; Spark's own average is not.
        return None
    count = cast(_SECOND, decimal_text(INTEGER_WIDTHS["bigint"]))
    return cast(build("total / n", total=total, n=count), decimal_text(average_width(decimal)))


def _both(a: Expr, b: Expr | None) -> Expr:
    if b is None:
        return a
    return both(a, b)
