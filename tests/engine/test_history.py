"""Opening collects superseded manifests: few stay, checkpoints are safe, failing does no harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.errors import CollectedError, CorruptError, FencedError, UnavailableError
from stepwell.journal import paths
from stepwell.journal.journal import Settings
from stepwell.state.history import History, collect_history
from stepwell.state.manifest import Manifests, Pin, Stored
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import Crash, FaultyStore, ManualEnv, When, crash_at, fail_at
from tests.pausing import PausingStore, Task
from tests.tiny import Tiny, stored_rows

SETTINGS = Settings(barrier_keep_s=3600, retry=Retry(attempts=3))
FEW = History(versions=4, slack=4)
NEVER = History(versions=10**6)
ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


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
    """The rows are there, and so is the version that the checkpoint names."""
    assert stored_rows(store, ManualEnv()) == ["a", "b"]
    (checkpoint,) = latest(store).manifest.checkpoints
    kept = Manifests(store, ManualEnv()).read(checkpoint.manifest)
    assert kept is not None
    assert kept.manifest.transaction == checkpoint.transaction == 1


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


def test_what_a_checkpoint_names_stays() -> None:
    """F5: a version kept for a checkpoint outlives every opening, until the checkpoint goes."""
    store = due()
    for seed in range(100):
        opened(store, seed)
    check(store)
    assert len(ids(store)) <= FEW.versions + FEW.slack + 3
    last = opened(store, 200)
    last.writer.commit(lambda m: replace(m, checkpoints=()), "drop the checkpoint")
    for seed in range(FEW.slack + 1):
        opened(store, seed)
    assert ids(store)[0] > 20
    assert stored_rows(store, ManualEnv()) == ["a", "b"]


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut", "later format"])
def test_a_checkpoint_that_cannot_be_read_stops_the_collection(damage: str) -> None:
    """F10: what may be needed to repair it is not deleted (K3); the opening goes on and says so."""
    store = due()
    (checkpoint,) = latest(store).manifest.checkpoints
    path = paths.manifest(checkpoint.manifest)
    good = store.get(path)
    assert good is not None
    store.delete(path)
    if damage != "missing":
        bad = {
            "flipped": good.data[:60] + b"#" + good.data[61:],
            "cut": good.data[:-1],
            "later format": good.data.replace(b"manifest/1", b"manifest/2"),
        }[damage]
        store.put_new(path, bad)
    before = ids(store)
    tiny = opened(store, 1)
    assert path in str(tiny.writer.uncollected)
    assert set(before) < set(ids(store))
    assert tiny.rows() == ["a", "b"]
    tiny.push("c")


def test_a_pin_of_a_checkpoint_that_is_not_listed_stops_the_collection() -> None:
    """F10: which version the clone needs cannot be told, so none goes (K3)."""
    store = due()
    Manifests(store, ManualEnv()).amend(
        lambda m: replace(m, pins=(Pin(ID, "s3://clone", ID),)), "pin"
    )
    before = ids(store)
    tiny = opened(store, 1)
    assert "s3://clone" in str(tiny.writer.uncollected)
    assert isinstance(tiny.writer.uncollected, CorruptError)
    assert set(before) < set(ids(store))


def calls_of_an_opening(history: History) -> int:
    watched = FaultyStore(due())
    assert opened(watched, 1, history).writer.uncollected is None
    return len(watched.calls)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_of_an_opening_that_collects(when: When) -> None:
    """F8: the boundary goes first, so whoever opens next finds everything, and deletes the rest."""
    for number in range(1, calls_of_an_opening(FEW) + 1):
        store = due()
        with pytest.raises(Crash):
            opened(FaultyStore(store, crash_at(number, when)), 1)
        check(store)
        for seed in range(2, 2 + FEW.slack):
            assert opened(store, seed).rows() == ["a", "b"]
        check(store)
        assert len(ids(store)) <= FEW.versions + FEW.slack + 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_opening_that_cannot_collect_serves_all_the_same(when: When) -> None:
    """F10: a request that fails while collecting is kept as the reason, and fails nothing."""
    without, calls = calls_of_an_opening(NEVER), calls_of_an_opening(FEW)
    assert calls - without > 8, "the boundary, what is protected, the latest, then the deletes"
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


def test_a_checkpoint_taken_while_another_writer_opens_and_collects() -> None:
    """F6: at every pause either the checkpoint loses to the fence, or its version is kept."""
    nothing = History(versions=0, slack=0)

    def taking(store: MemoryStore) -> Task:
        return Task(lambda: opened(PausingStore(store), 1, nothing).checkpoint())

    outcomes = set()
    for pause in range(taking(due()).run().steps + 1):
        store = due()
        task = taking(store).run(pause)
        opened(store, 2, nothing)
        task.run()
        opened(store, 3, nothing)
        manifests = Manifests(store, ManualEnv())
        named = [item.manifest for item in latest(store).manifest.checkpoints]
        assert all(manifests.read(version) for version in named)
        outcomes.add((type(task.error), len(named)))
    assert outcomes == {(FencedError, 1), (CollectedError, 2), (type(None), 2)}


def test_a_collector_that_stalled_deletes_nothing_that_was_named_since() -> None:
    """F8: it wakes up with old knowledge, and what it knows to be superseded still is."""
    store = due()
    stalled = latest(store)
    for seed in range(10):
        tiny = opened(store, seed, NEVER)
        tiny.checkpoint(keep=99)
    named = {item.manifest for item in latest(store).manifest.checkpoints}
    collect_history(Manifests(store, ManualEnv()), stalled, History(versions=0, slack=0))
    assert named <= set(ids(store))
    assert opened(store, 50).rows() == ["a", "b"]
