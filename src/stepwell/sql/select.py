"""From a qualified SELECT to algebra, clause by clause, in SQL's evaluation order.

    FROM, JOIN, LATERAL VIEW -> WHERE -> GROUP BY -> HAVING -> window functions -> QUALIFY
    -> SELECT -> DISTINCT -> ORDER BY + LIMIT

A column that is only passed on keeps its name, so most queries need no projection at all, and joins
of subqueries are merged. Subqueries in expressions become joins (`decorrelate`). ORDER BY without
LIMIT does not affect a set of rows and is dropped.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from sqlglot import exp

from stepwell.plan import functions
from stepwell.plan.expressions import Expr, SortKey, build, column, number, row_number
from stepwell.plan.nodes import (
    Distinct,
    Filter,
    Generate,
    Item,
    Names,
    Node,
    Project,
    Scan,
    SetKind,
    SetOp,
    Side,
    TopN,
    Union,
    Values,
    Window,
)
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.shape import extend, filtered, inner, join, narrow
from stepwell.plan.shared import PREFIX, Shared
from stepwell.sql.aggregation import aggregate, join_subqueries
from stepwell.sql.catalog import Catalog, Ctes, Defined
from stepwell.sql.correlation import Correlation, GroupedJoin, check_calls, check_closed
from stepwell.sql.decorrelate import Decorrelator
from stepwell.sql.lateral import Lateral
from stepwell.sql.scope import (
    DIALECT,
    ONE_ROW,
    Output,
    Relation,
    Rewriter,
    Scope,
    conjuncts,
    name,
    our_column,
    shorten,
    to_expr,
    transform,
)
from stepwell.sql.time_windows import as_column, in_select
from stepwell.sql.windows import windows


class Converter:
    """Converts queries; looks up every relation that they name in the catalog."""

    def __init__(self, catalog: Catalog, names: Names, to_share: Set[int] = frozenset()) -> None:
        self._catalog = catalog
        self.names = names
        self.grouped: list[GroupedJoin] = []
        """See `parse.Parsed.grouped`."""
        self._to_share = to_share
        """The ids of the queries that are converted once (`sharing`)."""
        self._shared: dict[int, tuple[str, Relation]] = {}

    def query(
        self,
        query: exp.Expr,
        outer: Scope | None = None,
        ctes: Ctes | None = None,
        correlation: Correlation | None = None,
    ) -> Relation:
        """Convert any query. With `correlation`, it may reference columns of `outer`."""
        ctes = self._with(query, ctes or {})
        if isinstance(query, exp.Subquery):
            inside = self.query(query.this, outer, ctes, correlation)
            if query.args.get("limit") or query.args.get("offset"):
                if correlation is not None and correlation.columns:
                    correlation.refuse("LIMIT behind parentheses")
                return self._top(query, inside, Rewriter(self.names, Scope(outer=outer)))
            return inside
        if isinstance(query, exp.Select):
            return _Select(self, query, outer, ctes, correlation).convert()
        if isinstance(query, exp.SetOperation):
            if correlation is not None and _reaches_out(query):
                raise Unsupported(
                    Code.UNSUPPORTED_SUBQUERY, "a set operation inside a correlated subquery"
                )
            made = self._set_operation(query, outer, ctes)
            return self._top(query, made, Rewriter(self.names, Scope(outer=outer)))
        if isinstance(query, exp.Values):
            return self._values(query)
        raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{shorten(query.sql(DIALECT))}")

    def _with(self, query: exp.Expr, ctes: Ctes) -> Ctes:
        clause = query.args.get("with_")
        if clause is None:
            return ctes
        if clause.args.get("recursive"):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "WITH RECURSIVE")
        known = dict(ctes)
        for cte in clause.expressions:
            columns = tuple(name(c.name) for c in cte.args["alias"].columns)
            known[name(cte.alias)] = (cte.this, columns, dict(known))
        return known

    def table(self, item: exp.Expr, scope: Scope, ctes: Ctes) -> Node:
        """Convert one item of FROM, and add its columns to the scope."""
        for clause in ("sample", "pivots", "version", "when"):
            if item.args.get(clause):
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{shorten(item.sql(DIALECT))}")
        if isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier):
            made = self._named(item, ctes)
        elif isinstance(item, exp.Subquery | exp.Values):
            made = self.query(item, None, ctes)
        else:
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{shorten(item.sql(DIALECT))} in FROM")
        alias = item.args.get("alias")
        renamed = [name(c.name) for c in alias.columns] if alias is not None else []
        called = renamed or [output for output, _ in made.outputs]
        if len(set(called)) != len(called) or len(called) != len(made.outputs):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "two columns of the same name in FROM")
        joins = item.args.get("joins") or []
        if joins:
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "a join in parentheses")
        scope.add(name(item.alias_or_name), dict(zip(called, made.columns, strict=True)))
        return made.node

    def _named(self, item: exp.Table, ctes: Ctes) -> Relation:
        known = name(item.name)
        if item.args.get("db"):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"the name {item.sql(DIALECT)}")
        if known in ctes:
            query, columns, inside = ctes[known]
            made = self._once(query, inside)
            if columns:
                return replace(made, outputs=tuple(zip(columns, made.columns, strict=True)))
            return made
        found = self._catalog.get(known)
        if found is None:
            raise Unsupported(Code.PARSE_MISMATCH, f"the relation {item.name}")
        if isinstance(found, Defined):
            made = self._once(found.query, {})
            return replace(
                made,
                outputs=tuple(zip(map(name, found.columns), made.columns, strict=True)),
            )
        columns = self.names.several(len(found.columns))
        return Relation(
            Scan(found.name, columns),
            tuple(zip(map(name, found.columns), columns, strict=True)),
        )

    @property
    def shared(self) -> tuple[Shared, ...]:
        """The queries that were converted once; each follows those that it reads."""
        return tuple(Shared(called, made.node) for called, made in self._shared.values())

    def _once(self, query: exp.Expr, ctes: Ctes) -> Relation:
        """Convert a named query, or scan the rows of one that is shared."""
        if id(query) not in self._to_share:
            return self.query(query, None, ctes)
        if id(query) not in self._shared:
            made = self.query(query, None, ctes)
            node = self.exact(made)
            outputs = zip((called for called, _ in made.outputs), node.columns, strict=True)
            called = f"{PREFIX}{len(self._shared) + 1}"
            self._shared[id(query)] = called, Relation(node, tuple(outputs))
        called, made = self._shared[id(query)]
        columns = self.names.several(len(made.outputs))
        outputs = zip((output for output, _ in made.outputs), columns, strict=True)
        return Relation(Scan(called, columns), tuple(outputs))

    def _values(self, item: exp.Values) -> Relation:
        if item.find(exp.Column) is not None:
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "a column of the outer query in VALUES")
        rows = tuple(
            tuple(map(Expr, row.expressions if isinstance(row, exp.Tuple) else [row]))
            for row in item.expressions
        )
        width = len(rows[0])
        columns = self.names.several(width)
        alias = item.args.get("alias")
        called = [name(c.name) for c in alias.columns] if alias is not None else []
        called = called or [f"col{i + 1}" for i in range(width)]
        return Relation(Values(rows, columns), tuple(zip(called, columns, strict=True)))

    def _set_operation(self, query: exp.SetOperation, outer: Scope | None, ctes: Ctes) -> Relation:
        if query.args.get("by_name") or query.args.get("on"):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "a set operation BY NAME")
        left = self.query(query.this, outer, ctes)
        right = self.query(query.expression, outer, ctes)
        if len(left.outputs) != len(right.outputs):
            raise Unsupported(Code.PARSE_MISMATCH, "a set operation over different columns")
        columns = self.names.several(len(left.outputs))
        sides = (self.exact(left), self.exact(right))
        distinct = bool(query.args.get("distinct"))
        node: Node
        if isinstance(query, exp.Union):
            node = Union(sides, columns)
            node = Distinct(node) if distinct else node
        elif isinstance(query, exp.Intersect):
            kind = SetKind.INTERSECT if distinct else SetKind.INTERSECT_ALL
            node = SetOp(kind, *sides, columns)
        else:
            kind = SetKind.EXCEPT if distinct else SetKind.EXCEPT_ALL
            node = SetOp(kind, *sides, columns)
        outputs = tuple((called, c) for (called, _), c in zip(left.outputs, columns, strict=True))
        return Relation(node, outputs)

    def exact(self, made: Relation) -> Node:
        """A node with exactly the result's columns, in order, each under a unique name."""
        if len(set(made.columns)) == len(made.columns):
            return narrow(made.node, made.columns)
        return Project(made.node, tuple((self.names.new(), column(c)) for c in made.columns))

    def _top(self, query: exp.Expr, made: Relation, rewrite: Rewriter) -> Relation:
        """Apply ORDER BY and LIMIT, for a query whose ORDER BY names columns of its result."""
        order, limit, offset = (query.args.get(k) for k in ("order", "limit", "offset"))
        if limit is None and offset is None:
            return made
        by_name = dict(made.outputs)

        def visit(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and not part.table and name(part.name) in by_name:
                return our_column(by_name[name(part.name)])
            return part

        resolved = [transform(o, visit) for o in (order.expressions if order else ())]
        node, keys = self.ordering(made.node, resolved, rewrite)
        return top(node, keys, query, made, self.names)

    def ordering(
        self, node: Node, order: list[exp.Expr], rewrite: Rewriter
    ) -> tuple[Node, tuple[SortKey, ...]]:
        """The node with the columns to sort by, and the sort keys."""
        keys: list[SortKey] = []
        for item in order:
            if not isinstance(item, exp.Ordered):
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, "ORDER BY ALL")
            key = rewrite.expr(item.this)
            if not key.columns:
                continue  # A constant does not affect the order.
            sort = key.column
            if sort is None:
                sort = self.names.new()
                node = extend(node, ((sort, key),))
            descending, first = item.args.get("desc"), item.args.get("nulls_first")
            keys.append(SortKey(sort, bool(descending), bool(first)))
        return node, tuple(keys)


