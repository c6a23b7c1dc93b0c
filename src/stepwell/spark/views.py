"""Views kept up to date on Spark: the object that holds relations and applies change sets.

    views = Views.open(spark, "CREATE TABLE t (...); CREATE MATERIALIZED VIEW v AS SELECT ...")
    outcome = views.apply({"t": Change(put=rows)})

One call of `apply` is one transaction: all changes become visible together, in tables and views. It
either changes everything or, when it raises, nothing: relations take their changes only at the end.
"""

from __future__ import annotations

import re
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from stepwell.engine.ports import Change, Rejected
from stepwell.env import Env, SystemEnv
from stepwell.errors import InvalidError
from stepwell.query.algebra import Leaf, Names, Node, When, relations, walk
from stepwell.query.clock import at_time
from stepwell.query.explain import Explained, explain
from stepwell.query.maintain import STAGE, Maintenance
from stepwell.query.order import Estimates
from stepwell.query.parse import catalog_of, read
from stepwell.query.program import Block, Full, Groups, Program, Sums, Top
from stepwell.query.reasons import Code, Unsupported
from stepwell.query.reduce import reduced
from stepwell.query.render import bag, presented, render
from stepwell.query.select import Catalog
from stepwell.query.source import Source
from stepwell.query.statements import MaterializedView, Table, View, parse_statements
from stepwell.query.types import contains_map_or_variant
from stepwell.spark.changes import Lookup, consolidated, normalise
from stepwell.spark.compiler import Compiler
from stepwell.spark.failures import translated
from stepwell.spark.finder import LookUps, unique
from stepwell.spark.flatten import among_rows, flattened
from stepwell.spark.index import Indexes, comparable
from stepwell.spark.merge import mergeable, merged
from stepwell.spark.relations import (
    WEIGHT,
    Part,
    Relation,
    Relations,
    arrow_schema,
    schema_table,
    stored_type,
)
from stepwell.spark.runs import Runs
from stepwell.spark.session import adopt

__all__ = ["Change", "Outcome", "Views"]

_FRESH = "`$stepwell$fresh`"
_KEYS = "`$stepwell$keys`"
_LOADED = "`$stepwell$loaded`"
_SUMMED = f"{STAGE}0"
SMALL_ROWS_MAX = 50_000
"""So few rows Spark computes with sooner than it has made Java code and tasks for them."""
_SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
}
COLLECT_ROWS_MAX = 200_000
"""What may have more rows than this is written by Spark, and never passes through this process."""


