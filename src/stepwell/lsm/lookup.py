"""Look up the stored rows of a relation by column values, and share them within a transaction.

Several views need the same rows: the lines of the changed orders, the customers of these orders.
Look-ups of the same values in the same parts of a relation are one look-up, and each column of its
rows is read once. Parts and values never change, so a result stays valid for as long as the
relation has the same parts. `SharedRows` holds results for the length of a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.column_memo import ColumnMemo
from stepwell.lsm.index import Indexes, RunIndex, ascending, ordered
from stepwell.lsm.part import Part, Places, Relation, Sought
from stepwell.lsm.profiler import Profiler

SHARED_ROWS_MAX = 2_000_000
"""Results with more rows in all are not shared."""
_FEW_ROWS = 1000
"""With so few rows left, looking up another column costs more than reading the rows."""


class LookedUpRows:
    """The rows of a look-up. Columns are read when they are first needed."""

    def __init__(
        self, schema: pa.Schema, parts: Sequence[Part], profiler: Profiler | None = None
    ) -> None:
        self._schema = schema
        self._profiler = profiler or Profiler()
        self._parts = tuple(parts)
        """Held, because columns may be read from their runs later."""
        self._memory: list[tuple[Part, Places]] = []
        self._found: list[tuple[RunIndex, Places]] = []
        self._columns: dict[int, pa.ChunkedArray] = {}
        self._tables: dict[frozenset[int] | None, pa.Table] = {}
        self.rows = 0

    def add_part(self, part: Part, places: Places) -> None:
        if len(places):
            self._memory.append((part, places))
            self.rows += len(places)

    def add_places(self, index: RunIndex, places: Places) -> None:
        if len(places):
            self._found.append((index, places))
            self.rows += len(places)

    def table(self, columns: frozenset[int] | None) -> pa.Table:
        """The rows, with these columns and the weight. Other columns are NULL."""
        known = self._tables.get(columns)
        if known is None:
            before = self._profiler.enter("look-ups")
            try:
                known = self._tables[columns] = self._table(columns)
            finally:
                self._profiler.enter(before)
        return known

    def _table(self, columns: frozenset[int] | None) -> pa.Table:
        last = len(self._schema) - 1
        empty = {kind: pa.nulls(self.rows, kind) for kind in set(self._schema.types)}
        made = [
            self._column(i)
            if columns is None or i in columns or i == last
            else empty[field.type]
            for i, field in enumerate(self._schema)
        ]
        return pa.table(made, schema=self._schema)

    def _column(self, place: int) -> pa.ChunkedArray:
        known = self._columns.get(place)
        if known is None:
            kind = self._schema.field(place).type
            chunks = [_taken(part.array(place), places, kind) for part, places in self._memory]
            chunks += [_taken(i.column(place), places, kind) for i, places in self._found]
            known = self._columns[place] = pa.chunked_array(chunks, kind)
        return known


def _taken(column: pa.Array, places: Places, kind: pa.DataType) -> pa.Array:
    if len(places) == len(column):
        found = column
    else:
        found = column.take(pa.array(places))
    return found if found.type == kind else found.cast(kind)


class SharedRows:
    """The results of the look-ups of one transaction."""

    def __init__(self, rows_max: int = SHARED_ROWS_MAX, profiler: Profiler | None = None) -> None:
        """`profiler` counts the rows that are read, and those that an earlier look-up has read."""
        self._rows_max = rows_max
        self._known: dict[str, _Results] = {}
        self._profiler = profiler or Profiler()
        self.memo = ColumnMemo()
        """What was computed from columns of these rows."""

    def look_up(
        self, indexes: Indexes, relation: Relation, sought: Sought, most: int
    ) -> LookedUpRows | None:
        """The stored rows that have one of the values in each column.

        None if there are more than `most`, or if they are not in memory and have no index.
        """
        before = self._profiler.enter("look-ups")
        try:
            return self._shared(indexes, relation, sought, most)
        finally:
            self._profiler.enter(before)

    def _shared(
        self, indexes: Indexes, relation: Relation, sought: Sought, most: int
    ) -> LookedUpRows | None:
        results = self._known.get(relation.name)
        if results is None or not results.of(relation):
            results = self._known[relation.name] = _Results(tuple(relation.parts))
        key = tuple((place, _digest(sought[place])) for place in sorted(sought))
        known = results.by_values.get(key)
        if known is not None:
            self._profiler.rows_shared += known.rows
            return known if known.rows <= most else None
        result = _look_up(indexes, relation, sought, most, self._profiler)
        if result is not None:
            self._profiler.rows_fetched += result.rows
            if sum(r.rows for r in self._known.values()) + result.rows <= self._rows_max:
                results.by_values[key] = result
                results.rows += result.rows
        return result


@dataclass(slots=True)
class _Results:
    """The results of look-ups in one relation, while it has these parts."""

    parts: tuple[Part, ...]
    by_values: dict[object, LookedUpRows] = field(default_factory=dict)
    rows: int = 0

    def of(self, relation: Relation) -> bool:
        same = len(self.parts) == len(relation.parts)
        return same and all(map(is_, self.parts, relation.parts))


def _look_up(
    indexes: Indexes, relation: Relation, sought: Sought, most: int, profiler: Profiler
) -> LookedUpRows | None:
    schema = arrow_schema(relation.types)
    result = LookedUpRows(schema, relation.parts, profiler)
    for part in relation.parts:
        if part.table is not None:
            result.add_part(part, part.find(sought))
        elif part.run is None or not sought:
            return None
        else:
            index = indexes.of(part.run, schema)
            places = _places(index, schema, sought, most)
            if places is None:
                return None
            result.add_places(index, places)
        if result.rows > most:
            return None
    return result


def _places(index: RunIndex, schema: pa.Schema, sought: Sought, most: int) -> Places | None:
    """The positions of the rows of a run that have such values; None if there are too many."""
    places: Places | None = None
    # Start with columns that are indexed already, where counting is nearly free, and with
    # selective ones, after which the others hardly remove any more rows.
    counts = {place: index.count(place, values) for place, values in sought.items()}
    many = {place: index.guess(place) if n is None else n for place, n in counts.items()}
    exact: set[int] = set()
    for place in sorted(sought, key=lambda p: (counts[p] is None, many[p])):
        if places is not None and (len(places) <= _FEW_ROWS or many[place] > 10 * len(places)):
            break
        found = index.find(place, sought[place], most)
        if found is not None:
            places = found if places is None else np.intersect1d(places, found, assume_unique=True)
            if ordered(schema.field(place).type):
                exact.add(place)
    if places is None or not len(places):
        return places
    # Test all columns in the end, because one part may retract rows of another.
    for place, values in sought.items():
        if place not in exact and len(places):
            column = index.column(place).take(pa.array(places))
            mask = pc.is_in(column, value_set=values.cast(column.type))
            places = places[mask.to_numpy(zero_copy_only=False)]
    return places


def distinct(column: pa.ChunkedArray) -> pa.Array:
    """The distinct values of a column. Integers, dates and timestamps are sorted."""
    if ordered(column.type) and not column.null_count:
        whole = pa.int32() if column.type.bit_width == 32 else pa.int64()
        numbers = column if pa.types.is_integer(column.type) else column.cast(whole)
        return pa.array(_each_once(numbers.to_numpy())).cast(column.type)
    found = pc.unique(column)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _each_once(numbers: Places) -> Places:
    """The distinct numbers, ascending. NumPy's `unique` hashes them first, which takes longer."""
    numbers = ascending(numbers)
    kept = np.ones(len(numbers), dtype=bool)
    np.not_equal(numbers[1:], numbers[:-1], out=kept[1:])
    return numbers[kept]


def _digest(values: pa.Array) -> tuple[int, int, bytes]:
    """Equal digests mean equal arrays. Equal sets of values may have different digests."""
    state = xxhash.xxh3_128()
    for buffer in values.buffers():
        if buffer is not None:
            state.update(memoryview(buffer))
    return len(values), values.offset, state.digest()
