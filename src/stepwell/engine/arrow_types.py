"""Which Arrow type holds which Spark type, without asking Spark.

The types are those Spark itself gives its Arrow tables, so a column built here needs no cast there.
"""

from __future__ import annotations

import re

import pyarrow as pa

from stepwell.errors import ConfigError
from stepwell.query.types import SparkType

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


def arrow_type(kind: SparkType) -> pa.DataType:
    """The Arrow type of a column; `ConfigError` for a type that no source can fill.

    >>> str(arrow_type(parse_type("array<decimal(12,2)>")))
    'list<element: decimal128(12, 2)>'
    """
    if kind.name in _PLAIN:
        return _PLAIN[kind.name]
    if kind.name == "decimal":
        return pa.decimal128(*numbers_of(kind))
    if kind.name == "array":
        return pa.list_(pa.field("element", arrow_type(kind.elements[0])))
    if kind.name == "map":
        return pa.map_(arrow_type(kind.elements[0]), arrow_type(kind.elements[1]))
    if kind.name == "struct":
        fields = [pa.field(f.name, arrow_type(f.type), f.nullable) for f in kind.fields]
        return pa.struct(fields)
    raise ConfigError(
        f"no source can fill a column of type {kind}",
        hint="declare it as STRING, and convert it in a view",
    )


def numbers_of(kind: SparkType) -> tuple[int, ...]:
    """What stands in a type's parentheses: precision and scale, or a length.

    >>> numbers_of(parse_type("decimal(12,2)"))
    (12, 2)
    """
    return tuple(int(number) for number in re.findall(r"\d+", kind.parameters))
