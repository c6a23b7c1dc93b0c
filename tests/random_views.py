"""Random tables, views and changes, for comparing what an engine keeps with what Spark computes.

`cases()` is a hypothesis strategy. A case has two or three small tables, one to three views out of
all the operators Stepwell keeps incrementally, and up to four batches of changes. Values come from
small domains, so that keys collide, groups vanish and matches come and go.

Every view has exactly one right answer, and none fails halfway:

- An order that decides about rows (LIMIT, ROW_NUMBER, frames of ROWS) is one over all columns that
  are selected, so rows that tie are equal.
- Stored floating point numbers are multiples of 1/4, whose sums are exact in any order. A column
  whose value does depend on the order of addition has the kind NOISY: it may be selected, but
  nothing is ever decided by it.
- Nothing overflows, divides by zero, or casts what cannot be cast. A scalar subquery is an
  aggregate, so it has one row.

Choices are written so that the first alternative is the simplest, which hypothesis shrinks to.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa
from hypothesis import strategies as st

T = TypeVar("T")
DrawInteger = Callable[[int, int], int]
Row = tuple[Any, ...]

INT, BIGINT, DECIMAL, STRING = "int", "bigint", "decimal", "string"
DOUBLE, DATE, BOOLEAN = "double", "date", "boolean"
# Depends on nothing but the rows, but has a fraction that is not exact: sums of it are NOISY.
REAL = "real"
NOISY = "noisy"
ARRAY = "array"

SQL_TYPES = {
    INT: "INT",
    BIGINT: "BIGINT",
    DECIMAL: "DECIMAL(8,2)",
    STRING: "STRING",
    DOUBLE: "DOUBLE",
    DATE: "DATE",
    BOOLEAN: "BOOLEAN",
}
ARROW_TYPES = {
    INT: pa.int32(),
    BIGINT: pa.int64(),
    DECIMAL: pa.decimal128(8, 2),
    STRING: pa.string(),
    DOUBLE: pa.float64(),
    DATE: pa.date32(),
    BOOLEAN: pa.bool_(),
}
VALUES: dict[str, list[Any]] = {
    INT: [0, 1, 2, -1],
    BIGINT: [0, 1, 2, 5_000_000_000],
    DECIMAL: [Decimal("0.00"), Decimal("1.50"), Decimal("2.25"), Decimal("-1.50")],
    STRING: ["a", "b", "A", "", "a "],
    DOUBLE: [0.0, 0.5, -1.25, 2.0, -0.0, float("nan"), float("inf"), float("-inf")],
    DATE: [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), datetime.date(2024, 2, 29)],
    BOOLEAN: [True, False],
}
# More of them than rows in a batch, so that a keyed table is not always replaced as a whole.
IDS = [1, 2, 3, 0, 4, 5, 6, 7, 8, -1]
LITERALS = {
    INT: ["1", "0", "2", "-1"],
    BIGINT: ["1L", "2L", "0L"],
    DECIMAL: ["1.50", "0.25"],
    STRING: ["'a'", "'b'", "''"],
    DOUBLE: ["0.5D", "-1.25D", "double('NaN')"],
    DATE: ["DATE'2024-01-01'", "DATE'2024-01-02'"],
    BOOLEAN: ["true", "false"],
}
# The same name has the same type everywhere, so that USING and NATURAL find something to join.
COLUMNS = {
    "i": INT,
    "s": STRING,
    "j": INT,
    "m": DECIMAL,
    "d": DOUBLE,
    "n": BIGINT,
    "t": DATE,
    "f": BOOLEAN,
    "u": STRING,
}
NUMBERS = (INT, BIGINT, DECIMAL)
# What a join, a group or an order may be decided by.
KEYS = (INT, STRING, BIGINT, DECIMAL, DATE, DOUBLE, REAL, BOOLEAN)
EXACT = (*KEYS, ARRAY)
BASE = tuple(SQL_TYPES)


@dataclass(frozen=True, slots=True)
class Column:
    sql: str
    """How to refer to it."""
    kind: str
    name: str = ""


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
    tables: tuple[Table, ...]
    views: tuple[View, ...]
    batches: tuple[Batch, ...]
    loaded: bool
    """Whether the rows of the first batch are there before the views are."""
    again: str
    """How else to hand over the same changes: not at all, all at `once`, or by `table`."""

    @property
    def sql(self) -> str:
        return "\n".join(item.sql for item in (*self.tables, *self.views))

    @property
    def stored(self) -> list[str]:
        return [view.name for view in self.views if view.stored]

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

    def at_the_end(self) -> Batch:
        """The rows that are left, as one batch that puts them into empty tables."""
        contents = {table.name: Contents(table) for table in self.tables}
        for batch in self.batches:
            for name, rows in batch.items():
                contents[name].apply(rows)
        return {name: Rows((), tuple(content.rows)) for name, content in contents.items()}

    def __repr__(self) -> str:
        lines = [self.sql]
        if self.loaded:
            lines.append("-- batch 1 is there before the views are")
        for number, batch in enumerate(self.batches, start=1):
            for name, rows in batch.items():
                lines += [f"-- batch {number}: delete {name} {row}" for row in rows.delete]
                lines += [f"-- batch {number}: put {name} {row}" for row in rows.put]
        if self.again:
            lines.append(f"-- again: {self.again}")
        return "\n" + "\n".join(lines)


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


class Drawn:
    """Choices, all of them hypothesis's. The first option is the one it shrinks to."""

    def __init__(self, draw: DrawInteger) -> None:
        self._draw = draw

    def below(self, count: int) -> int:
        return self._draw(0, count - 1) if count > 1 else 0

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def weighted(self, options: Mapping[T, int]) -> T:
        place = self.below(sum(options.values()))
        for option, weight in options.items():
            place -= weight
            if place < 0:
                return option
        raise AssertionError(options)

    def some(self, options: Sequence[T], least: int, most: int) -> list[T]:
        """Some of the options, each at most once, in a random order."""
        left = list(options)
        most = min(most, len(left))
        count = least + self.below(most - least + 1) if most > least else most
        return [left.pop(self.below(len(left))) for _ in range(count)]


