"""Destroying a pipeline: deletes everything it stores, in an order that survives being killed.

    1 take the lease, show what would be deleted, and ask for approval
    2 `manifest/destroy`        mark, free a clone's pin, delete all objects, the marker last
    3 delete the lease

Data in sinks stays. Objects that Stepwell did not name are never deleted. A pipeline whose files a
clone needs is not destroyed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from stepwell.deploy.apply import Say, leased, survey
from stepwell.deploy.plan import Facts, Plan, destroy_plan
from stepwell.deploy.project import Project
from stepwell.env import Env
from stepwell.errors import ConflictError
from stepwell.journal import paths
from stepwell.manifest.destroy import destroy_pipeline
from stepwell.manifest.manifest import Manifest, Manifests, Status
from stepwell.model import Claim


@dataclass(frozen=True, slots=True)
class Destroyed:
    objects: int
    """Number of deleted objects; 0 if there was nothing to delete."""
    left: tuple[str, ...] = ()
    """Objects that do not belong to Stepwell."""
    declined: bool = False


def destroy(
    project: Project,
    env: Env,
    *,
    approve: Callable[[Plan], bool],
    wait_s: float,
    running: Callable[[Claim], bool],
    forget: Collection[str] = (),
    say: Say = lambda text: None,
) -> Destroyed:
    """Destroy a pipeline, unless `running` says that the process of its claim is alive.

    `forget` names clones to ignore; see `manifest/destroy`, which does the work.
    """
    store = project.open_store(env)
    if Manifests(store, env).latest() is None and not store.list("deploy/", limit=1):
        return Destroyed(0)
    with leased(store, env, wait_s, say) as lease:
        seen = survey(project, env)
        manifest = seen.manifest
        if manifest is None:
            store.delete(paths.LEASE)
            return Destroyed(0)
        plan = destroy_plan(project.store, seen.resources, seen.executor, Facts.of(manifest))
        journal_store = project.open_journal_store(env)
        if manifest.status is Status.DELETING:
            say("continuing a destroy that was killed")
        else:
            # An unfinished clone has had no writer yet: its claim is that of the process that began
            # it.
            if manifest.status is Status.READY:
                _refuse_if_running(project, manifest, running)
            destroy_pipeline(store, journal_store, env, forget=forget, dry_run=True)
            plan.check("destroyed")
            if not approve(plan):
                return Destroyed(0, declined=True)
            lease.check()
        gone = destroy_pipeline(store, journal_store, env, forget=forget)
    # Last, when the remaining objects can no longer be mistaken for a pipeline.
    store.delete(paths.LEASE)
    return Destroyed(gone.objects, gone.left)


def _refuse_if_running(
    project: Project, manifest: Manifest, running: Callable[[Claim], bool]
) -> None:
    if not manifest.journal.closed and running(manifest.claim):
        claim = manifest.claim
        raise ConflictError(
            f"process {claim.pid} on host {claim.host} has {project.store}",
            hint="stop it first",
        )
