"""A case: tables, views, and what happens to the tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from tests.random_views.kinds import ARROW_TYPES, SQL_TYPES, Column

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    not_null: frozenset[str]

    @property
    def sql(self) -> str:
        lines = [
            f"{name} {SQL_TYPES[kind]}" + (" NOT NULL" if name in self.not_null else "")
            for name, kind in self.columns.items()
        ]
        if self.key:
            lines.append(f"PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TABLE {self.name} ({', '.join(lines)});"

    def arrow(self, rows: Sequence[Row], names: Sequence[str] | None = None) -> pa.Table:
        names = tuple(self.columns) if names is None else names
        types = [ARROW_TYPES[self.columns[name]] for name in names]
        arrays = [pa.array([row[i] for row in rows], type) for i, type in enumerate(types)]
        return pa.table(dict(zip(names, arrays, strict=True)))


@dataclass(frozen=True, slots=True)
class View:
    name: str
    query: str
    columns: tuple[Column, ...]
    stored: bool = True

    @property
    def sql(self) -> str:
        kind = "MATERIALIZED VIEW" if self.stored else "VIEW"
        return f"CREATE {kind} {self.name} AS {self.query};"


@dataclass(frozen=True, slots=True)
class Rows:
    """What happens to one table: first the deletes (of whole rows), then the puts."""

    delete: tuple[Row, ...]
    put: tuple[Row, ...]


Batch = Mapping[str, Rows]


@dataclass(frozen=True, slots=True, repr=False)
class Case:
    seed: int
    tables: tuple[Table, ...]
    views: tuple[View, ...]
    batches: tuple[Batch, ...]
    loaded: bool
    """Whether the rows of the first batch are there before the views are."""

    @property
    def sql(self) -> str:
        return "\n".join(item.sql for item in (*self.tables, *self.views))

    @property
    def stored(self) -> list[View]:
        return [view for view in self.views if view.stored]

    @property
    def before(self) -> Batch:
        """What is there when the views are declared."""
        return self.batches[0] if self.loaded else {}

    @property
    def steps(self) -> tuple[Batch, ...]:
        """What happens afterwards."""
        return self.batches[1:] if self.loaded else self.batches

    def cut_otherwise(self) -> list[Batch]:
        """The same changes in other transactions: all at once, table by table, or in halves."""
        if len(self.steps) == 1 or self.seed % 4 == 1:
            alone = [{name: rows} for batch in self.steps for name, rows in batch.items()]
            return alone if len(alone) > 1 else [half for batch in alone for half in halves(batch)]
        first, last = self.contents([self.before]), self.contents([self.before, *self.steps])
        return [{name: last[name].since(first[name]) for name in last}]

    def contents(self, batches: Iterable[Batch]) -> dict[str, Contents]:
        """The tables after some batches."""
        contents = {table.name: Contents(table) for table in self.tables}
        for batch in batches:
            for name, rows in batch.items():
                contents[name].apply(rows)
        return contents

    def changes(self, batch: Batch, change: Callable[..., T]) -> dict[str, T]:
        """A batch as the engine takes it; `change` makes one of `put` and `delete`."""
        made = {}
        for table in self.tables:
            rows = batch.get(table.name)
            if rows is None:
                continue
            places = [list(table.columns).index(name) for name in table.key or table.columns]
            gone = [tuple(row[i] for i in places) for row in rows.delete]
            made[table.name] = change(
                put=table.arrow(rows.put) if rows.put else None,
                delete=table.arrow(gone, table.key or None) if gone else None,
            )
        return made

    def only(self, name: str) -> Case:
        """The same with one view, and those it stands on."""
        needed = {name}
        for view in reversed(self.views):
            if view.name in needed:
                needed |= set(re.findall(r"\bv\d+\b", view.query))
        return replace(self, views=tuple(view for view in self.views if view.name in needed))

    def without(self, number: int, table: str, row: Row) -> Case:
        """The same without a row that a batch puts, and without its delete."""
        batches = list(self.batches)
        rows = batches[number][table]
        kept = tuple(other for other in rows.put if other is not row)
        batches[number] = {**batches[number], table: Rows(rows.delete, kept)}
        for later in range(number + 1, len(batches)):
            rows = batches[later].get(table)
            if rows is not None and any(other is row for other in rows.delete):
                kept = tuple(other for other in rows.delete if other is not row)
                batches[later] = {**batches[later], table: Rows(kept, rows.put)}
                break
        return replace(self, batches=tuple(batches))

    def __repr__(self) -> str:
        lines = [f"-- seed {self.seed}", self.sql]
        if self.loaded:
            lines.append("-- batch 1 is there before the views are")
        for number, batch in enumerate(self.batches, start=1):
            for name, rows in batch.items():
                lines += [f"-- batch {number}: delete {name} {row}" for row in rows.delete]
                lines += [f"-- batch {number}: put {name} {row}" for row in rows.put]
        return "\n" + "\n".join(lines)


def halves(batch: Batch) -> list[Batch]:
    """The first and the second half of what happens to one table."""
    ((name, rows),) = batch.items()
    first = (len(rows.delete) + len(rows.put)) // 2
    early, late = rows.delete[:first], rows.delete[first:]
    puts = first - len(early)
    return [{name: Rows(early, rows.put[:puts])}, {name: Rows(late, rows.put[puts:])}]


class Contents:
    """The rows of a table while batches are made."""

    def __init__(self, table: Table) -> None:
        self.rows: list[Row] = []
        self._key = [list(table.columns).index(name) for name in table.key]

    def apply(self, rows: Rows) -> None:
        for row in rows.delete:
            # Not by equality: a row that holds NaN is not equal to itself, but it is identical.
            place = next(i for i, other in enumerate(self.rows) if other is row)
            del self.rows[place]
        for row in rows.put:
            if self._key:
                key = self.key_of(row)
                self.rows = [other for other in self.rows if self.key_of(other) != key]
            self.rows.append(row)

    def key_of(self, row: Row) -> Row:
        return tuple(row[i] for i in self._key)

    def since(self, before: Contents) -> Rows:
        """The change that leads here from what was there before."""
        had, have = Counter(map(repr, before.rows)), Counter(map(repr, self.rows))
        come, gone = have - had, had - have
        if self._key:
            kept = {self.key_of(row) for row in self.rows}
            gone = Counter(repr(row) for row in before.rows if self.key_of(row) not in kept)
        return Rows(taken(before.rows, gone), taken(self.rows, come))


def taken(rows: Iterable[Row], wanted: Counter[str]) -> tuple[Row, ...]:
    """Rows by their text, which is the same for NaN and NaN, each as often as it is wanted."""
    left = Counter(wanted)
    found = []
    for row in rows:
        if left[repr(row)] > 0:
            left[repr(row)] -= 1
            found.append(row)
    return tuple(found)
