"""The mapping between Spark types and Arrow types, computed without Spark.

The Arrow types are the ones Spark itself uses, so Spark need not cast a column built here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import pyarrow as pa

from stepwell.errors import ConfigError
from stepwell.lsm.run_file import WEIGHT
from stepwell.plan.numbers import INTEGER_BITS
from stepwell.plan.types import SparkType, parse_type

_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_COMPUTED = {
    "interval": pa.duration("us"),
    "time": pa.time64("ns"),
    "variant": pa.struct([pa.field(name, pa.binary(), False) for name in ("value", "metadata")]),
    "void": pa.null(),
}
"""Types that only query results have. Intervals of months are rejected earlier."""
INTEGERS = {_PLAIN[name]: name for name in INTEGER_BITS}
"""Spark's names of the integer types, from the narrowest to the widest."""
_NAMES = {
    **{kind: name for name, kind in _PLAIN.items() if name not in ("varchar", "char")},
    **{_COMPUTED[name]: name for name in ("time", "void")},
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}


@lru_cache(maxsize=10_000)
def arrow_schema(types: tuple[str, ...]) -> pa.Schema:
    """Schema of a part with columns of these Spark types: c0, c1, ... and the weight.

    Timestamps are in UTC, independent of the session time zone.
    """
    columns = [(f"c{i}", arrow_type(parse_type(kind), _COMPUTED)) for i, kind in enumerate(types)]
    return pa.schema([*columns, (WEIGHT, pa.int64())])


def empty_change(types: Sequence[str]) -> pa.Table:
    """An empty change set."""
    return arrow_schema(tuple(types)).empty_table()


def arrow_type(
    kind: SparkType, more: Mapping[str, pa.DataType] = MappingProxyType({})
) -> pa.DataType:
    """The Arrow type of a column; raises `ConfigError` for a type that no source can fill.

    >>> str(arrow_type(parse_type("array<decimal(12,2)>")))
    'list<element: decimal128(12, 2)>'
    """
    if kind.name in _PLAIN:
        return _PLAIN[kind.name]
    if kind.name in more:
        return more[kind.name]
    if kind.name == "decimal":
        return pa.decimal128(*numbers_of(kind))
    if kind.name == "array":
        return pa.list_(pa.field("element", arrow_type(kind.elements[0], more)))
    if kind.name == "map":
        return pa.map_(arrow_type(kind.elements[0], more), arrow_type(kind.elements[1], more))
    if kind.name == "struct":
        fields = [pa.field(f.name, arrow_type(f.type, more), f.nullable) for f in kind.fields]
        return pa.struct(fields)
    raise ConfigError(
        f"no source can fill a column of type {kind}",
        hint="declare it as STRING, and convert it in a view",
    )


def spark_type(kind: pa.DataType) -> str:
    """Spark's name for the type of a column of an answer.

    >>> spark_type(pa.map_(pa.string(), pa.list_(pa.decimal128(12, 2))))
    'map<string,array<decimal(12,2)>>'
    """
    types = pa.types
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if types.is_duration(kind):
        return "interval day to second"
    if types.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return f"struct<{','.join(f'{f.name}:{spark_type(f.type)}' for f in fields)}>"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    return _NAMES.get(kind, str(kind))


def numbers_of(kind: SparkType) -> tuple[int, ...]:
    """The parameters of a type: precision and scale, or a length.

    >>> numbers_of(parse_type("decimal(12,2)"))
    (12, 2)
    """
    return tuple(int(number) for number in re.findall(r"\d+", kind.parameters))
