"""Look up rows in run files that are not on this machine: in tasks of executors, near their caches.

    ask      questions -> the files that can match -> one `Wave` -> answers       (driver)
    Wave     its files -> index, places, rows -> a `Hit` for each file             (executor)

A task opens a file by its address, and decodes columns through the cache of its machine, by range
reads from the store. Before the first of them, a file is read as a whole and compared with the
checksum of the manifest, once for each cache. A task searches with the same code as the driver
(`index`, `lookup`).

An answer depends only on files, values and columns, and its rows are in the order of files and
places. So a task may run twice, or on another executor, and a later answer for other columns fits
an earlier one.

Nothing is written but cache files, which appear whole. A task that dies leaves nothing else.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from stepwell.env import SystemEnv
from stepwell.errors import CorruptError, TruncatedError, ensure
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.cache import Cache, CachePlace
from stepwell.lsm.index import ColumnRange, Indexes, RunIndex
from stepwell.lsm.lookup import Question, places_in
from stepwell.lsm.part import Sought
from stepwell.lsm.remote_files import missing, open_parquet
from stepwell.lsm.reshape import Places
from stepwell.lsm.run_file import RunFiles
from stepwell.manifest.checkpoint import REPAIR
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import read_checked
from stepwell.store.address import Address, open_address

FILES_OPEN_MAX = 1_000
"""Files whose columns and indexes one process of an executor keeps mapped."""


@dataclass(frozen=True, slots=True)
class Located:
    """One file of a run, and how any machine opens it."""

    address: Address
    file: Run
    places: Places | None = None
    """As in `RunFiles`."""

    @property
    def identity(self) -> str:
        """A name derived from its contents only: a flush gives the same file another path."""
        return xxhash.xxh3_128_hexdigest(f"{self.file.size} {self.file.checksum}".encode())


@dataclass(frozen=True, slots=True)
class Search:
    """A question, as executors get it."""

    types: tuple[str, ...]
    sought: Sought
    columns: frozenset[int]
    rows_max: int


@dataclass(frozen=True, slots=True)
class Hit:
    """What a task found in one file for one question."""

    question: int
    file: int
    rows: int | None
    """None if there are more than the question allows."""
    data: bytes | None
    """The rows as an Arrow stream; None if there are none."""
    ranges: Mapping[int, ColumnRange]
    """The ranges of columns that were searched."""


@dataclass(frozen=True, slots=True)
class Wave:
    """The searches of one job. Called with the slots of a task, it yields their hits."""

    searches: tuple[Search, ...]
    files: tuple[Located, ...]
    by_slot: Mapping[int, tuple[tuple[int, int], ...]]
    """For each slot, pairs of a search and a file."""
    cache: CachePlace

    def __call__(self, slots: Iterable[int]) -> Iterator[Hit]:
        for slot in slots:
            for question, file in self.by_slot.get(slot, ()):
                yield self._hit(question, file)

    def _hit(self, question: int, file: int) -> Hit:
        search, located = self.searches[question], self.files[file]
        index = opened_files(self.cache).index(located, search.types)
        schema = arrow_schema(search.types)
        places = places_in(index, schema, search.sought, search.rows_max)
        known = {place: index.range(place) for place in search.sought}
        ranges = {place: found for place, found in known.items() if found is not None}
        if places is None:
            return Hit(question, file, None, None, ranges)
        data = None
        if len(places):
            columns = [*sorted(search.columns), len(schema) - 1]
            found = index.take(places, columns).select(columns)
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, found.schema) as writer:
                writer.write_table(found)
            data = out.getvalue().to_pybytes()
        return Hit(question, file, len(places), data, ranges)


class StoredFile(RunFiles):
    """One file of a run in a store, as a run of its own. Columns are read by byte ranges."""

    def __init__(self, located: Located, cache: Cache) -> None:
        super().__init__((), located.file.rows, located.places, located.identity)
        self._located = located
        self._cache = cache
        self._checked = cache.run_folder(located.identity) / "checked"
        """An empty file of the cache. What is derived from a damaged file would get its name."""

    def column(self, name: str) -> Iterator[pa.ChunkedArray]:
        address, file = self._located.address, self._located.file
        if self._cache.load(self._checked) is None:
            with pq.ParquetFile(pa.BufferReader(self._whole())) as parquet:
                yield parquet.read([name]).column(0)
            self._cache.store(self._checked, lambda file: None)
            return
        try:
            with open_parquet(address, file.path, file.size) as parquet:
                yield parquet.read([name]).column(0)
        except (pa.ArrowException, OSError) as error:
            # A store raises errors of its own, so these are about the bytes.
            where = f"{address.uri}/{file.path}"
            raise CorruptError(where, f"cannot be decoded: {error}", hint=REPAIR) from error

    def _whole(self) -> bytes:
        address, file = self._located.address, self._located.file
        try:
            return read_checked(open_address(address, SystemEnv()), file, REPAIR)
        except TruncatedError as error:
            raise missing(address, file.path) from error


class OpenFiles:
    """The files that this process has searched, least recently used first."""

    def __init__(self, place: CachePlace) -> None:
        self._cache = place.open(SystemEnv())
        self._indexes = Indexes(self._cache)
        self._files: OrderedDict[object, tuple[StoredFile, RunIndex]] = OrderedDict()

    def index(self, located: Located, types: tuple[str, ...]) -> RunIndex:
        # The same file may be read as other types once columns were added or widened.
        key = located.identity, located.places, types
        known = self._files.get(key)
        if known is None:
            file = StoredFile(located, self._cache)
            known = self._files[key] = file, self._indexes.of(file, arrow_schema(types))
            if len(self._files) > FILES_OPEN_MAX:
                self._files.popitem(last=False)
        self._files.move_to_end(key)
        return known[1]


_OPENED: dict[CachePlace, OpenFiles] = {}
"""One for each cache, because a process of an executor may serve several pipelines."""


def opened_files(place: CachePlace) -> OpenFiles:
    found = _OPENED.get(place)
    if found is None:
        found = _OPENED[place] = OpenFiles(place)
    return found


class Slots(Protocol):
    """What files are divided among, so that the same executor gets the same files again."""

    @property
    def count(self) -> int:
        """The number of slots, which never changes."""

    def run(self, wave: Wave, slots: Sequence[int]) -> list[Hit] | None:
        """Run a wave as one job, with a task for each of these slots; None if its hits are too
        large to return."""


@dataclass(slots=True)
class _Asked:
    """A question, the files that may match, and what was found in them."""

    question: Question
    files: list[tuple[RunFiles, int, Located]]
    hits: list[Hit] = field(default_factory=list)


class ExecutorSearch:
    """Implements `Elsewhere`: looks up rows in runs that only executors read.

    `locate` returns the files of a run.
    """

    def __init__(
        self,
        locate: Callable[[RunFiles], Sequence[Located]],
        slots: Slots,
        cache: CachePlace | None = None,
    ) -> None:
        self._locate = locate
        self._slots = slots
        self._cache = cache or CachePlace()
        self._ranges: weakref.WeakKeyDictionary[RunFiles, dict[tuple[int, int], ColumnRange]]
        self._ranges = weakref.WeakKeyDictionary()
        self.jobs = 0

    def ask(self, questions: Sequence[Question]) -> list[pa.Table | None]:
        """The rows for each question, by one job for all; None for more rows than it allows."""
        asked = [_Asked(question, self._files(question)) for question in questions]
        hits = self._hits(asked)
        if hits is None and len(asked) > 1:
            # Their rows do not fit together. Which of them have too many is found out one by one.
            return [answer for question in questions for answer in self.ask([question])]
        if hits is None:
            return [None]
        for hit in hits:
            asked[hit.question].hits.append(hit)
            run, number, _ = asked[hit.question].files[hit.file]
            known = self._ranges.setdefault(run, {})
            known.update({(number, place): found for place, found in hit.ranges.items()})
        return [_answer(one) for one in asked]

    def _files(self, question: Question) -> list[tuple[RunFiles, int, Located]]:
        """The files that may hold one of the values in each column."""
        found = []
        for run in question.runs:
            known = self._ranges.get(run, {})
            for number, located in enumerate(self._locate(run)):
                ranges = ((known.get((number, p)), v) for p, v in question.sought.items())
                if all(r is None or r.may_contain(values) for r, values in ranges):
                    found.append((run, number, located))
        return found

    def _hits(self, asked: Sequence[_Asked]) -> list[Hit] | None:
        files = [located for one in asked for _, _, located in one.files]
        if not files:
            return []
        by_slot: dict[int, list[tuple[int, int]]] = {}
        first: list[int] = []
        at = 0
        for number, one in enumerate(asked):
            first.append(at)
            for _, _, located in one.files:
                slot = int(located.identity[:15], 16) % self._slots.count
                by_slot.setdefault(slot, []).append((number, at))
                at += 1
        wave = Wave(
            tuple(_search(one.question) for one in asked),
            tuple(files),
            {slot: tuple(pairs) for slot, pairs in by_slot.items()},
            self._cache,
        )
        self.jobs += 1
        hits = self._slots.run(wave, sorted(by_slot))
        if hits is None:
            return None
        ensure(len(hits) == len(files), "every file of a wave is searched once")
        return [
            Hit(hit.question, hit.file - first[hit.question], hit.rows, hit.data, hit.ranges)
            for hit in hits
        ]


def _search(question: Question) -> Search:
    return Search(question.types, question.sought, question.columns, question.rows_max)


def _answer(asked: _Asked) -> pa.Table | None:
    question = asked.question
    schema = arrow_schema(question.types)
    columns = [*sorted(question.columns), len(schema) - 1]
    wanted = pa.schema([schema.field(place) for place in columns])
    hits = sorted(asked.hits, key=lambda hit: hit.file)
    counts = [hit.rows for hit in hits]
    if None in counts or sum(count or 0 for count in counts) > question.rows_max:
        return None
    tables = [
        pa.ipc.open_stream(hit.data).read_all().cast(wanted) for hit in hits if hit.data is not None
    ]
    return pa.concat_tables(tables) if tables else wanted.empty_table()
