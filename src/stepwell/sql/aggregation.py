"""GROUP BY: aggregate calls and grouping expressions become columns of an `Aggregate`.

ROLLUP, CUBE and GROUPING SETS repeat every row once per set, with the keys outside the set replaced
by NULL, and group by these keys and the number of the set. A NULL that stands for "all" is
therefore never confused with a NULL in the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING

from sqlglot import exp

from stepwell.plan import functions
from stepwell.plan.expressions import NULL, Expr, build, call, cast, column, number, text
from stepwell.plan.nodes import Aggregate, Generate, Item, Names, Node
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.shape import extend, narrow
from stepwell.sql.correlation import Correlation
from stepwell.sql.scope import (
    DIALECT,
    Rewriter,
    Visit,
    our_column,
    our_columns,
    shorten,
    to_expr,
    transform,
)

if TYPE_CHECKING:
    from stepwell.sql.decorrelate import Decorrelator

Wrapper = exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls


def aggregate(
    node: Node,
    group: exp.Group | None,
    parts: list[exp.Expr],
    selected: int,
    rewrite: Rewriter,
    names: Names,
    correlation: Correlation | None,
) -> tuple[Node, list[exp.Expr]]:
    """The aggregated node, and the parts rewritten over its columns.

    The first `selected` parts are the SELECT list.
    """
    keys, sets = _grouping(group, parts[:selected], rewrite)
    made = _Keys(names)
    for key in keys:
        node = made.add(node, key)
    marks: dict[str, Expr] = {}
    if sets is not None:
        node = made.repeat(node, sets)
        marks = made.marks()

    calls: dict[str, str] = {}
    items: list[Item] = []

    def as_key(part: exp.Expr) -> exp.Expr:
        key = made.columns.get(part.sql(dialect=DIALECT, comments=False))
        return part if key is None else our_column(key)

    def visit(part: exp.Expr) -> exp.Expr:
        text = part.sql(dialect=DIALECT, comments=False)
        if text in made.columns and not isinstance(part, exp.Literal | exp.Ordered):
            return our_column(made.columns[text])
        if isinstance(part, exp.Window):
            return _inside_window(part, visit)
        called = _call(part)
        if called is None:
            return part
        if functions.name_of(called) in ("grouping", "grouping_id"):
            return _grouping_call(called, made, marks)
        if text not in calls:
            new = names.new()
            calls[text] = new
            if functions.has_time_window(part):
                # window(...) generates rows, so it is computed only once, as a key.
                part = transform(part, as_key)
                if sets is not None or functions.has_time_window(part):
                    raise Unsupported(Code.UNSUPPORTED_OPERATOR, "window(...) in an aggregate")
            items.append((new, to_expr(part, names)))
        return our_column(calls[text])

    replaced = [transform(part, visit) for part in parts]
    columns = tuple(dict.fromkeys(made.keys))
    if correlation is not None:
        correlation.group(explicit=group is not None)
        columns = tuple(dict.fromkeys((*columns, *correlation.columns)))
    allowed = {*columns, *calls.values()}
    for part in replaced:
        stray = our_columns(part, names) & set(node.columns) - allowed
        if stray:
            raise Unsupported(
                Code.PARSE_MISMATCH, f"{shorten(part.sql(DIALECT))} is not in GROUP BY"
            )
    needed = {*columns}.union(*(expr.columns for _, expr in items))
    node = narrow(node, tuple(c for c in node.columns if c in needed) or node.columns[:1])
    return Aggregate(node, columns, tuple(items)), replaced


def join_subqueries(
    node: Node,
    group: exp.Group | None,
    parts: list[exp.Expr],
    selected: int,
    rewrite: Rewriter,
    subqueries: Decorrelator,
) -> tuple[Node, exp.Group | None, list[exp.Expr]]:
    """Turn subqueries in keys and aggregate arguments into columns of the rows to be grouped.

    Any other subquery is a value of the group and is handled later.
    """
    replaced: dict[str, exp.Expr] = {}

    def joined(part: exp.Expr) -> exp.Expr:
        nonlocal node
        if not part.find(exp.Query):
            return part
        text = part.sql(dialect=DIALECT, comments=False)
        if text not in replaced:
            node, replaced[text] = subqueries.value(node, part)
        return replaced[text].copy()

    keys: set[str] = set()
    if group is not None and group.find(exp.Query):
        group = group.copy()
        for key in group.expressions:
            resolved = rewrite.columns(key)
            keys.add(resolved.sql(dialect=DIALECT, comments=False))
            if not isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
                key.replace(joined(resolved))
        if group.find(exp.Query):
            raise Unsupported(Code.UNSUPPORTED_SUBQUERY, "a subquery in grouping sets")
    elif group is not None and group.args.get("all"):
        alone = [part for part in parts[:selected] if not functions.contains_aggregate(part)]
        keys = {part.sql(dialect=DIALECT, comments=False) for part in alone}

    def visit(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Window):
            return _inside_window(part, visit) if part.find(exp.Query) else part
        if _call(part) is not None or part.sql(dialect=DIALECT, comments=False) in keys:
            return joined(part)
        return part

    if keys or any(part.find(exp.Query) for part in parts):
        parts = [transform(part, visit) for part in parts]
    return node, group, parts


class _Keys:
    """The grouping expressions as columns."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.columns: dict[str, str] = {}
        """Maps the text of a key to its column."""
        self.order: list[str] = []
        self.keys: list[str] = []
        self.mark: str | None = None

    def add(self, node: Node, key: exp.Expr) -> Node:
        text = key.sql(dialect=DIALECT, comments=False)
        if text in self.columns:
            return node
        expr = to_expr(key, self._names)
        known = expr.column
        if known is None:
            known = self._names.new()
            if functions.is_time_window(key):
                node = Generate(node, expr, False, (known,))
            else:
                node = extend(node, ((known, expr),))
        self.columns[text] = known
        self.order.append(text)
        self.keys.append(known)
        return node

    def repeat(self, node: Node, sets: list[list[str]]) -> Node:
        """Repeat every row once per grouping set."""
        sources = [self.columns[text] for text in self.order]
        rows: list[Expr] = []
        for position, chosen in enumerate(sets):
            fields: list[Expr] = []
            for i, (key, source) in enumerate(zip(self.order, sources, strict=True)):
                fields += [text(f"k{i}"), column(source) if key in chosen else NULL]
            bits = "".join("0" if key in chosen else "1" for key in self.order)
            fields += [text("gid"), cast(number(int(bits, 2) if bits else 0), "bigint")]
            fields += [text("pos"), number(position)]
            rows.append(call("named_struct", *fields))
        new = self._names.several(len(self.order) + 2)
        self.columns = dict(zip(self.order, new, strict=False))
        self.keys = list(new)
        self.mark = new[-2]
        generator = call("inline", call("array", *rows))
        return Generate(node, generator, False, new)

    def marks(self) -> dict[str, Expr]:
        """For each key, an expression that is 1 where the key is replaced by NULL."""
        if self.mark is None:
            return {}
        last, mark = len(self.order) - 1, column(self.mark)
        bit = "CAST(SHIFTRIGHT(mark, place) & CAST(1 AS BIGINT) AS TINYINT)"
        return {
            key: build(bit, mark=mark, place=number(last - i)) for i, key in enumerate(self.order)
        }


