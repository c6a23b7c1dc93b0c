"""The kinds of values there are, and columns of them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

INT, BIGINT, DECIMAL, STRING = "int", "bigint", "decimal", "string"
DOUBLE, DATE, BOOLEAN = "double", "date", "boolean"
# Depends on nothing but the rows, but has a fraction that is not exact: sums of it are NOISY.
REAL = "real"
NOISY = "noisy"
ARRAY = "array"

SQL_TYPES = {
    INT: "INT",
    BIGINT: "BIGINT",
    DECIMAL: "DECIMAL(8,2)",
    STRING: "STRING",
    DOUBLE: "DOUBLE",
    DATE: "DATE",
    BOOLEAN: "BOOLEAN",
}
ARROW_TYPES = {
    INT: pa.int32(),
    BIGINT: pa.int64(),
    DECIMAL: pa.decimal128(8, 2),
    STRING: pa.string(),
    DOUBLE: pa.float64(),
    DATE: pa.date32(),
    BOOLEAN: pa.bool_(),
}
VALUES: dict[str, list[Any]] = {
    INT: [0, 1, 2, -1],
    BIGINT: [0, 1, 2, 5_000_000_000],
    DECIMAL: [Decimal("0.00"), Decimal("1.50"), Decimal("2.25"), Decimal("-1.50")],
    STRING: ["a", "b", "A", "", "a "],
    DOUBLE: [0.0, 0.5, -1.25, 2.0, -0.0, float("nan"), float("inf"), float("-inf")],
    DATE: [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), datetime.date(2024, 2, 29)],
    BOOLEAN: [True, False],
}
# More of them than rows in a batch, so that a keyed table is not always replaced as a whole.
IDS = [1, 2, 3, 0, 4, 5, 6, 7, 8, -1]
LITERALS = {
    INT: ["1", "0", "2", "-1"],
    BIGINT: ["1L", "2L", "0L"],
    DECIMAL: ["1.50", "0.25"],
    STRING: ["'a'", "'b'", "''"],
    DOUBLE: ["0.5D", "-1.25D", "double('NaN')"],
    DATE: ["DATE'2024-01-01'", "DATE'2024-01-02'"],
    BOOLEAN: ["true", "false"],
}
# The same name has the same type everywhere, so that USING and NATURAL find something to join.
COLUMNS = {
    "i": INT,
    "s": STRING,
    "j": INT,
    "m": DECIMAL,
    "d": DOUBLE,
    "n": BIGINT,
    "t": DATE,
    "f": BOOLEAN,
    "u": STRING,
}
NUMBERS = (INT, BIGINT, DECIMAL)
# What a join, a group or an order may be decided by.
KEYS = (INT, STRING, BIGINT, DECIMAL, DATE, DOUBLE, REAL, BOOLEAN)
EXACT = (*KEYS, ARRAY)
BASE = tuple(SQL_TYPES)


@dataclass(frozen=True, slots=True)
class Column:
    sql: str
    """How to refer to it."""
    kind: str
    name: str = ""
