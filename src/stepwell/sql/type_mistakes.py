"""Mistakes in the types of a view: found without Spark, from the declared types of the tables.

The type of an expression is known as far as `plan/coercion` and this module tell; otherwise it is
unknown, and so is what is made of it. Only what Spark 4.3 certainly refuses under ANSI is an
error. Nothing is said about an unknown type, a name that may mean several things, or a function
that is not listed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from stepwell.errors import SqlError
from stepwell.plan.coercion import Known, known, never_alike
from stepwell.plan.types import parse_type
from stepwell.sql.expression_types import Typing, type_text
from stepwell.sql.mistakes import span_of
from stepwell.sql.scope import DIALECT
from stepwell.sql.statements import MaterializedView, Table, View, fold
from stepwell.text import Span

Column = tuple[str | None, Known]
"""The name of a result column in lower case, if it has one, and its type."""
Columns = tuple[Column, ...] | None
"""The columns of a relation; None if they are unknown."""


def table_columns(table: Table) -> Columns:
    return tuple((fold(column.name), known(parse_type(column.type))) for column in table.columns)


def type_mistakes(
    view: View | MaterializedView, tree: exp.Expr, relations: Mapping[str, Columns]
) -> tuple[Columns, list[SqlError]]:
    """The columns of a view with their types, and its mistakes.

    `relations` has the columns of what the view can read, by lower-case name.
    """
    checker = _Checker(view)
    if "|>" in view.query:
        return None, []
    columns = checker.query(tree, relations, None)
    if view.columns is not None and columns is not None:
        if len(view.columns) != len(columns):
            return None, checker.errors
        types = (type for _, type in columns)
        columns = tuple(zip(map(fold, view.columns), types, strict=True))
    return columns, checker.errors


@dataclass(slots=True)
class Scope:
    """What the expressions of one SELECT can name."""

    relations: Mapping[str, Columns]
    outer: Scope | None
    sources: list[tuple[str | None, Columns]] = field(default_factory=list)
    """The relations in FROM, by alias."""
    merged: set[str] = field(default_factory=set)
    """Columns joined by name."""
    aliases: dict[str, Known] = field(default_factory=dict)
    """Names of the SELECT list."""
    over_aliases: bool = False
    """Whether the clause that is read can name them."""

    def column(self, name: str, *, over_aliases: bool = False) -> Known:
        """The type of a column by its name alone."""
        found = [type for _, columns in self.sources for n, type in columns or () if n == name]
        opaque = any(columns is None for _, columns in self.sources)
        if name in self.aliases and (over_aliases or not found):
            return None if found or opaque or not over_aliases else self.aliases[name]
        if name in self.merged and opaque:
            return None
        if found:
            return found[0] if all(type == found[0] for type in found) else None
        if opaque or self.outer is None:
            return None
        return self.outer.column(name)

    def has_source(self, alias: str) -> bool:
        """Whether an alias names a relation here or in an outer query, or may do so."""
        here = any(name is None or name == alias for name, _ in self.sources)
        return here or (self.outer is not None and self.outer.has_source(alias))

    def of_source(self, alias: str, name: str) -> Known:
        """The type of `alias.name`."""
        sources = [columns for own, columns in self.sources if own == alias]
        if not sources:
            return None if self.outer is None else self.outer.of_source(alias, name)
        found = [type for columns in sources for n, type in columns or () if n == name]
        return found[0] if len(found) == 1 else None


class _Checker(Typing):
    """Finds the types and the mistakes of one view."""

    def __init__(self, view: View | MaterializedView) -> None:
        self._view = view
        self.errors: list[SqlError] = []

    def wrong(self, node: exp.Expr, message: str, hint: str) -> None:
        view = self._view
        self.errors.append(
            view.source.error_at(self._span(node), f"{view.name}: {message}", hint=hint)
        )

    def _span(self, node: exp.Expr) -> Span:
        """The place of an expression: from its first to its last name."""
        named = [item for item in node.find_all(exp.Identifier) if "start" in item.meta]
        if not named:
            return self._view.query_span if node.parent is None else self._span(node.parent)
        first = min(named, key=lambda item: int(item.meta["start"]))
        last = max(named, key=lambda item: int(item.meta["start"]))
        return Span(span_of(self._view, first).start, span_of(self._view, last).end)

    # Queries

    def query(
        self, tree: exp.Expr, relations: Mapping[str, Columns], outer: Scope | None
    ) -> Columns:
        """The columns of a query."""
        clause = tree.args.get("with_")
        for cte in clause.expressions if clause is not None else ():
            recursive = isinstance(clause, exp.With) and clause.recursive
            columns = None if recursive else self.query(cte.this, relations, outer)
            relations = {**relations, fold(cte.alias): _renamed(columns, cte.args.get("alias"))}
        if isinstance(tree, exp.Select):
            return self._select(tree, relations, outer)
        if isinstance(tree, exp.SetOperation):
            columns = self._set_operation(tree, relations, outer)
        elif isinstance(tree, exp.Subquery | exp.Paren) and isinstance(
            tree.this, exp.Query | exp.Paren
        ):
            columns = self.query(tree.this, relations, outer)
            if tree.args.get("pivots") or tree.args.get("joins"):
                return None
        else:
            return None
        self._limits(tree)
        return columns

    def _set_operation(
        self, tree: exp.SetOperation, relations: Mapping[str, Columns], outer: Scope | None
    ) -> Columns:
        left = self.query(tree.left, relations, outer)
        right = self.query(tree.right, relations, outer)
        name = tree.key.upper()
        if tree.args.get("by_name") or left is None or right is None:
            return None
        if len(left) != len(right):
            self.wrong(
                tree.right,
                f"{name} of a query with {_count(left)} and one with {_count(right)}",
                "give both as many columns, or write UNION ALL BY NAME",
            )
            return None
        made: list[Column] = []
        for number, ((column, a), (_, b)) in enumerate(zip(left, right, strict=True), start=1):
            if never_alike(a, b):
                shown = column or f"number {number}"
                self.wrong(
                    tree.right,
                    f"{name} of a column {shown} of type {type_text(a)} and one of type "
                    f"{type_text(b)}",
                    "give both queries columns of the same types, in the same order",
                )
            if tree.args.get("distinct") is not False:
                self._no_map(tree.right, a, f"{name} compares rows")
            made.append((column, self.common([a, b])))
        return tuple(made)

    def _select(
        self, tree: exp.Select, relations: Mapping[str, Columns], outer: Scope | None
    ) -> Columns:
        scope = Scope(relations, outer)
        first = tree.args.get("from_")
        if first is not None:
            self._source(first.this, scope)
        joins = tree.args.get("joins") or []
        for join in joins:
            self._source(join.this, scope)
            self._join(join, scope)
            if join.kind in ("SEMI", "ANTI"):
                scope.sources.pop()  # Only ON sees it.
        for lateral in tree.args.get("laterals") or []:
            self._source(lateral, scope)
        if tree.args.get("pivots") or any(join.method == "NATURAL" for join in joins):
            scope.sources.append((None, None))
        made = self._items(tree, scope)
        for column, type in made or ():
            if tree.args.get("distinct"):
                self._no_map(tree, type, f"DISTINCT compares the column {column or ''}".rstrip())
        self._clauses(tree, scope)
        by_name = any(join.args.get("using") or join.method == "NATURAL" for join in joins)
        return None if by_name and tree.is_star else made

    def _items(self, tree: exp.Select, scope: Scope) -> Columns:
        """The result columns of a SELECT."""
        made: list[Column] = []
        opaque = False
        for item in tree.expressions:
            if item.is_star:
                columns = _starred(item, scope)
                opaque = opaque or columns is None
                made += columns or ()
                self.infer(item, scope)
                continue
            type = self.infer(item, scope)
            opaque = opaque or isinstance(item, exp.Aliases) or self.makes_columns(item)
            name = fold(item.alias_or_name) or None
            made.append((name, type))
            if isinstance(item, exp.Alias) and name is not None:
                scope.aliases[name] = None if name in scope.aliases else type
        return None if opaque or tree.args.get("kind") else tuple(made)

    def _clauses(self, tree: exp.Select, scope: Scope) -> None:
        for clause, shown in (("where", "WHERE"), ("having", "HAVING"), ("qualify", "QUALIFY")):
            found = tree.args.get(clause)
            if found is not None:
                scope.over_aliases = clause != "where"
                self.condition(found.this, scope, shown)
                scope.over_aliases = False
        scope.over_aliases = True
        for clause in ("group", "windows"):
            found = tree.args.get(clause)
            for part in found if isinstance(found, list) else [found] if found else []:
                self.infer(part, scope)
        for clause, shown in (("order", "ORDER BY"), ("sort", "SORT BY")):
            found = tree.args.get(clause)
            for part in found.expressions if found is not None else ():
                self.ordered(part, scope, shown)
        scope.over_aliases = False
        self._limits(tree)

    def _limits(self, tree: exp.Expr) -> None:
        for clause in ("limit", "offset"):
            found = tree.args.get(clause)
            value = None if found is None else found.args.get("expression")
            odd = isinstance(value, exp.Boolean) or (
                isinstance(value, exp.Literal) and not value.is_string and not value.is_int
            )
            if value is not None and (odd or isinstance(value, exp.Column)):
                number = value.sql(DIALECT)
                message = f"{clause.upper()} must be a whole number, found {number}"
                self.wrong(tree, message, f"write a number, for example {clause.upper()} 10")

    def _source(self, node: exp.Expr, scope: Scope) -> None:
        """Add a relation of FROM to the scope."""
        alias = fold(node.alias_or_name) or None
        columns: Columns = None
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            columns = scope.relations.get(fold(node.name))
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            # A subquery in FROM does not see the other relations of FROM.
            columns = self.query(node, scope.relations, scope.outer)
        elif isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            self.query(node.this, scope.relations, scope)
        elif isinstance(node, exp.Lateral):
            self.infer(node.this, scope)
        if not isinstance(node, exp.Table | exp.Subquery) or node.args.get("joins"):
            alias = None if node.args.get("joins") else alias
            columns = None
        if node.args.get("pivots"):
            alias, columns = None, None
        scope.sources.append((alias, _renamed(columns, node.args.get("alias"))))

    def _join(self, join: exp.Join, scope: Scope) -> None:
        names = [fold(item.name) for item in join.args.get("using") or ()]
        right = dict(scope.sources[-1][1] or ())
        for name in names:
            left = [
                dict(columns or ())[name]
                for _, columns in scope.sources[:-1]
                if name in dict(columns or ())
            ]
            if left and name in right and never_alike(left[0], right[name]):
                self.wrong(
                    join.this,
                    f"joined USING ({name}), which is {type_text(left[0])} on one side and "
                    f"{type_text(right[name])} on the other",
                    "write ON with a condition that converts one of them",
                )
        scope.merged.update(names)
        if join.args.get("on") is not None:
            self.condition(join.args["on"], scope, "ON")

    # Names

    def column(self, node: exp.Column, scope: Scope) -> Known:
        parts = [fold(part.name) for part in node.parts]
        if isinstance(node.this, exp.Star) or len(parts) > 2:
            return None
        if len(parts) == 1:
            return scope.column(parts[0], over_aliases=scope.over_aliases)
        if scope.has_source(parts[0]):
            return scope.of_source(*parts)
        return self.part(node, scope.column(parts[0]), node.this)

    def subquery(self, node: exp.Expr, scope: Scope) -> Sequence[Known] | None:
        columns = self.query(node, scope.relations, scope)
        return None if columns is None else [type for _, type in columns]


def _starred(item: exp.Expr, scope: Scope) -> Columns:
    """The columns of `*` or `alias.*`."""
    star = item.this if isinstance(item, exp.Column) else item
    if any(star.args.get(key) for key in ("except_", "replace", "rename")) or scope.merged:
        return None
    made: list[Column] = []
    for alias, columns in scope.sources:
        if isinstance(item, exp.Column) and alias != fold(item.table):
            continue
        if columns is None:
            return None
        made += columns
    return tuple(made) or None


def _renamed(columns: Columns, alias: exp.Expr | None) -> Columns:
    names = [] if alias is None else alias.args.get("columns") or []
    if not names or columns is None:
        return columns
    if len(names) != len(columns):
        return None
    pairs: Iterable[tuple[exp.Expr, Column]] = zip(names, columns, strict=True)
    return tuple((fold(name.name), type) for name, (_, type) in pairs)


def _count(columns: Sequence[Column]) -> str:
    return "1 column" if len(columns) == 1 else f"{len(columns)} columns"
