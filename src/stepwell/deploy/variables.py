"""Where the value of a variable comes from: the first of these that has one.

    --var name=value        on the command line
    STEPWELL_VAR_name       in the environment
    stepwell.vars.yml       beside stepwell.yml; for one machine, not for everybody
    targets.T.variables     of the chosen target
    variables               in stepwell.yml, the default, which is also the declaration

A variable that stepwell.yml does not declare is a mistake, wherever it comes from. What comes from
the command line or the environment is a text; `true`, `false` and whole numbers are what they seem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepwell.deploy.document import Node, Scalar, read_document
from stepwell.errors import ConfigError
from stepwell.query.source import Source, Span, did_you_mean

FILE = "stepwell.vars.yml"
PREFIX = "STEPWELL_VAR_"


def given_variables(pairs: Sequence[str]) -> dict[str, str]:
    """What `--var` says."""
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
    """Every declared variable with its value. `declared` has the target's values already."""
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
