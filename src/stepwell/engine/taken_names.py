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

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from stepwell.env import Env
from stepwell.errors import BugError, CorruptError, ensure
from stepwell.lsm.tiering import alike
from stepwell.manifest.run_object import read_run, write_run
from stepwell.manifest.run_ref import Run
from stepwell.store.base import Store

TAKEN = "$taken"
"""The suffix of the relation that stores the names of a source."""
_RUN_NAMES_MAX = 1_000_000
"""A run with more names is not compacted any more, which bounds the memory of a compaction."""
_BATCH = 65_536
_LOW = (1 << 64) - 1
_MODULUS = 1 << 128
_NAME_BYTES = 100
"""Approximate memory for a name."""

Prints = NDArray[np.uint64]
ReadRun = Callable[[Run], bytes]
"""Returns the bytes of a run, checked against its size and checksum."""


def digest_of(names: Iterable[str]) -> int:
    """A checksum of a set of names; checksums of disjoint sets add up."""
    return sum(map(_hash, names)) % _MODULUS


def add_digests(*digests: int) -> int:
    return sum(digests) % _MODULUS


class TakenNames:
    """The names that one source has taken. Used by one thread at a time."""

    def __init__(self, source: str, runs: Sequence[Run] = (), read: ReadRun | None = None) -> None:
        """`read` is needed to look up and flush names, not to count and add them."""
        self._relation = source + TAKEN
        self._read = read or _unread
        self._runs = [_Indexed(run) for run in runs]
        self._fresh: set[str] = set()
        """Names that are in no run yet."""
        self._digest = 0
        """The digest of the fresh names."""
        self._met: set[str] = set()
        """Names known to be in a run, without a look-up."""
        self._flushing: list[_Indexed] | None = None
        self._own = False

    @property
    def count(self) -> int:
        return len(self._fresh) + sum(item.run.rows for item in self._runs)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that the manifest names."""
        return tuple(item.run for item in self._runs)

    def unflushed_bytes(self) -> int:
        return len(self._fresh) * _NAME_BYTES

    def digest(self) -> int:
        """See `digest_of`. Reads the runs that have not been read yet."""
        for item in self._runs:
            if item.prints is None:
                item.load(self._read, frozenset())
        return add_digests(self._digest, *(item.digest for item in self._runs))

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
        if not left or not self._runs:
            return left
        prints = _prints(left)
        there: set[str] = set()
        for item in self._runs:
            there |= item.find(left, prints, self._read)
        met |= there
        return [name for name in left if name not in there] if there else left

    def forget_others(self, names: Collection[str]) -> None:
        """Drop cached knowledge of all other names: the source holds only these now."""
        if self._met:
            self._met.intersection_update(names)

    def own(self) -> None:
        """Let the next flush rewrite runs that are in another pipeline's store."""
        self._own = True

    def flush(self, store: Store, env: Env) -> tuple[Run, ...]:
        """Write the fresh names to a run; return all runs. They count with `on_flushed`."""
        kept = list(self._runs)
        foreign = [item for item in kept if self._own and item.run.root is not None]
        if self._fresh:
            sizes = [item.run.rows for item in kept]
            open = [place for place, rows in enumerate(sizes) if rows < _RUN_NAMES_MAX]
            chosen = alike([*(sizes[place] for place in open), len(self._fresh)])
            merged = [kept[open[place]] for place in chosen if place < len(open)]
            added = len(open) in chosen
            new = [self._merge(merged, self._fresh if added else (), store, env)] if chosen else []
            if not added:
                new.append(self._merge([], self._fresh, store, env))
            kept = [item for item in kept if item not in merged] + new
        kept = [self._merge([item], (), store, env) if item in foreign else item for item in kept]
        self._flushing = kept
        return tuple(item.run for item in kept)

    def on_flushed(self) -> None:
        """Called when a manifest names the runs that `flush` returned."""
        if self._flushing is not None:
            self._runs, self._flushing, self._own = self._flushing, None, False
            # The source most likely still holds them, and the next poll asks for them.
            self._met |= self._fresh
            self._fresh, self._digest = set(), 0

    def _merge(
        self, runs: Sequence[_Indexed], fresh: Collection[str], store: Store, env: Env
    ) -> _Indexed:
        parts = [pa.array(sorted(fresh), pa.string())]
        for item in runs:
            parts += _decode(self._read(item.run), item.run)
        names = pa.chunked_array(parts)
        names = names.take(pa.compute.array_sort_indices(names))
        body = _encode(names)
        run = write_run(store, env, self._relation, body, len(names))
        run = replace(run, low=names[0].as_py(), high=names[-1].as_py())
        merged = _Indexed(run)
        if all(item.prints is not None for item in runs):
            known = [item.prints for item in runs if item.prints is not None]
            merged.prints = np.sort(np.concatenate([*known, _prints(list(fresh))]))
            merged.digest = add_digests(digest_of(fresh), *(item.digest for item in runs))
        return merged


