"""Folding a sequence of operations into one change: first its deletes, then its puts.

Applying the change has the same effect as applying the operations one by one: the same table, and
the same deletes without a match. With a key, the rule is that of `lsm/operations.py`, and only the
last put of a key remains. Without a key, a delete cancels a row put before it in the same step, or
otherwise one already in the table. For each row the result is `max(there - deletes, 0) + puts`,
which is exactly the effect of the change.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.shape import Shape
from stepwell.lsm.change import Change
from stepwell.lsm.equality import groups_of, only_last
from stepwell.lsm.operations import DELETE, PUT, fold_keyed

COMES = "_put"
AT = "_at"


def operations_schema(shape: Shape) -> pa.Schema:
    """The columns of the table, then whether the row is put or deleted, and for a delete the number
    of its record (the line, or the row of a file). A table may have columns of the same names, so
    these two are only accessed by index.
    """
    return shape.schema.append(pa.field(COMES, pa.bool_())).append(pa.field(AT, pa.int64()))


def fold_numbered(shape: Shape, operations: pa.Table) -> tuple[Change, pa.ChunkedArray]:
    """The change equivalent to a sequence of operations.

    Also returns the record numbers of the remaining deletes.
    """
    width = len(shape.columns)
    put, numbers = operations.column(width), operations.column(width + 1)
    if not operations.num_rows:
        return Change(), numbers
    rows = operations.select(range(width))
    if pc.all(put).as_py():
        return Change(only_last(rows, shape.key) if shape.key else rows), numbers.slice(0, 0)
    if not shape.key:
        puts, deletes = _matched(groups_of(rows, range(width)).to_pylist(), put.to_pylist())
        return Change(_some(rows, puts), _some(rows, deletes)), numbers.take(deletes)
    kinds = pc.if_else(put, pa.scalar(PUT, pa.int8()), pa.scalar(DELETE, pa.int8()))
    left = fold_keyed(groups_of(rows, shape.key), kinds.combine_chunks())
    keys, kept = rows.select(list(shape.key)), rows.take(left.puts)
    change = Change(
        only_last(kept, shape.key) if kept.num_rows else None,
        _some(keys, left.deletes),
        _some(keys, left.discards),
    )
    return change, numbers.take(left.deletes)


def _some(rows: pa.Table, places: pa.Array) -> pa.Table | None:
    return rows.take(places) if len(places) else None


def _matched(groups: Sequence[int], puts: Sequence[bool]) -> tuple[pa.Array, pa.Array]:
    """The indices of the puts and deletes that remain when each delete cancels the last put."""
    waiting: dict[int, list[int]] = {}
    deletes: list[int] = []
    for at, (group, put) in enumerate(zip(groups, puts, strict=True)):
        if put:
            waiting.setdefault(group, []).append(at)
        elif waiting.get(group):
            waiting[group].pop()
        else:
            deletes.append(at)
    kept = sorted(at for places in waiting.values() for at in places)
    return pa.array(kept, pa.int64()), pa.array(deletes, pa.int64())
