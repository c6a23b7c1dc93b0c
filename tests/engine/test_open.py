"""Opening: new pipelines, K4, the journal store's identity, few requests, idle reopening."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from stepwell.engine.open import open_writer, take_over
from stepwell.errors import (
    ConfigError,
    CorruptError,
    FencedError,
    JournalStoreMismatch,
    StepwellError,
    UnavailableError,
)
from stepwell.journal import paths
from stepwell.journal.journal import Settings
from stepwell.manifest.history import History
from stepwell.manifest.manifest import Manifests
from stepwell.model import Position
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import Call, FaultyStore, ManualEnv, fail_at
from tests.tiny import Tiny, collect, stored_rows

SETTINGS = Settings(barrier_keep_s=3600, retry=Retry(patience_s=0.06))


def memory(name: str = "main") -> MemoryStore:
    return MemoryStore(ManualEnv(), name)


def snapshot(store: MemoryStore) -> dict[str, bytes]:
    return {item.path: store.get(item.path).data for item in store.list()}  # type: ignore[union-attr]


def test_an_empty_prefix_is_a_new_pipeline() -> None:
    """K4: only an empty store begins a pipeline; left-over probes count as nothing."""
    store = memory()
    store.put_new("probe/01ARZ3NDEKTSV4RRFFQ69G5FAV", b"x")
    writer = open_writer(store, ManualEnv())
    assert (writer.epoch, writer.barrier) == (1, 1)


@pytest.mark.parametrize(
    "path",
    [
        "journal/00000000000000000001.arrow",
        "journal/identity.json",
        "checkpoints/01ARZ3NDEKTSV4RRFFQ69G5FAV.json",
        "runs/t/01ARZ3NDEKTSV4RRFFQ69G5FAV.parquet",
        "gc/boundary.json",
        "deploy/resources.json",
        "holiday/photo.jpg",
    ],
)
@pytest.mark.parametrize("place", ["main", "journal"])
def test_a_missing_manifest_next_to_other_objects_is_never_a_fresh_start(
    path: str, place: str
) -> None:
    """K4: refuse, touch nothing, say how to recover."""
    stores = {"main": memory("main"), "journal": memory("journal")}
    stores[place].put_new(path, b"something")
    with pytest.raises(CorruptError) as refused:
        Tiny(stores["main"], ManualEnv(), stores["journal"])
    text = str(refused.value)
    assert path in text
    assert f"memory://{place}" in text
    assert "hint: nothing was touched" in text
    assert {name: list(snapshot(store)) for name, store in stores.items()} == {
        "main": [path] if place == "main" else [],
        "journal": [path] if place == "journal" else [],
    }


def test_a_pipeline_whose_manifests_were_deleted_is_refused() -> None:
    """K4: a pipeline with data and without manifests is damaged, not new."""
    store = memory()
    Tiny(store, ManualEnv()).push("precious")
    for item in store.list("manifest/"):
        store.delete(item.path)
    before = snapshot(store)
    with pytest.raises(CorruptError):
        Tiny(store, ManualEnv())
    assert snapshot(store) == before


def test_a_store_that_ignores_put_if_absent_is_refused_by_name() -> None:
    """F9: with such a store two writers would overwrite each other; nothing of a pipeline is
    written.
    """

    class Careless(MemoryStore):
        def put_new(self, path: str, data: object) -> None:
            self.delete(path)
            super().put_new(path, data)  # type: ignore[arg-type]

    for careless in ("main", "journal"):
        stores = {
            name: (Careless if name == careless else MemoryStore)(ManualEnv(), name)
            for name in ("main", "journal")
        }
        with pytest.raises(ConfigError) as refused:
            Tiny(stores["main"], ManualEnv(), stores["journal"])
        assert f"memory://{careless}" in str(refused.value)
        assert not any(list(snapshot(store)) for store in stores.values())


def test_any_failed_request_fails_the_opening_and_nothing_is_lost() -> None:
    """F10: a failed request while opening is an error or a retry, never a wrong answer."""
    watched = FaultyStore(prepared())
    Tiny(watched, ManualEnv(1), settings=SETTINGS)
    for number in range(1, len(watched.calls) + 1):
        for when in ("before", "after"):
            store = prepared()
            try:
                tiny = Tiny(
                    FaultyStore(store, fail_at(number, when)), ManualEnv(1), settings=SETTINGS
                )
            except UnavailableError:
                tiny = Tiny(store, ManualEnv(2), settings=SETTINGS)
            assert tiny.rows() == ["a", "b", "c"]
            tiny.push("d")
            assert stored_rows(store, ManualEnv()) == ["a", "b", "c", "d"]


def prepared() -> MemoryStore:
    """A pipeline with a flushed row and two in the journal, left by a killed writer."""
    store = memory()
    tiny = Tiny(store, ManualEnv())
    tiny.push("a")
    tiny.flush()
    tiny.push("b")
    tiny.push("c")
    return store


@pytest.mark.parametrize("behind", [10, 2000])
def test_the_requests_of_an_opening_do_not_grow_with_the_journal(behind: int) -> None:
    """F2: what lies behind the replay position is never looked at.

    One listing finds the end and every hole; a search and four looks beyond its end were 26.
    """
    store = memory()
    tiny = Tiny(store, ManualEnv())
    for number in range(behind):
        tiny.push(str(number))
    tiny.flush()
    watched = FaultyStore(store)
    Tiny(watched, ManualEnv(1))
    assert len(watched.calls) == 22
    assert not [call for call in watched.calls if call.operation == "get" and "arrow" in call.path]


def test_idle_reopening_grows_by_barriers_only_and_they_can_be_collected() -> None:
    """F5: a thousand openings without a write cost the same each, and leave nothing for good."""
    env = ManualEnv()
    store = MemoryStore(env)
    calls = []
    for _ in range(1000):
        watched = FaultyStore(store)
        tiny = Tiny(watched, env, settings=SETTINGS)
        calls.append(len(watched.calls))
        assert tiny.rows() == []
    assert sum(count > 26 for count in calls) <= 40, "now and then one collects"
    assert max(calls) <= 26 + History().slack + 10
    entries = [item.path for item in store.list("journal/") if item.path.endswith(".arrow")]
    assert len(entries) == 1000
    env.advance(SETTINGS.barrier_keep_s + 1)
    collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)
    left = [item.path for item in store.list() if not item.path.endswith(".arrow")]
    assert len(left) == 5, "the latest manifest, two boundaries, the journal's identity, a note"
    tiny = Tiny(store, env, settings=SETTINGS)
    tiny.push("still works")
    assert stored_rows(store, env) == ["still works"]


def separate() -> tuple[MemoryStore, MemoryStore]:
    main, journal = memory("main"), memory("journal")
    tiny = Tiny(main, ManualEnv(), journal)
    tiny.push("a")
    return main, journal


def refused(main: MemoryStore, journal: MemoryStore) -> str:
    """The message with which opening is refused; neither store may have been touched."""
    before = snapshot(main), snapshot(journal)
    with pytest.raises(StepwellError) as error:
        Tiny(main, ManualEnv(1), journal)
    assert isinstance(error.value, (JournalStoreMismatch, CorruptError))
    assert (snapshot(main), snapshot(journal)) == before
    return str(error.value)


def test_a_lost_journal_store_is_noticed_when_the_pipeline_is_opened() -> None:
    """F10: an empty journal store is not an empty journal; no epoch is taken, nobody is fenced."""
    main, journal = separate()
    text = refused(main, memory("journal"))
    assert "holds no journal" in text
    assert "hint: nothing was written" in text
    assert Tiny(main, ManualEnv(1), journal).rows() == ["a"]


def test_a_swapped_journal_store_is_noticed_when_the_pipeline_is_opened() -> None:
    """F10: another pipeline's journal is refused, with both lineages named."""
    main, journal = separate()
    other_main, other_journal = memory("main2"), memory("journal2")
    Tiny(other_main, ManualEnv(50), other_journal)
    text = refused(main, other_journal)
    lineages = [Manifests(m, ManualEnv()).latest() for m in (main, other_main)]
    for found in lineages:
        assert found is not None
        assert found.manifest.lineage in text


