"""Look up rows of a relation as Python tuples, for changes of few rows.

Within a transaction every value of a column is looked up once, and every column of a row that was
found is read once, whichever views ask for it. Values have the form of `row_values`. As in
`lookup`, parts never change, so what was found stays valid while a relation has the same parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import is_
from typing import Any, TypeAlias

import pyarrow as pa

from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.index import Indexes, RunIndex, ordered
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.profiler import Profiler
from stepwell.lsm.row_values import to_array, to_list
from stepwell.plan.numbers import INTEGER_BITS

Row: TypeAlias = "tuple[Any, ...]"
"""Some columns, and the weight."""
FEW_ROWS = 1000
"""Parts in memory with at most as many rows are looked up by a dictionary, which they keep."""


class TooManyRowsError(Exception):
    """Rows are better handled by columns."""


class RowReader:
    """The rows that one transaction reads."""

    def __init__(self, indexes: Indexes, rows_max: int, profiler: Profiler | None = None) -> None:
        """A relation is read whole, and look-ups return rows, only up to `rows_max`."""
        self._indexes = indexes
        self.profiler = profiler or Profiler()
        self._rows_max = rows_max
        self._lists: dict[tuple[int, int], tuple[Part, list[Any]]] = {}
        self._look_ups: dict[tuple[str, int], _LookUp] = {}
        self.rows_found = 0
        """Rows that look-ups returned, for any caller."""

    def rows(self, part: Part, places: Sequence[int]) -> list[Row]:
        """All rows of a part in memory, with these columns and the weight."""
        if part.table is None or part.rows > self._rows_max:
            raise TooManyRowsError
        width = len(part.types)
        return list(zip(*(self.list_of(part, place) for place in (*places, width)), strict=True))

    def whole(self, relation: Relation, places: Sequence[int]) -> list[Row]:
        """All rows of a small relation in memory."""
        if relation.rows > self._rows_max or any(p.types != relation.types for p in relation.parts):
            raise TooManyRowsError
        return [row for part in relation.parts for row in self.rows(part, places)]

    def look_up(
        self, relation: Relation, place: int, values: Collection[Any], places: Sequence[int]
    ) -> list[Row]:
        """The rows whose column at `place` has one of these values."""
        _check_here(relation)
        key = relation.name, place
        profiler = self.profiler
        before = profiler.enter("look-ups")
        try:
            known = self._look_ups.get(key)
            if known is None or not known.of(relation):
                known = self._look_ups[key] = _LookUp(self, self._indexes, relation, place)
            count = known.count
            rows = known.rows(values, places, self._rows_max)
        finally:
            profiler.enter(before)
        fetched = known.count - count
        profiler.rows_fetched += fetched
        # An index by hash also fetches a few rows with other values.
        profiler.rows_shared += max(0, len(rows) - fetched)
        self.rows_found += len(rows)
        return rows

    def count(self, relation: Relation, place: int, values: Collection[Any]) -> int | None:
        """Estimate of the rows that `look_up` returns; None if a run has no index."""
        _check_here(relation)
        schema, total = arrow_schema(relation.types), 0
        sought = to_array(_storable(values, relation.types[place]), schema.field(place).type)
        for part in relation.parts:
            if part.table is not None:
                total += len(part.find({place: sought})) if part.rows > FEW_ROWS else 0
            elif part.run is not None:
                count = self._indexes.of(part.run, schema).count(place, sought)
                if count is None:
                    return None
                total += count
        return total

    def is_cheap(self, relation: Relation, place: int) -> bool:
        """Whether a column's index is by value, and thus cheap to build."""
        return ordered(arrow_schema(relation.types).field(place).type)

    def index(self, relation: Relation, place: int) -> None:
        """Build the index of a column."""
        schema = arrow_schema(relation.types)
        for part in relation.parts:
            if part.run is not None and part.table is None:
                self._indexes.of(part.run, schema).build(place)

    def list_of(self, part: Part, place: int) -> list[Any]:
        known = self._lists.get((id(part), place))
        if known is None:
            # The part is held, so no other one can get its id.
            known = self._lists[id(part), place] = part, to_list(part.array(place))
        return known[1]

    def places(self, part: Part, place: int, values: Collection[Any]) -> list[int]:
        """The positions of the rows of a small part that have one of these values."""
        known = part.by_value.get(place)
        if known is None:
            known = part.by_value[place] = {}
            for at, value in enumerate(self.list_of(part, place)):
                known.setdefault(value, []).append(at)
        return [at for value in values if value in known for at in known[value]]


