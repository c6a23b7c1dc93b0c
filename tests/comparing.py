"""Are two tables the same bag of rows? And is what an engine keeps what Spark says?

A bag has no order and keeps duplicates. NULL equals NULL, NaN equals NaN, -0.0 equals 0.0, and
floating point numbers are equal within a relative 1e-9, since the order in which Spark adds them up
is its own affair. The same holds inside arrays, structs and maps. A difference is a text to read,
with the rows that are missing and those that are too many; no difference is the empty text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from stepwell.lsm.change import WEIGHT

Row = tuple[Any, ...]

RELATIVE = 1e-9
# Near zero nothing is relatively close. Sums of small numbers are off by less than this.
ABSOLUTE = 1e-12
ROWS_SHOWN = 10

# One object for all of them: as a part of a tuple it is equal to itself, which no other NaN is.
NAN = math.nan


class Outcome(Protocol):
    @property
    def changes(self) -> Mapping[str, pa.Table]: ...


class Views(Protocol):
    """What these tests need of an engine."""

    def apply(self, changes: Mapping[str, Any]) -> Outcome: ...
    def read(self, name: str) -> pa.Table: ...
    def recompute(self, name: str) -> pa.Table: ...


def difference(found: pa.Table, expected: pa.Table) -> str:
    """What tells two tables apart: columns, types, rows. Empty if nothing does."""
    if columns_of(found) != columns_of(expected):
        return f"columns: found {columns_of(found)}\n      expected {columns_of(expected)}"
    return difference_of_rows(rows_of(found), rows_of(expected))


def difference_of_rows(found: Iterable[Row], expected: Iterable[Row]) -> str:
    """What tells two bags of Python rows apart. Numbers of different types may be equal."""
    have = Counter(tuple(plain(value) for value in row) for row in found)
    want = Counter(tuple(plain(value) for value in row) for row in expected)
    missing, too_many = list((want - have).elements()), list((have - want).elements())
    for row in tuple(missing):
        twin = next((other for other in too_many if close(row, other)), None)
        if twin is not None:
            missing.remove(row)
            too_many.remove(twin)
    return "\n".join([*listed("missing", missing), *listed("too many", too_many)])


class Compared:
    """An engine whose views are compared with Spark's answer, at once and after every batch."""

    def __init__(self, views: Views, names: Sequence[str]) -> None:
        self._views = views
        # Kept, because every reading is a Spark job.
        self._rows = {name: self._compared(name) for name in names}

    def apply(self, changes: Mapping[str, Any]) -> Outcome:
        """One batch. Afterwards every view is what Spark says, and its changes lead there."""
        outcome = self._views.apply(changes)
        for name, before in self._rows.items():
            after = self._rows[name] = self._compared(name)
            moved = summed(before, outcome.changes.get(name), WEIGHT)
            negative = [row for row, weight in moved.items() if weight < 0]
            assert not negative, f"the changes of {name} take out what was not there: {negative}"
            now = Counter(tuple(plain(value) for value in row) for row in rows_of(after))
            assert moved == now, f"{name} before, plus its changes, is not {name} after"
        return outcome

    def _compared(self, name: str) -> pa.Table:
        found = self._views.read(name)
        wrong = difference(found, self._views.recompute(name))
        assert not wrong, f"{name} is not what Spark computes:\n{wrong}"
        return found

    def read(self, name: str) -> pa.Table:
        """The rows of a view as of the last batch."""
        found = self._rows.get(name)
        return self._views.read(name) if found is None else found


def summed(table: pa.Table, change: pa.Table | None, weight: str) -> Counter[Row]:
    """The rows of a table after a change set, with their multiplicities."""
    rows = Counter(tuple(plain(value) for value in row) for row in rows_of(table))
    if change is not None:
        assert change.column_names == [*table.column_names, weight], change.column_names
        for *values, times in rows_of(change):
            assert times, f"a change of weight {times}: {values}"
            row = tuple(plain(value) for value in values)
            rows[row] += times
            if not rows[row]:
                del rows[row]
    return rows


def rows_of(table: pa.Table) -> list[Row]:
    # Column by column, because to_pylist() of a table loses columns of equal names.
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def columns_of(table: pa.Table) -> list[tuple[str, str]]:
    """Names and types, but for what a value can differ in without being another one."""
    apart = re.compile("large_| not null")
    return [(field.name, apart.sub("", str(field.type))) for field in table.schema]


def plain(value: Any) -> Any:
    """A value that can be hashed, and that equals those it counts as equal to."""
    if isinstance(value, float):
        if math.isnan(value):
            return NAN
        return value + 0.0
    if isinstance(value, dict):
        # Which may come here again, as pairs: the order of fields is a matter of types.
        return tuple(sorted(((n, plain(inner)) for n, inner in value.items()), key=repr))
    if isinstance(value, (list, tuple)):
        inner = [plain(inner) for inner in value]
        # Arrow gives a map as a list of pairs, in whatever order; a struct comes as a dict.
        is_map = bool(value) and all(isinstance(pair, tuple) for pair in value)
        return tuple(sorted(inner, key=repr) if is_map else inner)
    return value


def close(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) or isinstance(other, float):
        if not all(isinstance(value, (int, float, Decimal)) for value in (one, other)):
            return False
        return math.isclose(float(one), float(other), rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return bool(one == other)


def listed(what: str, rows: list[Row]) -> list[str]:
    counted = Counter(rows)
    lines = [
        f"  {what}: {row!r}" + (f"  ({times} times)" if times > 1 else "")
        for row, times in list(counted.items())[:ROWS_SHOWN]
    ]
    more = len(counted) - ROWS_SHOWN
    return [*lines, f"  ... and {more} more {what}"] if more > 0 else lines
