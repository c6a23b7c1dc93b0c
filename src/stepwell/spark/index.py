"""Rows of a run found by the values of a column, without Spark.

A run never changes, so what is worked out about it once stays true. The first time a column is
looked at, it is decoded into a file of its own that is mapped into memory; the first time rows are
looked up by it, the order of the rows by its values is worked out too. A look-up is then a binary
search, whose cost hardly depends on how large the run is, and reads only what it finds.

    <folder>/<n>/<column>.arrow       the column's values, one batch
    <folder>/<n>/<column>.npy         its values in order (not where the run is sorted by it)
    <folder>/<n>/<column>.places.npy  where each of them stands

All of this is a cache on a local disk: it can be thrown away at any time, and a crash leaves it
behind in a temporary folder. Values are compared as Spark compares them, so a column of a type
that Arrow compares otherwise (floating point, nested, collated) cannot be looked up.
"""

from __future__ import annotations

import math
import re
import shutil
import weakref
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    # Not imported: it needs pyspark, which whoever only compares values has no use for.
    from stepwell.spark.runs import RunFiles

Array = np.ndarray[Any, Any]

TEXT_BYTES_MAX = 2**30
"""Of a column; Arrow's offsets into text have 32 bits, unless they are asked to have more."""

_COMPARABLE = re.compile(
    r"boolean|tinyint|smallint|int|bigint|string|binary|date|timestamp|timestamp_ntz"
    r"|decimal\(\d+,\d+\)"
)


def comparable(type_: str) -> bool:
    """Whether Arrow takes the same values of a type of Spark's for equal as Spark does."""
    return _COMPARABLE.fullmatch(type_) is not None


def ordered(type_: pa.DataType) -> bool:
    """Whether values are numbers of 64 bits, for which an order is kept."""
    kinds = pa.types
    return bool(kinds.is_integer(type_) or kinds.is_date32(type_) or kinds.is_timestamp(type_))


class Indexes:
    """The indexes of all runs that were looked into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)
        self._known: weakref.WeakKeyDictionary[RunFiles, RunIndex] = weakref.WeakKeyDictionary()

    def of(self, run: RunFiles, schema: pa.Schema) -> RunIndex:
        index = self._known.get(run)
        if index is None:
            folder = self._folder / str(next(self._numbers))
            index = self._known[run] = RunIndex(run, schema, folder)
        return index


class RunIndex:
    def __init__(self, run: RunFiles, schema: pa.Schema, folder: Path) -> None:
        folder.mkdir(parents=True)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        # Not the run itself, which must not be kept by its index.
        self._files = run.files
        self._places = run.places
        self._schema = schema
        self._folder = folder
        self._columns: dict[int, pa.Array] = {}
        self._orders: dict[int, tuple[Array, Array | None]] = {}

    def find(self, column: int, values: pa.Array, most: int) -> Array | None:
        """Places of the rows whose column has one of these values, ascending.

        None if there are more than `most`. The values are distinct.
        """
        if not ordered(self._schema.field(column).type):
            stored = self.column(column)
            found = np.flatnonzero(
                pc.is_in(stored, value_set=values).to_numpy(zero_copy_only=False)
            )
            return None if len(found) > most else found
        places = self._order(column)[1]
        first, last = self._bounds(column, values)
        total = int((last - first).sum())
        if total > most:
            return None
        at = _ranges(first, last, total)
        found = at if places is None else places[at]
        if values.null_count:
            nothing = np.flatnonzero(self.column(column).is_null().to_numpy(zero_copy_only=False))
            if len(nothing) + total > most:
                return None
            found = np.concatenate([found, nothing])
        return np.sort(found)

    def count(self, column: int, values: pa.Array) -> int | None:
        """How many rows have one of these values, NULL left out; None if that takes long to say."""
        if column not in self._orders:
            return None
        first, last = self._bounds(column, values)
        return int((last - first).sum())

    def guess(self, column: int) -> float:
        """The same for a column whose values have not been put in order: few, or all, if they can
        not be.
        """
        return 0 if ordered(self._schema.field(column).type) else math.inf

    def _bounds(self, column: int, values: pa.Array) -> tuple[Array, Array]:
        """Where each value begins and ends in the order of the column."""
        sought = numbers(values.drop_null())
        in_order = self._order(column)[0]
        if len(in_order) and len(sought):
            sought = sought[(sought >= in_order[0]) & (sought <= in_order[-1])]
            sought = np.sort(sought)
        left, right = (np.searchsorted(in_order, sought, side=side) for side in ("left", "right"))
        return left, right

    def take(self, places: Array, columns: Sequence[int] | None) -> pa.Table:
        """The rows at these places; columns that are not asked for are empty."""
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
        """All values of a column, mapped from disk."""
        known = self._columns.get(place)
        if known is not None:
            return known
        name = self._schema.field(place).name
        wanted = pa.schema([self._schema.field(place)])
        path = self._folder / f"{place}.arrow"
        at: int | None = place
        if self._places is not None and place < len(self._places):
            at = self._places[place]
        stored = name if at == place else f"c{at}"
        parts = [
            pa.nulls(pq.read_metadata(file).num_rows, wanted.field(0).type)
            if at is None
            else pq.read_table(
                file, columns=[stored], partitioning=None, page_checksum_verification=True
            )
            .column(0)
            .cast(wanted.field(0).type)
            for file in self._files
        ]
        whole = pa.concat_tables(pa.table([part], schema=wanted) for part in parts)
        if whole.nbytes > TEXT_BYTES_MAX:
            whole = whole.cast(pa.schema([(name, _large(wanted.field(0).type))]))
        whole = whole.combine_chunks()
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
            writer.write_table(whole)
        with pa.memory_map(str(path)) as source:
            read = pa.ipc.open_file(source).read_all().column(0)
        column = read.combine_chunks() if read.num_chunks != 1 else read.chunk(0)
        self._columns[place] = column
        return column

    def _order(self, place: int) -> tuple[Array, Array | None]:
        known = self._orders.get(place)
        if known is not None:
            return known
        column = self.column(place)
        places: Array | None = None
        if column.null_count:
            places = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            values = numbers(column.drop_null())
        else:
            values = numbers(column)
        if len(values) > 1 and not bool(np.all(values[:-1] <= values[1:])):
            order = np.argsort(values, kind="stable")
            values = self._mapped(f"{place}.npy", values[order])
            places = order if places is None else places[order]
        if places is not None:
            places = self._mapped(f"{place}.places.npy", places)
        self._orders[place] = (values, places)
        return values, places

    def _mapped(self, name: str, values: Array) -> Array:
        np.save(self._folder / name, values)
        mapped: Array = np.load(self._folder / name, mmap_mode="r")
        return mapped


def numbers(values: pa.Array) -> Array:
    """Values without NULL as whole numbers in the same order."""
    if pa.types.is_date32(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    found: Array = values.to_numpy(zero_copy_only=False)
    return found


def _large(kind: pa.DataType) -> pa.DataType:
    """A type like this one, for more text than an array of this one can hold."""
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind


def _ranges(first: Array, last: Array, total: int) -> Array:
    """All numbers of [first, last) of each pair, one after another."""
    lengths = last - first
    starts = np.repeat(first - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return starts + np.arange(total)
