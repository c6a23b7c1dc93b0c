"""`stepwell state show`, `state repair` and `unlock`: the deployment record."""

from __future__ import annotations

from typing import Any

from stepwell.cli.deploy import confirm, say
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Row, Screen, count, plain
from stepwell.deploy.apply import LOCK_WAIT_S
from stepwell.deploy.lease import unlock
from stepwell.deploy.repair import Inspection, inspect_deployment, repair
from stepwell.deploy.resources import display_name
from stepwell.deploy.snapshot import no_pipeline
from stepwell.env import SystemEnv
from stepwell.model import format_time


def show(where: ProjectOptions) -> int:
    env, screen = SystemEnv(), Screen()
    project = where.project(env, secrets=False)
    found = inspect_deployment(project, env)
    if found.lineage is None and found.problem is None and found.owner is None and not found.log:
        raise no_pipeline(project, env)
    if where.json:
        screen.json(_json(found))
    else:
        _render(screen, found)
    return 0 if found.problem is None else 1


def show_repair(where: ProjectOptions, *, yes: bool) -> int:
    env, screen = SystemEnv(), Screen()
    project = where.project(env, secrets=False)
    found = inspect_deployment(project, env)
    if found.problem is None and not found.drift and not found.log:
        if where.json:
            screen.json({"repaired": False})
        else:
            screen.line("there is nothing to repair")
        return 0
    if not where.json:
        if found.problem is not None:
            screen.line(f"problem: {found.problem.message}")
        for key in found.drift:
            screen.line(f"record and manifest differ: {display_name(key)}")
        screen.line("the record would be rebuilt from the manifest, and the log removed;")
        screen.line("both are saved below deploy/resources.json.wal.kept/")
    if not yes and not confirm("repair?"):
        if not where.json:
            screen.line("nothing was changed. To do it: stepwell state repair --yes")
        else:
            screen.json({"repaired": False})
        return 1
    state = repair(project, env, wait_s=LOCK_WAIT_S, say=say)
    if where.json:
        screen.json({"repaired": True, "serial": state.serial})
    else:
        screen.line(f"repaired: serial {state.serial}")
    return 0


def show_unlock(where: ProjectOptions, id: str) -> None:
    env, screen = SystemEnv(), Screen()
    owner = unlock(where.project(env, secrets=False).open_store(env), id)
    if where.json:
        screen.json({"unlocked": owner.id, "host": owner.host, "pid": owner.pid})
    else:
        screen.line(f"unlocked: {owner} held the lease {owner.id}")


def _json(found: Inspection) -> dict[str, Any]:
    state, owner = found.state, found.owner
    return {
        "serial": None if state is None or found.first_run else state.serial,
        "lineage": found.lineage,
        "tool_version": None if state is None else state.tool_version,
        "first_run": found.first_run,
        "resources": None if state is None else state.resources,
        "log": found.log,
        "recovery": None if found.recovery is None else found.recovery.message,
        "differs_from_manifest": list(found.drift),
        "problem": None if found.problem is None else found.problem.message,
        "lease": None
        if owner is None
        else {
            "id": owner.id,
            "host": owner.host,
            "pid": owner.pid,
            "since": format_time(owner.since),
        },
    }


def _render(screen: Screen, found: Inspection) -> None:
    state = found.state
    facts = []
    if state is not None and state.serial:
        facts.append(("serial", f"{state.serial}, written by Stepwell {plain(state.tool_version)}"))
    elif found.first_run:
        facts.append(
            ("serial", "none: the first run created it; the next deploy writes the record")
        )
    elif state is None:
        facts.append(("serial", "unknown: the record cannot be read"))
    else:
        facts.append(("serial", "none: nothing was deployed yet"))
    facts.append(("lineage", found.lineage or "none"))
    facts.append(("lease", "free" if found.owner is None else f"{found.owner}, {found.owner.id}"))
    if found.log:
        said = "" if found.recovery is None else f": {found.recovery.message}"
        facts.append(("log", count(found.log, "object") + said))
    if found.problem is not None:
        facts.append(("problem", found.problem.message))
        if found.problem.hint:
            facts.append(("hint", found.problem.hint))
    for key in found.drift:
        facts.append(("differs", f"{display_name(key)}: the manifest differs"))
    screen.facts(facts)
    if state is not None and state.resources:
        screen.line()
        rows = [
            Row(
                (display_name(key), str(item.get("checksum", ""))[:12]),
                "protected" if item.get("protected") else "",
            )
            for key, item in state.resources.items()
        ]
        screen.table(["resource", "checksum", ""], rows)
