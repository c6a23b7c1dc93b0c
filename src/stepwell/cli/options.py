"""Global options: the project to use, and the log settings.

They belong to the root of the command line, and may come before or after the command. Those after
the command are moved to the front before anything is parsed, so that both orders mean the same and
each option is parsed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

GLOBAL = ("-C", "--target", "--store", "--var", "--log-level", "--log-format")
"""Each takes a value. `--json` is an option of every command as well."""


def moved_to_front(root: Any, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the global options first; those after `--` stay in place.

    `root` is a command of click, or of typer's copy of click.
    """
    front: list[str] = []
    rest: list[str] = []
    command = root
    waiting = iter(arguments)
    for word in waiting:
        if word == "--":
            rest += [word, *waiting]
        elif _name(word) in GLOBAL:
            front += [word, *_value(word, waiting)]
        elif word.startswith("-"):
            rest.append(word)
            if _takes_value(command, word):
                rest += _value(word, waiting)
        else:
            rest.append(word)
            command = getattr(command, "commands", {}).get(word, command)
    return front + rest


def _takes_value(command: Any, word: str) -> bool:
    return any(
        _name(word) in parameter.opts and not getattr(parameter, "is_flag", False)
        for parameter in command.params
    )


def _value(word: str, waiting: Iterator[str]) -> list[str]:
    """Return the next word, unless the value is attached: `--target=prod`, `-Corders`."""
    attached = "=" in word if word.startswith("--") else len(word) > 2
    return [] if attached else [value for value in [next(waiting, None)] if value is not None]


def _name(word: str) -> str:
    return word.partition("=")[0] if word.startswith("--") else word[:2]
