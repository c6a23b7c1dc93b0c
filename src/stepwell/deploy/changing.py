"""From what is deployed to what is wanted: the one commit of a deploy, and what is left out of it.

A resource that cannot be made fails, and with it whatever needs it; they keep what is deployed, and
the rest is tried again without them (D8). Nothing has happened until the manifest is committed, so
trying again costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from stepwell.connectors.evolving import check_evolution, is_evolving
from stepwell.connectors.registry import make_sink, make_source
from stepwell.connectors.shape import shape_of
from stepwell.deploy.lineage import called_before, known_columns, table_changes
from stepwell.deploy.pipeline import MakeExecutor, SparkSession
from stepwell.deploy.plan import Action, Plan, fresh_views, make_plan, without
from stepwell.deploy.program import as_deployed, program_json, read_program
from stepwell.deploy.project import Project
from stepwell.deploy.resources import (
    Deployed,
    Kind,
    dependants,
    deployed_project,
    in_order,
    key_of,
    needed,
    shown,
)
from stepwell.deploy.source_place import path_refusal
from stepwell.deploy.table_change import TableChange, table_change
from stepwell.engine.beside import Beside
from stepwell.engine.change import BuildError, Convert, ProgramChange, change_program
from stepwell.engine.core import Core
from stepwell.engine.lazy import LazyExecutor
from stepwell.engine.open import Seen
from stepwell.engine.ports import Delivered, Executor, Source
from stepwell.engine.push_keys import PushKeys, table_runs
from stepwell.engine.reshape import Places
from stepwell.engine.sources import Sources
from stepwell.env import Env, Rising
from stepwell.errors import (
    CorruptError,
    InvalidError,
    ReplayMismatchError,
    StepwellError,
    UnavailableError,
    UserCodeError,
    ensure,
)
from stepwell.journal.log import Log
from stepwell.model import Transaction
from stepwell.query.reasons import Unsupported
from stepwell.query.statements import MaterializedView, Table, fold
from stepwell.state.manifest import CheckpointRef, Manifest
from stepwell.store.base import Store

Building = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Changed:
    """What a deploy came to."""

    resources: Deployed = field(repr=False)
    """What is deployed now."""
    failed: Mapping[str, str]
    """Keys that kept what they were, and why."""
    transaction: Transaction | None
    """The one that carries the change; None: nothing was changed."""


class Interrupted(Exception):  # noqa: N818 - not an error: somebody asked for it
    """A deploy was asked to stop, and has changed nothing."""


class AbsentSink:
    """Stands for a sink while a pipeline is changed: nothing is sent, and nothing is forgotten."""

    def __init__(self, name: str, view: str) -> None:
        self.name = name
        self.view = view

    def last(self) -> Delivered | None:
        raise UnavailableError(f"sink {self.name} is left alone while the pipeline is changed")

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        raise UnavailableError(f"sink {self.name} is left alone while the pipeline is changed")

    def close(self) -> None:
        """Nothing was opened."""


class Changing:
    """One project's pipeline, to be changed."""

    def __init__(
        self,
        project: Project,
        env: Env,
        make: MakeExecutor,
        *,
        spark: SparkSession | None = None,
        building: Building = lambda name: None,
    ) -> None:
        self._project = project
        self._env = env
        self._make = make
        self._spark = spark
        self._building = building

    def open(self, store: Store, manifest: Manifest, seen: Seen | None = None) -> Core:
        """Take the pipeline over as it is deployed, without asking its sinks anything."""
        deployed = as_deployed(self._project, manifest.program, leaving=True)
        views = {item.name: item.relation for item in deployed.sinks}
        begun = [at.name for at in manifest.progress.sinks]
        keys = {table.name: table.key for table in deployed.tables.values()}
        resources, executor = read_program(manifest.program, self._project.store)

        def part(store: Store, env: Env, names: Collection[str]) -> Executor:
            try:
                views = needed(resources, [key_of("view", name) for name in names])
                return self._made(store, env, views, executor)
            except _NOT_TAKEN:
                return self._make(deployed, self._spark)(store, env)

        return Core(
            store,
            self._env,
            # If there is nothing to replay and no relation changes, Spark need not be started.
            lambda store, env: LazyExecutor(
                lambda: self._make(deployed, self._spark)(store, env),
                keys,
                lambda names: part(store, env, names),
            ),
            self._sources(deployed),
            [AbsentSink(name, views[name]) for name in begun if name in views],
            journal_store=self._project.open_journal_store(self._env),
            settings=deployed.settings(),
            create=False,
            program=manifest.program,
            seen=seen,
        )

    def begin(
        self, store: Store, wanted: Deployed, executor: str, seen: Seen | None = None
    ) -> Changed:
        """Record a first program where there is none."""
        failed: dict[str, str] = {}
        ids = Rising(self._env)
        while True:
            target = without(wanted, {}, set(failed)) if failed else dict(wanted)
            if not any(r.kind == "table" for r in target.values()):
                return Changed({}, failed, None)
            try:
                self._check_new_sinks(target, set(target))
                made = self._executor(store, ids, target, executor)
                break
            except BuildError as error:
                _fail(failed, error, wanted)
        core = Core(
            store,
            ids,
            lambda store, env: made,
            [],
            [],
            journal_store=self._project.open_journal_store(self._env),
            settings=self._project.sections.settings(),
            create=False,
            program=program_json(target, executor),
            seen=seen,
        )
        transaction = core.state.transaction
        core.close()
        return Changed(target, failed, transaction)

    def change(
        self,
        core: Core,
        deployed: Deployed,
        wanted: Deployed,
        executor: str,
        beside: Beside | None = None,
    ) -> Changed:
        """Commit what is wanted, as far as it can be made. `core` is only to be closed then.

        `beside` is what was built while transactions went on; without it, or if it does not come
        to its end, all is computed here.
        """
        failed: dict[str, str] = {}
        if beside is not None:
            with suppress(*_NOT_READY):
                self._check_sources(core, deployed, wanted)
                done = change_program(
                    core,
                    beside.executor,
                    beside.change,
                    ready=beside.catch_up,
                    origin=beside.checkpoint,
                )
                return Changed(dict(wanted), {}, done)
        while True:
            target = without(wanted, deployed, set(failed)) if failed else dict(wanted)
            plan = make_plan("", deployed, target, executor=executor, deployed_executor=executor)
            if not plan.changes:
                _held_back(failed, wanted, deployed)
                return Changed(deployed, failed, None)
            try:
                self._check_sources(core, deployed, target)
                new = {s.key for s in plan.changes if s.action in (Action.CREATE, Action.REBUILD)}
                self._check_new_sinks(target, new)
                made = None
                change = program_change(plan, deployed)
                if not _same_relations(deployed, target):
                    made, change = self._computing(core, deployed, plan, change)
                done = change_program(core, made, change, building=self._building)
            except BuildError as error:
                _fail(failed, error, wanted)
            else:
                _held_back(failed, wanted, target)
                return Changed(target, failed, done)

    def build_beside(
        self,
        core: Core,
        manifest: Manifest,
        checkpoint: CheckpointRef,
        deployed: Deployed,
        wanted: Deployed,
        executor: str,
    ) -> Beside | None:
        """Build the new program from a checkpoint while transactions go on.

        None: it is not worth it, or not possible; then the pipeline stands still for it.
        """
        plan = make_plan("", deployed, wanted, executor=executor, deployed_executor=executor)
        change = program_change(plan, deployed)
        converted = change.refill or change.reshape or _renamed(plan, deployed)
        if not change.fresh or converted or _respelled(deployed, wanted):
            return None
        old = as_deployed(self._project, manifest.program, leaving=True)
        sources = self._sources(old)
        try:
            new = {s.key for s in plan.changes if s.action in (Action.CREATE, Action.REBUILD)}
            self._check_new_sinks(wanted, new)
            made = self._made(core.store, core.env, wanted, executor)
            change = self._verified(core, made, deployed, plan, change)
            place = self._project.open_journal_store(self._env) or core.store
            beside = Beside(
                made,
                change,
                manifest,
                checkpoint,
                Sources(sources, tuple(made.tables()), self._env),
                Log(place, manifest.lineage),
                PushKeys(core.store, core.env),
                rows_max=self._project.sections.settings().limits.rows_max,
                building=self._building,
            )
            while beside.follow():
                pass
            return beside
        except (*_NOT_TAKEN, *_NOT_READY):
            return None

    def _check_sources(self, core: Core, deployed: Deployed, target: Deployed) -> None:
        """A source that has taken something keeps its base folder.

        The plan knows what the manifest says; what was taken since the last flush is known here.
        """
        for key, new in target.items():
            old = deployed.get(key)
            if new.kind != "source" or old is None or core.state.position(new.name) is None:
                continue
            refused = path_refusal(old, new, self._project.folder)
            if refused is not None:
                raise BuildError(key, InvalidError(refused))

    def _check_new_sinks(self, target: Deployed, new: set[str]) -> None:
        """A sink that begins must be empty, or the pipeline could not be opened any more.

        One that does not answer is asked when the pipeline is opened.
        """
        for key in sorted(new):
            resource = target[key]
            if resource.kind != "sink":
                continue
            options = self._project.references.resolve_stored(resource.options, shown(key))
            name, view, base = resource.name, resource.relation, self._project.folder
            sink = make_sink(name, options, view, self._env, base=base)
            try:
                held = sink.last()
            except Exception:  # noqa: BLE001 - a driver may raise anything; it is asked again
                continue
            finally:
                sink.close()
            if held is not None:
                told = InvalidError(
                    f"it is to begin with the whole view, but holds transaction "
                    f"{held.transaction} of lineage {held.lineage}",
                    hint="empty it, or give it another place",
                )
                raise BuildError(key, told)

    def _sources(self, deployed: Project) -> list[Source]:
        """Those that can be made: one is needed only where the journal refers to its rows."""
        made: list[Source] = []
        for item in deployed.sources:
            with suppress(StepwellError):
                table, base = deployed.table(item.relation), deployed.folder
                made.append(make_source(item.name, item.options, table, self._env, base=base))
        return made

    def _computing(
        self, core: Core, deployed: Deployed, plan: Plan, change: ProgramChange
    ) -> tuple[Executor, ProgramChange]:
        """An executor for what changes and what reads it: compiling one view of many takes its own
        time, and the others are put aside.

        For all of them where a text may name anything, or before the first run was written: until
        then, rows of views over no rows are nowhere but in an executor.
        """
        target = plan.wanted
        _check_settings(deployed, target)
        part = dict(target)
        if table_runs(core.manifest.runs) and not _names_anything(target):
            changed = {
                key
                for key, r in target.items()
                if r.kind == "view"
                and not (key in deployed and r.checksum == deployed[key].checksum)
            }
            changed |= {key_of("view", name) for name in change.fresh}
            changed |= dependants(target, changed)
            changed |= {step.key for step in plan.steps if step.action is Action.REBIND}
            followed = {key_of("view", now) for was, now in change.follow.values() if was != now}
            part = needed(target, changed | followed)
        made = self._executor(core.store, core.env, part, plan.executor)
        verified = self._verified(core, made, deployed, plan, change)
        if any(key_of("view", name) not in part for name in verified.fresh):
            return self._computing(core, deployed, plan, verified)
        change = verified
        left = (r for key, r in target.items() if r.kind == "view" and key not in part)
        aside = {fold(r.name): r.name for r in left}
        return made, replace(change, aside={n: aside[n] for n in change.keep if n in aside})

    def _verified(
        self,
        core: Core,
        made: Executor,
        deployed: Deployed,
        plan: Plan,
        change: ProgramChange,
    ) -> ProgramChange:
        """The change, with every view fresh of which the executor does not agree that its rows may
        stay: it would keep them in another way, or cannot tell.
        """
        steps = [step.key for step in plan.steps if step.action is Action.REBIND]
        names = {key: fold(plan.wanted[key].name) for key in steps}
        if not names:
            return change
        old: Executor = core.state.executor
        if isinstance(old, LazyExecutor):
            old = old.compiled([deployed[key].name for key in names])
        changes = table_changes(deployed, plan.wanted)
        before, after = known_columns(deployed, plan.wanted, changes)
        fresh = {key_of("view", name) for name in change.fresh}
        for key, name in names.items():
            was, now = old.bound(name, before), made.bound(name, after)
            again = now is not None and {key_of("view", other) for other in now.inexact} & fresh
            if was is None or now is None or was.text != now.text or again:
                fresh |= {key} | dependants(plan.wanted, {key})
        ordered = tuple(
            fold(r.name)
            for r in in_order(plan.wanted)
            if r.kind == "view" and r.key in fresh and isinstance(r.statement(), MaterializedView)
        )
        return replace(change, fresh=ordered, keep=change.keep - set(ordered))

    def _executor(self, store: Store, env: Env, target: Deployed, executor: str) -> Executor:
        """One for these resources; `BuildError` names the statement that it does not take.

        `env` draws ids above those of everything that is stored.
        """
        try:
            return self._made(store, env, target, executor)
        except _NOT_TAKEN as error:
            named = [key_of(kind, error.about or "") for kind in _RELATIONS]
            culprit = next((key for key in named if key in target), None)
            if culprit is None:
                raise
            raise BuildError(culprit, _told(error)) from error

    def _made(self, store: Store, env: Env, target: Deployed, executor: str) -> Executor:
        project = deployed_project(self._project, target, executor)
        return self._make(project, self._spark)(store, env)


