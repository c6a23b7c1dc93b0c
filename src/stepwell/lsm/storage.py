"""The relations of a pipeline in its store: flush, load and compaction.

    flush   writes every part that is not in a run: `runs/<relation>/<id>.parquet`
    load    replaces the parts with those of the runs

A run is written whole, with put-if-absent, and the manifest records its size and checksum. A crash
during a flush leaves orphan runs that no manifest references; they are never read. Small runs are
verified and held in memory. Large runs are read in place, or from a local copy if the store is
remote. They are verified or copied when they are first read, before anything is computed with
them: loading takes the same time whatever they hold, and a run whose columns are in the cache may
never be read at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stepwell.env import Env
from stepwell.errors import CorruptError, ensure
from stepwell.journal import paths
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.relations import CompactionTask, Relations, RunStorage
from stepwell.lsm.reshape import reshaped
from stepwell.lsm.run_file import RunFiles, parquet_bytes
from stepwell.lsm.scratch import Scratch
from stepwell.lsm.tiering import Tiering, like_sized, to_merge
from stepwell.lsm.values import comparable
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import check_file, check_size, read_run, write_run
from stepwell.store.base import Store

_LOCAL = "file://"

Report = Callable[[str, int, int, str], None]

"""Receives the progress of long work: a description, the amount done, the total, and the unit."""


def not_reported(what: str, done: int, total: int, unit: str) -> None:
    """Discard the report."""


@dataclass(frozen=True, slots=True)
class _Written:
    """Parts of a relation that a new run replaces, once it is committed."""

    relation: Relation
    parts: tuple[Part, ...]
    become: Part | None
    """None if their rows cancel out."""


class RelationStorage:
    """Flushes relations to runs of a store, and loads them. Not safe to use from several threads.

    `background`: whether runs are compacted by `background_task` instead of in transactions.
    `tiering` decides which runs in memory a flush rewrites, if there are no larger ones.
    """

    def __init__(
        self,
        relations: Relations,
        runs: RunStorage,
        store: Store,
        env: Env,
        *,
        background: bool = False,
        tiering: Tiering = to_merge,
    ) -> None:
        self._relations = relations
        self._runs = runs
        self._store = store
        self._env = env
        self._tiering = tiering
        self._first = {relation.name: list(relation.parts) for relation in relations}
        self._written: list[_Written] = []
        self._copies = Scratch("stepwell-copies-")
        self._floor: str | None = None
        if background:
            relations.compact_in_background(self._store_compacted)

    def unflushed_bytes(self) -> int:
        return sum(_bytes(part) for r in self._relations for part in r.parts if not part.stored)

    # Compaction

    def background_task(self) -> CompactionTask | None:
        """The next compaction, if any is due."""
        # When the next task is requested, the last one is over. The task's runs get higher ids.
        self._floor = self._env.new_id()
        task = self._relations.compaction()
        if task is None:
            self._floor = None
        return task

    def id_floor(self) -> str | None:
        """An id below those of the runs that a running task writes; None if none runs."""
        return self._floor

    def compact(self, *, own: bool = False, report: Report = not_reported) -> None:
        """Compact each relation to one run, which the next flush writes.

        `own`: also rewrite a single run if it is in the store of a clone's parent.
        """
        relations = list(self._relations)
        for number, relation in enumerate(relations):
            report("compacting", number, len(relations), "relation")
            stored = [run for part in relation.parts for run in part.stored]
            many = len(relation.parts) > 1 or any(map(_many, relation.parts))
            if many or (own and any(run.root for run in stored)):
                self._relations.compact(relation)

    def _store_compacted(self, relation: str, files: RunFiles) -> tuple[Run, ...]:
        runs = self._publish(relation, files)
        self._runs.published(files, runs)
        return runs

    # Flush

    def flush(self) -> tuple[Run, ...]:
        """Write all parts that are not in any run, and return all runs.

        Until `on_flushed` is called, another call writes and returns new runs again.
        """
        self._written = []
        # The parts written now must still be there when the flush is committed.
        self._relations.hold_parts()
        for relation in self._relations:
            self._flush(relation)
        covered = {id(part) for written in self._written for part in written.parts}
        kept = [p for r in self._relations for p in r.parts if id(p) not in covered]
        new = [w.become for w in self._written if w.become is not None]
        return tuple(run for part in [*kept, *new] for run in part.stored)

    def on_flushed(self) -> None:
        """Called when the manifest references the runs of the last flush."""
        for written in self._written:
            gone = {id(part) for part in written.parts}
            rest = [part for part in written.relation.parts if id(part) not in gone]
            ensure(
                len(rest) + len(gone) == len(written.relation.parts), "a flush is of what is there"
            )
            become = [] if written.become is None else [written.become]
            for part in become:
                if part.run is not None and self._runs.published(part.run, part.stored):
                    part.shown = None
            # Large parts come first.
            written.relation.parts = [*become, *rest] if _large(become) else [*rest, *become]
        self.end_flush()
        for relation in self._relations:
            self._relations.fold(relation)

    def end_flush(self) -> None:
        """Forget the last flush if it was not committed. No transaction runs during a flush, so the
        next one that is applied tells that it is over."""
        self._written = []
        self._relations.release_parts()

    def _flush(self, relation: Relation) -> None:
        small = [p for p in relation.parts if p.table is not None]
        fresh = [p for p in small if not p.stored]
        if fresh:
            # Next to a large run their size hardly matters, so only their number counts.
            alone = len(small) == len(relation.parts)
            together = _rewritten(small, self._tiering if alone else like_sized)
            parts = [p for p in small if not p.stored or p in together]
            self._written.append(_Written(relation, tuple(parts), self._as_run(relation, parts)))
        for part in relation.parts:
            if part.run is not None and part.table is None and not part.stored:
                runs = self._publish(relation.name, part.run)
                become = Part(part.types, part.rows, run=part.run, shown=part.shown, stored=runs)
                self._written.append(_Written(relation, (part,), become))

    def _publish(self, relation: str, files: RunFiles) -> tuple[Run, ...]:
        """Write a run to the store, file by file."""
        runs = self._runs.publish(self._store, relation, files)
        if len(runs) == 1:
            return runs
        first = paths.parse(runs[0].path).id
        return tuple(replace(run, group=first) for run in runs)

    def _as_run(self, relation: Relation, parts: Sequence[Part]) -> Part | None:
        table = pa.concat_tables([part.table for part in parts])
        if all(map(comparable, relation.types)):
            table = consolidated(table)
        if not table.num_rows:
            return None
        body = parquet_bytes(table, relation.sort)
        run = write_run(self._store, self._env, relation.name, body, table.num_rows)
        return Part(relation.types, table.num_rows, table, stored=(run,))

    # Load

    def load(self, runs: Sequence[Run], report: Report = not_reported) -> None:
        """Replace the parts of all relations with the contents of these runs.

        Without any run, the relations become what they were when this object was made.
        """
        self.end_flush()
        by_name = {relation.name: relation for relation in self._relations}
        found: dict[str, list[Part]] = {name: [] for name in by_name}
        loaded, total = 0, sum(run.rows for run in runs)
        for together in _grouped(runs):
            name = together[0].relation
            if name not in by_name:
                raise CorruptError(
                    together[0].path,
                    f"a run of {name}, which this pipeline does not have",
                    hint="the tables and views are not those it was made with",
                )
            found[name].append(self._part(by_name[name], together, found[name]))
            loaded += sum(run.rows for run in together)
            report("loading", loaded, total, "row")
        for name, relation in by_name.items():
            # Before the first flush, the state is that of empty tables.
            relation.parts = found[name] if runs else list(self._first[name])

    def _part(self, relation: Relation, runs: tuple[Run, ...], before: Sequence[Part]) -> Part:
        here = sum(part.rows for part in before if part.table is not None)
        rows = sum(run.rows for run in runs)
        if here + rows <= self._relations.limits.memory_rows_max:
            bodies = [read_run(self._store, run, self._env) for run in runs]
            schema = arrow_schema(relation.types)
            table = pa.concat_tables(
                # So few rows are decoded sooner in this thread than handed to others.
                reshaped(
                    pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False), run.columns
                ).cast(schema)
                for body, run in zip(bodies, runs, strict=True)
            )
            return Part(relation.types, rows, table, stored=runs)
        for run in runs:
            place = self._place(run)
            if place is not None:
                check_size(place, run)
        # Executors read runs from the store, so this process needs no copies then.
        locate = tuple if self._runs.elsewhere else lambda: tuple(map(self._file, runs))
        files = self._runs.opened(locate, runs)
        return Part(relation.types, rows, run=files, stored=runs)

    def _place(self, run: Run) -> Path | None:
        """The path of a run in the store itself, if that is on this machine."""
        uri = run.root or self._store.uri
        return Path(uri.removeprefix(_LOCAL)) / run.path if uri.startswith(_LOCAL) else None

    def _file(self, run: Run) -> Path:
        """A path at which a run can be read, checked: in the store itself, or a local copy."""
        place = self._place(run)
        if place is not None:
            return check_file(place, run)
        copy = self._copies.path / run.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(read_run(self._store, run, self._env))
        return copy


def _rewritten(small: Sequence[Part], tiering: Tiering) -> list[Part]:
    """The flushed parts in memory to rewrite together with the unflushed ones."""
    held = [(run.rows, part) for part in small for run in part.stored]
    new = sum(part.rows for part in small if not part.stored)
    places = tiering([*(rows for rows, _ in held), new])
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
