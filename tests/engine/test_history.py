"""Opening collects superseded manifests: few stay, checkpoints are safe, failing does no harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.errors import FencedError, UnavailableError
from stepwell.journal.journal import Settings
from stepwell.manifest.checkpoint import read_checkpoint
from stepwell.manifest.history import History, collect_history
from stepwell.manifest.manifest import Manifests, Stored
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at, fail_at
from tests.pausing import PausingStore, Task
from tests.tiny import Tiny, flushed_rows, stored_rows

SETTINGS = Settings(barrier_keep_s=3600, retry=Retry(patience_s=0.06))
FEW = History(versions=4, slack=4)
NEVER = History(versions=10**6)


def opened(store: Store, seed: int = 0, history: History = FEW) -> Tiny:
    return Tiny(store, ManualEnv(seed), None, SETTINGS, history)


def ids(store: Store) -> tuple[int, ...]:
    return Manifests(store, ManualEnv()).ids()


def latest(store: Store) -> Stored:
    found = Manifests(store, ManualEnv()).latest()
    assert found is not None
    return found


def due() -> MemoryStore:
    """A pipeline with two rows and a checkpoint, whose next opening collects."""
    store = MemoryStore(ManualEnv())
    tiny = opened(store)
    tiny.push("a")
    tiny.flush()
    tiny.checkpoint()
    tiny.push("b")
    while latest(store).id < FEW.versions + FEW.slack:
        opened(store, latest(store).id)
    assert ids(store)[0] == 1
    return store


def check(store: MemoryStore) -> None:
    """The rows are there, and so is the checkpoint, which needs no version of the manifest."""
    assert stored_rows(store, ManualEnv()) == ["a", "b"]
    (ref,) = latest(store).manifest.checkpoints
    kept = read_checkpoint(store, ref.id, ref).state
    assert kept.transaction == ref.transaction == 1
    assert flushed_rows(store, kept) == ["a"]


def test_hundreds_of_openings_without_a_write_keep_few_manifests() -> None:
    """F5: opening is itself a write, and what it leaves in the manifest's listing is bounded."""
    store, history = MemoryStore(ManualEnv()), History()
    most = 0
    for seed in range(300):
        tiny = opened(store, seed, history)
        assert tiny.writer.uncollected is None
        most = max(most, len(ids(store)))
    assert latest(store).id == 600
    assert most <= history.versions + history.slack + 2
    assert len(ids(store)) > history.versions, "the last ones stay for people to look at"


def test_a_pipeline_that_was_never_collected_is_caught_up_with_bit_by_bit() -> None:
    """F5: no single opening waits for thousands of deletes."""
    store = MemoryStore(ManualEnv())
    for seed in range(40):
        opened(store, seed, NEVER)
    history = replace(FEW, collected_max=30)
    left = [len(ids(opened(store, 100 + seed, history).store)) for seed in range(6)]
    assert left == [52, 24, 5, 7, 5, 7]


def calls_of_an_opening(history: History) -> int:
    watched = FaultyStore(due())
    assert opened(watched, 1, history).writer.uncollected is None
    return len(watched.calls)


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_killed_at_every_call_of_an_opening_that_collects(when: When) -> None:
    """F8: the boundary goes first, so the next opening finds everything, and deletes the rest."""
    for number in range(1, calls_of_an_opening(FEW) + 1):
        store = due()
        with pytest.raises(Crash):
            opened(FaultyStore(store, crash_at(number, when)), 1)
        check(store)
        for seed in range(2, 2 + FEW.slack):
            assert opened(store, seed).rows() == ["a", "b"]
        check(store)
        assert len(ids(store)) <= FEW.versions + FEW.slack + 3


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_an_opening_that_cannot_collect_serves_anyway(when: When) -> None:
    """F10: a request that fails while collecting is kept as the reason, and fails nothing."""
    without, calls = calls_of_an_opening(NEVER), calls_of_an_opening(FEW)
    assert calls - without >= 8, "the boundary, the latest, then the deletes"
    for number in range(without + 1, calls + 1):
        store = due()
        tiny = opened(FaultyStore(store, fail_at(number, when)), 1)
        assert isinstance(tiny.writer.uncollected, UnavailableError)
        assert tiny.rows() == ["a", "b"]
        check(store)
        assert opened(store, 2).writer.uncollected is None
        with pytest.raises(FencedError):
            tiny.push("c")


def test_two_that_open_and_collect_at_once_leave_one_writer_and_every_row() -> None:
    """F6, F8: one is paused at each of its calls while another opens, collects and pushes."""
    pauses = Task(lambda: opened(PausingStore(due()), 1)).run().steps
    for pause in range(pauses + 1):
        store = due()
        paused = Task(lambda store=store: opened(PausingStore(store), 1)).run(pause)
        for seed in range(2, 2 + FEW.slack):
            other = opened(store, seed)
        paused.run()
        assert paused.error is None or isinstance(paused.error, FencedError), repr(paused.error)
        check(store)
        if paused.error is None and paused.result.writer.epoch < other.writer.epoch:
            with pytest.raises(FencedError):
                paused.result.push("c")
        assert opened(store, 99).rows() == ["a", "b"]


def test_a_collector_that_stalled_deletes_only_what_is_superseded() -> None:
    """F8: it wakes up with old knowledge, and what it knows to be superseded still is."""
    store = due()
    stalled = latest(store)
    for seed in range(10):
        opened(store, seed, NEVER)
    kept = [id for id in ids(store) if id >= stalled.id]
    collect_history(Manifests(store, ManualEnv()), stalled, History(versions=0, slack=0))
    assert list(ids(store)) == kept
    assert opened(store, 50).rows() == ["a", "b"]
