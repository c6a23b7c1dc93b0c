"""Relations as Spark sees them: parts with weights, shown under names no user can have.

A relation is a list of parts. A part is immutable: an Arrow table in memory, or a run, which is a
list of Parquet files. Parts have the columns c0, c1, ... and w, how often a row is there; rows of
several parts cancel out, and are summed up only by whoever needs them whole. A change set is a
part as well: what a transaction computes is what a relation keeps.

Small parts are folded into one now and then, so that a query never has many of them to read; when
many rows are in memory they become a run. Runs become one as `engine/tiers` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stepwell.engine.tiers import to_merge
from stepwell.errors import ensure
from stepwell.query.types import Field, SparkType, contains_map_or_variant, parse_type
from stepwell.spark.canonical import canonical, canonical_items
from stepwell.spark.index import comparable
from stepwell.spark.merge import consolidated
from stepwell.spark.ranges import by_ranges
from stepwell.spark.runs import WEIGHT, RunFiles, Runs, plain, sortable
from stepwell.spark.session import beside, within
from stepwell.state.manifest import Run

_PARTS_MAX = 6
"""Parts in memory before they are folded into one. Each costs a plan node in every query."""
MEMORY_ROWS_MAX = 100_000
"""Rows of a relation in memory before they become a run."""
SHIPPED_ROWS_MAX = 50_000
"""More rows than this Spark gets as a file: within a plan they would be slow."""
BROADCAST_ROWS_MAX = 1_000_000
"""Rows that every worker can hold."""
MERGED_ROWS_MAX = 5_000_000
"""Up to here they are merged all at once, which is sooner done than by a job of Spark's."""


@dataclass(slots=True, eq=False)
class Part:
    """One immutable piece of a relation, or a change to it."""

    types: tuple[str, ...]
    rows: int
    table: pa.Table | None = None
    """The rows, if they are in memory."""
    run: RunFiles | None = None
    """The rows in files, sorted as the relation's."""
    shipped: RunFiles | None = None
    """The rows in files, for Spark to read alone."""
    shown: DataFrame | None = field(default=None, repr=False)
    """As Spark sees it, once it has been asked to."""
    stored: tuple[Run, ...] = ()
    """The runs of the manifest that hold these rows; none until they were flushed."""
    once: bool | None = None
    """Whether it is a run in which every row is there once; None until somebody has looked."""


@dataclass(slots=True)
class Relation:
    """A stored relation of one pipeline."""

    name: str
    types: tuple[str, ...]
    key: tuple[int, ...]
    parts: list[Part] = field(default_factory=list)

    @property
    def schema(self) -> StructType:
        return schema_of(self.types)

    @property
    def rows(self) -> int:
        """How many rows its parts hold; more than the relation has, if some cancel out."""
        return sum(part.rows for part in self.parts)

    @property
    def sort(self) -> tuple[int, ...]:
        """The columns by which its runs are sorted."""
        return self.key if sortable(self.types, self.key) else ()


Keep = Callable[[str, RunFiles], tuple[Run, ...]]


class Merge:
    """Several runs of a relation that become one, while others use them (`engine.ports.Chore`)."""

    def __init__(self, relations: Relations, relation: Relation, parts: Sequence[Part]) -> None:
        self._relations = relations
        self._relation = relation
        self._parts = tuple(parts)
        self._merged: Part | None = None

    def run(self) -> None:
        merged = self._relations.summed(self._relation, self._parts)
        if merged.rows and merged.run is not None and merged.table is None:
            # So that the flush which names it need not write it.
            merged.stored = self._relations.keep(self._relation.name, merged.run)
        self._merged = merged

    def adopt(self) -> None:
        if self._merged is None or not self.possible:
            return
        files = self._files
        parts = self._relation.parts
        first = next(place for place, part in enumerate(parts) if id(part.run) in files)
        rest = [part for part in parts if id(part.run) not in files]
        new = [self._merged] if self._merged.rows else []
        self._relation.parts = [*rest[:first], *new, *rest[first:]]

    @property
    def possible(self) -> bool:
        """Parts are never changed, only replaced; those that were flushed kept their files."""
        return self._files <= {id(part.run) for part in self._relation.parts}

    @property
    def _files(self) -> set[int]:
        return {id(part.run) for part in self._parts}


