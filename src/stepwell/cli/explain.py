"""`stepwell explain`: how views are kept up to date, what is stored for them, and why anything is
computed anew. Never starts Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepwell.cli.reach import latest, running
from stepwell.cli.screen import Screen
from stepwell.cli.where import Where
from stepwell.deploy.explaining import explained
from stepwell.deploy.pipeline import explain, make_executor
from stepwell.deploy.project import Project
from stepwell.env import Env, SystemEnv
from stepwell.query.statements import MaterializedView


def show(where: Where, view: str | None) -> None:
    env, screen = SystemEnv(), Screen()
    project = where.deployed(env, secrets=False)
    if view is not None:
        names = [project.view(view).name]
    else:
        names = [v.name for v in project.views.values() if isinstance(v, MaterializedView)]
    found = _explained(project, env, names, where.timeout_s)
    if where.json:
        documents = [document for _, document in found]
        screen.json(documents[0] if view is not None else {"views": documents})
        return
    for number, (text, _) in enumerate(found):
        if number:
            screen.line()
        screen.line(text)


def _explained(
    project: Project, env: Env, names: list[str], timeout_s: float
) -> list[tuple[str, Mapping[str, object]]]:
    client = running(project, env, timeout_s)
    if client is not None:
        with client:
            return [client.explain(name) for name in names]
    if project.sections.executor != "spark":
        executor = make_executor(project)(project.open_store(env), env)
        return [(str(item), item.to_json()) for item in (explain(executor, n) for n in names)]
    found = latest(project, env)
    return explained(project, None if found is None else found.manifest, names)
