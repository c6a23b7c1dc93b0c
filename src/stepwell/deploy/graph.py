"""Dependency graph of the views: their order, and mistakes in their names.

Works offline, on the text alone (D10). It therefore reports only certain mistakes: an undeclared
relation, a cycle, a column that no relation in scope has, and the findings of `sql/mistakes.py` and
`sql/type_mistakes.py`.
Spark checks the query itself when the pipeline is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from stepwell.errors import SqlError
from stepwell.sql.mistakes import BARE_FUNCTIONS, mistakes, not_a_query, span_of
from stepwell.sql.scope import DIALECT
from stepwell.sql.statements import MaterializedView, Statement, Table, View, fold
from stepwell.sql.type_mistakes import Columns, table_columns, type_mistakes
from stepwell.text import Source, Span, did_you_mean, unquote_name

# Columns that Spark generates, for generators and windows; and functions without parentheses.
_MADE_UP = re.compile(
    r"c\d+|col\d*|pos|key|value|window|session_window|start|end|id|_metadata|" + BARE_FUNCTIONS
)
# Functions that produce columns whose names only Spark knows; with `variant_explode` and `from_`.
_MAKES_COLUMNS = frozenset({"inline", "inline_outer", "json_tuple", "stack", "transform"})
# In text.`data/a.txt`, the name of a file.
_PATH = re.compile(r"[/.*]")


@dataclass(frozen=True, slots=True)
class _Read:
    """A relation that a query names, and its position."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Ordered:
    """Statements in dependency order, and the relations that each view names."""

    statements: tuple[Statement, ...]
    reads: Mapping[str, tuple[str, ...]]


def in_order(statements: Sequence[Statement], *, types: bool = True) -> Ordered:
    """Sort statements behind those they read, otherwise in their given order. Checks every name.

    Without `types`, the types of expressions are not checked: they follow other rules.
    """
    declared = {fold(statement.name): statement for statement in statements}
    trees = {fold(view.name): _parsed(view) for view in statements if not isinstance(view, Table)}
    reads: dict[str, list[_Read]] = {}
    for name, tree in trees.items():
        view = declared[name]
        if not isinstance(view, Table):
            reads[name] = list(_reads(view, tree, declared))
    ordered: dict[str, Statement] = {}
    for name in declared:
        _place(name, declared, reads, ordered, [])
    _check_columns(ordered, trees)
    if types:
        _check_types(ordered, trees)
    named = {
        name: tuple(dict.fromkeys(read.name for read in found)) for name, found in reads.items()
    }
    return Ordered(tuple(ordered.values()), named)


def _place(
    name: str,
    declared: Mapping[str, Statement],
    reads: Mapping[str, Sequence[_Read]],
    ordered: dict[str, Statement],
    above: list[str],
) -> None:
    if name in ordered:
        return
    statement = declared[name]
    for read in reads.get(name, ()):
        if read.name == name or read.name in above:
            circle = [*above[above.index(read.name) :], name] if read.name != name else [name]
            shown = " -> ".join(declared[item].name for item in (*circle, read.name))
            raise statement.source.error_at(
                read.span,
                f"{statement.name} reads itself: {shown}",
                hint="a view can only read tables, and views that do not read it",
            )
        _place(read.name, declared, reads, ordered, [*above, name])
    ordered[name] = statement


def _parsed(view: View | MaterializedView) -> exp.Expr | None:
    """Parse the query; None if only Spark can read it."""
    try:
        tree = parse_one(view.query, dialect=DIALECT)
        wrong = not_a_query(view, tree)
    except (SqlglotError, RecursionError):
        return None
    if wrong is not None:
        raise wrong
    if _reads_whole_table(view.query):
        return None
    for hint in list(tree.find_all(exp.Hint)):
        hint.pop()  # sqlglot reads the names in BROADCAST(a) as relations.
    return tree


def _reads_whole_table(query: str) -> bool:
    """Whether `TABLE t` occurs, which sqlglot reads as a column or as a relation called TABLE."""
    return any(
        token.text.lower() == "table" and after.kind in ("word", "name")
        for token, after in pairwise(Source("query", query).tokens())
    )


