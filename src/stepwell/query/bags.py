"""Bags of rows: what every node of the reference evaluator takes and gives.

A bag maps rows to weights. Rows are clean (see `spark_values`), so that equal ones are one key, and
a row of weight zero is not there. Weights may be negative, so a Counter's own operators, which drop
such rows, are only for whole bags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from stepwell.query.algebra import Expr
from stepwell.query.scalar import condition
from stepwell.query.spark_values import Value, clean

Row: TypeAlias = "tuple[Value, ...]"
Bag: TypeAlias = "Counter[Row]"


def bag(rows: Iterable[Iterable[Value]]) -> Bag:
    """A bag of these rows, once each time they are given."""
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
    """What takes the values of some columns from a row."""
    places = [columns.index(name) for name in wanted]
    return lambda row: tuple(row[place] for place in places)


def matching(columns: tuple[str, ...], on: Iterable[Expr]) -> Callable[[Row], bool]:
    """Whether all conditions hold for a row."""
    conditions = [condition(expr.sql) for expr in on]

    def run(row: Row) -> bool:
        given = named(columns, row)
        return all(holds(given) for holds in conditions)

    return run
