"""`stepwell gc`: remove what nothing needs. Shows what it would remove until told to."""

from __future__ import annotations

from typing import Any

from stepwell.cli.failure import report
from stepwell.cli.screen import Row, Screen, count, size
from stepwell.cli.where import Where
from stepwell.env import SystemEnv
from stepwell.state.collect import REASONS, Collector, Plan

_SHOWN = 20
"""Objects that a dry run names for each reason; all of them are in the JSON."""


def show(where: Where, *, confirm: bool) -> None:
    env, screen = SystemEnv(), Screen()
    project = where.project(env)
    collector = Collector(
        project.open_store(env),
        env,
        journal_store=project.open_journal_store(env),
        settings=project.sections.collect(),
    )
    if confirm:
        done = collector.collect()
        plan = done.plan
        if done.problem is not None:
            report(
                f"the pin in the parent was not freed: {done.problem.message}",
                "it costs space only, and is tried again by the next gc",
                as_json=where.json,
            )
    else:
        plan = collector.plan()
    if where.json:
        screen.json(_document(project.store, plan, confirm))
    else:
        _render(screen, plan, confirm)


def _document(store: str, plan: Plan, confirmed: bool) -> dict[str, Any]:
    found = {reason: plan.count(reason) for reason in REASONS}
    return {
        "store": store,
        "manifest": plan.read.id,
        "confirmed": confirmed,
        "objects": len(plan.doomed),
        "bytes": plan.bytes,
        "reasons": {name: {"objects": n, "bytes": b} for name, (n, b) in found.items()},
        "expired": [ref.id for ref in plan.expired],
        "paths": [item.path for item in plan.doomed],
    }


def _render(screen: Screen, plan: Plan, confirmed: bool) -> None:
    rows = []
    for reason, text in REASONS.items():
        number, total = plan.count(reason)
        if number:
            rows.append(Row((text, f"{number:,}", size(total))))
    if not rows:
        screen.line("Nothing to remove: all there is, is needed.")
        return
    screen.table(("what", ">objects", ">size", ""), rows)
    if not confirmed:
        for reason in REASONS:
            doomed = [item.path for item in plan.doomed if item.reason == reason]
            if doomed:
                screen.line()
            for path in doomed[:_SHOWN]:
                screen.line(f"  {path}")
            if len(doomed) > _SHOWN:
                screen.line(f"  and {len(doomed) - _SHOWN:,} more")
    screen.line()
    if plan.expired:
        names = ", ".join(ref.name or ref.id for ref in plan.expired)
        screen.line(f"The time of {count(len(plan.expired), 'checkpoint')} is over: {names}")
    what = f"{count(len(plan.doomed), 'object')}, {size(plan.bytes)}"
    if confirmed:
        screen.line(f"Removed {what}.")
    else:
        screen.line(f"Nothing was removed. To remove {what}: stepwell gc --confirm")
