"""ORDER BY on rows of Python values: NULL first or last as requested, NaN after every number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlglot import exp

from stepwell.execution.reference.scalar import Code, Row, code
from stepwell.execution.reference.spark_values import order, unknown
from stepwell.plan.expressions import SortKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Key:
    value: Code
    descending: bool
    nulls_first: bool

    def place(self, row: Row) -> Any:
        """Sort key of the row in ascending order, which is reversed if the key is descending."""
        value = self.value(row)
        last = (value is None) == (self.nulls_first == self.descending)
        return last, order(value)


@dataclass(frozen=True, slots=True)
class Order:
    keys: tuple[_Key, ...]

    def arrange(self, items: Iterable[T], row_of: Callable[[T], Row]) -> list[T]:
        """The items in order. The sort is stable."""
        arranged = list(items)
        for key in reversed(self.keys):
            arranged.sort(key=lambda item: key.place(row_of(item)), reverse=key.descending)
        return arranged

    def place(self, row: Row) -> tuple[Any, ...]:
        """A sort key, equal for rows that the order does not distinguish."""
        return tuple(key.place(row) for key in self.keys)


def ordering(keys: Iterable[SortKey]) -> Order:
    return order_of(key.tree for key in keys)


def order_of(items: Iterable[exp.Expr]) -> Order:
    return Order(tuple(map(_key, items)))


def _key(item: exp.Expr) -> _Key:
    # sqlglot fills in Spark's default: NULL is smallest, so it comes first unless DESC.
    if not isinstance(item, exp.Ordered) or item.args.get("with_fill"):
        raise unknown(f"the order {item.sql('spark')}")
    return _Key(code(item.this), bool(item.args.get("desc")), bool(item.args.get("nulls_first")))
