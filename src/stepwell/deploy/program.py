"""The program of a pipeline, as its manifest records it: the truth about what is deployed.

    {"format": 6, "executor": "spark", "resources": {"view.revenue": {...}, ...}}

The rows stored for one query are not the result of another. A pipeline is therefore opened with the
statements it was made with, and only `deploy` moves it from one program to the next.
"""

from __future__ import annotations

from dataclasses import replace

from stepwell.deploy.project import Project
from stepwell.deploy.resources import (
    Deployed,
    Resource,
    deployed_project,
    display_name,
    resources_from_json,
    resources_of,
    resources_to_json,
)
from stepwell.errors import CorruptError, InvalidError
from stepwell.model import checksum
from stepwell.plan.reasons import Code
from stepwell.sql.settings import default_of
from stepwell.store.sealed import Json

FORMAT = 6
"""Incremented when stored relations change their meaning for the same statements."""


def program_of(project: Project, executor: str | None = None) -> Json:
    """Return the program of a project; `executor` overrides the project's."""
    return program_json(resources_of(project), executor or project.sections.executor)


def program_json(resources: Deployed, executor: str) -> Json:
    return {"format": FORMAT, "executor": executor, "resources": resources_to_json(resources)}


def read_program(program: Json, where: str) -> tuple[dict[str, Resource], str]:
    """Return the resources and the executor; empty if no program is recorded."""
    if program is None:
        return {}, ""
    if not isinstance(program, dict):
        raise CorruptError(where, "expected a program", field="program")
    if program.get("format") != FORMAT:
        raise InvalidError(
            f"{where}: its program has format {program.get('format')}; this Stepwell reads "
            f"format {FORMAT}",
            hint="use the version of Stepwell that deployed it, or give another store (`--store`)",
        )
    return resources_from_json(program.get("resources"), where), str(program.get("executor"))


def as_deployed(project: Project, program: Json, *, leaving: bool = False) -> Project:
    """Return the deployed project with the project's settings; the project itself if none is."""
    resources, executor = read_program(program, project.store)
    if not resources:
        return project
    return deployed_project(project, resources, executor, leaving=leaving)


def check_program(project: Project, known: Json, executor: str | None = None) -> None:
    """Reject a project that differs from the deployed one; `known` is None if none is recorded."""
    found = project_differences(project, known, executor)
    if found:
        raise InvalidError(
            f"the project differs from what is deployed in {project.store}: " + ", ".join(found),
            hint="stepwell plan shows the changes, stepwell deploy applies them; or give "
            "another store (`--store`)",
        )


def project_differences(project: Project, known: Json, executor: str | None = None) -> list[str]:
    """Describe each difference in a few words; empty if there is none, or nothing is deployed."""
    deployed, before = read_program(known, project.store)
    if not deployed:
        return []
    now = executor or project.sections.executor
    found = [] if now == before else [f"its executor was {before}, not {now}"]
    return found + differences(deployed, resources_of(project))


def differences(before: Deployed, now: Deployed) -> list[str]:
    found = []
    for key in sorted({*before, *now}):
        name = key.partition(".")[2] if key.startswith(("table.", "view.")) else display_name(key)
        if key not in before:
            found.append(f"{name} is new")
        elif key not in now:
            found.append(f"{name} is gone")
        elif now[key].settings != before[key].settings:
            found.append(f"{name} was deployed with other settings ({_settings(before, now, key)})")
        elif not now[key].same(before[key]):
            found.append(f"{name} has changed")
    return found


def _settings(before: Deployed, now: Deployed, key: str) -> str:
    """Describe how the settings of a view differ."""
    old, new = before[key].settings, now[key].settings
    told = [
        f"{name} was {old.get(name) or default_of(name)}, not {new.get(name) or default_of(name)}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    return f"{Code.SESSION_CHANGED.value}: {'; '.join(told)}"


def identified(before: Deployed, now: Deployed, lineage: str, serial: int) -> dict[str, Resource]:
    """Return the resources with their ids: unchanged ones keep theirs, the others get new ones.

    An id is derived from lineage, key and serial, so the recovery of a deploy can tell from the
    manifest whether an action happened (D4).
    """
    made = {}
    for key, resource in now.items():
        old = before.get(key)
        if old is not None and resource.same(old):
            made[key] = old
        else:
            id = checksum([lineage.encode(), b"\0", key.encode(), b"\0", str(serial).encode()])
            made[key] = replace(resource, id=id)
    return made
