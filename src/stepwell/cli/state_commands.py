"""Commands for the state of a pipeline: their names, options and help, as in `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from stepwell.cli.lazy import runs
from stepwell.cli.project_options import TIMEOUT, Json, TakeOver, Timeout

checkpoint = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Manage checkpoints of a pipeline, to restore or to clone.",
)
Which = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="Its name, its id, or a prefix of its id.")
]


cache = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show or clear the cache on this machine. It is rebuilt when needed.",
)


def add_to(app: typer.Typer) -> None:
    app.add_typer(checkpoint, name="checkpoint")
    app.add_typer(cache, name="cache")
    app.command()(restore)
    app.command()(compact)
    app.command()(adopt)
    app.command("test")(data_tests)


@checkpoint.command("create")
@runs("checkpoint.create")
def create(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name it, and keep it until it is deleted."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="TIME", help="Keep it this long: 12h, 7d."),
    ] = None,
    take_over: TakeOver = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Save the current state of the pipeline, between two transactions.

    A process that runs the pipeline does it without stopping. Without --name and --keep, the
    checkpoint counts as an automatic one and expires with those (checkpoint.keep in stepwell.yml).

    \b
    stepwell checkpoint create --name before-migration
    stepwell checkpoint create --keep 7d
    """


@checkpoint.command("list")
@runs("checkpoint.list_all")
def list_(context: typer.Context, json: Json = False) -> None:
    """List the checkpoints, oldest first."""


@checkpoint.command("show")
@runs("checkpoint.show")
def show(context: typer.Context, which: Which, json: Json = False) -> None:
    """Show the content of a checkpoint, and check that its files are there.

    The content is a transaction, files, and the positions of sources and sinks. The exit code is 1
    if a file is missing or has another size.

    \b
    stepwell checkpoint show before-migration
    """


@checkpoint.command("delete")
@runs("checkpoint.delete")
def delete(context: typer.Context, which: Which, json: Json = False) -> None:
    """Delete a checkpoint. stepwell gc removes its files once nothing else needs them."""


@runs("restore.show")
def restore(
    context: typer.Context,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="ID", help="Restore this checkpoint.")
    ] = None,
    transaction: Annotated[
        int | None,
        typer.Option(
            "--transaction", min=0, metavar="N", help="Restore the state after this transaction."
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="TIME", help="Restore the state at this time: 2026-01-31T12:00:00Z."
        ),
    ] = None,
    confirm: Annotated[bool, typer.Option("--confirm", help="Do it.")] = False,
    take_over: TakeOver = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Restore an earlier state, or repair a corrupt one. Without --confirm, only show the effect.

    With --confirm, the restore is done in one commit. Restoring an earlier state is a new
    transaction: sinks receive the difference, input that sources can still read is read again, and
    rows that were pushed since are undone. Without a restore point, the pipeline is repaired
    from the newest intact checkpoint and the journal after it; nothing is undone. No process may
    run the pipeline meanwhile.

    \b
    stepwell restore                                  show what a repair would do
    stepwell restore --checkpoint before-migration --confirm
    stepwell restore --time 2026-01-31T12:00:00Z
    """


@runs("checkpoint.compact")
def compact(
    context: typer.Context,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="For a clone: copy the files it shares with its parent."),
    ] = False,
    take_over: TakeOver = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Compact the files of every table and view, and drop rows that cancel out.

    Compaction also happens automatically as files accumulate. A process that runs the pipeline does
    it itself. With --detach, a clone gets its own copy of all its data and no longer needs its
    parent.

    \b
    stepwell --store ./try compact --detach
    """


@runs("adopt.show")
def adopt(
    context: typer.Context,
    moved: Annotated[
        bool, typer.Option("--moved", help="The store was moved: the original is gone.")
    ] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="The store was copied: the original stays in use.")
    ] = False,
    json: Json = False,
) -> None:
    """Declare that a store was moved or copied by hand.

    A pipeline records its location. A copy made by hand is refused, because it would write to the
    sinks of the original and share the files that are kept for clones. With --moved it continues as
    the original pipeline. With --copy it becomes a second one, whose sinks are off. A directory
    that was only renamed needs no adopting. `stepwell clone` makes a second pipeline without
    copying.

    \b
    stepwell --store /mnt/new/state adopt --moved
    """


@runs("test.show")
def data_tests(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEST]...", help="Only these tests; by default all."),
    ] = None,
    rows: Annotated[
        int,
        typer.Option("--rows", min=0, metavar="N", help="Show up to N violations of each test."),
    ] = 0,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Show the results of the data tests, declared under `tests:` in stepwell.yml.

    The pipeline counts violations as it runs; this command only reads the counts. The exit code is
    0 if every test passes, and 1 if there are violations. Violating rows are in the view
    <test>_violations.

    \b
    stepwell test
    stepwell test no_negative --rows 10
    """


@cache.command("show")
@runs("cache.show")
def show_cache(context: typer.Context, json: Json = False) -> None:
    """Show the location and the size of the cache of decoded columns and indexes."""


@cache.command("clear")
@runs("cache.clear")
def clear_cache(context: typer.Context, json: Json = False) -> None:
    """Remove all cached data of stored runs, for all pipelines that use this cache.

    Nothing is lost: a running pipeline continues, and recreates what it needs.
    """
