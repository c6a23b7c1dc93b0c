"""What is wrong with a view, as far as its text tells: without Spark, and so within milliseconds.

Two degrees. `mistakes` are certain, whatever Spark would say, so that no command goes on with them.
The others are most likely mistakes: a query that sqlglot cannot read, which Spark can now and then
(`unreadable`), and a function that Spark does not bring along (`unknown_calls`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError, SqlglotError

from stepwell.errors import SqlError
from stepwell.query import functions, known_functions
from stepwell.query.parse import readable
from stepwell.query.scope import DIALECT
from stepwell.query.source import Source, Span, did_you_mean
from stepwell.query.statements import MaterializedView, View

_ASK = "if Spark takes it: stepwell validate --spark"
# Words that sqlglot takes for columns, and Spark for units of time or functions.
_WORDS = re.compile(
    r"(nano|micro|milli)?seconds?|minutes?|hours?|days?|dayofyear|weeks?|months?|quarters?|years?"
    r"|user|(current|session|local)_?(user|date|time|timestamp|timezone|catalog|database|schema)"
)
_CUBED = re.compile(r"\b(cube|rollup)\s*\(", re.IGNORECASE)
# What stands between a query and one in its FROM or WITH, or beside it in a UNION.
_AROUND = (exp.Subquery, exp.SetOperation, exp.CTE, exp.With, exp.From, exp.Join, exp.Paren)


def mistakes(view: View | MaterializedView, tree: exp.Expr) -> Iterator[SqlError]:
    """What is wrong for certain."""
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
            f"{view.name} is stored, but {unstable}() gives another answer each time, or "
            "depends on where it runs",
            hint="compute the value where the row is made, and store it in a column",
        )
    if tree.find(exp.Pivot, exp.Unnest) is None:
        for select in tree.find_all(exp.Select):
            yield from _not_grouped(view, select)


def unreadable(view: View | MaterializedView) -> SqlError | None:
    """What sqlglot says of a query that it cannot read: most likely Spark cannot either."""
    text = readable(view.query)
    try:
        parse_one(text, dialect=DIALECT)
    except ParseError as error:
        # sqlglot reads no comparison in CUBE (a < 1), which is legal.
        return None if _CUBED.search(text) else _unexpected(view, text, error)
    except (SqlglotError, RecursionError) as error:
        what = str(error).split("\n")[0][:100]
        return view.source.error(view.query_span.start, f"{view.name}: {what}", hint=_ASK)
    return None


def unknown_calls(view: View | MaterializedView) -> Iterator[SqlError]:
    """Functions that Spark does not bring along; a session may have registered them."""
    known = known_functions.known()
    try:
        called = list(known_functions.called(parse_one(readable(view.query), dialect=DIALECT)))
    except (SqlglotError, RecursionError):
        return
    for name in dict.fromkeys(called):
        if name not in known:
            meant = did_you_mean(name, known) or "check its name,"
            yield view.source.error_at(
                _call(view, name),
                f"{view.name} calls {name}(), which is not a function of Spark's",
                hint=f"{meant} or register it in the session that opens the pipeline",
            )


def _not_grouped(view: View | MaterializedView, select: exp.Select) -> Iterator[SqlError]:
    """Columns beside aggregates that no group has one value of."""
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
        # A column that is grouped may be a struct, and this one a field of it.
        names = {item.alias_or_name.lower(), column.name.lower(), *_qualifiers(column)}
        if isinstance(column, exp.Column) and not names & (grouped | named - {item.alias.lower()}):
            yield from (_ungrouped(view, plain) for plain in _plain_columns(column))


def _qualifiers(column: exp.Expr) -> set[str]:
    parts = column.parts[:-1] if isinstance(column, exp.Column) else []
    return {part.name.lower() for part in parts}


def _plain_columns(node: exp.Expr) -> Iterator[exp.Column]:
    """Columns outside of aggregates, windows, subqueries and lambdas."""
    if isinstance(node, exp.Query | exp.Window | exp.Lambda | exp.Kwarg | exp.Interval):
        return
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return  # Of an aggregate.
    if isinstance(node, exp.Anonymous):
        return  # It may be one, too: of a later Spark, or registered by whoever opens the pipeline.
    if functions.is_aggregate(node) or functions.is_generator(node):
        return
    if isinstance(node, exp.Column):
        if not _WORDS.fullmatch(node.name.lower()):
            yield node
        return
    for child in node.iter_expressions():
        yield from _plain_columns(child)


def _may_be_correlated(select: exp.Select) -> bool:
    """Whether a column may be one of a query around it: such a one has one value."""
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
        _span(view, column.this),
        f"{view.name}: {column.name} is neither grouped nor aggregated",
        hint=f"add GROUP BY {column.name}, or take any_value({column.name})",
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


def _span(view: View | MaterializedView, identifier: exp.Expr) -> Span:
    start = identifier.meta.get("start")
    if start is None:
        return view.query_span
    end = identifier.meta.get("end", start)
    return Span(view.query_span.start + start, view.query_span.start + end + 1)


def _call(view: View | MaterializedView, name: str) -> Span:
    """Where a function is called first."""
    tokens = Source(view.name, view.query).tokens()
    for token in tokens:
        if token.text.strip("`").lower() == name:
            start = view.query_span.start
            return Span(start + token.start, start + token.end)
    return view.query_span
