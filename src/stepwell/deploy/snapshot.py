"""Snapshots: read a pipeline as of one transaction without claiming it.

    from runs     a simple query is answered from the runs of the manifest, without Spark
    by executor   the runs are loaded, and the journal is replayed up to the snapshot's transaction

A snapshot claims nothing and writes nothing, so it does not disturb the writer. It does not pin its
files either: once the writer has flushed and collected garbage, a file may be gone. Then there is a
newer manifest, and the snapshot has expired.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from stepwell.deploy.pipeline import (
    MakeExecutor,
    answer,
    check_one_query,
    letters_quoted,
    make_executor,
    relation_named,
)
from stepwell.deploy.program import check_program
from stepwell.deploy.project import Project
from stepwell.engine.answer import Answer
from stepwell.engine.events import Events, Listener, OpeningAt
from stepwell.engine.outages import Outages
from stepwell.engine.progress import Work
from stepwell.engine.push_keys import PushKeys, table_runs
from stepwell.engine.replay import Replay
from stepwell.engine.sources import Sources
from stepwell.engine.transaction import load_state
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError, NotApplicable, SnapshotExpiredError
from stepwell.execution.backend import CannotRunError
from stepwell.execution.executor import Executor, report_to
from stepwell.execution.local.output import Shown, table_shown
from stepwell.execution.local.snapshot import answer as answer_simple
from stepwell.journal.entry import Kind
from stepwell.journal.identity import check_identity, read_identity
from stepwell.journal.log import JournalReader, Log
from stepwell.lsm.dead_letter import ERRORS, LETTER, LETTER_TYPES
from stepwell.manifest.high_water_mark import check_high_water_mark
from stepwell.manifest.manifest import Manifest, Manifests, Run, Stored
from stepwell.manifest.run_object import read_run
from stepwell.model import Bytes, Transaction
from stepwell.plan.described import read_description
from stepwell.plan.types import stored_type
from stepwell.sql.clock import at_time
from stepwell.sql.settings import meaning
from stepwell.sql.simple import NotSimple, SimpleQuery, parse_simple
from stepwell.sql.statements import Table, fold
from stepwell.text import Source, did_you_mean, quote_name

if TYPE_CHECKING:
    from stepwell.execution.spark.dataframe import DataFrame, SparkSession

_TRIES = 5
_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)
T = TypeVar("T")
Starting = Callable[[str], None]
"""Called with the reason before Spark is started."""


class SparkNeededError(NotApplicable):
    """A query cannot be answered from the runs alone; the message says why."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The state that a snapshot reads."""

    stored: Stored
    log: Log
    transaction: Transaction
    changed: frozenset[str]
    """Tables that transactions above the manifest have changed, in lower case."""

    @property
    def manifest(self) -> Manifest:
        return self.stored.manifest


