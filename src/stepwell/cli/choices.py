"""Choices of options. Kept here, so that `--help` imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum

import typer

from stepwell.durations import EXAMPLES, parse_duration, unit_hint


def seconds(option: str, text: str) -> float:
    """Return the seconds of a duration given as an option.

    >>> seconds("--lock-timeout", "5m")
    300.0
    """
    found = parse_duration(text)
    if found is None:
        hint = unit_hint(text)
        more = f"; {hint}" if hint else ""
        expected = f"a duration such as {EXAMPLES}"
        raise typer.BadParameter(f"{option} must be {expected}, found {text}{more}")
    return found


class QueryFormat(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


class LogLevel(StrEnum):
    """Lowest level of the records that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of log records."""

    TEXT = "text"
    JSON = "json"


class Shell(StrEnum):
    """Shells for which `completion` prints a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class Template(StrEnum):
    """Templates of `init`."""

    ORDERS = "orders"
    EMPTY = "empty"


class PushFormat(StrEnum):
    """The formats of `connectors.writing.FileFormat`."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class Changes(StrEnum):
    """The formats of `connectors.formats.ChangeFormat`."""

    ROWS = "rows"
    INSERT_DELETE = "insert_delete"
    DEBEZIUM = "debezium"
