"""The operators of the algebra on bags of one version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import reduce

from sqlglot import exp

from stepwell.errors import ensure
from stepwell.execution.reference.aggregates import aggregate
from stepwell.execution.reference.bags import (
    Bag,
    Row,
    bag,
    matching,
    minus,
    named,
    picker,
    plus,
    present,
)
from stepwell.execution.reference.row_order import ordering
from stepwell.execution.reference.scalar import code, condition, constant, name_of, scalar
from stepwell.execution.reference.spark_numbers import multiply, total
from stepwell.execution.reference.spark_values import TimeWindow, Value, order, unknown
from stepwell.execution.reference.window_calls import window
from stepwell.plan.expressions import cast, column
from stepwell.plan.functions import is_time_window
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
    Consolidate,
    Distinct,
    Filter,
    Generate,
    Inner,
    Join,
    Keys,
    Merge,
    Negate,
    Node,
    Project,
    Restrict,
    SetKind,
    SetOp,
    Side,
    TopN,
    Union,
    Values,
    Window,
    label,
)
from stepwell.plan.sums import Accumulator


def combine(node: Node, inputs: list[Bag]) -> Bag:
    """Apply a node to its inputs, all of one version."""
    match node:
        case Values():
            return values(node)
        case Filter():
            return filtered(node, *inputs)
        case Project():
            return project(node, *inputs)
        case Inner():
            return inner(node, inputs)
        case Generate():
            return generate(node, *inputs)
        case Union():
            return reduce(plus, inputs, Counter())
        case Negate():
            return minus(*inputs)
        case Consolidate():
            return present(*inputs)
        case Accumulate():
            return accumulate(node, *inputs)
        case Merge():
            return merge(node, *inputs)
    if isinstance(node, Join) and node.side is not Side.FULL:
        # Linear in the left side, which may be a change set.
        left, right = inputs[0], whole(node, inputs[1])
        there, gone = (
            Counter({row: sign * weight for row, weight in left.items() if sign * weight > 0})
            for sign in (1, -1)
        )
        return plus(join(node, there, right), minus(join(node, gone, right)))
    wholes = [whole(node, rows) for rows in inputs]
    match node:
        case Join():
            return join(node, *wholes)
        case Aggregate():
            return grouped(node, *wholes)
        case Distinct():
            return Counter(wholes[0].keys())
        case SetOp():
            return set_operation(node, *wholes)
        case Window():
            return windowed(node, *wholes)
        case TopN():
            return first_rows(node, *wholes)
    raise unknown(f"the node {label(node)}")


def whole(node: Node, rows: Bag) -> Bag:
    """Check that the input of a non-linear node is a bag, not a change set."""
    for row, weight in rows.items():
        ensure(weight >= 0, f"{label(node)} is given a whole bag, not {row} {weight} times")
    return rows


# Linear nodes


def values(node: Values) -> Bag:
    return bag([constant(item.tree) for item in row] for row in node.rows)


def filtered(node: Filter, rows: Bag) -> Bag:
    keep = condition(node.condition)
    names = node.columns
    return Counter({row: weight for row, weight in rows.items() if keep(named(names, row))})


def project(node: Project, rows: Bag) -> Bag:
    codes = [scalar(made) for _, made in node.items]
    result: Bag = Counter()
    for row, weight in rows.items():
        given = named(node.input.columns, row)
        result[tuple(run(given) for run in codes)] += weight
    return present(result)


def inner(node: Inner, inputs: list[Bag]) -> Bag:
    """Join input by input; test each condition as soon as all its columns are available."""
    names: tuple[str, ...] = ()
    rows: Bag = Counter({(): 1})
    waiting = list(node.on)
    for child, other in zip(node.inputs, inputs, strict=True):
        names += child.columns
        ready = [expr for expr in waiting if expr.columns <= set(names)]
        waiting = [expr for expr in waiting if expr not in ready]
        both = matching(names, ready)
        rows = Counter(
            {
                left + right: rows[left] * other[right]
                for left in rows
                for right in other
                if both(left + right)
            }
        )
    ensure(not waiting, f"{waiting} are conditions over the columns {names}")
    return rows


def generate(node: Generate, rows: Bag) -> Bag:
    call = node.generator.tree
    name = name_of(call)
    if is_time_window(call):
        return time_windows(node, call.expressions, rows)
    if name.removesuffix("outer") not in GENERATORS:
        raise unknown(f"the generator {node.generator.sql}")
    make = GENERATORS[name.removesuffix("outer")]
    array = code(call.this)
    nulls: Row = (None,) * len(node.made)
    outer = node.outer or name.endswith("outer")
    result: Bag = Counter()
    for row, weight in rows.items():
        items = array(named(node.input.columns, row))
        made = [make(i, item, nulls) for i, item in enumerate(items or ())]
        for new in made or ([nulls] if outer else []):
            ensure(len(new) == len(node.made), f"{node.generator.sql} makes {node.made}")
            result[row + new] += weight
    return present(result)


def time_windows(node: Generate, given: list[exp.Expr], rows: Bag) -> Bag:
    """Repeat every row for each window that contains its time; the end of a window is exclusive."""
    moment = code(given[0])
    length, *rest = (duration(constant(text)) for text in given[1:])
    defaults = (length, timedelta())
    step, shift = [*rest, *defaults[len(rest) :]]
    result: Bag = Counter()
    for row, weight in rows.items():
        at = moment(named(node.input.columns, row))
        if at is None:
            continue
        first = datetime(1970, 1, 1, tzinfo=at.tzinfo) + shift
        start = at - (at - first) % step
        while start + length > at:
            made = (*row, TimeWindow(start, start + length))
            result[made] += weight
            start -= step
    return present(result)


def duration(text: Value) -> timedelta:
    count, _, unit = str(text).partition(" ")
    if unit.rstrip("s") not in ("second", "minute", "hour", "day") or not count.isdigit():
        raise unknown(f"the duration {text}")
    return timedelta(**{f"{unit.rstrip('s')}s": int(count)})


GENERATORS: dict[str, Callable[[int, Value, Row], Row]] = {
    "explode": lambda place, item, nulls: (item,),
    "posexplode": lambda place, item, nulls: (place, item),
    "inline": lambda place, item, nulls: nulls if item is None else item,
}
"""The columns that each generator makes of an array item; the last argument is for NULL structs."""


# Nodes that need a whole bag


def join(node: Join, left: Bag, right: Bag) -> Bag:
    matches = pairs_of(node, left, right)
    if node.side is Side.SEMI:
        return Counter({row: left[row] for row in left if matches[row]})
    if node.side is Side.ANTI:
        return Counter({row: left[row] for row in left if not matches[row]})
    result: Bag = Counter()
    for row, found in matches.items():
        for other in found:
            result[row + other] += left[row] * right[other]
        if not found:
            result[row + (None,) * len(node.right.columns)] += left[row]
    if node.side is Side.FULL:
        matched = {other for found in matches.values() for other in found}
        for other in right.keys() - matched:
            result[(None,) * len(node.left.columns) + other] += right[other]
    return result


def pairs_of(node: Join, left: Bag, right: Bag) -> dict[Row, list[Row]]:
    """The matching right rows of each left row."""
    left_key = picker(node.left.columns, [name for name, _ in node.equal])
    right_key = picker(node.right.columns, [name for _, name in node.equal])
    both = matching(node.left.columns + node.right.columns, node.also)
    be_comparable(map(left_key, left), map(right_key, right))
    by_key: dict[Row, list[Row]] = {}
    for other in right:
        by_key.setdefault(right_key(other), []).append(other)
    matches: dict[Row, list[Row]] = {}
    for row in left:
        key = left_key(row)
        found = by_key.get(key, []) if node.null_safe or None not in key else []
        matches[row] = [other for other in found if both(row + other)]
    return matches


def be_comparable(left: Iterable[Row], right: Iterable[Row]) -> None:
    """Reject values on whose equality Python and Spark may differ, instead of comparing them."""
    sides = [
        [set(map(type, column)) for column in zip(*rows, strict=True)] for rows in (left, right)
    ]
    for ours, theirs in zip(*sides, strict=False):
        kinds = {KINDS.get(t, t) for t in ours | theirs if t is not type(None)}
        if len(kinds) > 1 or {float, Decimal} <= ours | theirs:
            names = sorted(t.__name__ for t in ours | theirs)
            raise unknown(f"how to find equal values among {', '.join(names)}")


KINDS: dict[type, type] = {float: int, Decimal: int}
"""Types whose equality in Python is Spark's, except between a Decimal and a float."""


