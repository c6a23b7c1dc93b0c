"""What stands in front of a command: `stepwell -C DIR --target T --store URI --json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.choices import seconds

if TYPE_CHECKING:
    from stepwell.deploy.project import Project
    from stepwell.env import Env


Timeout = Annotated[
    str,
    typer.Option(
        "--timeout", metavar="TIME", help="How long to wait for a process that does not answer."
    ),
]
TIMEOUT = "30s"

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
    """How long a process that runs the pipeline may say nothing."""

    def project(self, env: Env) -> Project:
        """The project it names, read and checked."""
        from stepwell.deploy.project import load_project
        from stepwell.deploy.variables import given_variables

        return load_project(
            self.folder,
            env,
            target=self.target,
            store=self.store,
            variables=given_variables(self.variables),
        )

    def deployed(self, env: Env) -> Project:
        """The same as it is deployed: what every command runs and reads; as it is, if never."""
        from stepwell.deploy.program import as_deployed
        from stepwell.state.manifest import Manifests

        project = self.project(env)
        found = Manifests(project.open_store(env), env).latest()
        return project if found is None else as_deployed(project, found.manifest.program)


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
