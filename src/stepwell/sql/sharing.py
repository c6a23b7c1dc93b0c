"""Which queries of a WITH clause are planned once, although several parts of the query read them.

Without sharing, each reference to a CTE is replaced by its query, and so are the references in
there: CTEs that each read the one before twice double with every step. Sharing a CTE stores its
rows, so it has to pay:

    it ends in groups or distinct rows    they are stored for each reference anyway
    it only renames, casts and filters    never: a reference costs next to nothing
    it joins, unites or numbers rows      if the operators saved outnumber `SAVED_MIN`

A view that is not stored (`CREATE VIEW`) counts as a CTE of each view that reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from stepwell.sql.scope import name

SAVED_MIN = 8
"""The number of operators saved by sharing from which it pays to store the rows of a join."""

_OPERATORS = (exp.Join, exp.Group, exp.Window, exp.SetOperation, exp.Distinct, exp.Lateral)


@dataclass(slots=True)
class _Definition:
    query: exp.Expr
    reads: Counter[str] = field(default_factory=Counter)
    """How often it names each other definition."""
    operators: int = 0
    """The operators of its own."""
    weight: int = 0
    """The operators that replace a reference to it."""


def shared_queries(tree: exp.Expr, views: Mapping[str, exp.Expr]) -> frozenset[int]:
    """The ids of the queries to share, among the CTEs of a query and the `views` that it reads."""
    found = _definitions(tree, views)
    main = _Definition(tree)
    _count(main, found)
    for definition in found.values():
        _count(definition, found)
    written = Counter[str]()
    for definition in (main, *found.values()):
        written.update(definition.reads)
    shared: set[str] = set()
    order = list(_inside_out(found))
    for called in order:
        definition = found[called]
        inside = sum(
            often * (1 if other in shared else found[other].weight)
            for other, often in definition.reads.items()
        )
        definition.weight = definition.operators + inside
        saved = (written[called] - 1) * definition.weight
        if written[called] > 1 and (saved >= SAVED_MIN or _is_stored(definition.query)):
            shared.add(called)
    # A CTE that is named once is still repeated if what names it is.
    often = Counter(main.reads)
    for called in reversed(order):
        if often[called] > 1 and _is_stored(found[called].query):
            shared.add(called)
        times = 1 if called in shared else often[called]
        for other, reads in found[called].reads.items():
            often[other] += times * reads
    return frozenset(id(found[called].query) for called in shared)


def _definitions(tree: exp.Expr, views: Mapping[str, exp.Expr]) -> dict[str, _Definition]:
    """All definitions by name; those that share their name with another one are left out."""
    found: dict[str, _Definition] = {}
    twice: set[str] = set()
    waiting = [tree]
    seen: set[str] = set()
    while waiting:
        query = waiting.pop()
        listed = [(name(cte.alias), cte.this) for cte in query.find_all(exp.CTE)]
        for table in query.find_all(exp.Table):
            called = name(table.name)
            if called in views and called not in seen:
                seen.add(called)
                listed.append((called, views[called]))
                waiting.append(views[called])
        for called, definition in listed:
            if called in found:
                twice.add(called)
            found[called] = _Definition(definition)
    return {called: made for called, made in found.items() if called not in twice}


def _count(definition: _Definition, found: Mapping[str, _Definition]) -> None:
    for part in _parts(definition.query):
        if isinstance(part, exp.Table) and not part.args.get("db") and name(part.name) in found:
            definition.reads[name(part.name)] += 1
        definition.operators += isinstance(part, _OPERATORS)


def _parts(query: exp.Expr) -> Iterator[exp.Expr]:
    """All parts of a query but those of its CTEs."""
    yield query
    for part in query.iter_expressions():
        if not isinstance(part, exp.With):
            yield from _parts(part)


def _inside_out(found: Mapping[str, _Definition]) -> Iterator[str]:
    """The names of all definitions, each after those that it reads."""
    done: set[str] = set()

    def visit(called: str) -> Iterator[str]:
        if called in done:
            return
        done.add(called)
        for other in found[called].reads:
            yield from visit(other)
        yield called

    for called in found:
        yield from visit(called)


def _is_stored(query: exp.Expr) -> bool:
    """Whether the rows of a query are stored wherever it is read: groups, distinct rows."""
    while isinstance(query, exp.Subquery):
        query = query.this
    if isinstance(query, exp.SetOperation):
        return bool(query.args.get("distinct")) or not isinstance(query, exp.Union)
    if not isinstance(query, exp.Select):
        return False
    clauses = ("group", "distinct", "having", "limit")
    if any(query.args.get(clause) for clause in clauses):
        return True
    return any(
        item.find(exp.AggFunc) is not None and item.find(exp.Window) is None
        for item in query.expressions
    )