def test_forgetting_the_journal_store_setting_is_noticed() -> None:
    """F10: a pipeline opened without its separate journal store is refused."""
    main, journal = separate()
    assert "holds no journal" in refused(main, main)


def test_a_lost_identity_next_to_entries_is_damage() -> None:
    """K2: entries without identity are not taken for an empty journal."""
    main, journal = separate()
    journal.delete(paths.IDENTITY)
    assert "holds no journal" in refused(main, journal)


def test_a_journal_closed_in_good_order_may_be_wiped() -> None:
    """F5: after a clean close the manifest holds everything, so a new journal store will do."""
    main, journal = separate()
    tiny = Tiny(main, ManualEnv(1), journal)
    tiny.flush()
    tiny.close()
    fresh = memory("journal2")
    again = Tiny(main, ManualEnv(2), fresh)
    assert again.rows() == ["a"]
    again.push("b")
    assert Tiny(main, ManualEnv(3), fresh).rows() == ["a", "b"]
    assert "journal" in refused(main, journal), "the old one is not the pipeline's any more"


def test_a_close_with_unflushed_rows_does_not_allow_a_wipe() -> None:
    """F5: rows that only the journal holds keep it from being given up."""
    main, journal = separate()
    tiny = Tiny(main, ManualEnv(1), journal)
    tiny.close()
    assert "holds no journal" in refused(main, memory("journal"))
    assert Tiny(main, ManualEnv(2), journal).rows() == ["a"]


