"""Pushes with a key are taken once: repeated, restarted, restored, cloned, expired."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from stepwell.engine import push_keys
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.program_swap import ProgramChange, change_program
from stepwell.engine.push_keys import KEY_BYTES_MAX, RELATION, piece_key
from stepwell.engine.restore import preview, restore
from stepwell.engine.restore_request import RestoreRequest
from stepwell.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.dead_letter import BadRow
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.manifest.verify import verify
from stepwell.testing import (
    Call,
    Crash,
    Fault,
    FaultyStore,
    ManualEnv,
    When,
    crash_at,
    fail_at,
)
from tests.engine.clones import Family
from tests.engine.doubles import SETTINGS, SQL, Feed, World, click, contents, order
from tests.engine.pipeline_tools import entries, holding, until

ROWS = [click("a", "/x"), click("b", "/y")]
DAY_S = 86400.0
AT_ONCE = CollectSettings(grace_s=0, journal_keep_s=0, barriers_kept=0)


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.close()


def manifest_of(world: World) -> Manifest:
    found = Manifests(world.store, world.env).latest()
    assert found is not None
    return found.manifest


def key_runs(manifest: Manifest) -> list[str]:
    return [run.path for run in manifest.runs if run.relation == RELATION]


def test_keys_count_as_memory_that_a_flush_frees() -> None:
    """J14: pushes whose rows take no room, for they replace one another."""
    world = World()
    settings = replace(SETTINGS, checkpoint_every_s=1e9, memory_bytes_max=20_000)
    pipeline = world.open(settings=settings)
    for number in range(200):
        pipeline.push("orders", [order(1, "a", number % 2)], key=f"batch {number}")
    assert key_runs(manifest_of(world))
    assert pipeline._session.state.unflushed_bytes() < 20_000
    assert pipeline.push("orders", [order(1, "a", 0)], key="batch 0") == 1


def test_a_push_that_is_repeated_with_its_key_is_answered_and_not_taken() -> None:
    """J14: the same number, no row and no entry more; the order of rows makes no difference."""
    world = World()
    pipeline = world.open()
    assert pipeline.push("clicks", ROWS, key="batch 1") == 1
    assert pipeline.push("clicks", [click("c")]) == 2
    before = len(entries(world))
    assert pipeline.push("clicks", ROWS, key="batch 1") == 1
    assert pipeline.push("CLICKS", pa.Table.from_pylist(ROWS[::-1]), key="batch 1") == 1
    assert len(entries(world)) == before
    assert len(contents(pipeline, "clicks")) == 3
    assert pipeline.push("clicks", ROWS, key="batch 2") == 3
    assert pipeline.push("clicks", ROWS) == 4, "without a key every push counts"
    world.check(pipeline)


@pytest.mark.parametrize("how", ["killed", "flushed", "checkpointed", "closed", "trimmed"])
def test_keys_are_known_after_a_restart(how: str) -> None:
    """J14: from the journal, from the manifest, and with the journal gone; the writer before is
    fenced, and answers nobody any more.
    """
    world = World()
    first = world.open()
    assert first.push("clicks", ROWS, key="k") == 1
    if how == "flushed":
        first.flush()
    if how in ("checkpointed", "trimmed"):
        first.checkpoint("one")
    if how == "closed":
        first.close()
    if how == "trimmed":
        first.push("orders", [order(1)])
        first.checkpoint()
        first.checkpoint()
        world.env.advance(10 * 3600)
        found = Collector(world.store, world.env, settings=AT_ONCE).collect()
        assert found.plan.count("entry")[0] > 1
    second = world.open()
    assert second.push("clicks", ROWS, key="k") == 1
    assert len(contents(second, "clicks")) == 2
    assert second.push("clicks", ROWS, key="l") > 1
    if how != "closed":
        with pytest.raises(FencedError):
            first.push("clicks", ROWS, key="k")
    assert not verify(world.store, world.env, deep=True).findings
    world.check(second)


def test_a_fenced_writer_does_not_answer_from_memory() -> None:
    """J14, F2: its successor may have undone the transaction that it would promise."""
    world = World()
    first = world.open()
    first.checkpoint("empty")
    first.push("clicks", ROWS, key="k")
    second = world.open()
    second.restore("empty")
    with pytest.raises(FencedError):
        first.push("clicks", ROWS, key="k")
    with pytest.raises(FencedError), first.transaction(key="k") as transaction:
        transaction.push("clicks", ROWS)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_key_is_refused_for_anything_but_the_same_push(flushed: bool) -> None:
    """J14: other rows, another table, rows deleted instead of put: named, and nothing is taken."""
    world = World()
    pipeline = world.open()
    bad = [BadRow("a.json, line 3", "not JSON", "{")]
    assert pipeline.push("orders", [order(1)], delete=[{"id": 2}], bad=bad, key="k") == 1
    if flushed:
        pipeline.flush()
    for table, parts in (
        ("orders", {"rows": [order(1), order(3)]}),
        ("orders", {"rows": [order(1)], "delete": [{"id": 2}]}),
        ("orders", {"rows": [order(1)], "discard": [{"id": 2}], "bad": bad}),
        ("orders", {"delete": [order(1)]}),
        ("orders", {"rows": [order(1, "b")], "delete": [{"id": 2}], "bad": bad}),
        ("orders", {"rows": []}),
        ("clicks", {"rows": ROWS}),
    ):
        with pytest.raises(InvalidError, match=r"'k' was used before, .* in transaction 1"):
            pipeline.push(table, key="k", **parts)  # type: ignore[arg-type]
    elsewhere = [BadRow("b.json, line 9", "not JSON", "{")]
    again = {"delete": [{"id": 2}], "bad": elsewhere}
    assert pipeline.push("orders", [order(1)], key="k", **again) == 1  # type: ignore[arg-type]
    assert pipeline.transaction_number == 1


@pytest.mark.parametrize("key", ["", "x" * (KEY_BYTES_MAX + 1), "é" * 101, "\ud800", 7])
def test_a_key_is_a_text_of_bounded_length(key: str) -> None:
    """J14: what is stored of it for a week is bounded; half a character cannot be stored."""
    pipeline = World().open()
    for act in (
        lambda: pipeline.push("clicks", ROWS, key=key),
        lambda: pipeline.transaction(key=key),
    ):
        with pytest.raises(InvalidError, match="not a key for a push"):
            act()
    assert pipeline.push("clicks", ROWS, key="x" * KEY_BYTES_MAX) == 1


def test_what_is_refused_or_empty_uses_no_key() -> None:
    """J14, J13: a push that was not taken in may be corrected, and sent again with its key."""
    world = World()
    pipeline = world.open(settings=replace(SETTINGS, on_error="fail"))
    with pytest.raises(InvalidError):
        pipeline.push("orders", [order(None)], key="k")
    assert pipeline.push("orders", [], key="k") == 0
    assert pipeline.push("orders", [order(1)], key="k") == 1


def test_pushes_at_the_same_time_with_one_key_get_one_answer() -> None:
    """J14: the second one waits, and gets the answer of the first; others share an entry with
    it."""
    world = World()
    pipeline = world.open()
    answers: list[object] = []

    def push(key: str, rows: list[dict[str, object]]) -> None:
        try:
            answers.append((key, pipeline.push("clicks", rows, key=key)))
        except InvalidError:
            answers.append((key, "refused"))

    work = [("k", ROWS), ("k", ROWS), ("other", [click("c")]), ("k", ROWS), ("k", [click("d")])]
    threads = [threading.Thread(target=push, args=item) for item in work]
    with holding(pipeline):
        for count, thread in enumerate(threads, 1):
            thread.start()
            until(lambda count=count: len(pipeline._pushes) == count)  # type: ignore[misc]
    for thread in threads:
        thread.join(60)
    assert sorted(map(str, answers)) == sorted(
        map(str, [("k", 1), ("k", 1), ("k", 1), ("k", "refused"), ("other", 2)])
    )
    assert len(entries(world)) == 2
    assert len(contents(pipeline, "clicks")) == 3


def test_keys_expire_by_recorded_time() -> None:
    """J14: after `push.keep` a key is new again, whether memory, a run or a replay holds it."""
    for flushes, reopens in ((False, False), (True, False), (False, True), (True, True)):
        world = World()
        settings = replace(SETTINGS, push_keep_s=3600.0)
        pipeline = world.open(settings=settings)
        assert pipeline.push("clicks", ROWS, key="k") == 1
        world.env.advance(3599)
        if flushes:
            pipeline.flush()
        if reopens:
            pipeline = world.open(settings=settings)
        assert pipeline.push("clicks", ROWS, key="k") == 1
        world.env.advance(1)
        assert pipeline.push("clicks", [click("new")], key="k") == 2, "a new push, other rows"
        assert pipeline.push("clicks", [click("new")], key="k") == 2
        if flushes:
            pipeline.flush()
        if reopens:
            pipeline = world.open(settings=settings)
        with pytest.raises(InvalidError, match="transaction 2"):
            pipeline.push("clicks", ROWS, key="k")


def test_expired_keys_leave_the_store() -> None:
    """J14: a run of which every key has expired is dropped without being read."""
    world = World()
    settings = replace(SETTINGS, push_keep_s=3600.0)
    pipeline = world.open(settings=settings)
    for number in range(3):
        pipeline.push("clicks", ROWS, key=f"k{number}")
        pipeline.flush()
        world.env.advance(1800)
    assert len(key_runs(manifest_of(world))) == 2
    world.env.advance(3600)
    counting = FaultyStore(world.store)
    pipeline = world.open(counting, settings)
    pipeline.push("orders", [order(1)])
    pipeline.flush()
    assert key_runs(manifest_of(world)) == []
    assert not any(call.operation == "get" and "%24push" in call.path for call in counting.calls)


def test_runs_of_keys_stay_few_and_are_read_only_if_somebody_pushes_with_a_key() -> None:
    """J14: a flush with keys costs one more object; the runs are merged as they gather."""
    world = World()
    writing = FaultyStore(world.store)
    pipeline = world.open(writing)
    most = 0
    for number in range(150):
        assert pipeline.push("clicks", [click("a", str(number))], key=f"k{number}") == number + 1
        pipeline.flush()
        most = max(most, len(key_runs(manifest_of(world))))
    assert most <= 20
    read = [call.path for call in writing.calls if call.operation == "get"]
    assert not [path for path in read if "%24push" in path], "merged in memory"
    counting = FaultyStore(world.store)
    pipeline = world.open(counting)
    pipeline.push("orders", [order(1)])
    read = [call.path for call in counting.calls if call.operation == "get"]
    assert not [path for path in read if "%24push" in path]
    for number in range(150):
        again = [click("a", str(number))]
        assert pipeline.push("clicks", again, key=f"k{number}") == number + 1
    read = [call.path for call in counting.calls if call.operation == "get" and "%24" in call.path]
    assert len(read) == len(set(read)) == len(key_runs(manifest_of(world)))
    pipeline.compact()
    assert len(key_runs(manifest_of(world))) == 1
    assert world.open().push("clicks", [click("a", "7")], key="k7") == 8


def test_a_restore_forgets_the_keys_of_what_it_undoes() -> None:
    """J14: their rows are gone, so they may be pushed again; earlier keys stay known."""
    world = World()
    pipeline = world.open()
    assert pipeline.push("clicks", [click("a")], key="a") == 1
    pipeline.flush()
    assert pipeline.push("clicks", [click("b")], key="b") == 2
    ref = pipeline.checkpoint("two")
    assert ref is not None
    assert pipeline.push("clicks", [click("c")], key="c") == 3
    pipeline.flush()
    assert pipeline.push("clicks", [click("d")], key="d") == 4
    pipeline.restore(transaction=3)
    for key, number in (("a", 1), ("b", 2), ("c", 3), ("d", 6)):
        assert pipeline.push("clicks", [click(key)], key=key) == number
    pipeline.restore("two")
    pipeline = world.open()
    for key, number in (("a", 1), ("b", 2), ("c", 8), ("d", 9)):
        assert pipeline.push("clicks", [click(key)], key=key) == number
    assert len(contents(pipeline, "clicks")) == 4
    world.check(pipeline)


@pytest.mark.parametrize("copy", [False, True])
def test_a_clone_knows_what_its_parent_took_in(family: Family, copy: bool) -> None:
    """J14, C3: from runs and from the journal's tail; then each goes its own way."""
    parent = family.parent()
    flushed = parent.push("clicks", ROWS, key="flushed")
    parent.checkpoint()
    tail = parent.push("clicks", ROWS, key="tail")
    family.clone(copy=copy)
    clone = family.open("clone")
    assert clone.push("clicks", ROWS, key="flushed") == flushed
    assert clone.push("clicks", ROWS, key="tail") == tail
    assert clone.push("clicks", ROWS, key="later") == tail + 1
    clone.compact(detach=True)
    assert not any(run.root for run in family.manifest("clone").runs)
    assert clone.push("clicks", ROWS, key="flushed") == flushed
    assert parent.push("clicks", ROWS, key="later") == tail + 1
    assert parent.push("orders", [order(77)], key="own") == tail + 2
    with pytest.raises(InvalidError, match="used before"):
        parent.push("clicks", ROWS, key="own")


