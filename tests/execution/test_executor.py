"""The executor on Spark: what the engine asks of every one, and what only a real one can break.

Runs are forced to be large or small by moving the border between them.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.restore import preview, restore
from stepwell.engine.restore_request import RestorePoint, RestoreRequest
from stepwell.engine.settings import Settings
from stepwell.env import Env, MonotonicIds, SystemEnv
from stepwell.errors import CorruptError, InvalidError, TruncatedError
from stepwell.execution.executor import Executor, ExecutorFactory
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark.evaluate import Use
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.shared import KEEP_S
from stepwell.journal import paths
from stepwell.lsm import run_file as run_files
from stepwell.lsm import tiering as tiers
from stepwell.lsm.change import Change
from stepwell.lsm.limits import MemoryLimits
from stepwell.manifest.checkpoint import read_checkpoint
from stepwell.manifest.manifest import Manifests
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at
from tests.engine.doubles import Shelf, ShelfSink
from tests.execution.executor_contract import (
    CONTRACT_SQL,
    ExecutorContract,
    clicks,
    ids,
    orders,
    rows,
    run,
    state,
)

IN_FILES = MemoryLimits(memory_rows_max=1)
"""All rows are in run files, apart from one of each relation."""
COLLECTED = QueryLimits(collected_rows_max=1)
"""Results are written by Spark, apart from those of one row."""


@pytest.mark.parametrize("use", list(Use))
class TestSmallRuns(ExecutorContract):
    @pytest.fixture
    def factory(self, spark: SparkSession, use: Use) -> ExecutorFactory:
        return spark_executor(CONTRACT_SQL, spark=spark, use=use)


class TestLargeRuns(ExecutorContract):
    """Everything in files that are looked up, merged by ranges and copied from the store."""

    @pytest.fixture
    def factory(self, spark: SparkSession) -> ExecutorFactory:
        return spark_executor(CONTRACT_SQL, spark=spark, limits=IN_FILES)


class TestRunsForWorkers(ExecutorContract):
    """The same, read and written by workers as if they were on another machine."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:  # type: ignore[override]
        return LocalStore(str(tmp_path / "store"), SystemEnv())

    def another(self, store: Store, env: ManualEnv) -> Store:
        return LocalStore(f"{store.uri.removeprefix('file://')}-clone", SystemEnv())

    @pytest.fixture
    def factory(self, spark: SparkSession) -> ExecutorFactory:
        limits, queries = MemoryLimits(memory_rows_max=1, merged_rows_max=1), COLLECTED
        return spark_executor(
            CONTRACT_SQL, spark=spark, limits=limits, queries=queries, shared=True
        )


def test_what_workers_wrote_goes_when_it_is_not_needed(
    spark: SparkSession, local: LocalStore
) -> None:
    """K3: nothing under spill/ outlives its use, and nothing that is stored lies there."""
    env = ManualEnv()
    executor = opened(spark, local, env, IN_FILES, Use.LOOKUPS, shared=True)
    for id in range(0, 40, 2):
        run(executor, env, {"orders": Change(orders((id, "a", 1), (id + 1, "b", 1)))})
    assert local.list("spill/")
    before = state(executor)
    runs = executor.flush()
    executor.on_flushed(runs)
    assert state(executor) == before
    assert all(item.path.startswith("runs/") for item in runs)
    env.advance(KEEP_S + 1)
    run(executor, env, {"orders": Change(orders((100, "a", 1), (101, "b", 1)))})
    executor.on_flushed(executor.flush())
    left = {item.path for item in local.list("spill/")}
    env.advance(KEEP_S + 1)
    run(executor, env, {"orders": Change(orders((102, "a", 1), (103, "b", 1)))})
    executor.on_flushed(executor.flush())
    assert not left & {item.path for item in local.list("spill/")}
    again = opened(spark, local, env, shared=True)
    again.load(runs)
    assert state(again) == before
    del executor, again
    gc.collect()
    assert not local.list("spill/")


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "store"), SystemEnv())


def opened(
    spark: SparkSession,
    store: LocalStore,
    env: Env,
    limits: MemoryLimits | None = None,
    use: Use = Use.LOCAL,
    *,
    shared: bool = False,
) -> Executor:
    factory = spark_executor(
        CONTRACT_SQL,
        spark=spark,
        use=use,
        limits=limits,
        queries=COLLECTED if shared else None,
        shared=shared,
    )
    made = factory(store, env)
    made.load(())
    return made


def test_a_run_is_parquet_with_page_checksums_sorted_by_key(
    spark: SparkSession, local: LocalStore, tmp_path: Path
) -> None:
    """K2: any reader opens it, and a flipped page is noticed."""
    env = ManualEnv()
    executor = opened(spark, local, env)
    run(executor, env, {"orders": Change(orders((3, "c", 1), (1, "a", 2), (2, "b", 3)))})
    runs = [r for r in executor.flush() if r.relation == "orders"]
    file = tmp_path / "store" / runs[0].path
    assert pq.read_table(file).column("c0").to_pylist() == [1, 2, 3]
    body, noticed = file.read_bytes(), 0
    for place in range(4, 200):
        damaged = bytearray(body)
        damaged[place] ^= 1
        try:
            found = pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            noticed += "CRC" in str(error)
        else:
            assert found.equals(pq.read_table(file)), f"byte {place}"
    assert noticed > 20