class Expressions(Drawn):
    """Scalar expressions over columns in scope."""

    def of_kind(self, kind: str, scope: Sequence[Column], depth: int = 1) -> str:
        columns = [column for column in scope if column.kind == kind]
        if columns and (depth <= 0 or self.chance(60)):
            return self.pick(columns).sql
        if kind not in LITERALS:
            assert columns, kind
            return self.pick(columns).sql
        if depth <= 0:
            return self.pick(LITERALS[kind])
        return self.compound(kind, scope, depth - 1)

    def compound(self, kind: str, scope: Sequence[Column], depth: int) -> str:
        if kind == BOOLEAN:
            return self.condition(scope, depth)

        def a(other: str = kind) -> str:
            return self.of_kind(other, scope, depth)

        general: list[Callable[[], str]] = [
            lambda: f"coalesce({a()}, {self.pick(LITERALS[kind])})",
            lambda: f"CASE WHEN {self.condition(scope, depth)} THEN {a()} ELSE {a()} END",
            lambda: f"nullif({a()}, {self.pick(LITERALS[kind])})",
            lambda: f"greatest({a()}, {a()})",
        ]
        own: dict[str, list[tuple[str, Callable[[], str]]]] = {
            INT: [
                (INT, lambda: f"({a()} + {a()})"),
                (INT, lambda: f"({a()} - {a()})"),
                (INT, lambda: f"{a()} % 3"),
                (INT, lambda: f"abs({a()})"),
                (STRING, lambda: f"length({a(STRING)})"),
                (DATE, lambda: f"day({a(DATE)})"),
                (BOOLEAN, lambda: f"CAST({a(BOOLEAN)} AS INT)"),
            ],
            BIGINT: [
                (BIGINT, lambda: f"({a()} + {a(INT)})"),
                (INT, lambda: f"CAST({a(INT)} AS BIGINT)"),
            ],
            DECIMAL: [
                (DECIMAL, lambda: f"({a()} + 1.25)"),
                (DECIMAL, lambda: f"{a()} * 2"),
                (DECIMAL, lambda: f"round({a()}, 1)"),
                (INT, lambda: f"CAST({a(INT)} AS DECIMAL(8,2))"),
            ],
            STRING: [
                (STRING, lambda: f"upper({a()})"),
                (STRING, lambda: f"concat({a()}, {a()})"),
                (STRING, lambda: f"substring({a()}, 1, 1)"),
                (INT, lambda: f"CAST({a(INT)} AS STRING)"),
                (DATE, lambda: f"CAST({a(DATE)} AS STRING)"),
            ],
            DOUBLE: [
                (DOUBLE, lambda: f"({a()} + 0.5D)"),
                (DOUBLE, lambda: f"{a()} * 2D"),
                (INT, lambda: f"{a(INT)} / 4"),
                (INT, lambda: f"CAST({a(INT)} AS DOUBLE)"),
            ],
            DATE: [
                (DATE, lambda: f"date_add({a()}, 1)"),
                (DATE, lambda: f"trunc({a()}, 'MM')"),
            ],
        }
        here = {column.kind for column in scope}
        found = [make for needed, make in own[kind] if needed in here]
        if kind in here:
            found = [*general, *found]
        return self.pick(found)() if found else self.pick(LITERALS[kind])

    def condition(self, scope: Sequence[Column], depth: int = 1) -> str:
        if depth > 0 and self.chance(30):
            one, other = self.condition(scope, depth - 1), self.condition(scope, depth - 1)
            return self.pick(
                [f"({one} OR {other})", f"({one} AND {other})", f"NOT ({one})", f"({one}) IS NULL"]
            )
        columns = [column for column in scope if column.kind in KEYS]
        if not columns:
            return self.pick([f"{column.sql} IS NULL" for column in scope] or ["1 = 1"])
        column = self.pick(columns)
        kind = column.kind
        if kind not in LITERALS or self.chance(10):
            return f"{column.sql} IS {self.pick(['NOT NULL', 'NOT NULL', 'NULL'])}"
        literals = LITERALS[kind]
        if kind == BOOLEAN:
            return self.pick([column.sql, f"NOT {column.sql}", f"{column.sql} IS NOT TRUE"])
        if self.chance(15):
            return f"{column.sql} {self.pick(['IN', 'NOT IN'])} ({', '.join(literals[:2])})"
        if kind == STRING and self.chance(20):
            return f"{column.sql} LIKE 'a%'"
        others = [other for other in scope if other is not column]
        other = self.of_kind(kind, others, depth) if self.chance(40) else self.pick(literals)
        return f"{column.sql} {self.comparison()} {other}"

    def comparison(self) -> str:
        return self.pick(["<>", ">=", "<", "=", "<>", ">=", ">", "<=>"])

    def kinds_of(self, scope: Sequence[Column], allowed: Sequence[str]) -> list[str]:
        return [kind for kind in allowed if any(column.kind == kind for column in scope)]


