"""`stepwell explain`: how views are maintained, what is stored, and why anything is recomputed.

Never starts Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from stepwell.cli.pipeline_access import latest, running
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Screen
from stepwell.deploy.explain import explained
from stepwell.deploy.pipeline import explain, make_executor
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import Project
from stepwell.deploy.resources import statement_checksum
from stepwell.env import Env, SystemEnv
from stepwell.sql.statements import MaterializedView, fold


def show(where: ProjectOptions, view: str | None) -> None:
    env, screen = SystemEnv(), Screen()
    wanted = where.project(env, secrets=False)
    stored = latest(wanted, env)
    project = wanted if stored is None else as_deployed(wanted, stored.manifest.program)
    deployed, written = _views(project), _views(wanted)
    if view is not None:
        owner = wanted if fold(view) in written and fold(view) not in deployed else project
        chosen = [owner.view(view).name]
    else:
        chosen = [*deployed.values(), *(n for key, n in written.items() if key not in deployed)]
    existing = [name for name in chosen if fold(name) in deployed]
    new = [name for name in chosen if fold(name) not in deployed]
    found = _explained(project, env, existing, where.timeout_s)
    found += explained(wanted, None, new) if new else []
    if not where.json:
        for name in new:
            print(f"{name} is not deployed yet", file=sys.stderr)
        changed = [name for name in chosen if name in _changed(project, wanted)]
        for name in changed:
            print(f"{name} has changed; this is the deployed version", file=sys.stderr)
    if where.json:
        documents = [document for _, document in found]
        screen.json(documents[0] if view is not None else {"views": documents})
        return
    for number, (text, _) in enumerate(found):
        if number:
            screen.line()
        screen.line(text)


def _views(project: Project) -> dict[str, str]:
    stored = [v for v in project.views.values() if isinstance(v, MaterializedView)]
    return {fold(view.name): view.name for view in stored}


def _changed(project: Project, wanted: Project) -> set[str]:
    """Return the views whose declaration differs from the deployed one."""
    now = {fold(view.name): statement_checksum(view) for view in wanted.views.values()}
    return {
        view.name
        for view in project.views.values()
        if now.get(fold(view.name)) not in (None, statement_checksum(view))
    }


def _explained(
    project: Project, env: Env, names: list[str], timeout_s: float
) -> list[tuple[str, Mapping[str, object]]]:
    if not names:
        return []
    client = running(project, env, timeout_s)
    if client is not None:
        with client:
            return [client.explain(name) for name in names]
    if project.sections.executor != "spark":
        executor = make_executor(project)(project.open_store(env), env)
        return [(str(item), item.to_json()) for item in (explain(executor, n) for n in names)]
    found = latest(project, env)
    return explained(project, None if found is None else found.manifest, names)
