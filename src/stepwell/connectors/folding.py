"""Many operations in order, folded into one change: first its deletes, then its puts.

Applying the change gives what applying the operations one by one would give: the same table, and
the same deletes that find nothing. With a key the rule is that of `engine/operations.py`, and of
the puts of a key only the last is left. Without one, a delete takes back a row that was put before
it in the same step, and otherwise one that was there already. For each row this comes to
`max(there - deletes, 0) + puts`, which is exactly what the change says.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.shape import Shape
from stepwell.engine.operations import DELETE, PUT, fold_keyed
from stepwell.engine.ports import Change

COMES = "_put"


def operations_schema(shape: Shape) -> pa.Schema:
    """The columns of the table, and last whether the row comes or goes. A table may have a column
    of the same name, so that one is only ever asked for by its place.
    """
    return shape.schema.append(pa.field(COMES, pa.bool_()))


def fold_operations(shape: Shape, operations: pa.Table) -> Change:
    """The change that a table of operations, in the order in which they happened, amounts to."""
    width = len(shape.columns)
    if not operations.num_rows:
        return Change()
    put, rows = operations.column(width), operations.remove_column(width)
    if pc.all(put).as_py():
        return Change(rows.take(last_of_each(rows, shape.key)) if shape.key else rows)
    if not shape.key:
        puts, deletes = _matched(_groups(rows, range(width)).to_pylist(), put.to_pylist())
        return Change(_some(rows, puts), _some(rows, deletes))
    kinds = pc.if_else(put, pa.scalar(PUT, pa.int8()), pa.scalar(DELETE, pa.int8()))
    left = fold_keyed(_groups(rows, shape.key), kinds.combine_chunks())
    keys, kept = rows.select(list(shape.key)), rows.take(left.puts)
    return Change(
        _some(kept, last_of_each(kept, shape.key)),
        _some(keys, left.deletes),
        _some(keys, left.discards),
    )


def _some(rows: pa.Table, places: pa.Array) -> pa.Table | None:
    return rows.take(places) if len(places) else None


def last_of_each(operations: pa.Table, key: Sequence[int]) -> pa.Array:
    """The places of the last operation of each key, in order."""
    try:
        places = _numbered(operations, key)
        names = places.column_names[:-1]
        last = places.group_by(names, use_threads=False).aggregate([("at", "max")])
        return last.column("at_max").combine_chunks().sort()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        found = {group: at for at, group in enumerate(_groups(operations, key).to_pylist())}
        return pa.array(sorted(found.values()), pa.int64())


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


def _groups(rows: pa.Table, columns: Sequence[int]) -> pa.Array:
    """A number for each row that is equal for equal rows only."""
    try:
        numbered = _numbered(rows, columns)
        grouped = numbered.group_by(numbered.column_names[:-1], use_threads=False)
        places = grouped.aggregate([("at", "list")]).column("at_list").combine_chunks()
        order = pc.sort_indices(places.flatten())
        return places.value_parent_indices().take(order)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        values = [[_hashable(v) for v in rows.column(i).to_pylist()] for i in columns]
        numbers: dict[tuple[Hashable, ...], int] = {}
        rows_of = zip(*values, strict=True)
        return pa.array([numbers.setdefault(row, len(numbers)) for row in rows_of], pa.int64())


def _numbered(rows: pa.Table, columns: Sequence[int]) -> pa.Table:
    """The columns as Arrow must see them to compare as Spark does, and the place of each row."""
    made = [_comparable(rows.column(i)) for i in columns]
    places = pa.array(range(rows.num_rows), pa.int64())
    return pa.Table.from_arrays([*made, places], names=[*(f"c{i}" for i in columns), "at"])


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Zero has one sign and NaN one form, and NaN equals NaN."""
    if not pa.types.is_floating(values.type):
        return values
    values = pc.add(values, pa.scalar(0.0, values.type))
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)


def _hashable(value: object) -> Hashable:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, list):
        made = [_hashable(item) for item in value]
        pairs = bool(value) and all(isinstance(item, tuple) for item in value)
        # A map comes as pairs, and their order means nothing.
        return frozenset(made) if pairs else tuple(made)
    if isinstance(value, tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    return value