@dataclass(slots=True, eq=False)
class _Indexed:
    """A run, and the sorted fingerprints of its names once it has been read."""

    run: Run
    prints: Prints | None = None
    digest: int = field(default=0)

    def find(self, names: Sequence[str], prints: Prints, read: ReadRun) -> set[str]:
        """The given names that this run holds, verified by value."""
        if self.prints is None:
            return self.load(read, frozenset(names))
        at = np.searchsorted(self.prints, prints)
        at[at == len(self.prints)] = 0
        alike = frozenset(names[int(place)] for place in np.flatnonzero(self.prints[at] == prints))
        return set(_held(read(self.run), self.run, alike)) if alike else set()

    def load(self, read: ReadRun, names: frozenset[str]) -> set[str]:
        """Read the run for its fingerprints; return the given names that it holds."""
        held: set[str] = set()
        prints, digest = [], 0
        for some in _decode(read(self.run), self.run):
            listed = some.to_pylist()
            hashes = [_hash(name) for name in listed]
            digest += sum(hashes)
            prints.append(np.fromiter((h & _LOW for h in hashes), np.uint64, len(hashes)))
            held.update(names.intersection(listed))
        found = np.sort(np.concatenate(prints)) if prints else np.empty(0, np.uint64)
        if len(found) != self.run.rows:
            what = f"holds {len(found)} names, not {self.run.rows}"
            raise CorruptError(self.run.path, what, field="rows")
        self.prints, self.digest = found, digest % _MODULUS
        return held


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


def run_reader(store: Store, env: Env) -> ReadRun:
    return lambda run: read_run(store, run, env)


def _unread(run: Run) -> bytes:
    raise BugError(f"{run.path} is read by a pipeline that was not opened for writing")


def _hash(name: str) -> int:
    return xxhash.xxh3_128_intdigest(name.encode())


def _prints(names: Sequence[str]) -> Prints:
    return np.fromiter((_hash(name) & _LOW for name in names), np.uint64, len(names))


def _held(body: bytes, run: Run, names: frozenset[str]) -> Iterator[str]:
    wanted = pa.array(sorted(names), pa.string())
    for some in _decode(body, run):
        yield from some.filter(pa.compute.is_in(some, wanted)).to_pylist()


def _encode(names: pa.ChunkedArray) -> bytes:
    from pyarrow import parquet  # Slow to load.

    out = pa.BufferOutputStream()
    schema = pa.schema([pa.field("name", pa.string(), nullable=False)])
    parquet.write_table(
        pa.table([names], schema),
        out,
        row_group_size=_BATCH,
        compression="zstd",
        use_dictionary=False,
        column_encoding={"name": "DELTA_BYTE_ARRAY"},
        write_page_checksum=True,
    )
    return bytes(out.getvalue().to_pybytes())


def _decode(body: bytes, run: Run) -> Iterator[pa.Array]:
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(body), page_checksum_verification=True)
        for batch in file.iter_batches(_BATCH, columns=["name"]):
            yield batch.column(0)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(run.path, f"not a run of names: {error}") from error