_RELATIONS: tuple[Kind, ...] = ("table", "view")
_NOT_TAKEN = (InvalidError, Unsupported)
_NOT_READY = (BuildError, InvalidError, CorruptError, ReplayMismatchError, UserCodeError)
"""What lets the plain way be tried: nothing has happened then."""


def _same_relations(deployed: Deployed, target: Deployed) -> bool:
    """Whether nothing changes but sources, sinks and what is protected."""
    before = {key: r.checksum for key, r in deployed.items() if r.kind in _RELATIONS}
    return before == {key: r.checksum for key, r in target.items() if r.kind in _RELATIONS}


def _check_settings(deployed: Deployed, target: Deployed) -> None:
    """All views of a pipeline have the same settings: where some keep theirs, so do all."""
    views = [r for r in target.values() if r.kind == "view"]
    kept = [r for r in views if r.same(deployed.get(r.key))]
    for view in views:
        if kept and view.settings != kept[0].settings:
            names = ", ".join(r.name for r in kept)
            told = InvalidError(
                f"it would have other settings of Spark than {names}, which keep theirs",
                hint="mend what failed, and deploy again",
            )
            raise BuildError(view.key, told)


def _names_anything(target: Deployed) -> bool:
    """Whether a query names a relation by a text, which could be any."""
    return any(r.kind == "view" and "identifier" in r.text.lower() for r in target.values())


