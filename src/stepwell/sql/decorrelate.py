"""Decorrelation: subqueries in expressions become joins.

    WHERE EXISTS (q)            semi join on the equalities with the outer query
    WHERE NOT EXISTS (q)        anti join
    WHERE x IN (q)              semi join, with x = the column as one more equality
    WHERE x NOT IN (q)          anti join, and counts of q's rows and of its NULLs: no row passes if
                                q has a NULL, and every row passes if q is empty
    (q) as a value              left join of q grouped by its equalities; a count without a
                                group is 0, more than one row is an error
    EXISTS, IN as a value       left join of q's distinct keys, and whether a match was found

Without equalities, q is a single row or a single count for all outer rows. A comparison with outer
columns other than equality stays a condition of the join, where that is unambiguous. Everything
else is rejected, and the view is recomputed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from stepwell.plan import functions
from stepwell.plan.expressions import (
    COUNT_ROWS,
    FALSE,
    NULL,
    TRUE,
    Expr,
    build,
    call,
    column,
    equal,
    number,
)
from stepwell.plan.nodes import Aggregate, Join, Node, Project, Side
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.shape import extend, filtered, inner
from stepwell.sql.correlation import Correlation, GroupedJoin, as_columns
from stepwell.sql.scope import (
    DIALECT,
    Relation,
    Rewriter,
    Scope,
    our_column,
    shorten,
    to_expr,
    transform,
)

if TYPE_CHECKING:
    from stepwell.sql.catalog import Ctes
    from stepwell.sql.select import Converter

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_STRICT = (*_COMPARISONS, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Paren, exp.Cast, exp.Subquery)
"""Operators that return NULL if an operand is NULL."""


class Decorrelator:
    """Joins the subqueries of one SELECT to its node."""

    def __init__(self, converter: Converter, scope: Scope, ctes: Ctes, rewrite: Rewriter) -> None:
        self._converter = converter
        self._names = converter.names
        self._scope = scope
        self._ctes = ctes
        self._rewrite = rewrite

    def condition(self, node: Node, condition: exp.Expr) -> Node:
        """The rows of the node that satisfy a condition with subqueries."""
        positive = True
        bare = condition
        while isinstance(bare, exp.Not | exp.Paren):
            positive = positive != isinstance(bare, exp.Not)
            bare = bare.this
        if isinstance(bare, exp.Exists):
            return self._exists(node, bare.this, positive)
        if isinstance(bare, exp.In) and bare.args.get("query") is not None:
            if bare.this.find(exp.Query):
                raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "a subquery on the left of IN")
            if positive:
                return self._in(node, bare)
            return self._not_in(node, bare)
        node, replaced = self.value(node, condition, strict=isinstance(bare, _COMPARISONS))
        return filtered(node, to_expr(replaced, self._names))

    def value(self, node: Node, part: exp.Expr, *, strict: bool = False) -> tuple[Node, exp.Expr]:
        """The expression with its subqueries replaced by columns of the extended node.

        `strict`: rows for which the expression is NULL may be dropped.
        """
        replaced: dict[int, exp.Expr] = {}
        for query, wanted in _outermost(part, strict):
            if isinstance(query, exp.Exists):
                node, made = self._mark(node, query)
            elif isinstance(query, exp.Not):
                node, made = self._mark_in(node, query.this, negated=True)
            elif isinstance(query, exp.In):
                node, made = self._mark_in(node, query, negated=False)
            else:
                node, made = self._scalar(node, query, wanted)
            replaced[id(query)] = made

        def visit(inside: exp.Expr) -> exp.Expr:
            made = replaced.get(id(inside), inside)
            # IN or EXISTS becomes a comparison, which binds less tightly than what is next to it.
            alone = made is inside or inside is part or not isinstance(made, exp.Binary)
            return made if alone else exp.Paren(this=made)

        return node, transform(part, visit)

    # Conditions

    def _convert(self, query: exp.Expr) -> tuple[Relation, Correlation]:
        correlation = Correlation(self._names)
        while isinstance(query, exp.Subquery) and not query.args.get("limit"):
            query = query.this
        made = self._converter.query(query, self._scope, self._ctes, correlation)
        return made, correlation

    def _exists(self, node: Node, query: exp.Expr, positive: bool) -> Node:
        made, correlation = self._convert(query)
        if correlation.single and is_one_row(made.node):
            return node if positive else filtered(node, FALSE)
        if correlation.single:
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "HAVING without GROUP BY in EXISTS")
        if not correlation.pairs and not correlation.others:
            counts = self._names.new()
            count = Aggregate(made.node, (), ((counts, COUNT_ROWS),))
            test = build("n > 0" if positive else "n = 0", n=column(counts))
            return inner((node, count), (test,))
        return self._match(node, made.node, correlation, [], positive)

    def _list(self, query: exp.Expr, *, found_only: bool = False) -> tuple[Relation, Correlation]:
        """The rows that IN searches.

        An aggregate without GROUP BY has a row even for a node row without a group, which cannot be
        joined. With `found_only` only matches matter, and the NULL that most aggregates return for
        no rows is not a match.
        """
        made, correlation = self._convert(query)
        if (
            correlation.single
            and correlation.pairs
            and not (found_only and any(when_empty(made.node, c) is None for c in made.columns))
        ):
            raise Unsupported(
                Code.UNSUPPORTED_SUBQUERY, "an aggregate without GROUP BY in a correlated IN"
            )
        return made, correlation

    def _in(self, node: Node, condition: exp.In) -> Node:
        made, correlation = self._list(condition.args["query"], found_only=True)
        return self._match(node, made.node, correlation, self._compared(condition, made), True)

    def _not_in(self, node: Node, condition: exp.In) -> Node:
        compared = condition.this
        if isinstance(compared, exp.Tuple):
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "NOT IN over several columns")
        left = to_expr(compared, self._names)
        node, total, present = self._counts(node, condition.args["query"])
        none_is_null = "total = 0 OR ((given) IS NOT NULL AND total = present)"
        node = filtered(node, build(none_is_null, total=total, given=left, present=present))
        made, correlation = self._list(condition.args["query"])
        return self._match(node, made.node, correlation, self._compared(condition, made), False)

    def _compared(self, condition: exp.In, made: Relation) -> list[tuple[Expr, str]]:
        left = condition.this
        parts = left.expressions if isinstance(left, exp.Tuple) else [left]
        if len(parts) != len(made.columns):
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "IN over a struct")
        return [
            (to_expr(part, self._names), c) for part, c in zip(parts, made.columns, strict=True)
        ]

    def _match(
        self,
        node: Node,
        right: Node,
        correlation: Correlation,
        compared: list[tuple[Expr, str]],
        positive: bool,
    ) -> Node:
        if correlation.grouped and correlation.pairs:
            node, checked = as_columns(node, correlation.pairs, self._names)
            self._converter.grouped.append(GroupedJoin(node, right, checked))
        node, equal = as_columns(node, [*correlation.pairs, *compared], self._names)
        side = Side.SEMI if positive else Side.ANTI
        return Join(side, node, right, equal, also=tuple(correlation.others))

    # Values

    def _scalar(self, node: Node, query: exp.Expr, strict: bool) -> tuple[Node, exp.Expr]:
        made, correlation = self._convert(query)
        if len(made.columns) != 1 or correlation.others:
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, shorten(query.sql(DIALECT)))
        value = made.columns[0]
        if correlation.single:
            return self._single(node, made, correlation, value, strict)
        # The subquery may return any number of rows: count them, and raise if a row matches two.
        count, kept = self._names.several(2)
        keys = tuple(dict.fromkeys(c for _, c in correlation.pairs))
        grouped = Aggregate(
            made.node,
            keys,
            (
                (count, COUNT_ROWS),
                (kept, call("any_value", column(value))),
            ),
        )
        node = self._attach(node, grouped, correlation.pairs, strict)
        one = (
            "CASE WHEN n > 1 THEN RAISE_ERROR('a scalar subquery gave more than one row') "
            "ELSE value END"
        )
        return node, build(one, n=column(count), value=column(kept)).tree

    def _single(
        self, node: Node, made: Relation, correlation: Correlation, value: str, strict: bool
    ) -> tuple[Node, exp.Expr]:
        if not correlation.pairs:
            if not is_one_row(made.node):
                raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "HAVING without GROUP BY as a value")
            return inner((node, made.node)), our_column(value)
        default = when_empty(made.node, value)
        if strict and default is None:
            return self._attach(node, made.node, correlation.pairs, True), our_column(value)
        found = self._names.new()
        marked = extend(made.node, ((found, TRUE),))
        node = self._attach(node, marked, correlation.pairs, False)
        if default is None:
            return node, our_column(value)
        chosen = "CASE WHEN found THEN value ELSE instead END"
        parts = {"found": column(found), "value": column(value), "instead": default}
        return node, build(chosen, **parts).tree

    def _attach(
        self,
        node: Node,
        right: Node,
        pairs: list[tuple[Expr, str]],
        strict: bool,
        listed: int = 0,
    ) -> Node:
        """Join the result of a subquery; every row of the node is kept unless `strict`.

        The last `listed` pairs are those of IN; the others are correlated.
        """
        if not pairs:
            return inner((node, right))
        node, columns = as_columns(node, pairs, self._names)
        within = columns[len(columns) - listed :]
        self._converter.grouped.append(GroupedJoin(node, right, columns, within))
        if strict:
            on = tuple(equal(a, b) for a, b in columns)
            return inner((node, right), on)
        return Join(Side.LEFT, node, right, columns)

    def _mark(self, node: Node, query: exp.Exists) -> tuple[Node, exp.Expr]:
        made, correlation = self._convert(query.this)
        if correlation.others or correlation.single:
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "EXISTS inside an expression")
        count = self._names.new()
        keys = tuple(dict.fromkeys(c for _, c in correlation.pairs))
        counted = Aggregate(made.node, keys, ((count, COUNT_ROWS),))
        node = self._attach(node, counted, correlation.pairs, False)
        return node, build("n > 0", n=_or_zero(count)).tree

    def _mark_in(self, node: Node, query: exp.In, *, negated: bool) -> tuple[Node, exp.Expr]:
        """IN as a value: in Spark it is TRUE or FALSE, never NULL.

        NOT IN is FALSE as soon as a NULL could have been a match.
        """
        if isinstance(query.this, exp.Tuple) or query.this.find(exp.Query):
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "IN over several columns as a value")
        made, correlation = self._list(query.args["query"])
        if correlation.others:
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "IN inside an expression")
        compared = self._compared(query, made)
        pairs = [*correlation.pairs, *compared]
        count = self._names.new()
        keys = tuple(dict.fromkeys(c for _, c in pairs))
        counted = Aggregate(made.node, keys, ((count, COUNT_ROWS),))
        node = self._attach(node, counted, pairs, False, len(compared))
        if not negated:
            return node, build("n > 0", n=_or_zero(count)).tree
        left = to_expr(query.this, self._names)
        node, total, present = self._counts(node, query.args["query"])
        missing = "total = 0 OR (n = 0 AND (given) IS NOT NULL AND total = present)"
        parts = {"total": total, "n": _or_zero(count), "given": left, "present": present}
        return node, build(missing, **parts).tree

    def _counts(self, node: Node, query: exp.Expr) -> tuple[Node, Expr, Expr]:
        """For each row of the node, count the subquery's rows and its non-NULL values."""
        made, correlation = self._convert(query)
        if correlation.others or len(made.columns) != 1:
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, shorten(query.sql(DIALECT)))
        total, present = self._names.several(2)
        value = made.columns[0]
        keys = tuple(dict.fromkeys(c for _, c in correlation.pairs))
        counts = Aggregate(
            made.node,
            keys,
            (
                (total, COUNT_ROWS),
                (present, call("count", column(value))),
            ),
        )
        node = self._attach(node, counts, correlation.pairs, False)
        return node, _or_zero(total), _or_zero(present)


