"""Opening again: what a new process reads until its first transaction, counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.env import SystemEnv
from stepwell.errors import CorruptError
from stepwell.lsm import storage
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.cache import Cache
from stepwell.lsm.folder_runs import FolderRuns
from stepwell.lsm.index import Indexes
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.lookup import SharedRows
from stepwell.lsm.part import Relation
from stepwell.lsm.relations import Relations
from stepwell.lsm.scratch import Scratch
from stepwell.lsm.storage import RelationStorage
from stepwell.manifest.manifest import Run
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore

TYPES = ("bigint", "string", "bigint")
SCHEMA = arrow_schema(TYPES)
ENV = SystemEnv()


class Process:
    """A pipeline with one large relation, whose cache outlives it."""

    def __init__(self, store: Store, folder: Path) -> None:
        runs = FolderRuns(Scratch("stepwell-test-"), ENV)
        self.cache = Cache(folder, ENV)
        self.indexes = Indexes(self.cache)
        self.relations = Relations(runs, None, self.indexes, MemoryLimits(memory_rows_max=10))
        self.relations.add(Relation("t", TYPES, (0,)))
        self.storage = RelationStorage(self.relations, runs, store, ENV)

    def fill(self, rows: int) -> tuple[Run, ...]:
        texts = [f"text {i}" for i in range(rows)]
        table = pa.table([range(rows), texts, range(rows), [1] * rows], schema=SCHEMA)
        self.relations.append("t", self.relations.taken_in("t", table))
        runs = self.storage.flush()
        self.storage.on_flushed()
        return runs

    def transaction(self) -> list[object]:
        """The look-ups of a transaction: by the key, and by a text."""
        found: list[object] = []
        for place, values in ((0, pa.array([7, 70])), (1, pa.array(["text 7", "none"]))):
            rows = SharedRows().look_up(self.indexes, self.relations["t"], {place: values}, 100)
            assert rows is not None
            found += rows.table(None).column(2).to_pylist()
        return found


@dataclass(frozen=True, slots=True)
class Reads:
    store: int
    files_checked: int
    columns_decoded: int
    columns_mapped: int
    misses: int


def reads_of_opening(
    store: Store, folder: Path, runs: tuple[Run, ...], monkeypatch: pytest.MonkeyPatch
) -> Reads:
    gets: list[object] = []
    checked: list[object] = []
    decoded: list[object] = []

    def counted(into: list[object], plain: Any) -> Any:
        return lambda *given, **named: into.append(given) or plain(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", counted(gets, store.get))
        patch.setattr(storage, "check_file", counted(checked, storage.check_file))
        patch.setattr(pq, "read_table", counted(decoded, pq.read_table))
        process = Process(store, folder)
        process.storage.load(runs)
        assert process.transaction() == [7, 70, 7]
    usage = process.cache.usage()
    return Reads(len(gets), len(checked), len(decoded), usage.hits, usage.misses)


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(str(tmp_path / "store"), ENV)
    return MemoryStore(ENV)


def test_what_is_read_until_the_first_transaction_does_not_grow(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: no run is read, and the same few columns are mapped, whatever the relation holds."""
    reads = []
    for rows in (200, 20_000):
        folder = tmp_path / f"cache-{rows}"
        first = Process(store, folder)
        runs = first.fill(rows)
        assert first.transaction() == [7, 70, 7]
        reads.append(reads_of_opening(store, folder, runs, monkeypatch))
    assert reads[0] == reads[1]
    # Four columns; the key is its own index, which is two files, and so is that of the texts.
    assert reads[0] == Reads(0, 0, 0, columns_mapped=8, misses=0)
    cold = reads_of_opening(store, tmp_path / "empty", runs, monkeypatch)
    assert cold.columns_decoded == 4, "what is counted happens where there is no cache"
    assert cold.files_checked == (1 if isinstance(store, LocalStore) else 0)
    assert cold.store == (0 if isinstance(store, LocalStore) else 1)


def test_a_run_that_is_read_later_is_checked_before(tmp_path: Path) -> None:
    """K7: a flipped byte is an error each time, never wrong rows."""
    store = LocalStore(str(tmp_path / "store"), ENV)
    first = Process(store, tmp_path / "cache")
    [run] = first.fill(200)
    file = tmp_path / "store" / run.path
    body = bytearray(file.read_bytes())
    body[len(body) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(body)
    again = Process(store, tmp_path / "another")
    again.storage.load((run,))
    for _ in range(2):
        with pytest.raises(CorruptError, match=file.name):
            again.transaction()
    file.write_bytes(body[:-1])
    with pytest.raises(CorruptError, match="bytes, not"):
        Process(store, tmp_path / "third").storage.load((run,))
