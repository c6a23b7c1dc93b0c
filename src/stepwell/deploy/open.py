"""`stepwell.open`, `read` and `connect`: from a project or a store's address to a pipeline.

They differ in their effect on a writer: `open` fences it, `connect` asks it, and `read` leaves it
alone.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.deploy.pipeline import MakeExecutor, ProjectPipeline
from stepwell.deploy.program import as_deployed, read_program
from stepwell.deploy.project import Project, load_project
from stepwell.deploy.references import References
from stepwell.deploy.resources import deployed_project
from stepwell.deploy.sections import read_sections
from stepwell.deploy.snapshot import Snapshot, take_snapshot
from stepwell.endpoint.client import TIMEOUT_S, Client, connect
from stepwell.engine.events import Listener
from stepwell.engine.metrics import Metrics
from stepwell.env import Env, SystemEnv
from stepwell.errors import ConfigError, InvalidError, UnavailableError
from stepwell.journal.identity import read_identity
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.store.locate import open_store

if TYPE_CHECKING:
    from stepwell.execution.spark.dataframe import SparkSession

_ADDRESS = re.compile(r"[a-z0-9]+://", re.IGNORECASE)
_ALL = 10**9
"""Seconds, or a count: without the project's own settings, nothing is discarded."""


def open_pipeline(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    spark: SparkSession | None = None,
    env: Env | None = None,
    executor: MakeExecutor | None = None,
    listener: Listener | None = None,
    metrics: Metrics | None = None,
) -> ProjectPipeline:
    """Open the pipeline of a project, or in a store, for writing; fences the previous writer."""
    env = env or SystemEnv()
    if is_address(project, target, store):
        loaded = project_at(str(project), env)
    else:
        loaded = load_project(str(project), env, target=target, store=store)
    return ProjectPipeline(
        loaded, env, spark=spark, executor=executor, listener=listener, metrics=metrics
    )


def read_pipeline(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    spark: SparkSession | None = None,
    env: Env | None = None,
    executor: MakeExecutor | None = None,
) -> Snapshot:
    """Take a snapshot of the pipeline of a project, or in a store, as it is deployed."""
    env = env or SystemEnv()
    loaded = project_to_read(project, env, target=target, store=store)
    return take_snapshot(loaded, env, spark=spark, executor=executor)


def project_to_read(
    project: str | os.PathLike[str],
    env: Env,
    *,
    target: str | None = None,
    store: str | None = None,
) -> Project:
    """Load a project, or what is deployed in a store, as it is deployed and without secrets."""
    if is_address(project, target, store):
        return project_at(str(project), env, secrets=False)
    loaded = load_project(str(project), env, target=target, store=store, secrets=False)
    found = Manifests(loaded.open_store(env), env).latest()
    return loaded if found is None else as_deployed(loaded, found.manifest.program)


def connect_running(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Client:
    """Connect to the process that runs a pipeline here; `UnavailableError` if there is none."""
    env = SystemEnv()
    if is_address(project, target, store):
        uri = open_store(str(project), env).uri
    else:
        loaded = load_project(str(project), env, target=target, store=store, secrets=False)
        uri = loaded.open_store(env).uri
    client = connect(uri, timeout_s)
    if client is None:
        raise UnavailableError(
            f"no process on this machine runs the pipeline in {uri}",
            hint="start one: stepwell run; or open the pipeline in this process: stepwell.open",
            not_applied=True,
        )
    return client


def is_address(project: str | os.PathLike[str], target: str | None, store: str | None) -> bool:
    """Return whether `project` is the address of a store; then no other option may be given."""
    if not _ADDRESS.match(str(project)):
        return False
    if target is not None or store is not None:
        raise InvalidError(
            f"{project} is the address of a store, and has no targets and no other store",
            hint='give the project: stepwell.open("path/of/the/project", store="s3://...")',
        )
    return True


def project_at(address: str, env: Env, *, secrets: bool = True) -> Project:
    """Load the project that is deployed in a store, without its folder.

    Settings have their defaults, but nothing is discarded: the project may keep more. The journal
    is in the same store as the state unless the manifest says otherwise. Relative paths, and
    relative paths in `${file:...}`, start at the current directory. Without `secrets`, references
    of sources and sinks may be unresolvable until one is opened.
    """
    found = Manifests(open_store(address, env), env).latest()
    resources, executor = read_program(found and found.manifest.program, address)
    if found is None or not resources:
        what = "no pipeline" if found is None else "a pipeline to which nothing was deployed"
        raise InvalidError(
            f"there is {what} in {address}",
            hint=(
                "open it through its project, or deploy one to it: stepwell deploy --store ADDRESS"
            ),
        )
    folder = Path.cwd()
    references = References(folder, os.environ, {}, required=secrets)
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
            hint="open it through its project, which has its variables",
        ) from error


def _check_journal(project: Project, manifest: Manifest, env: Env) -> None:
    """Raise if the journal is elsewhere: only the project knows its location.

    Beginning another journal here would mislead the project. A pipeline that was closed needs
    nothing of its journal, so no other check would notice.
    """
    place = project.open_journal_store(env) or project.open_store(env)
    there = read_identity(place)
    if manifest.journal.id is not None and (there is None or there.id != manifest.journal.id):
        raise InvalidError(
            f"the journal of {project.store} is not in {place.uri}: found "
            f"{there.id if there else 'none'}, expected {manifest.journal.id}",
            hint="open it through its project, which names the store of its journal",
        )