class Relations:
    """All relations of a pipeline, and the names under which Spark finds them."""

    def __init__(self, spark: SparkSession, runs: Runs) -> None:
        self._spark = spark
        self._merging = beside(spark)
        """For merges, which should not have what a transaction sets for a few rows."""
        self.runs = runs
        self._all: dict[str, Relation] = {}
        self._shown: dict[str, object] = {}
        self.defer = False
        """Whether runs are merged beside the transactions instead of in them."""
        self.keep: Keep = lambda relation, run: ()
        """Stores the files of a merged run, beside the transactions; gives what names them."""
        self._begun: dict[str, tuple[Part, ...]] = {}
        """The last parts of each relation that were to be merged."""
        self.held = False
        """Whether parts must stay as they are, because a flush is under way."""

    def add(self, relation: Relation) -> None:
        self._all[relation.name] = relation

    def drop(self, name: str) -> None:
        self._all.pop(name, None)

    def __getitem__(self, name: str) -> Relation:
        return self._all[name]

    def __contains__(self, name: str) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[Relation]:
        return iter(self._all.values())

    def rows(self) -> dict[str, int]:
        return {name: relation.rows for name, relation in self._all.items()}

    # Parts

    def in_memory(self, name: str, table: pa.Table) -> Part:
        """Rows that this process holds, as a part of a relation."""
        relation = self._all[name]
        # Queries differ in what they say cannot be NULL; stored it is all one.
        table = canonical(table.cast(arrow_schema(relation.types)))
        return Part(relation.types, table.num_rows, table)

    def taken_in(self, name: str, table: pa.Table) -> Part:
        """A change of a table. A large one is a run at once, which Spark reads and which stays."""
        part, relation = self.in_memory(name, table), self._all[name]
        if part.rows > MEMORY_ROWS_MAX:
            part.run = self.runs.write(name, [part.table], relation.sort)
        return part

    def as_run(self, name: str, frame: DataFrame, rows: float) -> Part:
        """Rows that Spark computes and writes; they do not pass through this process."""
        relation = self._all.get(name)
        key = relation.sort if relation is not None else ()
        if relation is not None:
            names = [f"c{i}" for i in range(len(relation.types))]
            frame = frame.toDF(*names, WEIGHT).selectExpr(*canonical_items(relation.types), WEIGHT)
        run = self.runs.write_frame(name, frame, key, rows)
        if relation is not None:
            if run.rows <= MEMORY_ROWS_MAX:
                # Nobody knew that it would be so few.
                table = self.runs.read(run).cast(arrow_schema(relation.types))
                return Part(relation.types, run.rows, table)
            return Part(relation.types, run.rows, run=run)
        types = tuple(type_of(f.dataType) for f in frame.schema.fields[:-1])
        return Part(types, run.rows, run=run, shown=self.runs.frame(run, frame.schema))

    def frame_of(self, part: Part) -> DataFrame:
        """A part as Spark sees it."""
        if part.shown is None:
            large = part.rows > SHIPPED_ROWS_MAX and plain(part.types)
            if part.run is None and part.table is not None and large:
                part.shipped = self.runs.write("$shipped", [part.table], ())
            files = part.run or part.shipped
            if files is not None:
                part.shown = self.runs.frame(files, schema_of(part.types))
            else:
                ensure(part.table is not None, "a part is in memory or in files")
                part.shown = self.frame(part.table, part.types)
        return part.shown

    def arrow(self, part: Part) -> pa.Table:
        """The rows of a part in memory, wherever they are."""
        return part.table if part.table is not None else self.frame_of(part).toArrow()

    def append(self, name: str, part: Part) -> None:
        """Add a change set to a relation."""
        relation = self._all[name]
        if part.rows:
            if part.run is not None and part.rows > MEMORY_ROWS_MAX:
                # Those in memory come last.
                small = [p for p in relation.parts if p.table is not None]
                runs = [p for p in relation.parts if p.table is None]
                runs.append(Part(part.types, part.rows, run=part.run))
                relation.parts = [*runs, *small]
                if not (self.held or self.defer):
                    self._merge_now(relation)
                return
            relation.parts = [*relation.parts, part]
            if not self.held:
                self.fold(relation)

    def fold(self, relation: Relation) -> None:
        """Make few parts of many."""
        small = [p for p in relation.parts if p.table is not None]
        rest = [p for p in relation.parts if p.table is None]
        if sum(p.rows for p in small) > MEMORY_ROWS_MAX:
            folded = self._folded(relation, [p.table for p in small])
            relation.parts = [*rest, *([folded] if folded.rows else [])]
            if not self.defer:
                self._merge_now(relation)
            return
        for parts in ([p for p in small if p.stored], [p for p in small if not p.stored]):
            if len(parts) > _PARTS_MAX:
                whole = self.one(parts)
                small = [p for p in small if p not in parts]
                small.append(whole)
        relation.parts = [*rest, *small]

    def one(self, parts: Sequence[Part]) -> Part:
        """Several parts in memory as one."""
        table = pa.concat_tables([p.table for p in parts])
        stored = tuple(run for p in parts for run in p.stored)
        return Part(parts[0].types, table.num_rows, table, stored=stored)

    def _folded(self, relation: Relation, tables: Sequence[pa.Table]) -> Part:
        """Many rows that are in memory: a run, unless most of them cancel out."""
        table = pa.concat_tables(tables)
        if _consolidates(relation):
            table = consolidated(table)
            if table.num_rows <= MEMORY_ROWS_MAX // 2:
                return Part(relation.types, table.num_rows, table)
        run = self.runs.write(relation.name, [table], relation.sort)
        return Part(relation.types, run.rows, run=run)

    def chore(self) -> Merge | None:
        """What is to be merged now, if anything is.

        What was asked for last, and is still to be merged, has failed: it waits for another run.
        """
        for relation in self._all.values():
            parts = _to_merge(relation)
            if not parts:
                self._begun.pop(relation.name, None)
            elif self._begun.get(relation.name) != parts:
                self._begun[relation.name] = parts
                return Merge(self, relation, parts)
        return None

    def _merge_now(self, relation: Relation) -> None:
        parts = _to_merge(relation)
        if parts:
            rest = [part for part in relation.parts if part not in parts]
            relation.parts = [self.summed(relation, parts), *rest]

    def compact(self, relation: Relation) -> None:
        """Make one part of all."""
        small = [p for p in relation.parts if p.table is not None]
        large = [p for p in relation.parts if p.table is None]
        parts: list[Part] = []
        if small:
            table = pa.concat_tables([p.table for p in small])
            table = consolidated(table) if _consolidates(relation) else table
            parts = [Part(relation.types, table.num_rows, table)]
            if large:
                run = self.runs.write(relation.name, [table], relation.sort)
                parts = [self.summed(relation, [*large, Part(relation.types, run.rows, run=run)])]
        elif large:
            parts = [self.summed(relation, large)]
        relation.parts = [part for part in parts if part.rows]

    def summed(self, relation: Relation, last: Sequence[Part]) -> Part:
        """Several runs as one, in which rows that came and went are no more."""
        rows = sum(p.rows for p in last)
        pieces = self._summed_here(relation, [cast(RunFiles, p.run) for p in last], rows)
        if pieces is not None:
            run = self.runs.write(relation.name, pieces, relation.sort)
            return Part(relation.types, run.rows, run=run)
        columns = [f"c{i}" for i in range(len(relation.types))]
        summed = (
            within(self._merging, self._together(last))
            .groupBy(*columns)
            .agg({WEIGHT: "sum"})
            .toDF(*columns, WEIGHT)
            .where(f"{WEIGHT} <> 0")
        )
        return self.as_run(relation.name, summed, rows)

    def _summed_here(
        self, relation: Relation, runs: Sequence[RunFiles], rows: int
    ) -> Iterable[pa.Table] | None:
        """The same in this process; None if Spark has to do it."""
        if not _consolidates(relation):
            return None
        schema = arrow_schema(relation.types)
        if rows <= MERGED_ROWS_MAX:
            tables = [self.runs.read(run).cast(schema) for run in runs]
            return [consolidated(pa.concat_tables(tables))]
        if self.runs.elsewhere or not relation.sort or any(run.places for run in runs):
            return None
        return by_ranges(runs, relation.sort[0], schema)

    # What Spark sees

    def frame(self, table: pa.Table, types: Sequence[str]) -> DataFrame:
        """An Arrow table with these types and a weight, as a DataFrame."""
        if not table.num_rows:
            # Without chunks, which pyspark cannot take.
            return self._spark.sql(f"SELECT * FROM {nothing(types)}")
        # In one chunk: Spark 4.3 reads batches up to the first empty one, and drops the rest.
        whole = table.combine_chunks()
        return self._spark.createDataFrame(whole, schema=schema_of(tuple(types)))

    def old(self, name: str) -> str:
        """The table that shows a relation as it is stored."""
        relation = self._all[name]
        if not relation.parts:
            return nothing(relation.types)
        shown = view_name(name, "old")
        # The parts themselves, not their ids: those are given again.
        version = tuple(relation.parts)
        if self._shown.get(shown) != (version, relation.types):
            self._together(relation.parts).createOrReplaceTempView(f"`{shown}`")
            self._shown[shown] = (version, relation.types)
        return f"`{shown}`"

    def delta(self, name: str, part: Part) -> str:
        """The table that shows a change set."""
        if not part.rows:
            return nothing(part.types)
        shown = view_name(name, "delta")
        if self._shown.get(shown) is not part:
            self.frame_of(part).createOrReplaceTempView(f"`{shown}`")
            self._shown[shown] = part
        return f"`{shown}`"

    def _together(self, parts: Sequence[Part]) -> DataFrame:
        frame = self.frame_of(parts[0])
        for part in parts[1:]:
            frame = frame.unionAll(self.frame_of(part))
        return frame

    def plain_rows(self, name: str, delta: Part | None) -> DataFrame | None:
        """The rows of a relation that has a key and is mostly one run, as they are after a change.

        That run is only read past: a row of it is gone if the rest takes it out. Not any row with
        its key: a run may hold the row before and the row after, if what took the first one out is
        still in memory. None: the relation is not of this kind, and its parts have to be summed up.
        """
        relation = self._all[name]
        parts = [*relation.parts, *([delta] if delta is not None else [])]
        large = max(parts, key=lambda part: part.rows, default=None)
        if large is None or not relation.key or not _once(large):
            return None
        if any(map(contains_map_or_variant, relation.types)):
            return None
        columns = [f"c{i}" for i in range(len(relation.types))]
        run = self.frame_of(large).select(*columns)
        rest = [part for part in parts if part is not large]
        if not rest:
            return run
        moved = self._together(rest).groupBy(*columns).agg({WEIGHT: "sum"}).toDF(*columns, WEIGHT)
        gone = moved.where(f"{WEIGHT} < 0").selectExpr(*(f"{c} AS gone_{c}" for c in columns))
        same = [run[c].eqNullSafe(gone[f"gone_{c}"]) for c in columns]
        if sum(part.rows for part in rest) <= BROADCAST_ROWS_MAX:
            gone = gone.hint("broadcast")
        stay = run.join(gone, same, "left_anti")
        return stay.unionAll(moved.where(f"{WEIGHT} > 0").select(*columns))


