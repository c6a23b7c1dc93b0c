"""LATERAL: a query in FROM that references columns of the items before it.

    a, LATERAL (SELECT x FROM b WHERE b.k = a.k)             a JOIN b ON b.k = a.k
    a LEFT JOIN LATERAL (...) ON c                           a LEFT JOIN b ON b.k = a.k AND c
    a, LATERAL (SELECT count(*) FROM b WHERE b.k = a.k)      a LEFT JOIN (b grouped by k), and 0
                                                             for rows without a group
    a, LATERAL (SELECT a.x + 1)                              one more column of a

See `correlation` for the two ways to convert a subquery.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from sqlglot import exp

from stepwell.plan.expressions import TRUE, Expr, both, build, column, equal, substitute
from stepwell.plan.nodes import Item, Join, Node, Side, Values
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.shape import extend, filtered, inner, join
from stepwell.sql.correlation import Correlation, GroupedJoin, as_columns, over_domain
from stepwell.sql.decorrelate import is_one_row, when_empty
from stepwell.sql.scope import ONE_ROW, Relation, Rewriter, Scope, conjuncts, name

if TYPE_CHECKING:
    from stepwell.sql.catalog import Ctes
    from stepwell.sql.select import Converter


class Lateral:
    """Joins LATERAL queries to the FROM of one SELECT."""

    def __init__(self, converter: Converter, scope: Scope, ctes: Ctes, rewrite: Rewriter) -> None:
        self._converter = converter
        self._names = converter.names
        self._scope = scope
        self._ctes = ctes
        self._rewrite = rewrite

    def attach(self, left: Node, clause: exp.Join) -> Node:
        """Join the left side with the query, and add the query's columns to the scope."""
        outer = clause.side.upper() == "LEFT"
        if clause.kind.upper() not in ("", "INNER", "CROSS", "OUTER") or (
            clause.side and not outer
        ):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, f"{clause.kind} JOIN LATERAL")
        query, known = clause.this.this, dict(self._scope.tables)
        checks = len(self._converter.grouped)
        try:
            correlation = Correlation(self._names, lateral=True)
            made = self._converter.query(query, self._scope, self._ctes, correlation)
            return self._joined(left, made, correlation, clause, outer)
        except Unsupported as error:
            if error.reason.code is not Code.UNSUPPORTED_SUBQUERY:
                raise
            del self._converter.grouped[checks:]
            self._scope.tables = known
            domain = over_domain(query, left, self._scope, self._names)
            if domain is None:
                raise
        correlation, inside = domain
        made = self._converter.query(query, inside, self._ctes, correlation)
        return self._joined(left, made, correlation, clause, outer)

    def _joined(
        self, left: Node, made: Relation, correlation: Correlation, clause: exp.Join, outer: bool
    ) -> Node:
        seen = {*left.columns, *made.node.columns}
        beyond = [*correlation.others, *(expr for _, expr in correlation.after)]
        if any(not expr.columns <= seen for expr in beyond):
            raise Unsupported(
                Code.UNSUPPORTED_SUBQUERY, "a subquery that reaches out over two levels"
            )
        if correlation.single and correlation.pairs:
            return self._one_row(left, made, correlation, clause, outer)
        left, equal = as_columns(left, correlation.pairs, self._names)
        right = made.node
        if correlation.grouped and equal:
            self._converter.grouped.append(GroupedJoin(left, right, equal))
        if outer:
            return self._left_join(left, made, correlation, clause, equal)
        late = {name for name, _ in correlation.after}
        if right == Values(ONE_ROW, right.columns) and set(made.columns) <= late:
            # There is nothing to join: all results are computed from the left side.
            node = left
            for condition in correlation.others:
                node = filtered(node, condition)
        else:
            node = inner((left, right), (*_equal(equal, correlation), *correlation.others))
        node = extend(node, tuple(correlation.after))
        for condition in self._conditions(made.outputs, clause):
            node = filtered(node, condition)
        return node

    def _left_join(
        self,
        left: Node,
        made: Relation,
        correlation: Correlation,
        clause: exp.Join,
        equal: tuple[tuple[str, str], ...],
    ) -> Node:
        found = self._names.new()
        right = made.node
        if correlation.after:
            right = extend(right, ((found, TRUE),))
        on = self._conditions(made.outputs, clause)
        late = {n for n, _ in correlation.after}
        if any(condition.columns & late for condition in on):
            correlation.refuse("a condition over columns of both sides")
        on = [*correlation.others, *on]
        node: Node
        if correlation.null_safe:
            node = Join(Side.LEFT, left, right, equal, null_safe=True, also=tuple(on))
        else:
            node = join(Side.LEFT, left, right, [*_equal(equal, correlation), *on], self._names)
        items = tuple(
            (n, build("CASE WHEN found THEN value END", found=column(found), value=e))
            for n, e in correlation.after
        )
        return extend(node, items)

    def _one_row(
        self, left: Node, made: Relation, correlation: Correlation, clause: exp.Join, outer: bool
    ) -> Node:
        """Join an aggregate without GROUP BY: every left row matches exactly one row."""
        if not is_one_row(made.node):
            correlation.refuse("HAVING without GROUP BY")
        left, equal = as_columns(left, correlation.pairs, self._names)
        late = dict(correlation.after)
        inside = {c for e in late.values() for c in e.columns & set(made.node.columns)}
        needed = dict.fromkeys([*(c for c in made.columns if c not in late), *sorted(inside)])
        found = self._names.new()
        right = extend(made.node, ((found, TRUE),))
        self._converter.grouped.append(GroupedJoin(left, right, equal))
        node: Node = Join(Side.LEFT, left, right, equal, null_safe=correlation.null_safe)
        # A domain column has a value only where there is a group; the left column always has one.
        named = {mine: given for given, mine in equal} if correlation.null_safe else {}
        items: list[Item] = []
        for c in needed:
            if c in named:
                continue
            default = when_empty(made.node, c)
            if default is None:
                named[c] = c
                continue
            instead = substitute(default, {d: named.get(d, d) for d in default.columns})
            named[c] = self._names.new()
            chosen = "CASE WHEN found THEN value ELSE instead END"
            parts = {"found": column(found), "value": column(c), "instead": instead}
            items.append((named[c], build(chosen, **parts)))
        node = extend(node, tuple(items))
        for new, expr in late.items():
            given = {c: named.get(c, c) for c in expr.columns}
            node = extend(node, ((new, substitute(expr, given)),))
            named[new] = new
        outputs = tuple((called, named[c]) for called, c in made.outputs)
        on = self._conditions(outputs, clause)
        if not outer:
            for condition in on:
                node = filtered(node, condition)
            return node
        if on:
            test = reduce(both, on)
            fresh = {c: self._names.new() for c in dict.fromkeys(c for _, c in outputs)}
            padded = tuple(
                (new, build("CASE WHEN test THEN value END", test=test, value=column(c)))
                for c, new in fresh.items()
            )
            node = extend(node, padded)
            self._name(clause, tuple((called, fresh[c]) for called, c in outputs))
        return node

    def _conditions(self, outputs: tuple[tuple[str, str], ...], clause: exp.Join) -> list[Expr]:
        """The conjuncts of ON, after adding the query's column names to the scope."""
        self._name(clause, outputs)
        return [
            self._rewrite.expr(c)
            for c in conjuncts(clause.args.get("on"))
            if not (isinstance(c, exp.Boolean) and c.this)
        ]

    def _name(self, clause: exp.Join, outputs: tuple[tuple[str, str], ...]) -> None:
        alias = clause.this.args.get("alias")
        renamed = [name(c.name) for c in alias.columns] if alias is not None else []
        called = renamed or [output for output, _ in outputs]
        if len(set(called)) != len(called) or len(called) != len(outputs):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "two columns of the same name in FROM")
        columns = dict(zip(called, (c for _, c in outputs), strict=True))
        self._scope.add(name(clause.this.alias), columns)


def _equal(pairs: tuple[tuple[str, str], ...], correlation: Correlation) -> list[Expr]:
    return [equal(a, b, null_safe=correlation.null_safe) for a, b in pairs]
