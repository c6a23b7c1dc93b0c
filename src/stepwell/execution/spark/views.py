"""Incrementally maintained views on Spark: holds relations and applies change sets.

    views = Views.open(spark, "CREATE TABLE t (...); CREATE MATERIALIZED VIEW v AS SELECT ...")
    outcome = views.apply({"t": Change(put=rows)})

One call of `apply` is one transaction: all changes become visible together, in tables and views. If
it raises, nothing has changed: relations take their changes only at the end.
"""

from __future__ import annotations

import math
import re
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from stepwell.env import Env, SystemEnv
from stepwell.errors import InvalidError
from stepwell.execution.backend import Fallback
from stepwell.execution.executor import (
    Executed,
    PendingParts,
    Report,
    Starting,
    not_reported,
)
from stepwell.execution.limits import QueryLimits
from stepwell.execution.local.support import Decisions
from stepwell.execution.local.table_changes import normalise
from stepwell.execution.spark.blocks import Blocks, Recompute
from stepwell.execution.spark.building import Builder, tasks_of
from stepwell.execution.spark.bulk import BulkInput
from stepwell.execution.spark.collect import to_arrow
from stepwell.execution.spark.compiler import Compiler
from stepwell.execution.spark.evaluate import Evaluator, Use
from stepwell.execution.spark.executor_search import search_of
from stepwell.execution.spark.existing_rows import ExistingRows
from stepwell.execution.spark.failures import place_in, translated, why_not_analysed
from stepwell.execution.spark.frames import Frames
from stepwell.execution.spark.read_only import RefusedError, read_only
from stepwell.execution.spark.reading import in_pieces, rows_at_most
from stepwell.execution.spark.row_order import OrderDependentError, in_fixed_order
from stepwell.execution.spark.runs import LocalRuns, Runs
from stepwell.execution.spark.session import SessionSettings, adopt
from stepwell.execution.spark.temp_views import TempViews, quoted
from stepwell.lsm.arrow_types import empty_change
from stepwell.lsm.cache import Cache
from stepwell.lsm.change import Change, Rejected
from stepwell.lsm.dead_letter import ERRORS, LETTER, LETTER_TYPES, Letter, Letters, letters_of
from stepwell.lsm.index import Indexes
from stepwell.lsm.large_change import AnyChange
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.profiler import Profiler, ViewProfile
from stepwell.lsm.relations import Relations
from stepwell.lsm.run_file import WEIGHT
from stepwell.lsm.table_diff import Pieces
from stepwell.plan.column_names import ColumnNames
from stepwell.plan.cost import Costs
from stepwell.plan.explain import Decided, Explained
from stepwell.plan.nodes import Leaf, When, relations
from stepwell.plan.program import Full, Groups, Program, Sums
from stepwell.plan.reasons import Unsupported, about
from stepwell.plan.types import stored_type, why_not_kept
from stepwell.sql.catalog import Catalog, catalog_of
from stepwell.sql.clock import at_time
from stepwell.sql.lineage import Bound, Columns, bound, table_lineage
from stepwell.sql.parse import forms_of, read
from stepwell.sql.statements import (
    MaterializedView,
    Policy,
    Statement,
    Table,
    View,
    parse_statements,
)
from stepwell.text import Source

__all__ = ["Change", "Executed", "Views"]

_FRESH = "`$stepwell$fresh`"
MakeRuns = Callable[[SparkSession, Path], Runs]
"""Creates the run storage for a session, with a folder of this process."""


