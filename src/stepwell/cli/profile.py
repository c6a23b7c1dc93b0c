"""`stepwell profile`: where the time of transactions went, from the process that runs them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from stepwell.cli.pipeline_access import running
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.run import INTERRUPTED, Caught, signals
from stepwell.cli.screen import Row, Screen, count, plain, size, span
from stepwell.endpoint.client import Client
from stepwell.engine.metrics import PHASES
from stepwell.env import Env, SystemEnv
from stepwell.errors import UnavailableError
from stepwell.lsm.profiler import VIEW_PHASES

_LOOK_S = 0.1
_FEW = 10
"""Transactions that `--next` waits for by default."""


def show(where: ProjectOptions, transactions: int | None, next: bool) -> int:
    """Show a profile; return the exit code."""
    env, screen = SystemEnv(), Screen()
    project = where.deployed(env, secrets=False)
    client = running(project, env, where.timeout_s)
    if client is None:
        raise UnavailableError(
            f"no process on this machine runs the pipeline in {project.store}",
            hint="start one in another terminal: stepwell run",
        )
    with signals() as caught, client:
        if next:
            profile = _following(client, transactions or _FEW, env, caught)
        else:
            profile = client.profile(transactions)
        if profile is None:
            return INTERRUPTED
    if where.json:
        screen.json({"pid": client.pid, **profile})
    else:
        _render(screen, profile, client.pid)
    return 0


def _following(client: Client, number: int, env: Env, caught: Caught) -> Mapping[str, Any] | None:
    """Wait for this many transactions from now on; None if a signal comes first."""
    caught.stop = lambda: None  # A signal ends the loop below, not a request.
    print(f"waiting for {count(number, 'transaction')}", file=sys.stderr, flush=True)
    first = _last(client.profile(1))
    while caught.name is None:
        last = _last(client.profile(1))
        if last >= first + number:
            # More may have come since; these are the last ones.
            return client.profile(number)
        env.sleep(_LOOK_S)
    return None


def _last(profile: Mapping[str, Any]) -> int:
    return int(profile["last"] or 0)


def _render(screen: Screen, profile: Mapping[str, Any], pid: int | None) -> None:
    number = profile["transactions"]
    facts = [("memory", memory_text(profile["memory"]))]
    if not number:
        screen.facts([("process", f"{pid}, no transaction since it was opened"), *facts])
        return
    numbers = span(range(profile["first"], profile["last"] + 1))
    took = f"{_ms(profile['seconds'] / number)} ms each"
    queries = count(profile["queries"], "Spark query", "Spark queries")
    read = f"{count(profile['rows'], 'row')} in, {queries}"
    screen.facts(
        [
            ("process", str(pid)),
            ("transactions", f"{numbers}: {count(number, 'transaction')}, {took}, {read}"),
            *facts,
        ]
    )
    screen.line()
    _phases(screen, profile, number)
    if profile["views"]:
        screen.line()
        _views(screen, profile["views"], number)


def _phases(screen: Screen, profile: Mapping[str, Any], number: int) -> None:
    """Show the phases, then flushes and sinks, whose time is not a part of the whole."""
    rows = [
        Row((name, _ms(seconds / number), _share(seconds, profile["seconds"])), PHASES[name])
        for name, seconds in profile["phases"].items()
        if name != "flush"
    ]
    flush = profile["phases"]["flush"]
    rows.append(Row(("flush", _ms(flush / number), ""), PHASES["flush"]))
    rows += [
        Row(
            (plain(f"sink {name}"), _ms(seconds / number), ""), "commits, usually in the background"
        )
        for name, seconds in profile["sinks"].items()
    ]
    screen.table(["phase", ">ms", ">share", "what"], rows)


def _views(screen: Screen, views: Mapping[str, Any], number: int) -> None:
    """Show the views, slowest first, with the phases that any of them has."""
    there = [phase for phase in VIEW_PHASES if any(phase in v["phases"] for v in views.values())]
    rows = []
    for name, view in sorted(views.items(), key=lambda item: -item[1]["seconds"]):
        spent = [_ms(view["phases"].get(phase, 0.0) / number) for phase in there]
        read = [f"{view[key] / number:,.1f}" for key in ("rows_fetched", "rows_shared")]
        rows.append(Row((plain(name), _ms(view["seconds"] / number), *spent, *read)))
    headings = ["view", ">ms", *(f">{phase}" for phase in there), ">fetched", ">shared", ""]
    screen.table(headings, rows)


def memory_text(memory: Mapping[str, Any]) -> str:
    """Describe the memory that a process uses."""
    if memory["held"] is None:
        parts = [f"at most {size(memory['peak'])} so far"]
    else:
        parts = [f"{size(memory['held'])} held", f"{size(memory['mapped'])} mapped from files"]
    parts.append(f"{size(memory['arrow'])} in Arrow")
    if memory["java"] is not None:
        parts.append(f"{size(memory['java'])} in Java")
    return ", ".join(parts)


def _ms(seconds: float) -> str:
    """Format milliseconds.

    >>> _ms(0), _ms(0.0000123), _ms(0.0123), _ms(1.23456)
    ('0', '0.01', '12.30', '1,235')
    """
    ms = seconds * 1000
    if not ms:
        return "0"
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.2f}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else ""
