"""Look up the rows of a table that a change replaces or deletes.

By an index if Arrow compares the columns as Spark does, and by a Spark query otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import DataFrame

from stepwell.errors import NotApplicable
from stepwell.execution.local.join_kernels import among_rows
from stepwell.execution.local.lookup import FOUND_ROWS_MAX
from stepwell.execution.local.table_changes import Lookup, normalise
from stepwell.execution.spark.evaluate import Evaluator
from stepwell.execution.spark.frames import Frames
from stepwell.lsm.arrow_types import empty_change
from stepwell.lsm.change import Change
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.lookup import distinct
from stepwell.lsm.part import Relation
from stepwell.lsm.relations import Relations
from stepwell.lsm.run_file import WEIGHT
from stepwell.lsm.values import comparable
from stepwell.plan.types import without_maps
from stepwell.sql.statements import Table

_KEYS = "`$stepwell$keys`"


class NotedError(NotApplicable):
    """A look-up was only noted, and will be asked together with others."""


class ExistingRows:
    """Looks up rows of tables by the values of some of their columns."""

    def __init__(self, relations: Relations, frames: Frames, evaluator: Evaluator) -> None:
        self._relations = relations
        self._frames = frames
        self._evaluator = evaluator

    def of(self, name: str) -> Lookup:
        """The look-up function of one table."""
        relation = self._relations[name]

        def lookup(rows: pa.Table, places: tuple[int, ...]) -> pa.Table:
            if not relation.parts:
                return empty_change(relation.types)
            found = self._by_index(relation, rows, places)
            if found is None and self._evaluator.shared.noting_look_ups:
                raise NotedError
            return self._by_query(relation, rows, places) if found is None else found

        return lookup

    def look_ahead(self, changes: Sequence[tuple[Table, Change]]) -> None:
        """Let executors look up the rows that changes of several tables replace, in one job."""
        small = [(table, change) for table, change in changes if change.staged is None]
        if len(small) < 2 or not self._evaluator.asks_executors:
            return
        with self._evaluator.shared.noting():
            for table, change in small:
                key = self._relations[table.name].key
                with suppress(NotedError):
                    normalise(table, key, change, self.of(table.name))
        self._evaluator.shared.ask_noted()

    def _by_index(
        self, relation: Relation, rows: pa.Table, places: tuple[int, ...]
    ) -> pa.Table | None:
        """The rows with these values; None if Spark has to compare them."""
        if not all(map(comparable, relation.types)):
            return None
        # Memory must hold as many rows as the change in any case.
        most = max(FOUND_ROWS_MAX, 2 * rows.num_rows)
        lookups = self._evaluator.lookups({}, most)
        wanted = {p: distinct(rows.column(i)) for i, p in enumerate(places)}
        found = lookups.rows(relation, wanted)
        if found is None or not found.num_rows:
            return found
        # Each column was looked up separately; now compare whole keys.
        mask = among_rows([found.column(p) for p in places], rows.columns)
        return None if mask is None else consolidated(found.filter(mask))

    def _by_query(self, relation: Relation, rows: pa.Table, places: tuple[int, ...]) -> pa.Table:
        wanted = tuple(relation.types[i] for i in places)
        self._keys(rows, wanted).createOrReplaceTempView(_KEYS)
        every = ", ".join(f"c{i}" for i in range(len(relation.types)))
        test = " AND ".join(
            f"{without_maps(f'x.c{p}', kind)} <=> {without_maps(f'k.c{i}', kind)}"
            for i, (p, kind) in enumerate(zip(places, wanted, strict=True))
        )
        return self._evaluator.whole(
            f"SELECT {every}, sum(w) AS w FROM (SELECT /*+ BROADCAST(k) */ x.* FROM "
            f"{self._frames.old(relation)} x LEFT SEMI JOIN {_KEYS} k ON {test}) "
            f"GROUP BY {every} HAVING sum(w) <> 0"
        )

    def _keys(self, rows: pa.Table, types: tuple[str, ...]) -> DataFrame:
        keys = rows.append_column(WEIGHT, pa.array([1] * rows.num_rows, pa.int64()))
        return self._frames.frame(
            keys.rename_columns([*(f"c{i}" for i in range(len(types))), WEIGHT]), types
        )
