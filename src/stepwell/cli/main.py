"""The commands: their names, options and help. What they do is imported when they run.

So `stepwell --help` loads neither Arrow nor an object store, and answers at once. Data goes to
standard output, everything else to standard error. Exit codes: 0 well, 1 an error, 2 wrong usage,
130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from stepwell import __version__
from stepwell.cli.failure import Commands

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
inspect = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at stored objects, byte for byte checked. Reads only, and disturbs no writer.",
)
app.add_typer(inspect, name="inspect")


def main() -> None:
    app()


def show_version(value: bool) -> None:
    if value:
        print(f"stepwell {__version__}")
        raise typer.Exit


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; errors are JSON too.")]
Place = Annotated[
    str,
    typer.Argument(
        metavar="PATH_OR_URI",
        help="A directory, file://, s3://, gs:// or az:// address, or that of one object in it.",
    ),
]


@app.callback()
def stepwell(
    json: Json = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Print the version."),
    ] = False,
) -> None:
    """Keep SQL materialized views up to date on Apache Spark.

    What is there so far is the ground: a store, a journal and a manifest that let one writer in.

    \b
    stepwell demo        two writers race for one pipeline, and nothing is lost
    stepwell doctor      is everything here that is needed?
    """


@inspect.command("journal")
def inspect_journal(
    context: typer.Context,
    place: Place,
    after: Annotated[
        int | None,
        typer.Option("--after", min=0, metavar="N", help="Begin after this position."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Read at most this many entries.")
    ] = 50,
    everything: Annotated[bool, typer.Option("--all", help="Read every entry.")] = False,
    json: Json = False,
) -> None:
    """Show the entries of a journal, and whether their chain is whole.

    Of a long journal the last entries are read; what was left out is said. An entry that is
    damaged is a line like the others, and the exit code is 1. Given the path of a single entry,
    it shows what the entry holds, down to the first rows of its data.

    \b
    stepwell inspect journal ./state
    stepwell inspect journal s3://acme/orders --after 4000 --limit 100
    stepwell inspect journal ./state/journal/00000000000000000007.arrow
    stepwell inspect journal ./state --json | jq '.entries[] | select(.void)'
    """
    from stepwell.cli import journal

    journal.show(
        place, after=after, limit=None if everything else limit, json=wants_json(context, json)
    )


@inspect.command("manifest")
def inspect_manifest(
    context: typer.Context,
    place: Place,
    id: Annotated[
        int | None,
        typer.Option("--id", min=1, metavar="N", help="This version instead of the latest."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a pipeline's manifest: who holds it, what it holds, where replay would start.

    \b
    stepwell inspect manifest ./state
    stepwell inspect manifest s3://acme/orders --id 41
    stepwell inspect manifest ./state/manifest/00000000000000000042.json
    """
    from stepwell.cli import manifest

    manifest.show(place, id=id, json=wants_json(context, json))


@app.command()
def doctor(
    context: typer.Context,
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH_OR_URI",
            help="The store to try. By default the current directory.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine and a store for what is needed.

    Looks at Python, its packages, Java and Spark, and says how to get what is missing. Then tries
    what a store must be able to do, under a name of its own that is removed afterwards, and how
    fast it is.

    \b
    stepwell doctor
    stepwell doctor s3://acme/orders
    """
    from stepwell.cli import doctor

    if not doctor.show(place, json=wants_json(context, json)):
        raise typer.Exit(1)


@app.command()
def demo(
    context: typer.Context,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store, to look at it.")] = False,
    json: Json = False,
) -> None:
    """Let two processes race for one pipeline: nothing is lost.

    Runs in a temporary directory. Every row that a writer was told is durable is compared with
    what the journal holds; the exit code is 1 if they differ.

    \b
    stepwell demo
    stepwell demo --keep
    """
    from stepwell.cli import demo

    if not demo.show(keep=keep, json=wants_json(context, json)):
        raise typer.Exit(1)


@app.command("demo-writer", hidden=True)
def demo_writer(directory: str, name: str) -> None:
    """One of the two writers of `stepwell demo`, which starts it and reads what it prints."""
    from stepwell.cli import demo_writer

    demo_writer.run(directory, name)


def wants_json(context: typer.Context, given: bool) -> bool:
    """`--json` may stand before the command or after it."""
    return given or bool(context.find_root().params["json"])
