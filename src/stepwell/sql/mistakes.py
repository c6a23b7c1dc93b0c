"""Mistakes in a view that its text alone reveals: found without Spark, within milliseconds.

There are two degrees of certainty. `mistakes` are certain, whatever Spark would say, so every
command stops at them. The others are likely mistakes: a query that sqlglot cannot parse, although
Spark occasionally can (`unreadable`), and a function that is not built into Spark
(`unknown_calls`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError, SqlglotError

from stepwell.errors import SqlError
from stepwell.plan import functions
from stepwell.sql import known_functions
from stepwell.sql.parse import readable
from stepwell.sql.scope import DIALECT
from stepwell.sql.statements import MaterializedView, View
from stepwell.text import Source, Span, did_you_mean, unquote_name

_ASK = "to ask Spark: stepwell validate --spark"
BARE_FUNCTIONS = (
    r"user|(current|session|local)_?(user|date|time|timestamp|timezone|catalog|database|schema)"
)
"""The names of functions that are called without parentheses, as a regular expression."""
# Words that sqlglot reads as columns, and Spark as time units or functions.
_WORDS = re.compile(
    r"(nano|micro|milli)?seconds?|minutes?|hours?|days?|dayofyear|weeks?|months?|quarters?|years?|"
    + BARE_FUNCTIONS
)
_CUBED = frozenset({"cube", "rollup"})
# sqlglot classifies these as aggregates, but they are functions of groups and windows.
_NOT_AGGREGATES = frozenset(
    {
        *("grouping", "grouping_id", "cume_dist", "dense_rank", "lag", "lead", "nth_value"),
        *("ntile", "percent_rank", "rank"),
    }
)
# Nodes between a query and a query in its FROM or WITH, or a sibling in a UNION.
_AROUND = (exp.Subquery, exp.SetOperation, exp.CTE, exp.With, exp.From, exp.Join, exp.Paren)

_STATEMENTS = (
    *(exp.Alter, exp.Analyze, exp.Cache, exp.Command, exp.Create, exp.Declare, exp.Delete),
    *(exp.Describe, exp.Drop, exp.Insert, exp.LoadData, exp.Merge, exp.MultitableInserts),
    *(exp.QueryTransform, exp.Refresh, exp.Set, exp.TruncateTable, exp.Uncache, exp.Update),
    exp.Use,
)
_SHOWN = {"TRANSFORM": "TRANSFORM ... USING"}
_VERBS = frozenset(
    {
        *("add", "alter", "analyze", "cache", "call", "create", "declare", "delete", "desc"),
        *("describe", "drop", "execute", "explain", "grant", "insert", "load", "merge", "refresh"),
        *("revoke", "set", "show", "truncate", "uncache", "update", "use"),
    }
)


def not_a_query(view: View | MaterializedView, tree: exp.Expr) -> SqlError | None:
    """The error for a body that does more than query: a command, a change of rows, a program.

    `execution/spark/read_only.py` refuses the same on Spark's plans. Where the names in a body are
    not those of a query, nothing else is worth checking.
    """
    found = tree if isinstance(tree, _STATEMENTS) else tree.find(*_STATEMENTS)
    if found is None:
        return None
    # In FROM t INSERT, or after WITH, the statement does not begin the text.
    verbs = {"transform"} if isinstance(found, exp.QueryTransform) else _VERBS
    verb = next(
        (token for token in Source(view.name, view.query).tokens() if token.text.lower() in verbs),
        None,
    )
    start = view.query_span.start
    span = view.query_span if verb is None else Span(start + verb.start, start + verb.end)
    name = found.key.upper() if verb is None else verb.text.upper()
    return view.source.error_at(
        span,
        f"{view.name}: {_SHOWN.get(name, name)} is not part of a query",
        hint="write a SELECT: a view reads the pipeline's tables and views, and changes nothing",
    )


def mistakes(view: View | MaterializedView, tree: exp.Expr) -> Iterator[SqlError]:
    """The certain mistakes."""
    for name in known_functions.called(tree):
        if name in known_functions.REACHING:
            yield view.source.error_at(
                _call(view, name),
                f"{view.name}: the function {name} {known_functions.REACHING[name]}",
                hint="leave it out: a view reads the pipeline's tables and views only",
            )
    unstable = functions.unstable(tree)
    if unstable is not None and isinstance(view, MaterializedView):
        yield view.source.error_at(
            _call(view, unstable),
            f"{view.name} is stored, but {unstable}() gives a different answer each time, or "
            "depends on where it runs",
            hint="compute the value where the row is created, and store it in a column",
        )
    if tree.find(exp.Pivot, exp.Unnest) is None:
        for select in tree.find_all(exp.Select):
            yield from _not_grouped(view, select)
            yield from _aggregates_in_where(view, select)
        yield from _nested_aggregates(view, tree)
        for union in tree.find_all(exp.SetOperation):
            yield from _unequal_columns(view, union)


def unreadable(view: View | MaterializedView) -> SqlError | None:
    """sqlglot's error for a query that it cannot parse: most likely Spark cannot either."""
    text = readable(view.query)
    try:
        _parsed(text)
    except ParseError as error:
        # sqlglot cannot parse a comparison in CUBE (a < 1), which is legal.
        cubed = _CUBED & Source(view.name, view.query).called()
        return None if cubed else _unexpected(view, text, error)
    except (SqlglotError, RecursionError) as error:
        what = str(error).split("\n")[0][:100]
        return view.source.error(view.query_span.start, f"{view.name}: {what}", hint=_ASK)
    return None


