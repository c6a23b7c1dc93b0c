"""Filters that Spark pushes into a reader, evaluated on Arrow as Spark evaluates them.

A filter keeps the rows for which it is true, not those for which it is NULL. It is only accepted if
Arrow and Spark agree on the comparison of the column's values: `supported`. Bounds of a row group
tell whether the group can be skipped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.lsm.run_ranges import Group
from stepwell.lsm.values import comparable


class Test(Enum):
    """What is tested about the value of a column."""

    __test__ = False  # For pytest: this is not a class of tests.

    EQUAL = "="
    SAME = "<=>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    IN = "in"
    NULL = "is null"
    STARTS = "starts with"
    ENDS = "ends with"
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True)
class Pushed:
    """A filter on one column."""

    column: int
    """Its position among the columns that users see."""
    test: Test
    values: tuple[Any, ...] = ()
    negated: bool = False


_COMPARE: dict[Test, Callable[..., Any]] = {
    Test.EQUAL: pc.equal,
    Test.SAME: pc.equal,
    Test.LESS: pc.less,
    Test.LESS_OR_EQUAL: pc.less_equal,
    Test.GREATER: pc.greater,
    Test.GREATER_OR_EQUAL: pc.greater_equal,
}
_ORDER = {Test.LESS, Test.LESS_OR_EQUAL, Test.GREATER, Test.GREATER_OR_EQUAL}
_TEXT: dict[Test, Callable[..., Any]] = {
    Test.STARTS: pc.starts_with,
    Test.ENDS: pc.ends_with,
    Test.CONTAINS: pc.match_substring,
}


def supported(pushed: Pushed, type_: str, kind: pa.DataType) -> bool:
    """Whether the filter can be evaluated on a column of this Spark type and Arrow type."""
    if pushed.test is Test.NULL:
        return True
    if pushed.test in _TEXT:
        return type_ == "string" and all(isinstance(value, str) for value in pushed.values)
    if not comparable(type_) or (pushed.test in _ORDER and type_ == "boolean"):
        return False
    try:
        _scalars(pushed, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def mask(pushed: Pushed, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The rows for which the filter is true."""
    found = _truth(pushed, column)
    return pc.fill_null(pc.invert(found) if pushed.negated else found, False)


def may_match(pushed: Pushed, group: Group, kind: pa.DataType) -> bool:
    """Whether a row group may have rows for which the filter is true."""
    if pushed.negated or group.low is None or group.high is None:
        return True
    low, high = group.low, group.high
    values = [value.as_py() for value in _scalars(pushed, kind) if value.is_valid]
    match pushed.test:
        case Test.EQUAL | Test.IN:
            return any(low <= value <= high for value in values)
        case Test.LESS | Test.LESS_OR_EQUAL:
            compare = operator.lt if pushed.test is Test.LESS else operator.le
            return any(compare(low, value) for value in values)
        case Test.GREATER | Test.GREATER_OR_EQUAL:
            compare = operator.gt if pushed.test is Test.GREATER else operator.ge
            return any(compare(high, value) for value in values)
        case _:
            return True


def _truth(pushed: Pushed, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """True, false or NULL for each row."""
    if pushed.test is Test.NULL:
        return pc.is_null(column)
    if pushed.test in _TEXT:
        return _TEXT[pushed.test](column, pushed.values[0])
    values = _scalars(pushed, column.type)
    if pushed.test is Test.IN:
        there = [value.as_py() for value in values if value.is_valid]
        found = pc.is_in(column, value_set=pa.array(there, column.type))
        # A value that is none of those listed may be the one that is NULL.
        unknown = pa.scalar(None, pa.bool_())
        missed = unknown if len(there) < len(values) else pa.scalar(False)
        return pc.if_else(pc.is_null(column), unknown, pc.if_else(found, True, missed))
    if pushed.test is Test.SAME:
        if not values[0].is_valid:
            return pc.is_null(column)
        return pc.fill_null(pc.equal(column, values[0]), False)
    return _COMPARE[pushed.test](column, values[0])


def _scalars(pushed: Pushed, kind: pa.DataType) -> list[pa.Scalar]:
    return [pa.scalar(value, kind) for value in pushed.values]