def _check_here(relation: Relation) -> None:
    """Rows that executors look up are handled by columns, which are asked for in waves."""
    for part in relation.parts:
        if part.table is None and part.run is not None and not part.run.here:
            raise TooManyRowsError


class _LookUp:
    """What was found in one relation by one column."""

    def __init__(self, reader: RowReader, indexes: Indexes, relation: Relation, place: int) -> None:
        self._reader = reader
        self._schema = arrow_schema(relation.types)
        self._types = relation.types
        self._type = relation.types[place]
        self._parts = tuple(relation.parts)
        """Held, because columns are read from them later."""
        self._indexes = indexes
        self._place = place
        self._by_value: dict[Any, list[int]] = {}
        """The numbers of the rows found, by value; empty for a value that is not there."""
        self._found: list[tuple[Part | RunIndex, Any]] = []
        self._columns: dict[int, tuple[list[Any], int]] = {}
        """The values of all rows found, and in how many of `_found` they are."""
        self.count = 0

    def of(self, relation: Relation) -> bool:
        same = len(self._parts) == len(relation.parts)
        return same and all(map(is_, self._parts, relation.parts))

    def rows(self, values: Collection[Any], places: Sequence[int], most: int) -> list[Row]:
        known = self._by_value
        new = [value for value in values if value not in known]
        if new:
            self._learn(new, most)
        numbers = [number for value in values for number in known[value]]
        if len(numbers) > most:
            raise TooManyRowsError
        lists = [self._column(place) for place in (*places, len(self._schema) - 1)]
        return list(zip(*(map(one.__getitem__, numbers) for one in lists), strict=True))

    def _learn(self, values: list[Any], most: int) -> None:
        known: dict[Any, list[int]] = {value: [] for value in values}
        kind = self._schema.field(self._place).type
        sought: pa.Array | None = None
        found: list[tuple[Part | RunIndex, Any, list[Any]]] = []
        for part in self._parts:
            few = part.table is not None and part.rows <= FEW_ROWS
            if few and part.types == self._types:
                places = self._reader.places(part, self._place, values)
                if places:
                    keys = self._reader.list_of(part, self._place)
                    found.append((part, places, [keys[at] for at in places]))
                continue
            if sought is None:
                sought = to_array(_storable(values, self._type), kind)
            made = self._in_large(part, sought, most)
            if made is not None:
                found.append(made)
        if self.count + sum(len(places) for _, places, _ in found) > 10 * most:
            raise TooManyRowsError
        for source, places, keys in found:
            self._found.append((source, places))
            for value in keys:
                # An index by hash may find rows with other values.
                numbers = known.get(value)
                if numbers is not None:
                    numbers.append(self.count)
                self.count += 1
        self._by_value |= known

    def _in_large(
        self, part: Part, sought: pa.Array, most: int
    ) -> tuple[Part | RunIndex, Any, list[Any]] | None:
        places: Any
        source: Part | RunIndex
        if part.table is not None:
            source, places = part, part.find({self._place: sought})
        elif part.run is None:
            raise TooManyRowsError
        else:
            source = self._indexes.of(part.run, self._schema)
            places = source.find(self._place, sought, most)
        if places is None:
            raise TooManyRowsError
        if not len(places):
            return None
        return source, places, self._values(source, places, self._place)

    def _column(self, place: int) -> list[Any]:
        """A column of all rows found so far."""
        values, read = self._columns.get(place, ([], 0))
        if read < len(self._found):
            for source, places in self._found[read:]:
                if isinstance(places, list):
                    whole = self._reader.list_of(source, place)  # type: ignore[arg-type]
                    values.extend([whole[at] for at in places])
                else:
                    values.extend(self._values(source, places, place))
            self._columns[place] = values, len(self._found)
        return values

    def _values(self, source: Part | RunIndex, places: Any, place: int) -> list[Any]:
        column = source.array(place) if isinstance(source, Part) else source.column(place)
        if len(places) != len(column):
            column = column.take(pa.array(places))
        kind = self._schema.field(place).type
        return to_list(column if column.type == kind else column.cast(kind))


def _storable(values: Collection[Any], type_: str) -> Sequence[Any]:
    """The values that a column of this type can have."""
    bits = INTEGER_BITS.get(type_)
    if bits is None:
        return list(values)
    most = 2 ** (bits - 1)
    return [v for v in values if v is None or -most <= v < most]
