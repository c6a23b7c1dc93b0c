"""How the views of a project are kept, without Spark: as recorded, or worked out here.

What is deployed was described when it was last stored (`query/described`). A project that was never
run, or whose description an older version did not write, is compiled here, as far as that goes
(`spark/offline`), and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.deploy.graph import column_names
from stepwell.deploy.project import Project
from stepwell.query.described import read_description
from stepwell.query.explain import explain
from stepwell.query.statements import fold
from stepwell.spark.exact import Unknown
from stepwell.spark.offline import programs_of
from stepwell.state.manifest import Manifest

OFFLINE = "worked out without Spark, which decides when the pipeline is run or deployed"


def explained(
    project: Project, manifest: Manifest | None, views: Sequence[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    """For each view what `explain` says, as text and as JSON."""
    described = None if manifest is None else manifest.described
    known = read_description(described, project.store)
    made = {} if all(fold(view) in known for view in views) else _compiled(project)
    found: list[tuple[str, Mapping[str, Any]]] = []
    for view in views:
        recorded = known.get(fold(view))
        if recorded is not None:
            found.append((recorded.text, recorded.explained))
            continue
        program = made[fold(view)]
        if isinstance(program, Unknown):
            text = f"{view}\n  not known without Spark: {program}\n  {OFFLINE}"
            found.append((text, {"view": view, "offline": True, "unknown": str(program)}))
        else:
            told = explain(program, {})
            found.append((f"{told}\n  {OFFLINE}", {**told.to_json(), "offline": True}))
    return found


def _compiled(project: Project) -> Mapping[str, Any]:
    statements = {fold(statement.name): statement for statement in project.statements}
    return programs_of(project.statements, lambda name: column_names(name, statements.get))
