"""Draws cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tests.random_views.case import Case, Contents, Row, Rows, Table, View
from tests.random_views.drawn import Drawn
from tests.random_views.kinds import BOOLEAN, COLUMNS, DOUBLE, IDS, INT, VALUES, Column
from tests.random_views.queries import Queries
from tests.random_views.sources import Relation

VIEWS = 10


def case_of(seed: int, views: int = VIEWS) -> Case:
    """The case of a seed."""
    return Cases(Random(seed)).case(seed, views)


class Cases(Drawn):
    """Tables, their views, and batches of changes."""

    def case(self, seed: int, views: int) -> Case:
        tables = tuple(self.table(f"t{i + 1}") for i in range(2 + self.below(2)))
        made = self.views(tables, views)
        contents = {table.name: Contents(table) for table in tables}
        batches = []
        for number in range(2 + self.weighted({0: 85, 1: 15})):
            # Without changes there would be nothing to follow.
            while not (batch := self.batch(tables, contents, first=number == 0)):
                pass
            batches.append(batch)
            for name, rows in batch.items():
                contents[name].apply(rows)
        return Case(seed, tables, made, tuple(batches), self.chance(60))

    def batch(
        self, tables: Sequence[Table], contents: Mapping[str, Contents], first: bool
    ) -> dict[str, Rows]:
        # Where everything changes at once, one change covers up for another that was missed.
        lone = None if first or not self.chance(45) else self.pick(tables)
        drawn = {
            table.name: self.rows(table, contents[table.name], first)
            for table in tables
            if lone in (None, table)
        }
        return {name: rows for name, rows in drawn.items() if rows.put or rows.delete}

    def table(self, name: str) -> Table:
        names = self.some(list(COLUMNS), 2, 4)
        columns = {name: COLUMNS[name] for name in names}
        key: tuple[str, ...] = ()
        form = self.weighted({"none": 50, "id": 35, "two": 15})
        if form == "id":
            columns = {"id": INT, **columns}
            key = ("id",)
        elif form == "two":
            key = tuple(n for n in names if columns[n] not in (DOUBLE, BOOLEAN))[:2]
        not_null = frozenset(key) | {n for n in names if self.chance(10)}
        return Table(name, columns, key, not_null)

    def views(self, tables: Sequence[Table], count: int) -> tuple[View, ...]:
        relations = [
            Relation(t.name, tuple(Column(n, k, n) for n, k in t.columns.items()), 8)
            for t in tables
        ]
        # One for all: names that it makes up are different in all views.
        queries = Queries(self.random, relations)
        views: list[View] = []
        below: list[Relation] = []
        for number in range(count):
            # Those that may be stood on are listed often, so that diamonds appear.
            queries.relations = [*below, *below, *relations]
            # What is only defined is read again wherever it is named: towers of it take Spark
            # minutes. So it is small, and stands on tables.
            stored = bool(below) or number == count - 1 or self.chance(90)
            made = queries.view(self.weighted({1: 85, 2: 15}) if stored else 1)
            views.append(View(f"v{number + 1}", made.sql, made.columns, stored))
            if not stored or self.chance(20):
                below = [Relation(views[-1].name, made.columns, made.size), *below[:1]]
            elif self.chance(50):
                below = []
        return tuple(views)

    def rows(self, table: Table, content: Contents, first: bool) -> Rows:
        if first:
            return Rows((), self.several(table, 5, 10))
        if self.chance(15):
            return Rows((), ())
        here = content.rows
        if self.chance(6):
            gone = list(here)
        else:
            gone = self.some(here, 0, 2)
        put = list(self.several(table, 0, 3))
        if here and self.chance(25):
            # The same row again: a duplicate, an update to the same, or a row that returns.
            put.append(self.pick(here))
        return Rows(tuple(gone), tuple(put))

    def several(self, table: Table, least: int, most: int) -> tuple[Row, ...]:
        count = least + self.below(most - least + 1)
        return tuple(
            tuple(self.value(table, name, kind) for name, kind in table.columns.items())
            for _ in range(count)
        )

    def value(self, table: Table, name: str, kind: str) -> Any:
        values = IDS if name == "id" else VALUES[kind]
        place = self.below(len(values) + (0 if name in table.not_null else 1))
        return values[place] if place < len(values) else None