def _grouping(
    group: exp.Group | None, selected: list[exp.Expr], rewrite: Rewriter
) -> tuple[list[exp.Expr], list[list[str]] | None]:
    """The keys and the grouping sets; the sets are None for a plain GROUP BY over all keys."""
    if group is None:
        return [], None
    if group.args.get("all"):
        return [part for part in selected if not functions.contains_aggregate(part)], None
    keys: list[exp.Expr] = []
    alternatives: list[list[list[str]]] = []
    special = False
    written: dict[str, set[str]] = {}

    def add(item: exp.Expr) -> list[str]:
        """The text of a key, or of each key in parentheses."""
        if isinstance(item, exp.Paren):
            return add(item.this)
        if isinstance(item, exp.Tuple):
            return [text for part in item.expressions for text in add(part)]
        resolved = rewrite.columns(item)
        keys.append(resolved)
        text = resolved.sql(dialect=DIALECT, comments=False)
        written.setdefault(text, set()).add(item.sql(dialect=DIALECT, comments=False))
        return [text]

    plain: list[list[str]] = []
    for item in group.expressions:
        if isinstance(item, exp.Rollup | exp.Cube | exp.GroupingSets):
            special = True
            alternatives.append(_sets(item, add))
        else:
            texts = add(item)
            plain.append(texts)
            alternatives.append([texts])
    for clause, kind in (("rollup", exp.Rollup), ("cube", exp.Cube)):
        for item in group.args.get(clause) or []:
            special = True
            if item.expressions:
                alternatives.append(_sets(item, add))
            else:  # GROUP BY a, b WITH ROLLUP
                alternatives = [_expand(kind, plain)]
    for item in group.args.get("grouping_sets") or []:
        special = True
        alternatives = [*alternatives, _sets(item, add)] if not plain else [_sets(item, add)]
    sets = [[text for part in choice for text in part] for choice in product(*alternatives)]
    if not special or (not keys and len(sets) == 1):
        # GROUPING SETS (()) is an aggregate without GROUP BY: one row, even for empty input. Two
        # empty sets are ordinary groups: one row each, and none for empty input.
        return keys, None
    for same in written.values():
        if len(same) > 1:
            # Two names of one column: a set may contain one name and not the other.
            raise Unsupported(
                Code.UNSUPPORTED_OPERATOR,
                f"grouping sets over {' and '.join(sorted(same))}, which are the same",
            )
    return keys, sets


