"""The engine's executor on Spark: views, and their runs in the pipeline's store.

    execute, apply  `Views.execute` and `Views.add`
    flush, load     `lsm/storage`

Spark's workers read large runs from the store if they are not on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stepwell.env import Env
from stepwell.execution.executor import Executed, ExecutorFactory, Report, Starting, not_reported
from stepwell.execution.limits import QueryLimits
from stepwell.execution.local.support import VERSION
from stepwell.execution.spark.bulk import BulkInput
from stepwell.execution.spark.evaluate import Use
from stepwell.execution.spark.session import (
    SessionSettings,
    has_ended,
    java_process,
    on_this_machine,
    open_session,
)
from stepwell.execution.spark.shared import SharedRuns
from stepwell.execution.spark.views import MakeRuns, Views
from stepwell.lsm.cache import Cache, CachePlace, Usage
from stepwell.lsm.change import Change, Rejected
from stepwell.lsm.dead_letter import ERRORS, Letters
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.relations import CompactionTask
from stepwell.lsm.storage import RelationStorage
from stepwell.lsm.table_diff import Pieces
from stepwell.manifest.manifest import Run
from stepwell.plan.described import DescribedView, describe, read_description, readable
from stepwell.plan.explain import Explained
from stepwell.plan.nodes import relations
from stepwell.plan.program import Program
from stepwell.sql.lineage import Bound, Columns
from stepwell.sql.statements import Statement
from stepwell.store.base import Store


def spark_executor(
    sql: str,
    *,
    name: str = "pipeline.sql",
    declared: Sequence[Statement] | None = None,
    settings: SessionSettings | None = None,
    spark: SparkSession | None = None,
    cache: Callable[[Env], Cache] | None = None,
    workers_cache: CachePlace | None = None,
    use: Use = Use.LOCAL,
    limits: MemoryLimits | None = None,
    queries: QueryLimits | None = None,
    shared: bool | None = None,
) -> ExecutorFactory:
    """Creates executors for these tables and views, in the given Spark or one of our own.

    `declared` are the same statements already parsed, each from its own file, where messages point.
    Without a `cache`, data derived from runs is deleted with the executor. `shared`: workers read
    and write runs in the pipeline's store, and look rows up in them, through the cache of their
    machine at `workers_cache`; by default if they are on other machines.
    """

    def factory(store: Store, env: Env) -> SparkExecutor:
        session = spark or open_session(settings or SessionSettings())
        elsewhere = not on_this_machine(session) if shared is None else shared
        views = Views.open(
            session,
            sql,
            name=name,
            declared=declared,
            env=env,
            settings=settings,
            runs=_shared(store, env, limits, workers_cache) if elsewhere else None,
            cache=None if cache is None else cache(env),
            use=use,
            limits=limits,
            queries=queries,
        )
        return SparkExecutor(views, store, env)

    return factory


def _shared(
    store: Store, env: Env, limits: MemoryLimits | None, cache: CachePlace | None
) -> MakeRuns:
    """Runs that workers on other machines read and write in the pipeline's own store."""
    return lambda spark, folder: SharedRuns(spark, store, env, folder, limits, cache)


class SparkExecutor:
    """Implements `Executor`. Not safe to use from several threads."""

    def __init__(self, views: Views, store: Store, env: Env) -> None:
        self._views = views
        self._storage = RelationStorage(views.stored, views.runs, store, env, background=True)
        self._java = java_process()
        self._description: str | None = None
        self._report: Report = not_reported

    def lost(self) -> str | None:
        """Why the executor is no longer usable: its Java has ended."""
        return has_ended(self._java)

    @property
    def java_pid(self) -> int | None:
        """The Java process of Spark, if this process has started it."""
        return None if self._java is None else self._java.pid

    def cache_usage(self) -> Usage:
        """The cache's fill level and hit counts."""
        return self._views.cache.usage()

    def tables(self) -> Mapping[str, tuple[str, ...]]:
        return self._views.tables()

    @property
    def bulk(self) -> BulkInput:
        """Stages bulk input."""
        return self._views.bulk

    def explain(self, view: str) -> Explained:
        return self._views.explain(view)

    def report_to(self, report: Report) -> None:
        """Report progress to this function from now on."""
        self._report = self._views.report = report

    # Computing

    def execute(
        self,
        changes: Mapping[str, Change],
        time: datetime,
        letters: Letters | None = None,
    ) -> Executed:
        return self._views.execute(changes, time=time, letters=letters)

    def apply(self, executed: Executed) -> None:
        self._storage.end_flush()
        self._views.add(executed)

    # Storing

    def unflushed_bytes(self) -> int:
        return self._storage.unflushed_bytes()

    def background_task(self) -> CompactionTask | None:
        return self._storage.background_task()

    def id_floor(self) -> str | None:
        return self._storage.id_floor()

    def compact(self, *, own: bool = False) -> None:
        self._storage.compact(own=own, report=self._report)

    def flush(self) -> tuple[Run, ...]:
        return self._storage.flush()

    def on_flushed(self, runs: Sequence[Run]) -> None:
        self._storage.on_flushed()

    def load(self, runs: Sequence[Run], described: str | None = None) -> None:
        description = read_description(described, "the manifest")
        self._views.use_decisions(description.decided(VERSION))
        self._description = None
        self._storage.load(runs, self._report)

    def described(self) -> str:
        if self._description is None:
            self._description = describe(map(self._described, self._views.programs), VERSION)
        return self._description

    def _described(self, program: Program) -> DescribedView:
        reads = relations(program.output)
        plain = readable(program.output)
        return DescribedView(
            program.view,
            program.columns,
            program.types,
            program.output if plain else None,
            self._views.stored[min(reads)].types if plain else (),
            self._views.explain(program.view),
        )

    def relations(self) -> Mapping[str, str]:
        return self._views.owners()

    def build(self, views: Sequence[str], starting: Starting = lambda view: None) -> None:
        self._views.build(views, starting)

    def fill(self, table: str, rows: pa.Table) -> tuple[Rejected, ...]:
        return self._views.fill(table, rows)

    def bound(self, view: str, tables: Mapping[str, Columns]) -> Bound | None:
        return self._views.bound(view, tables)

    # Reading

    def read(self, relation: str) -> pa.Table:
        if relation.endswith(ERRORS):
            return self._views.letters(relation.removesuffix(ERRORS))
        return self._views.read(relation)

    def frame(self, relation: str) -> DataFrame:
        """Like `read`, as a DataFrame of this executor's session that reads its current state."""
        return self._views.frame(relation)

    def pieces(self, relation: str, rows_max: int) -> Pieces:
        return self._views.pieces(relation, rows_max)

    def query(self, sql: str) -> pa.Table:
        return self._views.query(sql)