def top(
    node: Node,
    order: tuple[SortKey, ...],
    query: exp.Expr,
    made: Relation,
    names: Names,
    apart: tuple[str, ...] = (),
) -> Relation:
    """Apply LIMIT and OFFSET; result columns break ties, so that the result is deterministic.

    Without ORDER BY, the result columns are the order. With `apart`, take the first rows for each
    of its values.
    """
    limit, offset = _number(query.args.get("limit")), _number(query.args.get("offset")) or 0
    sorted_by = {key.column for key in order}
    ties = dict.fromkeys(c for c in made.columns if c not in sorted_by)
    total = order + tuple(map(SortKey, ties))
    used = dict.fromkeys((*made.columns, *(key.column for key in total), *apart))
    cut = narrow(node, tuple(used))
    if not apart:
        return Relation(TopN(cut, total, limit, offset), made.outputs)
    place = names.new()
    numbered = Window(cut, tuple(sorted(apart)), ((place, row_number(total, apart)),))
    test = build("place > offset_", place=column(place), offset_=number(offset))
    if limit is not None:
        within = {"place": column(place), "last": number(offset + limit), "test": test}
        test = build("test AND place <= last", **within)
    return Relation(Filter(numbered, test), made.outputs)


def _reaches_out(query: exp.Query) -> bool:
    """Whether a qualified query references columns of outer queries."""
    named = {name(source.alias_or_name) for source in query.find_all(exp.Table, exp.Subquery)}
    named |= {name(lateral.alias) for lateral in query.find_all(exp.Lateral)}
    used = {name(part.table) for part in query.find_all(exp.Column) if part.table}
    return not used <= named


