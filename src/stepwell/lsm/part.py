"""Relations and their parts: the LSM tree of one relation.

A relation is a list of parts. A part is immutable: an Arrow table in memory, or a run, which is a
list of Parquet files. Parts have the columns c0, c1, ... and the weight w. Rows of several parts
can cancel out; only readers that need consolidated rows sum the weights. A change set is a part as
well: a relation stores the change sets that transactions compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.errors import BugError
from stepwell.lsm.hashing import numbers
from stepwell.lsm.index import ascending, concatenated_ranges, ordered
from stepwell.lsm.run_file import RunFiles, sortable
from stepwell.manifest.manifest import Run

Places: TypeAlias = "np.ndarray[Any, Any]"
Sought: TypeAlias = Mapping[int, pa.Array]
"""The distinct values to look for, by column position."""

INDEXED_ROWS_MIN = 1_000
"""A column of a part in memory with fewer rows is compared with the values it is searched for."""


@dataclass(slots=True, eq=False)
class Part:
    """One immutable part of a relation, or a change set."""

    types: tuple[str, ...]
    rows: int
    table: pa.Table | None = None
    """The rows, if they are in memory."""
    run: RunFiles | None = None
    """The rows in files, sorted like the relation."""
    shipped: RunFiles | None = None
    """The rows in files that only Spark reads."""
    shown: object = field(default=None, repr=False)
    """The DataFrame, once Spark has read the part. Only `execution.spark` uses it."""
    stored: tuple[Run, ...] = ()
    """The runs of the manifest that hold these rows; empty until they are flushed."""
    _ones: bool | None = field(default=None, repr=False)
    by_value: dict[int, dict[Any, list[int]]] = field(default_factory=dict, repr=False)
    """The positions of the rows by the value of a column, for parts of few rows in memory. Filled
    by `row_lookup`."""
    _arrays: dict[int, pa.Array] = field(default_factory=dict, repr=False)
    _orders: dict[int, tuple[Places, Places]] = field(default_factory=dict, repr=False)

    @property
    def ones(self) -> bool:
        """Whether every row is known to have weight one; checked once, by statistics in files."""
        if self._ones is None:
            if self.table is not None:
                bounds = pc.min_max(self.table.column(self.table.num_columns - 1)).as_py()
                self._ones = not self.rows or set(bounds.values()) == {1}
            else:
                self._ones = self.run is not None and self.run.weights == (1, 1)
        return self._ones

    # Of the rows in memory

    def array(self, place: int) -> pa.Array:
        """The column at a position, in one piece; the weight comes last."""
        known = self._arrays.get(place)
        if known is None:
            column = self._rows.column(place)
            whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            known = self._arrays[place] = whole
        return known

    def rows_at(self, places: Places) -> pa.Table:
        """The rows at these positions."""
        return self._rows if len(places) == self.rows else self._rows.take(pa.array(places))

    def find(self, sought: Sought) -> Places:
        """The positions of the rows that have one of the values in each of these columns."""
        found: Places | None = None
        for place, values in sought.items():
            here = self._having(place, values, found)
            if not len(here):
                return here
            found = here
        return np.arange(self.rows) if found is None else found

    def _having(self, place: int, values: pa.Array, among: Places | None) -> Places:
        column = self.array(place)
        if not len(column):
            return np.zeros(0, np.int64)
        if values.null_count or column.null_count or not ordered(column.type):
            if among is not None:
                column = column.take(pa.array(among))
            mask = pc.is_in(column, value_set=values).to_numpy(zero_copy_only=False)
            at = np.flatnonzero(mask)
            return at if among is None else among[at]
        wanted = ascending(numbers(values))
        if not len(wanted):
            return np.zeros(0, np.int64)
        if among is None and self.rows >= INDEXED_ROWS_MIN:
            return self._by_order(place, wanted)
        keys = numbers(column) if among is None else numbers(column)[among]
        at = np.minimum(wanted.searchsorted(keys), len(wanted) - 1)
        at = np.flatnonzero(wanted[at] == keys)
        return at if among is None else among[at]

    def _by_order(self, place: int, wanted: Places) -> Places:
        known = self._orders.get(place)
        if known is None:
            keys = numbers(self.array(place))
            order = np.argsort(keys)
            known = self._orders[place] = keys[order], order
        in_order, rows = known
        first = in_order.searchsorted(wanted, "left")
        last = in_order.searchsorted(wanted, "right")
        return np.sort(rows[concatenated_ranges(first, last, int((last - first).sum()))])

    @property
    def _rows(self) -> pa.Table:
        if self.table is None:
            raise BugError("the rows of this part are not in memory")
        return self.table


@dataclass(slots=True)
class Relation:
    """A stored relation of one pipeline."""

    name: str
    types: tuple[str, ...]
    key: tuple[int, ...]
    parts: list[Part] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Total rows of the parts; an upper bound, because rows of several parts may cancel out."""
        return sum(part.rows for part in self.parts)

    @property
    def sort(self) -> tuple[int, ...]:
        """The columns by which the runs are sorted."""
        return self.key if sortable(self.types, self.key) else ()
