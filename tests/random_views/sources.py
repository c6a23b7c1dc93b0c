"""The contents of FROM and WHERE: relations, joins, generators, subqueries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.random_views.calls import Calls
from tests.random_views.kinds import (
    BASE,
    BIGINT,
    BOOLEAN,
    DECIMAL,
    INT,
    KEYS,
    NOISY,
    NUMBERS,
    STRING,
    Column,
)


@dataclass(frozen=True, slots=True)
class Relation:
    """An item of FROM, before it has an alias."""

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


class Sources(Calls):
    """Relations to select from, out of those known so far."""

    def __init__(self, random: Random, relations: list[Relation]) -> None:
        super().__init__(random)
        self.relations = relations
        self._depth = 0
        self._budget = 0

    @abstractmethod
    def query(self, depth: int, exact: bool) -> Relation:
        """The text in parentheses."""

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
        if self._budget > 0 and self.chance(12):
            source = self.lateral(source, depth)
        if self.chance(7):
            source = self.exploded(source)
        return source

    def lateral(self, left: From, depth: int) -> From:
        """A query that looks at the rows before it."""
        inner = self.aliased(self.relation(depth - 1, exact=True))
        columns = self.some([c for c in inner.scope if c.kind in KEYS], 1, 2)
        if not columns or left.size * inner.size > SIZE_MAX:
            return left
        where = self.correlation(left.scope, inner)
        alias = self.name("l")
        items = [Column(c.sql, c.kind, self.name("y")) for c in columns]
        text = f"SELECT {named(items)} FROM {inner.sql}{where}"
        form = self.weighted({"rows": 25, "one": 35, "groups": 12, "distinct": 12, "first": 16})
        if form in ("one", "groups"):
            call = self.call(inner.scope, exact=True, only=(BIGINT, INT, DECIMAL, STRING))
            items = [*(items if form == "groups" else []), call]
            text = f"SELECT {named(items)} FROM {inner.sql}{where}"
            if form == "groups":
                text += f" GROUP BY {', '.join(c.sql for c in columns)}"
        elif form == "distinct":
            text = text.replace("SELECT ", "SELECT DISTINCT ", 1)
        elif form == "first":
            order = [c.sql + self.pick(["", " DESC", " NULLS LAST"]) for c in columns]
            text += f" ORDER BY {', '.join(order)} LIMIT {1 + self.below(2)}"
        word = self.pick([",", " JOIN", " LEFT JOIN", " LEFT JOIN"])
        scope = tuple(Column(f"{alias}.{c.name}", c.kind, c.name) for c in items)
        test = ""
        if word != "," and self.chance(30):
            test = f" ON {self.condition((*left.scope, *scope), 0)}"
        if word == "," and " LATERAL VIEW " in left.sql:
            word = " JOIN"
        size = left.size * (2 if form == "first" else 1 if form == "one" else inner.size // 2 + 1)
        return From(f"{left.sql}{word} LATERAL ({text}) {alias}{test}", left.scope + scope, size)

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
        if not self.chance(45 if depth == self._depth else 25):
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
        return self.scalar(inner, where, name)

    def scalar_item(self, scope: Sequence[Column], depth: int) -> Column:
        inner = self.aliased(self.relation(depth - 1, exact=True))
        return self.scalar(inner, self.correlation(scope, inner), self.name("q"))

    def scalar(self, inner: From, where: str, name: str) -> Column:
        call = self.call(inner.scope, exact=True, only=(BIGINT, INT, DECIMAL, STRING))
        return Column(f"(SELECT {call.sql} FROM {inner.sql}{where})", call.kind, name)


def named(items: Sequence[Column]) -> str:
    return ", ".join(f"{item.sql} AS {item.name}" for item in items)
