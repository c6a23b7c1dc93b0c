"""The names a files source has taken: exact, in small entries, through crash, restore and clone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepwell.connectors.files import FilesSource
from stepwell.connectors.writing import FileFormat
from stepwell.engine import taken_names
from stepwell.engine.events import Committed
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Limits
from stepwell.engine.restore import preview, restore
from stepwell.engine.restore_request import RestoreRequest
from stepwell.engine.settings import Settings
from stepwell.engine.taken_names import TakenNames, add_digests, digest_of
from stepwell.env import Env
from stepwell.errors import CorruptError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.journal import paths
from stepwell.lsm.sorted_runs import run_reader
from stepwell.manifest.clone import clone
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.manifest.verify import verify
from stepwell.model import Position
from stepwell.sql.statements import Table, parse_statements
from stepwell.store.base import Store
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at
from stepwell.text import Source as Text
from tests.engine.doubles import SETTINGS

SQL = "CREATE TABLE log (id BIGINT);"
AT_ONCE = CollectSettings(grace_s=0.0, journal_keep_s=0.0)
STEP = replace(SETTINGS, limits=Limits(rows_max=3), checkpoint_every_s=1e9, collect=AT_ONCE)
"""Three files to a step, each of one row; only the end of a run flushes."""


class Folder:
    """Files of one row each, under random names, and the pipeline that takes them."""

    def __init__(self, path: Path, store: str = "names") -> None:
        self.path = path
        self.env = ManualEnv()
        self.uri = f"memory://{store}"
        SHARED[self.uri] = MemoryStore(self.env, store)
        self._names = random.Random(7)
        self._ids = 0

    @property
    def store(self) -> MemoryStore:
        found = SHARED[self.uri]
        assert isinstance(found, MemoryStore)
        return found

    def put(self, count: int) -> list[Path]:
        made = []
        for _ in range(count):
            made.append(self.path / f"{self._names.getrandbits(64):016x}.json")
            made[-1].write_text(f'{{"id":{self._ids}}}\n')
            self._ids += 1
        return made

    def open(
        self, store: Store | None = None, settings: Settings = STEP, **options: Any
    ) -> Pipeline:
        (table,) = [s for s in parse_statements(Text("", SQL)) if isinstance(s, Table)]
        path = str(self.path / "*.json")
        source = FilesSource("in", table, self.env, path=path, format=FileFormat.JSON, settle_s=0.0)

        def executor(store: Store, env: Env) -> ReferenceExecutor:
            return ReferenceExecutor(SQL, store, env)

        return Pipeline(
            store or self.store,
            self.env,
            executor=executor,
            sources=[source],
            sinks=[],
            settings=settings,
            **options,
        )

    def take(self, store: Store | None = None, settings: Settings = STEP) -> Counter[int]:
        """Run until nothing is left; how often each row is in the table."""
        pipeline = self.open(store, settings)
        pipeline.run(once=True)
        found = ids(pipeline)
        pipeline.close()
        return found

    def all(self) -> Counter[int]:
        """What the table holds when each file was taken once."""
        return Counter(range(self._ids))

    def manifest(self) -> Manifest:
        found = Manifests(self.store, self.env).latest()
        assert found is not None
        return found.manifest

    def name_runs(self) -> list[str]:
        return [item.path for item in self.store.list("runs/in%24taken/")]


def ids(pipeline: Pipeline) -> Counter[int]:
    return Counter(pipeline.table("log").column("id").to_pylist())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    yield Folder(tmp_path)
    SHARED.clear()


@pytest.mark.parametrize("bits", [64, 5, 0])
def test_a_set_of_names_is_exact_whatever_the_fingerprints(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8: two names with one fingerprint are two files; none may be passed over, or come twice."""
    whole = taken_names._hash
    monkeypatch.setattr(taken_names, "_hash", lambda name: whole(name) & ((1 << bits) - 1))
    draw, env = random.Random(bits), ManualEnv()
    store = MemoryStore(env)
    read = run_reader(store, env)
    names, known = TakenNames("s", (), read), set[str]()
    for _ in range(60):
        some = [f"{draw.randrange(2_000)}/{draw.choice('aäz')}" for _ in range(draw.randrange(60))]
        expected = [name for name in some if name not in known]
        assert names.missing(some) == expected
        names.add(list(dict.fromkeys(expected)))
        known.update(expected)
        assert names.count == len(known)
        act = draw.randrange(4)
        if act == 0:
            names.flush(store, env)
            if draw.random() < 0.7:  # Else the manifest was not committed.
                names.on_flushed()
        elif act == 1:
            names.forget_others(some)
        elif act == 2 and not names.unflushed_bytes():
            names = TakenNames("s", names.runs, read)
    assert names.digest() == add_digests(digest_of(known))
    assert sum(run.rows for run in names.flush(store, env)) == len(known)