def grouped(node: Aggregate, rows: Bag) -> Bag:
    key = picker(node.input.columns, node.keys)
    calls = [aggregate(call) for _, call in node.calls]
    # Without keys there is one group, even for empty input.
    groups: dict[Row, list[Mapping[str, Value]]] = {} if node.keys else {(): []}
    for row in rows.elements():
        groups.setdefault(key(row), []).append(named(node.input.columns, row))
    return Counter(group + tuple(call(found) for call in calls) for group, found in groups.items())


def set_operation(node: SetOp, left: Bag, right: Bag) -> Bag:
    be_comparable(left, right)
    match node.kind:
        case SetKind.EXCEPT:
            return Counter({row: 1 for row in left if row not in right})
        case SetKind.EXCEPT_ALL:
            return left - right
        case SetKind.INTERSECT:
            return Counter({row: 1 for row in left if row in right})
        case SetKind.INTERSECT_ALL:
            return left & right


def windowed(node: Window, rows: Bag) -> Bag:
    ordered = sorted(rows.elements(), key=order)
    given = [named(node.input.columns, row) for row in ordered]
    made = [window(call)(given) for _, call in node.calls]
    return Counter(
        row + tuple(column[place] for column in made) for place, row in enumerate(ordered)
    )


def first_rows(node: TopN, rows: Bag) -> Bag:
    by_row = sorted(rows.elements(), key=order)
    arranged = ordering(node.order).arrange(by_row, lambda row: named(node.columns, row))
    end = None if node.limit is None else node.offset + node.limit
    return Counter(arranged[node.offset : end])


