"""Explain how the views of a project are maintained, without Spark.

The description of a deployed view was recorded when it was last stored (`plan/described`), with the
backends that were decided on. A project that was never run, or whose description another version
wrote, is compiled here as far as possible (`execution/local/offline`), and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.deploy.graph import column_names
from stepwell.deploy.project import Project
from stepwell.execution.backend import CannotRunError
from stepwell.execution.local.offline import explain_offline
from stepwell.execution.local.support import VERSION
from stepwell.manifest.manifest import Manifest
from stepwell.plan.described import read_description
from stepwell.plan.explain import Explained
from stepwell.sql.statements import fold

OFFLINE = "estimated without Spark, which decides when the pipeline is run or deployed"


def explained(
    project: Project, manifest: Manifest | None, views: Sequence[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the output of `explain` for each view, as text and as JSON."""
    described = None if manifest is None else manifest.described
    known = read_description(described, project.store).explained(VERSION)
    offline = {} if all(fold(view) in known for view in views) else _predicted(project)
    found: list[tuple[str, Mapping[str, Any]]] = []
    for view in views:
        recorded = known.get(fold(view))
        if recorded is not None:
            found.append((str(recorded), recorded.to_json()))
            continue
        predicted = offline[fold(view)]
        if isinstance(predicted, CannotRunError):
            text = f"{view}\n  unknown without Spark: {predicted}\n  {OFFLINE}"
            found.append((text, {"view": view, "offline": True, "unknown": str(predicted)}))
        else:
            document = {**predicted.to_json(), "offline": True}
            found.append((f"{predicted}\n  {OFFLINE}", document))
    return found


def _predicted(project: Project) -> Mapping[str, Explained | CannotRunError]:
    statements = {fold(statement.name): statement for statement in project.statements}
    return explain_offline(project.statements, lambda name: column_names(name, statements.get))
