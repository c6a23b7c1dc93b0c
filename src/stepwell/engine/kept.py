"""Output that a sink has not received, in files: written by a flush, read when it is sent.

    <store>/outbox/<sink>/<transaction>-<ulid>.parquet      the change as the sink is to receive it

A file is named by the manifest with size and checksum, and both are checked before it is used. A
crash leaves a file that no manifest names, and never will: collection removes it.
"""

from __future__ import annotations

import pyarrow as pa

from stepwell.env import Env
from stepwell.errors import CorruptError, TruncatedError
from stepwell.journal import paths
from stepwell.model import checksum
from stepwell.state.progress import Delivered, Undelivered
from stepwell.store.base import Store


def write_kept(store: Store, env: Env, sink: str, mark: Delivered, change: pa.Table) -> Undelivered:
    """Make a change durable, to be named by the next manifest."""
    path, body = paths.outbox(sink, mark.transaction, env.new_id()), _encode(change)
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
