"""Filter rows by simple conditions without Spark.

Rows that fail a condition need no further processing. Spark tests all conditions again, so only
rows that certainly fail may be dropped: by comparisons of a column with a constant on which Arrow
and Spark agree. A condition that is not supported here keeps every row.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from sqlglot import exp

from stepwell.execution.local.expressions import COMPARE
from stepwell.plan.expressions import Expr
from stepwell.plan.numbers import INTEGER_BITS

_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}


def fulfilling(
    rows: pa.Table, names: Sequence[str], types: Sequence[str], condition: Expr
) -> pa.Table:
    """The rows that may satisfy a condition over columns with these names and types."""
    tree = condition.tree
    kinds = dict(zip(names, types, strict=True))
    places = {name: i for i, name in enumerate(names)}
    for part in tree.flatten() if isinstance(tree, exp.And) else [tree]:
        test = _test(part.unnest(), kinds)
        if test is not None:
            column, compare, value = test
            # If Arrow cannot compare the values, Spark will.
            with suppress(pa.ArrowException):
                rows = rows.filter(compare(rows.column(places[column]), value))
    return rows


def _test(
    part: exp.Expr, types: dict[str, str]
) -> tuple[str, Callable[..., Any], pa.Scalar] | None:
    """The column, the comparison and the constant of `column < constant`."""
    kind: type[exp.Expr] = type(part)
    if kind not in COMPARE or not isinstance(part, exp.Binary):
        return None
    left, right = part.left.unnest(), part.right.unnest()
    if isinstance(right, exp.Column):
        left, right, kind = right, left, _MIRRORED.get(kind, kind)
    if not isinstance(left, exp.Column) or left.name not in types:
        return None
    value = _constant(right, types[left.name])
    return None if value is None else (left.name, COMPARE[kind], value)


def _constant(node: exp.Expr, type_: str) -> pa.Scalar | None:
    """A constant of exactly the column's type. Spark would cast any other constant first."""
    try:
        if type_ == "date" and isinstance(node, exp.Cast) and node.is_type("date"):
            text = node.this
            if isinstance(text, exp.Literal) and text.is_string:
                return pa.scalar(datetime.date.fromisoformat(text.name))
        if not isinstance(node, exp.Literal):
            return None
        if type_ == "string":
            # The meaning of a backslash depends on a setting.
            plain = node.is_string and node.name.isprintable() and "\\" not in node.name
            return pa.scalar(node.name) if plain else None
        if node.is_string:
            return None
        if type_ in INTEGER_BITS and node.name.isdigit():
            return pa.scalar(int(node.name), pa.int64())
        if type_.startswith("decimal") and re.fullmatch(r"\d+|\d*\.\d+|\d+\.", node.name):
            return pa.scalar(Decimal(node.name))
    except (ValueError, OverflowError, InvalidOperation, pa.ArrowException):
        return None
    return None
