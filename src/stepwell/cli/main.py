"""The commands: their names, options and help. Their bodies are imported when they run.

So `stepwell --help` loads neither Arrow nor an object store, and answers at once. Data goes to
standard output, everything else to standard error. Exit codes: 0 success, 1 an error, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Annotated, NoReturn

import typer

from stepwell import __version__
from stepwell.cli import deploy_commands, logs, state_commands, transaction, watching_commands
from stepwell.cli.choices import Changes, LogFormat, LogLevel, QueryFormat, Shell, Template
from stepwell.cli.failure import Commands
from stepwell.cli.lazy import runs
from stepwell.cli.project_options import (
    TIMEOUT,
    Delimiter,
    Format,
    Json,
    Key,
    TakeOver,
    Timeout,
    WhatChanges,
    project_options,
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
    help="Show stored objects and check every byte. Read-only; does not disturb writers.",
)
app.add_typer(inspect, name="inspect")
state_commands.add_to(app)
deploy_commands.add_to(app)
transaction.add_to(app)


def main() -> None:
    """Run the command in a process of its own."""
    try:
        app()
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else int(ended.code is not None))


def leave(code: int) -> NoReturn:
    """End the process with this code, cleanly, but without unloading Arrow.

    Arrow's threads may still run when its library is unloaded. Occasionally that aborts a process
    whose work is done, with exit code 134 (apache/arrow#34314).
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1  # The reader has gone.
    os._exit(code)


def show_version(value: bool) -> None:
    if value:
        print(f"stepwell {__version__}")
        raise typer.Exit


Place = Annotated[
    str,
    typer.Argument(
        metavar="PATH_OR_URI",
        help="A directory, a file://, s3://, gs:// or az:// address, or one object in it.",
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
        typer.Option("--store", metavar="URI", help="Use this store instead of the project's."),
    ] = None,
    var: Annotated[
        list[str] | None,
        typer.Option("--var", metavar="NAME=VALUE", help="A value for a variable; repeatable."),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level", help="Write log records of this level and above to standard error."
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="Format of log records; json is one object per line."),
    ] = None,
    json: Json = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Print the version."),
    ] = False,
) -> None:
    """Keep SQL materialized views up to date on Apache Spark.

    A project is a folder with stepwell.yml and *.sql files; commands find it from any folder inside
    it. The options below may come before or after the command.

    \b
    stepwell init orders                        create a project with sample data
    stepwell -C orders run --once               process the input that is there
    stepwell -C orders query "SELECT * FROM revenue"
    """
    logs.configure(log_level, log_format)


@app.command()
def init(
    context: typer.Context,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="[DIR]",
            help="The folder to create; by default the current one.",
            show_default=False,
        ),
    ] = "",
    template: Annotated[
        Template, typer.Option("--template", help="The template to start from.")
    ] = Template.ORDERS,
    json: Json = False,
) -> None:
    """Create the files of a new project. Existing files are not overwritten.

    \b
    stepwell init orders
    stepwell init --template empty
    """
    from stepwell.cli import init

    where = project_options(context, json)
    init.show(folder or where.folder, template, json=where.json)