def _sets(item: exp.Expr, add: Callable[[exp.Expr], list[str]]) -> list[list[str]]:
    texts = [add(part) for part in item.expressions]
    return _expand(type(item), texts)


def _expand(kind: type[exp.Expr], texts: list[list[str]]) -> list[list[str]]:
    if kind is exp.GroupingSets:
        return texts
    sizes = range(len(texts), -1, -1)
    if kind is exp.Rollup:
        return [_flat(texts[:n]) for n in sizes]
    return [_flat(chosen) for n in sizes for chosen in combinations(texts, n)]


def _flat(parts: Sequence[list[str]]) -> list[str]:
    return [text for part in parts for text in part]


def _call(part: exp.Expr) -> exp.Expr | None:
    """The aggregate call in this part, without clauses such as FILTER; None if there is none."""
    inside = part
    while isinstance(inside, Wrapper):
        inside = inside.this
    return inside if functions.is_aggregate(inside) else None


def _inside_window(window: exp.Window, visit: Visit) -> exp.Expr:
    """Visit the arguments and the OVER clause of a window function, not the function itself."""
    copy = window.copy()
    function: exp.Expr = copy.this
    while isinstance(function, Wrapper):
        function = function.this
    for key, value in list(function.args.items()):
        if isinstance(value, list):
            function.set(
                key,
                [transform(v, visit) if isinstance(v, exp.Expr) else v for v in value],
            )
        elif isinstance(value, exp.Expr):
            function.set(key, transform(value, visit))
    if copy.args.get("partition_by"):
        copy.set("partition_by", [transform(p, visit) for p in copy.args["partition_by"]])
    if copy.args.get("order"):
        copy.set("order", transform(copy.args["order"], visit))
    return copy


def _grouping_call(called: exp.Expr, made: _Keys, marks: dict[str, Expr]) -> exp.Expr:
    if made.mark is None:
        raise Unsupported(Code.PARSE_MISMATCH, "grouping() without grouping sets")
    arguments = list(called.iter_expressions())
    if functions.name_of(called) == "grouping":
        text = arguments[0].sql(dialect=DIALECT, comments=False)
        return marks[text].tree.copy()
    if arguments and [a.sql(dialect=DIALECT, comments=False) for a in arguments] != made.order:
        raise Unsupported(Code.UNSUPPORTED_OPERATOR, "grouping_id of other columns")
    return our_column(made.mark)
