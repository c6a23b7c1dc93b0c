"""Windows without PARTITION BY that rows at the end of their order do not change for those before.

`row_number`, `rank`, `dense_rank`, `lag`, and `sum`, `count`, `min` and `max` of all rows up to the
current one look back only. Rows that come after all others therefore change nothing but add to it,
and what they get follows from the last rows so far, as they are stored, and from one another:

    row_number, rank    the number of the last row, and the place among the new rows
    dense_rank, count   that of the last row, and that among the new rows
    sum, min, max       that of the last row combined with that of the new rows
    lag                 computed over the last rows and the new ones

All calls must be in one order. Any other change is left to a comparison of all rows, since there is
one partition. Sums are of exact numbers: others would depend on how rows were added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from stepwell.query import functions
from stepwell.query.algebra import Expr, Window
from stepwell.query.conditions import parse_scalar

LAG_ROWS_MAX = 100
"""So many of the last rows are stored once more, and read with every change."""

_COMBINED = {
    "row_number": "{number} + {new}",
    "rank": "{number} + {new}",
    "dense_rank": "{last} + {new}",
    "count": "{last} + {new}",
    "sum": "CASE WHEN {last} IS NULL THEN {new} WHEN {new} IS NULL THEN {last} "
    "ELSE CAST({last} + {new} AS {type}) END",
    "min": "least({last}, {new})",
    "max": "greatest({last}, {new})",
    "lag": "{new}",
}
"""The value of a new row, of that of the last row, its number, and the value among new rows."""
_AGGREGATES = ("sum", "count", "min", "max")
_OVER = "OVER (ORDER BY "


@dataclass(frozen=True, slots=True)
class Call:
    """One call that looks back only."""

    kind: str
    order: tuple[str, ...]
    rows: int
    """Of how many rows before it knows the values."""


@dataclass(frozen=True, slots=True)
class Running:
    """What all calls of a window have in common."""

    column: str
    """By which rows are sorted first."""
    descending: bool
    rows: int
    """How many of the last rows are needed."""
    total: tuple[str, ...]
    """The longest of the orders."""


def running(window: Window) -> Running | None:
    """How the calls look back; None if one does not, or they are in several orders."""
    calls = [call_of(expr) for _, expr in window.calls]
    known = [call for call in calls if call is not None]
    if window.partition or len(known) < len(calls):
        return None
    total = max((call.order for call in known), key=len)
    if any(call.order != total[: len(call.order)] for call in known):
        return None
    by = [tuple(text.rsplit(" ", 3)) for text in total]
    rows = max(call.rows for call in known)
    if rows > LAG_ROWS_MAX or not {item[0] for item in by} <= set(window.input.columns):
        return None
    # Whatever the calls leave open is decided by all columns, as for `row_number`.
    seen = {item[0] for item in by}
    ties = tuple(f"{c} ASC NULLS FIRST" for c in window.input.columns if c not in seen)
    return Running(by[0][0], by[0][1] == "DESC", rows, total + ties)


def call_of(expr: Expr) -> Call | None:
    window = parse_scalar(expr.sql)
    if not isinstance(window, exp.Window) or window.args.get("order") is None:
        return None
    function = window.this
    kind = functions.name_of(function)
    if kind not in _COMBINED or function.find(exp.Distinct) or _OVER not in expr.sql:
        return None
    if kind in _AGGREGATES:
        if not _up_to_here(window.args.get("spec")):
            return None
    elif window.args.get("spec") is not None:
        return None
    order = tuple(_written(item) for item in window.args["order"].expressions)
    rows = 1
    if kind == "lag":
        offset = function.args.get("offset")
        if offset is not None and not (isinstance(offset, exp.Literal) and offset.is_int):
            return None
        rows = max(1, int(offset.this)) if offset is not None else 1
    return Call(kind, order, rows)


def combined(call: Call, last: str, number: str, new: str, type_: str) -> Expr:
    """The value of a new row, over columns of these names."""
    text = _COMBINED[call.kind].format(last=last, number=number, new=new, type=type_)
    return Expr(text, frozenset({last, number, new}))


def among_new(expr: Expr, call: Call, flag: str) -> Expr:
    """The call over new rows alone, or, if it looks at single rows, over the last ones as well."""
    if call.kind == "lag":
        return expr
    head, _, tail = expr.sql.rpartition(_OVER)
    return Expr(f"{head}OVER (PARTITION BY {flag} ORDER BY {tail}", expr.columns | {flag})


def number(order: Sequence[str]) -> Expr:
    """The number of each row in an order."""
    columns = frozenset(text.split(" ", 1)[0] for text in order)
    return Expr(f"ROW_NUMBER() {_OVER}{', '.join(order)})", columns)


def _written(item: exp.Expr) -> str:
    direction = "DESC" if item.args.get("desc") else "ASC"
    nulls = "FIRST" if item.args.get("nulls_first") else "LAST"
    return f"{item.this.sql(dialect='spark')} {direction} NULLS {nulls}"


def _up_to_here(spec: exp.Expr | None) -> bool:
    """Whether a frame is of all rows up to the current one, as it is by default."""
    if spec is None:
        return True
    start = (spec.args.get("start"), spec.args.get("start_side"))
    end = (spec.args.get("end") or "CURRENT ROW", spec.args.get("end_side"))
    exclude = spec.args.get("exclude")
    return start == ("UNBOUNDED", "PRECEDING") and end == ("CURRENT ROW", None) and not exclude
