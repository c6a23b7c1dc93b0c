"""A pipeline opened from its project: the result of `stepwell.open`, run by `stepwell run`.

The first opening creates the pipeline in the project's store; every later one takes it over, with
everything in it. Spark computes the views. Tests may choose the reference executor
(`stepwell.testing`), or pass another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from stepwell.connectors.python_rows import pushed_rows
from stepwell.deploy.last_error import forget_error, note_error
from stepwell.deploy.program import check_program, program_of
from stepwell.deploy.project import Project
from stepwell.engine.answer import Answer
from stepwell.engine.event_log import EventLog
from stepwell.engine.events import Event, Flushed, Listener, all_of
from stepwell.engine.memory import memory
from stepwell.engine.metrics import Metrics
from stepwell.engine.open import Seen
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Intake
from stepwell.engine.profile import Profile
from stepwell.engine.pushed import Receipt, Rows
from stepwell.engine.restore_request import RestorePoint
from stepwell.env import Env
from stepwell.errors import FencedError, InvalidError, RejectedError
from stepwell.execution.executor import Executor, ExecutorFactory, java_pid
from stepwell.lsm.dead_letter import ERRORS, BadRow
from stepwell.manifest.manifest import Manifests
from stepwell.plan.explain import Explained
from stepwell.plan.reasons import Unsupported
from stepwell.sql.statements import fold
from stepwell.text import Source, Tokens, did_you_mean

if TYPE_CHECKING:
    from stepwell.execution.spark.dataframe import DataFrame, SparkSession

MakeExecutor: TypeAlias = "Callable[[Project, SparkSession | None], ExecutorFactory]"
"""Takes a project and a Spark session or None, and returns the factory of its executor."""


class ProjectPipeline(Pipeline):
    """A pipeline open for writing: push rows, run the sources, query, checkpoint, restore.

    Use it in a `with`. It is thread-safe. Once it is fenced or closed, every call raises the
    reason.
    """

    def __init__(
        self,
        project: Project,
        env: Env,
        *,
        spark: SparkSession | None = None,
        executor: MakeExecutor | None = None,
        listener: Listener | None = None,
        metrics: Metrics | None = None,
        create: bool = True,
        base: RestorePoint | None = None,
        seen: Seen | None = None,
    ) -> None:
        self.project = project = project.patient()
        self.store = project.open_store(env)
        self._env = env
        self._listener = all_of(EventLog(project.name), self._hear, listener)
        self._succeeded = True
        """Whether the last run, or the one in progress, has succeeded so far as to flush."""
        self._metrics = metrics
        self._spark = spark
        self._make = executor or make_executor
        # Checked before the claim: a process that cannot open the pipeline must not fence its
        # writer.
        found = Manifests(self.store, env).latest()
        known = None if found is None else found.manifest.program
        kind = None if spark is None else "spark"
        check_program(project, known, kind)
        super().__init__(
            self.store,
            env,
            executor=self._make(project, spark),
            sources=project.make_sources(env),
            sinks=project.make_sinks(env),
            journal_store=project.open_journal_store(env),
            settings=project.settings(),
            listener=self._listener,
            metrics=metrics,
            create=create,
            program=known or program_of(project, kind),
            base=base,
            seen=seen,
        )

    def __enter__(self) -> ProjectPipeline:
        return self

    def close(self) -> None:
        """Flush and release the pipeline. Aborts an open explicit transaction.

        If another thread is in `run`, call `stop` first, or its next transaction raises.
        """
        with suppress(FencedError):
            super().close()

    def run(self, *, once: bool = False, max_transactions: int | None = None) -> int:
        """Ingest input from the sources; return the number of transactions.

        With `once`, until no source has more input; otherwise until `stop` is called. Ends between
        two transactions, and flushes. Other threads may push in the meantime. `stepwell status`
        shows the error that ends it, until a run succeeds.
        """
        if self._running:
            return super().run()  # Raises.
        self._succeeded = False
        try:
            transactions = super().run(once=once, max_transactions=max_transactions)
        except Exception as error:
            if not self._closed:
                note_error(self.store, self._env, error)
            raise
        self._succeed()
        return transactions

    def _hear(self, event: Event) -> None:
        if isinstance(event, Flushed) and self._running:
            self._succeed()

    def _succeed(self) -> None:
        if not self._succeeded:
            self._succeeded = True
            forget_error(self.store)

    def push(
        self,
        table: str,
        rows: Rows | None = None,
        *,
        delete: Rows | None = None,
        discard: Rows | None = None,
        bad: Sequence[BadRow] = (),
        key: str | None = None,
    ) -> Receipt:
        """Put rows into a table, as one transaction; return its number, with counts of rows.

        The rows are durable and visible when it returns. `rows` is a list of dictionaries, a
        dictionary of lists, or anything that Arrow reads. `discard` and `delete` are applied first
        and name rows by their keys: a delete that matches no row makes a dead letter, a discard
        does not. Rows that do not fit their table become dead letters (`<table>$errors`), and the
        others are applied; `RejectedError` if none is left. After any other error nothing was
        applied, except after `UnknownOutcomeError`: push again with the same `key`, and the push is
        applied once. `bad` are rows of a file that could not be read; they become dead letters.
        """
        receipt = super().push(table, rows, delete=delete, discard=discard, bad=bad, key=key)
        if receipt.rows and not receipt.taken:
            raise RejectedError(self.project.table(table).name, receipt.rows, int(receipt))
        return receipt

    def _intake(
        self,
        table: str,
        rows: Rows | None,
        delete: Rows | None,
        discard: Rows | None,
        bad: Sequence[BadRow],
        key: str | None = None,
    ) -> Intake:
        declared = self.project.table(table)
        given = pushed_rows(declared, rows, delete=delete, discard=discard)
        change, every = given.change, (*given.bad, *bad)
        goes = change.delete, change.discard
        return super()._intake(declared.name, change.put, *goes, every, key)

    def query(self, sql: str) -> Answer:
        """Answer one SELECT over tables and views, as of the last transaction.

        The answer is a copy. Later transactions do not change it.
        """
        check_one_query(sql)
        with self._reading("query"):
            state = self._session.state
            return Answer(state.transaction, answer(self.project, state.executor, sql))

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table, a view, or the dead letters `<table>$errors`, as Arrow."""
        return super().table(relation_named(self.project, name))

    def to_spark(self, name: str) -> DataFrame:
        """Return a table or view as a DataFrame of the Spark session that computes the views.

        Spark's executors hold a copy of the rows as of the last transaction. Later transactions do
        not change it.
        """
        from stepwell.execution.spark.dataframe import to_dataframe

        found = relation_named(self.project, name)
        with self._reading("to_spark"):
            return to_dataframe(self._spark, self._session.state.executor, found)

    def explain(self, view: str) -> Explained:
        """Explain how a materialized view is maintained, and what is stored for it."""
        name = self.project.view(view).name
        with self._reading("explain"):
            return explain(self._session.state.executor, name)

    def profile(self, transactions: int | None = None) -> Profile:
        """Return where the time of the last transactions went: by phase, by view and by sink.

        The last 100 transactions since the pipeline was opened are remembered; `transactions` asks
        for fewer. Never waits, and reads nothing: transactions are timed as they happen.
        """
        session = self._session
        used = memory(java_pid(session.state.executor))
        return Profile(session.profiles.last(transactions), used)


