"""Aggregates that a change can be added to: rule 3.

For these a group keeps accumulators, from which the result is computed, and a change to the input
becomes a change to the accumulators without any of the group's other rows. They must be exact: a
floating-point sum would drift as rows come and go, so it is not here.

    count(x)          how many are not NULL
    sum(x), avg(x)    their exact sum, and how many are not NULL (none: the result is NULL)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot import exp

from stepwell.query import functions
from stepwell.query.algebra import Expr
from stepwell.query.conditions import columns_in, parse_scalar

_DIALECT = "spark"
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_SMALL = ("tinyint", "smallint", "int")
WIDEST = 38


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One stored number of a group: a count, or a sum."""

    argument: Expr | None
    """What is summed up; None for a count."""
    present: Expr | None
    """The condition under which a row counts; None: always."""
    type: str

    def of(self, weight: str) -> str:
        """SQL of the accumulator over weighted rows."""
        if self.argument is None:
            value = weight
        else:
            value = f"{signed(self.argument.sql, weight, self.type)}"
        if self.present is not None:
            value = f"CASE WHEN {self.present.sql} THEN {value} END"
        return f"CAST(COALESCE(sum({value}), 0) AS {self.type})"


@dataclass(frozen=True, slots=True)
class Sum:
    """An aggregate call taken apart: its accumulators, and the result as SQL over their names."""

    accumulators: tuple[Accumulator, ...]
    result: str
    """With {0}, {1} for the accumulators."""


def signed(value: str, weight: str, type_: str) -> str:
    """value * weight. Nearly all weights are 1 or -1, which need no product and its wider type."""
    times = weight if type_ == "bigint" else f"CAST({weight} AS DECIMAL(9,0))"
    return (
        f"CASE {weight} WHEN 1 THEN CAST({value} AS {type_}) "
        f"WHEN -1 THEN -CAST({value} AS {type_}) ELSE CAST(({value}) * {times} AS {type_}) END"
    )


def argument_of(call: Expr) -> Expr | None:
    """The argument whose type decides, if the call may be one of ours."""
    function, _ = _unfilter(parse_scalar(call.sql))
    if _kind(function) not in ("sum", "avg"):
        return None
    return _expr(function.this, call)


def take_apart(call: Expr, type_: str | None, *, ansi: bool) -> Sum | None:
    """The accumulators of a call, or None if it has none. `type_` is the type of its argument."""
    function, condition = _unfilter(parse_scalar(call.sql))
    kind = _kind(function)
    given = _expr(condition, call) if condition is not None else None
    if kind == "count":
        return Sum((_count(function, given, call),), "{0}")
    if kind == "count_if":
        return Sum((Accumulator(None, _both(_expr(function.this, call), given), "bigint"),), "{0}")
    if kind not in ("sum", "avg") or type_ is None:
        return None
    argument = _expr(function.this, call)
    accumulator = _accumulator(type_, kind, ansi)
    result = _result(type_, kind)
    if accumulator is None or result is None:
        return None
    present = _both(Expr(f"({argument.sql}) IS NOT NULL", argument.columns), given)
    return Sum(
        (Accumulator(argument, given, accumulator), Accumulator(None, present, "bigint")),
        f"CASE WHEN {{1}} = 0 THEN NULL ELSE {result} END",
    )


def _unfilter(node: exp.Expr) -> tuple[exp.Expr, exp.Expr | None]:
    if isinstance(node, exp.Filter):
        return node.this, node.expression.this
    return node, None


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
        expr = _expr(argument, call)
        present = _both(Expr(f"({expr.sql}) IS NOT NULL", expr.columns), present)
    return Accumulator(None, present, "bigint")


def _accumulator(type_: str, kind: str, ansi: bool) -> str | None:
    decimal = _DECIMAL.fullmatch(type_)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        # Beyond this a product with a weight would be rounded.
        exact = precision <= 28 or scale <= 6
        return f"decimal({WIDEST},{scale})" if exact else None
    if type_ in _SMALL:
        return "bigint"
    if type_ == "bigint":
        # Outside ANSI mode a sum that overflows wraps around, and so must the accumulator; in it,
        # the sum may pass the limit on the way and come back.
        return f"decimal({WIDEST},0)" if ansi or kind == "avg" else "bigint"
    return None


def _result(type_: str, kind: str) -> str | None:
    decimal = _DECIMAL.fullmatch(type_)
    if decimal is None:
        return "CAST({0} AS BIGINT)" if kind == "sum" else "CAST({0} AS DOUBLE) / {1}"
    precision, scale = int(decimal[1]), int(decimal[2])
    total = f"CAST({{0}} AS DECIMAL({min(WIDEST, precision + 10)},{scale}))"
    if kind == "sum":
        return total
    if precision > 18 or scale > 8:
        # The quotient would be rounded before its last digit; Spark's own average is not.
        return None
    return f"CAST({total} / CAST({{1}} AS DECIMAL(20,0)) AS DECIMAL({precision + 4},{scale + 4}))"


def _both(a: Expr, b: Expr | None) -> Expr:
    if b is None:
        return a
    return Expr(f"({a.sql}) AND ({b.sql})", a.columns | b.columns)


def _expr(node: exp.Expr, call: Expr) -> Expr:
    return Expr(node.sql(dialect=_DIALECT), columns_in(node) & call.columns)
