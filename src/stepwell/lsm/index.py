"""Indexes: look up the rows of a run by the values of a column, without a scan.

A run never changes, so data derived from it stays valid. The first read of a column decodes it into
a cache file that is mapped into memory. The first look-up by a column also builds an index. A
look-up is then a binary search, whose cost hardly depends on the size of the run, and reads only
the matching rows.

    <column>.<type>.arrow     the column's values, one batch
    <column>.<type>.order     its values, or their hashes, in ascending order
    <column>.<type>.rows      the row number of each of them; empty if the run is sorted by it

Integers, dates and timestamps are ordered by value. Values of other types are ordered by a hash
(`hashing`), so callers must compare the rows that `find` returns by value. Values compare as in
Spark, so a column of a type that Arrow compares differently (floating point, nested, collated) has
no index.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from stepwell.errors import BugError
from stepwell.lsm.cache import Cache
from stepwell.lsm.hashing import hash_values, numbers
from stepwell.lsm.run_file import RunFiles

Array = np.ndarray[Any, Any]

TEXT_BYTES_MAX = 2**30
"""Size of a column above which text gets 64-bit offsets; Arrow's default offsets have 32 bits."""


def ordered(type_: pa.DataType) -> bool:
    """Whether values are 64-bit numbers, which an index orders by value."""
    kinds = pa.types
    return bool(kinds.is_integer(type_) or kinds.is_date32(type_) or kinds.is_timestamp(type_))


def ascending(numbers: Array) -> Array:
    """The numbers in order. Most are, and testing that costs less than sorting them."""
    return numbers if bool((numbers[:-1] <= numbers[1:]).all()) else np.sort(numbers)


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """The range of an indexed column in a run, as `hashing.numbers`."""

    low: int | None
    high: int | None
    """None if every value is NULL."""
    nulls: bool

    def may_contain(self, values: pa.Array) -> bool:
        """Whether one of these values may occur in the column."""
        if values.null_count and self.nulls:
            return True
        if self.low is None or self.high is None:
            return False
        sought = numbers(values.drop_null() if values.null_count else values)
        return bool(((sought >= self.low) & (sought <= self.high)).any())


class Indexes:
    """The indexes of all runs that were read. Safe to use from several threads."""

    def __init__(self, cache: Cache, text_bytes_max: int = TEXT_BYTES_MAX) -> None:
        self.cache = cache
        self._text_bytes_max = text_bytes_max
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[RunFiles, RunIndex] = weakref.WeakKeyDictionary()

    def of(self, run: RunFiles, schema: pa.Schema) -> RunIndex:
        with self._lock:
            index = self._known.get(run)
            if index is None:
                index = self._known[run] = RunIndex(run, schema, self.cache, self._text_bytes_max)
            elif index.identity != run.identity:
                index.adopt(run.identity)
            return index

    def build_like(self, run: RunFiles, others: Sequence[RunFiles], schema: pa.Schema) -> None:
        """Index a run by the columns that other runs are indexed by, before it replaces them."""
        if not run.here:
            return
        with self._lock:
            known = [index for other in others if (index := self._known.get(other)) is not None]
        index = self.of(run, schema)
        for place in sorted({place for other in known for place in other.indexed}):
            index.build(place)


