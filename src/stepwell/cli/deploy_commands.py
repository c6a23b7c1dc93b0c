"""Commands that deploy a project: their names, options and help, as in `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from stepwell.cli.lazy import runs
from stepwell.cli.project_options import TIMEOUT, Json, TakeOver, Timeout

state = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show or repair the record of deploys.",
)
LockTimeout = Annotated[
    str,
    typer.Option("--lock-timeout", metavar="TIME", help="How long to wait for another deploy."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="TABLE.OLD=NEW",
        help="Rename a column and keep its values; repeatable.",
    ),
]


def add_to(app: typer.Typer) -> None:
    for command in (plan, deploy, destroy, unlock):
        app.command()(command)
    app.add_typer(state, name="state")


@runs("deploy.show_plan")
def plan(
    context: typer.Context,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Save the plan, for deploy --plan FILE."),
    ] = None,
    detailed: Annotated[
        bool,
        typer.Option(
            "--detailed-exitcode", help="Exit with 0 for no changes, 2 for changes, 1 for an error."
        ),
    ] = False,
    renames: Rename = None,
    json: Json = False,
) -> None:
    """Show what deploy would do, and why. Changes nothing, and needs no Spark.

    Shows for each resource the action, the reason, the difference, the estimated number of rows to
    read, and the data that would be lost. Changes that are not safe are refused, and the exit code
    is 1.

    \b
    stepwell plan
    stepwell plan --rename orders.total=amount
    stepwell plan --out today.plan && stepwell deploy --plan today.plan
    """


@runs("deploy.show_deploy")
def deploy(
    context: typer.Context,
    plan_file: Annotated[
        str | None,
        typer.Option("--plan", metavar="FILE", help="Apply a saved plan."),
    ] = None,
    renames: Rename = None,
    yes: Yes = False,
    lock_timeout: LockTimeout = "60s",
    take_over: TakeOver = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Bring the pipeline in line with the project, with all its data.

    New and changed views are computed while the old ones stay in use, and are swapped in between
    two transactions; their sinks receive the difference, once. A process that runs the pipeline
    does it itself, and keeps running. If a deploy is killed at any point, the next one finds out
    what happened.

    \b
    stepwell deploy
    stepwell --target prod deploy --yes --lock-timeout 5m
    """


@runs("deploy.show_destroy")
def destroy(
    context: typer.Context,
    yes: Yes = False,
    lock_timeout: LockTimeout = "60s",
    forget: Annotated[
        list[str] | None,
        typer.Option(
            "--forget", metavar="CLONE", help="Forget a clone that no longer exists; repeatable."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Delete a pipeline with everything it stores. Data in sinks stays.

    Asks first. If it is killed, run it again: it continues where it stopped. A pipeline whose files
    clones need is not destroyed; destroying a clone frees the files that its parent kept for it.

    \b
    stepwell destroy
    stepwell --target test destroy --yes
    """


@state.command("show")
@runs("state.show")
def state_show(context: typer.Context, json: Json = False) -> None:
    """Show the deployment record, and the log that a crash left. Changes nothing.

    \b
    stepwell state show
    stepwell state show --json | jq .serial
    """


@state.command("repair")
@runs("state.show_repair")
def state_repair(context: typer.Context, yes: Yes = False, json: Json = False) -> None:
    """Rebuild a corrupt deployment record from the manifest. The old objects are kept as copies.

    \b
    stepwell state repair
    stepwell state repair --yes
    """


@runs("state.show_unlock")
def unlock(
    context: typer.Context,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the lease, as printed by deploy.")
    ],
    json: Json = False,
) -> None:
    """Free the lease of a deploy that has died on another machine.

    \b
    stepwell unlock 01KDVDNA001HEAD8X4A1JH69RE
    """
