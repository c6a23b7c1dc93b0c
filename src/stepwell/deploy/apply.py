"""Deploying: lease, recovery, plan, approval, log, one manifest commit, record (D1 to D9).

    1 take the lease                         no other process can plan or deploy
    2 recover from a crash                   `state_file.py` has the table
    3 plan and ask for approval              no log is opened and nothing written before this ends
    4 open the log, with every intent
    5 commit the manifest                    here, or in the process that runs the pipeline
    6 log the outcomes, save the record, remove the log, release the lease

If a deploy is killed at any point, the next one finds out what happened and continues unattended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stepwell.deploy.lease import Lease, LeaseSettings, Owner, take_lease
from stepwell.deploy.liveness import seen_of, writer_liveness
from stepwell.deploy.log import DeployLog, Header, Phase, Record, remove_log
from stepwell.deploy.migration import (
    Building,
    Changed,
    Interrupted,
    Migration,
    planned_stages,
)
from stepwell.deploy.pipeline import MakeExecutor, make_executor
from stepwell.deploy.plan import Facts, Plan, decode_plan, fingerprint, make_plan
from stepwell.deploy.program import identified, program_json, read_program
from stepwell.deploy.project import Project
from stepwell.deploy.renames import check_renames, with_renames
from stepwell.deploy.resources import (
    Resource,
    resources_from_json,
    resources_of,
    resources_to_json,
    to_json,
)
from stepwell.deploy.state_file import (
    DeployState,
    decide,
    read_state,
    recover,
    save_state,
    serial_above,
)
from stepwell.endpoint.client import TIMEOUT_S, Client, change_program, connect
from stepwell.endpoint.starting import wait_for_starting
from stepwell.engine.events import Listener
from stepwell.engine.open import begin_pipeline
from stepwell.env import Env
from stepwell.errors import ClaimedError, ConflictError, InvalidError, UnavailableError
from stepwell.journal import paths
from stepwell.manifest.manifest import Manifest, Manifests, Stored, claimed_by
from stepwell.model import format_time
from stepwell.process import Liveness
from stepwell.store import records
from stepwell.store.base import Store
from stepwell.store.sealed import Fields

if TYPE_CHECKING:
    from stepwell.execution.spark.dataframe import SparkSession

Say = Callable[[str], None]
_TRIES = 10
"""Number of attempts while other processes keep claiming the pipeline."""
LOCK_WAIT_S = 60.0
"""Longer than it takes to detect that the holder of the lease is dead."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The deployed resources according to the manifest. Read without writing anything."""

    store: Store
    found: Stored | None
    resources: Mapping[str, Resource] = field(repr=False)
    executor: str

    @property
    def manifest(self) -> Manifest | None:
        return None if self.found is None else self.found.manifest


@dataclass(frozen=True, slots=True)
class Deployment:
    """Result of a deploy."""

    plan: Plan
    changed: Changed | None
    """None if there was nothing to do, or if the plan was declined."""
    serial: int
    declined: bool = False
    interrupted: bool = False
    """The deploy was interrupted before it had changed anything."""

    @property
    def failed(self) -> Mapping[str, str]:
        return {} if self.changed is None else self.changed.failed


def survey(project: Project, env: Env) -> Survey:
    store = project.open_store(env)
    found = Manifests(store, env).latest()
    resources, executor = read_program(
        None if found is None else found.manifest.program, project.store
    )
    return Survey(store, found, resources, executor)


def plan_project(project: Project, env: Env, renames: Sequence[str] = ()) -> Plan:
    """Plan a deploy. Only reads, takes no lease, and does not start Spark (D7)."""
    return _plan(project, survey(project, env), renames=renames)


def _plan(
    project: Project,
    seen: Survey,
    kept: Mapping[str, Resource] | None = None,
    renames: Sequence[str] = (),
) -> Plan:
    """Make a plan; `renames` come from the command line, such as `orders.total=amount`."""
    wanted = kept
    if wanted is None:
        wanted = with_renames(resources_of(project), renames)
        check_renames(project, seen.resources, wanted)
    facts = Facts.of(seen.manifest)
    plan = make_plan(
        project.store,
        seen.resources,
        wanted,
        executor=project.sections.executor,
        deployed_executor=seen.executor,
        facts=facts,
        folder=project.folder,
    )
    return replace(plan, stages=planned_stages(plan, seen.resources, facts.begun))


