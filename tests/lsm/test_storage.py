"""Relations in a store, without any executor: flush, load, and compaction in the background."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from stepwell.errors import CorruptError
from stepwell.journal import paths
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.folder_runs import FolderRuns
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.part import Relation
from stepwell.lsm.relations import Relations
from stepwell.lsm.scratch import Scratch
from stepwell.lsm.storage import RelationStorage
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv

TYPES = ("bigint", "string")


class Lab:
    """One relation `t`, of which at most `memory` rows are in memory."""

    def __init__(
        self, store: MemoryStore, env: ManualEnv, memory: int, types: tuple[str, ...] = TYPES
    ) -> None:
        runs = FolderRuns(Scratch("stepwell-test-"), env)
        self.types = types
        self.relations = Relations(runs, limits=MemoryLimits(memory_rows_max=memory))
        self.relations.add(Relation("t", types, (0,)))
        self.storage = RelationStorage(self.relations, runs, store, env, background=True)

    def add(self, *rows: tuple[object, ...]) -> None:
        """Add rows, weight last."""
        schema = arrow_schema(self.types)
        columns = [
            pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        part = self.relations.taken_in("t", pa.Table.from_arrays(columns, schema=schema))
        self.relations.append("t", part)

    def rows(self) -> Counter[tuple[object, ...]]:
        total: Counter[tuple[object, ...]] = Counter()
        for part in self.relations["t"].parts:
            for *row, weight in zip(*self.relations.table(part).to_pydict().values(), strict=True):
                total[tuple(row)] += weight
        return Counter({row: weight for row, weight in total.items() if weight})


@pytest.fixture
def env() -> ManualEnv:
    return ManualEnv()


@pytest.fixture
def store(env: ManualEnv) -> MemoryStore:
    return MemoryStore(env)


@pytest.mark.parametrize("types", [TYPES, ("double", "array<int>")], ids=["compared", "not"])
def test_runs_are_compacted_while_changes_come_in(
    store: MemoryStore, env: ManualEnv, types: tuple[str, ...]
) -> None:
    """K5: nothing is lost, and the compacted run is stored before a flush names it."""
    lab = Lab(store, env, 0, types)

    def value(number: int) -> object:
        return "x" if types is TYPES else [number]

    lab.add(*((n, value(n), 1) for n in range(5)))
    lab.add((5, value(5), 1), (6, value(6), 1), (0, value(0), -1))
    env.advance(1)
    task = lab.storage.background_task()
    assert task is not None
    floor = lab.storage.id_floor()
    assert floor is not None
    env.advance(1)
    task.run()
    lab.add((7, value(7), 1))
    before = lab.relations["t"].rows
    there = {item.path for item in store.list("runs/")}
    assert there
    assert all((paths.parse(path).id or "") > floor for path in there)
    task.adopt()
    assert lab.relations["t"].rows <= before
    if types is TYPES:
        assert lab.rows() == Counter({(n, "x"): 1 for n in range(1, 8)})
    runs = lab.storage.flush()
    assert there < {run.path for run in runs}, "the flush names what the task has stored"
    lab.storage.on_flushed()
    assert lab.storage.unflushed_bytes() == 0
    for memory in (0, 1000):
        again = Lab(store, env, memory, types)
        again.storage.load(runs)
        assert sum(part.rows for part in again.relations["t"].parts) == lab.relations["t"].rows
        if types is TYPES:
            assert again.rows() == lab.rows()


def test_a_task_whose_runs_are_gone_changes_nothing(store: MemoryStore, env: ManualEnv) -> None:
    """K5: the relation was loaded again meanwhile."""
    lab = Lab(store, env, 0)
    lab.add((1, "a", 1))
    lab.add((2, "b", 1))
    runs = lab.storage.flush()
    task = lab.storage.background_task()
    assert task is not None
    task.run()
    lab.storage.load(runs)
    parts = list(lab.relations["t"].parts)
    task.adopt()
    assert lab.relations["t"].parts == parts


def test_a_run_of_an_unknown_relation_is_refused(store: MemoryStore, env: ManualEnv) -> None:
    """K2: rather than forgotten; the state stays what it was."""
    lab, other = Lab(store, env, 100), Lab(store, env, 100)
    lab.add((1, "a", 1))
    runs = lab.storage.flush()
    other.relations.drop("t")
    other.relations.add(Relation("u", TYPES, ()))
    with pytest.raises(CorruptError, match="a run of t"):
        other.storage.load(runs)


def test_the_folder_is_made_when_it_is_needed_and_goes_with_its_owner() -> None:
    scratch = Scratch("stepwell-test-")
    path = scratch.path
    assert path.is_dir()
    assert scratch.path == path
    del scratch
    assert not path.exists()
