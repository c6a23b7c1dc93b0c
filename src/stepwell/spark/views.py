"""Views kept up to date on Spark: the object that holds relations and applies change sets.

    views = Views.open(spark, "CREATE TABLE t (...); CREATE MATERIALIZED VIEW v AS SELECT ...")
    outcome = views.apply({"t": Change(put=rows)})

One call of `apply` is one transaction: all changes become visible together, in tables and views. It
either changes everything or, when it raises, nothing: relations take their changes only at the end.
"""

from __future__ import annotations

import math
import re
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from stepwell.engine.letters import letters_of
from stepwell.engine.ports import (
    ERRORS,
    LETTER,
    LETTER_TYPES,
    Change,
    Letter,
    Letters,
    Pieces,
    Rejected,
    Report,
    not_reported,
)
from stepwell.env import Env, SystemEnv
from stepwell.errors import InvalidError
from stepwell.query.algebra import Leaf, Scan, Values, When, relations, walk
from stepwell.query.clock import at_time
from stepwell.query.cost import Costs
from stepwell.query.explain import Explained, explain
from stepwell.query.lineage import Bound, Columns, bound, table_lineage
from stepwell.query.parse import catalog_of, forms_of, read
from stepwell.query.program import Block, Full, Groups, Program, Sums
from stepwell.query.reasons import Unsupported, about
from stepwell.query.select import Catalog
from stepwell.query.source import Source
from stepwell.query.statements import (
    MaterializedView,
    Policy,
    Statement,
    Table,
    View,
    parse_statements,
)
from stepwell.query.types import stored_type, why_not_kept, without_maps
from stepwell.spark.blocks import Anew, Blocks
from stepwell.spark.changes import Lookup, normalise, typed_items
from stepwell.spark.compiler import Compiler
from stepwell.spark.evaluate import Evaluator
from stepwell.spark.failures import place_in, translated, why_not_analysed
from stepwell.spark.finder import FOUND_ROWS_MAX, LookUps, unique
from stepwell.spark.index import Indexes, comparable
from stepwell.spark.matching import among_rows
from stepwell.spark.merge import consolidated
from stepwell.spark.outcome import Outcome, Prepared
from stepwell.spark.read_only import RefusedError, read_only
from stepwell.spark.reading import in_pieces, rows_at_most
from stepwell.spark.relations import Part, Relation, Relations, schema_table
from stepwell.spark.row_order import OrderDependentError, in_fixed_order
from stepwell.spark.runs import WEIGHT, LocalRuns, Runs
from stepwell.spark.session import SessionSettings, adopt
from stepwell.spark.showing import Showing, quoted

__all__ = ["Change", "Outcome", "Views"]

_FRESH = "`$stepwell$fresh`"
_KEYS = "`$stepwell$keys`"
_LOADED = "`$stepwell$loaded`"
MakeRuns = Callable[[SparkSession, Path], Runs]
"""How runs are kept, in a session, with a folder of this process."""


