"""`stepwell tail`: the changes of a view as they are committed, a line of JSON for each row."""

from __future__ import annotations

import sys

import pyarrow as pa

from stepwell.cli.pipeline_access import running
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.run import INTERRUPTED, signals
from stepwell.connectors.writing import json_lines
from stepwell.endpoint.client import Client
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError


def show(where: ProjectOptions, view: str, max_transactions: int | None) -> int:
    """Follow a view until the pipeline ends or a signal comes; return the exit code."""
    env = SystemEnv()
    project = where.deployed(env, secrets=False)
    name = project.view(view).name
    client = running(project, env, where.timeout_s)
    if client is None:
        raise UnavailableError(
            f"no process on this machine runs the pipeline in {project.store}",
            hint=(
                "start one in another terminal: stepwell run; stepwell query shows the current rows"
            ),
        )
    with signals() as caught, client:
        # Not by an exception: one that is raised inside a callback would be lost.
        caught.stop = client.stop
        print(f"following {name}, from the next transaction on", file=sys.stderr)
        ended = _follow(client, name, max_transactions)
    if caught.name is not None:
        return INTERRUPTED
    if ended:
        print("the process that ran the pipeline has ended", file=sys.stderr)
    return 0


def _follow(client: Client, name: str, left: int | None) -> bool:
    """Print changes; return whether they ended before `left` transactions were printed."""
    for changed in client.tail(name):
        if changed is None:
            continue
        transaction, rows = changed
        numbered = rows.add_column(
            0, "_transaction", pa.array([transaction] * rows.num_rows, pa.int64())
        )
        sys.stdout.writelines(json_lines(numbered))
        sys.stdout.flush()
        if left is not None:
            left -= 1
            if left <= 0:
                return False
    return True
