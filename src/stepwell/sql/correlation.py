"""How a subquery depends on the query around it.

Most subqueries compare their own columns with columns of the outer query in WHERE. Such a subquery
is converted by itself, and the comparisons are set aside for the join with the outer query:

    (SELECT max(u.x) FROM u WHERE u.k = t.k)      u grouped by k, joined to t on k

An operator that groups, orders or numbers the rows of the subquery does so for each value of the
compared columns. This is correct only if an outer row matches at most one value: the comparison
must be an equality, between types whose values are equal one to one (`Converter.grouped`).

Any other subquery is converted over its *domain*: the distinct values of the outer columns that it
names, joined to its FROM. It then contains no outer columns, all of it is computed for each row of
the domain, and the result is joined to the outer query by these values.

    (SELECT max(u.x) FROM u WHERE u.k < t.k)      (SELECT d.k, max(u.x) FROM d, u WHERE u.k < d.k
                                                   GROUP BY d.k), d = SELECT DISTINCT k FROM t
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlglot import exp

from stepwell.plan import functions
from stepwell.plan.conditions import equality
from stepwell.plan.expressions import Expr, column
from stepwell.plan.nodes import Distinct, Item, Names, Node, Project
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.shape import extend, inner, narrow, unresolved
from stepwell.sql.scope import Relation, Scope, name, our_columns


class GroupedJoin(NamedTuple):
    """A node joined with a subquery that was grouped by the compared columns.

    Correct only if a row of the node matches at most one group.
    """

    node: Node
    subquery: Node
    equal: tuple[tuple[str, str], ...]
    listed: tuple[tuple[str, str], ...] = ()
    """The equalities of IN; the others are correlated."""


class Correlation:
    """The dependencies of one subquery on the query around it, collected during conversion."""

    def __init__(self, names: Names, *, lateral: bool = False) -> None:
        self._names = names
        self._lateral = lateral
        """Whether its SELECT list may name columns of the outer query."""
        self._domain: Node | None = None
        self.pairs: list[tuple[Expr, str]] = []
        """Equalities: an expression of the outer query, a column of the subquery."""
        self.others: list[Expr] = []
        self._inside: list[str] = []
        self.after: list[Item] = []
        """Result columns that need both sides and are computed after the join."""
        self.grouped = False
        """Whether rows with the same values in the compared columns are computed together."""
        self.single = False
        """Whether it is an aggregate without GROUP BY, which yields one row for any input."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the subquery that the join needs and every operator must pass on."""
        return tuple(dict.fromkeys([*(c for _, c in self.pairs), *self._inside]))

    @property
    def null_safe(self) -> bool:
        """Whether NULL equals NULL in `pairs`."""
        return self._domain is not None

    def start(self, node: Node) -> Node:
        """The input of the subquery: its FROM, for each row of the domain if there is one."""
        return node if self._domain is None else inner((self._domain, node))

    def take(self, node: Node, expr: Expr) -> Node:
        """Set a condition aside for the join; the node may gain a column for it."""
        inside = expr.columns & set(node.columns)
        pair = equality(expr, expr.columns - inside, inside)
        if pair is None:
            self.others.append(expr)
            self._inside += sorted(inside)
            return node
        outer, mine = pair
        known = mine.column
        if known is None:
            known = self._names.new()
            node = extend(node, ((known, mine),))
        self.pairs.append((outer, known))
        return node

    def defer(self, item: Item, node: Node) -> None:
        """Compute a result column after the join."""
        if not self._lateral:
            self.refuse("a column of the outer query in the SELECT list")
        self.after.append(item)
        self._inside += sorted(item[1].columns & set(node.columns))

    def together(self, what: str) -> tuple[str, ...]:
        """The columns by which to partition an operator over several rows, named by `what`."""
        if self.others or self.after:
            self.refuse(f"{what} over columns compared by other than equality")
        if self.pairs:
            self.grouped = True
        return self.columns

    def distinct(self) -> tuple[str, ...]:
        """The columns to add to those of a DISTINCT.

        DISTINCT does not affect whether a row exists, which is all that EXISTS and IN test.
        """
        return self.together("DISTINCT") if self._lateral else self.columns

    def group(self, *, explicit: bool) -> None:
        self.together("an aggregate")
        self.grouped = True
        self.single = not explicit

    def refuse(self, what: str) -> None:
        kind = "a correlated subquery" if self.pairs or self.others else "a subquery"
        raise Unsupported(Code.UNSUPPORTED_SUBQUERY, f"{what} inside {kind}")


def over_domain(
    query: exp.Expr, node: Node, scope: Scope, names: Names
) -> tuple[Correlation, Scope] | None:
    """The correlation of a query over its domain, and a scope in which to convert it.

    `node` has the outer columns, `scope` their names. None if the query references none of them.
    """
    inside = Scope(outer=scope.outer)
    fresh: dict[str, str] = {}
    for part in query.find_all(exp.Column):
        found = scope.tables.get(name(part.table), {}).get(name(part.name))
        if found is not None and found in node.columns:
            fresh.setdefault(found, names.new())
    if not fresh:
        return None
    for alias, columns in scope.tables.items():
        inside.add(alias, {called: fresh[c] for called, c in columns.items() if c in fresh})
    correlation = Correlation(names)
    outer = Distinct(narrow(node, tuple(fresh)))
    correlation._domain = Project(outer, tuple((new, column(c)) for c, new in fresh.items()))
    correlation.pairs = [(column(c), new) for c, new in fresh.items()]
    return correlation, inside


def check_calls(
    node: Node, selected: Iterable[exp.Expr], others: Iterable[exp.Expr], names: Names
) -> None:
    """Reject outer columns in HAVING, QUALIFY, ORDER BY, and in calls over several rows.

    Elsewhere in a SELECT list they are added after the join.
    """
    calls = [c for part in selected for c in part.find_all(exp.Func, exp.Window)]
    taking = [c for c in calls if isinstance(c, exp.Window) or functions.is_aggregate(c)]
    for parts, where in ((others, "HAVING, QUALIFY or ORDER BY"), (taking, "an aggregate")):
        if any(not our_columns(part, names) <= set(node.columns) for part in parts):
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, f"a column of the outer query in {where}")


def check_closed(made: Relation, correlation: Correlation | None) -> None:
    """Reject a converted subquery that still has an outer column, which no input provides."""
    late = {c for c, _ in correlation.after} if correlation is not None else set()
    if unresolved(made.node) or not set(made.columns) <= {*made.node.columns, *late}:
        raise Unsupported(
            Code.UNSUPPORTED_SUBQUERY, "a column of the outer query in FROM or GROUP BY"
        )


def as_columns(
    node: Node, pairs: Sequence[tuple[Expr, str]], names: Names
) -> tuple[Node, tuple[tuple[str, str], ...]]:
    """The pairs, with the outer expressions as columns of the node."""
    equal: list[tuple[str, str]] = []
    for outer, mine in pairs:
        if not outer.columns <= set(node.columns):
            raise Unsupported(
                Code.UNSUPPORTED_SUBQUERY, "a subquery that reaches out over two levels"
            )
        known = outer.column
        if known is None:
            known = names.new()
            node = extend(node, ((known, outer),))
        equal.append((known, mine))
    return node, tuple(equal)
