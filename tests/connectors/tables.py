"""Declared tables for tests, and a table that is changed one operation at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa

from stepwell.lsm.change import Change
from stepwell.sql.statements import Table, parse_statements
from stepwell.text import Source

ORDERS = """CREATE TABLE orders (
    id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2), at TIMESTAMP)"""
NOTES = "CREATE TABLE notes (word STRING, n INT)"


def table(sql: str) -> Table:
    (declared,) = parse_statements(Source("test.sql", sql))
    assert isinstance(declared, Table)
    return declared


def rows(given: pa.Table | None) -> list[tuple[object, ...]]:
    """The rows of an Arrow table, in order."""
    return [] if given is None else [tuple(row.values()) for row in given.to_pylist()]


class Keyed:
    """A table with a key, as `Change` defines it, and the deletes that found nothing."""

    def __init__(self, key: Sequence[int], start: Iterable[tuple[object, ...]] = ()) -> None:
        self.key = key
        self.rows = {self.key_of(row): row for row in start}
        self.rejected: Counter[tuple[object, ...]] = Counter()

    def key_of(self, row: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(row[i] for i in self.key)

    def operate(self, put: bool, row: tuple[object, ...]) -> None:
        if put:
            self.rows[self.key_of(row)] = row
        else:
            self._delete(self.key_of(row))

    def apply(self, change: Change) -> None:
        for key in rows(change.discard):
            self.rows.pop(key, None)
        for key in rows(change.delete):
            self._delete(key)
        for row in rows(change.put):
            self.rows[self.key_of(row)] = row

    def _delete(self, key: tuple[object, ...]) -> None:
        if self.rows.pop(key, None) is None:
            self.rejected[key] += 1


class Bag:
    """A table without a key, and the deletes that found nothing."""

    def __init__(self, start: Iterable[tuple[object, ...]] = ()) -> None:
        self.rows = Counter(start)
        self.rejected: Counter[tuple[object, ...]] = Counter()

    def operate(self, put: bool, row: tuple[object, ...]) -> None:
        if put:
            self.rows[row] += 1
        elif self.rows[row]:
            self.rows[row] -= 1
        else:
            self.rejected[row] += 1

    def apply(self, change: Change) -> None:
        for row in rows(change.delete):
            self.operate(False, row)
        for row in rows(change.put):
            self.operate(True, row)