def test_the_closing_mark_is_taken_back_before_anything_is_acknowledged() -> None:
    """F5: a writer that opened after a clean close and was killed has a journal that counts."""
    main, journal = separate()
    tiny = Tiny(main, ManualEnv(1), journal)
    tiny.flush()
    tiny.close()
    Tiny(main, ManualEnv(2), journal).push("b")
    assert "holds no journal" in refused(main, memory("journal"))
    assert Tiny(main, ManualEnv(3), journal).rows() == ["a", "b"]


def test_a_fenced_writer_leaves_quietly() -> None:
    """F3: closing a fenced handle neither raises nor writes."""
    store = memory()
    old = Tiny(store, ManualEnv())
    Tiny(store, ManualEnv(1))
    with pytest.raises(FencedError):
        old.push("x")
    before = snapshot(store)
    old.close()
    assert snapshot(store) == before


def test_a_manifest_commit_of_a_fenced_writer_is_refused_and_its_journal_ends_too() -> None:
    """F6: a flush after the fence is refused, and from then on the handle cannot append either."""
    store = memory()
    old = Tiny(store, ManualEnv())
    old.push("a")
    Tiny(store, ManualEnv(1, host="new"))
    with pytest.raises(FencedError) as fenced:
        old.flush()
    assert "flush: not committed" in str(fenced.value)
    faulty = FaultyStore(store)
    with pytest.raises(FencedError):
        old.push("b")
    assert not faulty.calls
    assert Tiny(store, ManualEnv(2)).rows() == ["a"]


def test_old_writer_flushing_between_read_and_claim_moves_the_barrier_up() -> None:
    """F2: the replay position that counts is the one read by the claim, not the one before it."""
    env = ManualEnv()
    store = MemoryStore(env)
    old = Tiny(store, env, settings=SETTINGS)
    for number in range(5):
        old.push(str(number))
    stale = Manifests(store, env).latest()
    old.flush()
    env.advance(SETTINGS.barrier_keep_s + 1)
    collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)
    holder = Manifests(store, env).claim(found=stale)
    assert holder.current.manifest.replay.position == 6
    assert open_writer(store, env, settings=SETTINGS).barrier == Position(7)


def test_a_lost_latest_manifest_does_not_make_an_old_one_the_truth() -> None:
    """K4: a version kept for a checkpoint, left when the latest is lost, must not be opened."""
    env = ManualEnv()
    store = MemoryStore(env)
    tiny = Tiny(store, env, settings=SETTINGS)
    manifests = Manifests(store, env)
    for number in range(20):
        tiny.push(str(number))
        tiny.flush()
    latest = manifests.latest()
    assert latest is not None
    manifests.collect(latest.id - 1, keep=frozenset({5}))
    store.delete(paths.manifest(latest.id))
    before = snapshot(store)
    with pytest.raises(CorruptError) as corrupt:
        Tiny(store, env, settings=SETTINGS)
    assert paths.manifest(latest.id) in str(corrupt.value)
    assert "none does now" in str(corrupt.value)
    assert snapshot(store) == before


def test_a_manifest_older_than_the_journal_was_trimmed_is_refused() -> None:
    """K4: a backup of the main store alone lacks what the journal no longer has (scenario 70)."""
    env = ManualEnv()
    main, journal = MemoryStore(env, "main"), MemoryStore(env, "journal")
    tiny = Tiny(main, env, journal, SETTINGS)
    tiny.push("a")
    tiny.flush()
    backup = snapshot(main)
    for number in range(200):
        tiny.push(str(number))
    tiny.flush()
    for number in range(4):
        tiny.push(f"late-{number}")
    env.advance(SETTINGS.barrier_keep_s + 1)
    collect(main, env, journal_store=journal, barrier_keep_s=SETTINGS.barrier_keep_s)
    restored = MemoryStore(env, "main")
    for path, data in backup.items():
        restored.put_new(path, data)
    text = refused(restored, journal)
    assert "trimmed up to position 202" in text
    assert "backup" in text


