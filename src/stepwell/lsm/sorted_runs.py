"""Sorted runs of rows that are only added: the storage of push keys and of the names of files.

Each run has an index that its owner defines. The index is built when the run is written or first
used, and stays in memory; the rows do not, unless the index holds them. A flush writes new rows to
a run, and compacts runs of like size (`lsm/tiering.py`). A crash before the manifest commit leaves
an unreferenced run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.env import Env
from stepwell.errors import CorruptError
from stepwell.lsm.parquet_codec import BATCH_ROWS, decode_batches, encode_table
from stepwell.lsm.tiering import like_sized
from stepwell.manifest.run_object import read_run, write_run
from stepwell.manifest.run_ref import Run
from stepwell.store.base import Store

IndexT = TypeVar("IndexT")
ReadRun = Callable[[Run], bytes]
"""Returns the bytes of a run, checked against its size and checksum."""


@dataclass(frozen=True, slots=True)
class RunFormat:
    schema: pa.Schema
    order: tuple[tuple[str, str], ...]
    """Columns to sort by, each "ascending" or "descending"."""
    bounds: str
    """The column whose least and greatest values are the `low` and `high` of a run."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the Parquet writer."""
    rows_max: int | None = None
    """A run with as many rows is not compacted, which bounds the memory of a compaction."""


@dataclass(slots=True, eq=False)
class _Indexed(Generic[IndexT]):
    run: Run
    index: IndexT | None = None


class SortedRuns(Generic[IndexT]):
    """The runs of one relation. Used by one thread at a time."""

    def __init__(
        self,
        relation: str,
        format: RunFormat,
        index: Callable[[Iterable[pa.RecordBatch]], IndexT],
        runs: Iterable[Run],
        read: ReadRun,
        rows_of: Callable[[IndexT], Iterable[pa.RecordBatch]] | None = None,
    ) -> None:
        """`rows_of` is for an index that holds all rows: a compaction then reads no run twice."""
        self._relation = relation
        self._format = format
        self._index = index
        self._read = read
        self._rows_of = rows_of
        self._runs = [_Indexed[IndexT](run) for run in runs]
        self._flushing: list[_Indexed[IndexT]] | None = None
        self._compacting = False

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that the manifest names."""
        return tuple(item.run for item in self._runs)

    def indexes(self, above: int | None = None) -> Iterator[tuple[Run, IndexT]]:
        """Every run with its index; with `above`, only runs with a greater `high`."""
        for item in self._above(above):
            if item.index is None:
                item.index = self._index(self._batches(item.run))
            yield item.run, item.index

    def rows_in(self, run: Run, values: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a run whose first column has one of these values."""
        wanted = pa.array(values, self._format.schema.types[0])
        for batch in self._batches(run):
            yield batch.filter(pc.is_in(batch.column(0), wanted))

    def _batches(self, run: Run) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in decode_batches(self._read(run), self._format.schema, run.path):
            count += batch.num_rows
            yield batch
        if count != run.rows:
            raise CorruptError(run.path, f"holds {count} rows, not {run.rows}", field="rows")

    def compact(self) -> None:
        """Let the next flush compact all runs to one, in this pipeline's own store.

        Runs that are too large for a compaction are copied if they are in another store.
        """
        self._compacting = True

    def flush(
        self, store: Store, env: Env, fresh: pa.Table, above: int | None = None
    ) -> tuple[Run, ...]:
        """Write new rows to a run; return all runs. They count with `on_flushed`.

        With `above`, drop runs whose `high` is not above it, and such rows when a run is written.
        """
        items: list[_Indexed[IndexT] | None] = [*self._above(above)]
        items += [None] if fresh.num_rows else []  # None stands for the new rows.
        sizes = [fresh.num_rows if item is None else item.run.rows for item in items]
        together = [items[place] for place in self._to_merge(sizes, new=None in items)]
        rest = [item for item in items if item not in together]
        kept = [item for item in rest if item is not None and not self._foreign(item)]
        groups = [together, *([item] for item in rest if item not in kept)]
        written = [self._write(group, store, env, fresh, above) for group in groups if group]
        self._flushing = [*kept, *(item for item in written if item is not None)]
        return tuple(item.run for item in self._flushing)

    def on_flushed(self) -> bool:
        """Called when a manifest names the runs that `flush` returned; whether there was one."""
        if self._flushing is None:
            return False
        self._runs, self._flushing = self._flushing, None
        self._compacting = False
        return True

    def _above(self, above: int | None) -> list[_Indexed[IndexT]]:
        return [item for item in self._runs if above is None or _high(item.run) > above]

    def _foreign(self, item: _Indexed[IndexT]) -> bool:
        return self._compacting and item.run.root is not None

    def _to_merge(self, sizes: Sequence[int], *, new: bool) -> list[int]:
        most = self._format.rows_max
        small = [place for place, rows in enumerate(sizes) if most is None or rows < most]
        if self._compacting or not new:
            return small if self._compacting else []
        return [small[at] for at in like_sized([sizes[place] for place in small])]

    def _write(
        self,
        group: Sequence[_Indexed[IndexT] | None],
        store: Store,
        env: Env,
        fresh: pa.Table,
        above: int | None,
    ) -> _Indexed[IndexT] | None:
        format = self._format
        batches: list[pa.RecordBatch] = []
        for item in group:
            if item is None:
                batches += fresh.to_batches()
            elif self._rows_of is not None and item.index is not None:
                batches += self._rows_of(item.index)
            else:
                batches += self._batches(item.run)
        table = pa.Table.from_batches(batches, format.schema)
        if above is not None:
            table = table.filter(pc.greater(table[format.bounds], above))
        if not table.num_rows:
            return None
        table = table.take(pc.sort_indices(table, list(format.order))).combine_chunks()
        bounds = pc.min_max(table[format.bounds]).as_py()
        body = encode_table(table, compression="zstd", use_dictionary=False, **format.options)
        run = write_run(store, env, self._relation, body, table.num_rows)
        run = replace(run, low=bounds["min"], high=bounds["max"])
        return _Indexed(run, self._index(table.to_batches(BATCH_ROWS)))


def run_reader(store: Store, env: Env) -> ReadRun:
    return lambda run: read_run(store, run, env)


def _high(run: Run) -> int:
    if not isinstance(run.high, int):
        raise CorruptError(run.path, "expected the greatest number of its rows", field="high")
    return run.high
