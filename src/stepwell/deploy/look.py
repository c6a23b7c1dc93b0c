"""Looking at a pipeline without taking it: the state as of its last transaction, read only.

    quick   a simple query is answered from the runs of the latest manifest, without Spark
    look    the runs are loaded into an executor, and what the journal holds above them is replayed

Nothing is claimed and nothing written, so whoever has the pipeline goes on undisturbed. If its
writer flushes and collects meanwhile, an object may be gone; then a newer manifest is there, and
the look begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import TypeVar

from stepwell.deploy.pipeline import (
    Answer,
    MakeExecutor,
    answer,
    check_one_query,
    letters_quoted,
    make_executor,
)
from stepwell.deploy.program import check_program
from stepwell.deploy.project import Project
from stepwell.engine.ports import ERRORS, LETTER, LETTER_TYPES, Executor
from stepwell.engine.push_keys import PushKeys, table_runs
from stepwell.engine.replay import Replay
from stepwell.engine.sources import Sources
from stepwell.engine.transaction import load_state
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError
from stepwell.journal.entry import Kind
from stepwell.journal.identity import check_identity, read_identity
from stepwell.journal.log import JournalReader, Log
from stepwell.model import Bytes, Transaction
from stepwell.query.clock import at_time
from stepwell.query.described import read_description
from stepwell.query.settings import meaning
from stepwell.query.simple import NotSimple, SimpleQuery, parse_simple
from stepwell.query.source import Source, did_you_mean
from stepwell.query.statements import Table, fold
from stepwell.query.types import stored_type
from stepwell.spark.exact import Unknown
from stepwell.spark.snapshot import Shown, table_shown
from stepwell.spark.snapshot import answer as answer_simple
from stepwell.state.manifest import Manifest, Manifests, Run, Stored
from stepwell.state.runs import read_run
from stepwell.state.witness import check_witness

_TRIES = 5
_SOME_TIME = datetime(2000, 1, 1, tzinfo=timezone.utc)
T = TypeVar("T")


class SlowError(Exception):
    """Why Spark has to be started to answer a query."""


class Look:
    """A pipeline as of one transaction."""

    def __init__(self, project: Project, transaction: Transaction, executor: Executor) -> None:
        self._project = project
        self.transaction = transaction
        self.executor = executor

    def ask(self, sql: str) -> Answer:
        check_one_query(sql)
        return Answer(self.transaction, answer(self._project, self.executor, sql))


def look(project: Project, env: Env, *, executor: MakeExecutor | None = None) -> Look:
    """Read the state of a project's pipeline. `InvalidError` if there is none yet."""
    return _latest(
        project, env, lambda found: _read(project, env, found, executor or make_executor)
    )


def quick(project: Project, env: Env, sql: str) -> Answer:
    """The answer to a simple query, without Spark. Raises `SlowError` if Spark has to be asked.

    A relation is read only if its runs are all there is of it: transactions that were recorded
    after the last flush must not have changed it.
    """
    if project.sections.executor != "spark":
        raise SlowError("the pipeline is not Spark's")
    if meaning(project.sections.spark.conf):
        raise SlowError("the project sets what queries mean")
    try:
        query = parse_simple(letters_quoted(sql))
        return _latest(project, env, lambda found: _quick(project, env, found, query, sql))
    except (NotSimple, Unknown) as why:
        raise SlowError(str(why)) from why


def _quick(project: Project, env: Env, found: Stored, query: SimpleQuery, sql: str) -> Answer:
    log, found = _log(project, env, found)
    manifest, store = found.manifest, project.open_store(env)
    shown, tables = _shown(project, manifest, query, sql)
    transaction, touched = _unflushed(JournalReader(log, manifest.replay), manifest.transaction)
    if touched & tables:
        raise SlowError("transactions after the last flush have to be replayed")

    def read(run: Run) -> Bytes:
        return read_run(store, run, env)

    return Answer(transaction, answer_simple(query, shown, table_runs(manifest.runs), read))