def make_executor(project: Project, spark: SparkSession | None = None) -> ExecutorFactory:
    """Return the factory of the project's executor: Spark, or the one that a test has chosen."""
    if project.sections.executor == "reference" and spark is None:
        from stepwell.execution.reference.executor import ReferenceExecutor

        return lambda store, env: ReferenceExecutor(project.sql, store, env)
    # Imported late: a process that does not use Spark should not pay for it.
    from stepwell.deploy.cache import cache_place, open_cache
    from stepwell.execution.limits import QueryLimits
    from stepwell.execution.spark.executor import spark_executor
    from stepwell.execution.spark.session import SessionSettings

    section = project.sections.spark
    settings = SessionSettings(
        master=section.master,
        name=f"stepwell {project.name}",
        conf=section.conf,
        driver_memory=section.driver_memory,
    )
    return spark_executor(
        project.sql,
        name=project.sql_name,
        declared=project.statements,
        settings=settings,
        spark=spark,
        cache=lambda env: open_cache(project, env),
        workers_cache=cache_place(project),
        queries=QueryLimits(bulk_rows=project.sections.transaction.bulk_rows),
    )


def answer(project: Project, executor: Executor, sql: str) -> pa.Table:
    """Run a query. A query that the executor does not support raises `InvalidError`."""
    try:
        return executor.query(letters_quoted(sql))
    except Unsupported as error:
        # Only the reference executor raises this; Spark accepts all of its own SQL.
        unknown = re.fullmatch(r"the relation (.+)", error.reason.detail)
        names = [statement.name for statement in project.statements]
        if unknown:
            hint = did_you_mean(unknown[1], names) or "there are: " + ", ".join(names)
            raise InvalidError(f"there is no table or view {unknown[1]}", hint=hint) from error
        raise InvalidError(
            f"the reference executor cannot answer this query: {error.reason.detail}"
        ) from error


