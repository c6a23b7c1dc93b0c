"""Files with output that a sink has not received: written by a flush, read when it is sent.

    <store>/outbox/<sink>/<transaction>-<ulid>.parquet      the change that the sink will receive

A large change is several files, which executors write and read.

The manifest names each file with its size and checksum, and both are checked before the file is
used. A crash leaves files that no manifest will ever name: garbage collection removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from stepwell.env import Env, SystemEnv
from stepwell.errors import ConfigError, ConflictError, ensure
from stepwell.journal import paths
from stepwell.lsm.large_change import AnyChange, LargeChange, run_here
from stepwell.lsm.parquet_codec import decode_table, encode_table, encode_tables
from stepwell.manifest.manifest import Run
from stepwell.manifest.progress import Delivered, Undelivered
from stepwell.manifest.run_object import read_checked
from stepwell.model import Checksum, checksum
from stepwell.store.address import Address, address_of, open_address
from stepwell.store.base import Store

_MANY = 16
_THREADS = 16
_RESTORE = "restore the object from a backup"
"""From how many files on they are written concurrently, and by how many threads."""


def write_outbox_file(
    store: Store, env: Env, sink: str, mark: Delivered, change: pa.Table
) -> Undelivered:
    """Write a change to a file, which the next manifest will name."""
    return _write(store, sink, mark, change, env.new_id())


def write_outbox_files(
    store: Store,
    env: Env,
    sink: str,
    changes: Sequence[tuple[Delivered, pa.Table]],
    on_written: Callable[[Undelivered], None],
) -> None:
    """Write changes to files, concurrently if there are many: one request after another would
    delay the flush.

    `on_written` is called for each file, in any order, even if another write fails.
    """
    ids = [env.new_id() for _ in changes]

    def write(item: tuple[tuple[Delivered, pa.Table], str]) -> None:
        (mark, change), id = item
        on_written(_write(store, sink, mark, change, id))

    work = list(zip(changes, ids, strict=True))
    if len(work) < _MANY:
        for item in work:
            write(item)
        return
    with ThreadPoolExecutor(_THREADS, "stepwell-outbox") as pool:
        for done in [pool.submit(write, item) for item in work]:
            done.result()


def _write(store: Store, sink: str, mark: Delivered, change: pa.Table, id: str) -> Undelivered:
    path, body = paths.outbox(sink, mark.transaction, id), encode_table(change)
    store.put_new(path, body)
    return Undelivered(sink, mark, path, len(body), checksum([body]))


def write_large_change(
    store: Store, env: Env, sink: str, mark: Delivered, change: LargeChange
) -> tuple[tuple[Undelivered, ...], LargeChange]:
    """Write a large change to files, on executors if they can open the store.

    Also returns the change as it is read from these files: those in which it was may be deleted.
    """
    try:
        opens: Opens = _Elsewhere(address_of(store))
        here = False
    except ConfigError:
        opens, here = _Here(store), True
    # An id that another machine draws may be below the manifest's floor.
    names = tuple(paths.outbox(sink, mark.transaction, env.new_id()) for _ in range(change.tasks))
    written = change.write(_Writing(opens, names), here=here)
    parts = len(written)
    kept = tuple(
        Undelivered(sink, mark, path, size, Checksum(sum), parts, rows if parts > 1 else 0)
        for path, size, sum, rows in written
    )
    files = [Run("", path, size, rows, Checksum(sum)) for path, size, sum, rows in written]
    read = _Reading(opens)
    return kept, LargeChange(change.schema, files, read, run_here) if here else change.moved(
        files, read
    )


def read_outbox_files(store: Store, kept: Sequence[Undelivered]) -> AnyChange:
    """Read a change that was written to these files; a large one is read when it is sent."""
    ensure(len(kept) == kept[0].parts, "every file of a change is known")
    if len(kept) == 1:
        return read_outbox_file(store, kept[0])
    schema = read_outbox_file(store, kept[0]).schema
    files = [Run("", item.path, item.size, item.rows, item.checksum) for item in kept]
    return LargeChange(schema, files, _Reading(_Here(store)), run_here)


class Opens(Protocol):
    """Opens the store, in the process that runs a task."""

    def __call__(self) -> Store: ...


@dataclass(frozen=True, slots=True)
class _Here:
    store: Store

    def __call__(self) -> Store:
        return self.store


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    address: Address

    def __call__(self) -> Store:
        return open_address(self.address, SystemEnv())


@dataclass(frozen=True, slots=True)
class _Writing:
    """Writes the rows of a task to its file, unless another attempt has done so."""

    opens: Opens
    paths: tuple[str, ...]

    def __call__(self, task: int, rows: Iterator[pa.Table]) -> tuple[str, int, str, int]:
        path, (body, count) = self.paths[task], encode_tables(rows)
        store = self.opens()
        try:
            store.put_new(path, body)
        except ConflictError:
            found = store.get(path)
            if found is None:
                raise
            body = found.data
        return path, len(body), checksum([body]), count


@dataclass(frozen=True, slots=True)
class _Reading:
    opens: Opens

    def __call__(self, file: Run) -> Iterator[pa.RecordBatch]:
        store = self.opens()
        body = read_checked(store, file, _RESTORE)
        yield from decode_table(body, f"{store.uri}/{file.path}").to_batches()


def read_outbox_file(store: Store, kept: Undelivered) -> pa.Table:
    """Read a change; `CorruptError` if the bytes are not those that were written."""
    body = read_checked(store, kept, _RESTORE)
    return decode_table(body, f"{store.uri}/{kept.path}")