def _shown(
    project: Project, manifest: Manifest, query: SimpleQuery, sql: str
) -> tuple[Shown, set[str]]:
    """What a query reads, and the tables it follows from, in lower case."""
    name = fold(query.relation.value)
    for table in project.tables.values():
        if name == fold(table.name):
            columns = [(c.name, stored_type(c.type)) for c in table.columns]
            return table_shown(table.name, columns), {name}
        if name == fold(table.name) + ERRORS:
            letters = list(zip(LETTER, LETTER_TYPES, strict=True))
            return table_shown(table.name + ERRORS, letters), {fold(table.name)}
    statements = {fold(statement.name): statement for statement in project.statements}
    if name not in statements:
        names = [s.name for s in project.statements]
        names += [table.name + ERRORS for table in project.tables.values()]
        raise Source("query", sql).error(
            query.relation.span.start if letters_quoted(sql) == sql else 0,
            f"there is no table or view {query.relation.value}",
            hint=did_you_mean(query.relation.value, names)
            or "there are: " + ", ".join(sorted(names)),
        )
    known = read_description(manifest.described, project.store).get(name)
    if known is None or known.output is None:
        raise NotSimple(f"the view {name}")
    if not table_runs(manifest.runs):
        raise NotSimple("a view over tables that were never filled")
    reads = project.reads_of(name)
    for other in {name, *reads} - {fold(table) for table in project.tables}:
        view = statements[other]
        if not isinstance(view, Table) and at_time(view.query, _SOME_TIME) != view.query:
            # Every transaction changes it, also one of other tables.
            reads = {fold(table) for table in project.tables}
    return Shown(known.columns, known.types, known.output, known.stored), reads


def _unflushed(reader: JournalReader, flushed: Transaction) -> tuple[Transaction, set[str]]:
    """The last transaction, and the tables that those after the last flush have changed."""
    transaction, touched = flushed, set[str]()
    begun: set[str] = set()
    while entries := reader.poll():
        for recorded in entries:
            draft = recorded.entry.draft
            begun |= {fold(item.table) for item in draft.inputs}
            if draft.closes or draft.kind is Kind.CLOSE:
                transaction, touched = draft.transaction, touched | begun
            if draft.closes or draft.kind is not Kind.STEP:
                begun = set()
    return transaction, touched


def _latest(project: Project, env: Env, read: Callable[[Stored], T]) -> T:
    """What is read of the latest manifest, again if that has changed meanwhile."""
    manifests = Manifests(project.open_store(env), env)
    tries = 0
    while True:
        found = manifests.latest()
        if found is None:
            raise no_pipeline(project)
        manifests.check_ready(found.manifest)
        try:
            return read(found)
        except CorruptError:
            newer = manifests.latest()
            tries += 1
            if newer is None or newer.id == found.id or tries >= _TRIES:
                raise


def no_pipeline(project: Project) -> InvalidError:
    return InvalidError(
        f"there is no pipeline in {project.store} yet", hint="stepwell run creates it"
    )


def _log(project: Project, env: Env, found: Stored) -> tuple[Log, Stored]:
    """The journal of a pipeline, and its latest manifest."""
    manifest, store = found.manifest, project.open_store(env)
    check_program(project, manifest.program)
    journal_store = project.open_journal_store(env) or store
    check_identity(
        journal_store,
        read_identity(journal_store),
        lineage=manifest.lineage,
        id=manifest.journal.id,
        closed=manifest.journal.closed,
    )
    log = Log(journal_store, manifest.lineage)
    latest = check_witness(Manifests(store, env), log, found)
    return (log, found) if latest.id <= found.id else _log(project, env, latest)


def _read(project: Project, env: Env, found: Stored, executor: MakeExecutor) -> Look:
    log, found = _log(project, env, found)
    manifest, store = found.manifest, project.open_store(env)
    made = executor(project, None)(store, env)
    state = load_state(made, manifest, PushKeys(store, env))
    reader = JournalReader(log, manifest.replay)
    entries = reader.poll()
    # Without entries no source is asked for anything, and none of their secrets is needed.
    sources = Sources(project.make_sources(env) if entries else [], tuple(made.tables()), env)
    try:
        replay = Replay(state, sources, rows_max=project.sections.settings().replay_rows_max)
        while entries:
            for recorded in entries:
                replay.feed(recorded)
            entries = reader.poll()
        # What a transaction that is still open took in does not count, so it is not applied.
        replay.finish()
    finally:
        for source in sources.all():
            source.close()
    return Look(project, state.transaction, made)
