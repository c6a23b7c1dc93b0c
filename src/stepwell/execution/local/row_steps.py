"""The steps that plans over few rows are compiled to (`row_plans`).

A step computes rows as tuples: the values of its columns, in the form of `row_values`, and the
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from stepwell.execution.backend import NotSupported
from stepwell.lsm.part import Part
from stepwell.lsm.row_lookup import Row, RowReader, TooManyRowsError
from stepwell.plan.numbers import INTEGER_BITS


@dataclass(slots=True)
class Reading:
    """What a plan reads: the rows of this transaction, and the changes so far."""

    reader: RowReader
    deltas: Mapping[str, Part]
    rows_left: int
    """How many rows may still be handled, before the plan is left to columns."""

    def count(self, rows: int) -> None:
        self.rows_left -= rows
        if self.rows_left < 0:
            raise TooManyRowsError


Values: TypeAlias = "Mapping[str, Collection[Any]]"
"""The values of the known columns. NULL is among them only if it equals NULL there."""
Run: TypeAlias = "Callable[[Reading, Values], list[Row]]"


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled node: the columns of its rows, their types, and what computes them."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    run: Run

    def place(self, column: str) -> int:
        return self.columns.index(column)

    def type(self, column: str) -> str:
        return self.types[self.columns.index(column)]


def consolidated(rows: list[Row]) -> list[Row]:
    """Sum the weights of equal rows, and drop those of weight zero."""
    if len(rows) == 1 and rows[0][-1]:
        return rows
    weights: dict[Row, int] = {}
    for row in rows:
        key = row[:-1]
        weights[key] = weights.get(key, 0) + row[-1]
    return [(*key, weight) for key, weight in weights.items() if weight]


def arranged(step: Step, columns: tuple[str, ...]) -> Step:
    """The same rows with exactly these columns."""
    if step.columns == columns:
        return step
    places = [step.place(column) for column in columns]
    types = tuple(step.types[place] for place in places)
    pick, run = picking(places, len(step.columns)), step.run
    return Step(columns, types, lambda r, v: pick(run(r, v)))


def picking(places: Sequence[int], width: int) -> Callable[[list[Row]], list[Row]]:
    """Columns at these positions, and the weight."""
    if not places:
        return lambda rows: [(r[-1],) for r in rows]
    pick = itemgetter(*places, width)
    return lambda rows: list(map(pick, rows))


def key_of(places: Sequence[int]) -> Callable[[Row], Any]:
    return itemgetter(*places)


def check_alike(one: str, other: str) -> None:
    """Raise `NotSupported` unless equal values of two types have the same form."""
    if one != other and not (one in INTEGER_BITS and other in INTEGER_BITS):
        raise NotSupported("columns that differ in type are compared by columns")
