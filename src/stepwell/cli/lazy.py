"""Commands whose bodies are imported when they run, so that `--help` answers at once.

A command is declared once: a function with its options and its help, and nothing else. Its body is
in another module and takes the same parameters by name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from importlib import import_module
from typing import Any

import typer

from stepwell.cli.project_options import TIMEOUT, project_options

Command = Callable[..., None]


def runs(body: str, *, announced: bool = False) -> Callable[[Command], Command]:
    """Declare a command that runs a function of this package, such as `checkpoint.create`.

    The function receives `ProjectOptions`, made of `context`, `json` and `timeout`, and every other
    parameter of the command under its own name. If it returns False, the exit code is 1; if it
    returns a number, that is the exit code. A command that is `announced` can be waited for by
    others while its body is imported, until it closes the announcement that it receives.
    """

    def declare(command: Command) -> Command:
        @wraps(command)
        def run(
            context: typer.Context, json: bool = False, timeout: str = TIMEOUT, **given: Any
        ) -> None:
            options = project_options(context, json, timeout)
            with ExitStack() as stack:
                if announced:
                    # Loads a library that `--help` does not need.
                    from stepwell.endpoint.starting import Announcement

                    starting = stack.enter_context(Announcement(options.nearest()))
                    options = replace(options, starting=starting)
                result = body_of(run)(options, **given)
            code = int(not result) if isinstance(result, bool) else result or 0
            if code:
                raise typer.Exit(code)

        run.body = body  # type: ignore[attr-defined]
        return run

    return declare


def body_of(command: Command) -> Callable[..., Any]:
    """Return the function that a command runs; imports its module."""
    module, _, name = getattr(command, "body").partition(".")  # noqa: B009
    found: Callable[..., Any] = getattr(import_module(f"stepwell.cli.{module}"), name)
    return found
