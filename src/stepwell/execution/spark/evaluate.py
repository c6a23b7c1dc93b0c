"""Run plans of the algebra, as one Spark query each, over as few rows as possible.

A plan is first reduced by look-ups and joins in this process (`plan/semi_join`, `local/joins`). The
rest goes to Spark as SQL. For few rows, Spark is configured neither to compile nor to distribute
the query. Spark writes a result that may be large to files, and it never passes through this
process. A result estimated to be small is fetched only up to a limit; if it exceeds the limit, the
query runs again and Spark writes the result.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stepwell.errors import NotApplicable
from stepwell.execution.backend import (
    Backend,
    CannotRunError,
    Declined,
    Fallback,
    No,
    NotSupported,
    Support,
    Yes,
)
from stepwell.execution.limits import QueryLimits
from stepwell.execution.local.backend import LocalBackend
from stepwell.execution.local.expressions import ExpressionEvaluator
from stepwell.execution.local.lookup import LookUps
from stepwell.execution.local.row_backend import RowBackend
from stepwell.execution.spark.collect import to_arrow
from stepwell.execution.spark.constants import constants
from stepwell.execution.spark.failures import translated
from stepwell.execution.spark.frames import Frames, nothing, type_of
from stepwell.execution.spark.row_order import in_fixed_order
from stepwell.execution.spark.session import beside
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.index import Indexes
from stepwell.lsm.lookup import Elsewhere, SharedRows
from stepwell.lsm.part import Part
from stepwell.lsm.profiler import Phase, Profiler
from stepwell.lsm.relations import Relations
from stepwell.lsm.run_file import WEIGHT
from stepwell.plan import semi_join
from stepwell.plan.identity import by_identity
from stepwell.plan.join_order import Estimates
from stepwell.plan.maintain import STAGE, Maintenance
from stepwell.plan.nodes import Accumulate, Leaf, Names, Node, When, Window, relations, walk
from stepwell.plan.plan_cache import PlanCache
from stepwell.plan.program import Block, Program, Sums, may_depend_on_order
from stepwell.plan.render import Once, render

_LOGGER = logging.getLogger("stepwell.execution")
ADDED = f"{STAGE}0"
"""The change that a transaction adds to sums."""
WRITTEN_ROWS = 10_000_000
"""Row estimate for a result that was too large to fetch."""
_ROW_OF_TASK = "(monotonically_increasing_id() & 8589934591)"
"""The number of a row within its task; the higher bits are the task's number."""
_TOO_LARGE = "spark.driver.maxResultSize"
"""Named by Spark in the error when a result has too many bytes to fetch."""
_DECIMALS = (
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.legacy.literal.pickMinimumPrecision",
)
"""Settings that determine the precision of decimal results."""
TASK_ROWS = 3_000_000
"""Rows of a large relation per task; a task with more would have to sort them on disk."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    _PARTITIONS: "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    # All rows are in one place, so nothing needs to be broadcast.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The number of rows a plan reads."""

    scanned: int = 0
    """Rows that Spark reads from files."""
    held: int = 0
    """Rows that are in memory."""


MUCH = Reading(held=sys.maxsize)
"""For a plan whose input size is unknown."""


class Use(Enum):
    """Which backends compute changes. Pipelines use LOCAL; tests compare the others with it."""

    LOCAL = "local"
    """The local backend, and Spark for the rest."""
    LOOKUPS = "look-ups"
    """Spark, over rows that were looked up and joins that were folded."""
    SPARK = "spark"
    """Spark alone, over stored relations."""


NO_ROWS = -1
"""A limit for look-ups that nothing satisfies."""


class TooLargeError(NotApplicable):
    """The query is too large to be worth running on Spark."""


