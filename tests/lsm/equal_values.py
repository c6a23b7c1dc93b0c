"""Values of every kind of type, with those among them that Spark calls equal."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

OTHER_NAN: float = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0]
"""A NaN of other bits than Python's own."""

# Of each type, groups of values: those in one group are equal, those of two groups are not.
EQUAL: dict[str, list[list[Any]]] = {
    "boolean": [[True, True], [False], [None, None]],
    "tinyint": [[1, 1], [-128], [None]],
    "int": [[0, 0], [2**31 - 1], [None]],
    "bigint": [[-(2**63), -(2**63)], [0], [None, None]],
    "double": [[0.0, -0.0], [math.nan, OTHER_NAN, -math.nan], [math.inf], [-math.inf], [None]],
    "float": [[0.0, -0.0], [math.nan, -math.nan], [1.5], [None, None]],
    "decimal(12,2)": [[Decimal("0.00"), Decimal("-0.00")], [Decimal("1.50")], [None]],
    "decimal(38,0)": [[Decimal(10**37), Decimal(10**37)], [Decimal(-1)], [None]],
    "string": [["a", "a"], ["A"], ["a "], [""], ["\u00e9"], ["e\u0301"], [None]],
    "binary": [[b"\x00", b"\x00"], [b""], [b"\x00\x00"], [None]],
    "date": [[date(2026, 1, 1), date(2026, 1, 1)], [date(1, 1, 1)], [None]],
    "timestamp": [[datetime(2026, 1, 1, tzinfo=UTC)] * 2, [datetime(1970, 1, 1, tzinfo=UTC)]],
    "timestamp_ntz": [[datetime(2026, 1, 1)] * 2, [datetime(1970, 1, 1)], [None]],
    "array<double>": [[[0.0, 1.0], [-0.0, 1.0]], [[1.0, 0.0]], [[math.nan], [OTHER_NAN]], [[]]],
    "array<int>": [[[1, None], [1, None]], [[None, 1]], [[]], [[None]], [None]],
    "struct<a:double,b:string>": [
        [{"a": 0.0, "b": "x"}, {"a": -0.0, "b": "x"}],
        [{"a": math.nan, "b": None}, {"a": OTHER_NAN, "b": None}],
        [{"a": None, "b": None}],
        [None],
    ],
    "map<string,double>": [
        [[("a", 0.0), ("b", math.nan)], [("b", OTHER_NAN), ("a", -0.0)]],
        [[("a", 0.0)]],
        [[("a", None)]],
        [[]],
        [None],
    ],
    "array<struct<m:map<int,float>>>": [
        [[{"m": [(1, 0.0), (2, 1.0)]}], [{"m": [(2, 1.0), (1, -0.0)]}]],
        [[{"m": [(1, 1.0), (2, 0.0)]}]],
        [[{"m": None}]],
    ],
}


def numbered(type_: str) -> list[tuple[Any, int]]:
    """Each value with the number of its group."""
    return [(value, i) for i, group in enumerate(EQUAL[type_]) for value in group]