@app.command()
@runs("validate.show")
def validate(
    context: typer.Context,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also let Spark analyse every view; takes seconds.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a project offline: keys, names, statements, queries and options.

    The first mistake is shown with its file, its line and a hint, and the exit code is 1. A call of
    a function that Spark does not have is a warning. With --spark, Spark analyses every view over
    empty tables; no data is read or stored. The last line says which check was done.

    \b
    stepwell validate
    stepwell validate --spark
    stepwell --target prod validate
    """


@app.command()
@runs("run.show", announced=True)
def run(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="Process the input that is there now, then exit.")
    ] = False,
    max_transactions: Annotated[
        int | None,
        typer.Option("--max-transactions", min=1, metavar="N", help="Stop after N transactions."),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Fence the process that runs it, or may run it.")
    ] = False,
    skip_expired: Annotated[
        bool,
        typer.Option(
            "--skip-expired",
            help="Continue behind input that expired unread; each loss becomes a dead letter.",
        ),
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus; a port alone listens on 127.0.0.1.",
        ),
    ] = None,
    traces: Annotated[
        bool, typer.Option("--traces", help="Export OpenTelemetry traces, as OTEL_* variables say.")
    ] = False,
    lineage: Annotated[
        bool,
        typer.Option("--lineage", help="Send OpenLineage events, as OPENLINEAGE_* variables say."),
    ] = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Run a pipeline: read sources, update views, write sinks. The first run creates it.

    Ctrl-C and SIGTERM let the current transaction finish; then the exit code is 130. Only one
    process at a time runs a pipeline: a second one is refused unless it has --take-over, and then
    the first one ends with an error. --take-over is also for supervisors that restart the process
    after a crash of the machine. With --json, every event is a line of JSON on standard error.

    \b
    stepwell run
    stepwell run --once
    stepwell -C orders --target prod run
    stepwell run --metrics 127.0.0.1:9464
    """


watching_commands.add_to(app)


@app.command()
@runs("query.show")
def query(
    context: typer.Context,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over tables and views.")],
    format: Annotated[
        QueryFormat,
        typer.Option("--format", help="json is one row per line; arrow is an IPC stream."),
    ] = QueryFormat.TABLE,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Print the answer to one SELECT, as of a stated transaction. Changes nothing.

    If a process runs the pipeline, that process answers. Otherwise the state is read here, without
    claiming the pipeline. A SELECT over one table or view with filters, an order, a limit or counts
    needs no Spark; any other query starts Spark. A query can read only the pipeline's tables and
    views: commands, files, programs and Java methods are refused by name. SHOW TABLES, SHOW VIEWS
    and DESCRIBE NAME list tables, views and columns.

    \b
    stepwell query "SELECT * FROM revenue ORDER BY total DESC LIMIT 10"
    stepwell query "SELECT * FROM revenue" --format csv > revenue.csv
    stepwell query 'SELECT * FROM `orders$errors`'
    stepwell query "DESCRIBE revenue"
    """


@app.command()
@runs("tail.show")
def tail(
    context: typer.Context,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="A materialized view.")],
    max_transactions: Annotated[
        int | None,
        typer.Option("--max-transactions", min=1, metavar="N", help="Stop after N changes."),
    ] = None,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Follow the changes of a view.

    Prints a line of JSON for each inserted or deleted row: _transaction is the number of the
    transaction, and _w is the weight of the row, positive for inserts and negative for deletes.
    Needs a process on this machine that runs the pipeline.

    \b
    stepwell tail revenue
    stepwell tail revenue | jq 'select(._w > 0)'
    """


@app.command()
@runs("push.show")
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
    """Push rows into a table. The rows are durable when the command ends.

    The process that runs the pipeline commits them; if there is none, the pipeline is opened here.
    Rejected rows go to <table>$errors; if all rows are rejected, the exit code is 1. Large input is
    split into several transactions.

    If the key was already used for the same rows, the command repeats its earlier answer and
    pushes nothing.

    \b
    stepwell push orders more.json
    stepwell push orders 2026-11-18.csv --key orders-2026-11-18
    echo '{"id": 7, "customer": "ada", "amount": 12}' | stepwell push orders -
    """


@app.command()
@runs("explain.show")
def explain(
    context: typer.Context,
    view: Annotated[
        str | None,
        typer.Argument(metavar="[VIEW]", help="By default all of them.", show_default=False),
    ] = None,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Show how views are maintained.

    Shows what is stored for a view, the rule that maintains each operator, why anything is
    recomputed, and for each stored relation the backend that computes its change: `local`, or Spark
    and the reason. Lists the columns by which rows are looked up and, while the pipeline runs, row
    counts. Needs no Spark: a deployed view was described when it was stored. A project that was
    never run is analysed as far as possible without Spark, and the output says so.

    \b
    stepwell explain revenue
    stepwell explain --json
    """


@app.command()
@runs("clone.show")
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
            "--checkpoint",
            metavar="ID",
            help="Start from this checkpoint (name or id), not from now.",
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option("--journal", metavar="STORE", help="Location of the clone's journal."),
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy every file, so that SRC is not needed.")
    ] = False,
    json: Json = False,
) -> None:
    """Create a second pipeline that starts from the state of another.

    No file is copied: the clone reads the files of its parent, which keeps them for as long as the
    clone exists. From then on the two are independent, and the process that runs the parent is not
    disturbed. Between a directory and a bucket, the files are copied. Sources continue from the
    parent's position. The parent's sinks are off in the clone; a sink with another name receives
    the whole view. If the command is interrupted, run it again.

    \b
    stepwell clone . ./try && stepwell --store ./try run --once
    stepwell clone s3://acme/orders s3://acme/orders-test --checkpoint before-migration
    """


@app.command()
@runs("verify.show")
def verify(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare the contents of every object.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a whole pipeline: is everything there, and as it was written?

    Checks manifests, journal, checkpoints, pins, and every file they name. A finding names the
    object, the problem, when it matters, and how to repair it; then the exit code is 1. Only reads,
    and does not disturb a writer.

    \b
    stepwell verify
    stepwell verify --deep
    stepwell verify --json | jq '.findings[].object'
    """


@app.command()
@runs("gc.show")
def gc(
    context: typer.Context,
    confirm: Annotated[bool, typer.Option("--confirm", help="Remove it.")] = False,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            "--forget", metavar="CLONE", help="Forget a clone that no longer exists; repeatable."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Remove garbage. Without --confirm, only show it.

    Garbage is files of released checkpoints, orphans of crashes, superseded manifests and old
    journal entries. A running pipeline collects garbage by itself (gc.every in stepwell.yml).
    Nothing is removed while a manifest or checkpoint that must be protected cannot be read.

    Clones that are no longer at their location are listed. The files they need are kept until
    --forget declares them gone for good.

    \b
    stepwell gc
    stepwell gc --confirm
    """


@inspect.command("journal")
def inspect_journal(
    context: typer.Context,
    place: Place,
    after: Annotated[
        int | None,
        typer.Option("--after", min=0, metavar="N", help="Start after this position."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Read at most this many entries.")
    ] = 50,
    everything: Annotated[bool, typer.Option("--all", help="Read every entry.")] = False,
    json: Json = False,
) -> None:
    """Show the entries of a journal, and check that their chain is complete.

    Of a long journal, only the last entries are read, and the output says so. A corrupt entry is
    shown as a line like the others, and the exit code is 1. Given the path of a single entry, it
    shows the content of the entry, down to the first rows of its data.

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
        typer.Option("--id", min=1, metavar="N", help="Show this version instead of the latest."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a pipeline's manifest: its holder, its content, and where replay would start.

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
    """Print a script that completes commands and options in a shell.

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
            help="The store to check. By default the current directory.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Check the store and all executors of the project."),
    ] = False,
    json: Json = False,
) -> None:
    """Check that this machine, a store and a cluster meet the requirements.

    Checks Python, its packages, Java and Spark, and says how to install what is missing. Then
    tests the operations that a store must support, and their speed, under a name of its own that is
    removed afterwards. With --cluster, starts Spark as the project says, and checks Python, package
    versions, access to the store, clock and free disk of every executor.

    \b
    stepwell doctor
    stepwell doctor s3://acme/orders
    stepwell --target prod doctor --cluster
    """
    from stepwell.cli import doctor

    project = doctor.project_of(project_options(context, json)) if cluster else None
    if not doctor.show(place, json=wants_json(context, json), cluster=project):
        raise typer.Exit(1)


@app.command()
def demo(
    context: typer.Context,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store for inspection.")] = False,
    crash: Annotated[
        bool, typer.Option("--crash", help="Kill a pipeline on Spark halfway instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Let two processes race for one pipeline: nothing is lost.

    Runs in a temporary directory. Every row that was acknowledged to a writer is compared with the
    journal. With --crash, a pipeline is killed halfway and run again; its view is compared with
    the input, and its sink with the view. The exit code is 1 if something differs.

    \b
    stepwell demo
    stepwell demo --keep
    stepwell demo --crash
    """
    from stepwell.cli import demo

    shown = demo.show_crash if crash else demo.show_race
    if not shown(keep=keep, json=wants_json(context, json)):
        raise typer.Exit(1)


@app.command("demo-writer", hidden=True)
def demo_writer(directory: str, name: str) -> None:
    """Run one of the two writers of `stepwell demo`, which starts it and reads its output."""
    from stepwell.demo import writer

    writer.run(directory, name, lambda line: print(line, flush=True))