class Views:
    """Tables and views of one pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        env: Env | None = None,
        folder: Path | None = None,
        settings: SessionSettings | None = None,
        runs: MakeRuns | None = None,
    ) -> None:
        self._env = env or SystemEnv()
        self._spark = adopt(spark, settings)
        own = tempfile.TemporaryDirectory(prefix="stepwell-views-")
        weakref.finalize(self, own.cleanup)
        make = runs or (lambda spark, folder: LocalRuns(spark, folder, self._env))
        self.runs = make(self._spark, folder or Path(own.name) / "runs")
        self._relations = Relations(self._spark, self.runs)
        self._indexes = Indexes(Path(own.name) / "indexes")
        self._evaluator = Evaluator(self._spark, self._relations, self._indexes, self._unique)
        self._blocks = Blocks(
            self._evaluator, self._relations, self._indexes, self._text, self._behind
        )
        self._compiler = Compiler(self._spark, self._relations)
        self._showing = Showing(self._spark, self._relations, self._evaluator)
        self._tables = self._showing.tables
        self._defined = self._showing.defined
        self._order = self._showing.views
        self._trees: dict[str, exp.Query] = {}
        """Views that are not stored, as far as Spark reads them as we do."""
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
    ) -> Views:
        """Declare tables and views. `tables` gives rows that tables begin with.

        `declared` are the statements of the text where they were read already, each from a file of
        its own: a mistake is shown there.

        Rows of a DataFrame stay with Spark, however many they are. Runs are written to `folder`,
        which Spark's workers must see unless `runs` says how they are reached otherwise; without a
        folder they are gone with this object. The session is used for its Spark and its functions;
        what queries mean in it is as `settings` say, and they read these tables and views only.
        """
        views = cls(spark, env, folder, settings, runs)
        statements = parse_statements(Source(name, text)) if declared is None else declared
        for statement in statements:
            if isinstance(statement, Table):
                with about(statement.name):
                    views._add_table(statement)
        given = dict(tables or {})
        views.apply({n: Change(put=r) for n, r in given.items() if isinstance(r, pa.Table)})
        for table_name, rows in given.items():
            if not isinstance(rows, pa.Table):
                views._load(table_name, rows)
        for statement in statements:
            with about(statement.name):
                if isinstance(statement, MaterializedView):
                    views._add_materialized(statement)
                elif isinstance(statement, View):
                    views._add_view(statement)
        return views

    @property
    def stored(self) -> Relations:
        """What is kept: tables, views, and the relations behind views."""
        return self._relations

    @property
    def programs(self) -> tuple[Program, ...]:
        """What keeps each materialized view, in the order in which they were declared."""
        return tuple(self._programs.values())

    # Declaring

    def _add_table(self, table: Table) -> None:
        for column in table.columns:
            if re.search(r"\bchar\(", column.type):
                # Spark pads what CHAR is compared with, which a view over strings would not.
                raise table.source.error_at(
                    table.name_span,
                    f"{table.name}: the column {column.name} is {column.type.upper()}, "
                    "which cannot be kept yet",
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
        self._relations.add(Relation(table.name, types, key))
        self._relations.add(Relation(table.name + ERRORS, LETTER_TYPES, ()))
        self._showing.empty(table.name, [c.name for c in table.columns], types)

    def _add_view(self, view: View) -> None:
        analysed = self._compiler.analyse(view, self._names())
        self._defined[view.name.lower()] = (view, analysed.columns)
        self._order[view.name.lower()] = view
        with suppress(Unsupported):
            # What we read of it goes into the views over it, so it is compared like theirs.
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
            self._compute(block)
        self._programs[view.name.lower()] = program
        self._compiler.declare(view.name, program.types)
        self._views[view.name.lower()] = view
        self._order[view.name.lower()] = program
        self._showing.empty(view.name, program.columns, program.types)

    def _compute(self, block: Block) -> None:
        """The rows of a relation that has none yet, from what it is computed from."""
        if self._is_empty(block):
            # As good as always when a pipeline is opened: its rows are loaded afterwards.
            return
        if isinstance(block, Full):
            change = self._text(block, {})
        else:
            whole = self._evaluator.maintenance({}).whole(block)
            with self._evaluator.whatever_size(), self._evaluator.rows_in_order(block):
                change = self._evaluator.part(block.relation, whole, {})
        self._relations.append(block.relation, change)

    def build(self, name: str) -> None:
        """Compute a materialized view anew, with all that is stored for it."""
        with translated():
            for block in self._programs[name.lower()].blocks:
                self._relations[block.relation].parts = []
                self._compute(block)

    def fill(self, given: str, rows: pa.Table) -> tuple[Rejected, ...]:
        """Put rows into a table, and leave what views hold as it is."""
        with translated():
            name, delta, rejected = self._taken(given, Change(put=rows))
            if delta.num_rows:
                self._relations.append(name, self._relations.taken_in(name, delta))
        return tuple(rejected)

    def bound(self, name: str, tables: Mapping[str, Columns]) -> Bound | None:
        """How a view is kept, as `query/lineage` writes it."""
        found = {n: table_lineage(t, tables.get(n)) for n, t in self._tables.items()}
        return bound(name, self._programs, found)

    def owners(self) -> dict[str, str]:
        """Every stored relation, with the table or view it belongs to."""
        tables = [table.name for table in self._tables.values()]
        owners = {name: table for table in tables for name in (table, table + ERRORS)}
        for program in self._programs.values():
            owners |= {block.relation: program.view for block in program.blocks}
        return owners

    def _is_empty(self, block: Block) -> bool:
        """Whether there is nothing to compute a relation from, so that it has no rows."""
        if isinstance(block, Full) or (isinstance(block, Sums | Groups) and not block.keys):
            return False
        nodes = list(walk(block.input))
        read = [n.relation for n in nodes if isinstance(n, Scan)]
        return not any(isinstance(n, Values) for n in nodes) and not any(
            self._relations[name].parts for name in read
        )

    def _catalog(self) -> Catalog:
        """What queries can name. A materialized view is its output over its stored relations."""
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
        """All relations a view can depend on. More than it does only costs a recompute."""
        return frozenset(
            [t.name for t in self._tables.values()] + [p.view for p in self._programs.values()]
        )

    def _load(self, given: str, frame: DataFrame) -> None:
        """Give an empty table the rows of a DataFrame."""
        table = self._table_named(given)
        relation = self._relations[table.name]
        items = typed_items(table, relation.types, frame.columns)
        with translated():
            rows = frame.selectExpr(*items, "1L AS w")
            part = self._relations.as_run(table.name, rows, frame.count())
            if relation.key:
                names = ", ".join(f"c{i}" for i in relation.key)
                self._relations.frame_of(part).createOrReplaceTempView(_LOADED)
                twice = self._spark.sql(
                    f"SELECT {names} FROM {_LOADED} GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
                ).collect()
                if twice:
                    raise InvalidError(
                        f"{table.name}: two rows have the key {tuple(twice[0])}",
                        hint="leave out all but one of them",
                    )
        self._relations.append(table.name, part)

    # Applying

    def apply(self, changes: Mapping[str, Change], *, time: datetime | None = None) -> Outcome:
        """One transaction. `time` is its recorded time, for queries that read the clock."""
        prepared = self.prepare(changes, time=time)
        self.keep(prepared)
        return prepared.outcome

    def prepare(
        self,
        changes: Mapping[str, Change],
        *,
        time: datetime | None = None,
        letters: Letters | None = None,
    ) -> Prepared:
        """Compute a transaction. Nothing has happened until `keep`.

        `letters` is given what is rejected here, and gives all dead letters.
        """
        before = self._time
        self._time = now = time or self._env.now()
        try:
            prepared = self._prepare(changes, now)
        finally:
            self._time = before
        dead = (letters or letters_of(changes, now))(prepared.outcome.rejected)
        errors = {t + ERRORS: self._errors(t, rows) for t, rows in dead.items() if rows}
        return Prepared(prepared.outcome, prepared.time, {**prepared.deltas, **errors})

    def _errors(self, table: str, rows: Sequence[Letter]) -> Part:
        schema = schema_table(LETTER_TYPES).schema
        columns = [*zip(*rows, strict=True), [1] * len(rows)]
        arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
        name = self._table_named(table).name + ERRORS
        return self._relations.in_memory(name, pa.Table.from_arrays(arrays, schema=schema))

    def keep(self, prepared: Prepared) -> None:
        """Make what was prepared the state. It must have been prepared over the state there is."""
        for name, delta in prepared.deltas.items():
            self._relations.append(name, delta)
        self._time = prepared.time

    def _prepare(self, changes: Mapping[str, Change], time: datetime) -> Prepared:
        before = self._evaluator.queries
        self._evaluator.rows_read = 0
        deltas: dict[str, Part] = {}
        rejected: list[Rejected] = []
        for given, change in changes.items():
            name, delta, refused = self._taken(given, change)
            rejected += refused
            if delta.num_rows:
                deltas[name] = self._relations.taken_in(name, delta)
        queries_of: dict[str, int] = {}
        jobs_of: dict[str, int] = {}
        rows_of: dict[str, int] = {}
        seconds_of: dict[str, float] = {}
        outputs: dict[str, pa.Table] = {}
        recomputed: list[str] = []
        cheaper: dict[str, Costs] = {}
        for number, program in enumerate(self._programs.values()):
            self.report("computing", number, len(self._programs), "view")
            start, began = self._evaluator.queries, self._env.uptime()
            jobs = self._evaluator.jobs
            adaptive = self._views[program.view.lower()].policy is Policy.AUTO
            said = Anew(weighed=adaptive)
            for block in program.blocks:
                last = program if block is program.shown else None
                with self._evaluator.rows_in_order(block):
                    moved = self._blocks.change(block, deltas, last, outputs, said)
                if moved is not None and moved.rows:
                    deltas[block.relation] = moved
                if isinstance(block, Full) and moved is not None:
                    recomputed.append(program.view)
            if said.any:
                recomputed.append(program.view)
            if said.cheaper is not None:
                cheaper[program.view] = said.cheaper
            queries_of[program.view] = self._evaluator.queries - start
            jobs_of[program.view] = self._evaluator.jobs - jobs
            rows_of[program.view], self._evaluator.rows_read = self._evaluator.rows_read, 0
            seconds_of[program.view] = self._env.uptime() - began
        return Prepared(
            Outcome(
                outputs,
                tuple(rejected),
                tuple(recomputed),
                self._evaluator.queries - before,
                queries_of,
                jobs_of,
                rows_of,
                seconds_of,
                cheaper,
            ),
            time,
            deltas,
        )

    def _taken(self, given: str, change: Change) -> tuple[str, pa.Table, list[Rejected]]:
        """What a change makes of a table: its name, the change set, and what is refused."""
        table = self._table_named(given)
        key = self._relations[table.name].key
        delta, refused = normalise(table, key, change, self._lookup(table.name))
        return table.name, delta, refused

    def _table_named(self, given: str) -> Table:
        table = self._tables.get(given.lower())
        if table is None:
            raise InvalidError(
                f"there is no table {given}",
                hint="tables are: " + ", ".join(t.name for t in self._tables.values()),
            )
        return table

    def _lookup(self, name: str) -> Lookup:
        relation = self._relations[name]

        def lookup(rows: pa.Table, places: tuple[int, ...]) -> pa.Table:
            if not relation.parts:
                return schema_table(relation.types)
            found = self._found(relation, rows, places)
            if found is not None:
                return found
            wanted = tuple(relation.types[i] for i in places)
            keys = rows.append_column(WEIGHT, pa.array([1] * rows.num_rows, pa.int64()))
            keys = keys.rename_columns([*(f"c{i}" for i in range(len(places))), WEIGHT])
            self._relations.frame(keys, wanted).createOrReplaceTempView(_KEYS)
            every = ", ".join(f"c{i}" for i in range(len(relation.types)))
            test = " AND ".join(
                f"{without_maps(f'x.c{p}', kind)} <=> {without_maps(f'k.c{i}', kind)}"
                for i, (p, kind) in enumerate(zip(places, wanted, strict=True))
            )
            return self._evaluator.whole(
                f"SELECT {every}, sum(w) AS w FROM (SELECT /*+ BROADCAST(k) */ x.* FROM "
                f"{self._relations.old(name)} x LEFT SEMI JOIN {_KEYS} k ON {test}) "
                f"GROUP BY {every} HAVING sum(w) <> 0"
            )

        return lookup

    def _found(
        self, relation: Relation, rows: pa.Table, places: tuple[int, ...]
    ) -> pa.Table | None:
        """The same without Spark, where Arrow compares values as Spark does."""
        if not all(map(comparable, relation.types)):
            return None
        # As many as the change has are held in any case.
        most = max(FOUND_ROWS_MAX, 2 * rows.num_rows)
        lookups = LookUps(self._relations, self._indexes, {}, most)
        wanted = {p: unique(rows.column(i)) for i, p in enumerate(places)}
        found = lookups.rows(relation, wanted)
        if found is None or not found.num_rows:
            return found
        # Each value was looked up by itself; what counts is all of a row's together.
        mask = among_rows([found.column(p) for p in places], rows.columns)
        return None if mask is None else consolidated(found.filter(mask))

    def _behind(self, name: str) -> frozenset[str]:
        """The stored relations behind a table or view."""
        table, program = self._tables.get(name.lower()), self._programs.get(name.lower())
        return relations(program.output) if program else frozenset({table.name if table else name})

    def _text(self, block: Full, deltas: Mapping[str, Part]) -> Part:
        """The change of a view that is computed anew: what its text gives, less what it was."""
        self._showing.named_in(block.text, self._time, deltas)
        names = tuple(f"c{i}" for i in range(len(block.fields)))
        text = at_time(block.text, self._time)
        frame = in_fixed_order(self._spark.sql(text), signs=True)
        frame.toDF(*names).createOrReplaceTempView(_FRESH)
        old = self._relations.old(block.relation)
        columns = ", ".join(names)
        changed = (
            f"SELECT {columns}, sum(w) AS w FROM (SELECT {columns}, 1L AS w FROM {_FRESH} "
            f"UNION ALL SELECT {columns}, -w AS w FROM {old}) "
            f"GROUP BY {columns} HAVING sum(w) <> 0"
        )
        # Nobody knows how many rows it will have: about as many as it had, or as what it reads.
        reads = [r for name in block.reads for r in self._behind(name)]
        rows = self._relations[block.relation].rows
        rows = rows or max((self._relations[r].rows for r in reads), default=0)
        return self._evaluator.result(block.relation, changed, rows)

    # Reading

    def _names(self) -> list[str]:
        """Of every table and view, as they are spelled."""
        views = [*self._views.values(), *(view for view, _ in self._defined.values())]
        return [declared.name for declared in (*self._tables.values(), *views)]

    def _check_known(self, name: str) -> None:
        known = ", ".join(sorted({*self._tables, *self._order}))
        if name.lower() not in {*self._tables, *self._order}:
            raise InvalidError(f"there is no table or view {name}", hint=f"there are: {known}")

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Every table by its name, with the columns of its key."""
        return {table.name: table.key for table in self._tables.values()}

    def letters(self, table: str) -> pa.Table:
        """The dead letters of a table."""
        relation = self._relations[self._table_named(table).name + ERRORS]
        parts = [self._relations.arrow(part) for part in relation.parts]
        rows = pa.concat_tables([schema_table(relation.types), *parts])
        # Equal ones may be stored as one, with how often it came.
        often = np.repeat(np.arange(rows.num_rows), rows.column(WEIGHT).to_numpy())
        return rows.drop_columns([WEIGHT]).take(pa.array(often)).rename_columns(list(LETTER))

    def query(self, sql: str) -> pa.Table:
        """The answer to one query over tables, views and dead letters as they are now."""
        self._showing.named_in(sql, self._time, {})
        letters = [table.name + ERRORS for table in self._tables.values()]
        for name in letters:
            if name.lower() in sql.lower():
                columns = self._evaluator.names.several(len(LETTER))
                self._showing.rows(name, Leaf(name, columns, When.OLD), LETTER, {})
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
            return frame.toArrow()

    def read(self, name: str) -> pa.Table:
        """The rows of a table or view as they are now."""
        self._check_known(name)
        with translated():
            return self.frame(name).toArrow()

    def pieces(self, name: str, rows_max: int) -> Pieces:
        """The rows of a table or view as they are now, at most so many at a time."""
        self._check_known(name)
        rows = math.inf
        if name.lower() not in self._defined:
            rows = rows_at_most(p for r in self._behind(name) for p in self._relations[r].parts)
        with translated():
            return in_pieces(self.frame(name), rows, self.runs, rows_max)

    def frame(self, name: str) -> DataFrame:
        """A table or view as it is now, as a DataFrame."""
        self._showing.named_in(quoted(name), self._time, {})
        return self._spark.table(quoted(name))

    def recompute(self, name: str) -> pa.Table:
        """What Spark answers for a view's query over the tables as they are now.

        With LIMIT any rows may be right: those that come first in one order are given.
        """
        view = self._views[name.lower()]
        self._showing.named_in(view.query, self._time, {})
        columns = self._programs[name.lower()].columns
        with translated():
            frame = self._spark.sql(at_time(view.query, self._time))
            if "limit" in view.query.lower():
                with suppress(OrderDependentError):
                    frame = in_fixed_order(frame, signs=True)
            return frame.toDF(*columns).toArrow()

    def explain(self, name: str) -> Explained:
        """How a view is kept."""
        program = self._programs.get(name.lower())
        if program is None:
            raise InvalidError(f"there is no materialized view {name}")
        return explain(program, {})