@pytest.mark.parametrize("damage", ["later format", "flipped", "cut"])
def test_who_cannot_read_the_end_of_the_journal_fences_nobody(damage: str) -> None:
    """J12, K2: the last entry is read before the claim, so the running writer goes on."""
    store = memory()
    old = Tiny(store, ManualEnv())
    old.push("a")
    path = paths.entry(old.writer.journal.tip.position)
    good = store.get(path)
    assert good is not None
    bad = {
        "later format": good.data.replace(b"stepwell-journal/2", b"stepwell-journal/3"),
        "flipped": good.data[:900] + b"\xff" + good.data[901:],
        "cut": good.data[:-1],
    }[damage]
    store.delete(path)
    store.put_new(path, bad)
    before = snapshot(store)
    with pytest.raises(StepwellError):
        Tiny(store, ManualEnv(1))
    assert snapshot(store) == before
    old.push("b")


def test_an_empty_store_is_refused_where_a_pipeline_is_expected() -> None:
    """K4: an unmounted disk looks like an empty store; nothing is begun there unasked."""
    store = memory()
    with pytest.raises(StepwellError) as refusal:
        open_writer(store, ManualEnv(), create=False)
    assert "no pipeline" in str(refusal.value)
    assert not snapshot(store)


def test_closing_waits_for_an_append_under_way() -> None:
    """F5: a row acknowledged while the writer closes is not left in a journal to be wiped."""
    store = memory()
    held, release = threading.Event(), threading.Event()
    faulty = FaultyStore(store)
    tiny = Tiny(faulty, ManualEnv())

    def wait(call: Call) -> None:
        if call.operation == "put_new" and call.path.endswith(".arrow"):
            held.set()
            release.wait(60)

    faulty.plan = wait
    pushing = threading.Thread(target=tiny.push, args=("a",))
    pushing.start()
    assert held.wait(60)
    closing = threading.Thread(target=tiny.close)
    closing.start()
    release.set()
    pushing.join(60)
    closing.join(60)
    latest = Manifests(store, ManualEnv()).latest()
    assert latest is not None
    assert not latest.manifest.journal.closed
    assert Tiny(store, ManualEnv(1)).rows() == ["a"]
    tiny.close()


def test_a_full_disk_leaves_the_writer_usable_and_keeps_its_hint() -> None:
    """F7: what was certainly not written is not an unknown outcome; once there is space, go on."""
    store = memory()
    faulty = FaultyStore(store)
    tiny = Tiny(faulty, ManualEnv(), settings=SETTINGS)
    full = UnavailableError("no space left", hint="free some space", not_applied=True)

    def fail(call: Call) -> None:
        raise full

    faulty.plan = fail
    with pytest.raises(UnavailableError) as failed:
        tiny.push("a")
    assert failed.value.hint == "free some space"
    faulty.plan = None
    tiny.push("b")
    assert Tiny(store, ManualEnv(1)).rows() == ["b"]


def test_a_failing_change_leaves_the_writer_usable() -> None:
    """F7: an error in computing a commit, before anything was sent, is not an unknown outcome."""
    store = memory()
    tiny = Tiny(store, ManualEnv())
    with pytest.raises(ZeroDivisionError):
        tiny.writer.commit(lambda m: 1 / 0, "divide")  # type: ignore[arg-type,return-value]
    tiny.push("a")
    tiny.flush()
    assert Tiny(store, ManualEnv(1)).rows() == ["a"]


def test_a_long_replay_may_flush_on_the_way() -> None:
    """F2: what was flushed while replaying is not replayed again when the opening is cut short."""
    store = prepared()
    opening = take_over(store, ManualEnv(3))
    replay = opening.replay()
    first = next(replay)
    opening.commit(lambda m: replace(m, replay=first.cursor), "flush while replaying")
    seen: list[int] = []
    open_writer(store, ManualEnv(4), replay=lambda found: seen.append(found.entry.position))
    assert seen == [first.entry.position + 1]
    with pytest.raises(FencedError):
        opening.commit(lambda m: m, "too late")
