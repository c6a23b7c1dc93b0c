"""`--log-level` and `--log-format`: configure the log records of `stepwell`.

Without either option no record is written: the messages of a command are not a log. With one of
them, records go to standard error, one per line, and `run` logs instead of showing its progress.
Standard output is for data in either case. Spark's own log has its own settings.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from stepwell.cli.choices import LogFormat, LogLevel

LOGGER = logging.getLogger("stepwell.cli")
FIELDS = ("pipeline", "epoch", "transaction")
"""Fields of every record, null if not known."""
_ROOT = logging.getLogger("stepwell")
_SILENT = logging.NullHandler()
"""For sqlglot's remarks on what it cannot parse, which Python would print: our error says it."""


class StandardError(logging.Handler):
    """Writes records to the current standard error: a progress bar or a test may replace it."""

    def __init__(self, format: LogFormat) -> None:
        super().__init__()
        self.log_format = format
        self.setFormatter(JsonLine() if format is LogFormat.JSON else TextLine())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # noqa: BLE001 - as every handler of the standard library does
            self.handleError(record)


class TextLine(logging.Formatter):
    """`2026-11-18 08:15:02 INFO orders epoch 3 transaction 17: committed transaction 17: ...`"""

    def format(self, record: logging.LogRecord) -> str:
        given = record.__dict__
        where = [given["pipeline"]] if given.get("pipeline") is not None else []
        where += [f"{name} {given[name]}" for name in FIELDS[1:] if given.get(name) is not None]
        head = f"{_time(record).astimezone():%Y-%m-%d %H:%M:%S} {record.levelname}"
        text = " ".join([head, *where]) + ": " + " ".join(record.getMessage().splitlines())
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonLine(logging.Formatter):
    """One JSON object per record, in one line."""

    def format(self, record: logging.LogRecord) -> str:
        given = record.__dict__
        content: dict[str, Any] = {
            "time": f"{_time(record):%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": record.levelname.lower(),
            "logger": record.name,
            **{name: given.get(name) for name in FIELDS},
            "message": record.getMessage(),
        }
        content |= {name: given[name] for name in ("event", "details") if name in given}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


def configure(level: LogLevel | None, format: LogFormat | None) -> None:
    """Write records to standard error from now on; stop if neither option is given."""
    for handler in [h for h in _ROOT.handlers if isinstance(h, StandardError)]:
        _ROOT.removeHandler(handler)
    logging.getLogger("sqlglot").addHandler(_SILENT)
    if level is None and format is None:
        _ROOT.setLevel(logging.NOTSET)
        return
    _ROOT.addHandler(StandardError(format or LogFormat.TEXT))
    _ROOT.setLevel((level or LogLevel.INFO).value.upper())


def configured() -> LogFormat | None:
    """Return the format of log records; None if they are not written."""
    for handler in _ROOT.handlers:
        if isinstance(handler, StandardError):
            return handler.log_format
    return None


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