def test_runs_of_names_stay_few_and_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """J8: thousands of flushes must not come to thousands of files, each asked for every name."""
    monkeypatch.setattr(taken_names, "_FORMAT", replace(taken_names._FORMAT, rows_max=2_000))
    env = ManualEnv()
    store = FaultyStore(MemoryStore(env))
    names = TakenNames("s", (), run_reader(store, env))
    for step in range(500):
        names.add([f"{step}-{i}" for i in range(10)])
        names.flush(store, env)
        names.on_flushed()
    assert len(names.runs) < 25
    assert sum(run.rows for run in names.runs) == 5_000
    assert sum(call.operation == "get" for call in store.calls) < 600, "merged now and then"
    again = TakenNames("s", names.runs, run_reader(store, env))
    before = len(store.calls)
    there = [f"{step}-{i}" for step in range(500) for i in range(10)]
    for number in range(5):
        assert again.missing([*there, f"new-{number}"]) == [f"new-{number}"]
    assert len(store.calls) - before == len(names.runs)


def test_a_damaged_run_of_names_is_named() -> None:
    """K2: a run that lost a name would let its file in twice."""
    env = ManualEnv()
    store = MemoryStore(env)
    names = TakenNames("s", (), run_reader(store, env))
    names.add(["a", "b"])
    (run,) = names.flush(store, env)
    with pytest.raises(CorruptError, match="holds 2 rows, not 3"):
        TakenNames("s", [replace(run, rows=3)], run_reader(store, env)).missing(["a"])
    with pytest.raises(CorruptError, match="checksum"):
        TakenNames("s", [replace(run, checksum="0" * 32)], run_reader(store, env)).digest()


def test_an_entry_is_as_large_as_its_own_step(folder: Folder) -> None:
    """J8: with random names the last of 100 entries is no larger than the first."""
    folder.put(300)
    assert folder.take() == folder.all()
    sizes = {
        Position(name.number): item.size
        for item in folder.store.list(paths.JOURNAL)
        if (name := paths.parse(item.path)).kind == "entry" and name.number is not None
    }
    steps = sorted(sizes)[1:101]
    assert len(steps) == 100
    first, last = sizes[steps[0]], sizes[steps[-1]]
    assert abs(last - first) <= 64, "Arrow pads to 64 bytes, and numbers get longer"
    (at,) = folder.manifest().progress.sources
    assert at.position["files"] == 300
    assert len(str(at.position)) < 100


def test_a_step_makes_as_many_calls_with_many_names_as_with_few(folder: Folder) -> None:
    """J8: what was taken before must not be read, or written, with every step."""
    steps = []
    for some in (3, 300, 3):
        folder.put(some)
        assert folder.take() == folder.all()
        store, made = FaultyStore(folder.store), [0]

        def listen(event: object, store: FaultyStore = store, made: list[int] = made) -> None:
            if isinstance(event, Committed):
                made.append(len(store.calls))

        pipeline = folder.open(store, listener=listen)
        folder.put(12)
        pipeline.run(once=True)
        pipeline.close()
        # The first poll of a process reads what was taken before it, once.
        assert [call.path for call in store.calls[made[1] : made[4]] if "taken" in call.path] == []
        steps.append([after - before for before, after in pairwise(made[1:])])
    assert steps == [[1, 1, 1]] * 3, "one entry of the journal"


def test_names_of_files_without_rows_are_recorded_with_the_next_row(folder: Folder) -> None:
    """J8: what a source moved past unrecorded is recorded once, also if it is very much."""
    for number in range(2_500):
        (folder.path / f"blank-{number}.json").write_text("\n")
    (folder.path / "last.json").write_text('{"id":-1}\n')
    pipeline = folder.open(settings=SETTINGS)
    pipeline.run(once=True)
    assert ids(pipeline) == Counter([-1]), "files without rows do not end a run"
    folder.put(1)
    pipeline.run(once=True)
    expected = folder.all() + Counter([-1])
    assert ids(pipeline) == expected
    pipeline.close()
    (at,) = folder.manifest().progress.sources
    assert at.position["files"] == sum(run.rows for run in at.taken) == 2_502
    sizes = [item.size for item in folder.store.list(paths.JOURNAL)]
    assert max(sizes) < 400_000
    assert folder.take() == expected


def history(folder: Folder, store: Store | None = None) -> None:
    """Several processes, each with its flush: runs of names, some of them merged."""
    for _ in range(9):
        folder.put(4)
        folder.take(store)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_call_every_file_is_taken_once(tmp_path: Path, when: When, step: int) -> None:
    """J8, K1: names live in entries and runs, and a crash may come between any two of them."""
    (tmp_path / "whole").mkdir()
    whole = Folder(tmp_path / "whole")
    history(whole)
    whole.put(5)
    store = FaultyStore(whole.store)
    assert whole.take(store) == whole.all()
    merged = [call for call in store.calls if call.path.startswith("runs/in%24taken")]
    assert any(call.operation == "get" for call in merged), "a flush that merges runs of names"
    assert any(call.operation == "put_new" for call in merged)
    for number in range(1 if when == "before" else 2, len(store.calls) + 1, step):
        path = tmp_path / f"{number}"
        path.mkdir()
        folder = Folder(path)
        history(folder)
        folder.put(5)
        with pytest.raises(Crash):
            folder.take(FaultyStore(folder.store, crash_at(number, when)))
        folder.put(2)
        assert folder.take() == folder.all(), number
        (at,) = folder.manifest().progress.sources
        assert at.position["files"] == sum(run.rows for run in at.taken) == 43
        Collector(folder.store, folder.env, settings=AT_ONCE).collect()
        assert verify(folder.store, folder.env, deep=True).findings == ()
        assert folder.take() == folder.all()
    SHARED.clear()


