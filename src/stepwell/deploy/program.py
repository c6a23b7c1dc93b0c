"""What a pipeline computes, as its manifest records it: the truth about what is deployed.

    {"format": 4, "executor": "spark", "resources": {"view.revenue": {...}, ...}}

Rows stored for one query are no answer to another. So a pipeline is opened by the statements it was
made with, and `deploy` is the way from one program to the next.
"""

from __future__ import annotations

from dataclasses import replace

from stepwell.deploy.project import Project
from stepwell.deploy.resources import (
    Deployed,
    Resource,
    deployed_project,
    resources_from_json,
    resources_of,
    resources_to_json,
    shown,
)
from stepwell.errors import CorruptError, InvalidError
from stepwell.model import checksum
from stepwell.query.reasons import Code
from stepwell.query.settings import default_of
from stepwell.store.sealed import Json

FORMAT = 5
"""The next, when stored relations mean something else for the same statements."""


def program_of(project: Project, executor: str | None = None) -> Json:
    """`executor`: the one that is used, if not the project's."""
    return program_json(resources_of(project), executor or project.sections.executor)


def program_json(resources: Deployed, executor: str) -> Json:
    return {"format": FORMAT, "executor": executor, "resources": resources_to_json(resources)}


def read_program(program: Json, where: str) -> tuple[dict[str, Resource], str]:
    """The resources and the executor; nothing and an empty text where nothing is recorded."""
    if program is None:
        return {}, ""
    if not isinstance(program, dict):
        raise CorruptError(where, "expected a program", field="program")
    if program.get("format") != FORMAT:
        raise InvalidError(
            f"{where}: its program has format {program.get('format')}; this Stepwell reads "
            f"format {FORMAT}",
            hint="use the version of Stepwell that made it, or give another store (`--store`)",
        )
    return resources_from_json(program.get("resources"), where), str(program.get("executor"))


def as_deployed(project: Project, program: Json, *, leaving: bool = False) -> Project:
    """What is deployed, with the project's settings; the project itself if nothing is."""
    resources, executor = read_program(program, project.store)
    if not resources:
        return project
    return deployed_project(project, resources, executor, leaving=leaving)


def check_program(project: Project, known: Json, executor: str | None = None) -> None:
    """Refuse a project that is not the one deployed. None: nothing is recorded yet."""
    found = project_differences(project, known, executor)
    if found:
        raise InvalidError(
            f"the project differs from what is deployed in {project.store}: " + ", ".join(found),
            hint="stepwell plan shows what would change, stepwell deploy changes it; or give "
            "another store (`--store`)",
        )


def project_differences(project: Project, known: Json, executor: str | None = None) -> list[str]:
    """In a few words each; none if the project is what is deployed, or nothing is."""
    deployed, before = read_program(known, project.store)
    if not deployed:
        return []
    now = executor or project.sections.executor
    found = [] if now == before else [f"its executor was {before}, not {now}"]
    return found + differences(deployed, resources_of(project))


def differences(before: Deployed, now: Deployed) -> list[str]:
    found = []
    for key in sorted({*before, *now}):
        name = key.partition(".")[2] if key.startswith(("table.", "view.")) else shown(key)
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
    """Which settings of a view differ, and how."""
    old, new = before[key].settings, now[key].settings
    told = [
        f"{name} was {old.get(name) or default_of(name)}, not {new.get(name) or default_of(name)}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    return f"{Code.SESSION_CHANGED.value}: {'; '.join(told)}"


def identified(before: Deployed, now: Deployed, lineage: str, serial: int) -> dict[str, Resource]:
    """The resources with their ids: of those that stay as they were the old one, else a new one.

    An id follows from lineage, key and serial, so whoever recovers a deploy can tell from the
    manifest whether its action happened (D4).
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
