"""The command `stepwell transaction`: its options and help, as in `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from stepwell.cli.choices import Changes
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
)


def add_to(app: typer.Typer) -> None:
    app.command()(transaction)


@runs("commit_files.show")
def transaction(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(metavar="TABLE=FILE...", help="Tables, and the files to push into each."),
    ],
    format: Format = None,
    changes: WhatChanges = Changes.ROWS,
    delimiter: Delimiter = ",",
    key: Key = None,
    take_over: TakeOver = False,
    timeout: Timeout = TIMEOUT,
    json: Json = False,
) -> None:
    """Push several files in one transaction: all of them become visible at once, or none.

    The process that runs the pipeline commits them; if there is none, the pipeline is opened here.
    If this command is killed, or stops for 30 seconds, the transaction is rolled back. All other
    writes wait meanwhile, for 10 minutes at most.

    \b
    stepwell transaction orders=orders.json items=items.csv
    stepwell transaction orders=a.json orders=b.json --key 2026-11-18
    """