class Evaluator:
    def __init__(
        self,
        spark: SparkSession,
        relations: Relations,
        frames: Frames,
        indexes: Indexes,
        unique: Callable[[], Mapping[str, tuple[int, ...]]],
        use: Use = Use.LOCAL,
        limits: QueryLimits | None = None,
        profiler: Profiler | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._needed: dict[str, frozenset[int]] = {}
        """The columns that look-ups have needed, by relation."""
        self.spark = spark
        self.profiler = profiler or Profiler()
        self._relations = relations
        self._frames = frames
        self._indexes = indexes
        self._unique = unique
        # For columns that maintenance adds to the nodes of a view, whose names begin with _c.
        self.names = Names(prefix="_m")
        self._plans = PlanCache(self.names, unique)
        usual = all(spark.conf.get(key, "true") == "true" for key in _DECIMALS)
        self.limits = limits or QueryLimits()
        self.local = LocalBackend(
            ExpressionEvaluator(constants(spark), decimals=usual), self.limits
        )
        self._by_row = RowBackend(
            self.local.expressions, relations, indexes, self.limits, self.profiler
        )
        self._use = use
        self._support: Support | None = None
        """The decision for the block that is computed; None if it was not decided."""
        self.fallbacks: list[Fallback] = []
        """Why plans that the local backend supports were run by Spark."""
        self._own = {key: spark.conf.get(key, None) for key in _SMALL}
        self._set = dict(self._own)
        """The settings made last, so that they are not made again."""
        self._bounded = True
        self._in_order = False
        self.queries = 0
        self.rows_read = 0
        self.shared = self._share()
        """The rows that the current transaction has looked up."""

    def in_own_session(self) -> Evaluator:
        """An evaluator over the same relations, for another thread: with a session of its own."""
        self.usual()
        session = beside(self.spark)
        return Evaluator(
            session,
            self._relations,
            self._frames.in_session(session),
            self._indexes,
            self._unique,
            self._use,
            self.limits,
            elsewhere=self._elsewhere,
        )

    @property
    def jobs(self) -> int:
        """The number of jobs this Spark has started so far, for any caller.

        It is the scheduler's own count: Spark's public counts lag behind, as listeners do.
        """
        return int(self.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())

    def _share(self) -> SharedRows:
        return SharedRows(
            profiler=self.profiler,
            elsewhere=self._elsewhere,
            fetched_rows_max=self.limits.fetched_rows_max,
            columns=self._needed,
        )

    @property
    def asks_executors(self) -> bool:
        """Whether executors may have to look up rows."""
        return self._elsewhere is not None and self._use is not Use.SPARK

    def look_ahead(self, plans: Sequence[Node], deltas: Mapping[str, Part]) -> None:
        """Look up what these plans will need, as far as it is known, with few jobs.

        Each plan is reduced in a trial, which notes the look-ups that executors have to answer.
        Their answers, of one job, lead to the next look-ups.
        """
        there = {*deltas, *(relation.name for relation in self._relations)}
        plans = [plan for plan in plans if relations(plan) <= there]
        while plans:
            waiting = []
            with self.shared.noting():
                for plan in plans:
                    missed = self.shared.missed
                    semi_join.reduced(plan, self.lookups(deltas))
                    if self.shared.missed > missed:
                        waiting.append(plan)
            plans = waiting if self.shared.ask_noted() else []

    @property
    def uses_local(self) -> bool:
        return self._use is Use.LOCAL

    def maintenance(self, block: Block, deltas: Mapping[str, Part]) -> Maintenance:
        """The plans that maintain a block when these relations change."""
        changes = {name: delta.rows for name, delta in deltas.items()}
        return self._plans.maintenance(block, self._relations.rows, changes)

    def after(self, node: Node, deltas: Mapping[str, Part]) -> Node:
        """The rows of a node once these relations have changed."""
        maintenance = Maintenance(self.names, frozenset(deltas), self._estimates(deltas))
        return maintenance.at(node, When.NEW)

    def _estimates(self, deltas: Mapping[str, Part]) -> Estimates:
        return Estimates(
            self._relations.rows,
            {name: delta.rows for name, delta in deltas.items()},
            self._unique(),
        )

    def table(
        self, deltas: Mapping[str, Part], lookups: LookUps | None = None
    ) -> Callable[[str, When], str]:
        def table(relation: str, when: When) -> str:
            if lookups is not None and relation in lookups.found:
                found = lookups.found[relation]
                part = found.old if when is When.OLD else found.delta
                if part is None:
                    return nothing(found.types)
                return self._frames.delta(f"{relation}${when.value}", part)
            if when is When.OLD:
                return self._frames.old(self._relations[relation])
            delta = deltas.get(relation)
            if delta is None:
                return nothing(self._relations[relation].types)
            return self._frames.delta(relation, delta)

        return table

    def once(self, deltas: Mapping[str, Part], lookups: LookUps | None = None) -> Once:
        """Whether all rows of the tables that `table` names have weight one."""

        def once(relation: str, when: When) -> bool:
            part: Part | None
            if lookups is not None and relation in lookups.found:
                found = lookups.found[relation]
                part = found.old if when is When.OLD else found.delta
            elif when is When.OLD:
                return all(part.ones for part in self._relations[relation].parts)
            else:
                part = deltas.get(relation)
            return part is None or part.ones

        return once

    def part(
        self, relation: str, node: Node, deltas: Mapping[str, Part], most: int | None = None
    ) -> Part:
        """Run a query and store its result: columns c0, c1, ... and w.

        Spark writes a result that may have more rows than `most`.
        """
        known = self._relations[relation].types if relation in self._relations else None
        few = self.run_by_row(node, deltas, known)
        if few is not None:
            return few
        plan, lookups, reading = self.reduced(node, deltas)
        spark: Backend[LookUps] = SparkBackend(self, relation, deltas, reading, most)
        found = self.run_locally(plan, lookups, known)
        if found is None:
            return spark.run(plan, lookups, known)
        return found if known is None else self._relations.in_memory(relation, found.table)

    def added(self, node: Node, deltas: Mapping[str, Part]) -> Part:
        """The change of sums: the rows of `Accumulate`."""
        return self.part(ADDED, node, deltas, self.limits.collected_groups_max)

    def run_by_row(
        self, node: Node, deltas: Mapping[str, Part], types: tuple[str, ...] | None = None
    ) -> Part | None:
        """The change set of a plan, if it is one of few rows; None if columns are better."""
        return self._attempt_by_row(lambda rows: rows.change(node, deltas, types))

    def sums_by_row(self, block: Sums, summed: Node, deltas: Mapping[str, Part]) -> Part | None:
        """The change of a block's stored sums, if few change; None if columns are better."""
        if not isinstance(summed, Accumulate):
            return None
        return self._attempt_by_row(lambda rows: rows.sums(block, summed, deltas))

    def _attempt_by_row(self, run: Callable[[RowBackend], Part | None]) -> Part | None:
        if not self.uses_local or not isinstance(self._support, Yes):
            return None
        before = self._by_row.reader.rows_found
        try:
            with self.phase("expressions"):
                found = run(self._by_row)
        except CannotRunError:
            return None
        if found is not None:
            self.rows_read += self._by_row.reader.rows_found - before
        return found

    def run_locally(
        self, plan: Node, lookups: LookUps, types: tuple[str, ...] | None = None
    ) -> Part | None:
        """The change set of a reduced plan; None if Spark has to run it."""
        local: Backend[LookUps] = self.local
        return self._attempt(self._support, lambda: local.run(plan, lookups, types))

    def shown(self, moved: Part, program: Program, support: Support) -> Part | None:
        """The view's change set for a change of its relation; None if Spark has to compute it."""
        if moved.table is None:
            return None
        if self.uses_local and isinstance(support, Yes):
            with suppress(CannotRunError), self.phase("expressions"):
                few = self._by_row.show(moved, program.output, program.types)
                if few is not None:
                    return few
        return self._attempt(support, lambda: self.local.show(moved, program.output, program.types))

    def _attempt(self, support: Support | None, run: Callable[[], Part]) -> Part | None:
        """Follow a decision. Without one, the local backend is tried.

        A decision holds for any rows and for any order of joins, so a refused plan is a bug. It
        costs time, not correctness, so it is reported and does not stop the pipeline.
        """
        if isinstance(support, No) or not self.uses_local:
            return None
        try:
            with self.phase("expressions"):
                return run()
        except Declined as declined:
            self.fallbacks.append(declined.fallback)
        except NotSupported as error:
            if isinstance(support, Yes):
                _LOGGER.warning("Spark computes a plan that was decided to run locally: %s", error)
                self.fallbacks.append(Fallback.REFUSED)
        return None

    def lookups(self, deltas: Mapping[str, Part], most: int | None = None) -> LookUps:
        """Look-ups of at most `most` rows in the stored relations, for plans over these changes."""
        if self._use is Use.SPARK:
            most = NO_ROWS
        return LookUps(self._relations, self._indexes, deltas, most, self.shared)

    def result(
        self,
        relation: str,
        sql: str,
        rows: float,
        most: int | None = None,
        reading: Reading = MUCH,
    ) -> Part:
        """The result of a query; `rows` is an estimate of its number of rows."""
        most = most or self.limits.collected_rows_max
        if rows > most:
            return self.written(relation, sql, rows, reading)
        found = self._fetched(sql, most, reading)
        if found is None:
            return self.written(relation, sql, WRITTEN_ROWS, reading)
        frame, table = found
        table = table.rename_columns([*(f"c{i}" for i in range(table.num_columns - 1)), WEIGHT])
        if relation in self._relations:
            return self._relations.in_memory(relation, table)
        # A stage, whose types are not declared.
        types = tuple(type_of(f.dataType) for f in frame.schema.fields[:-1])
        return Part(types, table.num_rows, table.cast(arrow_schema(types)))

    def reduced(self, node: Node, deltas: Mapping[str, Part]) -> tuple[Node, LookUps, Reading]:
        """Reduce a plan to one that reads little; also return its look-ups and reading."""
        lookups = self.lookups(deltas)
        with self.phase("joins"):
            node = self.local.reduced(node, lookups)
        leaves = [leaf for leaf in walk(node) if isinstance(leaf, Leaf)]
        parts = [part for leaf in leaves for part in self._read(leaf, deltas, lookups)]
        scanned = sum(part.rows for part in parts if part.table is None)
        held = sum(part.rows for part in parts if part.table is not None)
        self.rows_read += lookups.rows_read + scanned
        self.profiler.rows_fetched += scanned
        return node, lookups, Reading(scanned, held)

    def _read(self, leaf: Leaf, deltas: Mapping[str, Part], lookups: LookUps) -> list[Part]:
        """The parts that a leaf reads."""
        if leaf.relation in lookups.found:
            found = lookups.found[leaf.relation]
            return [part for part in (found.old, found.delta) if part is not None]
        parts = [] if leaf.when is When.DELTA else list(self._relations[leaf.relation].parts)
        if leaf.when is not When.OLD and leaf.relation in deltas:
            parts.append(deltas[leaf.relation])
        return parts

    def is_small(self, reading: Reading) -> bool:
        """Whether Spark should neither compile nor distribute a query that reads this much."""
        return not reading.scanned and reading.held <= self.limits.small_rows_max

    def check_nodes(self, node: Node) -> None:
        """Check a plan before it is reduced. Raises `TooLargeError`."""
        if _node_count(node) > self.limits.nodes_max:
            raise TooLargeError

    def check_size(self, sql: str) -> None:
        if self._bounded and len(sql) > self.limits.sql_length_max:
            raise TooLargeError

    @contextmanager
    def computing(self, block: Block, support: Support | None = None) -> Iterator[None]:
        """Compute a block as decided, and independently of the order in which rows arrive."""
        before = self._in_order, self._support
        self._in_order, self._support = may_depend_on_order(block), support
        try:
            yield
        finally:
            self._in_order, self._support = before

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Count the time of this block as a phase of the view."""
        before = self.profiler.enter(phase)
        try:
            yield
        finally:
            self.profiler.enter(before)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Share look-ups within this block, and drop their rows at its end."""
        self.profiler.begin()
        self._by_row.begin()
        try:
            yield
        finally:
            self.shared = self._share()
            self._by_row.begin()

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Run plans of any size, for which nothing was decided, because there is no alternative."""
        before = self._bounded, self._support
        self._bounded, self._support = False, None
        try:
            yield
        finally:
            self._bounded, self._support = before

    def _frame(self, sql: str) -> DataFrame:
        frame = self.spark.sql(sql)
        return in_fixed_order(frame) if self._in_order else frame

    def rows(self, node: Node, deltas: Mapping[str, Part], lookups: LookUps) -> float:
        """Estimate of the number of rows a node returns."""
        estimates = self._estimates(deltas)
        old = {n: f.old.rows if f.old else 0 for n, f in lookups.found.items()}
        new = {n: f.delta.rows if f.delta else 0 for n, f in lookups.found.items()}
        estimates = Estimates(
            {**estimates.rows, **old}, {**estimates.deltas, **new}, estimates.unique
        )
        # One row inserted into a window can move all others in it.
        windows = [estimates.total(n) for n in walk(node) if isinstance(n, Window)]
        return max([estimates.of(node), *windows])

    def written(self, relation: str, sql: str, rows: float, reading: Reading) -> Part:
        self.queries += 1
        self._prepare(reading, written=True)
        with translated(), self.phase("spark"):
            frame = self._frame(sql)
            if relation in self._relations:
                return self._frames.as_run(self._relations[relation], frame, rows)
            if relation.startswith(STAGE):
                frame = frame.toDF(*(f"c{i}" for i in range(len(frame.columns) - 1)), WEIGHT)
            return self._frames.as_temporary_run(relation, frame, rows)

    def whole(self, sql: str) -> pa.Table:
        """A result in memory, however large: columns c0, c1, ... and w."""
        self.queries += 1
        self._prepare(MUCH)
        with translated(), self.phase("spark"):
            found = to_arrow(self.spark.sql(sql))
        return found.rename_columns([*(f"c{i}" for i in range(found.num_columns - 1)), WEIGHT])

    def execute(self, sql: str, most: int, reading: Reading) -> pa.Table | None:
        """A result in memory; None if it has more than `most` rows."""
        found = self._fetched(sql, most, reading)
        return None if found is None else found[1]

    def _fetched(self, sql: str, most: int, reading: Reading) -> tuple[DataFrame, pa.Table] | None:
        self.queries += 1
        self._prepare(reading)
        # Not LIMIT, for which Spark would bring all rows together in one task.
        capped = f"SELECT * FROM ({sql}) WHERE {_ROW_OF_TASK} <= {most}"
        with translated(), self.phase("spark"):
            frame = self._frame(capped)
            try:
                table = to_arrow(frame)
            except (PySparkException, Py4JJavaError) as error:
                if _TOO_LARGE in str(error):
                    return None
                raise
        return (frame, table) if table.num_rows <= most else None

    def _prepare(self, reading: Reading, *, written: bool = False) -> None:
        """Configure Spark: do not compile or distribute few rows; use more partitions for many."""
        small = self.is_small(reading) and not written
        settings: dict[str, str | None] = {**(_SMALL if small else self._own)}
        if not small:
            own = int(settings[_PARTITIONS] or 1)
            settings[_PARTITIONS] = str(max(own, math.ceil(reading.scanned / TASK_ROWS)))
        for key, value in settings.items():
            if self._set.get(key) != value:
                if value is None:
                    self.spark.conf.unset(key)
                else:
                    self.spark.conf.set(key, value)
        self._set = settings

    def usual(self) -> None:
        """Restore the session's own settings."""
        self._prepare(MUCH)


@by_identity
def _node_count(node: Node) -> int:
    return sum(1 for _ in walk(node))


@dataclass(frozen=True, slots=True)
class SparkBackend:
    """Implements `Backend`: runs a reduced plan as one Spark query."""

    evaluator: Evaluator
    relation: str
    """The stored relation or the stage that the result belongs to."""
    deltas: Mapping[str, Part]
    reading: Reading = MUCH
    most: int | None = None
    """Spark writes a result that may have more rows."""

    def run(self, plan: Node, inputs: LookUps, types: tuple[str, ...] | None = None) -> Part:
        """The change set of a plan. A stored relation has the types that it was declared with."""
        table = self.evaluator.table(self.deltas, inputs)
        once = self.evaluator.once(self.deltas, inputs)
        single = self.evaluator.is_small(self.reading)
        sql = render(plan, table, single=single, once=once).sql
        self.evaluator.check_size(sql)
        rows = self.evaluator.rows(plan, self.deltas, inputs)
        return self.evaluator.result(self.relation, sql, rows, self.most, self.reading)
