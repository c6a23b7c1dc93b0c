"""Files with output that a sink has not received: written by a flush, read when it is sent.

    <store>/outbox/<sink>/<transaction>-<ulid>.parquet      the change that the sink will receive

The manifest names each file with its size and checksum, and both are checked before the file is
used. A crash leaves files that no manifest will ever name: garbage collection removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from stepwell.env import Env
from stepwell.journal import paths
from stepwell.lsm.parquet_codec import decode_table, encode_table
from stepwell.manifest.progress import Delivered, Undelivered
from stepwell.manifest.run_object import read_checked
from stepwell.model import checksum
from stepwell.store.base import Store

_MANY = 16
_THREADS = 16
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


def read_outbox_file(store: Store, kept: Undelivered) -> pa.Table:
    """Read a change; `CorruptError` if the bytes are not those that were written."""
    body = read_checked(store, kept, "restore the object from a backup")
    return decode_table(body, f"{store.uri}/{kept.path}")
