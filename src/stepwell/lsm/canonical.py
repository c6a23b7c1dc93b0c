"""The canonical representation of equal values: zero without a sign, maps sorted by key.

Spark compares and groups by this representation, and returns it where it has grouped. Arrow and
plain queries return values unchanged. If a row were inserted in one representation and retracted in
the other, the difference would show in expressions over it (`CAST(d AS STRING)`, `to_json(m)`). So
every row passes through here before it is stored or returned.

Maps whose keys contain arrays keep their order, because Arrow cannot sort them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.plan.types import SparkType, parse_type
from stepwell.text import quote_name, quote_text


def canonical(table: pa.Table) -> pa.Table:
    """The table with all values in canonical representation."""
    for place, field in enumerate(table.schema):
        if _varies(field.type):
            chunks = [_canonical(chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


@lru_cache(maxsize=10_000)
def _varies(kind: pa.DataType) -> bool:
    """Whether equal values of this type can have several representations."""
    if pa.types.is_floating(kind) or pa.types.is_map(kind):
        return True
    return any(_varies(kind.field(i).type) for i in range(kind.num_fields))


def _canonical(array: pa.Array) -> pa.Array:
    kind = array.type
    if not _varies(kind):
        return array
    if pa.types.is_floating(kind):
        return pc.add(array, pa.scalar(0.0, kind))
    if pa.types.is_struct(kind):
        parts = [_canonical(array.field(i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if array.null_count or array.offset:
        # Drop elements that lie under a NULL list or outside a slice.
        array = array.take(pa.array(np.arange(len(array))))
    starts = pc.if_else(array.is_valid(), array.offsets[:-1], pa.scalar(None, array.offsets.type))
    offsets = pa.concat_arrays([starts, array.offsets[-1:]])
    if pa.types.is_map(kind):
        order = _by_key(array)
        keys, items = array.keys, _canonical(array.items)
        if order is not None:
            keys, items = keys.take(order), items.take(order)
        return pa.MapArray.from_arrays(offsets, _canonical(keys), items).cast(kind)
    made = type(array).from_arrays(offsets, _canonical(array.values))
    return made.cast(kind)


def _by_key(maps: pa.MapArray) -> pa.Array | None:
    """The positions of all entries, grouped by map and sorted by key within each map."""
    offsets = maps.offsets.to_numpy()
    entries = len(maps.keys)
    # Entries before and after a slice are assigned to some map as well; which one does not matter.
    owners = np.searchsorted(offsets, np.arange(entries), side="right")
    columns = {"owner": pa.array(owners)}
    columns |= {f"k{i}": part for i, part in enumerate(_parts(maps.keys))}
    try:
        by = [(name, "ascending") for name in columns]
        return pc.sort_indices(pa.table(columns), sort_keys=by)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _parts(keys: pa.Array) -> Iterator[pa.Array]:
    """Sort columns for keys: the keys themselves, or the fields of struct keys, NULL first."""
    if pa.types.is_struct(keys.type):
        for part in keys.flatten():
            yield from _parts(part)
    else:
        if keys.null_count:
            yield keys.is_valid().cast(pa.int8())
        yield keys


# The same in Spark SQL


def canonical_items(types: Sequence[str]) -> list[str]:
    """SELECT items that make columns c0, c1, ... of these types canonical."""
    return [f"{_sql(f'c{i}', parse_type(kind), 0)} AS c{i}" for i, kind in enumerate(types)]


def _sql(value: str, kind: SparkType, depth: int) -> str:
    if all(part.name not in ("float", "double", "map") for part in kind.walk()):
        return value
    if kind.name in ("float", "double"):
        return f"{value} + CAST(0 AS {kind})"
    if kind.name == "struct":
        fields = [
            f"{quote_text(f.name)}, {_sql(f'{value}.{quote_name(f.name)}', f.type, depth)}"
            for f in kind.fields
        ]
        return f"IF({value} IS NULL, NULL, named_struct({', '.join(fields)}))"
    one, other = f"e{depth}", f"o{depth}"
    inside = _sql(one if kind.name == "array" else f"{one}.value", kind.elements[-1], depth + 1)
    if kind.name == "array":
        return f"transform({value}, {one} -> {inside})"
    key = _sql(f"{one}.key", kind.elements[0], depth + 1)
    entry = f"struct({key} AS key, {inside} AS value)"
    before = f"IF({one}.key < {other}.key, -1, IF({one}.key > {other}.key, 1, 0))"
    entries = f"transform(map_entries({value}), {one} -> {entry})"
    if any(part.name == "array" for part in kind.elements[0].walk()):
        return f"map_from_entries({entries})"
    return f"map_from_entries(array_sort({entries}, ({one}, {other}) -> {before}))"
