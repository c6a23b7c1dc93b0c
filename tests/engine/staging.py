"""Bulk reads without Spark: the same tasks, one after another, and an executor that takes them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from stepwell.execution.executor import Executed, Executor
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.bulk import (
    CHUNK,
    Chunk,
    Decode,
    Layout,
    Report,
    Staged,
    Target,
    decoding,
    in_key_order,
    in_task_order,
    merging,
    numbered,
    report_in,
)
from stepwell.lsm.change import Change
from stepwell.lsm.checksum import add_checksums
from stepwell.lsm.dead_letter import Letters
from stepwell.lsm.part import Part
from stepwell.lsm.run_file import RunFiles, read_files
from stepwell.lsm.staged import StagedRows
from stepwell.plan.types import stored_type
from stepwell.sql.statements import Table


def layout_of(table: Table) -> Layout:
    names = tuple(column.name for column in table.columns)
    key = tuple([name.lower() for name in names].index(k.lower()) for k in table.key)
    return Layout(names, tuple(stored_type(column.type) for column in table.columns), key)


class Here:
    """Implements `Bulk` in this process, with everything pickled on its way."""

    def __init__(self, folder: Path, *tables: Table) -> None:
        self._folder = folder
        self._layouts = {table.name: layout_of(table) for table in tables}
        self.tried = 0
        """How many bulk reads there were, or were tried."""
        self.staged = 0
        """How many bulk reads there were."""
        self.merged = 0
        """How many of them had to sort chunks together."""

    def accepts(self, table: str) -> bool:
        return self._layouts[table].supported

    def stage(self, table: str, decode: Decode) -> Staged:
        self.tried += 1
        decode = pickle.loads(pickle.dumps(decode))
        layout = self._layouts[table]
        target = Target(folder=str(self._folder / f"staged-{self.staged}"))
        numbers = [
            pa.record_batch([pa.array([n], pa.int64())], ["id"]) for n in range(decode.tasks)
        ]
        reports = in_task_order(_reports(decoding(decode, layout, target)(numbers)))
        self.staged += 1
        decoded = reports
        chunks = [chunk for report in reports for chunk in report.chunks]
        ordered = in_key_order(chunks) if layout.key else chunks
        if ordered is None:
            self.merged += 1
            reports = tuple(self._merge(layout, target, chunks))
            ordered = [chunk for report in reports for chunk in report.chunks]
        rows = None
        if ordered:
            files = tuple(Path(chunk.file.path) for chunk in ordered)
            part = Part(layout.types, sum(c.file.rows for c in ordered), run=RunFiles(files, 0))
            rows = StagedRows(part, add_checksums(report.checksum for report in reports))
        return Staged.of(rows, decoded)

    def _merge(self, layout: Layout, target: Target, chunks: list[Chunk]) -> list[Report]:
        numbers = [pa.record_batch([pa.array([n], pa.int64())], ["id"]) for n in range(len(chunks))]
        rows = pa.Table.from_batches(list(numbered(target, chunks, layout)(numbers)))
        order = [(f"c{i}", "ascending") for i in layout.key]
        rows = rows.sort_by([*order, (CHUNK, "ascending")])
        return _reports(merging(layout, target)(rows.to_batches(max_chunksize=7)))


def _reports(batches: Any) -> list[Report]:
    return [report_in(batch.column(0)[0].as_py()) for batch in batches]


def put_of(staged: StagedRows | None, table: Table) -> pa.Table | None:
    """Staged rows as the puts of a change."""
    if staged is None:
        return None
    run = staged.part.run
    assert run is not None
    rows = read_files(run).cast(arrow_schema(staged.part.types))
    assert set(rows.column("w").to_pylist()) == {1}
    return rows.drop_columns(["w"]).rename_columns([column.name for column in table.columns])


class Staging:
    """An executor with bulk reads around one that has none."""

    def __init__(self, executor: Executor, bulk: Here, *tables: Table) -> None:
        self._executor = executor
        self._tables = {table.name: table for table in tables}
        self.bulk = bulk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def execute(
        self, changes: Mapping[str, Change], time: datetime, letters: Letters | None = None
    ) -> Executed:
        given = {
            name: replace(change, put=put_of(change.staged, self._tables[name]), staged=None)
            if change.staged is not None
            else change
            for name, change in changes.items()
        }
        return self._executor.execute(given, time, letters)
