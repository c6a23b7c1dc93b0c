"""Destroying a pipeline: everything it stores, in an order that can be killed and run again.

    1 the manifest says `deleting`          from here on nobody can open it; a writer is fenced
    2 runs, outbox, checkpoints, journal, the record and its log, boundaries
    3 manifests, the latest one last        while it is there, a rerun knows what to go on with
    4 the lease

What sinks hold is theirs and stays. What Stepwell did not name is never deleted. A pipeline whose
files a clone needs is not destroyed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stepwell.deploy.apply import Say, leased, survey
from stepwell.deploy.plan import Facts, Plan, destroy_plan
from stepwell.deploy.project import Project
from stepwell.env import Env
from stepwell.errors import ConflictError, InvalidError
from stepwell.journal import paths
from stepwell.model import Claim
from stepwell.state.manifest import Manifest, Manifests, Status
from stepwell.store.base import Store

_ORDER = ("run", "outbox", "checkpoint", "entry", "identity", "deploy_log", "resources", "boundary")


@dataclass(frozen=True, slots=True)
class Destroyed:
    plan: Plan
    objects: int
    """How many were deleted; 0: there was nothing to do."""
    left: tuple[str, ...] = ()
    """Objects that are not Stepwell's."""
    declined: bool = False


def destroy(
    project: Project,
    env: Env,
    *,
    approve: Callable[[Plan], bool],
    wait_s: float,
    running: Callable[[Claim], bool],
    say: Say = lambda text: None,
) -> Destroyed:
    """`running` says whether the process of a claim is at work: then nothing is destroyed."""
    store = project.open_store(env)
    nothing = destroy_plan(project.store, {}, project.sections.executor, Facts())
    if Manifests(store, env).latest() is None and not store.list("deploy/", limit=1):
        return Destroyed(nothing, 0)
    with leased(store, env, wait_s, say) as lease:
        seen = survey(project, env)
        manifest = seen.manifest
        if manifest is None:
            store.delete(paths.LEASE)
            return Destroyed(nothing, 0)
        plan = destroy_plan(project.store, seen.resources, seen.executor, Facts.of(manifest))
        if manifest.status is not Status.DELETING:
            _refuse(project, manifest, running)
            plan.check()
            if not approve(plan):
                return Destroyed(plan, 0, declined=True)
            lease.check()
            holder = Manifests(store, env).claim(seen.found)
            holder.commit(lambda m: replace(m, status=Status.DELETING), "destroy the pipeline")
        else:
            say("a destroy that was killed goes on")
        deleted = _delete(store, project.open_journal_store(env) or store, env)
    # Last, when nobody can mistake what is left for a pipeline any more.
    store.delete(paths.LEASE)
    known = [item.path for item in store.list() if paths.parse(item.path).kind == "unknown"]
    return Destroyed(plan, deleted, tuple(known))


def _refuse(project: Project, manifest: Manifest, running: Callable[[Claim], bool]) -> None:
    if manifest.pins:
        names = ", ".join(sorted({pin.clone for pin in manifest.pins}))
        raise InvalidError(
            f"{project.store} holds files that clones need: {names}",
            hint="destroy the clones first",
        )
    if not manifest.journal.closed and running(manifest.claim):
        claim = manifest.claim
        raise ConflictError(
            f"process {claim.pid} on host {claim.host} has {project.store}",
            hint="end it first",
        )


def _delete(store: Store, journal_store: Store, env: Env) -> int:
    count = 0
    for place in (store,) if journal_store is store else (journal_store, store):
        found: dict[str, list[str]] = {}
        for item in place.list():
            found.setdefault(paths.parse(item.path).kind, []).append(item.path)
        for path in _ordered(found):
            place.delete(path)
            count += 1
    manifests = sorted(item.path for item in store.list(paths.MANIFESTS))
    for path in manifests:
        store.delete(path)
    return count + len(manifests)


def _ordered(found: dict[str, list[str]]) -> Iterator[str]:
    for kind in _ORDER:
        # The log from its end to its beginning, as always.
        yield from sorted(found.get(kind, ()), reverse=kind == "deploy_log")
