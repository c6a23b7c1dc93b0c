"""Migrate a pipeline from its deployed program to another one, in one commit.

A resource that cannot be built fails, together with the resources that need it. They stay as they
are deployed, and the migration is tried again without them (D8). Nothing changes before the
manifest commit, so another attempt costs only time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from stepwell.connectors.evolving import check_evolution, is_evolving
from stepwell.connectors.registry import make_sink, make_source
from stepwell.connectors.shape import shape_of
from stepwell.deploy.lineage import called_before, known_columns, table_changes
from stepwell.deploy.pipeline import MakeExecutor
from stepwell.deploy.plan import Action, Plan, fresh_views, make_plan, without
from stepwell.deploy.program import as_deployed, program_json, read_program
from stepwell.deploy.project import Project
from stepwell.deploy.resources import (
    Deployed,
    Kind,
    dependants,
    deployed_project,
    display_name,
    in_order,
    key_of,
    needed,
)
from stepwell.deploy.source_location import path_refusal
from stepwell.deploy.table_change import TableChange, table_change
from stepwell.engine.events import Listener
from stepwell.engine.open import Seen
from stepwell.engine.ports import Delivered, Source
from stepwell.engine.program_swap import change_program
from stepwell.engine.push_keys import PushKeys, table_runs
from stepwell.engine.shadow_build import ShadowBuild
from stepwell.engine.sources import Sources
from stepwell.engine.swap_stages import (
    Convert,
    ProgramChange,
    Relations,
    Stage,
    swap_stages,
)
from stepwell.engine.writer_session import WriterSession
from stepwell.env import Env, MonotonicIds
from stepwell.errors import (
    BuildError,
    CorruptError,
    InvalidError,
    ReplayMismatchError,
    StepwellError,
    UnavailableError,
    UserCodeError,
    ensure,
)
from stepwell.execution.executor import Executor
from stepwell.execution.lazy_executor import LazyExecutor
from stepwell.journal.log import Log
from stepwell.lsm.reshape import Places
from stepwell.manifest.manifest import CheckpointRef, Manifest
from stepwell.model import Transaction
from stepwell.plan.reasons import Unsupported
from stepwell.sql.statements import MaterializedView, Table, fold
from stepwell.store.base import Store

if TYPE_CHECKING:
    from stepwell.execution.spark.dataframe import SparkSession

Building = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a deploy."""

    resources: Deployed = field(repr=False)
    """The deployed resources."""
    failed: Mapping[str, str]
    """Keys of resources that were not changed, and why."""
    transaction: Transaction | None
    """The transaction that carries the change; None if nothing was changed."""


class Interrupted(Exception):  # noqa: N818 - not an error: the user asked for it
    """A deploy was asked to stop, and has changed nothing."""


class AbsentSink:
    """Stands in for a sink during a migration: receives nothing, and keeps its outbox."""

    def __init__(self, name: str, view: str) -> None:
        self.name = name
        self.view = view

    def last(self) -> Delivered | None:
        raise UnavailableError(f"sink {self.name} is left alone while the pipeline is changed")

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        raise UnavailableError(f"sink {self.name} is left alone while the pipeline is changed")

    def close(self) -> None:
        """Nothing was opened."""


