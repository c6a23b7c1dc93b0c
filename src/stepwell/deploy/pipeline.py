"""A pipeline opened from its project: what `stepwell.open` gives, and what `stepwell run` runs.

The first opening creates the pipeline in the project's store; every later one takes it over, with
everything in it. How views are computed is decided by the project's `executor`: Spark, or the
reference in plain Python; tests may give any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from stepwell.connectors.python_rows import pushed_rows
from stepwell.deploy.program import check_program, program_of
from stepwell.deploy.project import Project
from stepwell.engine.events import Listener
from stepwell.engine.open import Seen
from stepwell.engine.payload import Intake
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import ERRORS, BadRow, Executor, ExecutorFactory
from stepwell.engine.pushed import Receipt, Rows
from stepwell.engine.reference_executor import ReferenceExecutor
from stepwell.engine.target import Target
from stepwell.env import Env
from stepwell.errors import FencedError, InvalidError, RejectedError
from stepwell.model import Transaction
from stepwell.query.explain import Explained
from stepwell.query.reasons import Unsupported
from stepwell.query.source import Source, Tokens, did_you_mean
from stepwell.state.manifest import Manifests

SparkSession: TypeAlias = Any
"""A session of pyspark, which only the layer below may import."""
MakeExecutor = Callable[[Project, SparkSession | None], ExecutorFactory]
"""From a project, and a Spark session or None, to what makes its executor."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows, and the transaction as of which they are what was asked for."""

    transaction: Transaction
    rows: pa.Table


class ProjectPipeline(Pipeline):
    """A `Pipeline` that knows its project."""

    def __init__(
        self,
        project: Project,
        env: Env,
        *,
        spark: SparkSession | None = None,
        executor: MakeExecutor | None = None,
        listener: Listener | None = None,
        create: bool = True,
        base: Target | None = None,
        seen: Seen | None = None,
    ) -> None:
        self.project = project = project.patient()
        self.store = project.open_store(env)
        self._env = env
        self._listener = listener
        self._spark = spark
        self._make = executor or make_executor
        # Asked before the claim: who cannot have the pipeline must not fence whoever has it.
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
            listener=listener,
            create=create,
            program=known or program_of(project, kind),
            base=base,
            seen=seen,
        )

    def __enter__(self) -> ProjectPipeline:
        return self

    def close(self) -> None:
        """Flush, and let go. One that was fenced has nothing to leave."""
        with suppress(FencedError):
            super().close()

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
        """Put rows into a table, and delete some first; the number of the transaction.

        A row that is none of its table's goes to the dead letters and the others are taken in, as
        `stepwell push` does: `rejected` of what is returned says how many. `RejectedError` if no
        row is left; its dead letters are kept. Of anything else that is raised nothing was taken
        in, but after `UnknownOutcomeError` push once more with the same `key`.
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

    def query(self, sql: str) -> pa.Table:
        """The answer to one SELECT, as an Arrow table: `.to_pandas()`, `.to_pylist()`."""
        return self.ask(sql).rows

    def ask(self, sql: str) -> Answer:
        """The same, together with the transaction it is the answer of."""
        check_one_query(sql)
        with self._look("query"):
            state = self._core.state
            return Answer(state.transaction, answer(self.project, state.executor, sql))

    def explain(self, view: str) -> Explained:
        """How a materialized view is kept up to date, and what is stored for it."""
        name = self.project.view(view).name
        with self._look("explain"):
            return explain(self._core.state.executor, name)


def make_executor(project: Project, spark: SparkSession | None = None) -> ExecutorFactory:
    """What the project's `executor` names."""
    if project.sections.executor == "reference" and spark is None:
        return lambda store, env: ReferenceExecutor(project.sql, store, env)
    # Imported late: whoever has no use for Spark does not pay for it.
    from stepwell.spark.executor import spark_executor
    from stepwell.spark.session import SessionSettings

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
    )


def answer(project: Project, executor: Executor, sql: str) -> pa.Table:
    """What an executor answers. What it cannot read is told like any other mistake."""
    try:
        return executor.query(letters_quoted(sql))
    except Unsupported as error:
        # Only the reference raises this; Spark reads whatever Spark reads.
        unknown = re.fullmatch(r"the relation (.+)", error.reason.detail)
        names = [statement.name for statement in project.statements]
        if unknown:
            hint = did_you_mean(unknown[1], names) or "there are: " + ", ".join(names)
            raise InvalidError(f"there is no table or view {unknown[1]}", hint=hint) from error
        raise InvalidError(
            f"the reference executor cannot answer this query: {error.reason.detail}"
        ) from error


def letters_quoted(sql: str) -> str:
    """The query with `orders$errors` in backticks: without them SQL has no `$` in a name."""
    made, done = "", 0
    tokens = Source("query", sql).tokens()
    for name, sign, rest in zip(tokens, tokens[1:], tokens[2:], strict=False):
        adjoin = name.end == sign.start and sign.end == rest.start
        if adjoin and name.kind == "word" and sign.text + rest.text.lower() == ERRORS:
            made += f"{sql[done : name.start]}`{sql[name.start : rest.end]}`"
            done = rest.end
    return made + sql[done:]


def explain(executor: Executor, view: str) -> Explained:
    """What an executor says about a view."""
    explained = getattr(executor, "explain", None)
    if explained is None:
        raise InvalidError(
            f"{view}: the reference executor computes every view anew, there is nothing to explain",
            hint="take executor: reference out of stepwell.yml",
        )
    found = explained(view)
    if not isinstance(found, Explained):
        raise InvalidError(f"{view} cannot be explained by this executor")
    return found


def check_one_query(sql: str) -> None:
    """Complain about anything but one query: a pipeline is changed by pushing, not by SQL."""
    tokens = Tokens(Source("query", sql))
    if tokens.peek().kind == "end":
        raise tokens.wrong("this query is empty", hint="stepwell query 'SELECT * FROM ...'")
    first = tokens.peek().text.upper()
    if first not in ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "("):
        hint = (
            "only queries, DESCRIBE and SHOW TABLES or VIEWS are answered; rows come in by sources "
            "and by stepwell push"
        )
        raise tokens.unexpected("expected SELECT", hint=hint)
    while tokens.peek().kind != "end":
        if tokens.skip(";") and tokens.peek().kind != "end":
            raise tokens.wrong("this is a second statement", hint="ask one query at a time")
        if tokens.peek().kind != "end":
            tokens.take()
