"""The keys of pushes: a push that is repeated with its key is answered, and not taken again (J14).

A key stands in the journal entry that commits its rows, so that one PUT makes both durable. Memory
knows the keys of all that is committed. A flush writes those that no run holds yet into a run of
the relation `$push`, which the manifest names beside the runs of tables. So whatever holds for runs
holds for keys: checkpoints, clones and restores carry the keys of the very rows they carry, and
collection, verification and repair treat them alike.

    runs/%24push/<ulid>.parquet     one row for each key, sorted by hash, then latest first
        hash         16 bytes       BLAKE2b-128 of the key in UTF-8
        digest       16 bytes       of what was pushed, see `PushKey`
        transaction  int64          the answer
        rejected     int64          how many of its rows were rejected: part of the answer
        time         int64          microseconds since 1970: when the transaction was recorded

A key is known for `push.keep` after the recorded time of its transaction. Runs are merged as they
gather (`tiers.alike`), and what has expired is left out; a run with nothing else is dropped
without being read. So their number grows with the logarithm of the keys in `push.keep`, and their
size with the keys. They are read only when somebody pushes with a key, or when they are merged.

A crash before the manifest is committed leaves a run that nothing names; the journal has its keys.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.engine.tiers import alike
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError
from stepwell.model import Checksum, Transaction
from stepwell.state.manifest import Run
from stepwell.state.runs import read_run, write_run
from stepwell.store.base import Store

RELATION = "$push"
"""No table or view can have this name."""
KEY_BYTES_MAX = 200
KEEP_S = 7 * 86400.0
_HASH_BYTES = 16
_MEMORY_BYTES = 300
"""What a key that no run holds costs in memory, roughly."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
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
    """A key, and a digest of what was pushed with it: tables, rows, and what is done with them."""

    key: str
    digest: Checksum


@dataclass(frozen=True, slots=True)
class Accepted:
    """A key whose push is committed."""

    hash: bytes
    digest: bytes
    transaction: Transaction
    rejected: int
    time_us: int


def check_key(key: str) -> str:
    """A key as users give it; `InvalidError` if it is none."""
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
    """The key of one piece of a push that is several transactions; of the first, the key itself."""
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
    """All keys that are known. One thread at a time uses it, as it does the rest of the state."""

    def __init__(
        self, store: Store, env: Env, runs: Iterable[Run] = (), *, keep_s: float = KEEP_S
    ) -> None:
        """`env` draws ids above the manifest's floor. Nothing is read before it is needed."""
        self._store = store
        self._env = env
        self._keep_us = round(keep_s * 1e6)
        self._fresh: dict[bytes, Accepted] = {}
        """Those that no run holds."""
        self._parts = [_Part(run) for run in key_runs(runs)]
        self._flushing: list[_Part] | None = None
        self._latest_us = 0
        """The time of the last transaction."""
        self._merging = False

    def add(self, keys: Iterable[Accepted], time: datetime) -> None:
        """Know the keys of a transaction that is recorded; its time lets others expire."""
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
        """What was answered when this was pushed before; None: it is new.

        `InvalidError` if the key was used for something else.
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
        """Have the next flush make one run of all, in this pipeline's own store."""
        self._merging = True

    def flush(self) -> tuple[Run, ...]:
        """Write what no run holds; the runs that a manifest is to name. See `flushed`."""
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

    def flushed(self) -> None:
        """A manifest names what `flush` gave."""
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
    """Keys in one sorted table: of a run, read when it is needed, or on its way to one."""

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