def _to_merge(relation: Relation) -> tuple[Part, ...]:
    """The runs of a relation that should be one."""
    runs = [part for part in relation.parts if part.table is None]
    if len(runs) < 2:
        return ()
    return tuple(runs[place] for place in to_merge([part.rows for part in runs]))


def _once(part: Part) -> bool:
    """Whether a part is a run in which every row is there once, by what its files say of it."""
    if part.once is None:
        part.once = part.run is not None and part.table is None and part.run.weights == (1, 1)
    return part.once


def _consolidates(relation: Relation) -> bool:
    """Whether Arrow can compare its rows."""
    return all(map(comparable, relation.types))


def nothing(types: Sequence[str]) -> str:
    """A table without rows, for a query to read: sooner said in its text than shown to Spark."""
    columns = ", ".join(f"CAST(NULL AS {kind}) AS c{i}" for i, kind in enumerate(types))
    return f"(SELECT {columns}, 1L AS {WEIGHT} WHERE FALSE)"


def view_name(name: str, kind: str) -> str:
    """No table of a user is called like this: `$` is not allowed in their names."""
    return f"$stepwell${kind}${name}".replace("`", "``")


def schema_table(types: Sequence[str]) -> pa.Table:
    """An empty change set."""
    return arrow_schema(tuple(types)).empty_table()


def type_of(kind: DataType) -> str:
    """The canonical text of a type. That which Spark gives cannot always be read again."""
    return str(_tree(kind))


def _tree(kind: DataType) -> SparkType:
    match kind:
        case ArrayType():
            return SparkType("array", elements=(_tree(kind.elementType),))
        case MapType():
            return SparkType("map", elements=(_tree(kind.keyType), _tree(kind.valueType)))
        case StructType():
            return SparkType("struct", fields=tuple(Field(f.name, _tree(f.dataType)) for f in kind))
        case _:
            return parse_type(kind.simpleString())


@lru_cache(maxsize=10_000)
def schema_of(types: tuple[str, ...]) -> StructType:
    """The schema of a part."""
    columns = [f"c{i} {kind}" for i, kind in enumerate(types)]
    schema = StructType.fromDDL(", ".join([*columns, f"{WEIGHT} BIGINT"]))
    ensure(isinstance(schema, StructType), "a list of columns is a struct")
    return cast(StructType, schema)


@lru_cache(maxsize=10_000)
def arrow_schema(types: tuple[str, ...]) -> pa.Schema:
    """The same for Arrow. Moments are kept in UTC, whatever a session shows them in."""
    return to_arrow_schema(schema_of(types), timezone="UTC")
