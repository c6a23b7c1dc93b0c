"""Spark's equality: the single definition that all code comparing values follows.

    NULL          equals NULL, as in GROUP BY, DISTINCT and `<=>`
    FLOAT, DOUBLE zero has no sign, and every NaN equals every other
    MAP           the order of entries does not matter
    STRUCT, ARRAY equal if all their parts are equal
    other types   equal if their bytes are: no collation is stored, and a decimal has one scale

There are three forms of it: a hashable Python value (`key_of`), a column that Arrow compares
correctly (`one_form`; `comparable` says where it is not needed), and the stored representation
(`canonical`). Tests check these, `equality`, `checksum` and the reference backend against each
other and against Spark.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_COMPARABLE = re.compile(
    r"boolean|tinyint|smallint|int|bigint|string|binary|date|timestamp|timestamp_ntz"
    r"|decimal\(\d+,\d+\)"
)


@lru_cache(maxsize=10_000)
def comparable(type_: str) -> bool:
    """Whether Arrow and Spark agree on the equality of values of a Spark type."""
    return _COMPARABLE.fullmatch(type_) is not None


def one_form(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column on which Arrow's equality is Spark's, and equal numbers have equal bits.

    Nested columns are unchanged: Arrow does not compare them.
    """
    if not pa.types.is_floating(values.type):
        return values
    # Adding zero takes the sign off negative zero and changes nothing else.
    values = pc.add(values, pa.scalar(0.0, values.type))
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)


def key_of(value: Any, kind: pa.DataType) -> Hashable:
    """A hashable key for a value from `to_pylist`; keys are equal where Spark's values are."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return "NaN" if value != value else value + 0.0
    if pa.types.is_map(kind):
        pairs = [(key_of(k, kind.key_type), key_of(v, kind.item_type)) for k, v in value]
        return tuple(sorted(pairs, key=repr))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return tuple(key_of(item, kind.value_type) for item in value)
    if pa.types.is_struct(kind):
        return tuple((field.name, key_of(value[field.name], field.type)) for field in kind)
    return value  # type: ignore[no-any-return]
