"""The commands that keep a pipeline's state: their names, options and help, as in `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from stepwell.cli.where import TIMEOUT, Json, TakeOver, Timeout, place

checkpoint = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keep moments of a pipeline, to go back to or to clone.",
)
Which = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="Its name, its id, or how the id begins.")
]


def add_to(app: typer.Typer) -> None:
    app.add_typer(checkpoint, name="checkpoint")
    app.command()(restore)
    app.command()(compact)
    app.command()(adopt)
    app.command("test")(data_tests)


@checkpoint.command("create")
def create(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Keep it until it is deleted.")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="TIME", help="Keep it for so long: 12h, 7d."),
    ] = None,
    take_over: TakeOver = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Keep the pipeline as it is now, between two transactions.

    A process that runs the pipeline is asked to do it, and goes on. Without --name and --keep it is
    one of the few that come by themselves (checkpoint.keep in stepwell.yml), and goes with them.

    \b
    stepwell checkpoint create --name before-migration
    stepwell checkpoint create --keep 7d
    """
    from stepwell.cli import checkpoint

    checkpoint.create(place(context, json, timeout), name=name, keep=keep, take_over=take_over)


@checkpoint.command("list")
def list_(context: typer.Context, json: Json = False) -> None:
    """List the checkpoints that are kept, oldest first."""
    from stepwell.cli import checkpoint

    checkpoint.list_all(place(context, json))


@checkpoint.command("show")
def show(context: typer.Context, which: Which, json: Json = False) -> None:
    """Show what a checkpoint holds: transaction, files, sources, sinks; and whether it is whole.

    The exit code is 1 if a file is missing or has another size.

    \b
    stepwell checkpoint show before-migration
    """
    from stepwell.cli import checkpoint

    if not checkpoint.show(place(context, json), which):
        raise typer.Exit(1)


@checkpoint.command("delete")
def delete(context: typer.Context, which: Which, json: Json = False) -> None:
    """Let a checkpoint go. Its files go when nothing else needs them, by stepwell gc."""
    from stepwell.cli import checkpoint

    checkpoint.delete(place(context, json), which)


def restore(
    context: typer.Context,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="ID", help="Back to a checkpoint.")
    ] = None,
    transaction: Annotated[
        int | None,
        typer.Option("--transaction", min=0, metavar="N", help="Back to a transaction."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="Back to a time: 2026-01-31T12:00:00Z."),
    ] = None,
    confirm: Annotated[bool, typer.Option("--confirm", help="Do it.")] = False,
    take_over: TakeOver = False,
    json: Json = False,
) -> None:
    """Go back to an earlier state, or repair a damaged one. Shows what it would do, and stops.

    With --confirm it is done, in one commit. Going back is a new transaction: sinks are sent the
    difference; what sources can read again comes in again, and rows that were pushed since are
    undone. Without a target the pipeline is repaired: from the newest checkpoint that is whole, and
    the journal after it; nothing is undone. No process may run the pipeline meanwhile.

    \b
    stepwell restore                                  what a repair would do
    stepwell restore --checkpoint before-migration --confirm
    stepwell restore --time 2026-01-31T12:00:00Z
    """
    from stepwell.cli import restore

    restore.show(
        place(context, json),
        checkpoint=checkpoint,
        transaction=transaction,
        time=time,
        confirm=confirm,
        take_over=take_over,
    )


def compact(
    context: typer.Context,
    detach: Annotated[
        bool, typer.Option("--detach", help="Of a clone: write anew what lies in its parent.")
    ] = False,
    take_over: TakeOver = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Merge the files of every table and view; what came and went is dropped.

    It happens by itself as files gather. A process that runs the pipeline is asked to do it. With
    --detach a clone comes to hold all its data itself, and needs its parent no more.

    \b
    stepwell --store ./try compact --detach
    """
    from stepwell.cli import checkpoint

    checkpoint.compact(place(context, json, timeout), detach=detach, take_over=take_over)


def adopt(
    context: typer.Context,
    moved: Annotated[bool, typer.Option("--moved", help="Nothing is left where it was.")] = False,
    copy: Annotated[bool, typer.Option("--copy", help="The original lives on.")] = False,
    json: Json = False,
) -> None:
    """Say of a store that was copied or moved by hand what it is.

    A pipeline knows the place where it lies. A copy made by hand is refused, because it would write
    to the sinks of the original, and share what is kept for clones. With --moved it goes on as the
    pipeline. With --copy it is a second one, whose sinks are off. A directory that was only renamed
    needs no adopting. `stepwell clone` makes a second pipeline without copying.

    \b
    stepwell --store /mnt/new/state adopt --moved
    """
    from stepwell.cli import adopt

    adopt.show(place(context, json), moved=moved, copy=copy)


def data_tests(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TEST]...", help="Those tests; by default all.")
    ] = None,
    rows: Annotated[
        int,
        typer.Option("--rows", min=0, metavar="N", help="Show up to N violations of each test."),
    ] = 0,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Show how the data fares in its tests, those of `tests:` in stepwell.yml.

    The pipeline counts violations as it goes, so this only looks. Exit code 0: every test passes;
    1: there are violations. They are rows of the view <test>_violations.

    \b
    stepwell test
    stepwell test no_negative --rows 10
    """
    from stepwell.cli import test

    if code := test.show(place(context, json, timeout), names or [], rows):
        raise typer.Exit(code)
