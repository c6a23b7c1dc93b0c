"""Joins of few rows: look up what the rows so far lead to, and combine.

An input is run with the values that its rows must have, so that it reads only what can match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.local.row_expressions import RowExpressions, function_of
from stepwell.execution.local.row_steps import (
    Reading,
    Run,
    Step,
    Values,
    arranged,
    check_alike,
    consolidated,
    key_of,
)
from stepwell.lsm.row_lookup import Row
from stepwell.plan.conditions import equal_columns
from stepwell.plan.expressions import Expr
from stepwell.plan.nodes import Inner, Join, Node, Restrict, Side


class Compiler(Protocol):
    """Compiles the inputs of a join."""

    def step(self, node: Node, needed: frozenset[str], known: frozenset[str]) -> Step: ...

    def expressions(self, columns: Sequence[str], types: Sequence[str]) -> RowExpressions: ...


def restrict(
    compiler: Compiler, node: Restrict, needed: frozenset[str], known: frozenset[str]
) -> Step:
    keys = arranged(
        compiler.step(node.keys, frozenset(k for _, k in node.on), frozenset()),
        tuple(k for _, k in node.on),
    )
    mine = tuple(c for c, _ in node.on)
    step = compiler.step(node.input, needed | set(mine), known | set(mine))
    for column, kind in zip(mine, keys.types, strict=True):
        check_alike(step.type(column), kind)
    key, width = key_of([step.place(c) for c in mine]), len(mine)

    def run(reading: Reading, values: Values) -> list[Row]:
        found = keys.run(reading, {})
        if not found:
            return []
        more = {c: {r[i] for r in found} for i, c in enumerate(mine)}
        rows = step.run(reading, {**values, **more})
        among = {r[0] for r in found} if width == 1 else {r[:-1] for r in found}
        return [r for r in rows if key(r) in among]

    return Step(step.columns, step.types, run)


def inner(compiler: Compiler, node: Inner, needed: frozenset[str], known: frozenset[str]) -> Step:
    """Join the inputs one by one, each with the rows that the values so far lead to."""
    wanted = needed.union(known, *(condition.columns for condition in node.on))
    pairs = [pair for pair in map(equal_columns, node.on) if pair is not None]
    waiting = list(range(len(node.inputs)))
    reached = (i for i in waiting if known & set(node.inputs[i].columns))
    place = next(reached, 0)
    waiting.remove(place)
    first = _input(compiler, node.inputs[place], wanted, known)
    columns, types = first.columns, first.types
    joins: list[_Joining] = []
    conditions = list(node.on)
    filters = [_filters(compiler, conditions, columns, types)]
    while waiting:
        place, on = _next(node, waiting, columns, pairs, known)
        waiting.remove(place)
        child = node.inputs[place]
        outside = known & set(child.columns)
        step = _input(compiler, child, wanted, outside | {theirs for _, theirs, _ in on})
        for at, theirs, _ in on:
            check_alike(types[at], step.type(theirs))
        conditions = [c for c in conditions if not _is_pair(c, columns, on)]
        later = needed.union(known, *(condition.columns for condition in conditions))
        kept = [i for i, c in enumerate((*columns, *step.columns)) if c in later]
        others = tuple(outside - {theirs for _, theirs, _ in on})
        joins.append(_joining(step, on, others, kept, len(columns)))
        every, kinds = (*columns, *step.columns), (*types, *step.types)
        columns, types = tuple(every[i] for i in kept), tuple(kinds[i] for i in kept)
        filters.append(_filters(compiler, conditions, columns, types))
    return Step(columns, types, _in_turn(first, known, joins, filters))


def _input(compiler: Compiler, child: Node, wanted: frozenset[str], known: frozenset[str]) -> Step:
    mine = frozenset(child.columns)
    return compiler.step(child, wanted & mine, known & mine)


def _next(
    node: Inner,
    waiting: Sequence[int],
    columns: Sequence[str],
    pairs: Sequence[tuple[str, str, bool]],
    known: frozenset[str],
) -> tuple[int, list[tuple[int, str, bool]]]:
    """The next input that an equality connects, and what must be equal in it.

    For each equality: the position in the rows so far, the input's column, and whether NULL equals
    NULL.
    """
    for place in waiting:
        theirs = node.inputs[place].columns
        on = [
            (columns.index(a), b, null_safe)
            for one, two, null_safe in pairs
            for a, b in ((one, two), (two, one))
            if a in columns and b in theirs
        ]
        if on:
            return place, on
    reached = (i for i in waiting if known & set(node.inputs[i].columns))
    return next(reached, waiting[0]), []


Filtering = Callable[[list[Row]], list[Row]]
_Joining = Callable[[Reading, Values, list[Row]], list[Row]]


def _filters(
    compiler: Compiler, conditions: list[Expr], columns: Sequence[str], types: Sequence[str]
) -> list[Filtering]:
    """The conditions that can be tested now, which are removed from those that wait."""
    now = [c for c in conditions if c.columns <= set(columns)]
    for condition in now:
        conditions.remove(condition)
    made = []
    for condition in now:
        code = compiler.expressions(columns, types)
        made.append(code.function(f"[r for r in rows if {code.condition(condition)}]"))
    return made


def _is_pair(condition: Expr, columns: Sequence[str], on: Sequence[tuple[int, str, bool]]) -> bool:
    """Whether a condition is one of these equalities."""
    pair = equal_columns(condition)
    if pair is None:
        return False
    made = {(columns[at], theirs, null_safe) for at, theirs, null_safe in on}
    return pair in made or (pair[1], pair[0], pair[2]) in made


def _in_turn(
    first: Step,
    known: frozenset[str],
    joins: Sequence[_Joining],
    filters: Sequence[Sequence[Filtering]],
) -> Run:
    mine = tuple(known & set(first.columns))
    before, *after = filters

    def run(reading: Reading, values: Values) -> list[Row]:
        rows = first.run(reading, {c: values[c] for c in mine})
        for keep in before:
            rows = keep(rows)
        for join, filtering in zip(joins, after, strict=True):
            if not rows:
                return rows
            rows = join(reading, values, rows)
            reading.count(len(rows))
            for keep in filtering:
                rows = keep(rows)
        return rows

    return run


def _joining(
    step: Step,
    on: Sequence[tuple[int, str, bool]],
    outside: tuple[str, ...],
    kept: Sequence[int],
    width: int,
) -> _Joining:
    """Join rows of `width` columns with one more input, and keep the columns at some positions.

    `outside` are the columns of the input whose values are known from outside the join.
    """
    items = [f"a[{i}]" if i < width else f"b[{i - width}]" for i in kept]
    row = f"({', '.join((*items, 'a[-1] * b[-1]'))},)"
    if not on:
        combine = function_of(f"[{row} for a in rows for b in others]", "rows, others")

        def product(reading: Reading, values: Values, rows: list[Row]) -> list[Row]:
            others = step.run(reading, {c: values[c] for c in outside})
            reading.count(len(rows) * len(others))
            return combine(rows, others)  # type: ignore[no-any-return]

        return product
    keys = [f"a[{at}]" for at, _, _ in on]
    key = keys[0] if len(keys) == 1 else f"({', '.join(keys)})"
    found = f"by_key.get({key}, ())"
    combine = function_of(f"[{row} for a in rows for b in {found}]", "rows, by_key")
    other = key_of([step.place(theirs) for _, theirs, _ in on])
    strict = [i for i, (_, _, null_safe) in enumerate(on) if not null_safe]

    def joined(reading: Reading, values: Values, rows: list[Row]) -> list[Row]:
        sought = {c: values[c] for c in outside}
        for at, theirs, null_safe in on:
            sought[theirs] = _values(rows, at, null_safe)
        by_key = _by_key(step.run(reading, sought), other, strict)
        return combine(rows, by_key) if by_key else []

    return joined


def _by_key(
    rows: list[Row], key: Callable[[Row], Any], strict: Collection[int]
) -> dict[Any, list[Row]]:
    """Rows by their key, without those whose key is NULL at a position in `strict`."""
    by_key: dict[Any, list[Row]] = {}
    for row in rows:
        by_key.setdefault(key(row), []).append(row)
    if not strict or not by_key:
        return by_key
    if not isinstance(next(iter(by_key)), tuple):
        by_key.pop(None, None)
        return by_key
    return {k: found for k, found in by_key.items() if all(k[i] is not None for i in strict)}


def outer(compiler: Compiler, node: Join, needed: frozenset[str], known: frozenset[str]) -> Step:
    """A left, semi or anti join."""
    if node.side is Side.FULL or not node.equal:
        raise NotSupported("this join is computed by columns")
    also = frozenset[str]().union(*(condition.columns for condition in node.also))
    mine, theirs = tuple(a for a, _ in node.equal), tuple(b for _, b in node.equal)
    left = _input(compiler, node.left, needed | also | set(mine) | known, known)
    wanted = (needed | also | set(theirs)) & set(node.right.columns)
    right = compiler.step(node.right, frozenset(wanted), frozenset(theirs))
    for a, b in node.equal:
        check_alike(left.type(a), right.type(b))
    key, other = key_of(list(map(left.place, mine))), key_of(list(map(right.place, theirs)))
    places = [left.place(a) for a in mine]
    keep = None
    if node.also:
        code = compiler.expressions((*left.columns, *right.columns), (*left.types, *right.types))
        tests = " and ".join(code.condition(condition) for condition in node.also)
        keep = code.function(f"[r for r in rows if {tests}]")
    side, null_safe, nothing = node.side, node.null_safe, (None,) * len(right.columns)
    passed = tuple(known & set(node.left.columns))

    def run(reading: Reading, values: Values) -> list[Row]:
        rows = left.run(reading, {c: values[c] for c in passed})
        if not rows:
            return []
        sought = {c: _values(rows, at, null_safe) for c, at in zip(theirs, places, strict=True)}
        found = consolidated(right.run(reading, sought))
        if min((r[-1] for r in found), default=0) < 0:
            raise Declined(Fallback.ROWS_ELSEWHERE)
        by_key = _by_key(found, other, () if null_safe else range(len(mine)))
        made: list[Row] = []
        for row in rows:
            matches: Sequence[Row] = by_key.get(key(row), ())
            if keep is not None and matches:
                matches = keep([(*row[:-1], *r) for r in matches])
                matches = [r[len(row) - 1 :] for r in matches]
            if side is Side.LEFT:
                weight, most = row[-1], row[:-1]
                made += [(*most, *r[:-1], weight * r[-1]) for r in matches]
                if not matches:
                    made.append((*most, *nothing, weight))
            elif (side is Side.SEMI) == bool(matches):
                made.append(row)
        reading.count(len(made))
        return made

    columns, types = left.columns, left.types
    if side is Side.LEFT:
        columns, types = columns + right.columns, types + right.types
    return Step(columns, types, run)


def _values(rows: Sequence[Row], place: int, null_safe: bool) -> set[Any]:
    found = {r[place] for r in rows}
    if not null_safe:
        found.discard(None)
    return found
