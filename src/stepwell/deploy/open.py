"""`stepwell.open`: from the folder of a project, or the address of a store, to its pipeline."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from stepwell.deploy.pipeline import MakeExecutor, ProjectPipeline, SparkSession
from stepwell.deploy.program import read_program
from stepwell.deploy.project import Project, load_project
from stepwell.deploy.references import References
from stepwell.deploy.resources import deployed_project
from stepwell.deploy.sections import read_sections
from stepwell.endpoint.client import TIMEOUT_S, Client, connect
from stepwell.engine.events import Listener
from stepwell.env import Env, SystemEnv
from stepwell.errors import ConfigError, InvalidError, UnavailableError
from stepwell.journal.identity import read_identity
from stepwell.state.manifest import Manifest, Manifests
from stepwell.store.locate import open_store

_ADDRESS = re.compile(r"[a-z0-9]+://", re.IGNORECASE)
_ALL = 10**9
"""Seconds, or how many: whoever does not know what a project keeps discards nothing."""


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
    """Open the pipeline of a project, or in a store, for writing; that fences whoever had it."""
    env = env or SystemEnv()
    if _ADDRESS.match(str(project)):
        if target is not None or store is not None:
            raise InvalidError(
                f"{project} is the address of a store, and has no targets and no other store",
                hint='stepwell.open("path/of/the/project", store="s3://...")',
            )
        loaded = project_at(str(project), env)
    else:
        loaded = load_project(str(project), env, target=target, store=store)
    return ProjectPipeline(loaded, env, spark=spark, executor=executor, listener=listener)


def connect_running(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Client:
    """The process on this machine that runs a pipeline; `UnavailableError` if there is none."""
    env = SystemEnv()
    if _ADDRESS.match(str(project)):
        uri = open_store(str(project), env).uri
    else:
        uri = load_project(str(project), env, target=target, store=store).open_store(env).uri
    client = connect(uri, timeout_s)
    if client is None:
        raise UnavailableError(
            f"no process on this machine runs the pipeline in {uri}",
            hint="start one: stepwell run; or open the pipeline in this process: stepwell.open",
            not_applied=True,
        )
    return client


def project_at(address: str, env: Env) -> Project:
    """What is deployed in a store, without the folder it came from.

    Settings are the usual ones, but nothing is discarded: the project may keep more. A journal lies
    beside the state unless the manifest says otherwise. Paths and `${file:...}` that are not
    absolute are looked for in the current directory.
    """
    found = Manifests(open_store(address, env), env).latest()
    resources, executor = read_program(found and found.manifest.program, address)
    if found is None or not resources:
        what = "no pipeline" if found is None else "a pipeline to which nothing was deployed"
        raise InvalidError(
            f"there is {what} in {address}",
            hint="open it by its project, or deploy one to it: stepwell deploy --store ADDRESS",
        )
    folder = Path.cwd()
    references = References(folder, os.environ, {})
    usual = read_sections({}, references)
    bare = Project(
        name=address.rstrip("/").rpartition("/")[2] or "pipeline",
        folder=folder,
        target=None,
        store=address,
        sections=replace(
            usual,
            journal=replace(usual.journal, keep_s=_ALL),
            checkpoint=replace(usual.checkpoint, keep=_ALL),
            push=replace(usual.push, keep_s=_ALL),
            gc=replace(usual.gc, every_s=_ALL),
        ),
        statements=(),
        sql="",
        sql_name="the deployed statements",
        sources=(),
        sinks=(),
        reads={},
        protected=frozenset(),
        references=references,
        store_given=True,
    )
    _check_journal(bare, found.manifest, env)
    try:
        return deployed_project(bare, resources, executor)
    except ConfigError as error:
        raise InvalidError(
            f"{address} cannot be opened by its address: {error.message}",
            hint="open it by its project, which has its variables",
        ) from error


def _check_journal(project: Project, manifest: Manifest, env: Env) -> None:
    """Where the journal is, its project knows. To begin another here would lead the project astray.

    A pipeline that was closed needs nothing of its journal, so that nobody else would mind.
    """
    place = project.open_journal_store(env) or project.open_store(env)
    there = read_identity(place)
    if manifest.journal.id is not None and (there is None or there.id != manifest.journal.id):
        raise InvalidError(
            f"the journal of {project.store} is not in {place.uri}: found "
            f"{there.id if there else 'none'}, expected {manifest.journal.id}",
            hint="open it by its project, which names the store of its journal",
        )