def _or_zero(count: str) -> Expr:
    """A count, which the join leaves NULL for a row without a group."""
    return build("COALESCE(n, 0)", n=column(count))


def _outermost(part: exp.Expr, strict: bool) -> list[tuple[exp.Expr, bool]]:
    """The subqueries in an expression, each with whether only strict operators enclose it."""
    if isinstance(part, exp.Exists) or _is_in(part):
        return [(part, False)]
    if isinstance(part, exp.Not) and _is_in(part.this):
        return [(part, False)]
    if isinstance(part, exp.Subquery | exp.Query):
        return [(part, strict)]
    strict = strict and isinstance(part, _STRICT)
    return [found for child in part.iter_expressions() for found in _outermost(child, strict)]


def _is_in(part: exp.Expr) -> bool:
    return isinstance(part, exp.In) and part.args.get("query") is not None


def is_one_row(node: Node) -> bool:
    """Whether an aggregate without GROUP BY always returns its row: HAVING may remove it."""
    while isinstance(node, Project):
        node = node.input
    return isinstance(node, Aggregate)


def when_empty(node: Node, value: str) -> Expr | None:
    """The value of the subquery's expression for no rows; None if that is simply NULL."""
    if isinstance(node, Aggregate):
        calls, expr = dict(node.calls), column(value)
    elif isinstance(node, Project) and isinstance(node.input, Aggregate):
        calls, expr = dict(node.input.calls), dict(node.items)[value]
    else:
        raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "HAVING in a correlated scalar subquery")
    tree = expr.tree
    strict = all(
        isinstance(p, (exp.Column, exp.Literal, exp.Identifier, *_STRICT)) for p in tree.walk()
    )
    empties = {c: _empty(calls[c]) for c in expr.columns if c in calls}
    if strict and expr.columns and NULL in empties.values():
        return None

    def visit(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.name in empties:
            return empties[part.name].tree.copy()
        return part

    return Expr(transform(tree, visit), expr.columns - empties.keys())


def _empty(expr: Expr) -> Expr:
    """The value of an aggregate for no rows."""
    tree = expr.tree
    while isinstance(tree, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        tree = tree.this
    called = functions.name_of(tree)
    if called in functions.ZERO_WHEN_EMPTY:
        return number(0)
    return call("array") if called in functions.ARRAY_WHEN_EMPTY else NULL