def _reads(
    view: View | MaterializedView, tree: exp.Expr | None, declared: Mapping[str, Statement]
) -> Iterator[_Read]:
    if tree is None:
        # A superset is fine: it only determines the order.
        for token in view.source.tokens():
            inside = view.query_span.start <= token.start < view.query_span.end
            name = fold(unquote_name(token.text))
            if inside and name in declared and name != fold(view.name):
                yield _Read(name, token.span)
        return
    local = {fold(table.alias) for table in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or fold(table.name) in local:
            continue
        span = span_of(view, table.this)
        if table.db:
            shown = f"{table.db}.{table.name}"
            hint = f"write {table.name}: a pipeline has one namespace"
            if _PATH.search(table.name):
                hint = "a view reads tables and views; add files through a source"
            raise view.source.error_at(span, f"{shown} names a schema", hint=hint)
        if fold(table.name) not in declared:
            names = [statement.name for statement in declared.values()]
            hint = did_you_mean(table.name, names) or f"declare it: CREATE TABLE {table.name} (...)"
            if fold(table.name).endswith("$errors"):
                hint = "dead letters can be queried, but not by a view: stepwell query"
            message = f"{view.name} reads {table.name}, which is not a table or view"
            raise view.source.error_at(span, message, hint=hint)
        yield _Read(fold(table.name), span)


def _check_columns(ordered: Mapping[str, Statement], trees: Mapping[str, exp.Expr | None]) -> None:
    """Reject a column that no relation in the query has and that nothing in the query produces."""
    columns: dict[str, set[str] | None] = {}
    for name, statement in ordered.items():
        if isinstance(statement, Table):
            columns[name] = {fold(column.name) for column in statement.columns}
            continue
        tree = trees[name]
        if tree is not None:
            _check_query(statement, tree, columns)
            with suppress(RecursionError):  # Too deep for us; Spark has the last word.
                for mistake in mistakes(statement, tree):
                    raise mistake
        columns[name] = _columns(statement, tree)


def _check_types(ordered: Mapping[str, Statement], trees: Mapping[str, exp.Expr | None]) -> None:
    """Reject an expression that Spark certainly refuses because of its types."""
    columns: dict[str, Columns] = {}
    for name, statement in ordered.items():
        if isinstance(statement, Table):
            columns[name] = table_columns(statement)
            continue
        tree = trees[name]
        if tree is not None:
            with suppress(RecursionError):
                columns[name], found = type_mistakes(statement, tree, columns)
                for mistake in found:
                    raise mistake


def column_names(name: str, find: Callable[[str], Statement | None]) -> tuple[str, ...] | None:
    """Return the columns of a table or view, in order; None if only Spark knows them.

    `find` returns a statement by its name in lower case.
    """
    statement = find(fold(name))
    if statement is None:
        return None
    if isinstance(statement, Table):
        return tuple(column.name for column in statement.columns)
    if statement.columns is not None:
        return statement.columns
    tree = _parsed(statement)
    if not isinstance(tree, exp.Query):
        return None
    if not tree.is_star:
        names = tuple(tree.named_selects)
        return names if all(names) else None
    if isinstance(tree, exp.Select) and [type(item) for item in tree.expressions] == [exp.Star]:
        read = list(tree.find_all(exp.Table))
        plain = not any(tree.expressions[0].args.values()) and not tree.args.get("laterals")
        if len(read) == 1 and plain and tree.find(exp.Subquery, exp.CTE, exp.Pivot) is None:
            return column_names(read[0].name, find)
    return None


def _columns(view: View | MaterializedView, tree: exp.Expr | None) -> set[str] | None:
    """Return the columns of a view; None if the text alone does not tell them."""
    if view.columns is not None:
        return {fold(name) for name in view.columns}
    if not isinstance(tree, exp.Query) or tree.is_star:
        return None
    names = tree.named_selects
    return {fold(name) for name in names} if all(names) else None


def _check_query(
    view: View | MaterializedView, tree: exp.Expr, columns: Mapping[str, set[str] | None]
) -> None:
    if tree.find(exp.Pivot, exp.Lambda, exp.Lateral) or _makes_columns(view.query):
        return
    known: set[str] = set()
    aliases: set[str] = set()
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            return  # A table function, whose columns only Spark knows.
        aliases.add(fold(table.alias_or_name))
        if fold(table.name) in columns:
            found = columns[fold(table.name)]
            if found is None:
                return
            known |= found
    for node in tree.find_all(exp.Alias, exp.TableAlias, exp.CTE, exp.Subquery):
        known.add(fold(node.alias_or_name))
        known |= {fold(item.name) for item in node.args.get("columns") or ()}
        if not isinstance(node, exp.Alias):
            aliases.add(fold(node.alias_or_name))
    named = list(tree.find_all(exp.Column))
    for column in named:
        if isinstance(column.this, exp.Star) and fold(column.table) not in aliases:
            return  # All fields of a column, which only Spark knows.
    for column in named:
        # A name after a qualifier that is not an alias may be a field of a column.
        plain = not column.table or fold(column.table) in aliases
        odd = not re.fullmatch(r"\w+", column.name) or _MADE_UP.fullmatch(fold(column.name))
        if plain and not odd and fold(column.name) not in known:
            shown = f"{column.table}.{column.name}" if column.table else column.name
            raise _no_column(view, column, shown, known)


def _makes_columns(query: str) -> bool:
    """Whether a query has columns that only Spark knows: of functions, of `(...).*`, of pipes."""
    source = Source("query", query)
    text = "".join(token.text for token in source.tokens() if token.kind == "symbol")
    return (
        ").*" in text
        or "|>" in text
        or any(
            name in _MAKES_COLUMNS or name.startswith(("variant_explode", "from_"))
            for name in source.called()
        )
    )


def _no_column(
    view: View | MaterializedView, column: exp.Column, shown: str, known: set[str]
) -> SqlError:
    hint = did_you_mean(column.name, known) or "check the columns of what it reads"
    message = f"{view.name} reads an unknown column {shown}"
    return view.source.error_at(span_of(view, column.this), message, hint=hint)