def _respelled(deployed: Deployed, target: Deployed) -> bool:
    """Whether a table or view has another spelling, which its entries in the journal have not."""
    return any(
        r.name != target[key].name
        for key, r in deployed.items()
        if r.kind in _RELATIONS and key in target
    )


def _renamed(plan: Plan, deployed: Deployed) -> bool:
    """Whether columns get other names, which their entries in the journal do not have."""
    return any(called_before(deployed, plan.wanted).values())


def program_change(plan: Plan, deployed: Deployed) -> ProgramChange:
    """What the engine is told of a plan."""
    wanted = plan.wanted
    action = {step.key: step.action for step in plan.steps}
    refill: dict[str, Convert] = {}
    reshape: dict[str, Places] = {}
    keep: set[str] = set()
    letters: set[str] = set()
    follow: dict[str, tuple[str, str]] = {}
    evolve: dict[str, Callable[[pa.Schema, pa.Schema], None]] = {}
    fresh = tuple(fold(name) for name in fresh_views(plan))
    for key, resource in wanted.items():
        old = deployed.get(key)
        if old is None:
            continue
        name = fold(resource.name)
        if resource.kind == "table":
            letters.add(name)
            before, now = old.statement(), resource.statement()
            if isinstance(before, Table) and isinstance(now, Table):
                altered = table_change(before, now, resource.renames)
                if altered.rewrites:
                    refill[name] = converter(before, now, altered)
                    continue
                keep.add(name)
                if altered.reshapes:
                    reshape[name] = altered.places
        elif resource.kind == "view":
            both = (old.statement(), resource.statement())
            if all(isinstance(one, MaterializedView) for one in both) and name not in fresh:
                keep.add(name)
        elif resource.kind == "sink" and action[key] is not Action.REBUILD:
            follow[resource.name] = (fold(old.relation), fold(resource.relation))
            if is_evolving(resource.options):
                evolve[resource.name] = partial(check_evolution, resource.options)
    return ProgramChange(
        program=program_json(wanted, plan.executor),
        keep=frozenset(keep),
        letters=frozenset(letters),
        fresh=fresh,
        refill=refill,
        reshape=reshape,
        follow=follow,
        evolve=evolve,
        sources=frozenset(
            r.name for key, r in wanted.items() if r.kind == "source" and key in deployed
        ),
    )


