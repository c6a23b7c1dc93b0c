"""Options that say which project is meant: they may stand before the command or after it.

They belong to the root of the command line. What is written after a command is moved in front of it
before anything is parsed, so that both orders mean the same and each is parsed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

PROJECT = ("-C", "--target", "--store", "--var")
"""Each takes a value. `--json` is an option of every command as well."""


def moved_to_front(root: Any, arguments: Sequence[str]) -> list[str]:
    """The arguments with the project's options first; whatever follows `--` stays where it is.

    `root` is a command of click's, or of the copy of it that typer carries.
    """
    front: list[str] = []
    rest: list[str] = []
    command = root
    waiting = iter(arguments)
    for word in waiting:
        if word == "--":
            rest += [word, *waiting]
        elif _name(word) in PROJECT:
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
    """The next word, unless the option brings its value along: `--target=prod`, `-Corders`."""
    attached = "=" in word if word.startswith("--") else len(word) > 2
    return [] if attached else [value for value in [next(waiting, None)] if value is not None]


def _name(word: str) -> str:
    return word.partition("=")[0] if word.startswith("--") else word[:2]
