"""Many operations in order, folded into one change: first its deletes, then its puts.

Applying the change gives what applying the operations one by one would give: the same table, and
the same deletes that find nothing. With a key the rule is that of `engine/operations.py`, and of
the puts of a key only the last is left. Without one, a delete takes back a row that was put before
it in the same step, and otherwise one that was there already. For each row this comes to
`max(there - deletes, 0) + puts`, which is exactly what the change says.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.shape import Shape
from stepwell.engine.equality import groups_of, only_last
from stepwell.engine.operations import DELETE, PUT, fold_keyed
from stepwell.engine.ports import Change

COMES = "_put"
AT = "_at"


def operations_schema(shape: Shape) -> pa.Schema:
    """The columns of the table, then whether the row comes or goes, and of one that goes the number
    of its record: of a line, or a row of a file. A table may have columns of the same names, so
    these are only ever asked for by their places.
    """
    return shape.schema.append(pa.field(COMES, pa.bool_())).append(pa.field(AT, pa.int64()))


def fold_operations(shape: Shape, operations: pa.Table) -> Change:
    """The change that a table of operations, in the order in which they happened, amounts to."""
    return fold_numbered(shape, operations)[0]


def fold_numbered(shape: Shape, operations: pa.Table) -> tuple[Change, pa.ChunkedArray]:
    """The same, and the numbers of the records whose deletes are left."""
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
    """The places of puts and deletes that are left when each delete takes back the last put."""
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
