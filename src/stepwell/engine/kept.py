"""Output that a sink has not received, in files: written by a flush, read when it is sent.

    <store>/outbox/<sink>/<transaction>-<ulid>.parquet      the change as the sink is to receive it

A file is named by the manifest with size and checksum, and both are checked before it is used. A
crash leaves a file that no manifest names, and never will: collection removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from stepwell.env import Env
from stepwell.errors import CorruptError, TruncatedError
from stepwell.journal import paths
from stepwell.model import checksum
from stepwell.state.progress import Delivered, Undelivered
from stepwell.store.base import Store

_MANY = 16
_THREADS = 16
"""From how many files on they are written at once, and how many at a time."""


def write_kept(store: Store, env: Env, sink: str, mark: Delivered, change: pa.Table) -> Undelivered:
    """Make a change durable, to be named by the next manifest."""
    return _write(store, sink, mark, change, env.new_id())


def write_many_kept(
    store: Store,
    env: Env,
    sink: str,
    changes: Sequence[tuple[Delivered, pa.Table]],
    on_written: Callable[[Undelivered], None],
) -> None:
    """Make changes durable, many at a time: a request each would hold up a flush for long.

    `on_written` is called for each, in any order, also if another one fails.
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
    path, body = paths.outbox(sink, mark.transaction, id), _encode(change)
    store.put_new(path, body)
    return Undelivered(sink, mark, path, len(body), checksum([body]))


def read_kept(store: Store, kept: Undelivered) -> pa.Table:
    """A change that was kept; `CorruptError` if it is not as it was written."""
    body = _read(store, kept.path)
    where = f"{store.uri}/{kept.path}"
    if len(body) != kept.size or checksum([body]) != kept.checksum:
        raise CorruptError(
            where,
            f"expected {kept.size} bytes with checksum {kept.checksum}, found {len(body)} with "
            f"{checksum([body])}",
            hint="restore the object from a backup",
        )
    return _decode(body, where)


def _read(store: Store, path: str) -> bytes:
    found = store.get(path)
    if found is None:
        where = f"{store.uri}/{path}"
        raise TruncatedError(where, "missing", hint="restore the object from a backup")
    return found.data


def _encode(change: pa.Table) -> bytes:
    from pyarrow import parquet  # Slow to load, and needed only where a sink is behind.

    out = pa.BufferOutputStream()
    parquet.write_table(change, out, write_page_checksum=True)
    return bytes(out.getvalue().to_pybytes())


def _decode(body: bytes, where: str) -> pa.Table:
    from pyarrow import parquet

    try:
        return parquet.read_table(pa.BufferReader(body), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(where, f"not a Parquet file: {error}") from error
