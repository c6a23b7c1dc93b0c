"""The rows of a table or view as users see them, computed from the stored rows.

    stored rows  ->  filters and projections of the view's output  ->  the columns users see

Outputs are linear: applied to rows with weights, retractions included, they give the rows of the
view with their weights. So rows may be computed run by run, and consolidated afterwards.

Expressions without a local kernel raise `NotSimple` or `CannotRunError`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stepwell.errors import ConfigError
from stepwell.execution.local.accumulate import WEIGHT
from stepwell.execution.local.expressions import ExpressionEvaluator, Value
from stepwell.lsm.arrow_types import arrow_type
from stepwell.plan.nodes import Filter, Node, Project, Scan
from stepwell.plan.types import parse_type
from stepwell.sql.simple import NotSimple


@dataclass(frozen=True, slots=True)
class Shown:
    """A table or view as users see it, and the stored relation behind it."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    output: Node
    """A plan over one stored relation; its columns are `columns`, by position."""
    stored: tuple[str, ...]
    """The types of that relation."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with weights; columns by name."""

    columns: dict[str, Value]
    weight: pa.ChunkedArray

    @property
    def count(self) -> int:
        return len(self.weight)

    def where(self, mask: Any) -> Rows:
        kept = {
            name: Value(value.column(self.count).filter(mask), value.type)
            for name, value in self.columns.items()
        }
        return Rows(kept, self.weight.filter(mask))


class Output:
    """The output of a table or view: which stored columns it needs, and the rows it gives."""

    def __init__(self, shown: Shown) -> None:
        scan = shown.output
        while isinstance(scan, Filter | Project):
            scan = scan.input
        if not isinstance(scan, Scan):
            raise NotSimple("a view over several stored relations")
        self._shown = shown
        self._scan = scan
        self.relation = scan.relation
        """The stored relation that is read."""
        self.expressions = ExpressionEvaluator(_constant)

    def needs(self, columns: Collection[int]) -> list[int]:
        """The positions of the stored columns from which these columns are computed."""
        names = frozenset(self._shown.output.columns[place] for place in columns)
        needed = _below(self._shown.output, names)
        return [place for place, name in enumerate(self._scan.columns) if name in needed]

    def stored_as(self, column: int) -> int | None:
        """The position of the stored column that is shown unchanged as this one, if any is."""
        node, name = self._shown.output, self._shown.output.columns[column]
        while isinstance(node, Filter | Project):
            if isinstance(node, Project):
                below = dict(node.items)[name].column
                if below is None:
                    return None
                name = below
            node = node.input
        place = self._scan.columns.index(name)
        return place if self._shown.stored[place] == self._shown.types[column] else None

    def rows(self, table: pa.Table, columns: Collection[int]) -> Rows:
        """The rows that users see, by lower-case name of the column.

        `table` has the columns c<position> of the stored relation that are needed, and the weights.
        """
        values = {
            name: Value(table.column(f"c{place}"), self._shown.stored[place])
            for place, name in enumerate(self._scan.columns)
            if f"c{place}" in table.column_names
        }
        names = {self._shown.output.columns[place] for place in columns}
        rows = self._computed(self._shown.output, Rows(values, table.column(WEIGHT)), names)
        shown = {
            self._shown.columns[place].lower(): _as(
                rows.columns[self._shown.output.columns[place]], self._shown.types[place]
            )
            for place in columns
        }
        return Rows(shown, rows.weight)

    def _computed(self, node: Node, stored: Rows, needed: set[str]) -> Rows:
        """Apply a view's plan to its stored rows, for the needed columns only."""
        match node:
            case Filter():
                rows = self._computed(node.input, stored, needed | node.condition.columns)
                return rows.where(self.expressions.mask(node.condition, rows.columns, rows.count))
            case Project():
                items = [(name, expr) for name, expr in node.items if name in needed]
                below = set[str]().union(*(expr.columns for _, expr in items))
                rows = self._computed(node.input, stored, below)
                made = {name: self.expressions.value(expr, rows.columns) for name, expr in items}
                return Rows(made, rows.weight)
            case _:
                return stored


def table_shown(name: str, columns: Sequence[tuple[str, str]]) -> Shown:
    """A table with these columns and types, stored under its own name."""
    types = tuple(kind for _, kind in columns)
    output = Scan(name, tuple(f"_t{i}" for i in range(len(columns))))
    return Shown(tuple(column for column, _ in columns), types, output, types)


def _below(node: Node, needed: frozenset[str]) -> frozenset[str]:
    """The columns of the stored relation that these columns of a node depend on."""
    match node:
        case Filter():
            return _below(node.input, needed | node.condition.columns)
        case Project():
            used = [expr.columns for name, expr in node.items if name in needed]
            return _below(node.input, frozenset[str]().union(*used))
        case _:
            return needed


def _as(value: Value, type_: str) -> Value:
    """A value cast to its view's type. We may have inferred too many digits for a decimal."""
    if value.type == type_:
        return value
    ours, theirs = parse_type(value.type), parse_type(type_)
    if ours.name != "decimal" or theirs.name != "decimal":
        raise NotSimple(f"{value.type} as {type_}")
    if ours.parameters.partition(",")[2] != theirs.parameters.partition(",")[2]:
        raise NotSimple(f"{value.type} as {type_}")
    return value.cast(type_)


def arrow_of(type_: str) -> pa.DataType:
    """The Arrow type of a Spark type; raises `NotSimple` if no source can fill such a column."""
    try:
        return arrow_type(parse_type(type_))
    except ConfigError as error:
        raise NotSimple(type_) from error


_TIME = re.compile(
    r"CAST\('(\d{4}-\d\d-\d\d)( \d\d:\d\d:\d\d(?:\.\d{1,6})?)?' AS (DATE|TIMESTAMP)\)", re.ASCII
)
_GREGORIAN = datetime.date(1900, 1, 1)
"""From this date on, calendars and time zones are unambiguous."""


def _constant(sql: str) -> Value | None:
    """A date or timestamp literal written out in full. The session's time zone is UTC."""
    found = _TIME.fullmatch(sql)
    if found is None:
        return None
    try:
        day = datetime.date.fromisoformat(found[1])
        if day < _GREGORIAN or (found[3] == "DATE" and found[2]):
            return None
        if found[3] == "DATE":
            return Value(pa.scalar(day, pa.date32()), "date")
        time = datetime.time.fromisoformat(_padded((found[2] or " 00:00:00")[1:]))
    except ValueError:
        return None
    moment = datetime.datetime.combine(day, time, datetime.UTC)
    return Value(pa.scalar(moment, pa.timestamp("us", "UTC")), "timestamp")


def _padded(time: str) -> str:
    whole, point, fraction = time.partition(".")
    return whole + (point + fraction.ljust(6, "0") if point else "")
