"""Bags of rows: the input and output of every node in the reference evaluator.

A bag maps rows to weights. Rows are clean (see `spark_values`), so equal rows are one key. A row of
weight zero is absent. Weights may be negative, so a Counter's own operators, which drop such rows,
are only for bags without negative weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from stepwell.execution.reference.scalar import condition
from stepwell.execution.reference.spark_values import Value, clean
from stepwell.plan.expressions import Expr

Row: TypeAlias = "tuple[Value, ...]"
Bag: TypeAlias = "Counter[Row]"


def bag(rows: Iterable[Iterable[Value]]) -> Bag:
    """A bag of these rows, each counted as often as it is given."""
    return Counter(clean(tuple(row)) for row in rows)


def plus(a: Bag, b: Bag) -> Bag:
    total = Counter(a)
    for row, weight in b.items():
        total[row] += weight
    return present(total)


def minus(rows: Bag) -> Bag:
    return Counter({row: -weight for row, weight in rows.items()})


def present(rows: Bag) -> Bag:
    return Counter({row: weight for row, weight in rows.items() if weight})


def named(columns: tuple[str, ...], row: Row) -> dict[str, Value]:
    return dict(zip(columns, row, strict=True))


def picker(columns: tuple[str, ...], wanted: Iterable[str]) -> Callable[[Row], Row]:
    """A function that picks the values of some columns from a row."""
    places = [columns.index(name) for name in wanted]
    return lambda row: tuple(row[place] for place in places)


def matching(columns: tuple[str, ...], on: Iterable[Expr]) -> Callable[[Row], bool]:
    """A function that tells whether all conditions hold for a row."""
    conditions = [condition(expr) for expr in on]

    def run(row: Row) -> bool:
        given = named(columns, row)
        return all(holds(given) for holds in conditions)

    return run
