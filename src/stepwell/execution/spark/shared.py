"""Runs for workers on other machines, which do not see this machine's files.

    <store>/spill/<ulid>.parquet     written by workers, or written for workers to read

Workers access the pipeline's store directly (`lsm/remote_files`): large results go from workers to
the store and back, and never through this process. This process writes its own rows to a local
file, and to the store when a worker has to read them, or at once if they are too many to be held
here. In a flush, workers copy the objects they wrote to `runs/`, under ids that the flush draws. No
manifest ever references an object under `spill/`.

Rows of a run without local files are looked up by executors (`lsm/search`). This process makes
local copies only of results that it has to read as a whole.

A spilled object is deleted some time after its run is unreferenced, and at the end of the process.
A crash leaves orphans, which garbage collection removes when they are old.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from stepwell.env import Env
from stepwell.errors import StepwellError, ensure
from stepwell.execution.spark.failures import translated
from stepwell.execution.spark.runs import arranged
from stepwell.journal import paths
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.bulk import Target
from stepwell.lsm.cache import CachePlace
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.remote_files import (
    WRITTEN,
    MapArrow,
    Piece,
    copying,
    missing,
    open_parquet,
    reading,
    writing,
)
from stepwell.lsm.reshape import Places
from stepwell.lsm.run_file import (
    FILE_ROWS,
    ROW_GROUP_ROWS,
    Locate,
    RunFiles,
    identity_of,
    own,
    publish_files,
    read_files,
    weight_bounds,
    write_files,
)
from stepwell.lsm.search import Located
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import read_run
from stepwell.model import Checksum, checksum
from stepwell.store.address import address_at, address_of
from stepwell.store.base import Store

PIECE_ROWS = 2 * ROW_GROUP_ROWS
"""Approximate number of rows of an object that one task reads."""
KEEP_S = 600.0
"""Time between a spilled object becoming unreferenced and its deletion."""


class SharedRun(RunFiles):
    """A run in the store (for workers) or in files (for this process), each made on demand."""

    def __init__(
        self,
        rows: int,
        fetch: Callable[[Sequence[Run]], tuple[Path, ...]],
        *,
        files: tuple[Path, ...] | Locate = (),
        objects: tuple[Run, ...] = (),
        weights: tuple[int, int] | None = None,
        schema: pa.Schema | None = None,
        places: Places | None = None,
        identity: str | None = None,
    ) -> None:
        """`schema`: the schema of rows written by workers, needed if there are none."""
        super().__init__(files, rows, places, identity)
        self.objects = objects
        self.schema = schema
        self._fetch = fetch
        self._weights = weights
        self.located: tuple[tuple[Run, ...], tuple[Located, ...]] | None = None
        """How executors open the objects, for these objects."""

    @property
    def files(self) -> tuple[Path, ...]:
        with self._lock:
            if not super().files and self.objects:
                self._files = self._fetch(self.objects)
                own(self)
            return self._files

    @property
    def here(self) -> bool:
        return bool(self._files) or not self.objects

    @property
    def bytes(self) -> int:
        return super().bytes if self.here else sum(item.size for item in self.objects)

    @property
    def weights(self) -> tuple[int, int] | None:
        with self._lock:
            if self._weights is None and self.located is not None and not self.here:
                # Only the ends of the files are read.
                files = (
                    open_parquet(each.address, each.file.path, each.file.size).metadata
                    for each in self.located[1]
                )
                self._weights = weight_bounds(files)
        return super().weights if self._weights is None and self.here else self._weights


class SharedRuns:
    """Implements `Runs`. Safe to use from several threads."""

    elsewhere = True

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        env: Env,
        folder: Path,
        limits: MemoryLimits | None = None,
        cache: CachePlace | None = None,
    ) -> None:
        """`cache`: where workers keep what they derive from runs."""
        self._held_rows_max = (limits or MemoryLimits()).merged_rows_max
        self.cache = cache or CachePlace()
        self._spark = spark
        self._store = store
        self._env = env
        self._folder = folder
        self._address = address_of(store)
        self._lock = threading.Lock()
        self._spilled: dict[str, None] = {}
        """Objects in the store that we have to delete."""
        self._dead: list[str] = []
        self._dying: deque[tuple[float, str]] = deque()
        """Unreferenced objects, and since when; a background compaction may still read them."""
        weakref.finalize(self, _remove, store, self._spilled)

    def write(self, relation: str, pieces: Iterable[pa.Table], key: Sequence[int]) -> RunFiles:
        files, rows = write_files(pieces, key, self._new)
        run = SharedRun(rows, self._fetch, files=files)
        if rows <= self._held_rows_max:
            return own(run)
        schema, weights = pq.read_schema(files[0]), run.weights
        try:
            objects = tuple(self._spill(file) for file in files)
        finally:
            for file in files:
                file.unlink(missing_ok=True)
        return self._remember(
            SharedRun(rows, self._fetch, objects=objects, weights=weights, schema=schema)
        )

    def locate(self, run: RunFiles) -> tuple[Located, ...]:
        """The files of a run that executors read."""
        shared = _shared(run)
        if shared.located is None or shared.located[0] is not shared.objects:
            objects = shared.objects
            addresses = {
                root: self._address if root is None else address_at(root)
                for root in {item.root for item in objects}
            }
            found = tuple(Located(addresses[item.root], item, run.places) for item in objects)
            shared.located = objects, found
        return shared.located[1]

    def write_frame(
        self, relation: str, frame: DataFrame, key: Sequence[int], rows: float
    ) -> RunFiles:
        self._tidy()
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        write = writing(self._address, schema, FILE_ROWS)
        with translated():
            lines = arranged(frame, key, rows).mapInArrow(write, WRITTEN).collect()
        objects = tuple(
            Run(relation, line.path, line.size, line.rows, Checksum(line.checksum))
            for line in sorted(lines, key=lambda line: str(line.path))
        )
        for item in objects:
            if self._address.is_directory and not self._store.exists(item.path):
                raise missing(self._address, item.path)
        bounds = [bound for line in lines for bound in (line.low, line.high)]
        known = bool(bounds) and None not in bounds
        return self._remember(
            SharedRun(
                sum(item.rows for item in objects),
                self._fetch,
                objects=objects,
                weights=(min(bounds), max(bounds)) if known else None,
                schema=schema,
            )
        )

    def frame(self, run: RunFiles, schema: StructType) -> DataFrame:
        objects = self._objects(_shared(run))
        roots = {root: number for number, root in enumerate({item.root for item in objects})}
        addresses = [self._address if r is None else address_at(r) for r in roots]
        pieces = [
            Piece(roots[item.root], item.path, item.size, share, shares)
            for item in objects
            for shares in [max(1, round(item.rows / PIECE_ROWS))]
            for share in range(shares)
        ]
        read = reading(addresses, pieces, to_arrow_schema(schema, timezone="UTC"), run.places)
        return self._numbers(len(pieces), run.rows).mapInArrow(read, schema)

    def target(self, relation: str) -> Target:
        return Target(address=self._address)

    def adopt(self, relation: str, types: tuple[str, ...], files: Sequence[Run]) -> RunFiles:
        self._tidy()
        objects = tuple(replace(item, relation=relation) for item in files)
        for item in objects:
            if self._address.is_directory and not self._store.exists(item.path):
                raise missing(self._address, item.path)
        run = SharedRun(
            sum(item.rows for item in objects),
            self._fetch,
            objects=objects,
            weights=(1, 1),
            schema=arrow_schema(types),
        )
        return self._remember(run)

    def source(self, run: RunFiles) -> tuple[Target, tuple[Run, ...]]:
        return Target(address=self._address), self._objects(_shared(run))

    def read(self, run: RunFiles) -> pa.Table:
        schema = _shared(run).schema
        return read_files(run) if run.files or schema is None else schema.empty_table()

    def opened(self, files: Locate, stored: tuple[Run, ...]) -> RunFiles:
        rows = sum(run.rows for run in stored)
        places = stored[0].columns
        run = SharedRun(
            rows,
            self._fetch,
            files=files,
            objects=stored,
            places=places,
            identity=identity_of(stored),
        )
        self.locate(run)
        return run

    def publish(self, store: Store, relation: str, run: RunFiles) -> tuple[Run, ...]:
        shared = _shared(run)
        if shared.here:
            return publish_files(store, self._env, relation, run)
        targets = [paths.run(relation, self._env.new_id()) for _ in shared.objects]
        copies = [
            (item.path, target, str(item.checksum))
            for item, target in zip(shared.objects, targets, strict=True)
        ]
        with translated():
            self._run(copying(self._address, copies), len(copies))
        return tuple(
            Run(relation, target, item.size, item.rows, item.checksum)
            for item, target in zip(shared.objects, targets, strict=True)
        )

    def published(self, run: RunFiles, stored: tuple[Run, ...]) -> bool:
        shared = _shared(run)
        with self._lock:
            self._dead += [i.path for i in shared.objects if i.path in self._spilled]
        shared.objects = stored
        shared.identity = identity_of(stored)
        self._tidy()
        return True

    def _objects(self, run: SharedRun) -> tuple[Run, ...]:
        """The objects from which workers read a run, spilled now if necessary."""
        with self._lock:
            if not run.objects:
                run.objects = tuple(map(self._spill, run.files))
                self._remember(run)
            return run.objects

    def _spill(self, file: Path) -> Run:
        body, path = file.read_bytes(), paths.spill(self._env.new_id())
        self._store.put_new(path, body)
        return Run("", path, len(body), pq.read_metadata(file).num_rows, checksum([body]))

    def _remember(self, run: SharedRun) -> SharedRun:
        mine = [item.path for item in run.objects]
        self._spilled.update(dict.fromkeys(mine))
        weakref.finalize(run, self._dead.extend, mine)
        return run

    def _tidy(self) -> None:
        """Delete objects that have been unreferenced for a while."""
        now = self._env.uptime()
        with self._lock:
            while self._dead:
                self._dying.append((now, self._dead.pop()))
            gone: dict[str, None] = {}
            while self._dying and self._dying[0][0] <= now - KEEP_S:
                _, path = self._dying.popleft()
                if path in self._spilled:
                    gone[path] = self._spilled.pop(path)
        _remove(self._store, gone)

    def _fetch(self, objects: Sequence[Run]) -> tuple[Path, ...]:
        """Local copies of objects that workers wrote."""
        files = []
        for item in objects:
            files.append(self._new())
            files[-1].write_bytes(read_run(self._store, item, self._env))
        return tuple(files)

    def _new(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{self._env.new_id()}.parquet"

    def _numbers(self, count: int, rows: int) -> DataFrame:
        """The numbers from 0 on, one per task, with a row count of `rows` in Spark's estimate.

        Otherwise Spark would assume that the input is small, and broadcast all of it.
        """
        stride = max(1, rows // max(1, count))
        numbers = self._spark.range(0, count * stride, 1, max(1, count))
        return numbers.where(f"id % {stride} = 0").selectExpr(f"id div {stride} AS id")

    def _run(self, work: MapArrow, count: int) -> None:
        self._numbers(count, count).mapInArrow(work, "id bigint").collect()


def _shared(run: RunFiles) -> SharedRun:
    ensure(isinstance(run, SharedRun), "shared runs are read where they were written")
    return run  # type: ignore[return-value]


def _remove(store: Store, spilled: Mapping[str, None]) -> None:
    with suppress(StepwellError):  # It only costs space, and garbage collection removes it later.
        if spilled:
            store.delete(*spilled)