@dataclass(slots=True)
class Outcome:
    """What one transaction did."""

    changes: Mapping[str, pa.Table]
    """For each materialized view that changed: its columns, and last the weight of each row."""
    rejected: tuple[Rejected, ...] = ()
    recomputed: tuple[str, ...] = ()
    jobs: int = 0
    """Spark queries that were run."""
    jobs_of: Mapping[str, int] = field(default_factory=dict)
    rows_of: Mapping[str, int] = field(default_factory=dict)
    """Stored rows that were read for each view."""
    seconds_of: Mapping[str, float] = field(default_factory=dict, compare=False)

    WEIGHT = "_w"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction that was computed and has not happened yet."""

    outcome: Outcome
    time: datetime
    deltas: Mapping[str, Part] = field(repr=False)


class Views:
    """Tables and views of one pipeline."""

    def __init__(
        self, spark: SparkSession, env: Env | None = None, folder: Path | None = None
    ) -> None:
        self._env = env or SystemEnv()
        self._spark = adopt(spark)
        own = tempfile.TemporaryDirectory(prefix="stepwell-views-")
        weakref.finalize(self, own.cleanup)
        runs = Runs(self._spark, folder or Path(own.name) / "runs", self._env)
        self._relations = Relations(self._spark, runs)
        self._indexes = Indexes(Path(own.name) / "indexes")
        self._own = {key: self._spark.conf.get(key, None) for key in _SMALL}
        self._hurried = False
        self._rows_read = 0
        self._compiler = Compiler(self._spark, self._relations)
        self._tables: dict[str, Table] = {}
        self._defined: dict[str, tuple[View, tuple[str, ...]]] = {}
        self._programs: dict[str, Program] = {}
        self._views: dict[str, MaterializedView] = {}
        self._order: dict[str, Program | View] = {}
        """Views in the order in which they were declared."""
        # Of what maintenance adds to the nodes of a view, whose names begin with _c.
        self._names = Names(prefix="_m")
        self._time = self._env.now()
        self._queries = 0

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        text: str,
        *,
        name: str = "pipeline.sql",
        tables: Mapping[str, pa.Table | DataFrame] | None = None,
        env: Env | None = None,
        folder: Path | None = None,
    ) -> Views:
        """Declare tables and views. `tables` gives rows that tables begin with.

        Rows of a DataFrame stay with Spark, however many they are. Runs are written to `folder`;
        without one they are gone with this object.
        """
        views = cls(spark, env, folder)
        statements = parse_statements(Source(name, text))
        for statement in statements:
            if isinstance(statement, Table):
                views._add_table(statement)
        given = dict(tables or {})
        views.apply({n: Change(put=r) for n, r in given.items() if isinstance(r, pa.Table)})
        for table_name, rows in given.items():
            if not isinstance(rows, pa.Table):
                views._load(table_name, rows)
        for statement in statements:
            if isinstance(statement, MaterializedView):
                views._add_materialized(statement)
            elif isinstance(statement, View):
                views._add_view(statement)
        return views

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
        types = tuple(stored_type(column.type) for column in table.columns)
        names = [column.name.lower() for column in table.columns]
        key = tuple(names.index(k.lower()) for k in table.key)
        self._tables[table.name.lower()] = table
        self._relations.add(Relation(table.name, types, key))
        self._show(table.name, [c.name for c in table.columns], types)

    def _add_view(self, view: View) -> None:
        analysed = self._compiler.analyse(view)
        self._defined[view.name.lower()] = (view, analysed.columns)
        self._order[view.name.lower()] = view
        frame = analysed.frame.toDF(*analysed.columns)
        frame.createOrReplaceTempView(_quoted(view.name))

    def _add_materialized(self, view: MaterializedView) -> None:
        analysed = self._compiler.analyse(view)
        outputs = {p.view: p.output for p in self._programs.values()}
        program = self._compiler.compile(
            view, analysed, self._catalog(), self._unique(), self._reads(view), outputs
        )
        for block in program.blocks:
            types = tuple(f.type for f in block.fields)
            self._relations.add(Relation(block.relation, types, block.key))
            if isinstance(block, Full):
                change = self._text(block, {})
            else:
                change = self._part(block.relation, self._maintenance({}).whole(block), {})
            self._relations.append(block.relation, change)
        self._programs[view.name.lower()] = program
        self._compiler.declare(view.name, program.types)
        self._views[view.name.lower()] = view
        self._order[view.name.lower()] = program
        self._show(view.name, program.columns, program.types)

    def _catalog(self) -> Catalog:
        """What queries can name. A materialized view is its output over its stored relations."""
        stored = {t.name: [c.name for c in t.columns] for t in self._tables.values()}
        stored |= {p.view: list(p.columns) for p in self._programs.values()}
        catalog = catalog_of(stored, {})
        for name, (view, columns) in self._defined.items():
            try:
                tree = read(view.query, catalog)
            except Unsupported:
                continue
            catalog = {**catalog, **catalog_of({}, {name: (tree, columns)})}
        return catalog

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

    def _show(self, name: str, columns: object, types: tuple[str, ...]) -> None:
        """Let Spark find a table or view under the name users know."""
        empty = self._spark.table(self._relations.show_empty(name, types)).drop("w")
        empty.toDF(*columns).createOrReplaceTempView(_quoted(name))  # type: ignore[misc]

    def _load(self, given: str, frame: DataFrame) -> None:
        """Give an empty table the rows of a DataFrame."""
        table = self._table_named(given)
        relation = self._relations[table.name]
        columns = {name.lower(): name for name in frame.columns}
        items = []
        for i, (column, kind) in enumerate(zip(table.columns, relation.types, strict=True)):
            found = columns.pop(column.name.lower(), None)
            if found is None and not column.nullable:
                raise InvalidError(f"{table.name}: the column {column.name} is missing")
            value = "NULL" if found is None else _quoted(found)
            if not column.nullable:
                message = f"{table.name}: the column {column.name} is NULL in some rows"
                value = f"COALESCE({value}, raise_error('{_escaped(message)}'))"
            items.append(f"CAST({value} AS {kind}) AS c{i}")
        if columns:
            raise InvalidError(
                f"{table.name} has no column {next(iter(columns.values()))}",
                hint="its columns are: " + ", ".join(_titles(table)),
            )
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

    def prepare(self, changes: Mapping[str, Change], *, time: datetime | None = None) -> Prepared:
        """Compute a transaction. Nothing has happened until `keep`."""
        before = self._time
        self._time = now = time or self._env.now()
        try:
            return self._prepare(changes, now)
        finally:
            self._time = before

    def keep(self, prepared: Prepared) -> None:
        """Make what was prepared the state. It must have been prepared over the state there is."""
        for name, delta in prepared.deltas.items():
            self._relations.append(name, delta)
        self._time = prepared.time

    def _prepare(self, changes: Mapping[str, Change], time: datetime) -> Prepared:
        before = self._queries
        deltas: dict[str, Part] = {}
        rejected: list[Rejected] = []
        for given, change in changes.items():
            table = self._table_named(given)
            key = self._relations[table.name].key
            delta, refused = normalise(table, key, change, self._lookup(table.name))
            rejected += refused
            if delta.num_rows:
                deltas[table.name] = self._relations.in_memory(table.name, delta)
        jobs_of: dict[str, int] = {}
        rows_of: dict[str, int] = {}
        seconds_of: dict[str, float] = {}
        outputs: dict[str, pa.Table] = {}
        recomputed: list[str] = []
        for program in self._programs.values():
            start, began = self._queries, self._env.uptime()
            for block in program.blocks:
                last = block is program.blocks[-1]
                moved = self._change(block, deltas, program if last else None, outputs)
                if moved is not None and moved.rows:
                    deltas[block.relation] = moved
                if isinstance(block, Full) and moved is not None:
                    recomputed.append(program.view)
            jobs_of[program.view] = self._queries - start
            rows_of[program.view], self._rows_read = self._rows_read, 0
            seconds_of[program.view] = self._env.uptime() - began
        return Prepared(
            Outcome(
                outputs,
                tuple(rejected),
                tuple(recomputed),
                self._queries - before,
                jobs_of,
                rows_of,
                seconds_of,
            ),
            time,
            deltas,
        )

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
            # Maps cannot be compared by a join. Rows that are found beyond need not be there.
            compared = [
                f"x.c{p} <=> k.c{i}"
                for i, p in enumerate(places)
                if not contains_map_or_variant(relation.types[p])
            ]
            test = " AND ".join(compared) or "TRUE"
            return self._run(
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
        lookups = LookUps(self._relations, self._indexes, {})
        wanted = {p: unique(rows.column(i)) for i, p in enumerate(places)}
        found = lookups.rows(relation, wanted)
        if found is None:
            return None
        # Each value was looked up by itself; what counts is all of a row's together.
        mask = among_rows([found.column(p) for p in places], rows.columns)
        return None if mask is None else consolidated(found.filter(mask))

    def _change(
        self,
        block: Block,
        deltas: Mapping[str, Part],
        program: Program | None,
        outputs: dict[str, pa.Table],
    ) -> Part | None:
        """The change of one block's relation; None if it cannot have changed.

        The last block of a program gives the change of the view too.
        """
        if isinstance(block, Full):
            reads = {r for name in block.reads for r in self._behind(name)}
            always = block.reason.code is Code.TIME_DEPENDENT
            if not always and not reads & set(deltas):
                return None
            anew = self._text(block, deltas)
            if program is not None and anew.rows:
                view = self._relations.arrow(anew)
                outputs[program.view] = view.rename_columns([*program.columns, Outcome.WEIGHT])
            return anew
        maintenance = self._maintenance(deltas)
        known = dict(deltas)
        if isinstance(block, Sums) and self._mergeable(block):
            summed = maintenance.summed(block)
            if summed is None:
                return None
            self._stage(maintenance, known)
            added = self._part(_SUMMED, summed, known)
            moved = self._merged(block, added)
            if moved is not None:
                return self._show_change(block, moved, program, known, outputs)
            known[_SUMMED] = added
            node = maintenance.merge(block, Leaf(_SUMMED, summed.columns, When.DELTA))
            return self._finish(block, node, program, known, outputs)
        if isinstance(block, Top) and self._rows_stay(block):
            candidates = maintenance.candidates(block)
            if candidates is None:
                return None
            self._stage(maintenance, known)
            come = self._added(block, self._part(_SUMMED, candidates, known))
            if come is not None:
                known[_SUMMED] = come
                leaf = Leaf(_SUMMED, candidates.columns, When.DELTA)
                node = maintenance.first_of(block, leaf)
                return self._finish(block, node, program, known, outputs)
        change = maintenance.plan(block)
        if change is None:
            return None
        self._stage(maintenance, known)
        return self._finish(block, change, program, known, outputs)

    def _stage(self, maintenance: Maintenance, known: dict[str, Part]) -> None:
        """Run the stages that were planned since."""
        for stage in maintenance.stages:
            if stage.relation not in known:
                known[stage.relation] = self._part(stage.relation, stage.node, known)

    def _finish(
        self,
        block: Block,
        change: Node,
        program: Program | None,
        known: Mapping[str, Part],
        outputs: dict[str, pa.Table],
    ) -> Part:
        if program is None:
            return self._part(block.relation, change, known)
        return self._presented(block, change, program, known, outputs)

    def _rows_stay(self, block: Top) -> bool:
        """Whether it can be told here that no row goes which was among the first."""
        few = block.input.limit is not None and block.input.offset == 0
        return few and all(comparable(f.type) for f in block.fields)

    def _added(self, block: Top, found: Part) -> Part | None:
        """The rows that come, unless one goes that was among the first, or nobody can tell."""
        lookups = LookUps(self._relations, self._indexes, {})
        first = lookups.rows(self._relations[block.relation], {})
        if found.table is None or first is None:
            return None
        first = consolidated(first)
        gone = found.table.filter(pc.less(found.table.column(WEIGHT), 0))
        names = [name for name in gone.column_names if name != WEIGHT]
        if gone.num_rows and first.num_rows:
            gone = gone.cast(first.schema)
            mask = among_rows(gone.select(names).columns, first.select(names).columns)
            if mask is None or pc.any(mask).as_py():
                return None
        come = found.table.filter(pc.greater(found.table.column(WEIGHT), 0))
        return Part(found.types, come.num_rows, come)

    def _mergeable(self, block: Sums) -> bool:
        types = tuple(f.type for f in block.fields)
        return mergeable(types, len(block.keys))

    def _merged(self, block: Sums, added: Part) -> Part | None:
        """Sums that were added to here; None if that is left to Spark."""
        if added.table is None:
            return None
        relation = self._relations[block.relation]
        lookups = LookUps(self._relations, self._indexes, {_SUMMED: added})
        leaf = Leaf(_SUMMED, tuple(f"c{i}" for i in range(len(block.fields))), When.DELTA)
        wanted = {i: lookups.values(leaf, i) for i in range(len(block.keys))}
        old = lookups.rows(relation, wanted)
        self._rows_read += lookups.rows_read
        table = None if old is None else merged(old, added.table, len(block.keys))
        return None if table is None else self._relations.in_memory(block.relation, table)

    def _show_change(
        self,
        block: Block,
        moved: Part,
        program: Program | None,
        known: Mapping[str, Part],
        outputs: dict[str, pa.Table],
    ) -> Part:
        """A change that is known already, and what it changes in the view."""
        if program is None or not moved.rows:
            return moved
        columns = self._names.several(len(block.fields))
        change = Leaf(block.relation, columns, When.DELTA)
        return self._presented(block, change, program, {**known, block.relation: moved}, outputs)

    def _presented(
        self,
        block: Block,
        change: Node,
        program: Program,
        known: Mapping[str, Part],
        outputs: dict[str, pa.Table],
    ) -> Part:
        change, lookups, small = self._reduced(change, known)
        sql = presented(change, program.output, self._table(known, lookups), single=small)
        width = len(change.columns)
        rows = self._rows(change, known, lookups)
        if rows > COLLECT_ROWS_MAX:
            whole = self._written(f"{block.relation}$shown", sql, rows)
            frame = self._relations.frame_of(whole)
            stored = frame.select(*frame.columns[: width + 1])
            moved = self._relations.as_run(block.relation, stored, whole.rows)
            shown = frame.where("shown").select(*frame.columns[width + 2 :], WEIGHT).toArrow()
        else:
            found = self._execute(sql, small=small)
            moved = self._relations.in_memory(
                block.relation, found.select(found.column_names[: width + 1])
            )
            shown = found.filter(found.column("shown"))
            shown = shown.select([*shown.column_names[width + 2 :], WEIGHT])
        view = consolidated(shown)
        if view.num_rows:
            outputs[program.view] = view.rename_columns([*program.columns, Outcome.WEIGHT])
        return moved

    def _behind(self, name: str) -> frozenset[str]:
        """The stored relations behind a table or view."""
        program = self._programs.get(name.lower())
        return relations(program.output) if program is not None else frozenset({name})

    def _text(self, block: Full, deltas: Mapping[str, Part]) -> Part:
        """The change of a view that is computed anew: what its text gives, less what it was."""
        self._show_all(deltas)
        names = tuple(f"c{i}" for i in range(len(block.fields)))
        text = at_time(block.text, self._time)
        self._spark.sql(text).toDF(*names).createOrReplaceTempView(_FRESH)
        old = self._relations.old(block.relation)
        columns = ", ".join(names)
        changed = self._run(
            f"SELECT {columns}, sum(w) AS w FROM (SELECT {columns}, 1L AS w FROM {_FRESH} "
            f"UNION ALL SELECT {columns}, -w AS w FROM {old}) "
            f"GROUP BY {columns} HAVING sum(w) <> 0"
        )
        return self._relations.in_memory(block.relation, changed)

    def _show_all(self, deltas: Mapping[str, Part]) -> None:
        """Let Spark find every table and view, as they are after the changes."""
        self._hurry(False)
        changed = frozenset(deltas)
        for table in self._tables.values():
            columns = self._names.several(len(table.columns))
            when = When.NEW if table.name in changed else When.OLD
            self._show_rows(table.name, Leaf(table.name, columns, when), _titles(table), deltas)
        for name, made in self._order.items():
            if isinstance(made, Program):
                node = self._maintenance(deltas).at(made.output, When.NEW)
                self._show_rows(made.view, node, made.columns, deltas)
            else:
                view, columns = self._defined[name]
                frame = self._spark.sql(at_time(view.query, self._time)).toDF(*columns)
                frame.createOrReplaceTempView(_quoted(view.name))

    def _show_rows(
        self, name: str, node: Node, columns: Sequence[str], deltas: Mapping[str, Part]
    ) -> None:
        frame = self._spark.sql(bag(node, self._table(deltas)))
        frame.toDF(*columns).createOrReplaceTempView(_quoted(name))

    # Reading

    def read(self, name: str) -> pa.Table:
        """The rows of a table or view as they are now."""
        with translated():
            return self.frame(name).toArrow()

    def frame(self, name: str) -> DataFrame:
        """A table or view as it is now, as a DataFrame."""
        self._show_all({})
        return self._spark.table(_quoted(name))

    def recompute(self, name: str) -> pa.Table:
        """What Spark answers for a view's query over the tables as they are now."""
        self._show_all({})
        view = self._views[name.lower()]
        columns = self._programs[name.lower()].columns
        with translated():
            text = at_time(view.query, self._time)
            return self._spark.sql(text).toDF(*columns).toArrow()

    def explain(self, name: str) -> Explained:
        """How a view is kept."""
        program = self._programs.get(name.lower())
        if program is None:
            raise InvalidError(f"there is no materialized view {name}")
        return explain(program, {})

    # Running

    def _maintenance(self, deltas: Mapping[str, Part]) -> Maintenance:
        return Maintenance(self._names, frozenset(deltas), self._estimates(deltas))

    def _estimates(self, deltas: Mapping[str, Part]) -> Estimates:
        return Estimates(
            self._relations.rows(),
            {name: delta.rows for name, delta in deltas.items()},
            self._unique(),
        )

    def _table(
        self, deltas: Mapping[str, Part], lookups: LookUps | None = None
    ) -> Callable[[str, When], str]:
        def table(relation: str, when: When) -> str:
            if lookups is not None and relation in lookups.found:
                found = lookups.found[relation]
                part = found.old if when is When.OLD else found.delta
                if part is None:
                    return self._relations.show_empty(relation, found.types)
                return self._relations.delta(f"{relation}${when.value}", part)
            if when is When.OLD:
                return self._relations.old(relation)
            delta = deltas.get(relation)
            if delta is None:
                return self._relations.show_empty(relation, self._relations[relation].types)
            return self._relations.delta(relation, delta)

        return table

    def _part(self, relation: str, node: Node, deltas: Mapping[str, Part]) -> Part:
        """Run a query and keep its result: columns c0, c1, ... and w."""
        node, lookups, small = self._reduced(node, deltas)
        sql = render(node, self._table(deltas, lookups), single=small).sql
        rows = self._rows(node, deltas, lookups)
        if rows > COLLECT_ROWS_MAX:
            return self._written(relation, sql, rows)
        if relation in self._relations:
            return self._relations.in_memory(relation, self._run(sql, small=small))
        return self._staged(sql, small=small)

    def _staged(self, sql: str, *, small: bool) -> Part:
        """The result of a stage, whose types nobody has said."""
        self._queries += 1
        self._hurry(small)
        with translated():
            frame = self._spark.sql(sql)
            names = [*(f"c{i}" for i in range(len(frame.columns) - 1)), WEIGHT]
            types = tuple(f.dataType.simpleString() for f in frame.schema.fields[:-1])
            table = frame.toArrow().rename_columns(names)
        return Part(types, table.num_rows, table.cast(arrow_schema(types)))

    def _reduced(self, node: Node, deltas: Mapping[str, Part]) -> tuple[Node, LookUps, bool]:
        """A plan that reads little, if one can be made, and whether all it reads is in memory."""
        lookups = LookUps(self._relations, self._indexes, deltas)
        node = flattened(reduced(node, lookups), lookups)
        leaves = [leaf for leaf in walk(node) if isinstance(leaf, Leaf)]
        parts = [part for leaf in leaves for part in self._read(leaf, deltas, lookups)]
        scanned = [part.rows for part in parts if part.table is None]
        self._rows_read += lookups.rows_read + sum(scanned)
        small = not scanned and sum(part.rows for part in parts) <= SMALL_ROWS_MAX
        return node, lookups, small

    def _read(self, leaf: Leaf, deltas: Mapping[str, Part], lookups: LookUps) -> list[Part]:
        """The parts that a leaf reads."""
        if leaf.relation in lookups.found:
            found = lookups.found[leaf.relation]
            return [part for part in (found.old, found.delta) if part is not None]
        parts = [] if leaf.when is When.DELTA else list(self._relations[leaf.relation].parts)
        if leaf.when is not When.OLD and leaf.relation in deltas:
            parts.append(deltas[leaf.relation])
        return parts

    def _rows(self, node: Node, deltas: Mapping[str, Part], lookups: LookUps) -> float:
        """Roughly how many rows a node gives."""
        estimates = self._estimates(deltas)
        old = {n: f.old.rows if f.old else 0 for n, f in lookups.found.items()}
        new = {n: f.delta.rows if f.delta else 0 for n, f in lookups.found.items()}
        return Estimates(
            {**estimates.rows, **old}, {**estimates.deltas, **new}, estimates.unique
        ).of(node)

    def _written(self, relation: str, sql: str, rows: float) -> Part:
        self._queries += 1
        self._hurry(False)
        with translated():
            frame = self._spark.sql(sql)
            if relation in self._relations or relation.startswith(STAGE):
                frame = frame.toDF(*(f"c{i}" for i in range(len(frame.columns) - 1)), WEIGHT)
            return self._relations.as_run(relation, frame, rows)

    def _run(self, sql: str, *, small: bool = False) -> pa.Table:
        found = self._execute(sql, small=small)
        return found.rename_columns([*(f"c{i}" for i in range(found.num_columns - 1)), WEIGHT])

    def _execute(self, sql: str, *, small: bool = False) -> pa.Table:
        self._queries += 1
        self._hurry(small)
        with translated():
            return self._spark.sql(sql).toArrow()

    def _hurry(self, small: bool) -> None:
        """Few rows are done sooner by a plan that is neither compiled nor spread out."""
        if self._hurried is not small:
            for key, value in _SMALL.items():
                own = self._own[key]
                if small or own is not None:
                    self._spark.conf.set(key, value if small else str(own))
                else:
                    self._spark.conf.unset(key)
            self._hurried = small


def _titles(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