@pytest.mark.parametrize("border", [100, 1], ids=["small", "large"])
@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_damaged_run_is_named(
    spark: SparkSession,
    local: LocalStore,
    tmp_path: Path,
    border: int,
    damage: str,
) -> None:
    """K2, K7: before anything is computed with it; a large run is not read before it is needed."""
    env = ManualEnv()
    executor = opened(spark, local, env, MemoryLimits(memory_rows_max=border))
    run(executor, env, {"orders": Change(orders((1, "a", 2), (2, "b", 3)))})
    runs = executor.flush()
    file = tmp_path / "store" / next(r.path for r in runs if r.relation == "orders")
    if damage == "gone":
        file.unlink()
    else:
        body = bytearray(file.read_bytes())
        body[len(body) // 2] ^= 1
        file.chmod(0o600)
        file.write_bytes(body if damage == "flipped" else body[:-1])
    if damage == "flipped" and border == 1:
        executor.load(runs)
        for _ in range(2):
            with pytest.raises(CorruptError, match=file.name):
                executor.read("orders")
        return
    with pytest.raises((CorruptError, TruncatedError), match=file.name):
        executor.load(runs)


def test_runs_of_another_program_are_refused(spark: SparkSession, local: LocalStore) -> None:
    """K2: rather than forgotten."""
    env = ManualEnv()
    executor = opened(spark, local, env)
    run(executor, env, {"clicks": Change(clicks(("a", "/")))})
    runs = executor.flush()
    other = spark_executor("CREATE TABLE t (a INT)", spark=spark)(local, env)
    with pytest.raises(CorruptError, match="does not have"):
        other.load(runs)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("DROP TABLE orders", "DROP TABLE is not part of a query"),
        ("INSERT INTO orders VALUES (1)", "INSERT is not part of a query"),
        ("nonsense", "yntax"),
    ],
)
def test_only_questions_are_answered(
    spark: SparkSession, local: LocalStore, sql: str, why: str
) -> None:
    """R2: a query changes nothing."""
    with pytest.raises(InvalidError, match=why):
        opened(spark, local, ManualEnv()).query(sql)


def test_a_query_that_spark_refuses_is_an_error_of_ours(
    spark: SparkSession, local: LocalStore
) -> None:
    """K2: with Spark's words, without its stack."""
    with pytest.raises(InvalidError, match="nowhere"):
        opened(spark, local, ManualEnv()).query("SELECT * FROM nowhere")


