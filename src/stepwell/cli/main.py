"""The commands: their names, options and help. What they do is imported when they run.

So `stepwell --help` loads neither Arrow nor an object store, and answers at once. Data goes to
standard output, everything else to standard error. Exit codes: 0 well, 1 an error, 2 wrong usage,
130 interrupted.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Annotated, NoReturn

import typer

from stepwell import __version__
from stepwell.cli import deploying, keeping, transaction
from stepwell.cli.choices import Changes, QueryFormat, Shell, Template
from stepwell.cli.failure import Commands
from stepwell.cli.where import (
    TIMEOUT,
    Delimiter,
    Format,
    Json,
    Key,
    TakeOver,
    Timeout,
    WhatChanges,
    place,
    wants_json,
)

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
keeping.add_to(app)
deploying.add_to(app)
transaction.add_to(app)


def main() -> None:
    """The command as a process of its own."""
    try:
        app()
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else int(ended.code is not None))


def leave(code: int) -> NoReturn:
    """End the process with this code, in good order, but without taking Arrow down.

    Arrow's threads may still be at work when its library is unloaded. Now and then that aborts a
    process whose work is done, with exit code 134 (apache/arrow#34314).
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1  # Whoever reads it has gone.
    os._exit(code)


def show_version(value: bool) -> None:
    if value:
        print(f"stepwell {__version__}")
        raise typer.Exit


Place = Annotated[
    str,
    typer.Argument(
        metavar="PATH_OR_URI",
        help="A directory, file://, s3://, gs:// or az:// address, or that of one object in it.",
    ),
]


@app.callback()
def stepwell(
    folder: Annotated[
        str,
        typer.Option("-C", metavar="DIR", help="The project's folder.", show_default=False),
    ] = ".",
    target: Annotated[
        str | None, typer.Option("--target", metavar="T", help="A target of stepwell.yml.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URI", help="A store instead of the project's."),
    ] = None,
    var: Annotated[
        list[str] | None,
        typer.Option("--var", metavar="NAME=VALUE", help="A value for a variable; repeatable."),
    ] = None,
    json: Json = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Print the version."),
    ] = False,
) -> None:
    """Keep SQL materialized views up to date on Apache Spark.

    A project is a folder with stepwell.yml and *.sql; it is found from any folder inside it. These
    options stand before the command or after it.

    \b
    stepwell init orders                        a project with sample data
    stepwell -C orders run --once               take in what there is
    stepwell -C orders query "SELECT * FROM revenue"
    """


@app.command()
def init(
    context: typer.Context,
    folder: Annotated[
        str, typer.Argument(metavar="[DIR]", help="Where to; by default here.", show_default=False)
    ] = "",
    template: Annotated[
        Template, typer.Option("--template", help="What to begin with.")
    ] = Template.ORDERS,
    json: Json = False,
) -> None:
    """Write the files of a new project. Nothing is overwritten.

    \b
    stepwell init orders
    stepwell init --template empty
    """
    from stepwell.cli import init

    where = place(context, json)
    init.show(folder or where.folder, template, json=where.json)


