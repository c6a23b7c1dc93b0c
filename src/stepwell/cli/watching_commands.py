"""Commands that watch a pipeline: `status` and `profile`."""

from __future__ import annotations

from typing import Annotated

import typer

from stepwell.cli.lazy import runs
from stepwell.cli.project_options import TIMEOUT, Json, Timeout


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(status)
    app.command()(profile)


@runs("status.show")
def status(context: typer.Context, timeout: Timeout = TIMEOUT, json: Json = False) -> None:
    """Show the state of a pipeline. Asks the process that runs it, without disturbing it.

    \b
    stepwell status
    stepwell status --json | jq .transaction
    """


@runs("profile.show")
def profile(
    context: typer.Context,
    transactions: Annotated[
        int | None,
        typer.Option(
            "--transactions",
            min=1,
            max=100,
            metavar="N",
            help="Only the last N transactions, or the next N with --next.",
        ),
    ] = None,
    next: Annotated[
        bool, typer.Option("--next", help="Wait for the next transactions, and show those.")
    ] = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Show where the time of transactions went: by phase, by view and by sink.

    The process that runs the pipeline remembers its last 100 transactions, and is not disturbed.
    For each view the time is split into look-ups, joins, expressions, merging into stored sums,
    Spark queries and planning. fetched are stored rows that were read for a view; shared are rows
    it needed that the same transaction had read already. With --json, each transaction is listed
    as well.

    \b
    stepwell profile
    stepwell profile --transactions 10 --next
    stepwell profile --json | jq .views.revenue.phases
    """
