"""Queries of every shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.random_views.kinds import (
    BASE,
    BIGINT,
    BOOLEAN,
    DATE,
    DECIMAL,
    INT,
    KEYS,
    LITERALS,
    NOISY,
    NUMBERS,
    STRING,
    Column,
)
from tests.random_views.sources import From, Relation, Sources


class Queries(Sources):
    """Queries over the relations known so far."""

    def view(self, depth: int) -> Relation:
        """The query of a view, with the columns it gives."""
        self._depth = depth
        self._budget = 3 * depth
        return self.query(depth, exact=False)

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
        days = [column for column in source.scope if column.kind == DATE]
        if days and self.chance(25):
            items.append(self.day_window(self.pick(days)))
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

    def day_window(self, column: Column) -> Column:
        """When the time windows begin in which a day lies."""
        window = self.pick(["'2 days'", "'3 days', '1 day'", "'2 days', '2 days', '6 hours'"])
        call = f"window(CAST({column.sql} AS TIMESTAMP), {window})"
        return Column(f"CAST({call}.start AS DATE)", DATE, self.name("z"))

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
        if self._budget > 0 and self.chance(10):
            aggregates.append(self.over_subquery(source.scope, depth))
        items = [*keys, *aggregates]
        if self._budget > 0 and self.chance(6):
            keys = [*keys, self.scalar_item(source.scope, depth)]
            items = [*keys, *aggregates]
            group = f" GROUP BY {', '.join(key.sql for key in keys)}"
        else:
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

    def over_subquery(self, scope: Sequence[Column], depth: int) -> Column:
        """An aggregate of a subquery for each row."""
        inner = self.subquery_item(scope, depth)
        if inner.kind == BOOLEAN:
            return Column(f"count_if({inner.sql})", BIGINT, inner.name)
        return Column(f"{self.pick(['max', 'min'])}({inner.sql})", inner.kind, inner.name)

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
        if self.chance(20):
            # Which rows there are is up to Spark, how many is not.
            name = self.name("a")
            text = f"SELECT {listed(items)} FROM {source.sql}{where} LIMIT {count}"
            counted = [Column("count(*)", BIGINT, name)]
            return self.made(f"SELECT count(*) AS {name} FROM ({text})", counted, 1)
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


def listed(items: Sequence[Column]) -> str:
    return ", ".join(
        item.sql
        if item.sql == item.name or item.sql.endswith(f".{item.name}")
        else f"{item.sql} AS {item.name}"
        for item in items
    )