def relation_named(project: Project, name: str) -> str:
    """Return the spelling of a table, a view or `<table>$errors`; `InvalidError` if unknown."""
    names = [statement.name for statement in project.statements]
    names += [table + ERRORS for table in project.tables]
    for known in names:
        if fold(known) == fold(name):
            return known
    hint = did_you_mean(name, names) or "there are: " + ", ".join(sorted(names))
    raise InvalidError(f"there is no table or view {name}", hint=hint)


def letters_quoted(sql: str) -> str:
    """Put `orders$errors` in backticks: an unquoted SQL name cannot contain `$`."""
    made, done = "", 0
    tokens = Source("query", sql).tokens()
    for name, sign, rest in zip(tokens, tokens[1:], tokens[2:], strict=False):
        adjoin = name.end == sign.start and sign.end == rest.start
        if adjoin and name.kind == "word" and sign.text + rest.text.lower() == ERRORS:
            made += f"{sql[done : name.start]}`{sql[name.start : rest.end]}`"
            done = rest.end
    return made + sql[done:]


def explain(executor: Executor, view: str) -> Explained:
    """Return an executor's explanation of a view, with current row counts."""
    explained = getattr(executor, "explain", None)
    if explained is None:
        raise InvalidError(
            f"{view}: the reference executor recomputes every view, so there is nothing to explain"
        )
    found = explained(view)
    if not isinstance(found, Explained):
        raise InvalidError(f"{view} cannot be explained by this executor")
    return found.counted()


def check_one_query(sql: str) -> None:
    """Reject anything but a single query: a pipeline is changed by pushing, not by SQL."""
    tokens = Tokens(Source("query", sql))
    if tokens.peek().kind == "end":
        raise tokens.wrong("this query is empty", hint="stepwell query 'SELECT * FROM ...'")
    first = tokens.peek().text.upper()
    if first not in ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "("):
        hint = (
            "only queries, DESCRIBE and SHOW TABLES or VIEWS are answered; add rows through a "
            "source or with stepwell push"
        )
        raise tokens.unexpected("expected SELECT", hint=hint)
    while tokens.peek().kind != "end":
        if tokens.skip(";") and tokens.peek().kind != "end":
            raise tokens.wrong("this is a second statement", hint="run one query at a time")
        if tokens.peek().kind != "end":
            tokens.take()