def test_what_a_restore_undoes_is_taken_again(folder: Folder) -> None:
    """K9: going back also goes back in names, and forward again each file comes once."""
    folder.put(6)
    pipeline = folder.open()
    pipeline.run(once=True)
    pipeline.checkpoint("six")
    folder.put(7)
    pipeline.run(once=True)
    pipeline.close()
    history(folder)
    goal = RestoreRequest(checkpoint="six")
    found = preview(goal, folder.store, folder.store, folder.env)
    done = restore(goal, found.point, lambda target: folder.open(base=target))
    assert ids(done.pipeline) == Counter(range(6))
    done.pipeline.run(once=True)
    assert ids(done.pipeline) == folder.all()
    done.pipeline.close()
    assert folder.take() == folder.all()


def test_a_transaction_that_is_taken_back_gives_its_files_again(folder: Folder) -> None:
    """J4: names of steps that were recorded and aborted are not taken."""
    folder.put(10)
    pipeline = folder.open()
    transaction = pipeline.transaction()
    transaction.__enter__()
    transaction.push("log", [{"id": -1}])
    transaction.abort()
    pipeline.run(once=True)
    assert ids(pipeline) == folder.all()
    pipeline.close()
    slow = replace(STEP, latency_s_max=1e9, limits=Limits(rows_max=100))
    folder.put(10)
    assert folder.take(settings=slow) == folder.all()


def test_names_are_collected_when_nothing_needs_them(folder: Folder) -> None:
    """K3: runs of names are files like others: kept for a checkpoint, gone without one."""
    folder.put(5)
    pipeline = folder.open()
    pipeline.run(once=True)
    pipeline.checkpoint("kept")
    pipeline.close()
    kept = {run.path for run in folder.manifest().progress.sources[0].taken}
    history(folder)
    history(folder)
    Collector(folder.store, folder.env, settings=AT_ONCE).collect()
    named = {run.path for run in folder.manifest().progress.sources[0].taken}
    assert not kept & named, "they were merged"
    assert kept <= set(folder.name_runs())
    assert verify(folder.store, folder.env, deep=True).findings == ()
    pipeline = folder.open()
    pipeline.delete_checkpoint("kept")
    pipeline.close()
    for _ in range(3):
        folder.put(3)
        folder.take()
    Collector(folder.store, folder.env, settings=AT_ONCE).collect()
    assert not kept & set(folder.name_runs())
    assert folder.take() == folder.all()


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_damaged_run_of_names_is_found_and_repaired(folder: Folder, damage: str) -> None:
    """K6, K9: verify names it, opening refuses, restore makes it good from an older checkpoint."""
    folder.put(5)
    folder.take()
    folder.put(5)
    folder.take()
    run = folder.manifest().progress.sources[0].taken[-1]
    body = folder.store.get(run.path)
    assert body is not None
    folder.store.delete(run.path)
    if damage != "gone":
        wrong = body.data[:-1] + (b"" if damage == "cut" else b"x")
        folder.store.put_new(run.path, wrong)
    (finding,) = verify(folder.store, folder.env, deep=True).findings[:1]
    assert run.path in finding.object
    if damage != "changed":
        with pytest.raises(CorruptError, match="taken"):
            folder.open()
    goal = RestoreRequest()
    found = preview(goal, folder.store, folder.store, folder.env)
    done = restore(goal, found.point, lambda target: folder.open(base=target))
    folder.put(3)
    done.pipeline.run(once=True)
    assert ids(done.pipeline) == folder.all()
    done.pipeline.close()
    assert folder.take() == folder.all()


@pytest.mark.parametrize("copy", [False, True])
def test_a_clone_has_the_names_of_its_parent(folder: Folder, copy: bool) -> None:
    """C3: a clone takes what its parent had not taken, and keeps its parent's runs alive."""
    history(folder)
    pipeline = folder.open()
    folder.put(4)
    pipeline.run(once=True)
    child = Folder(folder.path, "child")
    clone(folder.store, child.store, folder.env, copy=copy)
    pipeline.close()
    taken = child.manifest().progress.sources[0].taken
    assert {run.root for run in taken} == ({None} if copy else {folder.uri})
    assert bool(child.manifest().parent.pin) is not copy  # type: ignore[union-attr]
    folder.put(4)
    assert folder.take() == folder.all()
    history(folder)
    Collector(folder.store, folder.env, settings=AT_ONCE).collect()
    child.env = folder.env
    assert child.take() == folder.all()
    pipeline = child.open()
    pipeline.compact(detach=True)
    pipeline.close()
    assert {run.root for run in child.manifest().all_runs} == {None}
    Collector(child.store, child.env, settings=AT_ONCE).collect()
    assert verify(child.store, child.env, deep=True).findings == ()
    assert child.take() == folder.all()
