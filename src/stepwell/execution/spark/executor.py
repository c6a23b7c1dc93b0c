"""The engine's executor on Spark: views, and their runs in the pipeline's store.

    execute, apply  `Views.execute` and `Views.add`
    flush           writes every part that is not in a run: `runs/<relation>/<id>.parquet`
    load            replaces the parts with those of the runs

A run is written whole, with put-if-absent, and the manifest records its size and checksum. A crash
during a flush leaves orphan runs that no manifest references; they are never read. Small runs are
verified and held in memory. Large runs are read in place, or from a local copy if the store is
remote. Spark's workers read them from the store if they are not on this machine.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from stepwell.env import Env
from stepwell.errors import CorruptError, ensure
from stepwell.execution.executor import Executed, ExecutorFactory, Report, not_reported
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
from stepwell.journal import paths
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.cache import Cache, Usage
from stepwell.lsm.change import Change, Rejected
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.dead_letter import ERRORS, Letters
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.relations import MEMORY_ROWS_MAX, CompactionTask
from stepwell.lsm.reshape import reshaped
from stepwell.lsm.run_file import RunFiles, parquet_bytes
from stepwell.lsm.table_diff import Pieces
from stepwell.lsm.tiering import alike, to_merge
from stepwell.lsm.values import comparable
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import check_file, read_run, write_run
from stepwell.plan.described import DescribedView, describe, readable
from stepwell.plan.explain import Explained
from stepwell.plan.nodes import relations
from stepwell.plan.program import Program
from stepwell.sql.lineage import Bound, Columns
from stepwell.sql.statements import Statement
from stepwell.store.base import Store

_LOCAL = "file://"


def spark_executor(
    sql: str,
    *,
    name: str = "pipeline.sql",
    declared: Sequence[Statement] | None = None,
    settings: SessionSettings | None = None,
    spark: SparkSession | None = None,
    cache: Callable[[Env], Cache] | None = None,
    use: Use = Use.LOCAL,
) -> ExecutorFactory:
    """Creates executors for these tables and views, in the given Spark or one of our own.

    `declared` are the same statements already parsed, each from its own file, where messages point.
    Without a `cache`, data derived from runs is deleted with the executor.
    """

    def factory(store: Store, env: Env) -> SparkExecutor:
        session = spark or open_session(settings or SessionSettings())
        shared = None if on_this_machine(session) else _shared(store, env)
        views = Views.open(
            session,
            sql,
            name=name,
            declared=declared,
            env=env,
            settings=settings,
            runs=shared,
            cache=None if cache is None else cache(env),
            use=use,
        )
        return SparkExecutor(views, store, env)

    return factory


def _shared(store: Store, env: Env) -> MakeRuns:
    """Runs that workers on other machines read and write in the pipeline's own store."""
    return lambda spark, folder: SharedRuns(spark, store, env, folder)


@dataclass(frozen=True, slots=True)
class _Written:
    """Parts of a relation that a new run replaces, once it is committed."""

    relation: Relation
    parts: tuple[Part, ...]
    become: Part | None
    """None if their rows cancel out."""


