"""Render a node as one Spark SQL query.

The query of a node selects the node's columns followed by the row's weight `w`, or, for pairs, by
the weights before and after, `w0` and `w1`. Operators that are not linear receive bags: equal rows
are consolidated, then repeated by their weight. For pairs this happens once per version `v`, so the
operator processes old and new rows in one pass without mixing them.

Relations are read from tables that the caller names, with columns `c0`, `c1`, ... and `w`. Where
the caller knows that all of these weights are 1, they are not read: nothing is multiplied by them,
and bags need no consolidation. This holds for most of what is read when a view is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepwell.errors import ensure
from stepwell.plan.expressions import Expr, partitioned
from stepwell.plan.functions import is_time_window
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
    Consolidate,
    Diff,
    Distinct,
    Filter,
    Generate,
    Inner,
    Join,
    Keys,
    Leaf,
    Merge,
    Negate,
    Node,
    Project,
    Restrict,
    Scan,
    SetOp,
    Side,
    TopN,
    Union,
    Values,
    When,
    Window,
)
from stepwell.plan.sums import Accumulator

Table = Callable[[str, When], str]
"""Returns the name of the table that holds a relation (OLD) or its change (DELTA)."""

Once = Callable[[str, When], bool]
"""Returns whether all rows of a relation (OLD), or of its change (DELTA), have weight one."""

NEGATIVE = "a row was taken out more often than it was put in"
_NEGATIVE = f"raise_error('{NEGATIVE}')"


@dataclass(frozen=True, slots=True)
class Query:
    sql: str
    paired: bool = False
    ones: bool = False
    """Every weight is 1, and no rows need to be consolidated."""

    @property
    def weights(self) -> str:
        return "w0, w1" if self.paired else "w"


def not_known(relation: str, when: When) -> bool:
    """The answer where weights are unknown."""
    return False


def render(node: Node, table: Table, *, single: bool = False, once: Once = not_known) -> Query:
    """The query of a node. With `single`, all rows fit into one partition, so none is shuffled."""
    return _Renderer(table, single, once).of(node)


def bag(node: Node, table: Table) -> str:
    """A query of plain rows, each repeated by its weight."""
    renderer = _Renderer(table)
    return renderer.bag(renderer.of(node), node.columns)


def presented(
    change: Node, output: Node, table: Table, *, single: bool = False, once: Once = not_known
) -> str:
    """The change of a stored relation, together with the change of the view read from it.

    Columns: those of the change as c0, c1, ..., `w`, whether the row is in the view (`shown`), and
    the view's columns as p0, p1, ... One pass computes both, and a value that the view cannot
    compute raises an error before anything is stored.
    """
    source = _Renderer(table, single, once).of(change)
    stored = [f"c{i}" for i in range(len(change.columns))]
    levels: list[Filter | Project] = []
    while isinstance(output, Filter | Project):
        levels.append(output)
        output = output.input
    ensure(isinstance(output, Scan), "a view is made of one stored relation")
    kept = _list([*stored, "w"])
    named = _list(f"{a} AS {b}" for a, b in zip(change.columns, stored, strict=True))
    again = _list(f"{b} AS {c}" for b, c in zip(stored, output.columns, strict=True))
    sql = f"SELECT {named}, w FROM ({source.sql})"
    sql = f"SELECT {kept}, TRUE AS shown, {again} FROM ({sql})"
    columns = output.columns
    for level in reversed(levels):
        names = _list(columns)
        if isinstance(level, Filter):
            test = f"shown AND COALESCE({level.condition.sql}, FALSE)"
            sql = f"SELECT {kept}, {test} AS shown, {names} FROM ({sql})"
            continue
        items = _list(
            f"{n}" if e.column == n else f"CASE WHEN shown THEN {e.sql} END AS {n}"
            for n, e in level.items
        )
        sql = f"SELECT {kept}, shown, {items} FROM ({sql})"
        columns = level.columns
    final = _list(f"{c} AS p{i}" for i, c in enumerate(columns))
    return f"SELECT {kept}, shown, {final} FROM ({sql})"


class _Renderer:
    def __init__(self, table: Table, single: bool = False, once: Once = not_known) -> None:
        self._table = table
        self._once = once
        self._hint = "/*+ COALESCE(1) */ " if single else ""

    def _together(self, sql: str) -> str:
        """The rows of a query in one partition, where they can be grouped and joined without a
        shuffle. A broadcast would be one more job."""
        return f"SELECT {self._hint}* FROM ({sql})" if self._hint else sql

    def of(self, node: Node) -> Query:
        match node:
            case Scan():
                return self._leaf(Leaf(node.relation, node.columns, When.NEW))
            case Leaf():
                return self._leaf(node)
            case Values():
                names = ", ".join(node.columns)
                rows = f"VALUES {_rows(node)}"
                return Query(f"SELECT {names}, 1L AS w FROM ({rows}) AS t({names})", ones=True)
            case Filter():
                source = self.of(node.input)
                return Query(
                    f"SELECT * FROM ({source.sql}) WHERE {node.condition.sql}",
                    source.paired,
                    source.ones,
                )
            case Project():
                return self._project(node)
            case Negate():
                return self._negate(self.of(node.input), node.columns)
            case Union():
                return self._union(node)
            case Inner():
                return self._inner(node)
            case Generate():
                return self._generate(node)
            case Keys():
                items = _list(f"{c} AS {k}" for k, c in node.items)
                return Query(
                    f"SELECT DISTINCT {items}, 1L AS w "
                    f"FROM ({self._together(self.of(node.input).sql)})",
                    ones=True,
                )
            case Restrict():
                return self._restrict(node)
            case Consolidate():
                return self._consolidate(self.of(node.input), node.columns)
            case Diff():
                source = self.of(node.input)
                ensure(source.paired, "a difference is taken of pairs")
                names = ", ".join(node.columns)
                return self._consolidate(
                    Query(f"SELECT {names}, w1 - w0 AS w FROM ({source.sql}) WHERE w0 <> w1"),
                    node.columns,
                )
            case Accumulate():
                return self._accumulate(node)
            case Merge():
                return self._merge(node)
            case _:
                return self._whole(node)

    # Leaves

    def _leaf(self, node: Leaf) -> Query:
        names = _list(f"c{i} AS {c}" for i, c in enumerate(node.columns))
        if node.when in (When.OLD, When.DELTA):
            ones = self._once(node.relation, node.when)
            rows = self._table(node.relation, node.when)
            return Query(f"SELECT {names}, {'1L AS w' if ones else 'w'} FROM {rows}", ones=ones)
        old = self._table(node.relation, When.OLD)
        match node.when:
            case When.NEW:
                delta = self._table(node.relation, When.DELTA)
                ones = all(self._once(node.relation, when) for when in (When.OLD, When.DELTA))
                made = f"{names}, {'1L AS w' if ones else 'w'}"
                return Query(
                    f"SELECT {made} FROM {old} UNION ALL SELECT {made} FROM {delta}", ones=ones
                )
            case _:
                delta = self._table(node.relation, When.DELTA)
                return Query(
                    f"SELECT {names}, w AS w0, w AS w1 FROM {old} UNION ALL "
                    f"SELECT {names}, 0L AS w0, w AS w1 FROM {delta}",
                    paired=True,
                )

    # Linear operators

    def _project(self, node: Project) -> Query:
        source = self.of(node.input)
        items = _list(e.sql if e.sql == n else f"{e.sql} AS {n}" for n, e in node.items)
        return Query(
            f"SELECT {items}, {source.weights} FROM ({source.sql})", source.paired, source.ones
        )

    def _negate(self, source: Query, columns: tuple[str, ...]) -> Query:
        names = ", ".join(columns)
        weights = "-w0 AS w0, -w1 AS w1" if source.paired else "-w AS w"
        return Query(f"SELECT {names}, {weights} FROM ({source.sql})", source.paired)

    def _union(self, node: Union) -> Query:
        parts = [self.of(child) for child in node.inputs]
        paired = any(part.paired for part in parts)
        texts = []
        for part, child in zip(parts, node.inputs, strict=True):
            names = _list(
                a if a == b else f"{a} AS {b}"
                for a, b in zip(child.columns, node.columns, strict=True)
            )
            weights = part.weights
            if paired and not part.paired:
                weights = "w AS w0, w AS w1"
            texts.append(f"SELECT {names}, {weights} FROM ({part.sql})")
        return Query(" UNION ALL ".join(texts), paired, all(part.ones for part in parts))

    def _inner(self, node: Inner) -> Query:
        joined = self.of(node.inputs[0])
        columns = node.inputs[0].columns
        waiting = list(node.on)
        for i, source in enumerate(node.inputs[1:]):
            right = self.of(source)
            columns = columns + source.columns
            ready = [c for c in waiting if c.columns <= set(columns)]
            waiting = [c for c in waiting if c not in ready]
            small = node.small[i] if node.small else None
            joined = self._join_two(joined, right, columns, [c.sql for c in ready], small)
        if waiting:
            test = _all(c.sql for c in waiting)
            joined = Query(f"SELECT * FROM ({joined.sql}) WHERE {test}", joined.paired, joined.ones)
        return joined

    def _join_two(
        self,
        left: Query,
        right: Query,
        columns: tuple[str, ...],
        on: list[str],
        small: bool | None,
    ) -> Query:
        names = ", ".join(columns)
        paired = left.paired or right.paired
        if paired:
            weights = _list(
                f"l.{'w' + str(v) if left.paired else 'w'} * "
                f"r.{'w' + str(v) if right.paired else 'w'} AS w{v}"
                for v in (0, 1)
            )
        elif left.ones:
            weights = "r.w AS w"
        elif right.ones:
            weights = "l.w AS w"
        else:
            weights = "l.w * r.w AS w"
        hint = "" if small is None or self._hint else f"/*+ BROADCAST({'l' if small else 'r'}) */ "
        test = f" ON {_all(on)}" if on else ""
        kind = "JOIN" if on else "CROSS JOIN"
        return Query(
            f"SELECT {hint}{names}, {weights} FROM ({self._together(left.sql)}) l "
            f"{kind} ({self._together(right.sql)}) r{test}",
            paired,
            left.ones and right.ones,
        )

    def _generate(self, node: Generate) -> Query:
        source = self.of(node.input)
        names, made = ", ".join(node.input.columns), ", ".join(node.made)
        passed = f"{names}, " if names else ""
        outer = "OUTER " if node.outer else ""
        if is_time_window(node.generator.tree):
            return Query(
                f"SELECT {passed}{node.generator.sql} AS {made}, {source.weights} "
                f"FROM ({source.sql})",
                source.paired,
                source.ones,
            )
        return Query(
            f"SELECT {passed}{made}, {source.weights} FROM ({source.sql}) "
            f"LATERAL VIEW {outer}{node.generator.sql} g AS {made}",
            source.paired,
            source.ones,
        )

    def _restrict(self, node: Restrict) -> Query:
        source, keys = self.of(node.input), self.of(node.keys)
        if not node.on:
            return source
        test = _all(f"x.{c} <=> k.{key}" for c, key in node.on)
        hint = "" if self._hint else "/*+ BROADCAST(k) */ "
        return Query(
            f"SELECT {hint}x.* FROM ({self._together(source.sql)}) x "
            f"LEFT SEMI JOIN ({self._together(keys.sql)}) k ON {test}",
            source.paired,
            source.ones,
        )

    # Sums

    def _consolidate(self, source: Query, columns: tuple[str, ...]) -> Query:
        names = ", ".join(columns)
        rows = self._together(source.sql)
        if source.paired:
            return Query(
                f"SELECT {names}, sum(w0) AS w0, sum(w1) AS w1 FROM ({rows}) "
                f"GROUP BY {names} HAVING sum(w0) <> 0 OR sum(w1) <> 0",
                paired=True,
            )
        return Query(
            f"SELECT {names}, sum(w) AS w FROM ({rows}) GROUP BY {names} HAVING sum(w) <> 0"
        )

    def _accumulate(self, node: Accumulate) -> Query:
        source = self.of(node.input)
        ensure(not source.paired, "changes are accumulated, not pairs")
        made = _list(
            [
                *node.keys,
                f"{'count(1)' if source.ones else 'COALESCE(sum(w), 0L)'} AS {node.rows}",
                *(f"{_sum(accumulator, source.ones)} AS {n}" for n, accumulator in node.sums),
            ]
        )
        group = f" GROUP BY {', '.join(node.keys)}" if node.keys else ""
        return Query(
            f"SELECT {made}, 1L AS w FROM ({self._together(source.sql)}){group}", ones=True
        )

    def _merge(self, node: Merge) -> Query:
        keys = [f"c{i}" for i in range(node.keys)]
        values = range(node.keys, len(node.columns))
        both = []
        for side, old in ((node.old, True), (node.change, False)):
            given = [f"{c} AS c{i}" for i, c in enumerate(side.columns)]
            both.append(
                f"SELECT {_list(given)}, w, {1 if old else 0} AS o FROM ({self.of(side).sql})"
            )
        summed = [*keys]
        for i in values:
            value = _signed(f"c{i}", node.types[i])
            kept = f"CAST(COALESCE(sum(CASE WHEN o = 1 THEN {value} END), 0) AS {node.types[i]})"
            summed.append(f"{kept} AS o{i}")
            summed.append(f"CAST(sum({value}) AS {node.types[i]}) AS n{i}")
        summed.append("COALESCE(sum(CASE WHEN o = 1 THEN w END), 0L) AS was")
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        grouped = f"SELECT {_list(summed)} FROM ({self._together(' UNION ALL '.join(both))}){group}"
        first = node.keys
        before = _list(f"'f{i}', o{i}" for i in values)
        after = _list(f"'f{i}', n{i}" for i in values)
        there = f"n{first} > 0" if keys else "TRUE"
        moved = " OR ".join(f"o{i} <> n{i}" for i in values)
        negative = f"IF(n{first} < 0, {_NEGATIVE}, 1L)"
        versions = (
            f"filter(array(named_struct({before}, 'w', -1L, 'keep', was <> 0), "
            f"named_struct({after}, 'w', {negative}, 'keep', {there} OR n{first} < 0)), "
            "x -> x.keep)"
        )
        names = _list(
            [f"c{i} AS {node.columns[i]}" for i in range(node.keys)]
            + [f"v.f{i} AS {node.columns[i]}" for i in values]
        )
        return Query(
            f"SELECT {names}, v.w AS w FROM "
            f"(SELECT {_list([*keys, f'explode({versions}) AS v'])} FROM ({grouped}) "
            f"WHERE was = 0 OR {moved})"
        )

    # Operators that need whole bags

    def bag(self, source: Query, columns: tuple[str, ...]) -> str:
        """Plain rows, each repeated by its weight; for pairs also `v`: 0 is before, 1 is after."""
        names = ", ".join(columns)
        if source.ones:
            return f"SELECT {names} FROM ({self._together(source.sql)})"
        summed = self._consolidate(source, columns).sql
        if not source.paired:
            times = f"array_repeat(0, IF(w < 0, {_NEGATIVE}, CAST(w AS INT)))"
            return f"SELECT {names} FROM ({summed}) LATERAL VIEW explode({times}) g AS v"
        times = _list(
            f"array_repeat({v}, IF(w{v} < 0, {_NEGATIVE}, CAST(w{v} AS INT)))" for v in (0, 1)
        )
        return f"SELECT {names}, v FROM ({summed}) LATERAL VIEW explode(concat({times})) g AS v"

    def _counted(self, source: Query, columns: tuple[str, ...]) -> str:
        """The distinct rows with their multiplicities."""
        if source.ones:
            return self._together(source.sql)
        names = ", ".join(columns)
        summed = self._consolidate(source, columns).sql
        return f"SELECT {names}, IF(w < 0, {_NEGATIVE}, w) AS w FROM ({summed})"

    def _whole(self, node: Node) -> Query:
        match node:
            case Join():
                return self._join(node)
            case Aggregate():
                source = self.of(node.input)
                keys = [*node.keys, *(["v"] if source.paired else [])]
                calls = [f"{e.sql} AS {n}" for n, e in node.calls]
                group = f" GROUP BY {', '.join(keys)}" if keys else ""
                bag = self.bag(source, node.input.columns)
                return self._versions(
                    f"SELECT {_list([*keys, *calls])} FROM ({bag}){group}", node, source.paired
                )
            case Distinct():
                source = self.of(node.input)
                bag = self.bag(source, node.columns)
                return self._versions(f"SELECT DISTINCT * FROM ({bag})", node, source.paired)
            case Window():
                source = self.of(node.input)
                bag = self.bag(source, node.input.columns)
                made = _list(f"{self._over(e, source.paired)} AS {n}" for n, e in node.calls)
                return self._versions(f"SELECT *, {made} FROM ({bag})", node, source.paired)
            case TopN():
                source = self.of(node.input)
                ensure(not source.paired, "the first rows are taken of one version")
                bag = self.bag(source, node.columns)
                limit = f" LIMIT {node.limit}" if node.limit is not None else ""
                offset = f" OFFSET {node.offset}" if node.offset else ""
                order = _list(key.sql for key in node.order)
                return self._versions(
                    f"SELECT * FROM ({bag}) ORDER BY {order}{limit}{offset}", node, False
                )
            case SetOp():
                left, right = self.of(node.left), self.of(node.right)
                ensure(not left.paired and not right.paired, "set operations are not paired")
                names = _list(
                    f"{a} AS {b}" for a, b in zip(node.left.columns, node.columns, strict=True)
                )
                made = (
                    f"SELECT {names} FROM ({self.bag(left, node.left.columns)}) "
                    f"{node.kind.value.upper()} {self.bag(right, node.right.columns)}"
                )
                return self._versions(made, node, False)
            case _:
                raise TypeError(f"{type(node).__name__} cannot be written as SQL")

    def _versions(self, sql: str, node: Node, paired: bool) -> Query:
        names = ", ".join(node.columns)
        if not paired:
            return Query(f"SELECT {names}, 1L AS w FROM ({sql})", ones=True)
        return Query(
            f"SELECT {names}, 1L - v AS w0, CAST(v AS BIGINT) AS w1 FROM ({sql})", paired=True
        )

    def _over(self, call: Expr, paired: bool) -> str:
        if not paired:
            return call.sql
        # Every call has a PARTITION BY: the compiler rejects calls without one.
        ensure(bool(call.tree.args.get("partition_by")), "a window function has a PARTITION BY")
        return partitioned(call, "v").sql

    def _join(self, node: Join) -> Query:
        left, right = self.of(node.left), self.of(node.right)
        paired = left.paired or right.paired
        if paired:
            left, right = _as_pairs(left, node.left.columns), _as_pairs(right, node.right.columns)
        equal = "<=>" if node.null_safe else "="
        test = [f"l.{a} {equal} r.{b}" for a, b in node.equal]
        test += [condition.sql for condition in node.also]
        if paired:
            test.append("l.v = r.v")
        kinds = {
            Side.LEFT: "LEFT JOIN",
            Side.FULL: "FULL JOIN",
            Side.SEMI: "LEFT SEMI JOIN",
            Side.ANTI: "LEFT ANTI JOIN",
        }
        version = ""
        if paired:
            version = ", COALESCE(l.v, r.v) AS v" if node.side is Side.FULL else ", l.v AS v"
        names = ", ".join(node.columns)
        on = f" ON {_all(test)}" if test else ""
        if node.side is not Side.FULL and not paired:
            # Linear in the left side, whose weights may be negative; the right side is a bag.
            alike = node.side is not Side.LEFT or right.ones
            times = "l.w" if alike else "l.w * COALESCE(r.w, 1L)"
            ones = left.ones and alike
            return Query(
                f"SELECT {names}, {'1L' if ones else times} AS w "
                f"FROM ({self._together(left.sql)}) l "
                f"{kinds[node.side]} ({self._counted(right, node.right.columns)}) r{on}",
                ones=ones,
            )
        made = (
            f"SELECT {names}{version} FROM ({self.bag(left, node.left.columns)}) l "
            f"{kinds[node.side]} ({self.bag(right, node.right.columns)}) r{on}"
        )
        return self._versions(made, node, paired)


def _as_pairs(query: Query, columns: tuple[str, ...]) -> Query:
    if query.paired:
        return query
    names = ", ".join(columns)
    return Query(f"SELECT {names}, w AS w0, w AS w1 FROM ({query.sql})", paired=True)


def _sum(accumulator: Accumulator, ones: bool) -> str:
    """The aggregate that computes an accumulator over weighted rows."""
    argument, type_ = accumulator.argument, accumulator.type
    if argument is None:
        value = "1L" if ones else "w"
    else:
        value = f"CAST({argument.sql} AS {type_})" if ones else _signed(argument.sql, type_)
    if accumulator.present is not None:
        value = f"CASE WHEN {accumulator.present.sql} THEN {value} END"
    if argument is None and ones:
        return f"count({value})"
    return f"CAST(COALESCE(sum({value}), 0) AS {type_})"


def _signed(value: str, type_: str) -> str:
    """value * w. Nearly all weights are 1 or -1, which need no product with its wider type."""
    times = "w" if type_ == "bigint" else "CAST(w AS DECIMAL(9,0))"
    return (
        f"CASE w WHEN 1 THEN CAST({value} AS {type_}) "
        f"WHEN -1 THEN -CAST({value} AS {type_}) ELSE CAST(({value}) * {times} AS {type_}) END"
    )


def _list(parts: object) -> str:
    return ", ".join(parts)  # type: ignore[arg-type]


def _all(parts: object) -> str:
    return " AND ".join(f"({part})" for part in parts)  # type: ignore[attr-defined]


def _rows(node: Values) -> str:
    return ", ".join(f"({', '.join(expr.sql for expr in row)})" for row in node.rows)
