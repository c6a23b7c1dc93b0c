"""What options let one choose from. Here, so that `--help` loads nothing heavy."""

from __future__ import annotations

import re
from enum import Enum

import typer

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(option: str, text: str) -> float:
    """A time with its unit.

    >>> seconds("--lock-timeout", "5m")
    300.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text, re.ASCII)
    if found is None:
        raise typer.BadParameter(f"{option} must be a time such as 500ms, 60s or 5m, found {text}")
    return float(found[1]) * _SECONDS[found[2]]


class QueryFormat(str, Enum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


class Shell(str, Enum):
    """Those that `completion` writes a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


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