class Views:
    """Tables and views of one pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        env: Env | None = None,
        folder: Path | None = None,
        settings: SessionSettings | None = None,
        runs: MakeRuns | None = None,
        cache: Cache | None = None,
        use: Use = Use.LOCAL,
        limits: MemoryLimits | None = None,
        queries: QueryLimits | None = None,
    ) -> None:
        self._env = env or SystemEnv()
        self._spark = adopt(spark, settings)
        own = tempfile.TemporaryDirectory(prefix="stepwell-views-")
        weakref.finalize(self, own.cleanup)
        make = runs or (lambda spark, folder: LocalRuns(spark, folder, self._env))
        self.runs = make(self._spark, folder or Path(own.name) / "runs")
        self._frames = Frames(self._spark, self.runs, limits)
        self.cache = cache or Cache(Path(own.name) / "cache", self._env)
        self._indexes = Indexes(self.cache)
        self._relations = Relations(self.runs, self._frames.compacted, self._indexes, limits)
        self._use = use
        stored = self._relations, self._frames, self._indexes
        self._evaluator = Evaluator(
            self._spark,
            *stored,
            self._unique,
            use,
            queries,
            Profiler(self._env.uptime),
            search_of(self._spark, self.runs),
        )
        self._columns = ColumnNames()
        self._existing = ExistingRows(self._relations, self._frames, self._evaluator)
        self._decisions = Decisions(
            self._evaluator.local,
            lambda name: self._relations[name].types,
            self._unique,
            self._columns,
        )
        self._blocks = Blocks(
            self._evaluator,
            self._relations,
            self._frames,
            self._decisions,
            self._text,
            self._behind,
        )
        self._compiler = Compiler(self._spark, self._relations)
        self._builder = Builder(
            self._relations,
            self._evaluator,
            lambda block: self._text(block, {}),
        )
        self._temp_views = TempViews(self._spark, self._relations, self._frames, self._evaluator)
        self._tables = self._temp_views.tables
        self._defined = self._temp_views.defined
        self._order = self._temp_views.views
        self.bulk = BulkInput(
            self._spark, self._relations, self._frames, self._evaluator, self._tables
        )
        self._trees: dict[str, exp.Query] = {}
        """Parsed queries of views that are not stored, if Spark reads them as we do."""
        self._programs: dict[str, Program] = {}
        self._views: dict[str, MaterializedView] = {}
        self._time = self._env.now()
        self.report: Report = not_reported

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        text: str,
        *,
        name: str = "pipeline.sql",
        declared: Sequence[Statement] | None = None,
        tables: Mapping[str, pa.Table | DataFrame] | None = None,
        env: Env | None = None,
        folder: Path | None = None,
        settings: SessionSettings | None = None,
        runs: MakeRuns | None = None,
        cache: Cache | None = None,
        use: Use = Use.LOCAL,
        limits: MemoryLimits | None = None,
        queries: QueryLimits | None = None,
    ) -> Views:
        """Declare tables and views. `tables` gives the initial rows of tables.

        `declared` are the parsed statements, each from its own file, to which errors point.

        Rows of a DataFrame stay in Spark, however many they are. Runs are written to `folder`,
        which Spark's workers must see unless `runs` makes them accessible otherwise; without a
        folder they are deleted with this object. The session provides Spark and its functions. The
        meaning of queries follows `settings`, and queries read only these tables and views.
        """
        views = cls(spark, env, folder, settings, runs, cache, use, limits, queries)
        statements = parse_statements(Source(name, text)) if declared is None else declared
        for statement in statements:
            if isinstance(statement, Table):
                with about(statement.name):
                    views._add_table(statement)
        given = dict(tables or {})
        views.apply({n: Change(put=r) for n, r in given.items() if isinstance(r, pa.Table)})
        for table_name, rows in given.items():
            if not isinstance(rows, pa.Table):
                loaded = views._table_named(table_name).name
                views._relations.append(loaded, views.bulk.load(loaded, rows))
        for statement in statements:
            with about(statement.name):
                if isinstance(statement, MaterializedView):
                    views._add_materialized(statement)
                elif isinstance(statement, View):
                    views._add_view(statement)
        views._builder.build(tasks_of(views.programs), lambda view: None)
        return views

    @property
    def stored(self) -> Relations:
        """The stored relations: tables, views, and the relations behind views."""
        return self._relations

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs that maintain materialized views, in declaration order."""
        return tuple(self._programs.values())

    # Declaring

    def _add_table(self, table: Table) -> None:
        for column in table.columns:
            if re.search(r"\bchar\(", column.type):
                # Spark pads values compared with CHAR, which a view over strings would not.
                raise table.source.error_at(
                    table.name_span,
                    f"{table.name}: the column {column.name} is {column.type.upper()}, which is "
                    f"not supported yet",
                    hint="declare it as VARCHAR or STRING",
                )
            refused = why_not_kept(column.type)
            if refused is not None:
                raise table.source.error_at(
                    table.name_span,
                    f"{table.name}: the column {column.name} is {column.type.upper()}, "
                    f"{refused.why}",
                    hint=f"declare it as {refused.declare}",
                )
        types = tuple(stored_type(column.type) for column in table.columns)
        names = [column.name.lower() for column in table.columns]
        key = tuple(names.index(k.lower()) for k in table.key)
        self._tables[table.name.lower()] = table
        self._columns.add_table(table.name, [column.name for column in table.columns])
        self._relations.add(Relation(table.name, types, key))
        self._relations.add(Relation(table.name + ERRORS, LETTER_TYPES, ()))
        self._temp_views.empty(table.name, [c.name for c in table.columns], types)

    def _add_view(self, view: View) -> None:
        analysed = self._compiler.analyse(view, self._names())
        self._defined[view.name.lower()] = (view, analysed.columns)
        self._order[view.name.lower()] = view
        with suppress(Unsupported):
            # Views over it contain our reading of it, so it is compared like theirs.
            tree = read(view.query, self._catalog())
            self._compiler.compare(view.query, forms_of(tree), analysed)
            self._trees[view.name.lower()] = tree
        frame = analysed.frame.toDF(*analysed.columns)
        frame.createOrReplaceTempView(quoted(view.name))

    def _add_materialized(self, view: MaterializedView) -> None:
        analysed = self._compiler.analyse(view, self._names())
        outputs = {p.view: p.output for p in self._programs.values()}
        program = self._compiler.compile(
            view, analysed, self._catalog(), self._unique(), self._reads(view), outputs
        )
        for block in program.blocks:
            types = tuple(f.type for f in block.fields)
            self._relations.add(Relation(block.relation, types, block.key))
        self._programs[view.name.lower()] = program
        self._columns.add_program(program)
        self._decisions.add(program)
        self._compiler.declare(view.name, program.types)
        self._views[view.name.lower()] = view
        self._order[view.name.lower()] = program
        self._temp_views.empty(view.name, program.columns, program.types)

    def use_decisions(self, stored: Mapping[str, Decided]) -> None:
        """Use these decisions on backends, by lower-case name of the view; others are made."""
        self._decisions.use(stored)

    def build(self, names: Sequence[str], starting: Starting = lambda name: None) -> None:
        """Recompute materialized views and everything stored for them, as `Executor.build`."""
        given = {self._programs[name.lower()].view: name for name in names}
        programs = [program for program in self.programs if program.view in given]
        with translated(), self._evaluator.sharing():
            self._builder.build(tasks_of(programs), lambda view: starting(given[view]))

    def fill(self, given: str, rows: pa.Table) -> tuple[Rejected, ...]:
        """Insert rows into a table without changing views."""
        with translated(), self._evaluator.sharing():
            name, delta, rejected = self._taken(given, Change(put=rows))
            self._relations.append(name, delta)
        return tuple(rejected)

    def bound(self, name: str, tables: Mapping[str, Columns]) -> Bound | None:
        """How a view is maintained, as `sql/lineage` writes it."""
        found = {n: table_lineage(t, tables.get(n)) for n, t in self._tables.items()}
        return bound(name, self._programs, found)

    def owners(self) -> dict[str, str]:
        """Every stored relation, with the table or view it belongs to."""
        tables = [table.name for table in self._tables.values()]
        owners = {name: table for table in tables for name in (table, table + ERRORS)}
        for program in self._programs.values():
            owners |= {block.relation: program.view for block in program.blocks}
        return owners

    def _catalog(self) -> Catalog:
        """The names in queries. A materialized view is its output over its stored relations."""
        stored = {t.name: [c.name for c in t.columns] for t in self._tables.values()}
        stored |= {p.view: list(p.columns) for p in self._programs.values()}
        read = {name: (tree, self._defined[name][1]) for name, tree in self._trees.items()}
        return catalog_of(stored, read)

    def _unique(self) -> dict[str, tuple[int, ...]]:
        keys = {t.name: self._relations[t.name].key for t in self._tables.values()}
        for program in self._programs.values():
            for block in program.blocks:
                if isinstance(block, Sums | Groups):
                    keys[block.relation] = block.key
        return keys

    def _reads(self, view: MaterializedView) -> frozenset[str]:
        """All relations a view may depend on. A superset only costs a recompute."""
        return frozenset(
            [t.name for t in self._tables.values()] + [p.view for p in self._programs.values()]
        )

    # Applying

    def apply(self, changes: Mapping[str, Change], *, time: datetime | None = None) -> Executed:
        """Run one transaction. `time` is its recorded time, for queries that read the clock."""
        executed = self.execute(changes, time=time)
        self.add(executed)
        return executed

    def execute(
        self,
        changes: Mapping[str, Change],
        *,
        time: datetime | None = None,
        letters: Letters | None = None,
    ) -> Executed:
        """Compute a transaction over the current state, which does not change until `add`.

        `letters` is called with the rejected rows, and returns all dead letters.
        """
        before = self._time
        self._time = now = time or self._env.now()
        try:
            with self._evaluator.sharing():
                executed, deltas = self._execute(changes)
        finally:
            self._time = before
        dead = (letters or letters_of(changes, now))(executed.rejected)
        errors = {t + ERRORS: self._errors(t, rows) for t, rows in dead.items() if rows}
        return replace(executed, pending=PendingParts(now, {**deltas, **errors}))

    def _errors(self, table: str, rows: Sequence[Letter]) -> Part:
        schema = empty_change(LETTER_TYPES).schema
        columns = [*zip(*rows, strict=True), [1] * len(rows)]
        arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
        name = self._table_named(table).name + ERRORS
        return self._relations.in_memory(name, pa.Table.from_arrays(arrays, schema=schema))

    def add(self, executed: Executed) -> None:
        """Apply a result to the state. It must have been computed over the current state."""
        pending = executed.pending
        if not isinstance(pending, PendingParts):
            raise InvalidError("this was executed by another executor")
        for name, delta in pending.deltas.items():
            self._relations.append(name, delta)
        self._time = pending.time

    def _execute(self, changes: Mapping[str, Change]) -> tuple[Executed, dict[str, Part]]:
        before, self._evaluator.rows_read = self._evaluator.queries, 0
        deltas: dict[str, Part] = {}
        rejected: list[Rejected] = []
        self._existing.look_ahead([(self._table_named(n), c) for n, c in changes.items()])
        for given, change in changes.items():
            name, delta, refused = self._taken(given, change)
            rejected += refused
            if delta.rows:
                deltas[name] = delta
        queries_of, jobs_of, rows_of = dict[str, int](), dict[str, int](), dict[str, int]()
        profile_of: dict[str, ViewProfile] = {}
        fallbacks_of: dict[str, tuple[Fallback, ...]] = {}
        self._evaluator.fallbacks = []
        outputs: dict[str, AnyChange] = {}
        recomputed, cheaper = list[str](), dict[str, Costs]()
        self._blocks.look_ahead(list(map(self._weighed, self._programs.values())), deltas)
        jobs = self._evaluator.jobs
        self._evaluator.profiler.view()  # The time so far, on tables, belongs to no view.
        for number, program in enumerate(self._programs.values()):
            self.report("computing", number, len(self._programs), "view")
            start = self._evaluator.queries
            recompute = Recompute(weighed=self._weighed(program)[1])
            for block in program.blocks:
                last = program if block is program.shown else None
                with about(program.view), self._evaluator.computing(block):
                    moved = self._blocks.change(block, deltas, last, outputs, recompute)
                if moved is not None and moved.rows:
                    deltas[block.relation] = moved
                if isinstance(block, Full) and moved is not None:
                    recomputed.append(program.view)
            if recompute.any:
                recomputed.append(program.view)
            if recompute.cheaper is not None:
                cheaper[program.view] = recompute.cheaper
            queries_of[program.view] = self._evaluator.queries - start
            jobs_of[program.view] = 0
            if queries_of[program.view] or self._evaluator.asks_executors:
                now = self._evaluator.jobs
                jobs_of[program.view], jobs = now - jobs, now
            rows_of[program.view], self._evaluator.rows_read = self._evaluator.rows_read, 0
            fallbacks, self._evaluator.fallbacks = self._evaluator.fallbacks, []
            if fallbacks:
                fallbacks_of[program.view] = tuple(dict.fromkeys(fallbacks))
            profile_of[program.view] = self._evaluator.profiler.view()
        executed = Executed(
            changes=outputs,
            rejected=tuple(rejected),
            recomputed=tuple(recomputed),
            cheaper=cheaper,
            queries=self._evaluator.queries - before,
            queries_of=queries_of,
            jobs_of=jobs_of,
            rows_of=rows_of,
            profile_of=profile_of,
            fallbacks_of=fallbacks_of,
        )
        return executed, deltas

    def _taken(self, given: str, change: Change) -> tuple[str, Part, list[Rejected]]:
        """The name of the table, its change set, and the rejected rows."""
        table = self._table_named(given)
        if change.staged is not None:
            return table.name, self.bulk.normalised(table.name, change.staged), []
        key = self._relations[table.name].key
        delta, refused = normalise(table, key, change, self._existing.of(table.name))
        return table.name, self._relations.taken_in(table.name, delta), refused

    def _weighed(self, program: Program) -> tuple[Program, bool]:
        """A program, and whether blocks may be recomputed where that is cheaper."""
        return program, self._views[program.view.lower()].policy is Policy.AUTO

    def _table_named(self, given: str) -> Table:
        table = self._tables.get(given.lower())
        if table is None:
            raise InvalidError(
                f"there is no table {given}",
                hint="tables are: " + ", ".join(t.name for t in self._tables.values()),
            )
        return table

    def _behind(self, name: str) -> frozenset[str]:
        """The stored relations behind a table or view."""
        table, program = self._tables.get(name.lower()), self._programs.get(name.lower())
        return relations(program.output) if program else frozenset({table.name if table else name})

    def _text(self, block: Full, deltas: Mapping[str, Part]) -> Part:
        """The change set of a recomputed view: the result of its text minus the stored rows."""
        self._temp_views.named_in(block.text, self._time, deltas)
        names = tuple(f"c{i}" for i in range(len(block.fields)))
        text = at_time(block.text, self._time)
        frame = in_fixed_order(self._spark.sql(text), signs=True)
        frame.toDF(*names).createOrReplaceTempView(_FRESH)
        old = self._frames.old(self._relations[block.relation])
        columns = ", ".join(names)
        changed = (
            f"SELECT {columns}, sum(w) AS w FROM (SELECT {columns}, 1L AS w FROM {_FRESH} "
            f"UNION ALL SELECT {columns}, -w AS w FROM {old}) "
            f"GROUP BY {columns} HAVING sum(w) <> 0"
        )
        # The number of rows is unknown: assume as many as before, or as the view's inputs have.
        reads = [r for name in block.reads for r in self._behind(name)]
        rows = self._relations[block.relation].rows
        rows = rows or max((self._relations[r].rows for r in reads), default=0)
        return self._evaluator.result(block.relation, changed, rows)

    def _names(self) -> list[str]:
        """The names of all tables and views, as declared."""
        views = [*self._views.values(), *(view for view, _ in self._defined.values())]
        return [declared.name for declared in (*self._tables.values(), *views)]

    def _check_known(self, name: str) -> None:
        known = {*self._tables, *self._order}
        if name.lower() not in known:
            hint = f"there are: {', '.join(sorted(known))}"
            raise InvalidError(f"there is no table or view {name}", hint=hint)

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Every table by name, with its key columns."""
        return {table.name: table.key for table in self._tables.values()}

    def letters(self, table: str) -> pa.Table:
        """The dead letters of a table."""
        relation = self._relations[self._table_named(table).name + ERRORS]
        parts = [self._frames.arrow(part) for part in relation.parts]
        rows = pa.concat_tables([empty_change(relation.types), *parts])
        # Equal ones may be stored as one row with their number as weight.
        often = np.repeat(np.arange(rows.num_rows), rows.column(WEIGHT).to_numpy())
        return rows.drop_columns([WEIGHT]).take(pa.array(often)).rename_columns(list(LETTER))

    def query(self, sql: str) -> pa.Table:
        """The answer to one query over the current tables, views and dead letters."""
        self._temp_views.named_in(sql, self._time, {})
        letters = [table.name + ERRORS for table in self._tables.values()]
        for name in letters:
            if name.lower() in sql.lower():
                self._show_letters(name)
        text = at_time(sql, self._time)
        try:
            frame = read_only(self._spark, text, [*self._names(), *letters])
        except RefusedError as error:
            at = error.offset if text == sql else None
            if at is None:
                raise
            raise Source("query", sql).error(at, error.message, hint=error.hint) from error
        except (PySparkException, Py4JJavaError) as error:
            message = f"Spark cannot answer this query: {why_not_analysed(error)}"
            if text != sql:
                raise InvalidError(message) from error
            raise Source("query", sql).error(place_in(text, error), message) from error
        with translated():
            return to_arrow(frame)

    def read(self, name: str) -> pa.Table:
        """The current rows of a table or view."""
        self._check_known(name)
        with translated():
            return to_arrow(self.frame(name))

    def pieces(self, name: str, rows_max: int) -> Pieces:
        """The current rows of a table or view, in pieces of at most `rows_max`."""
        self._check_known(name)
        parts = (p for r in self._behind(name) for p in self._relations[r].parts)
        rows = math.inf if name.lower() in self._defined else rows_at_most(parts)
        with translated():
            most = self._evaluator.limits.collected_rows_max
            return in_pieces(self.frame(name), rows, self.runs, rows_max, most)

    def frame(self, name: str) -> DataFrame:
        """The current rows of a table, a view or a table's dead letters, as a DataFrame."""
        if name.endswith(ERRORS):
            self._show_letters(name)
        else:
            self._temp_views.named_in(quoted(name), self._time, {})
        return self._spark.table(quoted(name))

    def _show_letters(self, name: str) -> None:
        columns = self._evaluator.names.several(len(LETTER))
        self._temp_views.rows(name, Leaf(name, columns, When.OLD), LETTER, {})

    def recompute(self, name: str) -> pa.Table:
        """Spark's answer to a view's query; with LIMIT, the first rows in a fixed order."""
        view = self._views[name.lower()]
        self._temp_views.named_in(view.query, self._time, {})
        with translated():
            frame = self._spark.sql(at_time(view.query, self._time))
            if "limit" in view.query.lower():
                with suppress(OrderDependentError):
                    frame = in_fixed_order(frame, signs=True)
            return to_arrow(frame.toDF(*self._programs[name.lower()].columns))

    def explain(self, name: str) -> Explained:
        """How a view is maintained."""
        if name.lower() not in self._programs:
            raise InvalidError(f"there is no materialized view {name}")
        explained = self._decisions.explain(self._programs[name.lower()])
        return replace(explained, count=lambda: self._relations.rows)
