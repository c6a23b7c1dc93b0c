"""Numbered versions alone: one winner per number, boundaries, lost answers, few requests."""

from __future__ import annotations

import threading

import pytest

from stepwell.errors import (
    BugError,
    ConflictError,
    CorruptError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.model import Epoch
from stepwell.store.base import Object
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.store.sealed import seal
from stepwell.store.sequenced import Boundary, Sequence, last_taken
from stepwell.testing import Call, Fault, FaultyStore, ManualEnv, fail_at, short_read_at, storm

FORMAT = "stepwell-thing/1"


def sequence(store: object, env: ManualEnv | None = None) -> Sequence:
    return Sequence(
        store,  # type: ignore[arg-type]
        env or ManualEnv(),
        name="thing",
        prefix="thing/",
        format=FORMAT,
        boundary=Boundary(store, "gc/boundary.json"),  # type: ignore[arg-type]
        retry=Retry(patience_s=0.06),
    )


def filled(count: int) -> tuple[MemoryStore, Sequence]:
    store = MemoryStore(ManualEnv())
    things = sequence(store)
    for id in range(1, count + 1):
        things.create(id, Epoch(1), {"n": id})
    return store, things


def test_of_many_authors_one_wins_each_number() -> None:
    """F1: two authors can never both commit the version after the one they read."""
    store, _ = filled(0)
    won: list[int] = []

    def author(seed: int) -> None:
        things = sequence(store, ManualEnv(seed))
        for id in range(1, 51):
            try:
                things.create(id, Epoch(1), {"author": seed})
                won.append(id)
            except ConflictError:
                pass

    threads = [threading.Thread(target=author, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, 51))


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2345])
def test_the_latest_is_found_in_few_requests(count: int) -> None:
    """F6: the latest version is found by one listing, whatever their number; large ones by a
    search.
    """
    store, _ = filled(count)
    watched = FaultyStore(store)
    latest = sequence(watched).latest()
    assert (latest.id if latest else 0) == count
    assert len(watched.calls) <= (3 if count < 1000 else 27)


def test_the_latest_is_found_past_versions_kept_for_checkpoints() -> None:
    """F6: versions kept below the boundary leave gaps, which must not be taken for the end."""
    store, things = filled(2500)
    keep = frozenset(range(2, 2400, 2))
    things.collect(2400, keep)
    latest = things.latest()
    assert latest is not None
    assert latest.id == 2500
    assert things.latest_id(after=2499) == 2500
    assert things.latest_id(after=2500) is None


def test_a_create_whose_answer_was_lost_is_recognised() -> None:
    """F7: the create that was applied and reported failed is not taken for somebody else's."""
    for number in (2, 3):
        store = MemoryStore(ManualEnv())
        faulty = FaultyStore(store, fail_at(number, "after"))
        version = sequence(faulty).create(1, Epoch(1), {"n": 1})
        stored = sequence(store).latest()
        assert stored is not None
        assert stored.put_id == version.put_id


def test_a_create_that_never_reached_the_store_is_sent_again() -> None:
    """F7: an error before anything was applied costs a retry and leaves no gap."""
    store = MemoryStore(ManualEnv())
    sequence(FaultyStore(store, fail_at(2, "before"))).create(1, Epoch(1), {})
    assert sequence(store).ids() == (1,)


def test_retries_are_bounded_and_end_in_an_unknown_outcome() -> None:
    """F7: a storm that outlasts the retries is reported as an unknown outcome."""
    faulty = FaultyStore(MemoryStore(ManualEnv()), storm(2, 99))
    with pytest.raises(UnknownOutcomeError) as unknown:
        sequence(faulty).create(1, Epoch(1), {})
    assert "tried 3 times" in str(unknown.value)
    assert [call.operation for call in faulty.calls] == ["get", *["put_new"] * 3]


def test_a_failed_look_up_is_never_absence() -> None:
    """F10: neither a listing, a read nor a look at the boundary that failed counts as "none"."""
    store, _ = filled(1500)
    watched = FaultyStore(store)
    sequence(watched).latest()
    for number in range(1, len(watched.calls) + 1):
        with pytest.raises(UnavailableError):
            sequence(FaultyStore(store, fail_at(number, "before"))).latest()


def test_a_body_cut_off_on_the_way_is_read_again() -> None:
    """F10: a short body is neither absence nor damage while a second read is whole."""
    store, _ = filled(3)
    latest = sequence(FaultyStore(store, short_read_at(2))).latest()
    assert latest is not None
    assert latest.id == 3


def test_a_create_in_a_hole_left_by_the_collector_is_a_conflict() -> None:
    """F8: a stalled author whose number was collected is not committed; nothing is changed."""
    store, things = filled(5)
    things.collect(4)
    before = store.list()
    with pytest.raises(ConflictError):
        things.create(3, Epoch(1), {"stale": True})
    assert store.list() == before


def test_an_author_that_stalls_while_its_number_is_collected_is_not_committed() -> None:
    """F8: its create lands in the hole; it is not told yes, and the latest is unchanged."""
    store, things = filled(5)

    def plan(call: Call) -> None:
        if call.operation == "put_new":
            things.collect(4)

    with pytest.raises(UnknownOutcomeError):
        sequence(FaultyStore(store, plan)).create(3, Epoch(1), {"stale": True})
    latest = things.latest()
    assert latest is not None
    assert latest.body.number("n") == 5
    assert things.collect(4) == (3,), "the next collection removes the orphan"


def test_a_version_built_upon_and_collected_at_once_is_not_committed_twice() -> None:
    """F7: it looks like one that landed in a hole; a caller that took that for a no would do it
    again."""
    store, things = filled(3)

    def plan(call: Call) -> None:
        if call.number == 3:
            things.create(5, Epoch(1), {"on": "top"})
            things.collect(4)

    with pytest.raises(UnknownOutcomeError):
        sequence(FaultyStore(store, plan)).create(4, Epoch(1), {"n": 4})


