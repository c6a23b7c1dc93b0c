"""What plain sums show, worked out without Spark.

Most views that count and add up present their accumulators in one of a few ways, all exact:

    c1                                                      a key, or a count
    CASE WHEN c3 = 0 THEN NULL ELSE CAST(c2 AS BIGINT) END  a sum, of no rows NULL

Anything else, a filter or a division for example, is an expression for Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from stepwell.query.algebra import Node, Project, Scan
from stepwell.query.conditions import parse_scalar

Columns = dict[str, pa.ChunkedArray]


def shown(change: pa.Table, output: Node, types: Sequence[pa.DataType]) -> pa.Table | None:
    """The view's columns for rows of its stored relation; None: Spark must be asked."""
    levels: list[Project] = []
    while isinstance(output, Project):
        levels.append(output)
        output = output.input
    if not isinstance(output, Scan):
        return None
    columns: Columns = dict(zip(output.columns, change.columns, strict=False))
    for level in reversed(levels):
        made: Columns = {}
        for name, item in level.items:
            value = _value(parse_scalar(item.sql), columns)
            if value is None:
                return None
            made[name] = value
        columns = made
    names = levels[0].columns if levels else output.columns
    try:
        arrays = [columns[n].cast(t) for n, t in zip(names, types, strict=True)]
    except pa.ArrowInvalid:
        # It does not fit. Spark has the words for that.
        return None
    return pa.table(arrays, names=[f"p{i}" for i in range(len(arrays))])


def _value(node: exp.Expr, columns: Columns) -> pa.ChunkedArray | None:
    node = node.unnest()
    match node:
        case exp.Column():
            return columns.get(node.name)
        case exp.Cast():
            return _cast(node, columns)
        case exp.Case():
            return _null_if_none(node, columns)
        case _:
            return None


def _cast(node: exp.Cast, columns: Columns) -> pa.ChunkedArray | None:
    """Of a whole number or a decimal to one that holds it exactly."""
    value, kind = _value(node.this, columns), node.to.sql(dialect="spark").lower()
    if value is None or not (pa.types.is_decimal(value.type) or pa.types.is_int64(value.type)):
        return None
    try:
        if kind == "bigint":
            return value.cast(pa.int64())
        if kind.startswith("decimal(") and pa.types.is_decimal(value.type):
            precision, scale = (int(part) for part in kind[8:-1].split(","))
            if scale == value.type.scale:
                return value.cast(pa.decimal128(precision, scale))
    except pa.ArrowInvalid:
        return None
    return None


def _null_if_none(node: exp.Case, columns: Columns) -> pa.ChunkedArray | None:
    """`CASE WHEN column = 0 THEN NULL ELSE value END`"""
    branches, otherwise = node.args.get("ifs", []), node.args.get("default")
    if node.this is not None or len(branches) != 1 or otherwise is None:
        return None
    test, then = branches[0].this.unnest(), branches[0].args["true"]
    if not isinstance(then, exp.Null) or not isinstance(test, exp.EQ):
        return None
    count = _value(test.left, columns)
    if count is None or not pa.types.is_int64(count.type) or test.right.sql() != "0":
        return None
    value = _value(otherwise, columns)
    return None if value is None else pc.if_else(pc.equal(count, 0), None, value)