def _number(clause: exp.Expr | None) -> int | None:
    if clause is None:
        return None
    value = clause.args.get("expression") or clause.args.get("count")
    if not isinstance(value, exp.Literal) or value.is_string or not value.this.isdigit():
        raise Unsupported(Code.UNSUPPORTED_OPERATOR, "a LIMIT that is not a plain number")
    return int(value.this)


class _Select:
    """Converts one SELECT, clause by clause."""

    def __init__(
        self,
        converter: Converter,
        query: exp.Select,
        outer: Scope | None,
        ctes: Ctes,
        correlation: Correlation | None,
    ) -> None:
        self.converter = converter
        self.names = converter.names
        self.query = query
        self.ctes = ctes
        self.correlation = correlation
        self.scope = Scope(outer=outer)
        self.rewrite = Rewriter(self.names, self.scope)
        self.subqueries = Decorrelator(converter, self.scope, ctes, self.rewrite)
        self.laterals = Lateral(converter, self.scope, ctes, self.rewrite)
        self._limited = bool(query.args.get("limit") or query.args.get("offset"))

    def convert(self) -> Relation:
        self._refuse()
        node = self._from()
        node = self._where(node)
        selected = [self._unalias(e) for e in self.query.expressions]
        having = self.query.args.get("having")
        qualify = self.query.args.get("qualify")
        order = self.query.args.get("order")
        group = self.query.args.get("group")

        # From here on expressions are rewritten step by step: each clause turns the parts that it
        # computes into plan columns, and leaves the rest to later clauses.
        parts: list[exp.Expr] = [self.rewrite.columns(e) for _, e in selected]
        havings = [self.rewrite.columns(e) for e in conjuncts(having.this if having else None)]
        qualifies = [self.rewrite.columns(e) for e in conjuncts(qualify.this if qualify else None)]
        orders = [self._by_alias(o, selected, parts) for o in (order.expressions if order else [])]

        everything = [*parts, *havings, *qualifies, *orders]
        if self.scope.outer is not None:
            late = [*havings, *qualifies, *(orders if self._limited else ())]
            check_calls(node, parts, late, self.names)
        node, group, everything = in_select(node, group, everything, self.rewrite, self.names)
        if (
            group is not None
            or having is not None
            or any(map(functions.contains_aggregate, everything))
        ):
            node, group, everything = join_subqueries(
                node, group, everything, len(parts), self.rewrite, self.subqueries
            )
            node, everything = aggregate(
                node,
                group,
                everything,
                len(parts),
                self.rewrite,
                self.names,
                self.correlation,
            )
        if len(everything) != len(parts) + len(havings) + len(qualifies) + len(orders):
            raise Unsupported(Code.PARSE_MISMATCH, "an aggregate lost a part")
        parts, rest = everything[: len(parts)], everything[len(parts) :]
        havings, rest = rest[: len(havings)], rest[len(havings) :]
        qualifies, orders = rest[: len(qualifies)], rest[len(qualifies) :]

        for condition in havings:
            node = self._condition(node, condition)
        node, replaced = self._subqueries(node, [*parts, *qualifies, *orders])
        if any(part.find(exp.Window) for part in replaced):
            apart = self.correlation.together("a window") if self.correlation else ()
            named = {name(w.name): w for w in self.query.args.get("windows") or []}
            node, replaced = windows(node, replaced, named, self.rewrite, self.names, apart)
        parts = replaced[: len(parts)]
        qualifies = replaced[len(parts) : len(parts) + len(qualifies)]
        orders = replaced[len(parts) + len(qualifies) :]
        for condition in qualifies:
            node = filtered(node, to_expr(condition, self.names))
        made = self._result(node, [called for called, _ in selected], parts, orders)
        if self.scope.outer is not None:
            check_closed(made, self.correlation)
        return made

    def _refuse(self) -> None:
        for clause in (
            "cluster",
            "distribute",
            "sort",
            "connect",
            "match",
            "into",
            "operation_modifiers",
        ):
            if self.query.args.get(clause):
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{clause.upper()} in a SELECT")
        if self.query.args.get("kind"):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "SELECT TRANSFORM or AS STRUCT")

    def _unalias(self, item: exp.Expr) -> tuple[str, exp.Expr]:
        if isinstance(item, exp.Aliases):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "a function with several columns")
        if isinstance(item, exp.Star) or item.is_star:
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{item.sql(DIALECT)} in SELECT")
        if isinstance(item, exp.Alias):
            return name(item.alias), item.this
        return name(item.alias_or_name), item

    def _by_alias(
        self,
        ordered: exp.Expr,
        selected: list[tuple[str, exp.Expr]],
        parts: list[exp.Expr],
    ) -> exp.Expr:
        """Resolve names in ORDER BY, which may be columns of the result."""
        by_alias = {called: part for (called, _), part in zip(selected, parts, strict=True)}

        def visit(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and not part.table and name(part.name) in by_alias:
                return by_alias[name(part.name)].copy()
            return part

        return self.rewrite.columns(transform(ordered, visit))

    # FROM

    def _from(self) -> Node:
        clause = self.query.args.get("from_")
        if clause is None:
            node: Node = Values(ONE_ROW, (self.names.new(),))
        else:
            node = self._item(clause.this)
        for joined in self.query.args.get("joins") or []:
            node = self._join(node, joined)
        for lateral in self.query.args.get("laterals") or []:
            node = self._lateral(node, lateral)
        return node if self.correlation is None else self.correlation.start(node)

    def _item(self, item: exp.Expr) -> Node:
        """Convert a table, a query, or a join in parentheses, whose tables keep their names."""
        if not isinstance(item, exp.Subquery) or not isinstance(item.this, exp.Table):
            return self.converter.table(item, self.scope, self.ctes)
        if item.args.get("alias"):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "a name for a join in parentheses")
        first = item.this.copy()
        joins = first.args.get("joins") or []
        first.set("joins", None)
        node = self._item(first)
        for joined in [*joins, *(item.args.get("joins") or [])]:
            node = self._join(node, joined)
        return node

    def _join(self, left: Node, clause: exp.Join) -> Node:
        side, kind = (clause.side or "").upper(), (clause.kind or "").upper()
        if clause.args.get("using") or clause.method:
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{shorten(clause.sql(DIALECT))}")
        if isinstance(clause.this, exp.Lateral) and isinstance(clause.this.this, exp.Subquery):
            return self.laterals.attach(left, clause)
        if isinstance(clause.this, exp.Lateral):
            if side or clause.args.get("on"):
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, "a table function joined with ON")
            return self._lateral(left, clause.this)
        seen = dict(self.scope.tables)
        right = self._item(clause.this)
        on = [self.rewrite.expr(c) for c in conjuncts(clause.args.get("on"))]
        if kind in ("SEMI", "ANTI"):
            # ON can name the right side; later clauses cannot.
            self.scope.tables = seen
            made = Side.SEMI if kind == "SEMI" else Side.ANTI
            return join(made, left, right, on, self.names)
        if side == "LEFT":
            return join(Side.LEFT, left, right, on, self.names)
        if side == "RIGHT":
            return join(Side.LEFT, right, left, on, self.names)
        if side == "FULL":
            return join(Side.FULL, left, right, on, self.names)
        return inner((left, right), tuple(on))

    def _lateral(self, node: Node, lateral: exp.Lateral) -> Node:
        generator = lateral.this
        if isinstance(generator, exp.Expr) and generator.find(exp.Query):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "a subquery in a table function")
        alias = lateral.args.get("alias")
        called = [name(c.name) for c in alias.columns] if alias is not None else []
        if not called:
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "LATERAL VIEW without column names")
        outer = bool(lateral.args.get("outer"))
        made = self.names.several(len(called))
        expr = self.rewrite.expr(generator)
        self.scope.add(name(lateral.alias), dict(zip(called, made, strict=True)))
        return Generate(node, expr, outer, made)

    # WHERE, HAVING

    def _where(self, node: Node) -> Node:
        clause = self.query.args.get("where")
        mine: list[exp.Expr] = []
        for conjunct in conjuncts(clause.this if clause else None):
            rewritten = self.rewrite.columns(conjunct)
            if self.correlation is not None and not rewritten.find(exp.Query):
                expr = to_expr(rewritten, self.names)
                if not expr.columns <= set(node.columns):
                    node = self.correlation.take(node, expr)
                    continue
            mine.append(rewritten)
        # Plain conditions first: they shrink the rows that the subqueries are joined with.
        plain = [c for c in mine if not functions.own_time_windows(c)]
        for conjunct in sorted(plain, key=lambda c: c.find(exp.Query) is not None):
            node = self._condition(node, conjunct)
        if len(plain) < len(mine):
            late = [c for c in mine if functions.own_time_windows(c)]
            node, late = as_column(node, late, self.names)
            for conjunct in late:
                node = self._condition(node, conjunct)
        return node

    def _condition(self, node: Node, condition: exp.Expr) -> Node:
        if condition.find(exp.Query):
            return self.subqueries.condition(node, condition)
        return filtered(node, to_expr(condition, self.names))

    def _subqueries(self, node: Node, parts: list[exp.Expr]) -> tuple[Node, list[exp.Expr]]:
        replaced: list[exp.Expr] = []
        for part in parts:
            if part.find(exp.Query):
                node, part = self.subqueries.value(node, part)
            replaced.append(part)
        return node, replaced

    # SELECT, DISTINCT, ORDER BY

    def _result(
        self,
        node: Node,
        called: list[str],
        parts: list[exp.Expr],
        orders: list[exp.Expr],
    ) -> Relation:
        outputs: list[Output] = []
        items: list[Item] = []
        made: dict[str, str] = {}
        for title, part in zip(called, parts, strict=True):
            if functions.is_generator(part):
                node, part = self._generate(node, part)
            expr = to_expr(part, self.names)
            if self.correlation is not None and not expr.columns <= set(node.columns):
                outputs.append((title, self.names.new()))
                self.correlation.defer((outputs[-1][1], expr), node)
                continue
            if part.find(exp.Explode, exp.Posexplode, exp.Inline, exp.Stack):
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, shorten(expr.sql))
            known = expr.column or made.get(expr.sql)
            if known is None:
                known = self.names.new()
                made[expr.sql] = known
                items.append((known, expr))
            outputs.append((title, known))
        node = extend(node, tuple(items))
        result = Relation(node, tuple(outputs))
        distinct = self.query.args.get("distinct")
        if distinct is not None:
            kept = self.correlation.distinct() if self.correlation is not None else ()
            if distinct.args.get("on"):
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, "DISTINCT ON")
            wanted = tuple(dict.fromkeys((*result.columns, *kept)))
            result = replace(result, node=Distinct(narrow(result.node, wanted)))
        if self._limited:
            by_sql = {
                to_expr(p, self.names).sql: our_column(c)
                for p, (_, c) in zip(parts, outputs, strict=True)
            }

            def visit(part: exp.Expr) -> exp.Expr:
                return by_sql.get(part.sql(dialect=DIALECT, comments=False), part)

            for ordered in orders:
                ordered.set("this", transform(ordered.this, visit))
            sorted_node, keys = self.converter.ordering(result.node, orders, self.rewrite)
            if distinct is not None and sorted_node is not result.node:
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, "ORDER BY over DISTINCT")
            apart = self.correlation.together("LIMIT") if self.correlation is not None else ()
            result = top(sorted_node, keys, self.query, result, self.names, apart)
        return result

    def _generate(self, node: Node, part: exp.Expr) -> tuple[Node, exp.Expr]:
        """Convert explode(...) in the SELECT list, which makes one column."""
        kind = functions.name_of(part)
        if kind not in ("explode", "explode_outer"):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{kind} in SELECT")
        made = self.names.new()
        expr = to_expr(part, self.names)
        return Generate(node, expr, False, (made,)), our_column(made)
