"""An executor that is created on first use.

Starting Spark and compiling every view takes seconds. A deploy that finds nothing to replay needs
neither: the runs stay as they are. Until the real executor is created, the state is the list of
loaded runs; then it loads them and takes over. To read one view of many, an executor for that view
and its inputs is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

import pyarrow as pa

from stepwell.execution.executor import BackgroundTask, Executed, Executor, Starting
from stepwell.lsm.change import Change, Rejected
from stepwell.lsm.dead_letter import Letters
from stepwell.lsm.table_diff import Pieces
from stepwell.manifest.manifest import Run
from stepwell.sql.lineage import Bound, Columns


class LazyExecutor:
    """Implements `Executor`, and creates another one if it must compute."""

    def __init__(
        self,
        make: Callable[[], Executor],
        tables: Mapping[str, tuple[str, ...]],
        part: Callable[[Collection[str]], Executor],
    ) -> None:
        """`tables` is what the real executor would return. `part` makes an executor that can read
        the given tables and views.
        """
        self._make = make
        self._tables = tables
        self._part = part
        self._runs: tuple[Run, ...] = ()
        self._described: str | None = None
        self._made: Executor | None = None

    @property
    def made(self) -> Executor:
        """The real executor; created on first use."""
        if self._made is None:
            made = self._make()
            made.load(self._runs, self._described)
            self._made = made
        return self._made

    def compiled(self, views: Collection[str]) -> Executor:
        """An executor that has compiled these views; it may hold no rows."""
        return self._made or self._part(views)

    def reading(self, relations: Collection[str]) -> Executor:
        """An executor that can read these tables and views in their current state."""
        if self._made is not None:
            return self._made
        part = self._part(relations)
        there = part.relations()
        part.load(tuple(run for run in self._runs if run.relation in there), self._described)
        return part

    def tables(self) -> Mapping[str, tuple[str, ...]]:
        return self._tables

    # Without the real executor: runs only

    def load(self, runs: Sequence[Run], described: str | None = None) -> None:
        self._runs, self._described = tuple(runs), described
        if self._made is not None:
            self._made.load(runs, described)

    def flush(self) -> tuple[Run, ...]:
        return self._runs if self._made is None else self._made.flush()

    def described(self) -> str | None:
        return None if self._made is None else self._made.described()

    def on_flushed(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)
        if self._made is not None:
            self._made.on_flushed(runs)

    def unflushed_bytes(self) -> int:
        return 0 if self._made is None else self._made.unflushed_bytes()

    def background_task(self) -> BackgroundTask | None:
        return None if self._made is None else self._made.background_task()

    def id_floor(self) -> str | None:
        return None if self._made is None else self._made.id_floor()

    # With the real executor

    def execute(
        self,
        changes: Mapping[str, Change],
        time: datetime,
        letters: Letters | None = None,
    ) -> Executed:
        return self.made.execute(changes, time, letters)

    def apply(self, executed: Executed) -> None:
        self.made.apply(executed)

    def compact(self, *, own: bool = False) -> None:
        self.made.compact(own=own)

    def relations(self) -> Mapping[str, str]:
        return self.made.relations()

    def build(self, views: Sequence[str], starting: Starting = lambda view: None) -> None:
        self.made.build(views, starting)

    def fill(self, table: str, rows: pa.Table) -> tuple[Rejected, ...]:
        return self.made.fill(table, rows)

    def bound(self, view: str, tables: Mapping[str, Columns]) -> Bound | None:
        return self.compiled([view]).bound(view, tables)

    def read(self, relation: str) -> pa.Table:
        return self.made.read(relation)

    def pieces(self, relation: str, rows_max: int) -> Pieces:
        return self.made.pieces(relation, rows_max)

    def query(self, sql: str) -> pa.Table:
        return self.made.query(sql)