class RunIndex:
    """The decoded columns and indexes of one run."""

    def __init__(self, run: RunFiles, schema: pa.Schema, cache: Cache, text_bytes_max: int) -> None:
        # The index must not keep its run alive; and the files are fetched only if needed.
        self._run = weakref.ref(run)
        self._rows = run.rows
        self._places = run.places
        self._schema = schema
        self._cache = cache
        self._text_bytes_max = text_bytes_max
        self.identity = run.identity
        if run.identity is None:
            self._folder = cache.temporary_folder()
        else:
            self._folder = cache.run_folder(run.identity)
        self._columns: dict[int, pa.Array] = {}
        self._orders: dict[int, tuple[Array, Array | None]] = {}
        self._last: tuple[int, pa.Array, tuple[Array, Array]] | None = None
        """The last result of `_bounds`: `find` usually follows `count`."""
        self._lock = threading.RLock()
        """Held while a column is decoded or an index is built, so that it is done once."""

    def adopt(self, identity: str | None) -> None:
        """Move the cached files to the run's permanent folder, now that the run is stored."""
        if identity is not None and self.identity is None:
            self._folder = self._cache.adopt(self._folder, identity)
            self.identity = identity

    @property
    def indexed(self) -> frozenset[int]:
        """The columns that have an index."""
        return frozenset(self._orders)

    def build(self, column: int) -> None:
        """Build the index of a column, if it has none yet."""
        self._order(column)

    def range(self, column: int) -> ColumnRange | None:
        """The range of a column; None if it has no index by value yet."""
        if column not in self._orders or not ordered(self._schema.field(column).type):
            return None
        in_order = self._order(column)[0]
        nulls = bool(self.column(column).null_count)
        if not len(in_order):
            return ColumnRange(None, None, nulls)
        return ColumnRange(int(in_order[0]), int(in_order[-1]), nulls)

    def find(self, column: int, values: pa.Array, most: int) -> Array | None:
        """Row numbers, ascending, of rows whose column may have one of these values.

        The values must be distinct. If the index is by hash, rows with other values may be
        included. None if there are more than `most` rows.
        """
        rows = self._order(column)[1]
        first, last = self._bounds(column, values)
        total = int((last - first).sum())
        if total > most:
            return None
        at = concatenated_ranges(first, last, total)
        found = at if rows is None else rows[at]
        if values.null_count:
            nothing = np.flatnonzero(self.column(column).is_null().to_numpy(zero_copy_only=False))
            if len(nothing) + total > most:
                return None
            found = np.concatenate([found, nothing])
        return np.sort(found)

    def count(self, column: int, values: pa.Array) -> int | None:
        """Upper bound on the number of rows that have one of these values, NULL excluded.

        None if the column has no index yet.
        """
        if column not in self._orders:
            return None
        first, last = self._bounds(column, values)
        return int((last - first).sum())

    def guess(self, column: int) -> float:
        """Estimate of `count` for a column without an index: 0 for ordered types. For others, all
        rows, since a text is as likely to be a category as a key."""
        return 0 if ordered(self._schema.field(column).type) else math.inf

    def _bounds(self, column: int, values: pa.Array) -> tuple[Array, Array]:
        """The start and end of each value in the column's order."""
        known = self._last
        if known is not None and known[0] == column and known[1] is values:
            return known[2]
        in_order = self._order(column)[0]
        present = values.drop_null() if values.null_count else values
        sought = numbers(present) if ordered(present.type) else hash_values(present)
        # Ascending values are near each other in the order. Equal hashes are looked up once.
        sought = ascending(sought) if ordered(present.type) else np.unique(sought)
        left = np.searchsorted(in_order, sought, side="left")
        # Look for the end only where there is a start.
        at = np.flatnonzero(left < len(in_order))
        at = at[in_order[left[at]] == sought[at]]
        bounds = left[at], np.searchsorted(in_order, sought[at], side="right")
        self._last = column, values, bounds
        return bounds

    def take(self, places: Array, columns: Sequence[int] | None) -> pa.Table:
        """The rows at these positions. Columns that are not requested are NULL."""
        at = pa.array(places)
        width = len(self._schema)
        made = []
        for i, field in enumerate(self._schema):
            if columns is None or i in columns or i == width - 1:
                made.append(self.column(i).take(at).cast(field.type))
            else:
                made.append(pa.nulls(len(places), field.type))
        return pa.table(made, schema=self._schema)

    def column(self, place: int) -> pa.Array:
        """All values of a column, mapped from the cache."""
        known = self._columns.get(place)
        if known is None:
            with self._lock:
                known = self._columns.get(place)
                if known is None:
                    known = self._columns[place] = self._column(place)
        return known

    def _column(self, place: int) -> pa.Array:
        kind = self._schema.field(place).type
        stored = self._stored(place)
        if stored is None:
            return pa.nulls(self._rows, kind)
        path = self._folder / f"{self._name(place)}.arrow"
        payload = self._cache.load(path)
        if payload is None:
            whole = self._decoded(stored, kind)

            def write(file: pa.OSFile) -> None:
                with pa.ipc.new_file(file, whole.schema) as writer:
                    writer.write_table(whole)

            payload = self._cache.store(path, write)
            if payload is None:
                return _one_chunk(whole.column(0))
        return _one_chunk(pa.ipc.open_file(pa.BufferReader(payload)).read_all().column(0))

    def _stored(self, place: int) -> str | None:
        """The name of a column in the files; None if the files lack it."""
        if self._places is None or place >= len(self._places):
            return str(self._schema.field(place).name)
        at = self._places[place]
        return None if at is None else f"c{at}"

    def _name(self, place: int) -> str:
        """The name of a column's cache files. It contains the type, so widening changes it."""
        kind = xxhash.xxh3_64_hexdigest(str(self._schema.field(place).type).encode())[:8]
        return f"{self._stored(place)}.{kind}"

    def _decoded(self, stored: str, kind: pa.DataType) -> pa.Table:
        run = self._run()
        if run is None:
            raise BugError("an index was used after its run")
        parts = [column.cast(kind) for column in run.column(stored)]
        schema = pa.schema([(stored, kind)])
        whole = pa.concat_tables(pa.table([part], schema=schema) for part in parts)
        if whole.nbytes > self._text_bytes_max:
            whole = whole.cast(pa.schema([(stored, _large(kind))]))
        return whole.combine_chunks()

    def _order(self, place: int) -> tuple[Array, Array | None]:
        known = self._orders.get(place)
        if known is None:
            with self._lock:
                known = self._orders.get(place)
                if known is None:
                    known = self._orders[place] = self._loaded(place) or self._built(place)
        return known

    def _loaded(self, place: int) -> tuple[Array, Array | None] | None:
        """Load an index from the cache."""
        if self._stored(place) is None:
            return None
        order, rows = (self._cache.load(self._path(place, kind)) for kind in ("order", "rows"))
        if order is None or rows is None:
            return None
        in_order = np.frombuffer(order, self._key_type(place))
        column = self.column(place)
        if not rows.size and len(column) and not column.null_count:
            # The run is sorted by this column, so its values are the order.
            return numbers(column), None
        return in_order, np.frombuffer(rows, np.int64)

    def _built(self, place: int) -> tuple[Array, Array | None]:
        column = self.column(place)
        rows: Array | None = None
        values = column
        if column.null_count:
            rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            values = column.drop_null()
        by_value = ordered(column.type)
        keys = numbers(values) if by_value else hash_values(values)
        if len(keys) > 1 and not bool(np.all(keys[:-1] <= keys[1:])):
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
            rows = order if rows is None else rows[order]
        elif not by_value and rows is None:
            rows = np.arange(len(keys))
        if self._stored(place) is None:
            return keys, rows
        if rows is None:
            self._write(place, "order", keys[:0])
            self._write(place, "rows", keys[:0])
            return keys, None
        keys = self._write(place, "order", keys)
        return keys, self._write(place, "rows", rows.astype(np.int64, copy=False))

    def _key_type(self, place: int) -> np.dtype[Any]:
        kind = self._schema.field(place).type
        if not ordered(kind):
            return np.dtype(np.uint64)
        made: np.dtype[Any] = numbers(pa.array([], kind)).dtype
        return made

    def _path(self, place: int, kind: str) -> Path:
        return self._folder / f"{self._name(place)}.{kind}"

    def _write(self, place: int, kind: str, values: Array) -> Array:
        """Write an array to the cache and map it; if that fails, return the array itself."""
        payload = self._cache.store(
            self._path(place, kind), lambda file: file.write(np.ascontiguousarray(values))
        )
        return values if payload is None else np.frombuffer(payload, values.dtype)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _large(kind: pa.DataType) -> pa.DataType:
    """The variant of a type with 64-bit offsets."""
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind


def concatenated_ranges(first: Array, last: Array, total: int) -> Array:
    """The concatenated integers of all ranges [first, last)."""
    lengths = last - first
    starts = np.repeat(first - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return starts + np.arange(total)
