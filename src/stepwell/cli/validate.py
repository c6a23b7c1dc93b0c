"""`stepwell validate`: check the files of a project, offline or with Spark's analyser."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Row, Screen, count
from stepwell.deploy.pipeline import make_executor
from stepwell.deploy.project import Project
from stepwell.deploy.unmatched import unmatched_sources
from stepwell.env import Env, SystemEnv
from stepwell.errors import SqlError, StepwellError
from stepwell.sql.mistakes import unknown_calls, unreadable
from stepwell.sql.statements import MaterializedView, Statement, Table, fold
from stepwell.store.memory import MemoryStore

OFFLINE = (
    "valid as far as the files show, types included; Spark knows more: stepwell validate --spark"
)
NO_TYPES = (
    "valid as far as the files show, but not the types: spark.conf changes their rules. "
    "Spark checks all: stepwell validate --spark"
)
SPARK = "valid, and Spark accepts every query"


def show(where: ProjectOptions, *, spark: bool) -> None:
    screen, env = Screen(), SystemEnv()
    project = where.project(env)
    warnings: list[StepwellError] = []
    if spark:
        _ask_spark(project, env)
    else:
        for view in project.views.values():
            mistake = unreadable(view)
            if mistake is not None:
                raise mistake
        warnings += [call for view in project.views.values() for call in unknown_calls(view)]
    warnings += unmatched_sources(project, env)
    if where.json:
        screen.json(
            {
                "project": project.name,
                "target": project.target,
                "store": project.store,
                "checked": "spark" if spark else "offline",
                "types": spark or project.types_checked,
                "warnings": [{"message": w.message, "hint": w.hint} for w in warnings],
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
    warn(warnings)
    found = f", {count(len(warnings), 'warning')}" if warnings else ""
    screen.line(f"{project.name}: {count(len(rows), 'resource')}{found}")
    screen.line(SPARK if spark else OFFLINE if project.types_checked else NO_TYPES)


def warn(warnings: Sequence[StepwellError]) -> None:
    """Print likely mistakes as warnings on standard error."""
    for warning in warnings:
        print(f"warning: {warning}\n", file=sys.stderr)


def likely_mistakes(project: Project) -> list[SqlError]:
    """Return the mistakes that only Spark could confirm."""
    found: list[SqlError] = []
    for view in project.views.values():
        mistake = unreadable(view)
        found += [mistake] if mistake is not None else list(unknown_calls(view))
    return found


def _ask_spark(project: Project, env: Env) -> None:
    """Let Spark analyse every view over empty tables. No data is read or stored."""
    asked = replace(project, sections=replace(project.sections, executor="spark"))
    make_executor(asked)(MemoryStore(env), env)


def _all(project: Project) -> list[tuple[str, str, str]]:
    made = {fold(test.violations) for test in project.tests}
    stated = (item for item in project.statements if fold(item.name) not in made)
    found = [(_kind(item), item.name, _place(item)) for item in stated]
    found += [("source", item.name, f"{item.type} -> {item.relation}") for item in project.sources]
    found += [("sink", item.name, f"{item.relation} -> {item.type}") for item in project.sinks]
    found += [
        ("data test", test.name, f"{test.relation or ''} {test.rule}") for test in project.tests
    ]
    return found


def _kind(statement: Statement) -> str:
    if isinstance(statement, Table):
        return "table"
    return "materialized view" if isinstance(statement, MaterializedView) else "view"


def _place(statement: Statement) -> str:
    line, _ = statement.source.place(statement.name_span.start)
    return f"{statement.source.name}:{line}"
