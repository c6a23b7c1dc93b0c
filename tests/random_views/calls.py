"""Aggregates and window functions."""

from __future__ import annotations

from collections.abc import Sequence

from tests.random_views.expressions import Expressions
from tests.random_views.kinds import (
    ARRAY,
    BASE,
    BIGINT,
    BOOLEAN,
    DECIMAL,
    DOUBLE,
    INT,
    KEYS,
    NOISY,
    NUMBERS,
    REAL,
    STRING,
    Column,
)


class Calls(Expressions):
    """Calls that make one value of many rows."""

    _named = 0

    def name(self, prefix: str) -> str:
        self._named += 1
        return f"{prefix}{self._named}"

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
            # Not listagg: next to a distinct aggregate with FILTER it makes Spark itself fail.
            found += [(f"array_join(sort_array(collect_list({x})), ',')", STRING)]
        return found

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
