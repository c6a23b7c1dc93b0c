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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError
from stepwell.lsm.tiering import alike
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import read_run, write_run
from stepwell.model import Checksum, Transaction
from stepwell.store.base import Store

RELATION = "$push"
"""No table or view can have this name."""
KEY_BYTES_MAX = 200
KEEP_S = 7 * 86400.0
_HASH_BYTES = 16
_MEMORY_BYTES = 300
"""Approximate memory for a key that is in no run."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
_Load = Callable[[Run], pa.Table]
_ORDER = [("hash", "ascending"), ("transaction", "descending")]


@dataclass(frozen=True, slots=True)
class PushKey:
    """A key, and a digest of its push: tables, rows, and the operations on them."""

    key: str
    digest: Checksum


@dataclass(frozen=True, slots=True)
class Accepted:
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
        self._parts = [_Part(run) for run in key_runs(runs)]
        self._flushing: list[_Part] | None = None
        self._latest_us = 0
        """The time of the last transaction."""
        self._merging = False

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
        places = [part.find(hash, self._read) for part in self._parts if part.newest_us > oldest_us]
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
        self._merging = True

    def flush(self) -> tuple[Run, ...]:
        """Write new keys to a run; return all runs. They count with `on_flushed`."""
        oldest_us = self._latest_us - self._keep_us
        parts = [part for part in self._parts if part.newest_us > oldest_us]
        if self._fresh:
            parts.append(_Part.of(_table(self._fresh.values())))
        together = range(len(parts)) if self._merging else alike([part.rows for part in parts])
        if together:
            chosen = [parts[place] for place in together]
            merged = _merge([part.read(self._read) for part in chosen], oldest_us)
            parts = [part for place, part in enumerate(parts) if place not in set(together)]
            parts += [_Part.of(merged)] if merged.num_rows else []
        self._flushing = [part if part.run else self._write(part) for part in parts]
        return tuple(part.run for part in self._flushing if part.run)

    def on_flushed(self) -> None:
        """Called when a manifest names the runs that `flush` returned."""
        if self._flushing is not None:
            self._parts, self._flushing, self._fresh = self._flushing, None, {}
            self._merging = False

    def _write(self, part: _Part) -> _Part:
        table = part.read(self._read)
        run = write_run(self._store, self._env, RELATION, _encode(table), table.num_rows)
        times = pc.min_max(table["time"]).as_py()
        return _Part(replace(run, low=times["min"], high=times["max"]), table)

    def _read(self, run: Run) -> pa.Table:
        return _decode(read_run(self._store, run, self._env), f"{self._store.uri}/{run.path}")


class _Part:
    """Keys in one sorted table: that of a run, read on first use, or of a run to be written."""

    def __init__(self, run: Run | None, table: pa.Table | None = None) -> None:
        self.run = run
        self._table = table
        self._hashes: memoryview | None = None

    @classmethod
    def of(cls, table: pa.Table) -> _Part:
        return cls(None, table)

    @property
    def rows(self) -> int:
        return self.run.rows if self.run else self._rows.num_rows

    @property
    def newest_us(self) -> int:
        if self.run is None:
            return int(pc.max(self._rows["time"]).as_py())
        if not isinstance(self.run.high, int):
            raise CorruptError(self.run.path, "expected the time of its last key", field="high")
        return self.run.high

    @property
    def _rows(self) -> pa.Table:
        return _SCHEMA.empty_table() if self._table is None else self._table

    def read(self, load: _Load) -> pa.Table:
        if self._table is None and self.run is not None:
            self._table = load(self.run)
        return self._rows

    def find(self, hash: bytes, load: _Load) -> Accepted | None:
        table = self.read(load)
        if self._hashes is None:
            self._hashes = _bytes_of(table["hash"])
        hashes = self._hashes

        def at(row: int) -> bytes:
            return hashes[row * _HASH_BYTES : (row + 1) * _HASH_BYTES].tobytes()

        row = bisect_left(range(table.num_rows), hash, key=at)
        if row == table.num_rows or at(row) != hash:
            return None
        _, digest, number, rejected, time_us = (column[row].as_py() for column in table.columns)
        return Accepted(hash, digest, Transaction(number), rejected, time_us)


def _table(keys: Iterable[Accepted]) -> pa.Table:
    listed = list(keys)
    columns = [
        [key.hash for key in listed],
        [key.digest for key in listed],
        [key.transaction for key in listed],
        [key.rejected for key in listed],
        [key.time_us for key in listed],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return _sorted(pa.table(arrays, schema=_SCHEMA))


def _merge(tables: Sequence[pa.Table], oldest_us: int) -> pa.Table:
    together = pa.concat_tables(tables)
    return _sorted(together.filter(pc.greater(together["time"], oldest_us)))


def _sorted(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table, _ORDER)).combine_chunks()


def _bytes_of(column: pa.ChunkedArray) -> memoryview:
    if not len(column):
        return memoryview(b"")
    (chunk,) = column.chunks
    data = memoryview(chunk.buffers()[1]).cast("B")
    return data[chunk.offset * _HASH_BYTES :]


def _encode(table: pa.Table) -> bytes:
    from pyarrow import parquet  # Slow to load, and needed only where pushes have keys.

    out = pa.BufferOutputStream()
    parquet.write_table(
        table, out, compression="zstd", use_dictionary=False, write_page_checksum=True
    )
    return bytes(out.getvalue().to_pybytes())


def _decode(body: bytes, where: str) -> pa.Table:
    from pyarrow import parquet

    try:
        table = parquet.read_table(pa.BufferReader(body), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(where, f"not a Parquet file: {error}") from error
    if table.schema.remove_metadata() != _SCHEMA:
        raise CorruptError(where, f"expected {_SCHEMA.names}", field="columns")
    return table.combine_chunks()


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=_HASH_BYTES).digest()


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // _US
