"""What options let one choose from. Here, so that `--help` loads nothing heavy."""

from __future__ import annotations

from enum import Enum


class QueryFormat(str, Enum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


class Template(str, Enum):
    """What `init` begins with."""

    ORDERS = "orders"
    EMPTY = "empty"


class PushFormat(str, Enum):
    """The formats of `connectors.writing.FileFormat`."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class Changes(str, Enum):
    """Those of `connectors.formats.ChangeFormat`."""

    ROWS = "rows"
    INSERT_DELETE = "insert_delete"
    DEBEZIUM = "debezium"
