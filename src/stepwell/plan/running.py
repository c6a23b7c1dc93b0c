"""Windows without PARTITION BY to which rows can be appended without changing earlier rows.

`row_number`, `rank`, `dense_rank`, `lag`, and `sum`, `count`, `min` and `max` over all rows up to
the current one only look back. Rows that sort after all others therefore leave the earlier rows
unchanged, and their values follow from the stored last rows and from the new rows themselves:

    row_number, rank    the number of the last row plus the position among the new rows
    dense_rank, count   the last row's value plus the value among the new rows
    sum, min, max       the last row's value combined with the value among the new rows
    lag                 computed over the last rows and the new rows

All calls must share one order. Any other change is computed by comparing all rows, since there is
only one partition. Sums must be over exact numbers: other sums would depend on the order of
addition.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from stepwell.errors import ensure
from stepwell.plan import functions
from stepwell.plan.expressions import (
    FALSE,
    TRUE,
    Expr,
    SortKey,
    build,
    call,
    cast,
    column,
    partitioned,
)
from stepwell.plan.nodes import (
    Aggregate,
    Consolidate,
    Filter,
    Inner,
    Leaf,
    Names,
    Node,
    Project,
    Union,
    When,
    Window,
)
from stepwell.plan.program import Rows

LAG_ROWS_MAX = 100
"""Maximum number of last rows, which are stored a second time and read with every change."""

_COMBINED = {
    "row_number": "number + new",
    "rank": "number + new",
    "dense_rank": "last + new",
    "count": "last + new",
    "sum": "CASE WHEN last IS NULL THEN new WHEN new IS NULL THEN last ELSE total END",
    "min": "LEAST(last, new)",
    "max": "GREATEST(last, new)",
    "lag": "new",
}
"""The value of a new row, from the last row's value (`last`), its row number (`number`), the value
among the new rows (`new`), and the typed sum of `last` and `new` (`total`)."""
_AGGREGATES = ("sum", "count", "min", "max")


@dataclass(frozen=True, slots=True)
class Call:
    """A window function call that only looks back."""

    kind: str
    order: tuple[SortKey, ...]
    rows: int
    """The number of preceding rows whose values it reads."""


@dataclass(frozen=True, slots=True)
class Running:
    """The common properties of all calls of a window."""

    rows: int
    """The number of last rows needed."""
    total: tuple[SortKey, ...]
    """The longest of the orders, with ties broken by all columns."""

    @property
    def first(self) -> SortKey:
        """The first sort key."""
        return self.total[0]


def running(window: Window) -> Running | None:
    """How the calls look back; None if one does not, or if their orders differ."""
    calls = [call_of(expr) for _, expr in window.calls]
    known = [call for call in calls if call is not None]
    if window.partition or len(known) < len(calls):
        return None
    total = max((call.order for call in known), key=len)
    if any(call.order != total[: len(call.order)] for call in known):
        return None
    rows = max(call.rows for call in known)
    seen = {key.column for key in total}
    if rows > LAG_ROWS_MAX or not seen <= set(window.input.columns):
        return None
    # All columns break the remaining ties, as for `row_number`.
    ties = tuple(SortKey(c) for c in window.input.columns if c not in seen)
    return Running(rows, total + ties)


def call_of(expr: Expr) -> Call | None:
    window = expr.tree
    if not isinstance(window, exp.Window) or window.args.get("order") is None:
        return None
    function = window.this
    kind = functions.name_of(function)
    if kind not in _COMBINED or function.find(exp.Distinct) or window.args.get("partition_by"):
        return None
    if kind in _AGGREGATES:
        if not _up_to_here(window.args.get("spec")):
            return None
    elif window.args.get("spec") is not None:
        return None
    order = []
    for item in window.args["order"].expressions:
        by = expr.part(item.this).column
        if by is None:
            return None
        order.append(SortKey(by, bool(item.args.get("desc")), bool(item.args.get("nulls_first"))))
    rows = 1
    if kind == "lag":
        offset = function.args.get("offset")
        if offset is not None and not (isinstance(offset, exp.Literal) and offset.is_int):
            return None
        rows = max(1, int(offset.this)) if offset is not None else 1
    return Call(kind, tuple(order), rows)


def combined(call: Call, last: str, number: str, new: str, type_: str) -> Expr:
    """The value of a new row, over columns with these names."""
    parts = {"last": column(last), "number": column(number), "new": column(new)}
    if call.kind == "sum":
        parts["total"] = cast(build("last + new", **parts), type_)
    return build(_COMBINED[call.kind], **parts)


def among_new(expr: Expr, call: Call, flag: str) -> Expr:
    """The call over the new rows alone, or, for `lag`, over the last rows as well."""
    if call.kind == "lag":
        return expr
    return partitioned(expr, flag)


def _up_to_here(spec: exp.Expr | None) -> bool:
    """Whether a frame covers all rows up to the current one, which is the default."""
    if spec is None:
        return True
    start = (spec.args.get("start"), spec.args.get("start_side"))
    end = (spec.args.get("end") or "CURRENT ROW", spec.args.get("end_side"))
    exclude = spec.args.get("exclude")
    return start == ("UNBOUNDED", "PRECEDING") and end == ("CURRENT ROW", None) and not exclude


def appended(block: Rows, added: Node, names: Names) -> Node:
    """The window's rows for input rows that sort after all existing ones."""
    window, ending = block.input, block.ending
    if ending is None or not isinstance(window, Window):
        raise TypeError("a window of which the last rows are not stored")
    source, flag = window.input.columns, names.new()
    last, again = (
        Leaf(ending.relation, names.several(len(block.fields)), When.OLD) for _ in range(2)
    )
    width = len(source)
    before = [(names.new(), column(c)) for c in last.columns[:width]]
    before.append((names.new(), TRUE))
    after = [(names.new(), column(c)) for c in added.columns]
    after.append((names.new(), FALSE))
    both = Union((Project(last, tuple(before)), Project(added, tuple(after))), (*source, flag))
    calls, results, values = [], [], []
    number = again.columns[window.columns.index(ending.number)]
    counted = names.new()
    for i, (name, expr) in enumerate(window.calls):
        known = call_of(expr)
        ensure(known is not None, "a window that is added to looks back only")
        if known is None:
            continue
        new, value = names.several(2)
        mine = again.columns[width + i]
        calls.append((new, among_new(expr, known, flag)))
        values.append((value, call("max_by", column(mine), column(number))))
        type_ = block.fields[width + i].type
        results.append((name, combined(known, value, counted, new, type_)))
    values.append((counted, call("max", column(number))))
    fresh = Filter(Window(both, (), tuple(calls)), build("NOT a", a=column(flag)))
    joined = Inner((fresh, Aggregate(again, (), tuple(values))))
    passed = tuple((c, column(c)) for c in source)
    return Consolidate(Project(joined, (*passed, *results)))
