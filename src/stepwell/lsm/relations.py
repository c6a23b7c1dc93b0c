"""All relations of a pipeline: their memtables, their runs, and the compaction of runs.

Small parts are folded into one from time to time, so that no query has to read many of them. A
memtable with many rows becomes a run. `lsm/tiering` decides which runs are compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, cast

import pyarrow as pa

from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.canonical import canonical
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.index import Indexes
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.range_compaction import by_ranges
from stepwell.lsm.run_file import Locate, RunFiles
from stepwell.lsm.tiering import to_merge
from stepwell.lsm.values import comparable
from stepwell.manifest.manifest import Run
from stepwell.store.base import Store

_PARTS_MAX = 6
"""Maximum number of parts in memory; more are folded. Each adds a node to every query plan."""


class RunStorage(Protocol):
    """Writes and reads runs."""

    elsewhere: bool
    """Whether other machines read runs as well."""

    def write(self, relation: str, pieces: Iterable[pa.Table], key: Sequence[int]) -> RunFiles:
        """Write a run from tables in memory, one at a time."""

    def read(self, run: RunFiles) -> pa.Table:
        """Read a run into memory; requires types that Arrow reads as Spark wrote them."""

    def opened(self, files: Locate, stored: tuple[Run, ...]) -> RunFiles:
        """A run of the manifest, whose files this process has or fetches when it needs them."""

    def publish(self, store: Store, relation: str, run: RunFiles) -> tuple[Run, ...]:
        """Store a run durably, for the next manifest to reference."""

    def published(self, run: RunFiles, stored: tuple[Run, ...]) -> bool:
        """Called when the manifest references the run. Returns whether its location changed."""


StoreRun = Callable[[str, RunFiles], tuple[Run, ...]]
CompactLarge = Callable[[Relation, Sequence[Part]], Part]
"""Compacts runs that this process cannot: too large, or with rows that Arrow cannot compare."""


class CompactionTask:
    """Compacts several runs of a relation while transactions use them."""

    def __init__(self, relations: Relations, relation: Relation, parts: Sequence[Part]) -> None:
        self._relations = relations
        self._relation = relation
        self._parts = tuple(parts)
        self._merged: Part | None = None

    def run(self) -> None:
        merged = self._relations.merge(self._relation, self._parts)
        if merged.rows and merged.run is not None and merged.table is None:
            # Store it now, so that the flush that references it need not write it.
            merged.stored = self._relations.store_compacted(self._relation, merged.run, self._parts)
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
        """Whether the relation still has these parts. Parts are only replaced, never changed, and a
        flush keeps their files."""
        return self._files <= {id(part.run) for part in self._relation.parts}

    @property
    def _files(self) -> set[int]:
        return {id(part.run) for part in self._parts}


class Relations:
    """All relations of a pipeline, by name.

    Without `compact_large`, this process compacts runs of any size.
    """

    def __init__(
        self,
        runs: RunStorage,
        compact_large: CompactLarge | None = None,
        indexes: Indexes | None = None,
        limits: MemoryLimits | None = None,
    ) -> None:
        self._runs = runs
        self._indexes = indexes
        self._compact_large = compact_large
        self.limits = limits or MemoryLimits()
        self._all: dict[str, Relation] = {}
        self._store: StoreRun | None = None
        """Stores a compacted run; None if runs are not compacted in the background."""
        self._begun: dict[str, tuple[Part, ...]] = {}
        """The parts of each relation for which a compaction was last started."""
        self._held = False
        """Whether parts must not be replaced, because a flush is in progress."""

    def compact_in_background(self, store: StoreRun) -> None:
        """Leave compaction to the tasks of `compaction` from now on. They store runs with this
        function, which returns the references to their files."""
        self._store = store

    def hold_parts(self) -> None:
        """Replace no part until `release_parts`: a flush writes them."""
        self._held = True

    def release_parts(self) -> None:
        self._held = False

    def add(self, relation: Relation) -> None:
        self._all[relation.name] = relation

    def drop(self, name: str) -> None:
        self._all.pop(name, None)

    def __getitem__(self, name: str) -> Relation:
        return self._all[name]

    def get(self, name: str) -> Relation | None:
        return self._all.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[Relation]:
        return iter(self._all.values())

    @property
    def rows(self) -> Mapping[str, int]:
        """The number of rows of each relation, counted when it is asked for."""
        return _RowCounts(self._all)

    # Parts

    def in_memory(self, name: str, table: pa.Table) -> Part:
        """Turn a table in memory into a part of a relation."""
        relation = self._all[name]
        # Query schemas differ in nullability; stored parts all have the same schema.
        table = canonical(table.cast(arrow_schema(relation.types)))
        return Part(relation.types, table.num_rows, table)

    def taken_in(self, name: str, table: pa.Table) -> Part:
        """Turn the change set of a table into a part. A large one is written as a run at once,
        which Spark reads and the relation keeps."""
        part, relation = self.in_memory(name, table), self._all[name]
        if part.rows > self.limits.memory_rows_max:
            part.run = self._runs.write(name, [part.table], relation.sort)
        return part

    def append(self, name: str, part: Part) -> None:
        """Append a change set to a relation."""
        relation = self._all[name]
        if part.rows:
            if part.run is not None and part.rows > self.limits.memory_rows_max:
                # Parts in memory come last.
                small = [p for p in relation.parts if p.table is not None]
                runs = [p for p in relation.parts if p.table is None]
                runs.append(Part(part.types, part.rows, run=part.run))
                relation.parts = [*runs, *small]
                if not self._held:
                    self._merge_now(relation)
                return
            relation.parts = [*relation.parts, part]
            if not self._held:
                self.fold(relation)

    def fold(self, relation: Relation) -> None:
        """Reduce the number of parts."""
        small = [p for p in relation.parts if p.table is not None]
        rest = [p for p in relation.parts if p.table is None]
        if sum(p.rows for p in small) > self.limits.memory_rows_max:
            folded = self._fold_parts(relation, [p.table for p in small])
            relation.parts = [*rest, *([folded] if folded.rows else [])]
            self._merge_now(relation)
            return
        for parts in ([p for p in small if p.stored], [p for p in small if not p.stored]):
            if len(parts) > _PARTS_MAX:
                whole = self.one(parts)
                small = [p for p in small if p not in parts]
                small.append(whole)
        relation.parts = [*rest, *small]

    def one(self, parts: Sequence[Part]) -> Part:
        """Concatenate several parts in memory."""
        table = pa.concat_tables([p.table for p in parts])
        stored = tuple(run for p in parts for run in p.stored)
        return Part(parts[0].types, table.num_rows, table, stored=stored)

    def _fold_parts(self, relation: Relation, tables: Sequence[pa.Table]) -> Part:
        """Many rows in memory as a run, or still in memory if most of them cancel out."""
        table = pa.concat_tables(tables)
        if _consolidates(relation):
            table = consolidated(table)
            if table.num_rows <= self.limits.memory_rows_max // 2:
                return Part(relation.types, table.num_rows, table)
        run = self._runs.write(relation.name, [table], relation.sort)
        return Part(relation.types, run.rows, run=run)

    def store_compacted(
        self, relation: Relation, run: RunFiles, replaced: Sequence[Part]
    ) -> tuple[Run, ...]:
        """Store a compacted run, and index it like the runs it replaces, so that no transaction has
        to. Returns the references to its files."""
        stored = () if self._store is None else self._store(relation.name, run)
        if self._indexes is not None:
            others = [part.run for part in replaced if part.run is not None]
            self._indexes.build_like(run, others, arrow_schema(relation.types))
        return stored

    def compaction(self) -> CompactionTask | None:
        """The next compaction task, if any is due.

        A compaction that was started last time and is still due has failed. It is not retried until
        the relation has another run.
        """
        for relation in self._all.values():
            parts = _to_merge(relation)
            if not parts:
                self._begun.pop(relation.name, None)
            elif self._begun.get(relation.name) != parts:
                self._begun[relation.name] = parts
                return CompactionTask(self, relation, parts)
        return None

    def _merge_now(self, relation: Relation) -> None:
        """Compact runs if it is due, and not left to a background task."""
        parts = () if self._store is not None else _to_merge(relation)
        if parts:
            rest = [part for part in relation.parts if part not in parts]
            relation.parts = [self.merge(relation, parts), *rest]

    def compact(self, relation: Relation) -> None:
        """Reduce a relation to one part."""
        small = [p for p in relation.parts if p.table is not None]
        large = [p for p in relation.parts if p.table is None]
        parts: list[Part] = []
        if small:
            table = pa.concat_tables([p.table for p in small])
            table = consolidated(table) if _consolidates(relation) else table
            parts = [Part(relation.types, table.num_rows, table)]
            if large:
                run = self._runs.write(relation.name, [table], relation.sort)
                parts = [self.merge(relation, [*large, Part(relation.types, run.rows, run=run)])]
        elif large:
            parts = [self.merge(relation, large)]
        relation.parts = [part for part in parts if part.rows]

    def merge(self, relation: Relation, parts: Sequence[Part]) -> Part:
        """Merge several runs into one, without the rows that cancel out."""
        pieces = self._compacted_here(relation, [cast(RunFiles, p.run) for p in parts])
        if pieces is None and self._compact_large is not None:
            return self._compact_large(relation, parts)
        if pieces is None:
            pieces = [consolidated(pa.concat_tables(self.table(part) for part in parts))]
        run = self._runs.write(relation.name, pieces, relation.sort)
        return Part(relation.types, run.rows, run=run)

    def table(self, part: Part) -> pa.Table:
        """The rows of a part in memory."""
        if part.table is not None:
            return part.table
        return self._runs.read(cast(RunFiles, part.run)).cast(arrow_schema(part.types))

    def _compacted_here(
        self, relation: Relation, runs: Sequence[RunFiles]
    ) -> Iterable[pa.Table] | None:
        """Like `merge`, in this process; None if the rows are too many, or not comparable."""
        if not _consolidates(relation) or not all(run.here for run in runs):
            return None
        schema = arrow_schema(relation.types)
        if sum(run.rows for run in runs) <= self.limits.merged_rows_max:
            tables = [self._runs.read(run).cast(schema) for run in runs]
            return [consolidated(pa.concat_tables(tables))]
        if self._runs.elsewhere or not relation.sort or any(run.places for run in runs):
            return None
        return by_ranges(runs, relation.sort[0], schema)


class _RowCounts(Mapping[str, int]):
    def __init__(self, relations: Mapping[str, Relation]) -> None:
        self._relations = relations

    def __getitem__(self, name: str) -> int:
        return self._relations[name].rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._relations)

    def __len__(self) -> int:
        return len(self._relations)


def _to_merge(relation: Relation) -> tuple[Part, ...]:
    """The runs of a relation that should be compacted into one."""
    runs = [part for part in relation.parts if part.table is None]
    if len(runs) < 2:
        return ()
    return tuple(runs[place] for place in to_merge([part.rows for part in runs]))


def _consolidates(relation: Relation) -> bool:
    """Whether Arrow can compare the relation's rows."""
    return all(map(comparable, relation.types))
