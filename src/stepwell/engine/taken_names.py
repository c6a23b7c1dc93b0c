"""The names that a source has ever taken: an LSM set of strings.

    <store>/runs/<source>$taken/<ulid>.parquet     one column `name`: sorted, each name once

New names may sort before old ones, and a deleted file may come back, so no name is ever forgotten.
A journal entry has only the names of its own step. A flush writes the names since the last flush to
a new run, and compacts it with others when `lsm/tiering` says so. The manifest names the runs
(`SourceAt.taken`), so checkpoints, clones, garbage collection and verification treat them like the
runs of any relation.

**Memory**: the names since the last flush, the names that the source holds now and that were found
in a run, and 8 bytes for each name in a run. Those 8 bytes are a filter: a name whose fingerprint
is in no run is new. A name whose fingerprint is in a run is looked up there, so no file is skipped
because of a fingerprint. Runs are read at the first poll.

A crash leaves runs that no manifest names; garbage collection removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from stepwell.env import Env
from stepwell.errors import BugError, ensure
from stepwell.lsm.parquet_codec import BATCH_ROWS
from stepwell.lsm.sorted_runs import ReadRun, RunFormat, SortedRuns
from stepwell.manifest.run_ref import Run
from stepwell.store.base import Store

TAKEN = "$taken"
"""The suffix of the relation that stores the names of a source."""
_LOW = (1 << 64) - 1
_MODULUS = 1 << 128
_NAME_BYTES = 100
"""Approximate memory for a name."""

_FORMAT = RunFormat(
    pa.schema([pa.field("name", pa.string(), nullable=False)]),
    order=(("name", "ascending"),),
    bounds="name",
    options={"row_group_size": BATCH_ROWS, "column_encoding": {"name": "DELTA_BYTE_ARRAY"}},
    rows_max=1_000_000,
)

_Prints = NDArray[np.uint64]


def digest_of(names: Iterable[str]) -> int:
    """A checksum of a set of names; checksums of disjoint sets add up."""
    return sum(map(_hash, names)) % _MODULUS


def add_digests(*digests: int) -> int:
    return sum(digests) % _MODULUS


class TakenNames:
    """The names that one source has taken. Used by one thread at a time."""

    def __init__(self, source: str, runs: Sequence[Run] = (), read: ReadRun | None = None) -> None:
        """`read` is needed to look up and flush names, not to count and add them."""
        self._runs = SortedRuns(source + TAKEN, _FORMAT, self._index, runs, read or _unread)
        self._fresh: set[str] = set()
        """Names that are in no run yet."""
        self._digest = 0
        """The digest of the fresh names."""
        self._met: set[str] = set()
        """Names known to be in a run, without a look-up."""
        self._asked: frozenset[str] = frozenset()
        """Names that are being looked up."""

    @property
    def count(self) -> int:
        return len(self._fresh) + sum(run.rows for run in self.runs)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that the manifest names."""
        return self._runs.runs

    def unflushed_bytes(self) -> int:
        return len(self._fresh) * _NAME_BYTES

    def digest(self) -> int:
        """See `digest_of`. Reads the runs that have not been read yet."""
        return add_digests(self._digest, *(digest for _, (_, digest) in self._runs.indexes()))

    def add(self, names: Collection[str]) -> None:
        """Add the names that a transaction took. None of them was taken before."""
        before = len(self._fresh)
        self._fresh.update(names)
        ensure(len(self._fresh) == before + len(names), "a name is taken once")
        self._digest = add_digests(self._digest, digest_of(names))

    def missing(self, names: Sequence[str]) -> list[str]:
        """The given names that were never taken, in their order."""
        fresh, met = self._fresh, self._met
        left = [name for name in names if name not in met and name not in fresh]
        if not left or not self.runs:
            return left
        wanted = _prints(map(_hash, left))
        self._asked = frozenset(left)
        for run, (prints, _) in self._runs.indexes():
            at = np.searchsorted(prints, wanted)
            at[at == len(prints)] = 0
            alike = {left[int(place)] for place in np.flatnonzero(prints[at] == wanted)} - met
            if alike:
                for batch in self._runs.rows_in(run, alike):
                    met.update(batch.column(0).to_pylist())
        self._asked = frozenset()
        return [name for name in left if name not in met]

    def forget_others(self, names: Collection[str]) -> None:
        """Drop cached knowledge of all other names: the source holds only these now."""
        if self._met:
            self._met.intersection_update(names)

    def compact(self) -> None:
        """Let the next flush compact the runs, in this pipeline's own store."""
        self._runs.compact()

    def flush(self, store: Store, env: Env) -> tuple[Run, ...]:
        """Write the fresh names to a run; return all runs. They count with `on_flushed`."""
        fresh = pa.table([pa.array(sorted(self._fresh), pa.string())], schema=_FORMAT.schema)
        return self._runs.flush(store, env, fresh)

    def on_flushed(self) -> None:
        """Called when a manifest names the runs that `flush` returned."""
        if self._runs.on_flushed():
            # The source most likely still holds them, and the next poll asks for them.
            self._met |= self._fresh
            self._fresh, self._digest = set(), 0

    def _index(self, batches: Iterable[pa.RecordBatch]) -> tuple[_Prints, int]:
        """The sorted fingerprints of a run's names, and their digest.

        Names that are being looked up are noted, so that the run is read once for both.
        """
        prints, digest = [], 0
        for batch in batches:
            names = batch.column(0).to_pylist()
            hashes = [_hash(name) for name in names]
            digest = add_digests(digest, *hashes)
            prints.append(_prints(hashes))
            self._met |= self._asked.intersection(names)
        return np.sort(np.concatenate(prints)), digest


class Layers:
    """Recorded names, and names that were taken since."""

    def __init__(self, base: TakenNames | Layers, *more: Collection[str]) -> None:
        self._base = base
        self._more = [some for some in more if some]

    @property
    def count(self) -> int:
        return self._base.count + sum(map(len, self._more))

    def digest(self) -> int:
        return add_digests(self._base.digest(), *(digest_of(some) for some in self._more))

    def missing(self, names: Sequence[str]) -> list[str]:
        left = self._base.missing(names)
        for some in self._more:
            left = [name for name in left if name not in some]
        return left

    def forget_others(self, names: Collection[str]) -> None:
        self._base.forget_others(names)


def _unread(run: Run) -> bytes:
    raise BugError(f"{run.path} is read by a pipeline that was not opened for writing")


def _hash(name: str) -> int:
    return xxhash.xxh3_128_intdigest(name.encode())


def _prints(hashes: Iterable[int]) -> _Prints:
    return np.fromiter((hash & _LOW for hash in hashes), np.uint64)
