"""`stepwell validate`: is a project right, as far as its files tell? Works offline."""

from __future__ import annotations

from stepwell.cli.screen import Row, Screen, count
from stepwell.cli.where import Where
from stepwell.deploy.project import Project
from stepwell.env import SystemEnv
from stepwell.query.statements import MaterializedView, Statement, Table


def show(where: Where) -> None:
    screen = Screen()
    project = where.project(SystemEnv())
    if where.json:
        screen.json(
            {
                "project": project.name,
                "target": project.target,
                "store": project.store,
                "resources": [
                    {"kind": kind, "name": name, "from": place}
                    for kind, name, place in _all(project)
                ],
            }
        )
        return
    rows = [Row((kind, name), place) for kind, name, place in _all(project)]
    screen.table(["kind", "name", "from"], rows)
    screen.line()
    screen.line(f"{project.name}: {count(len(rows), 'resource')}, nothing wrong with them")


def _all(project: Project) -> list[tuple[str, str, str]]:
    found = [(_kind(item), item.name, _place(item)) for item in project.statements]
    found += [("source", item.name, f"{item.type} -> {item.relation}") for item in project.sources]
    found += [("sink", item.name, f"{item.relation} -> {item.type}") for item in project.sinks]
    return found


def _kind(statement: Statement) -> str:
    if isinstance(statement, Table):
        return "table"
    return "materialized view" if isinstance(statement, MaterializedView) else "view"


def _place(statement: Statement) -> str:
    line, _ = statement.source.place(statement.name_span.start)
    return f"{statement.source.name}:{line}"
