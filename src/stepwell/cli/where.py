"""Which project a command is about: `stepwell -C DIR --target T --store URI --json`.

Like git, a command finds its project from any folder inside it: the nearest folder with a
stepwell.yml, from the one it is given upwards.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.choices import Changes, PushFormat, seconds
from stepwell.errors import ConfigError

if TYPE_CHECKING:
    from stepwell.deploy.project import Project
    from stepwell.env import Env


Timeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="TIME",
        help="How long to wait for a process or a store that does not answer.",
    ),
]
TIMEOUT = "30s"

# The options of commands that push files.
Format = Annotated[
    PushFormat | None,
    typer.Option("--format", help="By default what a name says; of standard input, json."),
]
WhatChanges = Annotated[Changes, typer.Option("--changes", help="What a record does to its table.")]
Delimiter = Annotated[
    str, typer.Option("--delimiter", metavar="C", help="What separates the fields of CSV.")
]
Key = Annotated[
    str | None, typer.Option("--key", help="Take the rows once, however often they are sent.")
]
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Fence a writer that may be alive and does not answer."),
]
_FILE = "stepwell.yml"
"""As in `deploy/project`, which takes a second to import."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; errors are JSON too.")]


@dataclass(frozen=True, slots=True)
class Where:
    folder: str = "."
    target: str | None = None
    store: str | None = None
    json: bool = False
    variables: tuple[str, ...] = ()
    """`NAME=VALUE` each."""
    timeout_s: float = 30.0
    """How long a process that runs the pipeline, or the store, may say nothing."""

    def project(self, env: Env, *, secrets: bool = True) -> Project:
        """The project it names, read and checked.

        Without `secrets` a source or sink may refer to what is not there, such as an environment
        variable; it is an error only for a command that opens that source or sink.
        """
        from stepwell.deploy.project import load_project
        from stepwell.deploy.variables import given_variables

        loaded = load_project(
            self._found(),
            env,
            target=self.target,
            store=self.store,
            variables=given_variables(self.variables),
            secrets=secrets,
        )
        return replace(loaded, patience_s=self.timeout_s)

    def deployed(self, env: Env, *, secrets: bool = True) -> Project:
        """The same as it is deployed: what every command runs and reads; as it is, if never."""
        from stepwell.deploy.program import as_deployed
        from stepwell.state.manifest import Manifests

        project = self.project(env, secrets=secrets)
        found = Manifests(project.open_store(env), env).latest()
        return project if found is None else as_deployed(project, found.manifest.program)

    def _found(self) -> str:
        """The folder of the project; the one that was given, if there is none above it either."""
        found = project_above(self.folder)
        if found is None:
            return self.folder
        if not self.json:
            print(f"project {found}", file=sys.stderr)
        return str(found)

    @property
    def options(self) -> str:
        """The options that lead to the same project again, for a command that is suggested."""
        given = [("-C", self.folder if self.folder != "." else None), ("--target", self.target)]
        given += [("--var", pair) for pair in self.variables]
        return "".join(f"{name} {quote(value)} " for name, value in given if value is not None)


def project_above(folder: str) -> Path | None:
    """The nearest folder above this one that is a project; None if it is one itself, or none is.

    A project may set options of Spark, which run code. So one that belongs to somebody else, such
    as a stepwell.yml left in /tmp, is used only where it is named.
    """
    here = Path(os.path.abspath(Path(folder).expanduser()))
    if not here.is_dir() or (here / _FILE).is_file():
        return None
    for above in here.parents:
        path = above / _FILE
        if not path.is_file():
            continue
        if path.stat().st_uid not in (os.getuid(), 0):
            raise ConfigError(
                f"there is no {_FILE} in {here}, and the one above it, {path}, belongs to "
                "another user",
                hint=f"if it is meant: stepwell -C {quote(str(above))}",
            )
        return above
    return None


def place(context: typer.Context, json: bool, timeout: str = TIMEOUT) -> Where:
    """What stands before the command, and how long it waits."""
    given = context.find_root().params
    variables = tuple(given["var"] or ())
    wanted = wants_json(context, json)
    timeout_s = seconds("--timeout", timeout)
    if not timeout_s:
        raise typer.BadParameter("--timeout must be more than 0")
    return Where(given["folder"], given["target"], given["store"], wanted, variables, timeout_s)


def wants_json(context: typer.Context, given: bool) -> bool:
    """`--json` may stand before the command or after it."""
    return given or bool(context.find_root().params["json"])