def converter(old: Table, new: Table, change: TableChange) -> Convert:
    """What becomes of rows: columns in their places, cast to wider types, new ones by default."""
    shape = shape_of(new)

    def convert(rows: pa.Table) -> pa.Table:
        columns = []
        for column, place in zip(shape.columns, change.places, strict=True):
            if place is None:
                value = pa.scalar(column.missing(), column.arrow)
                columns.append(pa.repeat(value, rows.num_rows))
            else:
                columns.append(rows.column(old.columns[place].name).cast(column.arrow))
        return pa.table(columns, names=[column.name for column in shape.columns])

    return convert


def _fail(failed: dict[str, str], error: BuildError, wanted: Deployed) -> None:
    """A resource failed, and so does what needs it, with the root cause named."""
    ensure(error.key not in failed, f"{error.key} fails once")
    failed[error.key] = str(error)
    for key in dependants(wanted, {error.key}):
        failed.setdefault(key, f"it needs {shown(error.key)}, which failed: {error.message}")


def _held_back(failed: dict[str, str], wanted: Deployed, made: Deployed) -> None:
    """What could have been changed, but for something that failed and needs it as it is."""
    if not failed:
        return
    for key in {*wanted, *made}:
        same = key in wanted and wanted[key].same(made.get(key))
        if not same:
            failed.setdefault(key, "it is left as it is: something that failed needs it so")


def _told(error: Exception) -> StepwellError:
    if isinstance(error, StepwellError):
        return error
    return InvalidError(f"the executor cannot compute it: {error}")