class Snapshot:
    """The state of a pipeline as of one transaction, read without fencing its writer.

    Every answer is as of `transaction`, whatever the writer does meanwhile; read again for a newer
    state. Raises `SnapshotExpiredError` if the writer has collected a file that the snapshot needs.
    Not thread-safe.
    """

    def __init__(
        self,
        project: Project,
        env: Env,
        pinned: Pinned,
        *,
        executor: MakeExecutor,
        spark: SparkSession | None = None,
        starting: Starting = lambda why: None,
        events: Events | None = None,
    ) -> None:
        self._project = project
        self._env = env
        self._pinned = pinned
        self._make = executor
        self._spark = spark
        self._starting = starting
        self._events = events or Events()
        self._loaded: Executor | None = None

    @property
    def transaction(self) -> Transaction:
        """The number of the last transaction that the snapshot includes."""
        return self._pinned.transaction

    def query(self, sql: str) -> Answer:
        """Answer one SELECT over tables and views.

        A SELECT over one table or view with filters, an order, a limit or counts is answered
        without Spark. Any other query starts Spark.
        """
        check_one_query(sql)
        found = self._runs_or_executor(sql)
        if isinstance(found, Answer):
            return found
        rows = self._unexpired(lambda: answer(self._project, found, sql))
        return Answer(self.transaction, rows)

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table, a view, or the dead letters `<table>$errors`, as Arrow."""
        relation = relation_named(self._project, name)
        found = self._runs_or_executor(f"SELECT * FROM {quote_name(relation)}")
        if isinstance(found, Answer):
            return found.rows
        return self._unexpired(lambda: found.read(relation))

    def to_spark(self, spark: SparkSession, name: str) -> DataFrame:
        """Return a table or view as a DataFrame of your Spark session.

        Spark's executors hold a copy of the rows, so the frame outlives the snapshot.
        """
        from stepwell.execution.spark.dataframe import to_dataframe

        found = relation_named(self._project, name)
        executor = self._executor("a DataFrame was requested", spark)
        return self._unexpired(lambda: to_dataframe(spark, executor, found))

    def close(self) -> None:
        """Release the loaded data. Nothing was written, so nothing else has to be cleaned up."""
        self._loaded = None

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _runs_or_executor(self, sql: str) -> Answer | Executor:
        """Return the answer from the runs alone, or the executor that can answer."""
        if self._loaded is not None:
            return self._loaded
        try:
            return self._query_runs(sql)
        except SparkNeededError as why:
            return self._load(str(why))

    def _query_runs(self, sql: str) -> Answer:
        """Answer a simple query without Spark, or raise `SparkNeededError`.

        A relation is read only if its runs are complete: no transaction after the last flush may
        have changed it.
        """
        if self._project.sections.executor != "spark":
            raise SparkNeededError("the pipeline does not use Spark")
        if meaning(self._project.sections.spark.conf):
            raise SparkNeededError("the project has settings that change queries")
        try:
            query = parse_simple(letters_quoted(sql))
            return self._unexpired(lambda: self._answer_simple(query, sql))
        except (NotSimple, CannotRunError) as why:
            raise SparkNeededError(str(why)) from why

    def _answer_simple(self, query: SimpleQuery, sql: str) -> Answer:
        manifest, store = self._pinned.manifest, self._project.open_store(self._env)
        name = _known(self._project, query, sql)
        shown, tables = shown_relation(self._project, manifest, name)
        if self._pinned.changed & tables:
            raise SparkNeededError("transactions after the last flush have to be replayed")

        def read(run: Run) -> Bytes:
            return read_run(store, run, self._env)

        rows = answer_simple(query, shown, table_runs(manifest.runs), read)
        return Answer(self.transaction, rows)

    def _executor(self, why: str, spark: SparkSession | None = None) -> Executor:
        return self._loaded or self._load(why, spark)

    def _load(self, why: str, spark: SparkSession | None = None) -> Executor:
        """Load the runs into an executor, and replay the journal above them."""
        if self._project.sections.executor == "spark":
            self._starting(why)
            spark = spark or self._spark
        else:
            spark = None  # Only the reference executor reads its own runs.
        self._loaded = self._unexpired(lambda: self._replayed(spark))
        return self._loaded

    def _replayed(self, spark: SparkSession | None) -> Executor:
        project, env, pinned = self._project, self._env, self._pinned
        store = project.open_store(env)
        Outages((store,), self._events)
        made = self._make(project, spark)(store, env)
        report_to(made, Work(self._events, env).report)
        self._events.emit(OpeningAt("loading", 40))
        state = load_state(made, pinned.manifest, PushKeys(store, env))
        reader = JournalReader(pinned.log, pinned.manifest.replay)
        # With no transactions to replay, neither sources nor their secrets are needed.
        replays = pinned.transaction > pinned.manifest.transaction
        sources = Sources(project.make_sources(env) if replays else [], tuple(made.tables()), env)
        try:
            replay = Replay(state, sources, rows_max=project.sections.settings().replay_rows_max)
            while replays and (entries := reader.poll()):
                for recorded in entries:
                    if recorded.entry.draft.transaction <= pinned.transaction:
                        self._tell_replayed(recorded.entry.draft.transaction)
                        replay.feed(recorded)
            replay.finish()
        finally:
            for source in sources.all():
                source.close()
        return made

    def _tell_replayed(self, transaction: Transaction) -> None:
        """Report that the transactions before this one are replayed."""
        first = self._pinned.manifest.transaction
        done, total = max(0, transaction - first - 1), self._pinned.transaction - first
        percent = 50 + 45 * done // total
        self._events.emit(OpeningAt("replaying", percent, done, total, "transaction"))

    def _unexpired(self, read: Callable[[], T]) -> T:
        """Call `read`; tell a garbage-collected file from a corrupt one."""
        try:
            return read()
        except CorruptError as error:
            project, pinned = self._project, self._pinned
            newer = Manifests(project.open_store(self._env), self._env).latest()
            if newer is None or newer.id == pinned.stored.id:
                raise
            raise SnapshotExpiredError(
                f"the snapshot of {project.store} as of transaction {pinned.transaction} has "
                f"expired: {error.message}",
                hint="read again: stepwell.read gives the state as it is now",
                not_applied=True,
            ) from error


def take_snapshot(
    project: Project,
    env: Env,
    *,
    executor: MakeExecutor | None = None,
    spark: SparkSession | None = None,
    starting: Starting = lambda why: None,
    listener: Listener | None = None,
) -> Snapshot:
    """Take a snapshot of a project's pipeline. `InvalidError` if there is none yet.

    `listener` receives progress, and outages of the stores.
    """
    make, events = executor or make_executor, Events(listener)
    pinned = pin_latest(project, env, events)
    return Snapshot(
        project, env, pinned, executor=make, spark=spark, starting=starting, events=events
    )


def query_latest(
    project: Project,
    env: Env,
    sql: str,
    starting: Starting,
    listener: Listener | None = None,
) -> tuple[Answer, Snapshot]:
    """Answer a query as of now, and return the snapshot; retry with a new one if it expires."""
    tries = 1
    while True:
        snapshot = take_snapshot(project, env, starting=starting, listener=listener)
        try:
            return snapshot.query(sql), snapshot
        except SnapshotExpiredError:
            tries += 1
            if tries > _TRIES:
                raise


def no_pipeline(project: Project, env: Env) -> InvalidError:
    """Explain that there is no pipeline; a store that was moved away looks the same."""
    journal_store = project.open_journal_store(env)
    identity = None if journal_store is None else read_identity(journal_store)
    if journal_store is None or identity is None:
        return InvalidError(
            f"no pipeline at {project.store}",
            hint="stepwell run creates one. If there was one: is it mounted, or was it moved?",
        )
    return InvalidError(
        f"no pipeline at {project.store}, though {journal_store.uri} holds the journal of one "
        f"({identity.lineage})",
        hint="the store was moved, or is not mounted: bring it back, or give its address",
    )


def pin_latest(project: Project, env: Env, events: Events) -> Pinned:
    """Choose the state to read: the latest manifest and the last transaction above it."""
    store = project.open_store(env)
    Outages((store,), events)
    manifests = Manifests(store, env)
    tries = 0
    while True:
        found = manifests.latest()
        if found is None:
            raise no_pipeline(project, env)
        manifests.check_ready(found.manifest)
        try:
            log, found = _log(project, env, found)
            Outages((log.store,), events)
            reader = JournalReader(log, found.manifest.replay)
            transaction, changed = _unflushed(reader, found.manifest.transaction)
            return Pinned(found, log, transaction, frozenset(changed))
        except CorruptError:
            newer = manifests.latest()
            tries += 1
            if newer is None or newer.id == found.id or tries >= _TRIES:
                raise


def _known(project: Project, query: SimpleQuery, sql: str) -> str:
    """Return the folded name of the relation that a query reads; an error of the query if none."""
    name = fold(query.relation.value)
    names = [s.name for s in project.statements]
    names += [table.name + ERRORS for table in project.tables.values()]
    if name in map(fold, names):
        return name
    raise Source("query", sql).error(
        query.relation.span.start if letters_quoted(sql) == sql else 0,
        f"there is no table or view {query.relation.value}",
        hint=did_you_mean(query.relation.value, names) or "there are: " + ", ".join(sorted(names)),
    )


def shown_relation(project: Project, manifest: Manifest, name: str) -> tuple[Shown, set[str]]:
    """Return a relation of the project by its folded name, and its base tables in lower case.

    Raises `NotSimple` if it takes Spark to compute the relation from stored rows.
    """
    for table in project.tables.values():
        if name == fold(table.name):
            columns = [(c.name, stored_type(c.type)) for c in table.columns]
            return table_shown(table.name, columns), {name}
        if name == fold(table.name) + ERRORS:
            letters = list(zip(LETTER, LETTER_TYPES, strict=True))
            return table_shown(table.name + ERRORS, letters), {fold(table.name)}
    statements = {fold(statement.name): statement for statement in project.statements}
    known = read_description(manifest.described, project.store).views.get(name)
    if known is None or known.output is None:
        raise NotSimple(f"the view {name}")
    if not table_runs(manifest.runs):
        raise NotSimple("a view over tables that were never filled")
    reads = project.reads_of(name)
    for other in {name, *reads} - {fold(table) for table in project.tables}:
        view = statements[other]
        if not isinstance(view, Table) and at_time(view.query, _SOME_TIME) != view.query:
            # Every transaction changes the view, also one that changes other tables.
            reads = {fold(table) for table in project.tables}
    return Shown(known.columns, known.types, known.output, known.stored), reads


def _unflushed(reader: JournalReader, flushed: Transaction) -> tuple[Transaction, set[str]]:
    """Return the last transaction, and the tables changed since the last flush."""
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


def _log(project: Project, env: Env, found: Stored) -> tuple[Log, Stored]:
    """Return the journal of a pipeline, and its latest manifest."""
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
    latest = check_high_water_mark(Manifests(store, env), log, found)
    return (log, found) if latest.id <= found.id else _log(project, env, latest)
