"""`stepwell gc`: remove garbage. Without --confirm, only show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.cli.failure import report
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Row, Screen, count, plain, size
from stepwell.env import SystemEnv
from stepwell.manifest.gc import REASONS, Collector, Plan
from stepwell.manifest.manifest import Manifests
from stepwell.manifest.pins import Clone, drop_pin, forgettable, look_at
from stepwell.model import format_time

_SHOWN = 20
"""Number of objects that a dry run names for each reason; the JSON has all of them."""


def show(where: ProjectOptions, *, confirm: bool, forget: Sequence[str] | None = None) -> None:
    env, screen = SystemEnv(), Screen()
    project = where.project(env, secrets=False)
    store = project.open_store(env)
    manifests = Manifests(store, env)
    forgotten = forgettable(manifests, forget or (), env)
    if confirm:
        for clone in forgotten:
            drop_pin(manifests, clone.pin.id, clone.pin.clone)
    collector = Collector(
        store,
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
                "it only costs space; the next gc tries again",
                as_json=where.json,
            )
    else:
        plan = collector.plan()
    clones = [look_at(pin, env) for pin in plan.read.manifest.pins]
    lost = [clone for clone in clones if not clone.there and clone not in forgotten]
    if where.json:
        document = _document(project.store, plan, confirm)
        document["clones_forgotten"] = [_clone(clone) for clone in forgotten]
        document["clones_not_found"] = [_clone(clone) for clone in lost]
        screen.json(document)
        return
    for clone in forgotten:
        would = "was" if confirm else "would be"
        screen.line(f"the clone in {plain(clone.pin.clone)} {would} forgotten: {clone.message}")
    _render(screen, plan, confirm)
    for clone in lost:
        screen.line(
            f"the clone in {plain(clone.pin.clone)}, started {format_time(clone.since)}, was not "
            f"found: {plain(clone.message)}. If it no longer exists: "
            f"stepwell gc --forget {plain(clone.pin.id)}"
        )


def _clone(clone: Clone) -> dict[str, Any]:
    return {
        "store": clone.pin.clone,
        "pin": clone.pin.id,
        "checkpoint": clone.pin.checkpoint,
        "since": format_time(clone.since),
        "found": clone.message,
    }


def _document(store: str, plan: Plan, confirmed: bool) -> dict[str, Any]:
    found = {reason: plan.count(reason) for reason in REASONS}
    return {
        "store": store,
        "manifest": plan.read.id,
        "confirmed": confirmed,
        "objects": len(plan.garbage),
        "bytes": plan.bytes,
        "reasons": {name: {"objects": n, "bytes": b} for name, (n, b) in found.items()},
        "expired": [ref.id for ref in plan.expired],
        "paths": [item.path for item in plan.garbage],
    }


def _render(screen: Screen, plan: Plan, confirmed: bool) -> None:
    rows = []
    for reason, text in REASONS.items():
        number, total = plan.count(reason)
        if number:
            rows.append(Row((text, f"{number:,}", size(total))))
    if not rows:
        screen.line("Nothing to remove: everything is still needed.")
        return
    screen.table(("what", ">objects", ">size", ""), rows)
    if not confirmed:
        for reason in REASONS:
            garbage = [item.path for item in plan.garbage if item.reason == reason]
            if garbage:
                screen.line()
            for path in garbage[:_SHOWN]:
                screen.line(f"  {path}")
            if len(garbage) > _SHOWN:
                screen.line(f"  and {len(garbage) - _SHOWN:,} more")
    screen.line()
    if plan.expired:
        names = ", ".join(ref.name or ref.id for ref in plan.expired)
        screen.line(f"{count(len(plan.expired), 'checkpoint')} expired: {names}")
    what = f"{count(len(plan.garbage), 'object')}, {size(plan.bytes)}"
    if confirmed:
        screen.line(f"Removed {what}.")
    else:
        screen.line(f"Nothing was removed. To remove {what}: stepwell gc --confirm")