class Migration:
    """Migrates the pipeline of one project."""

    def __init__(
        self,
        project: Project,
        env: Env,
        make: MakeExecutor,
        *,
        spark: SparkSession | None = None,
        building: Building = lambda name: None,
        listener: Listener | None = None,
    ) -> None:
        self._project = project
        self._env = env
        self._make = make
        self._spark = spark
        self.building = building
        self._listener = listener

    def open(self, store: Store, manifest: Manifest, seen: Seen | None = None) -> WriterSession:
        """Open the pipeline with its deployed program, without calling its sinks."""
        deployed = as_deployed(self._project, manifest.program, leaving=True)
        views = {item.name: item.relation for item in deployed.sinks}
        begun = [at.name for at in manifest.progress.sinks]
        keys = {table.name: table.key for table in deployed.tables.values()}
        resources, executor = read_program(manifest.program, self._project.store)

        def part(store: Store, env: Env, names: Collection[str]) -> Executor:
            try:
                views = needed(resources, [key_of("view", name) for name in names])
                return self._make_executor(store, env, views, executor)
            except _NOT_TAKEN:
                return self._make(deployed, self._spark)(store, env)

        return WriterSession(
            store,
            self._env,
            # Lazy: without replay and changed relations, Spark is not started.
            lambda store, env: LazyExecutor(
                lambda: self._make(deployed, self._spark)(store, env),
                keys,
                lambda names: part(store, env, names),
            ),
            self._sources(deployed),
            [AbsentSink(name, views[name]) for name in begun if name in views],
            journal_store=self._project.open_journal_store(self._env),
            settings=deployed.settings(),
            listener=self._listener,
            create=False,
            program=manifest.program,
            seen=seen,
        )

    def begin(
        self, store: Store, wanted: Deployed, executor: str, seen: Seen | None = None
    ) -> Changed:
        """Record the first program of a pipeline."""
        failed: dict[str, str] = {}
        ids = MonotonicIds(self._env)
        while True:
            target = without(wanted, {}, set(failed)) if failed else dict(wanted)
            if not any(r.kind == "table" for r in target.values()):
                return Changed({}, failed, None)
            try:
                self._check_new_sinks(target, set(target))
                made = self._make_attributed(store, ids, target, executor)
                break
            except BuildError as error:
                _fail(failed, error, wanted)
        session = WriterSession(
            store,
            ids,
            lambda store, env: made,
            [],
            [],
            journal_store=self._project.open_journal_store(self._env),
            settings=self._project.sections.settings(),
            listener=self._listener,
            create=False,
            program=program_json(target, executor),
            seen=seen,
        )
        transaction = session.state.transaction
        session.close()
        return Changed(target, failed, transaction)

    def change(
        self,
        session: WriterSession,
        deployed: Deployed,
        wanted: Deployed,
        executor: str,
        shadow: ShadowBuild | None = None,
    ) -> Changed:
        """Commit the wanted program, as far as it can be built. Only close `session` afterwards.

        `shadow` was built while transactions continued. Without it, or if it fails, everything is
        computed here.
        """
        failed: dict[str, str] = {}
        if shadow is not None:
            with suppress(*_NOT_READY):
                self._check_sources(session, deployed, wanted)
                done = change_program(session, shadow.executor, shadow.change, shadow=shadow)
                return Changed(dict(wanted), {}, done)
        while True:
            target = without(wanted, deployed, set(failed)) if failed else dict(wanted)
            plan = make_plan("", deployed, target, executor=executor, deployed_executor=executor)
            if not plan.changes:
                _held_back(failed, wanted, deployed)
                return Changed(deployed, failed, None)
            try:
                self._check_sources(session, deployed, target)
                new = {s.key for s in plan.changes if s.action in (Action.CREATE, Action.REBUILD)}
                self._check_new_sinks(target, new)
                made = None
                change = program_change(plan, deployed)
                if not _same_relations(deployed, target):
                    made, change = self._partial_executor(session, deployed, plan, change)
                done = change_program(session, made, change, building=self.building)
            except BuildError as error:
                _fail(failed, error, wanted)
            else:
                _held_back(failed, wanted, target)
                return Changed(target, failed, done)

    def build_shadow(
        self,
        session: WriterSession,
        manifest: Manifest,
        checkpoint: CheckpointRef,
        deployed: Deployed,
        wanted: Deployed,
        executor: str,
    ) -> ShadowBuild | None:
        """Build the state of the new program from a checkpoint while transactions continue.

        None if that is not worth it or not possible: then the swap builds the views itself.
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
            made = self._make_executor(session.store, session.env, wanted, executor)
            change = self._verified(session, made, deployed, plan, change)
            place = self._project.open_journal_store(self._env) or session.store
            shadow = ShadowBuild(
                made,
                change,
                manifest,
                checkpoint,
                Sources(sources, tuple(made.tables()), self._env),
                Log(place, manifest.lineage),
                PushKeys(session.store, session.env),
                rows_max=self._project.sections.settings().limits.rows_max,
                building=self.building,
            )
            while shadow.follow():
                pass
            return shadow
        except (*_NOT_TAKEN, *_NOT_READY):
            return None

    def _check_sources(self, session: WriterSession, deployed: Deployed, target: Deployed) -> None:
        """Refuse another base folder for a source that has taken input.

        The plan knows only the manifest; input since the last flush is known here.
        """
        for key, new in target.items():
            old = deployed.get(key)
            if new.kind != "source" or old is None or session.state.position(new.name) is None:
                continue
            refused = path_refusal(old, new, self._project.folder)
            if refused is not None:
                raise BuildError(key, InvalidError(refused))

    def _check_new_sinks(self, target: Deployed, new: set[str]) -> None:
        """Refuse a new sink that is not empty: the pipeline could not be opened any more.

        A sink that does not answer is checked when the pipeline is opened.
        """
        for key in sorted(new):
            resource = target[key]
            if resource.kind != "sink":
                continue
            options = self._project.references.resolve_stored(resource.options, display_name(key))
            name, view, base = resource.name, resource.relation, self._project.folder
            sink = make_sink(name, options, view, self._env, base=base)
            try:
                held = sink.last()
            except Exception:  # noqa: BLE001 - a driver may raise anything
                continue
            finally:
                sink.close()
            if held is not None:
                told = InvalidError(
                    f"it would start with the whole view, but holds transaction "
                    f"{held.transaction} of lineage {held.lineage}",
                    hint="empty it, or give it another location",
                )
                raise BuildError(key, told)

    def _sources(self, deployed: Project) -> list[Source]:
        """The sources that can be made. One is needed only if the journal refers to its rows."""
        made: list[Source] = []
        for item in deployed.sources:
            with suppress(StepwellError):
                table, base = deployed.table(item.relation), deployed.folder
                made.append(make_source(item.name, item.options, table, self._env, base=base))
        return made

    def _partial_executor(
        self, session: WriterSession, deployed: Deployed, plan: Plan, change: ProgramChange
    ) -> tuple[Executor, ProgramChange]:
        """Make an executor for the changed views and their readers only.

        The other views are put aside, which saves the time to compile them. The executor gets all
        views if a query may name any relation, or if no run was written yet: until then, only an
        executor holds the rows of views over empty tables.
        """
        target = plan.wanted
        _check_settings(deployed, target)
        part = dict(target)
        if table_runs(session.manifest.runs) and not _names_anything(target):
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
        made = self._make_attributed(session.store, session.env, part, plan.executor)
        verified = self._verified(session, made, deployed, plan, change)
        if any(key_of("view", name) not in part for name in verified.fresh):
            return self._partial_executor(session, deployed, plan, verified)
        change = verified
        left = (r for key, r in target.items() if r.kind == "view" and key not in part)
        aside = {fold(r.name): r.name for r in left}
        return made, replace(change, aside={n: aside[n] for n in change.keep if n in aside})

    def _verified(
        self,
        session: WriterSession,
        made: Executor,
        deployed: Deployed,
        plan: Plan,
        change: ProgramChange,
    ) -> ProgramChange:
        """Return the change after checking the re-bound views against the new executor.

        A re-bound view is built afresh if the new executor would maintain it differently or cannot
        tell.
        """
        steps = [step.key for step in plan.steps if step.action is Action.REBIND]
        names = {key: fold(plan.wanted[key].name) for key in steps}
        if not names:
            return change
        old: Executor = session.state.executor
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

    def _make_attributed(self, store: Store, env: Env, target: Deployed, executor: str) -> Executor:
        """Make an executor; `BuildError` names the statement that it does not accept.

        `env` generates ids above those of all stored objects.
        """
        try:
            return self._make_executor(store, env, target, executor)
        except _NOT_TAKEN as error:
            named = [key_of(kind, error.about or "") for kind in _RELATIONS]
            culprit = next((key for key in named if key in target), None)
            if culprit is None:
                raise
            raise BuildError(culprit, _told(error)) from error

    def _make_executor(self, store: Store, env: Env, target: Deployed, executor: str) -> Executor:
        project = deployed_project(self._project, target, executor)
        return self._make(project, self._spark)(store, env)


_RELATIONS: tuple[Kind, ...] = ("table", "view")
_NOT_TAKEN = (InvalidError, Unsupported)
_NOT_READY = (BuildError, InvalidError, CorruptError, ReplayMismatchError, UserCodeError)
"""Errors of a shadow build after which the swap builds the views itself."""


def _same_relations(deployed: Deployed, target: Deployed) -> bool:
    """Whether only sources, sinks and protection change."""
    before = {key: r.checksum for key, r in deployed.items() if r.kind in _RELATIONS}
    return before == {key: r.checksum for key, r in target.items() if r.kind in _RELATIONS}


def _check_settings(deployed: Deployed, target: Deployed) -> None:
    """Refuse new settings for some views while others keep theirs: all must be the same."""
    views = [r for r in target.values() if r.kind == "view"]
    kept = [r for r in views if r.same(deployed.get(r.key))]
    for view in views:
        if kept and view.settings != kept[0].settings:
            names = ", ".join(r.name for r in kept)
            told = InvalidError(
                f"its Spark settings would differ from those of {names}, which keep theirs",
                hint="fix the resources that failed, and deploy again",
            )
            raise BuildError(view.key, told)


def _names_anything(target: Deployed) -> bool:
    """Whether a query names a relation by a string, which could be any relation."""
    return any(r.kind == "view" and "identifier" in r.text.lower() for r in target.values())


def _respelled(deployed: Deployed, target: Deployed) -> bool:
    """Whether the spelling of a table or view changes, which journal entries still have."""
    return any(
        r.name != target[key].name
        for key, r in deployed.items()
        if r.kind in _RELATIONS and key in target
    )


def _renamed(plan: Plan, deployed: Deployed) -> bool:
    """Whether columns are renamed, whose old names journal entries still have."""
    return any(called_before(deployed, plan.wanted).values())


def planned_stages(
    plan: Plan, deployed: Deployed, begun: Collection[str] = ()
) -> tuple[Stage, ...]:
    """Return the stages of deploying a plan to a pipeline that no process runs.

    `begun` are the sinks that hold output. A running pipeline builds its views before the swap
    (`build_shadow`), and the executor may find more views to build than the plan knows.
    """
    if not deployed or not plan.changes or plan.refusals:
        return ()
    same = _same_relations(deployed, plan.wanted)
    relations = Relations.KEPT if same else Relations.BUILT
    return swap_stages(program_change(plan, deployed), begun, relations)


def program_change(plan: Plan, deployed: Deployed) -> ProgramChange:
    """Translate a plan into the program change that the engine carries out."""
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
    """Convert rows: columns move, are cast to wider types, or get their default."""
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
    """Record a failed resource and those that need it, with the root cause."""
    ensure(error.key not in failed, f"{error.key} fails once")
    failed[error.key] = str(error)
    for key in dependants(wanted, {error.key}):
        failed.setdefault(key, f"it needs {display_name(error.key)}, which failed: {error.message}")


def _held_back(failed: dict[str, str], wanted: Deployed, made: Deployed) -> None:
    """Record resources that could not change because a failed one needs them as they are."""
    if not failed:
        return
    for key in {*wanted, *made}:
        same = key in wanted and wanted[key].same(made.get(key))
        if not same:
            failed.setdefault(key, "unchanged, because a resource that failed needs it as it is")


def _told(error: Exception) -> StepwellError:
    if isinstance(error, StepwellError):
        return error
    return InvalidError(f"the executor cannot compute it: {error}")
