"""Idempotency keys of pushes: a push repeated with its key is answered, not taken in again (J14).

A key is in the journal entry that commits its rows, so that one PUT makes both durable. Memory
holds the keys since the last flush. A flush writes them to a run of the relation `$push`, which the
manifest names like the runs of tables. So keys behave like rows: checkpoints, clones and restores
have the keys of exactly the rows they have, and garbage collection, verification and repair treat
both alike.

    runs/%24push/<ulid>.parquet     one row for each key, sorted by hash, then latest first
        hash         16 bytes       BLAKE2b-128 of the key in UTF-8
        digest       16 bytes       of what was pushed, see `PushKey`
        transaction  int64          the answer
        rejected     int64          the number of rejected rows: part of the answer
        time         int64          microseconds since 1970: when the transaction was recorded

A key is known for `push.keep` after the recorded time of its transaction. Runs are compacted in
tiers (`lsm/tiering.py`), which drops expired keys; a run with expired keys only is dropped without
being read. So the number of runs grows with the logarithm of the keys in `push.keep`. They are read
only when a push has a key, or when they are compacted.

A crash before the manifest commit leaves an unreferenced run; the journal has its keys.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow as pa

from stepwell.env import EPOCH, Env
from stepwell.errors import InvalidError
from stepwell.lsm.sorted_runs import RunFormat, SortedRuns, run_reader
from stepwell.manifest.run_ref import Run
from stepwell.model import Checksum, Transaction
from stepwell.store.base import Store

RELATION = "$push"
"""No table or view can have this name."""
KEY_BYTES_MAX = 200
KEEP_S = 7 * 86400.0
_HASH_BYTES = 16
_MEMORY_BYTES = 300
"""Approximate memory for a key that is in no run."""
_US = timedelta(microseconds=1)
_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.binary(_HASH_BYTES), nullable=False),
        pa.field("digest", pa.binary(_HASH_BYTES), nullable=False),
        pa.field("transaction", pa.int64(), nullable=False),
        pa.field("rejected", pa.int64(), nullable=False),
        pa.field("time", pa.int64(), nullable=False),
    ]
)
_FORMAT = RunFormat(_SCHEMA, (("hash", "ascending"), ("transaction", "descending")), "time")


@dataclass(frozen=True, slots=True)
class PushKey:
    """A key, and a digest of its push: tables, rows, and the operations on them."""

    key: str
    digest: Checksum


class Accepted(NamedTuple):
    """The key of a committed push, and the answer to it."""

    hash: bytes
    digest: bytes
    transaction: Transaction
    rejected: int
    time_us: int


def check_key(key: str) -> str:
    """Check a user's key; `InvalidError` if it is not valid."""
    try:
        size = len(key.encode())
    except (UnicodeEncodeError, AttributeError):
        size = 0
    if not 0 < size <= KEY_BYTES_MAX:
        shown = repr(key)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        raise InvalidError(
            f"not a key for a push: {shown}",
            hint=f"a key is a text of 1 to {KEY_BYTES_MAX} bytes, for example the id of a batch",
        )
    return key


def piece_key(key: str, number: int) -> str:
    """The key of one piece of a push in several transactions; the first piece has the key."""
    return key if number == 1 else f"{_hash(key).hex()}#{number}"


def accepted(key: PushKey, transaction: Transaction, rejected: int, time: datetime) -> Accepted:
    digest = bytes.fromhex(key.digest)
    return Accepted(_hash(key.key), digest, transaction, rejected, _microseconds(time))


def table_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The runs of tables and views, which an executor loads."""
    return tuple(run for run in runs if run.relation != RELATION)


def key_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(run for run in runs if run.relation == RELATION)


class PushKeys:
    """All known keys. Used by one thread at a time, like the rest of the state."""

    def __init__(
        self, store: Store, env: Env, runs: Iterable[Run] = (), *, keep_s: float = KEEP_S
    ) -> None:
        """`env` generates ids above the manifest's floor. Runs are read on first use."""
        self._store = store
        self._env = env
        self._keep_us = round(keep_s * 1e6)
        self._fresh: dict[bytes, Accepted] = {}
        """Keys that are in no run."""
        read, rows_of = run_reader(store, env), pa.Table.to_batches
        self._runs = SortedRuns(RELATION, _FORMAT, _table, key_runs(runs), read, rows_of)
        self._latest_us = 0
        """The time of the last transaction."""

    def add(self, keys: Iterable[Accepted], time: datetime) -> None:
        """Add the keys of a recorded transaction, whose time lets others expire."""
        self._latest_us = max(self._latest_us, _microseconds(time))
        for key in keys:
            known = self._fresh.get(key.hash)
            if known is None or known.transaction < key.transaction:
                self._fresh[key.hash] = key

    def unflushed_bytes(self) -> int:
        return len(self._fresh) * _MEMORY_BYTES

    def find(self, key: str, now: datetime) -> Accepted | None:
        """The latest push with a key, unless it has expired."""
        hash, oldest_us = _hash(key), _microseconds(now) - self._keep_us
        places = [_find(table, hash) for _, table in self._runs.indexes(above=oldest_us)]
        found = [item for item in (*places, self._fresh.get(hash)) if item is not None]
        latest = max(found, key=lambda item: item.transaction, default=None)
        return None if latest is None or latest.time_us <= oldest_us else latest

    def answer(self, key: PushKey, now: datetime) -> Accepted | None:
        """The answer to an earlier push with this key; None if the key is new.

        `InvalidError` if the key was used for another push.
        """
        known = self.find(key.key, now)
        if known is None:
            return None
        if known.digest != bytes.fromhex(key.digest):
            raise InvalidError(
                f"the key {key.key!r} was used before, for other rows or another table, in "
                f"transaction {known.transaction}; nothing was taken in",
                hint="push with another key; the same key is for repeating the same push",
            )
        return known

    def compact(self) -> None:
        """Let the next flush compact all runs to one, in this pipeline's own store."""
        self._runs.compact()

    def flush(self) -> tuple[Run, ...]:
        """Write new keys to a run; return all runs. They count with `on_flushed`."""
        columns = zip(*self._fresh.values(), strict=True) if self._fresh else [()] * len(_SCHEMA)
        fresh = pa.table(list(map(pa.array, columns, _SCHEMA.types)), schema=_SCHEMA)
        oldest_us = self._latest_us - self._keep_us
        return self._runs.flush(self._store, self._env, fresh, above=oldest_us)

    def on_flushed(self) -> None:
        """Called when a manifest names the runs that `flush` returned."""
        if self._runs.on_flushed():
            self._fresh = {}


def _table(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, _SCHEMA).combine_chunks()


def _find(table: pa.Table, hash: bytes) -> Accepted | None:
    hashes = table["hash"]
    row = bisect_left(range(table.num_rows), hash, key=lambda row: hashes[row].as_py())
    if row == table.num_rows or hashes[row].as_py() != hash:
        return None
    return Accepted(*(column[row].as_py() for column in table.columns))


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=_HASH_BYTES).digest()


def _microseconds(time: datetime) -> int:
    return (time - EPOCH) // _US
