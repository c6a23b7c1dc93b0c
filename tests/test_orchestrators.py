"""The examples for orchestrators: what they call exists, and what they are written in parses."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from stepwell.cli.main import app
from tests.test_docs import DOCS, fences

PAGE = (DOCS / "guides" / "orchestrators.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """The calls of stepwell in the examples, as lists of arguments."""
    found = []
    for snippet in fences(PAGE, "python"):
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.keyword) and node.arg == "bash_command":
                found.append(shlex.split(ast.literal_eval(node.value)))
            if isinstance(node, ast.List) and all(isinstance(e, ast.Constant) for e in node.elts):
                found.append(ast.literal_eval(node))
    (unit,) = fences(PAGE, "ini")
    found.append(shlex.split(service(unit)["ExecStart"]))
    (document,) = fences(PAGE, "yaml")
    (container,) = yaml.safe_load(document)["spec"]["template"]["spec"]["containers"]
    found.append([*container["command"], *container["args"]])
    return [command[1:] for command in found if Path(command[0]).name == "stepwell"]


def service(unit: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit)
    return parser["Service"]


def test_every_call_of_an_example_is_one_that_stepwell_has() -> None:
    """An option that is misspelt here fails at night, in somebody's schedule."""
    known = commands()
    assert len(known) == 7
    for arguments in known:
        ended = CliRunner().invoke(app, [*arguments, "--help"])
        assert ended.exit_code == 0, (arguments, ended.output)
    wrong = CliRunner().invoke(app, ["-C", "x", "run", "--takeover", "--help"])
    assert wrong.exit_code == 2, "or this test would accept anything"


def test_systemd_knows_the_exit_code_of_a_stop() -> None:
    """A pipeline that was stopped on purpose must not be reported as failed."""
    (unit,) = fences(PAGE, "ini")
    assert service(unit)["SuccessExitStatus"] == "130"
    assert re.search(r"^\| 130 \| stopped by Ctrl-C or SIGTERM", PAGE, re.MULTILINE)


@pytest.mark.parametrize("code", ["0", "1", "2", "130"])
def test_every_exit_code_is_explained(code: str) -> None:
    """They are what the reference of the command line says."""
    assert re.search(rf"^\| {code} \|", PAGE, re.MULTILINE)
    assert code in (DOCS / "reference" / "cli.md").read_text(encoding="utf-8").partition("##")[0]
