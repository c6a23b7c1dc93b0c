"""The project of a command: `stepwell -C DIR --target T --store URI --json`.

Like git, a command finds its project from any folder inside it: the nearest folder with a
stepwell.yml, from the given one upwards.
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
    from stepwell.endpoint.starting import Announcement
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

# Options of commands that push files.
Format = Annotated[
    PushFormat | None,
    typer.Option("--format", help="By default from the file name; json for standard input."),
]
WhatChanges = Annotated[Changes, typer.Option("--changes", help="How a record changes the table.")]
Delimiter = Annotated[str, typer.Option("--delimiter", metavar="C", help="Field separator of CSV.")]
Key = Annotated[
    str | None, typer.Option("--key", help="Add the rows once, no matter how often they are sent.")
]
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Fence a writer that may be alive and does not answer."),
]
_FILE = "stepwell.yml"
"""Copied from `deploy/project`, which takes a second to import."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; errors are JSON too.")]


@dataclass(frozen=True, slots=True)
class ProjectOptions:
    folder: str = "."
    target: str | None = None
    store: str | None = None
    json: bool = False
    variables: tuple[str, ...] = ()
    """Each has the form `NAME=VALUE`."""
    timeout_s: float = 30.0
    """Longest silence of the process that runs the pipeline, or of the store."""
    starting: Announcement | None = None
    """Held by a command that is announced, until other processes can reach it."""

    def project(self, env: Env, *, secrets: bool = True) -> Project:
        """Load and check the project.

        Without `secrets`, a source or sink may have an unresolvable reference, such as a missing
        environment variable. That is an error only for a command that opens that source or sink.
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
        """Load the project as it is deployed, for commands that run or read it.

        A project that was never deployed is returned as it is.
        """
        from stepwell.deploy.program import as_deployed
        from stepwell.manifest.manifest import Manifests

        project = self.project(env, secrets=secrets)
        found = Manifests(project.open_store(env), env).latest()
        return project if found is None else as_deployed(project, found.manifest.program)

    def _found(self) -> str:
        """Return the folder of the project; the given one if no folder above it is a project."""
        found = project_above(self.folder)
        if found is None:
            return self.folder
        if not self.json:
            print(f"project {found}", file=sys.stderr)
        return str(found)

    def nearest(self) -> str:
        """Return the folder of the project, as `project` finds it; reports nothing."""
        return str(project_above(self.folder) or self.folder)

    @property
    def options(self) -> str:
        """The options that select the same project again, for a suggested command."""
        given = [("-C", self.folder if self.folder != "." else None), ("--target", self.target)]
        given += [("--var", pair) for pair in self.variables]
        return "".join(f"{name} {quote(value)} " for name, value in given if value is not None)


def project_above(folder: str) -> Path | None:
    """Return the nearest project folder above this one; None if it is one itself, or none is.

    A project may set Spark options, which run code. A project that belongs to another user, such as
    a stepwell.yml left in /tmp, is therefore used only if it is named explicitly.
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
                hint=f"to use it: stepwell -C {quote(str(above))}",
            )
        return above
    return None


def project_options(context: typer.Context, json: bool, timeout: str = TIMEOUT) -> ProjectOptions:
    """Return the project options of the root command, and the timeout of the command."""
    given = context.find_root().params
    variables = tuple(given["var"] or ())
    wanted = wants_json(context, json)
    timeout_s = seconds("--timeout", timeout)
    if not timeout_s:
        raise typer.BadParameter("--timeout must be more than 0")
    return ProjectOptions(
        given["folder"], given["target"], given["store"], wanted, variables, timeout_s
    )


def wants_json(context: typer.Context, given: bool) -> bool:
    """Return whether `--json` was given, before or after the command."""
    return given or bool(context.find_root().params["json"])