def test_another_program_keeps_the_keys() -> None:
    """J14, D11: what was pushed before a deploy is known after it."""
    world = World()
    pipeline = world.open(sinks={})
    pipeline.push("orders", [order(1)], key="k")
    pipeline.close()
    new = SQL.replace("SUM(amount) AS total", "SUM(amount) * 2 AS total")
    pipeline = world.open(sinks={})
    stay = frozenset({"orders", "clicks"})
    change = ProgramChange(program="new", keep=stay, letters=stay, fresh=("revenue",))
    made = ReferenceExecutor(new, world.store, pipeline._session.env)
    change_program(pipeline._session, made, change)

    again = Pipeline(
        world.store,
        world.env,
        executor=lambda store, env: ReferenceExecutor(new, store, env),
        program="new",
    )
    assert again.push("orders", [order(1)], key="k") == 1
    assert contents(again, "revenue") == [("a", 2, 1)]


def test_a_damaged_run_of_keys_is_named_and_repaired() -> None:
    """J14, K9: keys are not guessed; a repair makes them again from the journal."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1)], key="k")
    pipeline.close()
    (path,) = key_runs(manifest_of(world))
    found = world.store.get(path)
    assert found is not None
    world.store.replace_if(path, bytes(reversed(found.data)), found.etag)
    pipeline = world.open()
    with pytest.raises(CorruptError, match="%24push"):
        pipeline.push("orders", [order(1)], key="k")
    assert pipeline.push("orders", [order(2)]) == 2, "others go on"
    (finding,) = verify(world.store, world.env, deep=True).findings
    assert finding.object.endswith(path)
    target = preview(RestoreRequest(), world.store, world.store, world.env).point
    repaired = restore(RestoreRequest(), target, lambda base: world.open(base=base)).pipeline
    assert repaired.push("orders", [order(1)], key="k") == 1
    assert len(contents(repaired, "orders")) == 2


@pytest.mark.parametrize("flushed", [False, True])
def test_a_transaction_with_a_key_is_taken_once(flushed: bool) -> None:
    """J14, J10: repeated it records nothing, and gives the number of the first."""
    world = World()
    pipeline = world.open()
    for attempt in range(3):
        if attempt == 2:
            if flushed:
                pipeline.flush()
            pipeline = world.open()
        with pipeline.transaction(key="both") as transaction:
            transaction.push("orders", [order(1)])
            transaction.push("clicks", ROWS)
            assert transaction.commit() == 1
        assert pipeline.status().open is None
    assert len([draft for draft in entries(world) if draft.inputs]) == 3
    for pushes in (["clicks", "orders"], ["orders"], ["orders", "clicks", "clicks"], []):
        with (
            pytest.raises(InvalidError, match="'both' was used before"),
            pipeline.transaction(key="both") as transaction,
        ):
            for table in pushes:
                transaction.push(table, [order(1)] if table == "orders" else ROWS)
    with pytest.raises(InvalidError, match="used before"):
        pipeline.push("clicks", ROWS, key="both")
    assert pipeline.push("clicks", ROWS, key="then") == 2
    assert len(contents(pipeline, "clicks")) == 4
    world.check(pipeline)


def test_a_transaction_with_a_key_takes_nothing_from_sources() -> None:
    """J14: what a source gives is not repeated, so that a repeated one could not be compared."""
    world = World()
    world.feeds = {"files": Feed("clicks").put(click("a"))}
    pipeline = world.open()
    with pytest.raises(InvalidError, match="pushed rows only"):
        pipeline.transaction(key="k").take()


def test_an_aborted_transaction_leaves_its_key_unused() -> None:
    """J14, J10: no trace of it, in memory or after a restart."""
    world = World()
    pipeline = world.open()
    aborted = pipeline.transaction(key="k")
    aborted.push("clicks", ROWS)
    aborted.abort()
    abandoned = pipeline.transaction(key="k")
    abandoned.push("clicks", ROWS)
    pipeline = world.open()
    assert pipeline.push("clicks", ROWS, key="k") == 1
    assert len(contents(pipeline, "clicks")) == 2


def work(pipeline: Pipeline) -> list[int]:
    """Pushes and transactions with keys, flushed and restored in between; all may be repeated."""
    numbers = [int(pipeline.push("clicks", ROWS, key="a"))]
    pipeline.flush()
    with pipeline.transaction(key="b") as both:
        both.push("clicks", [click("c", "/z")])
        both.push("orders", [order(5)])
        numbers.append(int(both.commit()))
    numbers.append(int(pipeline.push("clicks", [click("d", "/d")], key="c")))
    pipeline.checkpoint()
    numbers.append(int(pipeline.push("clicks", delete=[click("d", "/d")], key="d")))
    pipeline.compact()
    numbers.append(int(pipeline.push("clicks", [click("d", "/d")], key="e")))
    pipeline.close()
    return numbers


def test_a_flush_that_fails_forgets_no_key() -> None:
    """J14, K1: memory lets go of keys only when a manifest names their run."""
    world = World()
    faulty = FaultyStore(world.store)
    pipeline = world.open(faulty)
    pipeline.push("clicks", ROWS, key="k")

    def plan(call: Call) -> Fault | None:
        return Fault("fail") if call.path.startswith("manifest/") else None

    faulty.plan = plan
    with pytest.raises(UnavailableError):
        pipeline.flush()
    faulty.plan = None
    assert pipeline.push("clicks", ROWS, key="k") == 1
    pipeline.flush()
    assert pipeline.push("clicks", ROWS, key="k") == 1
    assert world.open().push("clicks", ROWS, key="k") == 1


@pytest.mark.parametrize("kind", ["crash", "fail"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_call_and_repeated_with_its_keys_all_is_taken_once(
    kind: str, when: When, stride: int
) -> None:
    """J14, J1, K1: whatever call a process dies at, or is told that it failed, doing everything
    again gives the rows and the numbers of a run without a fault.
    """
    counted = World()
    counting = FaultyStore(counted.store)
    assert work(counted.open(counting)) == [1, 2, 3, 4, 5]
    expected = contents(counted.open(), "clicks"), contents(counted.open(), "orders")
    calls = len(counting.calls)
    assert calls > 80
    for number in range(1 + (when == "after"), calls + 1, stride):
        world = World()
        plan = crash_at(number, when) if kind == "crash" else fail_at(number, when)
        with suppress(Crash, UnknownOutcomeError, UnavailableError):
            work(world.open(FaultyStore(world.store, plan)))
        world.env = ManualEnv(number)
        world.env.advance(DAY_S)
        assert work(world.open()) == [1, 2, 3, 4, 5]
        again = world.open()
        assert (contents(again, "clicks"), contents(again, "orders")) == expected
        world.check(again)


@pytest.mark.parametrize("how", ["at once", "replayed", "flushed"])
def test_a_repeated_push_gets_the_counts_of_the_first(how: str) -> None:
    """J14, J13: also of rows that the executor rejected, which nobody computes a second time."""
    world = World()
    pipeline = world.open()
    bad = [BadRow("line 1", "not JSON", "{")]
    work = {
        "a": {"rows": [order(1), order(None)], "delete": [{"id": 7}, {"id": 8}]},
        "b": {"rows": [order(2)]},
        "c": {"rows": [order(None)], "bad": bad},
    }
    pipeline.push("orders", delete=[{"id": 9}])
    for key, parts in work.items():
        pipeline.push("orders", key=key, **parts)  # type: ignore[arg-type]
    if how == "flushed":
        pipeline.flush()
    if how != "at once":
        pipeline = world.open()
    found = [pipeline.push("orders", key=key, **parts) for key, parts in work.items()]  # type: ignore[arg-type]
    assert [(int(item), item.rows, item.rejected) for item in found] == [
        (2, 4, 3),
        (3, 1, 0),
        (4, 2, 2),
    ]


def test_pieces_of_a_push_have_keys_of_their_own() -> None:
    """J14: they follow from the key, are as short as a key must be, and are not those of another
    push."""
    long = "x" * KEY_BYTES_MAX
    keys = [piece_key(key, number) for key in ("a", "b", long) for number in (1, 2, 1_000_000)]
    assert len(set(keys)) == len(keys)
    assert all(push_keys.check_key(key) for key in keys)
    assert piece_key("a", 1) == "a"