def deploy(
    project: Project,
    env: Env,
    *,
    approve: Callable[[Plan], bool],
    plan_data: tuple[str, bytes] | None = None,
    renames: Sequence[str] = (),
    wait_s: float = LOCK_WAIT_S,
    take_over: bool = False,
    timeout_s: float = TIMEOUT_S,
    say: Say = lambda text: None,
    building: Building = lambda name: None,
    listener: Listener | None = None,
    executor: MakeExecutor | None = None,
    spark: SparkSession | None = None,
) -> Deployment:
    """Deploy a project, or a saved plan (`plan_data`: its name and bytes).

    `building` is called with the name of each relation before it is computed. It may raise
    `Interrupted`; then nothing is changed. `listener` receives the events of a pipeline that is
    opened here. A process that runs the pipeline has `timeout_s` to answer.
    """
    # The store for the lease is opened without the project's patience: the lease would expire
    # before the retries end, and a store that does not exist is reported soon.
    store, project = project.open_store(env), project.patient()
    changing = Migration(
        project,
        env,
        executor or make_executor,
        spark=spark,
        building=building,
        listener=listener,
    )
    approved: Mapping[str, Resource] | None = None
    with leased(store, env, wait_s, say) as lease:
        for _ in range(_TRIES):
            seen, state = recovered(project, env, say)
            plan = _plan(project, seen, _kept_plan(project, seen, plan_data), renames)
            plan.check()
            if not plan.changes:
                lease.check()
                return Deployment(plan, None, _brought_up(env, seen, state, say).serial)
            if approved != plan.wanted and not approve(plan):
                return Deployment(plan, None, state.serial, declined=True)
            approved = plan.wanted
            building("")
            lease.check()
            try:
                runner = _runner(project, env, seen.found, take_over, timeout_s, say)
                return _attempt(project, env, lease, changing, runner, seen, state, plan)
            except ClaimedError:
                # Nothing was changed. If the process that was faster still runs, the next attempt
                # asks it.
                say("another process has claimed the pipeline in the meantime: trying again")
        raise ConflictError(f"{project.store} was claimed by other processes again and again")


def _attempt(
    project: Project,
    env: Env,
    lease: Lease,
    changing: Migration,
    runner: Client | None,
    seen: Survey,
    state: DeployState,
    plan: Plan,
) -> Deployment:
    """Run steps 4 to 6; `ClaimedError` if another process claims the pipeline first."""
    store = seen.store
    manifest = begin_pipeline(store, env, journal_store=project.open_journal_store(env))
    known = None if seen.manifest is None else seen.manifest.claim
    ours = known is None and manifest.claim.process == env.process
    if runner is None and manifest.claim != known and not ours:
        raise claimed_by(store.uri, manifest.claim)
    serial = state.serial + 1
    wanted = identified(seen.resources, plan.wanted, manifest.lineage, serial)
    plan = replace(plan, wanted=wanted)
    log = DeployLog(store, env, Header(env.new_id(), manifest.lineage, serial))
    log.append(*_records("intent", seen.resources, wanted))
    lease.check()
    try:
        changed = _change(changing, runner, project, store, manifest, seen, plan)
    except Interrupted:
        lease.check()  # The log may be a successor's by now.
        remove_log(store)
        return Deployment(plan, None, state.serial, interrupted=True)
    except ClaimedError:
        lease.check()
        remove_log(store)
        raise
    # Otherwise the outcomes would go into a successor's log, and that log would be removed.
    lease.check()
    saved = _record(store, env, log, state, manifest.lineage, seen, changed)
    return Deployment(plan, changed, saved.serial)


def _brought_up(env: Env, seen: Survey, state: DeployState, say: Say) -> DeployState:
    """Bring the record up to date with the manifest.

    A first run writes no record, and a restored store may hold an old one. The update is one
    compare-and-swap, so there is nothing to log.
    """
    actual = resources_to_json(seen.resources)
    if seen.manifest is None or dict(state.resources) == actual:
        return state
    say("the record was updated to what is deployed")
    lineage, serial = seen.manifest.lineage, state.serial + 1
    after = replace(state, lineage=lineage, serial=serial, resources=actual)
    return save_state(seen.store, env, after)


def _not_interrupted(building: Building) -> Building:
    """Ignore `Interrupted`: a deploy in another process continues, whatever happens to this one."""

    def told(name: str) -> None:
        with suppress(Interrupted):
            building(name)

    return told


def _change(
    changing: Migration,
    runner: Client | None,
    project: Project,
    store: Store,
    manifest: Manifest,
    seen: Survey,
    plan: Plan,
) -> Changed:
    executor = project.sections.executor
    if runner is not None:
        with runner:
            program = program_json(plan.wanted, executor)
            before = fingerprint(seen.resources, seen.executor)
            answer = change_program(runner, program, before, _not_interrupted(changing.building))
        return CHANGED.read(Fields(answer, "the answer"))
    looked = seen_of(manifest.claim, store.uri)
    if not seen.resources:
        return changing.begin(store, plan.wanted, executor, looked)
    session = changing.open(store, manifest, looked)
    try:
        return changing.change(session, seen.resources, plan.wanted, executor)
    finally:
        session.close()


