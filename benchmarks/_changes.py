"""What the workloads share: a change to a table, a table under change, and their SQL files.

A workload draws changes from a seed, so it has to know what each table holds by now. `Rows` keeps
every version a row ever had, in the order in which they came, and a mask of those that are there
now. A change then costs what it touches and a pass over one mask, not a copy of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]
"""Rows to compute with: column by column, money in cents."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one table at once: first the deletes, then the puts.

    A put of a key that is there is an update. A delete holds the full row as it was before the
    change. In a table without a key every row counts by itself: an update is a delete and a put.
    No key is twice in a change, neither among the puts nor among the deletes nor in both.
    """

    put: pa.Table | None = None
    delete: pa.Table | None = None


class Rows:
    """A table under change. A position is the place of one version of one row, for ever."""

    def __init__(self, table: pa.Table, columns: Sequence[str] = ()) -> None:
        """`columns` are kept as arrays next to the table, because they are searched."""
        self.schema: pa.Schema = table.schema
        self._batches: list[pa.RecordBatch] = []
        self._starts = np.zeros(1, dtype=np.int64)
        self._live = np.zeros(0, dtype=bool)
        self._left = np.zeros(0, dtype=np.int64)
        self._arrays: Columns = {
            name: np.zeros(0, dtype=table.schema.field(name).type.to_pandas_dtype())
            for name in columns
        }
        self.add(table)

    def __len__(self) -> int:
        """How many rows are there now."""
        return int(np.count_nonzero(self._live))

    def now(self) -> Array:
        """The positions of the rows that are there now."""
        return np.flatnonzero(self._live)

    def left(self) -> Array:
        """The positions of rows that were taken away and did not come back."""
        return self._left

    def ever(self, column: str) -> Array:
        """A kept column, by position: of all versions, those no longer there as well."""
        return self._arrays[column]

    def values(self, column: str) -> Array:
        """A kept column of the rows that are there now."""
        return self._arrays[column][self._live]

    def where(self, column: str, values: Array) -> Array:
        """The positions of the rows there now that have one of these values."""
        return np.flatnonzero(np.isin(self._arrays[column], values) & self._live)

    def sample(self, draw: np.random.Generator, count: int) -> Array:
        """`n` different rows, or all if there are fewer, in the order of the draw."""
        now = self.now()
        picked: Array = draw.choice(len(now), size=min(count, len(now)), replace=False)
        return now[picked]

    def take(self, positions: Array) -> pa.Table:
        """The rows at these positions, in this order."""
        order = np.argsort(positions, kind="stable")
        # Batch by batch, since Arrow would join all chunks of a column first, that is, copy it.
        batch_of = np.searchsorted(self._starts, positions[order], side="right") - 1
        parts = [
            self._batches[number].take(
                pa.array(positions[order[batch_of == number]] - self._starts[number])
            )
            for number in np.unique(batch_of)
        ]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.Table.from_batches(parts, self.schema).take(pa.array(back)).combine_chunks()

    def add(self, rows: pa.Table, *, back: Array | None = None) -> None:
        """New rows; `back` are the positions where some of them were before they left."""
        if back is not None:
            self._left = np.setdiff1d(self._left, back)
        for batch in rows.to_batches():
            self._batches.append(batch)
            self._starts = np.append(self._starts, self._starts[-1] + batch.num_rows)
            for name, array in self._arrays.items():
                new = batch.column(name).to_numpy(zero_copy_only=False)
                self._arrays[name] = np.concatenate([array, new])
        self._live = np.concatenate([self._live, np.ones(rows.num_rows, dtype=bool)])

    def remove(self, positions: Array) -> None:
        self._live[positions] = False
        self._left = np.concatenate([self._left, positions])

    def replace(self, positions: Array, rows: pa.Table) -> None:
        """New versions of the rows at these positions."""
        self._live[positions] = False
        self.add(rows)

    def current(self) -> pa.Table:
        """The whole table as it is now: a copy."""
        parts = [
            batch.filter(pa.array(self._live[start : start + batch.num_rows]))
            for batch, start in zip(self._batches, self._starts, strict=False)
        ]
        return pa.Table.from_batches(parts, self.schema).combine_chunks()


def together(*parts: Mapping[str, Change]) -> dict[str, Change]:
    """Changes that become one. No key may be in two of them, or it would matter which is first."""
    merged: dict[str, Change] = {}
    for part in parts:
        for table, change in part.items():
            before = merged.get(table, Change())
            merged[table] = Change(
                _joined(before.put, change.put), _joined(before.delete, change.delete)
            )
    return merged


def _joined(first: pa.Table | None, second: pa.Table | None) -> pa.Table | None:
    if first is None or second is None:
        return first if second is None else second
    return pa.concat_tables([first, second])


# --- edits: how the rows of a table may change ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edited:
    """Rows of which some are being changed: what an edit gets to see."""

    columns: Columns
    at: Array
    """Which of the rows to change."""
    draw: np.random.Generator
    keys: Callable[[str], Array]
    """The keys another table holds now."""

    def pick(self, values: Sequence[Any] | Array) -> Array:
        """One of the values for each row."""
        pool = np.asarray(values)
        picked: Array = pool[self.draw.integers(len(pool), size=len(self.at))]
        return picked


Edit = Callable[[Edited], None]


def edit_rows(
    rows: pa.Table,
    edits: Sequence[Edit],
    draw: np.random.Generator,
    keys: Callable[[str], Array],
) -> pa.Table:
    """The rows with one or two edits each."""
    columns = unpack(rows)
    first, second = draw.integers(len(edits), size=(2, rows.num_rows))
    for number, edit in enumerate(edits):
        at = np.flatnonzero((first == number) | (second == number))
        if len(at):
            edit(Edited(columns, at, draw, keys))
    return pack(columns, rows.schema)


def one_of(column: str, values: Sequence[Any]) -> Edit:
    """Another value, or by chance the same one."""

    def edit(rows: Edited) -> None:
        rows.columns[column][rows.at] = rows.pick(values)

    return edit


def both_of(columns: tuple[str, str], pairs: Sequence[tuple[Any, Any]]) -> Edit:
    """Two columns at once, for filters that ask for both."""

    def edit(rows: Edited) -> None:
        picked = rows.draw.integers(len(pairs), size=len(rows.at))
        for column, values in zip(columns, zip(*pairs, strict=True), strict=True):
            rows.columns[column][rows.at] = np.asarray(values)[picked]

    return edit


def near(column: str, borders: Sequence[str]) -> Edit:
    """A date one day before, on, or one day after the border of a filter."""

    def edit(rows: Edited) -> None:
        days = rows.draw.integers(-1, 2, size=len(rows.at))
        rows.columns[column][rows.at] = rows.pick(np.array(borders, "datetime64[D]")) + days

    return edit


def between(column: str, low: int, high: int) -> Edit:
    """A number of this range, both ends included; money in cents."""

    def edit(rows: Edited) -> None:
        rows.columns[column][rows.at] = rows.draw.integers(low, high + 1, size=len(rows.at))

    return edit


def key_of(column: str, table: str) -> Edit:
    """A reference to another row of a table, as long as it has any."""

    def edit(rows: Edited) -> None:
        keys = rows.keys(table)
        if len(keys):
            rows.columns[column][rows.at] = rows.pick(keys)

    return edit


def change_hands(*columns: str) -> Edit:
    """Values move on from row to row, so that none is lost and what belongs together stays so."""

    def edit(rows: Edited) -> None:
        for column in columns:
            rows.columns[column][rows.at] = np.roll(rows.columns[column][rows.at], 1)

    return edit


# --- Arrow and numpy ------------------------------------------------------------------------------


def unpack(table: pa.Table) -> Columns:
    """Columns that can be written to. Not for whole tables: a text becomes a Python object."""
    columns = {}
    for name, chunked in zip(table.column_names, table.columns, strict=True):
        column = chunked.combine_chunks()
        if pa.types.is_decimal(column.type):
            columns[name] = cents(column)
        else:
            columns[name] = column.to_numpy(zero_copy_only=False).copy()
    return columns


def pack(columns: Mapping[str, Array], schema: pa.Schema) -> pa.Table:
    arrays = [
        decimals(columns[field.name], field.type)
        if pa.types.is_decimal(field.type)
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def cents(column: pa.Array) -> Array:
    """The unscaled values of a decimal column: Arrow keeps 16 bytes each, the low ones first."""
    words = np.frombuffer(column.buffers()[1], dtype="<i8").reshape(-1, 2)
    low: Array = words[column.offset : column.offset + len(column), 0].copy()
    return low


def decimals(values: Array, kind: pa.DataType) -> pa.Array:
    words = np.empty((len(values), 2), dtype="<i8")
    words[:, 0] = values
    # The high bytes repeat the sign.
    words[:, 1] = words[:, 0] >> 63
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(words)])


# --- SQL files ------------------------------------------------------------------------------------


def views(folder: Path) -> dict[str, str]:
    """The statement that makes each view of a workload, by its name, q2 before q10."""
    files = sorted(folder.glob("q*.sql"), key=lambda file: int(file.stem[1:]))
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def query_of(statement: str) -> str:
    """The SELECT of such a statement, for Spark to answer by itself."""
    _, found, query = statement.partition(" AS\n")
    if not found:
        raise ValueError(f"expected CREATE MATERIALIZED VIEW name AS, found: {statement[:80]}")
    return query.strip().removesuffix(";")