@lru_cache(maxsize=1_000)
def _parsed(text: str) -> exp.Expr:
    """The tree of a query. Never modify it: every check of a view reads the same one."""
    return parse_one(text, dialect=DIALECT)


def unknown_calls(view: View | MaterializedView) -> Iterator[SqlError]:
    """Functions that are not built into Spark; a session may have registered them."""
    known = known_functions.known()
    try:
        called = list(known_functions.called(_parsed(readable(view.query))))
    except (SqlglotError, RecursionError):
        return
    for name in dict.fromkeys(called):
        if name not in known:
            meant = did_you_mean(name, known) or "check its name,"
            yield view.source.error_at(
                _call(view, name),
                f"{view.name} calls {name}(), which is not a Spark function",
                hint=f"{meant} or register it in the session that opens the pipeline",
            )


def _not_grouped(view: View | MaterializedView, select: exp.Select) -> Iterator[SqlError]:
    """Columns next to aggregates that are neither grouped nor aggregated."""
    group = select.args.get("group")
    items = [item for item in select.expressions if not item.is_star]
    if len(items) < len(select.expressions) or _may_be_correlated(select):
        return
    named = {item.alias.lower() for item in items if isinstance(item, exp.Alias)}
    if group is None:
        if any(map(functions.contains_aggregate, items)):
            for column in (column for item in items for column in _plain_columns(item)):
                if column.name.lower() not in named:
                    yield _ungrouped(view, column)
        return
    if {key for key, value in group.args.items() if value} != {"expressions"}:
        return
    grouped: set[str] = set()
    for key in group.expressions:
        if isinstance(key, exp.Column):
            grouped.add(key.name.lower())
        elif isinstance(key, exp.Literal) and key.is_int and 0 < int(key.this) <= len(items):
            grouped.add(items[int(key.this) - 1].unalias().name.lower())
        else:
            return
    for item in items:
        column = item.unalias()
        # A grouped column may be a struct, and this one a field of it.
        names = {item.alias_or_name.lower(), column.name.lower(), *_qualifiers(column)}
        if isinstance(column, exp.Column) and not names & (grouped | named - {item.alias.lower()}):
            yield from (_ungrouped(view, plain) for plain in _plain_columns(column))


def _aggregates_in_where(view: View | MaterializedView, select: exp.Select) -> Iterator[SqlError]:
    """Aggregates in WHERE, which filters rows before they are grouped."""
    where = select.args.get("where")
    # In a subquery of HAVING, it may be an aggregate of the outer query.
    if where is None or _may_be_correlated(select):
        return
    for call in _own_aggregates(where):
        name = functions.name_of(call) or call.sql(DIALECT)
        yield view.source.error_at(
            _call_of(view, call, name),
            f"{view.name}: {name}() is an aggregate, and WHERE is decided row by row",
            hint="put the condition into HAVING, or compare with a subquery",
        )


def _nested_aggregates(view: View | MaterializedView, tree: exp.Expr) -> Iterator[SqlError]:
    """Aggregates of aggregates, which only a window function may be."""
    for outer in tree.walk():
        if not functions.is_aggregate(outer) or _is_windowed(outer):
            continue
        for inner in (call for part in outer.iter_expressions() for call in _own_aggregates(part)):
            name = functions.name_of(inner) or inner.sql(DIALECT)
            around = functions.name_of(outer) or outer.sql(DIALECT)
            yield view.source.error_at(
                _call_of(view, inner, name),
                f"{view.name}: {name}() is nested in {around}(), and both are aggregates",
                hint=f"compute {name}() in a subquery or a view, and {around}() over that",
            )


def _own_aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    """The outermost aggregate calls outside of subqueries and windows."""
    if isinstance(node, exp.Query | exp.Window):
        return
    if functions.is_aggregate(node) and functions.name_of(node) not in _NOT_AGGREGATES:
        yield node
        return
    for child in node.iter_expressions():
        yield from _own_aggregates(child)


def _is_windowed(call: exp.Expr) -> bool:
    node = call
    while isinstance(
        node.parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup
    ):
        node = node.parent
    return isinstance(node.parent, exp.Window) and node.arg_key == "this"


