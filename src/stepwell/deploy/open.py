"""`stepwell.open`: from the folder of a project to its pipeline."""

from __future__ import annotations

import os
import re

from stepwell.deploy.pipeline import MakeExecutor, ProjectPipeline, SparkSession
from stepwell.deploy.project import load_project
from stepwell.engine.events import Listener
from stepwell.env import Env, SystemEnv
from stepwell.errors import InvalidError


def open_pipeline(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    spark: SparkSession | None = None,
    env: Env | None = None,
    executor: MakeExecutor | None = None,
    listener: Listener | None = None,
) -> ProjectPipeline:
    """Read a project and open its pipeline for writing, which fences whoever had it."""
    env = env or SystemEnv()
    if re.match(r"[a-z0-9]+://", str(project)):
        # A manifest does not hold the program yet, so the SQL has to come from its files.
        raise InvalidError(
            f"{project} is the address of a store, and a pipeline is opened by its project",
            hint='stepwell.open("path/of/the/project", store="s3://...")',
        )
    loaded = load_project(str(project), env, target=target, store=store)
    return ProjectPipeline(loaded, env, spark=spark, executor=executor, listener=listener)
