"""Scalar expressions and conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.random_views.drawn import Drawn
from tests.random_views.kinds import (
    BIGINT,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    INT,
    KEYS,
    LITERALS,
    STRING,
    Column,
)


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
