"""Spark SQL aggregate calls on rows: compiles a call to a function of a group's rows.

A group is a list in which a row occurs as often as its weight says. Results do not depend on its
order. Where Spark's results do (`first`, `collect_list`, ties of `max_by`), the smallest value, the
sorted list and the smallest of the tied values stand for all possible answers of Spark. A float sum
is the correctly rounded one; Spark's differs from it in the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import and_, or_, xor
from typing import TypeAlias

from sqlglot import exp

from stepwell.execution.reference.scalar import (
    Code,
    Row,
    code,
    holds,
    name_of,
    operands,
    written,
)
from stepwell.execution.reference.spark_numbers import float_total, mean, number, total
from stepwell.execution.reference.spark_values import NAN, Value, clean, kind, order, unknown
from stepwell.plan.expressions import Expr

Group: TypeAlias = Sequence[Row]
Arguments: TypeAlias = "tuple[Value, ...]"
Fold: TypeAlias = Callable[[list[Arguments]], Value]


@lru_cache(maxsize=4096)
def aggregate(expr: Expr) -> Callable[[Group], Value]:
    """The value of an aggregate call for a group, or of a scalar expression over such calls.

    >>> from stepwell.plan.expressions import parse
    >>> total = parse("coalesce(sum(_c1) FILTER (WHERE _c1 > 1), 0)")
    >>> aggregate(total)([{"_c1": 1}, {"_c1": 2}])
    2
    """
    node = expr.tree
    if is_call(node):
        return folded(read(node))
    folds: dict[str, Callable[[Group], Value]] = {}

    def outside(part: exp.Expr) -> exp.Expr:
        if not is_call(part):
            return part
        name = f"call{len(folds)}"
        folds[name] = folded(read(part))
        return exp.column(name)

    run = code(node.transform(outside))
    if not folds:
        raise unknown(f"the aggregate {expr.sql}")
    return lambda rows: run({name: fold(rows) for name, fold in folds.items()})


def is_call(node: exp.Expr) -> bool:
    if isinstance(node, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        return is_call(node.this)
    # After LIKE, ANY is not a call.
    known = isinstance(node, exp.Func) or (
        isinstance(node, exp.Any) and not isinstance(node.parent, exp.Like)
    )
    return known and name_of(node) in FOLDS


@dataclass(frozen=True, slots=True)
class Call:
    """The parts of a call: `sum(DISTINCT x) FILTER (WHERE y)`."""

    text: str
    name: str
    operands: tuple[exp.Expr, ...]
    codes: tuple[Code, ...]
    distinct: bool = False
    ignore_nulls: bool = False
    where: Callable[[Row], bool] | None = None

    def arguments(self, rows: Iterable[Row]) -> list[Arguments]:
        """The arguments of the call for each row that passes its filter."""
        where = self.where
        kept = rows if where is None else (row for row in rows if where(row))
        found = [tuple(run(row) for run in self.codes) for row in kept]
        return list(dict.fromkeys(found)) if self.distinct else found


def read(node: exp.Expr) -> Call:
    """Split a call into its parts. Anything that is not a call is rejected later, by name."""
    if isinstance(node, exp.Filter):
        return replace(read(node.this), where=holds(node.args["expression"].this))
    if isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
        return replace(read(node.this), ignore_nulls=isinstance(node, exp.IgnoreNulls))
    given = operands(node)
    distinct = len(given) == 1 and isinstance(given[0], exp.Distinct)
    if distinct:
        given = given[0].expressions
    if any(isinstance(operand, exp.Star) for operand in given):
        given = []
    return Call(written(node), name_of(node), tuple(given), tuple(map(code, given)), distinct)


def folded(call: Call) -> Callable[[Group], Value]:
    fold = FOLDS.get(call.name)
    if fold is None:
        raise unknown(f"the aggregate {call.text}")
    return lambda rows: clean(fold(call.arguments(rows)))


def values_of(arguments: Iterable[Arguments]) -> list[Value]:
    """The values of a call with one argument, without NULL."""
    return [value for (value,) in arguments if value is not None]


def of_values(compute: Callable[[list[Value]], Value], empty: Value = None) -> Fold:
    """A typical aggregate: one argument, NULL ignored, and a fixed answer for empty input."""

    def fold(arguments: list[Arguments]) -> Value:
        values = values_of(arguments)
        return compute(values) if values else empty

    return fold


def count(arguments: list[Arguments]) -> int:
    return sum(all(value is not None for value in given) for given in arguments)


def truths(values: list[Value]) -> list[bool]:
    for value in values:
        if not isinstance(value, bool):
            raise unknown(f"a {kind(value)} as a condition")
    return values


def collected(values: list[Value]) -> Value:
    return tuple(sorted(values, key=order))


def collected_once(values: list[Value]) -> Value:
    return collected(list(dict.fromkeys(values)))


def variance(*, sample: bool, root: bool = False) -> Fold:
    def compute(values: list[Value]) -> Value:
        numbers = [float(number(value)) for value in values]
        divisor = len(numbers) - sample
        if divisor == 0:
            return None
        if not all(map(math.isfinite, numbers)):
            return NAN
        middle = float_total(numbers) / len(numbers)
        result = float_total([(value - middle) * (value - middle) for value in numbers]) / divisor
        return math.sqrt(result) if root else result

    return of_values(compute)


def by_largest(arguments: list[Arguments]) -> Value:
    return _value_at(arguments, max)


def by_smallest(arguments: list[Arguments]) -> Value:
    return _value_at(arguments, min)


def _value_at(arguments: list[Arguments], extreme: Callable[..., Value]) -> Value:
    """`max_by` and `min_by`: rows without a measure do not count; ties go to the smallest value."""
    measured = [(order(measure), value) for value, measure in arguments if measure is not None]
    if not measured:
        return None
    best = extreme(measure for measure, _ in measured)
    return min((value for measure, value in measured if measure == best), key=order)


def smallest(values: list[Value]) -> Value:
    return min(values, key=order)


def largest(values: list[Value]) -> Value:
    return max(values, key=order)


def every(values: list[Value]) -> bool:
    return all(truths(values))


def some(values: list[Value]) -> bool:
    return any(truths(values))


def median(values: list[Value]) -> float:
    """The middle value, or the mean of the two in the middle."""
    numbers = sorted((float(number(value)) for value in values), key=order)
    half, odd = divmod(len(numbers), 2)
    return numbers[half] if odd else (numbers[half - 1] + numbers[half]) / 2


def bits(combine: Callable[[int, int], int]) -> Fold:
    def compute(values: list[Value]) -> int:
        whole = [value for value in values if type(value) is int]
        if len(whole) < len(values):
            raise unknown("the bits of a value that is not a whole number")
        return reduce(combine, whole)

    return of_values(compute)


FOLDS: dict[str, Fold] = {
    "count": count,
    "countif": of_values(lambda values: sum(truths(values)), empty=0),
    "sum": of_values(total),
    "avg": of_values(mean),
    "mean": of_values(mean),
    "min": of_values(smallest),
    "max": of_values(largest),
    "logicaland": of_values(every),
    "every": of_values(every),
    "logicalor": of_values(some),
    "any": of_values(some),
    "some": of_values(some),
    "std": variance(sample=True, root=True),
    "stddev": variance(sample=True, root=True),
    "stddevsamp": variance(sample=True, root=True),
    "stddevpop": variance(sample=False, root=True),
    "variance": variance(sample=True),
    "variancepop": variance(sample=False),
    "anyvalue": of_values(smallest),
    "first": of_values(smallest),
    "firstvalue": of_values(smallest),
    "arrayagg": of_values(collected, empty=()),
    "arrayuniqueagg": of_values(collected_once, empty=()),
    "median": of_values(median),
    "bitwiseandagg": bits(and_),
    "bitwiseoragg": bits(or_),
    "bitwisexoragg": bits(xor),
    "argmax": by_largest,
    "argmin": by_smallest,
}