def _record(
    store: Store,
    env: Env,
    log: DeployLog,
    state: DeployState,
    lineage: str,
    seen: Survey,
    changed: Changed,
) -> DeployState:
    """Log the outcomes, save the record, and remove the log."""
    done = list(_records("done", seen.resources, changed.resources))
    if done:
        log.append(*done)
        resources = resources_to_json(changed.resources)
        after = replace(state, lineage=lineage, serial=log.serial, resources=resources)
        state = save_state(store, env, after)
    remove_log(store)
    return state


def _moved(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> dict[str, str]:
    gone = {key: "delete" for key in before if key not in after}
    made = {
        key: "update" if key in before else "create"
        for key, resource in after.items()
        if before.get(key) != resource
    }
    return {**gone, **made}


def _records(
    phase: Phase, before: Mapping[str, Resource], after: Mapping[str, Resource]
) -> Iterator[Record]:
    for key, action in _moved(before, after).items():
        resource = after.get(key)
        yield Record(phase, key, action, None if resource is None else to_json(resource))


# Lease, recovery, saved plan, running process


@contextmanager
def leased(store: Store, env: Env, wait_s: float, say: Say) -> Iterator[Lease]:
    def waiting(owner: Owner) -> None:
        say(f"waiting for {owner}, which is deploying (lease {owner.id})")

    settings = LeaseSettings()
    with take_lease(store, env, wait_s=wait_s, settings=settings, waiting=waiting) as lease:
        lease.keep_alive(settings)
        yield lease


def recovered(project: Project, env: Env, say: Say) -> tuple[Survey, DeployState]:
    """Return the deployed resources and their record, after recovery from a crash.

    The caller holds the lease.
    """
    seen = survey(project, env)
    state = read_state(seen.store)
    actual = resources_to_json(seen.resources)
    lineage = None if seen.manifest is None else seen.manifest.lineage
    if _is_lost(seen, state):
        say("the record of what was deployed is missing; it is rebuilt")
        state = replace(state, serial=serial_above(state, seen.found.id if seen.found else 0) - 1)
    decided = decide(seen.store, state, lineage, actual)
    if decided.message is not None:
        say(decided.message)
    return seen, recover(seen.store, env, decided)


def _is_lost(seen: Survey, state: DeployState) -> bool:
    """Return whether there was a record once: ids come from deploys. A clone begins without one."""
    if state.etag is not None or seen.manifest is None or seen.manifest.parent is not None:
        return False
    deployed = any(resource.id for resource in seen.resources.values())
    # A first deploy that was killed has a log but no record yet.
    return deployed and not seen.store.list(paths.DEPLOY_LOG, limit=1)


def _kept_plan(
    project: Project, seen: Survey, plan_data: tuple[str, bytes] | None
) -> Mapping[str, Resource] | None:
    if plan_data is None:
        return None
    name, data = plan_data
    store, executor, before, wanted = decode_plan(data, name)
    if store != project.store or executor != project.sections.executor:
        raise InvalidError(
            f"{name} is a plan for {store} with the executor {executor}, not for {project.store} "
            f"with {project.sections.executor}",
            hint="use the same project, target and store as for stepwell plan",
        )
    if before != fingerprint(seen.resources, seen.executor):
        raise ConflictError(
            f"{name} is out of date: what is deployed in {store} has changed since it was made",
            hint="make it again: stepwell plan --out " + name,
        )
    return wanted


def _runner(
    project: Project,
    env: Env,
    found: Stored | None,
    take_over: bool,
    timeout_s: float,
    say: Say,
) -> Client | None:
    """Return the process that runs the pipeline; None if the pipeline may be opened here.

    If a process is still opening it, wait for that process and raise `ClaimedError`: the deployed
    resources have to be read again.
    """
    uri = project.open_store(env).uri
    wait_for_starting(project.folder, env, timeout_s, say)
    try:
        client = connect(uri, timeout_s)
    except UnavailableError:
        if not take_over:
            raise
        client = None
    if client is not None and (client.opening is not None or found is None):
        with client:
            say(f"waiting for process {client.pid}, which is opening the pipeline")
            client.ready()
        raise ClaimedError(f"process {client.pid} has opened the pipeline in {uri}")
    if client is not None:
        say("asking the process that runs the pipeline to change it")
        return client
    if found is None:
        return None
    manifest = found.manifest
    claim = manifest.claim
    free = manifest.journal.closed or manifest.program is None
    if free or take_over or writer_liveness(claim, env) is Liveness.DEAD:
        return None
    raise ConflictError(
        f"process {claim.pid} on host {claim.host} has held {project.store} since "
        f"{format_time(claim.time)}, and cannot be reached from here",
        hint=(
            "deploy on that host, or stop that process first; if it is no longer running, add "
            "--take-over"
        ),
    )


# Messages to and from the process that runs the pipeline


CHANGED = records.Record(
    Changed,
    resources=records.Kind(
        lambda body, name: resources_from_json(body.any(name), body.object), resources_to_json
    ),
    failed=records.texts,
    transaction=records.nullable(records.number),
)