def test_the_latest_version_is_never_collected() -> None:
    """F8: a collector told to remove the latest stops before it deletes anything."""
    store, things = filled(3)
    with pytest.raises(BugError):
        things.collect(3)
    assert things.ids() == (1, 2, 3)


def test_the_boundary_only_goes_up_however_many_move_it() -> None:
    """F8: two collectors at once cannot move the boundary back, and both names are kept."""
    store = MemoryStore(ManualEnv())
    boundary = Boundary(store, "gc/boundary.json")
    assert boundary.read("journal") == 0
    assert boundary.advance("journal", 0) == 0
    assert boundary.advance("journal", 5) == 5
    assert boundary.advance("journal", 3) == 5
    assert boundary.advance("manifest", 2) == 2
    threads = [
        threading.Thread(target=boundary.advance, args=("journal", number))
        for number in range(6, 40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (boundary.read("journal"), boundary.read("manifest")) == (39, 2)


def test_a_collection_stopped_anywhere_is_finished_by_the_next() -> None:
    """F8: the boundary goes first, so a collector that dies leaves only garbage behind it."""
    from stepwell.testing import Crash, crash_at

    store, things = filled(6)
    watched = FaultyStore(store)
    sequence(watched).collect(5)
    for number in range(1, len(watched.calls) + 1):
        for when in ("before", "halfway", "after"):
            store, things = filled(6)
            with pytest.raises(Crash):
                sequence(FaultyStore(store, crash_at(number, when))).collect(5)
            latest = things.latest()
            assert latest is not None
            assert latest.id == 6
            things.collect(5)
            assert things.ids() == (6,)


def test_a_version_under_another_versions_name_is_corrupt() -> None:
    """K2: two versions swapped by a person are noticed, by the number inside."""
    store, things = filled(2)
    found = store.get(things.path(1))
    assert found is not None
    store.delete(things.path(2))
    store.put_new(things.path(2), found.data)
    with pytest.raises(CorruptError) as corrupt:
        things.latest()
    assert corrupt.value.field == "id"
    assert things.full_name(2) == corrupt.value.object


def test_a_damaged_boundary_is_an_error_not_zero() -> None:
    """K2: an unreadable boundary never means that nothing was collected."""
    for data in (b"", b"{}", seal("stepwell-boundary/1", {"numbers": {"thing": -1}})):
        store = MemoryStore(ManualEnv())
        store.put_new("gc/boundary.json", data)
        with pytest.raises(CorruptError):
            Boundary(store, "gc/boundary.json").read("thing")
        with pytest.raises(CorruptError):
            sequence(store).create(1, Epoch(1), {})


def test_the_end_is_found_in_a_logarithmic_number_of_questions() -> None:
    for count in (0, 1, 2, 3, 100, 1000, 99_999, 100_000):
        asked: list[int] = []

        def exists(number: int, count: int = count, asked: list[int] = asked) -> bool:
            asked.append(number)
            return number <= count

        assert last_taken(exists, 0) == count
        assert len(asked) <= 2 * max(1, count).bit_length() + 2


def test_a_collector_leaves_what_another_one_keeps() -> None:
    """F8: a stale one deletes up to where it was told, not up to the boundary (scenario 66)."""
    store, things = filled(60)
    things.collect(50, keep=frozenset({5, 40}))
    things.collect(10, keep=frozenset({5}))
    assert things.ids() == (5, 40, *range(51, 61))


def test_a_commit_built_upon_and_collected_while_its_answer_was_lost_is_unknown() -> None:
    """F7: sent again it lands in the hole, or finds nothing; neither says that it was not made."""
    store, things = filled(3)
    boundary = Boundary(store, "gc/boundary.json")

    def plan(call: Call) -> Fault | None:
        return Fault("fail", "after") if call.number == 2 else None

    class Busy(ManualEnv):
        def sleep(self, seconds: float) -> None:
            things.create(5, Epoch(1), {"on": "top"})
            things.collect(4)

    with pytest.raises(UnknownOutcomeError) as unknown:
        sequence(FaultyStore(store, plan), Busy()).create(4, Epoch(1), {"n": 4})
    assert "collected" in str(unknown.value)
    assert boundary.read("thing") == 4


def test_a_latest_version_that_is_lost_is_missed() -> None:
    """K4: what a checkpoint keeps below the boundary never passes for the latest."""
    store, things = filled(9)
    things.collect(8, keep=frozenset({3}))
    store.delete(things.path(9))
    with pytest.raises(CorruptError) as corrupt:
        things.latest()
    assert things.full_name(9) in str(corrupt.value)


def test_a_lost_latest_version_is_missed_even_behind_a_full_page_of_kept_ones() -> None:
    """K4: the search for the end must stop, and say so, if nothing lies above the boundary."""
    store, things = filled(1300)
    things.collect(1299, keep=frozenset(range(1, 1200)))
    store.delete(things.path(1300))
    with pytest.raises(CorruptError, match="lay above 1299"):
        things.latest()


def test_a_version_that_is_listed_but_cannot_be_read_is_not_searched_for_forever() -> None:
    """F10: a listing and a read that keep contradicting each other are damage, not a loop."""

    class Contradictory(MemoryStore):
        def get(self, path: str) -> Object | None:
            return None if path.startswith("thing/") else super().get(path)

    store = Contradictory(ManualEnv())
    store.put_new("thing/00000000000000000007.json", b"x")
    with pytest.raises(CorruptError):
        sequence(store).latest()
