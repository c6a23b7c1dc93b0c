"""The commands that deploy a project: their names, options and help, as in `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from stepwell.cli.where import Json, TakeOver, place

state = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The record of what was deployed.",
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
        help="A column that has another name now, and keeps its values; repeatable.",
    ),
]


def add_to(app: typer.Typer) -> None:
    for command in (plan, deploy, destroy, unlock):
        app.command()(command)
    app.add_typer(state, name="state")


def plan(
    context: typer.Context,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Keep the plan, for deploy --plan FILE."),
    ] = None,
    detailed_exitcode: Annotated[
        bool,
        typer.Option("--detailed-exitcode", help="0: nothing to do, 2: changes, 1: an error."),
    ] = False,
    rename: Rename = None,
    json: Json = False,
) -> None:
    """Show what deploy would do, and why. Changes nothing, and needs no Spark.

    For each resource the action, the reason, what is different, how many rows are read for it and
    what would be lost. What cannot be done safely is refused here, and the exit code is 1.

    \b
    stepwell plan
    stepwell plan --rename orders.total=amount
    stepwell plan --out today.plan && stepwell deploy --plan today.plan
    """
    from stepwell.cli import deploy

    code = deploy.show_plan(
        place(context, json), out=out, detailed=detailed_exitcode, renames=tuple(rename or ())
    )
    if code:
        raise typer.Exit(code)


def deploy(
    context: typer.Context,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="FILE", help="Carry out a plan that was kept."),
    ] = None,
    rename: Rename = None,
    yes: Yes = False,
    lock_timeout: LockTimeout = "60s",
    take_over: TakeOver = False,
    json: Json = False,
) -> None:
    """Make the pipeline what the project says, with all its data.

    New and changed views are computed beside the old ones and swapped in between two transactions;
    their sinks receive the difference, once. A process that runs the pipeline does it itself, and
    goes on. Killed at any moment, the next deploy finds out what happened.

    \b
    stepwell deploy
    stepwell --target prod deploy --yes --lock-timeout 5m
    """
    from stepwell.cli import deploy
    from stepwell.cli.choices import seconds

    code = deploy.show_deploy(
        place(context, json),
        plan_file=plan,
        renames=tuple(rename or ()),
        yes=yes,
        wait_s=seconds("--lock-timeout", lock_timeout),
        take_over=take_over,
    )
    if code:
        raise typer.Exit(code)


def destroy(
    context: typer.Context,
    yes: Yes = False,
    lock_timeout: LockTimeout = "60s",
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="CLONE", help="A clone that is gone; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Delete a pipeline with everything it stores. What sinks hold stays.

    Asks first. Killed on the way, run it again: it goes on where it stopped. A pipeline whose files
    clones need is not destroyed; destroying a clone frees what its parent kept for it.

    \b
    stepwell destroy
    stepwell --target test destroy --yes
    """
    from stepwell.cli import deploy
    from stepwell.cli.choices import seconds

    wait_s = seconds("--lock-timeout", lock_timeout)
    given = place(context, json)
    code = deploy.show_destroy(given, yes=yes, wait_s=wait_s, forget=tuple(forget or ()))
    if code:
        raise typer.Exit(code)


@state.command("show")
def state_show(context: typer.Context, json: Json = False) -> None:
    """Show the record of what was deployed, and what a crash left. Changes nothing.

    \b
    stepwell state show
    stepwell state show --json | jq .serial
    """
    from stepwell.cli import state

    code = state.show(place(context, json))
    if code:
        raise typer.Exit(code)


@state.command("repair")
def state_repair(context: typer.Context, yes: Yes = False, json: Json = False) -> None:
    """Write the record anew from the manifest, where it is damaged. What was there is kept beside.

    \b
    stepwell state repair
    stepwell state repair --yes
    """
    from stepwell.cli import state

    code = state.show_repair(place(context, json), yes=yes)
    if code:
        raise typer.Exit(code)


def unlock(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="The lease's, as a message named it.")],
    json: Json = False,
) -> None:
    """Free the lease of a deploy that has died on another machine.

    \b
    stepwell unlock 01KDVDNA001HEAD8X4A1JH69RE
    """
    from stepwell.cli import state

    state.show_unlock(place(context, json), id)
