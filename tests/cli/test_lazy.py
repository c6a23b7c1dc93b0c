"""Commands are declared in one place and carried out in another; the two must fit."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import typer

from stepwell.cli.lazy import body_of, runs
from stepwell.cli.main import app

OWN = {"context", "json", "timeout"}
"""What becomes `ProjectOptions`, the first parameter of every body."""


def commands(group: typer.Typer) -> Iterator[Any]:
    for command in group.registered_commands:
        if hasattr(command.callback, "body"):
            yield command.callback
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from commands(below.typer_instance)


@pytest.mark.parametrize("command", list(commands(app)), ids=lambda command: command.body)
def test_a_body_takes_what_its_command_declares(command: Any) -> None:
    """No type checker sees the call: an option under another name would fail only when it runs."""
    declared = [name for name in inspect.signature(command).parameters if name not in OWN]
    first, *taken = inspect.signature(body_of(command)).parameters.values()
    assert first.annotation == "ProjectOptions"
    assert sorted(parameter.name for parameter in taken) == sorted(declared)


@pytest.mark.parametrize(
    ("result", "code"), [(None, 0), (True, 0), (False, 1), (0, 0), (2, 2), (130, 130)]
)
def test_what_a_body_returns_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, result: object, code: int
) -> None:
    """Scripts and supervisors go by the exit code: False is 1, and a number is itself."""

    @runs("status.show")
    def command(context: typer.Context) -> None: ...

    monkeypatch.setattr("stepwell.cli.lazy.project_options", lambda *_: None)
    monkeypatch.setattr("stepwell.cli.status.show", lambda _: result)
    with pytest.raises(typer.Exit) if code else nullcontext() as ended:
        command(None)
    assert (ended.value.exit_code if ended else 0) == code