# Incremental sums


def accumulate(node: Accumulate, rows: Bag) -> Bag:
    key = picker(node.input.columns, node.keys)
    sums = [added_up(accumulator) for _, accumulator in node.sums]
    groups: dict[Row, list[tuple[Mapping[str, Value], int]]] = {} if node.keys else {(): []}
    for row, weight in rows.items():
        groups.setdefault(key(row), []).append((named(node.input.columns, row), weight))
    return Counter(
        (*group, sum(weight for _, weight in found), *(made(found) for made in sums))
        for group, found in groups.items()
    )


def added_up(accumulator: Accumulator) -> Callable[[list[tuple[Mapping[str, Value], int]]], Value]:
    """A function from weighted rows to the change of an accumulator."""
    value = None if accumulator.argument is None else scalar(accumulator.argument)
    counts = None if accumulator.present is None else condition(accumulator.present)
    typed = scalar(cast(column("total"), accumulator.type))

    def run(rows: list[tuple[Mapping[str, Value], int]]) -> Value:
        found = [(row, weight) for row, weight in rows if counts is None or counts(row)]
        if value is None:
            return typed({"total": sum(weight for _, weight in found)})
        values = [(value(row), weight) for row, weight in found]
        parts = [multiply(given, weight) for given, weight in values if given is not None]
        return typed({"total": total(parts) if parts else 0})

    return run


def merge(node: Merge, old: Bag, change: Bag) -> Bag:
    before = summed(node.keys, old)
    after = summed(node.keys, plus(old, change))
    result: Bag = Counter()
    for group in {**before, **after}:
        was, now = before.get(group), after.get(group)
        if was is not None:
            result[group + was] -= 1
        if now is None:
            continue
        ensure(now[0] >= 0, f"the group {group} has a number of rows, not {now[0]}")
        if now[0] or not node.keys:
            result[group + now] += 1
    return present(result)


def summed(keys: int, rows: Bag) -> dict[Row, Row]:
    """The sums of the remaining columns for each key."""
    groups: dict[Row, list[Row]] = {}
    for row, weight in rows.items():
        weighted = tuple(multiply(value, weight) for value in row[keys:])
        groups.setdefault(row[:keys], []).append(weighted)
    return {
        group: tuple(total(column) for column in zip(*found, strict=True))
        for group, found in groups.items()
    }


# Nodes that read both versions


def keys(node: Keys, versions: Iterable[Bag]) -> Bag:
    pick = picker(node.input.columns, [name for _, name in node.items])
    return Counter({pick(row): 1 for rows in versions for row in rows})


def restrict(node: Restrict, rows: Bag, versions: Iterable[Bag]) -> Bag:
    pick = picker(node.input.columns, [name for name, _ in node.on])
    wanted = picker(node.keys.columns, [name for _, name in node.on])
    among = {wanted(row) for keys in versions for row in keys}
    return Counter({row: weight for row, weight in rows.items() if pick(row) in among})