class SparkExecutor:
    """Implements `Executor`. Not safe to use from several threads."""

    def __init__(self, views: Views, store: Store, env: Env) -> None:
        self._views = views
        self._relations = views.stored
        self._store = store
        self._env = env
        self._relations.defer = True
        self._relations.store = self._keep_merged
        self._below: str | None = None
        self._first = {relation.name: list(relation.parts) for relation in self._relations}
        self._written: list[_Written] = []
        own = tempfile.TemporaryDirectory(prefix="stepwell-copies-")
        weakref.finalize(self, own.cleanup)
        self._copies = Path(own.name)
        self._java = java_process()
        self._description: str | None = None
        self._report: Report = not_reported

    def lost(self) -> str | None:
        """Why the executor is no longer usable: its Java has ended."""
        return has_ended(self._java)

    def cache_usage(self) -> Usage:
        """The cache's fill level and hit counts."""
        return self._views.cache.usage()

    def tables(self) -> Mapping[str, tuple[str, ...]]:
        return self._views.tables()

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
        # A flush that was not committed is over: no transaction runs during a flush. So its parts
        # need not be preserved, and parts may be folded.
        self._written = []
        self._relations.held = False
        self._views.add(executed)

    # Storing

    def unflushed_bytes(self) -> int:
        return sum(_bytes(part) for r in self._relations for part in r.parts if not part.stored)

    def background_task(self) -> CompactionTask | None:
        # When the next task is requested, the last one is over. The task's runs get higher ids.
        self._below = self._env.new_id()
        merge = self._relations.compaction()
        if merge is None:
            self._below = None
        return merge

    def id_floor(self) -> str | None:
        return self._below

    def compact(self, *, own: bool = False) -> None:
        relations = list(self._relations)
        for number, relation in enumerate(relations):
            self._report("compacting", number, len(relations), "relation")
            stored = [run for part in relation.parts for run in part.stored]
            many = len(relation.parts) > 1 or any(map(_many, relation.parts))
            if many or (own and any(run.root for run in stored)):
                self._relations.compact(relation)

    def flush(self) -> tuple[Run, ...]:
        self._written = []
        # The parts written now must still be there when the flush is committed.
        self._relations.held = True
        for relation in self._relations:
            self._flush(relation)
        covered = {id(part) for written in self._written for part in written.parts}
        kept = [p for r in self._relations for p in r.parts if id(p) not in covered]
        new = [w.become for w in self._written if w.become is not None]
        return tuple(run for part in [*kept, *new] for run in part.stored)

    def _flush(self, relation: Relation) -> None:
        small = [p for p in relation.parts if p.table is not None]
        fresh = [p for p in small if not p.stored]
        if fresh:
            together = _with_it(small, alone=len(small) == len(relation.parts))
            parts = [p for p in small if not p.stored or p in together]
            self._written.append(_Written(relation, tuple(parts), self._as_run(relation, parts)))
        for part in relation.parts:
            if part.run is not None and part.table is None and not part.stored:
                runs = self._store_files(relation.name, part.run)
                become = Part(part.types, part.rows, run=part.run, shown=part.shown, stored=runs)
                self._written.append(_Written(relation, (part,), become))

    def _store_files(self, relation: str, files: RunFiles) -> tuple[Run, ...]:
        """Write a run to the store, file by file."""
        runs = self._views.runs.publish(self._store, relation, files)
        if len(runs) == 1:
            return runs
        first = paths.parse(runs[0].path).id
        return tuple(replace(run, group=first) for run in runs)

    def _keep_merged(self, relation: str, files: RunFiles) -> tuple[Run, ...]:
        runs = self._store_files(relation, files)
        self._views.runs.published(files, runs)
        return runs

    def _as_run(self, relation: Relation, parts: Sequence[Part]) -> Part | None:
        table = pa.concat_tables([part.table for part in parts])
        if all(map(comparable, relation.types)):
            table = consolidated(table)
        if not table.num_rows:
            return None
        run = write_run(
            self._store,
            self._env,
            relation.name,
            parquet_bytes(table, relation.sort),
            table.num_rows,
        )
        return Part(relation.types, table.num_rows, table, stored=(run,))

    def described(self) -> str:
        if self._description is None:
            self._description = describe(map(self._described, self._views.programs))
        return self._description

    def _described(self, program: Program) -> DescribedView:
        explained = self.explain(program.view)
        reads = relations(program.output)
        plain = readable(program.output)
        return DescribedView(
            program.view,
            program.columns,
            program.types,
            program.output if plain else None,
            self._relations[min(reads)].types if plain else (),
            str(explained),
            explained.to_json(),
        )

    def on_flushed(self, runs: Sequence[Run]) -> None:
        for written in self._written:
            gone = {id(part) for part in written.parts}
            rest = [part for part in written.relation.parts if id(part) not in gone]
            ensure(
                len(rest) + len(gone) == len(written.relation.parts), "a flush is of what is there"
            )
            become = [] if written.become is None else [written.become]
            for part in become:
                if part.run is not None and self._views.runs.published(part.run, part.stored):
                    part.shown = None
            # Large parts come first.
            written.relation.parts = [*become, *rest] if _large(become) else [*rest, *become]
        self._written = []
        self._relations.held = False
        for relation in self._relations:
            self._relations.fold(relation)

    def load(self, runs: Sequence[Run]) -> None:
        self._written = []
        self._relations.held = False
        by_name = {relation.name: relation for relation in self._relations}
        found: dict[str, list[Part]] = {name: [] for name in by_name}
        loaded, total = 0, sum(run.rows for run in runs)
        for together in _grouped(runs):
            name = together[0].relation
            if name not in by_name:
                raise CorruptError(
                    together[0].path,
                    f"a run of {name}, which this pipeline does not have",
                    hint="the tables and views differ from those it was created with",
                )
            found[name].append(self._part(by_name[name], together, found[name]))
            loaded += sum(run.rows for run in together)
            self._report("loading", loaded, total, "row")
        for name, relation in by_name.items():
            # Before the first flush, the state is that of empty tables.
            relation.parts = found[name] if runs else list(self._first[name])

    def relations(self) -> Mapping[str, str]:
        return self._views.owners()

    def build(self, view: str) -> None:
        self._views.build(view)

    def fill(self, table: str, rows: pa.Table) -> tuple[Rejected, ...]:
        return self._views.fill(table, rows)

    def bound(self, view: str, tables: Mapping[str, Columns]) -> Bound | None:
        return self._views.bound(view, tables)

    def _part(self, relation: Relation, runs: tuple[Run, ...], before: Sequence[Part]) -> Part:
        here = sum(part.rows for part in before if part.table is not None)
        rows = sum(run.rows for run in runs)
        if here + rows <= MEMORY_ROWS_MAX:
            bodies = [read_run(self._store, run, self._env) for run in runs]
            schema = arrow_schema(relation.types)
            table = pa.concat_tables(
                reshaped(pq.read_table(pa.BufferReader(body)), run.columns).cast(schema)
                for body, run in zip(bodies, runs, strict=True)
            )
            return Part(relation.types, rows, table, stored=runs)
        files = self._views.runs.opened(tuple(map(self._file, runs)), runs)
        return Part(relation.types, rows, run=files, stored=runs)

    def _file(self, run: Run) -> Path:
        """A path at which Spark and Arrow can read a run: in the store itself, or a local copy."""
        uri = run.root or self._store.uri
        if uri.startswith(_LOCAL):
            return check_file(Path(uri.removeprefix(_LOCAL)) / run.path, run)
        copy = self._copies / run.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(read_run(self._store, run, self._env))
        return copy

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


def _with_it(small: Sequence[Part], *, alone: bool) -> list[Part]:
    """The flushed parts in memory to rewrite together with the unflushed ones.

    Next to a large run their size hardly matters, so only their number counts.
    """
    held = [(run.rows, part) for part in small for run in part.stored]
    new = sum(part.rows for part in small if not part.stored)
    rows = [*(rows for rows, _ in held), new]
    places = to_merge(rows) if alone else alike(rows)
    return [held[place][1] for place in places if place < len(held)]


def _grouped(runs: Sequence[Run]) -> list[tuple[Run, ...]]:
    """Group the files that were written as one run."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(f"{run.relation}/{run.group}" if run.group else run.path, []).append(run)
    return [tuple(group) for group in groups.values()]


def _bytes(part: Part) -> int:
    if part.table is not None:
        return int(part.table.nbytes)
    return part.run.bytes if part.run is not None else 0


def _many(part: Part) -> bool:
    """Whether several runs hold a part. A part in files is one run, of any number of files."""
    return part.table is not None and len(part.stored) > 1


def _large(parts: Sequence[Part]) -> bool:
    return any(part.table is None for part in parts)