@app.command()
def validate(
    context: typer.Context,
    spark: Annotated[
        bool, typer.Option("--spark", help="Let Spark analyse every view, too; takes seconds.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a project, offline: keys, names, statements, queries, options.

    The first mistake is shown with its file, its line and a hint, and the exit code is 1. A call of
    a function that Spark does not have is a warning. With --spark every view is analysed by Spark
    over empty tables; nothing is read and nothing is stored. The last line says which was done.

    \b
    stepwell validate
    stepwell validate --spark
    stepwell --target prod validate
    """
    from stepwell.cli import validate

    validate.show(place(context, json), spark=spark)


@app.command()
def run(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="Take in what there is now, then end.")
    ] = False,
    max_transactions: Annotated[
        int | None,
        typer.Option("--max-transactions", min=1, metavar="N", help="End after so many."),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Fence the process that runs it now, or may.")
    ] = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Run a pipeline: sources in, views up to date, sinks out. The first run creates it.

    Ctrl-C and SIGTERM let the transaction under way finish and end with exit code 130. One process
    at a time runs a pipeline: a second one is refused, unless it is told to --take-over; then the
    first ends with an error. That is for supervisors, too, which start it again after a crash of
    the machine. With --json every event is a line of JSON on standard error.

    \b
    stepwell run
    stepwell run --once
    stepwell -C orders --target prod run
    """
    from stepwell.cli import run

    code = run.show(
        place(context, json, timeout),
        once=once,
        max_transactions=max_transactions,
        take_over=take_over,
    )
    if code:
        raise typer.Exit(code)


@app.command()
def status(context: typer.Context, timeout: Timeout = TIMEOUT, json: Json = False) -> None:
    """Show where a pipeline stands. Asks the process that runs it, and disturbs nobody.

    \b
    stepwell status
    stepwell status --json | jq .transaction
    """
    from stepwell.cli import status

    status.show(place(context, json, timeout))


@app.command()
def query(
    context: typer.Context,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over tables and views.")],
    format: Annotated[
        QueryFormat,
        typer.Option("--format", help="json is a line for each row; arrow is an IPC stream."),
    ] = QueryFormat.TABLE,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Print the answer to one SELECT, as of a stated transaction. Changes nothing.

    While a process runs the pipeline, it answers. Otherwise the state is read here, without taking
    the pipeline: a SELECT over one table or view with filters, an order, a limit or counts without
    Spark, anything else with it. A query reads the pipeline's tables and views only: commands,
    files, programs and methods of Java are refused by name. SHOW TABLES, SHOW VIEWS and DESCRIBE
    NAME list what there is.

    \b
    stepwell query "SELECT * FROM revenue ORDER BY total DESC LIMIT 10"
    stepwell query "SELECT * FROM revenue" --format csv > revenue.csv
    stepwell query 'SELECT * FROM `orders$errors`'
    stepwell query "DESCRIBE revenue"
    """
    from stepwell.cli import query

    query.show(place(context, json, timeout), sql, format)


@app.command()
def tail(
    context: typer.Context,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="A materialized view.")],
    max_transactions: Annotated[
        int | None,
        typer.Option("--max-transactions", min=1, metavar="N", help="End after so many changes."),
    ] = None,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Follow the changes of a view.

    A line of JSON for each row that comes or goes: _transaction is the number of the transaction,
    _w how often the row comes (above 0) or goes (below). Needs a process on this machine that runs
    the pipeline.

    \b
    stepwell tail revenue
    stepwell tail revenue | jq 'select(._w > 0)'
    """
    from stepwell.cli import tail

    if code := tail.show(place(context, json, timeout), view, max_transactions):
        raise typer.Exit(code)


@app.command()
def push(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table to push to.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file; - is standard input.")],
    format: Format = None,
    changes: WhatChanges = Changes.ROWS,
    delimiter: Delimiter = ",",
    key: Key = None,
    take_over: TakeOver = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Push rows into a table. They are durable when it ends.

    The process that runs the pipeline takes them in; if none does, the pipeline is opened here. A
    row that is rejected goes to <table>$errors; if all are, the exit code is 1. Large input is
    several transactions.

    With a key that was used before, for the same rows, it answers what it answered then, and takes
    nothing in.

    \b
    stepwell push orders more.json
    stepwell push orders 2026-11-18.csv --key orders-2026-11-18
    echo '{"id": 7, "customer": "ada", "amount": 12}' | stepwell push orders -
    """
    from stepwell.cli import push

    push.show(
        place(context, json, timeout),
        table,
        file,
        format=format,
        changes=changes,
        delimiter=delimiter,
        take_over=take_over,
        key=key,
    )


@app.command()
def explain(
    context: typer.Context,
    view: Annotated[
        str | None,
        typer.Argument(metavar="[VIEW]", help="By default every one.", show_default=False),
    ] = None,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Show how views are kept up to date.

    What is stored for a view, by which rule each operator is kept, and why anything is computed
    anew. Needs no Spark: what is deployed was recorded; for a project that was never run it is
    worked out as far as that goes without, and says so.

    \b
    stepwell explain revenue
    stepwell explain --json
    """
    from stepwell.cli import explain

    explain.show(place(context, json, timeout), view)


@app.command()
def clone(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A project's folder, or the address of a store.")
    ],
    destination: Annotated[
        str, typer.Argument(metavar="DST", help="An empty directory, or s3://, gs://, az://.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="ID", help="Begin there, by id or name; not as of now."
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option("--journal", metavar="STORE", help="Where the clone's journal is to lie."),
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy every file, and need SRC no more.")] = (
        False
    ),
    json: Json = False,
) -> None:
    """Make a second pipeline that begins where another is.

    No file is copied: the clone reads its parent's, which keeps them for as long as the clone
    lives. Both go their own ways from then on; whoever runs the parent is not disturbed. Between a
    directory and a bucket the files are copied. Sources go on from where the parent was; its sinks
    are off in the clone, and a sink under another name receives the whole view. Interrupted, run
    it again.

    \b
    stepwell clone . ./try && stepwell --store ./try run --once
    stepwell clone s3://acme/orders s3://acme/orders-test --checkpoint before-migration
    """
    from stepwell.cli import clone

    clone.show(
        place(context, json),
        source,
        destination,
        checkpoint=checkpoint,
        journal=journal,
        copy=copy,
    )


@app.command()
def verify(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare the contents of every object, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a whole pipeline: is everything there, and as it was written?

    Manifests, journal, checkpoints, pins, and every file they name. A finding says which object,
    what is wrong with it, since when it matters, and how to repair it; the exit code is 1 then.
    Reads only, and disturbs no writer.

    \b
    stepwell verify
    stepwell verify --deep
    stepwell verify --json | jq '.findings[].object'
    """
    from stepwell.cli import verify

    if not verify.show(place(context, json), deep=deep):
        raise typer.Exit(1)


@app.command()
def gc(
    context: typer.Context,
    confirm: Annotated[bool, typer.Option("--confirm", help="Remove it.")] = False,
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="CLONE", help="A clone that is gone; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Remove what nothing needs any more. Without --confirm, show what that is.

    Files of checkpoints that were let go, leftovers of crashes, superseded manifests, old journal
    entries. A pipeline that runs does so by itself (gc.every in stepwell.yml). Nothing is removed
    while something that must be protected cannot be read.

    Clones that are not where they were made are named. What they needed stays until --forget says
    that they are gone for good.

    \b
    stepwell gc
    stepwell gc --confirm
    """
    from stepwell.cli import gc

    gc.show(place(context, json), confirm=confirm, forget=tuple(forget or ()))


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
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script with which a shell completes commands and options.

    \b
    stepwell completion bash >> ~/.bashrc
    stepwell completion zsh >> ~/.zshrc
    stepwell completion fish > ~/.config/fish/completions/stepwell.fish
    """
    from stepwell.cli import completion

    print(completion.script(shell.value))


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
    crash: Annotated[
        bool, typer.Option("--crash", help="Kill a pipeline on Spark half-way instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Let two processes race for one pipeline: nothing is lost.

    Runs in a temporary directory. Every row that a writer was told is durable is compared with
    what the journal holds. With --crash a pipeline is killed half-way and run again; its view is
    compared with the input, and its sink with the view. The exit code is 1 if something differs.

    \b
    stepwell demo
    stepwell demo --keep
    stepwell demo --crash
    """
    from stepwell.cli import demo, demo_crash

    shown = demo_crash.show if crash else demo.show
    if not shown(keep=keep, json=wants_json(context, json)):
        raise typer.Exit(1)


@app.command("demo-writer", hidden=True)
def demo_writer(directory: str, name: str) -> None:
    """One of the two writers of `stepwell demo`, which starts it and reads what it prints."""
    from stepwell.cli import demo_writer

    demo_writer.run(directory, name)
