"""`state show` and `state repair`: the record of what was deployed, and a way out where it is bad.

The manifest is the truth, so a record can always be written anew from it. What is replaced is kept
beside, under `deploy/resources.json.wal.kept/<ulid>/`, for whoever wants to know what happened. A
crash leaves copies, and the record as it was or as it is to be.
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
class Shown:
    """What is known about a deployed project. Nothing was written to find it out."""

    state: DeployState | None
    """None: it cannot be read."""
    recovery: Recovery | None
    problem: StepwellError | None
    owner: Owner | None
    lineage: str | None
    drift: tuple[str, ...] = field(default=())
    """Keys of which record and manifest say different things."""
    log: int = 0
    """How many objects the log of a deploy has."""
    first_run: bool = False
    """Whether a first run made the pipeline; a record is written by the next deploy."""


def look(project: Project, env: Env) -> Shown:
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
        return Shown(state, None, problem, owner, lineage, log=log)
    recorded = decided.state.resources
    drift = tuple(
        key for key in sorted({*recorded, *actual}) if recorded.get(key) != actual.get(key)
    )
    if state.etag is None and manifest is not None and log == 0:
        made = DeployState(lineage, state.serial, actual)
        return Shown(made, decided, None, owner, lineage, first_run=True)
    return Shown(state, decided, None, owner, lineage, drift, log)


def repair(project: Project, env: Env, *, wait_s: float, say: Say) -> DeployState:
    """Write the record anew from the manifest, and remove the log; both are kept beside."""
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
