"""A project on Spark that is deployed again and again as its SQL changes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from stepwell.deploy.apply import Deployment, deploy
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import Project, load_project
from stepwell.deploy.snapshot import take_snapshot
from stepwell.engine.answer import Answer
from stepwell.env import Env, SystemEnv
from stepwell.manifest.manifest import Manifest, Manifests


def query_runs(project: Project, env: Env, sql: str) -> Answer:
    """Answer a simple query as of now without Spark; `SparkNeededError` if that is not possible."""
    return take_snapshot(project, env)._query_runs(sql)


class SparkProject:
    yml: str

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark, self.env = folder, spark, SystemEnv()

    def write(self, sql: str) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "stepwell.yml").write_text(self.yml, encoding="utf-8")
        (self.folder / "pipeline.sql").write_text(sql, encoding="utf-8")

    def deploy(self) -> Deployment:
        project = load_project(self.folder, self.env)
        return deploy(project, self.env, approve=lambda plan: True, spark=self.spark)

    def open(self) -> ProjectPipeline:
        project = load_project(self.folder, self.env)
        return ProjectPipeline(
            as_deployed(project, self.manifest().program), self.env, spark=self.spark
        )

    def manifest(self) -> Manifest:
        store = load_project(self.folder, self.env).open_store(self.env)
        found = Manifests(store, self.env).latest()
        assert found is not None
        return found.manifest
