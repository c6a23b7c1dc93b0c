"""An executor that is made when something is to be computed, and not before.

Starting Spark and compiling every view takes seconds. Whoever opens a pipeline to change it, and
finds nothing to replay, needs neither: its runs stay as they are. Until the executor is made, its
state is the runs that were loaded; then it loads them, and does everything itself. To read one view
of many, an executor for what that view needs is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

import pyarrow as pa

from stepwell.engine.ports import Change, Chore, Executed, Executor, Letters, Pieces, Rejected
from stepwell.query.lineage import Bound, Columns
from stepwell.state.manifest import Run


class LazyExecutor:
    """Implements `Executor`, by another one if need be."""

    def __init__(
        self,
        make: Callable[[], Executor],
        tables: Mapping[str, tuple[str, ...]],
        part: Callable[[Collection[str]], Executor],
    ) -> None:
        """`tables`: what the executor to be made would say they are. `part` makes one that can be
        asked for the rows of these tables and views.
        """
        self._make = make
        self._tables = tables
        self._part = part
        self._runs: tuple[Run, ...] = ()
        self._made: Executor | None = None

    @property
    def made(self) -> Executor:
        """The executor itself."""
        if self._made is None:
            made = self._make()
            made.load(self._runs)
            self._made = made
        return self._made

    def compiled(self, views: Collection[str]) -> Executor:
        """One that knows how these views are kept, and may hold no rows."""
        return self._made or self._part(views)

    def reading(self, relations: Collection[str]) -> Executor:
        """One to read these tables and views from, as they are now."""
        if self._made is not None:
            return self._made
        part = self._part(relations)
        there = part.relations()
        part.load(tuple(run for run in self._runs if run.relation in there))
        return part

    def tables(self) -> Mapping[str, tuple[str, ...]]:
        return self._tables

    # The runs, by themselves

    def load(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)
        if self._made is not None:
            self._made.load(runs)

    def flush(self) -> tuple[Run, ...]:
        return self._runs if self._made is None else self._made.flush()

    def described(self) -> str | None:
        return None if self._made is None else self._made.described()

    def flushed(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)
        if self._made is not None:
            self._made.flushed(runs)

    def unflushed_bytes(self) -> int:
        return 0 if self._made is None else self._made.unflushed_bytes()

    def chore(self) -> Chore | None:
        return None if self._made is None else self._made.chore()

    def below(self) -> str | None:
        return None if self._made is None else self._made.below()

    # What has to be computed

    def execute(
        self,
        changes: Mapping[str, Change],
        time: datetime,
        letters: Letters | None = None,
    ) -> Executed:
        return self.made.execute(changes, time, letters)

    def keep(self, executed: Executed) -> None:
        self.made.keep(executed)

    def compact(self, *, own: bool = False) -> None:
        self.made.compact(own=own)

    def relations(self) -> Mapping[str, str]:
        return self.made.relations()

    def build(self, view: str) -> None:
        self.made.build(view)

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
