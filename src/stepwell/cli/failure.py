"""Failing commands: a message or JSON on standard error, and an exit code.

An error of `stepwell.errors` is shown as its message and its hint, never as a traceback. Any other
exception is a bug in Stepwell, and is reported as one. STEPWELL_TRACEBACK=1 shows the traceback.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from stepwell.cli import completion, logs
from stepwell.cli.choices import LogFormat
from stepwell.cli.options import moved_to_front
from stepwell.errors import StepwellError

ERROR, USAGE = 1, 2

# Some versions of typer carry a copy of click, others import it; this is the class in use.
UsageError: Any = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """The root of the command line, which turns exceptions of commands into exit codes."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in arguments
        named["standalone_mode"] = False
        # Also under `python -m stepwell`, so that usage and errors name the same command.
        named["prog_name"] = "stepwell"
        completion.prepare()
        try:
            code = super().main(moved_to_front(self, arguments), *more, **named)
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError" and not as_json:
                error.show()  # Its message is the whole help.
                sys.exit(USAGE)
            command = error.ctx.command_path if error.ctx else "stepwell"
            report(error.format_message(), f"{command} --help", "UsageError", as_json=as_json)
            sys.exit(USAGE)
        except StepwellError as error:
            show_traceback()
            details = {"epoch", "host", "pid", "time", "object", "field", "file", "line", "column"}
            known = {name: getattr(error, name) for name in details if hasattr(error, name)}
            report(error.message, error.hint, type(error).__name__, as_json=as_json, **known)
            sys.exit(ERROR)
        except OSError as error:
            if error.errno == errno.EPIPE:
                # The reader of our output (`| head`) has closed the pipe. Nothing may be written to
                # it any more, not even by the interpreter during shutdown.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(ERROR)
            bug(error, as_json)
        except Exception as error:  # noqa: BLE001 - nothing is swallowed: it is reported as a bug
            bug(error, as_json)
        sys.exit(code or 0)


def bug(error: Exception, as_json: bool) -> NoReturn:
    show_traceback()
    report(
        f"unexpected {type(error).__name__}: {error}",
        "this is a bug in Stepwell; run the same command with STEPWELL_TRACEBACK=1 to see where, "
        "and report it",
        type(error).__name__,
        as_json=as_json,
    )
    sys.exit(ERROR)


def report(
    message: str,
    hint: str | None = None,
    kind: str = "StepwellError",
    *,
    as_json: bool,
    **details: object,
) -> None:
    """Report an error on standard error."""
    if logs.configured() is LogFormat.JSON and not as_json:
        # A collector of JSON lines gets this one, too.
        logs.LOGGER.error("%s", message, extra={"details": {"type": kind, "hint": hint, **details}})
        return
    if as_json:
        content = {"type": kind, "message": message, "hint": hint, **details}
        print(json.dumps({"error": content}, ensure_ascii=False), file=sys.stderr)
        return
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    colour = sys.stderr.isatty() and not plain
    for label, text, style in (("error:", message, "red"), ("hint:", hint, "cyan")):
        if text:
            shown = typer.style(label, fg=style, bold=True) if colour else label
            print(f"{shown} {text}", file=sys.stderr)


def show_traceback() -> None:
    if os.environ.get("STEPWELL_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exc()