@dataclass(frozen=True, slots=True)
class Relation:
    """What can stand in FROM, before it has an alias there."""

    sql: str
    columns: tuple[Column, ...]
    size: int
    """About how many rows it can have, lest a few joins make millions."""


@dataclass(frozen=True, slots=True)
class From:
    sql: str
    scope: tuple[Column, ...]
    size: int


SIZE_MAX = 300
DEPTH = 2


class Queries(Expressions):
    """Queries over the relations known so far."""

    def __init__(self, draw: DrawInteger, relations: list[Relation]) -> None:
        super().__init__(draw)
        self.relations = relations
        self._named = 0
        self._budget = 0

    def view(self) -> Relation:
        """The query of a view, with the columns it gives."""
        self._budget = 6
        return self.query(DEPTH, exact=False)

    def name(self, prefix: str) -> str:
        self._named += 1
        return f"{prefix}{self._named}"

    # Queries

    def query(self, depth: int, exact: bool) -> Relation:
        shapes: dict[Callable[[int, bool], Relation], int] = {
            self.select: 26,
            self.aggregate: 36,
            self.windowed: 12,
            self.set_operation: 10,
            self.top: 6,
        }
        if depth > 0:
            shapes[self.with_cte] = 10
            shapes[self.pivoted] = 1
        return self.weighted(shapes)(depth, exact)

    def select(self, depth: int, exact: bool) -> Relation:
        source = self.from_(depth, exact)
        distinct = self.chance(15)
        items = self.items(source.scope, exact or distinct)
        if self.chance(15) and depth >= 0:
            items.append(self.subquery_item(source.scope, depth))
        where = self.where(source.scope, depth)
        word = "SELECT DISTINCT" if distinct else "SELECT"
        return self.made(f"{word} {listed(items)} FROM {source.sql}{where}", items, source.size)

    def items(self, scope: Sequence[Column], exact: bool) -> list[Column]:
        """One to four columns, plain ones or expressions, under names that are all different."""
        usable = [column for column in scope if column.kind != NOISY or not exact]
        items: list[Column] = []
        for column in self.some(usable, 1, 4):
            if column.kind in BASE and self.chance(30):
                kind = self.pick(self.kinds_of(scope, BASE))
                items.append(Column(self.of_kind(kind, scope, 2), kind, self.name("x")))
            else:
                items.append(self.kept(column, items))
        return items

    def kept(self, column: Column, among: Sequence[Column]) -> Column:
        """A column under its own name, unless that is taken."""
        taken = column.name in {item.name for item in among}
        return Column(column.sql, column.kind, self.name("x") if taken else column.name)

    def aggregate(self, depth: int, exact: bool) -> Relation:
        source = self.from_(depth, exact)
        where = self.where(source.scope, depth)
        candidates = [column for column in source.scope if column.kind in KEYS]
        keys = [self.group_key(column, source.scope) for column in self.some(candidates, 0, 2)]
        keys = [key for i, key in enumerate(keys) if key.sql not in {k.sql for k in keys[:i]}]
        keys = [Column(key.sql, key.kind, self.name("k")) for key in keys]
        aggregates = [self.call(source.scope, exact) for _ in range(1 + self.below(3))]
        items = [*keys, *aggregates]
        group = self.group_by(keys, items) if keys else ""
        having = ""
        if self.chance(20):
            test = self.call(source.scope, exact=True, only=(BIGINT, INT, DECIMAL, STRING))
            literal = self.pick(LITERALS[test.kind])
            having = f" HAVING {test.sql} {self.pick(['>=', '<>', '>=', '<'])} {literal}"
        if keys and not group.startswith(" GROUP BY ALL") and self.chance(6):
            order = self.call(source.scope, exact=True, only=(BIGINT, INT, DECIMAL))
            over = f"rank() OVER (PARTITION BY {keys[0].sql} ORDER BY {order.sql})"
            items.append(Column(over, INT, self.name("w")))
        size = 1 if not keys else source.size
        text = f"SELECT {listed(items)} FROM {source.sql}{where}{group}{having}"
        return self.made(text, items, size)

    def group_key(self, column: Column, scope: Sequence[Column]) -> Column:
        if column.kind in BASE and self.chance(25):
            # Without a column in it, Spark would take it for the position of one.
            text = self.of_kind(column.kind, scope, 1)
            if any(other.sql in text for other in scope):
                return Column(text, column.kind)
        return column

    def group_by(self, keys: Sequence[Column], items: list[Column]) -> str:
        plain = ", ".join(key.sql for key in keys)
        form = self.weighted(
            {"plain": 70, "names": 6, "numbers": 4, "ALL": 4, "ROLLUP": 6, "CUBE": 4, "SETS": 6}
        )
        if form == "names":
            return f" GROUP BY {', '.join(key.name for key in keys)}"
        if form == "numbers":
            return f" GROUP BY {', '.join(str(i + 1) for i in range(len(keys)))}"
        if form == "ALL":
            return " GROUP BY ALL"
        if form == "plain":
            return f" GROUP BY {plain}"
        if self.chance(60):
            items.append(Column("grouping_id()", BIGINT, self.name("g")))
        if form == "SETS":
            return f" GROUP BY {plain} GROUPING SETS (({plain}), ({keys[0].sql}), ())"
        return f" GROUP BY {form} ({plain})"

    def call(
        self, scope: Sequence[Column], exact: bool, only: Sequence[str] | None = None
    ) -> Column:
        """One aggregate, or an expression over two."""
        options = self.calls(scope, exact)
        if only is not None:
            options = [(text, kind) for text, kind in options if kind in only]
        text, kind = self.pick(options)
        if not text.startswith(("sort_array", "size", "array_join")) and self.chance(12):
            text += f" FILTER (WHERE {self.condition(scope, 0)})"
        if kind == BIGINT and self.chance(12):
            text = f"({text} + count(*))"
        elif kind in (STRING, DECIMAL, BIGINT) and self.chance(6):
            text = f"CASE WHEN count(*) > 1 THEN {text} END"
        return Column(text, kind, self.name("a"))

    def calls(self, scope: Sequence[Column], exact: bool) -> list[tuple[str, str]]:
        """The aggregates over one column, and what kind they are."""
        columns = [column for column in scope if column.kind in KEYS]
        if not columns:
            return [("count(*)", BIGINT)]
        column = self.pick(columns)
        kind = column.kind
        x = column.sql
        if kind in BASE and self.chance(25):
            x = self.of_kind(kind, scope, 1)
        found = [("count(*)", BIGINT), (f"count({x})", BIGINT)]
        if kind in NUMBERS:
            total = DECIMAL if kind == DECIMAL else BIGINT
            found += [(f"sum({x})", total)] * 3 + [(f"sum(DISTINCT {x})", total)]
            found += [(f"avg({x})", DECIMAL if kind == DECIMAL else REAL)] * 2
            found += [(f"median({x})", REAL)]
        if kind == DOUBLE:
            found += [(f"sum({x})", DOUBLE)] * 2 + [(f"avg({x})", REAL)]
        if kind in (INT, BIGINT):
            found += [(f"bit_xor({x})", kind), (f"bit_or({x})", kind)]
        if kind in (INT, DOUBLE, REAL) and not exact:
            found += [
                (f"stddev({x})", NOISY),
                (f"var_pop({x})", NOISY),
                (f"sum({x} * 0.1D)", NOISY),
            ]
        found += [(f"min({x})", kind), (f"max({x})", kind)] * 2
        found += [(f"count(DISTINCT {x})", BIGINT)]
        other = self.pick(columns)
        if kind not in (DOUBLE, REAL) and other.kind not in (DOUBLE, REAL):
            found += [
                (f"max_by({x}, struct({other.sql}, {x}))", kind),
                (f"count(DISTINCT {x}, {other.sql})", BIGINT),
                (f"approx_count_distinct({x})", BIGINT),
            ]
        if kind == BOOLEAN:
            found += [(f"bool_and({x})", kind), (f"bool_or({x})", kind), (f"count_if({x})", BIGINT)]
        if kind in (INT, STRING):
            found += [(f"sort_array(collect_list({x}))", ARRAY)]
            found += [(f"size(collect_set({x}))", INT)]
        if kind == STRING:
            # Not listagg: beside a distinct aggregate with FILTER it makes Spark itself fail.
            found += [(f"array_join(sort_array(collect_list({x})), ',')", STRING)]
        return found

    def windowed(self, depth: int, exact: bool) -> Relation:
        source = self.from_(depth, exact=True)
        where = self.where(source.scope, depth)
        columns = self.some([c for c in source.scope if c.kind in KEYS], 1, 4)
        if not columns:
            return self.select(depth, exact)
        items: list[Column] = []
        for column in columns:
            items.append(self.kept(column, items))
        qualify = ""
        if self.chance(25):
            over = self.over(columns, total=True)
            qualify = f" QUALIFY row_number() {over} <= {1 + self.below(2)}"
        else:
            items += [self.window_call(columns) for _ in range(1 + self.below(2))]
        text = f"SELECT {listed(items)} FROM {source.sql}{where}{qualify}"
        return self.made(text, items, source.size)

    def window_call(self, columns: Sequence[Column]) -> Column:
        name = self.name("w")
        column = self.pick(columns)
        kind, x = column.kind, column.sql
        total = DECIMAL if kind == DECIMAL else BIGINT
        options: list[tuple[str, str, bool]] = [
            ("rank()", INT, False),
            ("dense_rank()", INT, False),
            ("row_number()", INT, True),
            (f"lag({x})", kind, True),
            (f"lead({x}, 2)", kind, True),
            ("ntile(2)", INT, True),
            (f"first_value({x})", kind, True),
            ("cume_dist()", REAL, False),
            (f"count({x})", BIGINT, False),
            (f"max({x})", kind, False),
        ]
        if kind in NUMBERS:
            options += [(f"sum({x})", total, False)] * 3
        call, made, needs_total = self.pick(options)
        if call.startswith(("sum", "count", "max")):
            over = self.pick(
                [
                    lambda: self.over(columns, order=False),
                    lambda: self.over(columns, total=False),
                    lambda: self.over(
                        columns, total=True, frame="ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"
                    ),
                    lambda: self.range_over(columns),
                ]
            )()
        else:
            over = self.over(columns, total=needs_total)
        return Column(f"{call} {over}", made, name)

    def over(
        self, columns: Sequence[Column], total: bool = False, frame: str = "", order: bool = True
    ) -> str:
        parts = []
        if self.chance(92):
            parts.append(f"PARTITION BY {self.pick(columns).sql}")
        if order:
            first = self.pick(columns)
            direction = self.pick(["", " DESC", " NULLS LAST"])
            rest = [column.sql for column in columns if column is not first] if total else []
            parts.append(f"ORDER BY {', '.join([first.sql + direction, *rest])}")
        return f"OVER ({' '.join([*parts, frame]).strip()})"

    def range_over(self, columns: Sequence[Column]) -> str:
        numbers = [column for column in columns if column.kind in (INT, BIGINT)]
        if not numbers:
            return self.over(columns, order=False)
        by = f"PARTITION BY {self.pick(columns).sql} ORDER BY {self.pick(numbers).sql}"
        return f"OVER ({by} RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING)"

    def set_operation(self, depth: int, exact: bool) -> Relation:
        word = self.pick(
            ["UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL"]
        )
        left = self.from_(depth - 1, exact=True)
        kinds = self.kinds_of(left.scope, BASE)
        kinds = [self.pick(kinds) for _ in range(1 + self.below(2))] if kinds else [INT]
        one = self.branch(left, kinds, depth)
        other = self.branch(self.from_(depth - 1, exact=True), kinds, depth)
        return Relation(f"{one.sql} {word} {other.sql}", one.columns, one.size + other.size)

    def branch(self, source: From, kinds: Sequence[str], depth: int) -> Relation:
        items = [Column(self.of_kind(k, source.scope, 1), k, self.name("x")) for k in kinds]
        where = self.where(source.scope, depth - 1)
        return self.made(f"SELECT {listed(items)} FROM {source.sql}{where}", items, source.size)

    def top(self, depth: int, exact: bool) -> Relation:
        source = self.from_(depth, exact=True)
        where = self.where(source.scope, depth)
        items = self.items(source.scope, exact=True)
        order = [item.name + self.pick(["", " DESC", " NULLS LAST"]) for item in items]
        text = f"SELECT {listed(items)} FROM {source.sql}{where} ORDER BY {', '.join(order)}"
        count = 1 + self.below(4)
        text += f" LIMIT {count}" + (f" OFFSET {1 + self.below(2)}" if self.chance(25) else "")
        return self.made(text, items, count)

    def with_cte(self, depth: int, exact: bool) -> Relation:
        known = self.relations
        parts = []
        for _ in range(1 + self.below(2)):
            inner = self.query(depth - 1, exact)
            name = self.name("cte")
            parts.append(f"{name} AS ({inner.sql})")
            # Listed twice, because what is declared is there to be used.
            self.relations = [Relation(name, inner.columns, inner.size)] * 2 + self.relations
        shape = self.pick([self.select, self.aggregate, self.windowed, self.set_operation])
        outer = shape(0, exact)
        self.relations = known
        return Relation(f"WITH {', '.join(parts)} {outer.sql}", outer.columns, outer.size)

    def pivoted(self, depth: int, exact: bool) -> Relation:
        source = self.relation(depth - 1, exact=True)
        key, by, what = (self.pick(source.columns) for _ in range(3))
        if by.kind != STRING or what.kind not in NUMBERS or key.kind not in KEYS:
            return self.select(depth, exact)
        names = [self.name("p") for _ in range(3)]
        inner = f"SELECT {key.sql} AS {names[0]}, {by.sql} AS k, {what.sql} AS v FROM {source.sql}"
        values = f"'a' AS {names[1]}, 'b' AS {names[2]}"
        text = f"SELECT * FROM ({inner}) PIVOT (max(v) FOR k IN ({values}))"
        columns = [Column("", key.kind, names[0])]
        columns += [Column("", what.kind, name) for name in names[1:]]
        return self.made(text, columns, source.size)

    def made(self, sql: str, items: Sequence[Column], size: int) -> Relation:
        return Relation(sql, tuple(Column(i.name, i.kind, i.name) for i in items), size)

    # FROM

    def relation(self, depth: int, exact: bool) -> Relation:
        """A table or view by its name, or a query in parentheses."""
        self._budget -= 1
        if depth > 0 and self._budget > 0 and self.chance(45):
            inner = self.query(depth - 1, exact)
            return Relation(f"({inner.sql})", inner.columns, inner.size)
        usable = [
            relation
            for relation in self.relations
            if not exact or all(column.kind != NOISY for column in relation.columns)
        ]
        return self.pick(usable)

    def aliased(self, relation: Relation) -> From:
        alias = self.name("r")
        scope = tuple(Column(f"{alias}.{c.name}", c.kind, c.name) for c in relation.columns)
        return From(f"{relation.sql} {alias}", scope, relation.size)

    def from_(self, depth: int, exact: bool) -> From:
        """One to three relations joined, and maybe a generator on top."""
        count = self.weighted({1: 45, 2: 45, 3: 10}) if self._budget > 0 else 1
        source = self.aliased(self.relation(depth, exact))
        for number in range(1, count):
            other = self.aliased(self.relation(depth, exact))
            source = self.joined(source, other, simple=count == 2 and number == 1)
        if self.chance(7):
            source = self.exploded(source)
        return source

    def joined(self, left: From, right: From, simple: bool) -> From:
        size = left.size * right.size
        word = self.weighted(
            {"JOIN": 34, "LEFT JOIN": 18, "RIGHT JOIN": 8, "FULL JOIN": 10}
            | {"LEFT SEMI JOIN": 7, "LEFT ANTI JOIN": 7, ",": 4, "CROSS JOIN": 4}
        )
        if word in (",", "CROSS JOIN"):
            if size <= SIZE_MAX and "LATERAL" not in left.sql:
                gap = "" if word == "," else " "
                return From(f"{left.sql}{gap}{word} {right.sql}", left.scope + right.scope, size)
            word = "JOIN"
        common = [c.name for c in left.scope if c.name in {other.name for other in right.scope}]
        if simple and common and self.chance(20):
            return self.joined_by_name(left, right, word, common)
        condition = self.join_condition(left, right)
        if condition is None:
            return left
        half = word in ("LEFT SEMI JOIN", "LEFT ANTI JOIN")
        scope = left.scope if half else left.scope + right.scope
        size = left.size if half else max(left.size + right.size, size // 2)
        return From(f"{left.sql} {word} {right.sql} ON {condition}", scope, size)

    def joined_by_name(self, left: From, right: From, word: str, common: list[str]) -> From:
        """USING and NATURAL: the columns in common are there once, without an alias."""
        exact = all(c.kind in KEYS for c in left.scope + right.scope if c.name in common)
        if not exact or left.size * right.size > SIZE_MAX * 4:
            return left
        if self.chance(25) and "SEMI" not in word and "ANTI" not in word:
            sql = f"{left.sql} NATURAL {word} {right.sql}"
        else:
            common = self.some(common, 1, 2)
            sql = f"{left.sql} {word} {right.sql} USING ({', '.join(common)})"
        once = tuple(Column(c.name, c.kind, c.name) for c in left.scope if c.name in common)
        rest = tuple(c for c in left.scope if c.name not in common)
        if "SEMI" in word or "ANTI" in word:
            return From(sql, left.scope, left.size)
        rest += tuple(c for c in right.scope if c.name not in common)
        # A name that is left over on both sides would now be ambiguous without its alias.
        return From(sql, once + rest, left.size * right.size // 2 + 1)

    def join_condition(self, left: From, right: From) -> str | None:
        pairs = [
            (a, b)
            for a in left.scope
            for b in right.scope
            if a.kind in KEYS and (a.kind == b.kind or (a.kind in NUMBERS and b.kind in NUMBERS))
        ]
        if not pairs:
            return None
        # Columns of one name hold the same values, so they match most.
        pairs.sort(key=lambda pair: (pair[0].name != pair[1].name, pair[0].kind != pair[1].kind))
        one, other = pairs[0] if self.chance(50) else self.pick(pairs)
        equal = f"{one.sql} {'<=>' if self.chance(10) else '='} {other.sql}"
        form = self.weighted({"equal": 60, "two": 12, "also": 18, "theta": 10})
        if form == "two":
            one, other = self.pick(pairs)
            return f"{equal} AND {one.sql} = {other.sql}"
        if form == "also":
            return f"{equal} AND {self.condition(left.scope + right.scope, 0)}"
        if form == "theta" and left.size * right.size <= SIZE_MAX:
            return f"{one.sql} {self.pick(['<', '>=', '<>'])} {other.sql}"
        return equal

    def exploded(self, source: From) -> From:
        made, alias = self.name("e"), self.name("g")
        kind = self.pick([INT, STRING])
        options = [f"array({self.of_kind(kind, source.scope)}, {self.of_kind(kind, source.scope)})"]
        if kind == STRING:
            options.append(f"split({self.of_kind(STRING, source.scope)}, 'b')")
        else:
            options.append(f"sequence(0, {self.of_kind(INT, source.scope)} % 3)")
        array = self.pick(options)
        if self.chance(40):
            array = f"CASE WHEN {self.condition(source.scope, 0)} THEN {array} END"
        outer = "OUTER " if self.chance(50) else ""
        sql = f"{source.sql} LATERAL VIEW {outer}explode({array}) {alias} AS {made}"
        return From(sql, (*source.scope, Column(f"{alias}.{made}", kind, made)), source.size * 2)

    # WHERE and subqueries

    def where(self, scope: Sequence[Column], depth: int) -> str:
        # Filters on filters leave nothing.
        if not self.chance(45 if depth == DEPTH else 25):
            return ""
        parts = [self.condition(scope, 1)] if self.chance(60) else []
        if self._budget > 0 and self.chance(40):
            parts.append(self.subquery_test(scope, depth))
        if not parts:
            return ""
        return f" WHERE {' OR '.join(parts) if self.chance(10) else ' AND '.join(parts)}"

    def subquery_test(self, scope: Sequence[Column], depth: int) -> str:
        inner = self.aliased(self.relation(depth - 1, exact=True))
        form = self.pick(["EXISTS", "NOT EXISTS", "IN", "NOT IN", "scalar"])
        where = self.correlation(scope, inner)
        if form in ("EXISTS", "NOT EXISTS"):
            what = "count(*)" if self.chance(4) else self.pick(["1", "*"])
            return f"{form} (SELECT {what} FROM {inner.sql}{where})"
        kinds = [k for k in self.kinds_of(inner.scope, BASE) if k != BOOLEAN]
        if not kinds:
            return f"EXISTS (SELECT 1 FROM {inner.sql}{where})"
        kind = self.pick(kinds)
        outer = self.of_kind(kind, scope, 1)
        column = self.pick([c for c in inner.scope if c.kind == kind])
        if form in ("IN", "NOT IN"):
            return f"{outer} {form} (SELECT {column.sql} FROM {inner.sql}{where})"
        test = self.pick(["<= (SELECT max", ">= (SELECT min", "<> (SELECT max", "= (SELECT min"])
        return f"{outer} {test}({column.sql}) FROM {inner.sql}{where})"

    def correlation(self, scope: Sequence[Column], inner: From) -> str:
        pairs = [(a, b) for a in scope for b in inner.scope if a.kind == b.kind and a.kind in KEYS]
        if not pairs or not self.chance(80):
            return f" WHERE {self.condition(inner.scope, 0)}" if self.chance(30) else ""
        outer, own = self.pick(pairs)
        text = f" WHERE {own.sql} {'=' if self.chance(85) else '<'} {outer.sql}"
        if self.chance(25):
            text += f" AND {self.condition(inner.scope, 0)}"
        return text

    def subquery_item(self, scope: Sequence[Column], depth: int) -> Column:
        name = self.name("q")
        form = self.weighted({"scalar": 70, "IN": 15, "EXISTS": 15})
        inner = self.aliased(self.relation(depth - 1, exact=True))
        where = self.correlation(scope, inner)
        if form == "EXISTS":
            return Column(f"EXISTS (SELECT 1 FROM {inner.sql}{where})", BOOLEAN, name)
        numbers = [c for c in inner.scope if c.kind in (INT, STRING)]
        if form == "IN" and numbers:
            column = self.pick(numbers)
            outer = self.of_kind(column.kind, scope, 0)
            return Column(
                f"{outer} IN (SELECT {column.sql} FROM {inner.sql}{where})", BOOLEAN, name
            )
        call = self.call(inner.scope, exact=True, only=(BIGINT, INT, DECIMAL, STRING))
        return Column(f"(SELECT {call.sql} FROM {inner.sql}{where})", call.kind, name)


def listed(items: Sequence[Column]) -> str:
    return ", ".join(
        item.sql
        if item.sql == item.name or item.sql.endswith(f".{item.name}")
        else f"{item.sql} AS {item.name}"
        for item in items
    )


class Cases(Drawn):
    """Tables, their views, and batches of changes."""

    def case(self) -> Case:
        tables = tuple(self.table(f"t{i + 1}") for i in range(2 + self.below(2)))
        views = self.views(tables)
        contents = {table.name: Contents(table) for table in tables}
        batches = []
        for number in range(2 + self.weighted({0: 65, 1: 25, 2: 10})):
            batch = {}
            # Where everything changes at once, one change covers up for another that was missed.
            lone = self.pick(tables) if number and self.chance(55) else None
            for table in tables:
                if lone not in (None, table):
                    continue
                rows = self.rows(table, contents[table.name], first=number == 0)
                if rows.put or rows.delete:
                    batch[table.name] = rows
                    contents[table.name].apply(rows)
            batches.append(batch)
        again = self.weighted({"": 86, "once": 7, "table": 7})
        return Case(tables, views, tuple(batches), self.chance(50), again)

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

    def views(self, tables: Sequence[Table]) -> tuple[View, ...]:
        relations = [
            Relation(t.name, tuple(Column(n, k, n) for n, k in t.columns.items()), 8)
            for t in tables
        ]
        queries = Queries(self._draw, relations)
        views: list[View] = []
        count = 1 + self.weighted({0: 75, 1: 15, 2: 10})
        for number in range(count):
            made = queries.view()
            # The last one is stored: a case in which nothing is kept tests nothing.
            stored = number == count - 1 or self.chance(70)
            views.append(View(f"v{number + 1}", made.sql, stored))
            known = Relation(views[-1].name, made.columns, made.size)
            # Listed often, so that views stand on views and diamonds appear.
            queries.relations = [known, known, *queries.relations]
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
        # Both in one choice, since most choices of a case are made here.
        values = IDS if name == "id" else VALUES[kind]
        place = self.below(len(values) + (0 if name in table.not_null else 1))
        return values[place] if place < len(values) else None


class CaseStrategy(st.SearchStrategy[Case]):
    """Draws bare integers.

    Drawing a strategy for each choice would take longer, and hypothesis would see values of one
    kind and try variations of the same case, where what is wanted is another one.
    """

    def do_draw(self, data: Any) -> Case:
        return Cases(data.draw_integer).case()


def cases() -> st.SearchStrategy[Case]:
    return CaseStrategy()
