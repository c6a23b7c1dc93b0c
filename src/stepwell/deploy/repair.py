"""`state show` and `state repair`: inspect the deployment record, and replace a corrupt one.

The manifest is the truth, so the record can always be rebuilt from it. Replaced objects are kept
under `deploy/resources.json.wal.kept/<ulid>/`, so that the cause can be investigated. A crash
leaves copies, and either the old or the new record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.deploy.apply import Say, leased, survey
from stepwell.deploy.lease import Owner, read_lease
from stepwell.deploy.log import remove_log
from stepwell.deploy.project import Project
from stepwell.deploy.resources import resources_to_json
from stepwell.deploy.state_file import (
    DeployState,
    Recovery,
    decide,
    read_state,
    save_state,
    serial_above,
)
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError, StepwellError
from stepwell.journal import paths


@dataclass(frozen=True, slots=True)
class Inspection:
    """The state of a deployed project. Obtained without writing anything."""

    state: DeployState | None
    """None if the record cannot be read."""
    recovery: Recovery | None
    problem: StepwellError | None
    owner: Owner | None
    lineage: str | None
    drift: tuple[str, ...] = field(default=())
    """Keys of resources that differ between the record and the manifest."""
    log: int = 0
    """Number of objects in the log of a deploy."""
    first_run: bool = False
    """Whether a first run made the pipeline; the next deploy writes a record."""


def inspect_deployment(project: Project, env: Env) -> Inspection:
    seen = survey(project, env)
    store, manifest = seen.store, seen.manifest
    lineage = None if manifest is None else manifest.lineage
    actual = resources_to_json(seen.resources)
    log = len(store.list(paths.DEPLOY_LOG))
    owner = read_lease(store)
    state: DeployState | None = None
    try:
        state = read_state(store)
        decided = decide(store, state, lineage, actual)
    except (CorruptError, InvalidError) as problem:
        return Inspection(state, None, problem, owner, lineage, log=log)
    recorded = decided.state.resources
    drift = tuple(
        key for key in sorted({*recorded, *actual}) if recorded.get(key) != actual.get(key)
    )
    if state.etag is None and manifest is not None and log == 0:
        made = DeployState(lineage, state.serial, actual)
        return Inspection(made, decided, None, owner, lineage, first_run=True)
    return Inspection(state, decided, None, owner, lineage, drift, log)


def repair(project: Project, env: Env, *, wait_s: float, say: Say) -> DeployState:
    """Rebuild the record from the manifest, and remove the log; copies of both are kept."""
    store = project.open_store(env)
    with leased(store, env, wait_s, say) as lease:
        seen = survey(project, env)
        if seen.manifest is None:
            raise InvalidError(
                f"there is no pipeline in {project.store}, so nothing to write a record from",
                hint="if one lived here, restore its manifest/ objects from a backup",
            )
        folder = f"{paths.DEPLOY_LOG_KEPT}{env.new_id()}/"
        old = store.get(paths.RESOURCES)
        try:
            before = read_state(store)
        except (CorruptError, InvalidError):
            before = DeployState()
        lost = before.etag is None and seen.found is not None
        serial = serial_above(before, seen.found.id) if lost and seen.found else before.serial + 1
        for item in store.list(paths.DEPLOY_LOG):
            found = store.get(item.path)
            if found is not None:
                store.put_new(folder + item.path.rpartition("/")[2], found.data)
        if old is not None:
            store.put_new(folder + "resources.json", old.data)
        lease.check()
        state = DeployState(
            seen.manifest.lineage,
            serial,
            resources_to_json(seen.resources),
            etag=None if old is None else old.etag,
        )
        saved = save_state(store, env, state)
        remove_log(store)
        return saved