BATCHES = [
    {"orders": (orders((1, "a", 5), (2, "b", 6)), None)},
    {"orders": (orders((1, "b", 7)), None), "clicks": (clicks(("a", "/"), ("a", "/")), None)},
    {"orders": (orders((3, "c", 1)), ids(2))},
]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_anywhere_loses_nothing_and_doubles_nothing(spark: SparkSession, when: str) -> None:
    """J4, K1, scenarios 26-30: the same pipeline on Spark, stopped at a sample of store calls."""
    factory = spark_executor(CONTRACT_SQL, spark=spark)
    quiet = MemoryStore(ManualEnv())
    calls = FaultyStore(quiet)
    expected, _ = live(factory, calls, ManualEnv())
    total = len(calls.calls)
    for number in range(3, total, max(1, total // 6)):
        env = ManualEnv(number)
        store = MemoryStore(env)
        broken = FaultyStore(store, crash_at(number, when))  # type: ignore[arg-type]
        done = 0
        try:
            _, done = live(factory, broken, env)
        except Crash as crash:
            done = getattr(crash, "done", 0)
        with Pipeline(store, env, executor=factory) as again:
            first = again.transaction_number
            assert first >= done
            for batch in BATCHES[first:]:
                push(again, batch)
            found = {name: sorted(map(repr, again.table(name).to_pylist())) for name in expected}
        assert found == expected, f"call {number} of {total}, {when}"


def live(
    factory: ExecutorFactory, store: FaultyStore, env: ManualEnv
) -> tuple[dict[str, list[str]], int]:
    """A pipeline from its first day; a crash carries how many batches were acknowledged."""
    done = 0
    try:
        pipeline = Pipeline(store, env, executor=factory)
        for batch in BATCHES:
            push(pipeline, batch)
            done += 1
            pipeline.flush()
        names = ("orders", "clicks", "revenue", "visits")
        found = {name: sorted(map(repr, pipeline.table(name).to_pylist())) for name in names}
        pipeline.close()
    except Crash as crash:
        crash.done = done  # type: ignore[attr-defined]
        raise
    return found, done


def push(pipeline: Pipeline, batch: dict[str, tuple[pa.Table, pa.Table | None]]) -> None:
    with pipeline.transaction() as transaction:
        for table, (put, gone) in batch.items():
            transaction.push(table, put, delete=gone)


def test_small_runs_do_not_pile_up(spark: SparkSession, local: LocalStore) -> None:
    """K1: however often it is flushed, a relation is read from few files."""
    env = ManualEnv()
    executor = opened(spark, local, env)
    for number in range(20):
        run(executor, env, {"orders": Change(orders((number, "a", number)))})
        executor.on_flushed(executor.flush())
    runs = executor.flush()
    assert len([r for r in runs if r.relation == "orders"]) <= 10
    before = state(executor)
    executor.load(runs)
    assert state(executor) == before
    assert len(rows(executor, "orders")) == 20


@pytest.mark.parametrize("rows_max", [1, 100_000])
def test_going_back_and_repairing_on_spark(
    spark: SparkSession, local: LocalStore, rows_max: int
) -> None:
    """K9: views are what they were, and the sink is sent the exact difference."""
    shelf, env, limits = Shelf(), SystemEnv(), MemoryLimits(memory_rows_max=rows_max)

    def opened(base: RestorePoint | None = None) -> Pipeline:
        return Pipeline(
            local,
            env,
            executor=spark_executor(CONTRACT_SQL, spark=spark, limits=limits),
            sinks=[ShelfSink("out", "revenue", shelf)],
            settings=Settings(checkpoint_every_s=1e9),
            base=base,
        )

    def revenue(pipeline: Pipeline) -> dict[tuple[object, ...], int]:
        found = pipeline.table("revenue").to_pylist()
        return dict.fromkeys((tuple(row.values()) for row in found), 1)

    pipeline, seen = opened(), []
    for id in range(1, 5):
        pipeline.push("orders", orders((id, "ab"[id % 2], id), (9, "c", id)))
        seen.append(revenue(pipeline))
        if id == 2:
            pipeline.checkpoint("two")
    pipeline.restore(transaction=3)
    assert revenue(pipeline) == shelf.rows() == seen[2]
    pipeline.push("orders", orders((20, "z", 20)))
    pipeline.compact()
    last = revenue(pipeline)
    assert shelf.rows() == last
    pipeline.close()
    found = Manifests(local, env).latest()
    assert found is not None
    old = read_checkpoint(local, found.manifest.checkpoints[-2].id)
    for item in found.manifest.runs:
        if item not in old.state.runs:
            local.delete(item.path)
    with pytest.raises(CorruptError, match="missing"):
        opened()
    goal = RestoreRequest()
    done = restore(goal, preview(goal, local, local, env).point, opened)
    assert revenue(done.pipeline) == shelf.rows() == last
    done.pipeline.close()


def test_runs_are_compacted_in_the_background(
    spark: SparkSession, local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: many runs become one in another thread; a change that comes meanwhile is not lost."""
    monkeypatch.setattr(tiers, "LIKE_RUNS", 3)
    env = ManualEnv()
    executor = opened(spark, local, MonotonicIds(env), MemoryLimits(memory_rows_max=0))
    id = 0
    while (chore := executor.background_task()) is None:
        id += 1
        run(executor, env, {"orders": Change(orders((id, "ab"[id % 2], id)))})
        assert id < 20
    below = executor.id_floor()
    assert below is not None
    executor.on_flushed(executor.flush())
    before = executor.flush()
    executor.on_flushed(before)
    worker = threading.Thread(target=chore.run)
    worker.start()
    run(executor, env, {"orders": Change(orders((99, "z", 9)), ids(1))})
    worker.join()
    expected = state(executor)
    there = {item.path for item in local.list("runs/")}
    chore.adopt()
    assert state(executor) == expected
    runs = executor.flush()
    assert len(runs) < len(before) + 2
    merged = {run.path for run in runs} & there - {run.path for run in before}
    assert merged, "it was written in the background, and not by the flush"
    assert all((paths.parse(path).id or "") > below for path in merged), "above the floor"
    again = opened(spark, local, env)
    again.load(runs)
    assert state(again) == expected
    chore.adopt()
    assert state(executor) == expected, "adopted once"


def test_the_files_of_a_large_run_stay_one_run(
    spark: SparkSession, local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: otherwise a relation of many files would be compacted again at every opening."""
    monkeypatch.setattr(run_files, "FILE_ROWS", 2)
    monkeypatch.setattr(run_files, "ROW_GROUP_ROWS", 1)
    env, limits = ManualEnv(), MemoryLimits(memory_rows_max=0, merged_rows_max=0)
    executor = opened(spark, local, env, limits)
    run(executor, env, {"orders": Change(orders(*((id, "a", id) for id in range(7))))})
    executor.on_flushed(executor.flush())
    run(executor, env, {"orders": Change(orders((7, "b", 7)))})
    executor.on_flushed(executor.flush())
    executor.compact()
    runs = executor.flush()
    executor.on_flushed(runs)
    mine = [item for item in runs if item.relation == "orders"]
    assert len(mine) > 1
    assert len({item.group for item in mine}) == 1
    assert mine[0].group is not None
    again = opened(spark, local, env, limits)
    again.load(runs)
    assert again.background_task() is None
    assert again.id_floor() is None
    assert state(again) == state(executor)
