"""ORDER BY on rows of Python values: NULL goes where it is told to, NaN after every number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from stepwell.errors import InvalidError
from stepwell.query.scalar import Code, Row, code
from stepwell.query.spark_values import order, unknown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SortKey:
    value: Code
    descending: bool
    nulls_first: bool

    def place(self, row: Row) -> Any:
        """Where the row goes in ascending order, which is reversed if the key is descending."""
        value = self.value(row)
        last = (value is None) == (self.nulls_first == self.descending)
        return last, order(value)


@dataclass(frozen=True, slots=True)
class Order:
    keys: tuple[SortKey, ...]

    def arrange(self, items: Iterable[T], row_of: Callable[[T], Row]) -> list[T]:
        """The items in order; those with equal keys stay as they were."""
        arranged = list(items)
        for key in reversed(self.keys):
            arranged.sort(key=lambda item: key.place(row_of(item)), reverse=key.descending)
        return arranged

    def place(self, row: Row) -> tuple[Any, ...]:
        """Equal for rows that the order does not tell apart."""
        return tuple(key.place(row) for key in self.keys)


@lru_cache(maxsize=4096)
def ordering(items: tuple[str, ...]) -> Order:
    """The order that texts like `_c1 DESC NULLS LAST` ask for."""
    try:
        parsed = [parse_one(item, into=exp.Ordered, dialect="spark") for item in items]
    except SqlglotError as error:
        raise InvalidError(f"{items} is no order in Spark SQL: {error}") from error
    return order_of(parsed)


def order_of(items: Iterable[exp.Expr]) -> Order:
    return Order(tuple(map(_key, items)))


def _key(item: exp.Expr) -> SortKey:
    # sqlglot fills in Spark's default: NULL is smallest, so it comes first unless DESC.
    if not isinstance(item, exp.Ordered) or item.args.get("with_fill"):
        raise unknown(f"the order {item.sql('spark')}")
    return SortKey(code(item.this), bool(item.args.get("desc")), bool(item.args.get("nulls_first")))