def _unequal_columns(view: View | MaterializedView, union: exp.SetOperation) -> Iterator[SqlError]:
    if union.args.get("by_name"):
        return
    left, right = _column_count(union.left), _column_count(union.right)
    if left is not None and right is not None and left != right:
        first = next(union.right.find_all(exp.Identifier), None)
        yield view.source.error_at(
            view.query_span if first is None else span_of(view, first),
            f"{view.name}: {union.key.upper()} of a query with {_columns(left)} and one with "
            f"{_columns(right)}",
            hint="give both as many columns, or write UNION ALL BY NAME",
        )


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _column_count(query: exp.Expr) -> int | None:
    """The number of columns of a query; None if its text does not tell."""
    if isinstance(query, exp.Subquery) and not query.args.get("pivots"):
        return _column_count(query.this)
    if isinstance(query, exp.SetOperation):
        return None if query.args.get("by_name") else _column_count(query.left)
    if not isinstance(query, exp.Select) or query.args.get("pivots"):
        return None
    items = query.expressions
    if not items or any(item.is_star or isinstance(item, exp.Aliases) for item in items):
        return None
    # A generator may produce several columns, and so may an unknown function.
    for call in (item.unalias() for item in items):
        if isinstance(call, exp.Anonymous | exp.UDTF | exp.QueryTransform | exp.Dot):
            return None
        if functions.is_generator(call):
            return None
    return len(items)


def _qualifiers(column: exp.Expr) -> set[str]:
    parts = column.parts[:-1] if isinstance(column, exp.Column) else []
    return {part.name.lower() for part in parts}


def _plain_columns(node: exp.Expr) -> Iterator[exp.Column]:
    """Columns outside of aggregates, windows, subqueries and lambdas."""
    if isinstance(node, exp.Query | exp.Window | exp.Lambda | exp.Kwarg | exp.Interval):
        return
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return  # A clause of an aggregate.
    if isinstance(node, exp.Anonymous):
        return  # May be an aggregate too: from a later Spark, or registered in the session.
    if functions.is_aggregate(node) or functions.is_generator(node):
        return
    if isinstance(node, exp.Column):
        if not _WORDS.fullmatch(node.name.lower()):
            yield node
        return
    for child in node.iter_expressions():
        yield from _plain_columns(child)


def _may_be_correlated(select: exp.Select) -> bool:
    """Whether a column may belong to an outer query, where it has a single value."""
    node: exp.Expr = select
    while node.parent is not None:
        parent = node.parent
        in_from = isinstance(node, exp.From | exp.Join | exp.With)
        if not isinstance(parent, _AROUND) and not (isinstance(parent, exp.Select) and in_from):
            return True
        node = parent
    return False


def _ungrouped(view: View | MaterializedView, column: exp.Column) -> SqlError:
    return view.source.error_at(
        span_of(view, column.this),
        f"{view.name}: {column.name} is neither grouped nor aggregated",
        hint=f"add GROUP BY {column.name}, or use any_value({column.name})",
    )


def _unexpected(view: View | MaterializedView, text: str, error: ParseError) -> SqlError:
    found = error.errors[0] if error.errors else {}
    word = str(found.get("highlight") or "")
    what = f"{word} is not expected here" if word.strip() else "this query cannot be read"
    if str(found.get("description")).startswith("Required keyword"):
        what = f"something is missing after {word}"
    at = 0
    line, column = found.get("line"), found.get("col")
    if text == view.query and line and column:
        before = sum(len(part) + 1 for part in text.split("\n")[: line - 1])
        at = max(0, min(before + column - len(word), len(text) - 1))
    start = view.query_span.start + at
    span = Span(start, start + max(1, len(word)))
    return view.source.error_at(span, f"{view.name}: {what}", hint=_ASK)


def span_of(view: View | MaterializedView, identifier: exp.Expr) -> Span:
    """The position of an identifier of the query in its file."""
    start = identifier.meta.get("start")
    if start is None:
        return view.query_span
    end = identifier.meta.get("end", start)
    return Span(view.query_span.start + start, view.query_span.start + end + 1)


def _call_of(view: View | MaterializedView, call: exp.Expr, name: str) -> Span:
    """The position of this call: the last one of its name before its first column."""
    places = [node.meta["start"] for node in call.find_all(exp.Identifier) if "start" in node.meta]
    start, found = view.query_span.start, _call(view, name)
    for token in Source(view.name, view.query).tokens():
        if token.text.strip("`").lower() == name and token.start < min(
            places, default=len(view.query)
        ):
            found = Span(start + token.start, start + token.end)
    return found


def _call(view: View | MaterializedView, name: str) -> Span:
    """The position of the first call of a function."""
    tokens = Source(view.name, view.query).tokens()
    for token in tokens:
        if unquote_name(token.text).lower() == name:
            start = view.query_span.start
            return Span(start + token.start, start + token.end)
    return view.query_span
