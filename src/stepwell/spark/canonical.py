"""One representation for values that are equal: zero without a sign, maps in the order of keys.

Spark groups and compares so, and gives back such values where it grouped; Arrow and plain queries
give back what they were given. A row that comes as one and goes as the other would still show in
what is made of it (`CAST(d AS STRING)`, `to_json(m)`), so everything that is stored goes through
here, and everything that is given out.

Of a map whose keys are arrays the order stays: Arrow cannot sort it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.query.source import quote_name, quote_text
from stepwell.query.types import SparkType, parse_type


def canonical(table: pa.Table) -> pa.Table:
    """The rows of a table, with values as they are stored."""
    for place, field in enumerate(table.schema):
        if _varies(field.type):
            chunks = [_canonical(chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


@lru_cache(maxsize=10_000)
def _varies(kind: pa.DataType) -> bool:
    """Whether equal values of a type may have several representations."""
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
        # Without the elements that may lie where there is no list, or outside a slice.
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
    """The places of all entries, those of a map in the order of its keys."""
    offsets = maps.offsets.to_numpy()
    entries = len(maps.keys)
    # What lies before and behind a slice belongs to a map as well, as good as any.
    owners = np.searchsorted(offsets, np.arange(entries), side="right")
    columns = {"owner": pa.array(owners)}
    columns |= {f"k{i}": part for i, part in enumerate(_parts(maps.keys))}
    try:
        by = [(name, "ascending") for name in columns]
        return pc.sort_indices(pa.table(columns), sort_keys=by)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _parts(keys: pa.Array) -> Iterator[pa.Array]:
    """What keys are sorted by: themselves, or their fields, of which NULL comes first."""
    if pa.types.is_struct(keys.type):
        for part in keys.flatten():
            yield from _parts(part)
    else:
        if keys.null_count:
            yield keys.is_valid().cast(pa.int8())
        yield keys


# The same for Spark


def canonical_items(types: Sequence[str]) -> list[str]:
    """What to select of columns c0, c1, ... of these types."""
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
