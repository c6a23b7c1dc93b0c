"""Precedence of the values of a variable: the first of these that has one.

    --var name=value        on the command line
    STEPWELL_VAR_name       in the environment
    stepwell.vars.yml       next to stepwell.yml; for one machine, not shared
    targets.T.variables     of the chosen target
    variables               in stepwell.yml: the default, and the declaration

A variable that stepwell.yml does not declare is an error, wherever it comes from. A value from the
command line or the environment is a text, except `true`, `false` and whole numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepwell.deploy.document import Node, Scalar, read_document
from stepwell.errors import ConfigError
from stepwell.text import Source, Span, did_you_mean

FILE = "stepwell.vars.yml"
PREFIX = "STEPWELL_VAR_"


def given_variables(pairs: Sequence[str]) -> dict[str, str]:
    """Parse the values of `--var`."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--var {pair}: expected NAME=VALUE", hint="--var region=eu")
        found[name] = value
    return found


def resolved_variables(
    declared: Mapping[str, Node],
    folder: Path,
    environ: Mapping[str, str],
    given: Mapping[str, str],
) -> dict[str, Node]:
    """Return every declared variable with its value. `declared` includes the target's values."""
    values = dict(declared)
    path = folder / FILE
    if path.is_file():
        for name, node in read_document(path, FILE).mapping(FILE).items():
            if name not in declared:
                raise node.key_error(f"there is no variable {name}", hint=_hint(name, declared))
            values[name] = node
    for name in declared:
        if PREFIX + name in environ:
            values[name] = _node(f"{PREFIX}{name}", environ[PREFIX + name])
    for name, value in given.items():
        if name not in declared:
            raise ConfigError(f"--var: there is no variable {name}", hint=_hint(name, declared))
        values[name] = _node(f"--var {name}", value)
    for name, node in values.items():
        if isinstance(node.content, (Mapping, tuple)):
            raise node.error(f"variable {name} must be a single value, found {node.shown}")
    return values


def _node(name: str, text: str) -> Node:
    value: Scalar = text
    if text in ("true", "false"):
        value = text == "true"
    elif re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        value = int(text)
    return Node(value, Source(name, text), Span(0, len(text)))


def _hint(name: str, declared: Mapping[str, Node]) -> str:
    return did_you_mean(name, declared) or "declare it under variables: in stepwell.yml"
