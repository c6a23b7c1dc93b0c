"""Writers that were silent for long, barriers that outlive their use, errors that are claims."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import pytest

from stepwell.errors import FencedError, TruncatedError, UnavailableError, UnknownOutcomeError
from stepwell.journal import barriers, paths
from stepwell.journal.entry import Draft, Kind
from stepwell.journal.identity import read_identity
from stepwell.journal.log import Log
from stepwell.journal.trim import _BARRIER_BYTES_MAX
from stepwell.manifest.manifest import Manifests
from stepwell.model import Position, Transaction
from stepwell.store.memory import MemoryStore
from stepwell.store.sealed import seal
from stepwell.testing import Crash, Fault, FaultyStore, ManualEnv, When, crash_at, fail_at
from tests.journal.test_journal import SETTINGS, faulty_writer, follow, opened, put, reopened
from tests.tiny import Tiny, collect
from tests.trimming import trim


def overtake(store: MemoryStore, env: ManualEnv) -> None:
    """Another writer takes over and flushes, and its barrier is collected."""
    successor = Tiny(store, env, settings=SETTINGS)
    collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)
    env.advance(SETTINGS.barrier_keep_s + 1)
    successor.push("new")
    successor.flush()
    collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)


def asleep_at_its_next_put(
    store: MemoryStore, env: ManualEnv, rows: int, meanwhile: Callable[[], object], when: str
) -> Tiny:
    """A writer that stalls at its next append, just before its PUT arrives or just after."""
    inner = FaultyStore(store)
    tiny = Tiny(inner, env, settings=SETTINGS)
    for number in range(rows):
        tiny.push(f"row-{number}")

    class Stalling(FaultyStore):
        def put_new(self, path: str, data: object) -> None:
            if when == "before":
                meanwhile()
            super().put_new(path, data)  # type: ignore[arg-type]
            if when == "after":
                meanwhile()

    tiny.writer.journal.log.store = Stalling(inner)
    return tiny


def test_a_writer_that_slept_past_the_collection_of_its_barrier_writes_nothing() -> None:
    """F8, F11: its position is free again; it asks before it writes, so "not written" is true."""
    env, store, sleeper = opened(2)
    env.advance(10)
    overtake(store, env)
    assert not store.exists(paths.entry(sleeper.writer.journal.tip.next)), "the barrier is gone"
    before = store.list()
    with pytest.raises(FencedError) as fenced:
        sleeper.push("woken up")
    assert "was not written" in str(fenced.value)
    assert store.list() == before
    assert reopened(store) == ["row-0", "row-1", "new"]
    with pytest.raises(FencedError):
        sleeper.push("again")


def test_a_writer_that_slept_inside_its_put_is_not_acknowledged() -> None:
    """F8: its position is free again, the PUT succeeds, and still nothing is acknowledged."""
    env = ManualEnv()
    store = MemoryStore(env)
    sleeper = asleep_at_its_next_put(store, env, 2, lambda: overtake(store, env), "before")
    with pytest.raises(UnknownOutcomeError, match="may or may not count"):
        sleeper.push("woken up")
    assert store.exists(paths.entry(Position(4))), "it lies in the hole"
    assert reopened(store) == ["row-0", "row-1", "new"]
    with pytest.raises(UnknownOutcomeError):
        sleeper.push("again")


def test_a_writer_that_slept_after_its_put_landed_does_not_call_it_unwritten() -> None:
    """F11: its successor has replayed, flushed and trimmed the entry. That looks like a hole."""
    env = ManualEnv()
    store = MemoryStore(env)
    sleeper = asleep_at_its_next_put(store, env, 2, lambda: overtake(store, env), "after")
    with pytest.raises(UnknownOutcomeError, match="may or may not count"):
        sleeper.push("counts")
    assert reopened(store) == ["row-0", "row-1", "counts", "new"]


def test_a_writer_that_slept_and_was_claimed_from_knows_that_its_entry_counts() -> None:
    """F11, scenario 94: a successor without a barrier yet replays it, so the answer is yes."""
    env = ManualEnv()
    store = MemoryStore(env)

    def claim() -> None:
        found = Manifests(store, env).latest()
        Manifests(store, ManualEnv(8, host="successor")).claim(found)
        env.advance(SETTINGS.barrier_keep_s)

    for when in ("before", "after"):
        sleeper = asleep_at_its_next_put(store, env, 0, claim, when)
        sleeper.push(f"slept {when} its PUT")
        with pytest.raises(FencedError):
            sleeper.push("refused")
    assert reopened(store) == ["slept before its PUT", "slept after its PUT"]


def test_a_put_in_a_wiped_journal_is_an_unknown_outcome() -> None:
    """F8: without its boundary a journal says nothing about what counts."""
    env = ManualEnv()
    store = MemoryStore(env)

    def wipe() -> None:
        store.delete(*(item.path for item in store.list(paths.JOURNAL)))
        env.advance(SETTINGS.barrier_keep_s)

    sleeper = asleep_at_its_next_put(store, env, 1, wipe, "before")
    with pytest.raises(UnknownOutcomeError):
        sleeper.push("lost")


def test_a_lost_answer_and_a_trimmed_entry_are_not_called_unwritten() -> None:
    """F11: the first attempt landed, and its successor replayed and trimmed it; what lies there now
    is a slow claimant's barrier, put into the hole. It says nothing about the first attempt.
    """
    env = ManualEnv()
    store = MemoryStore(env)
    faulty, tiny = faulty_writer(store)
    faulty.plan = fail_at(1, "after")
    place = paths.entry(tiny.writer.journal.tip.next)

    def meanwhile(seconds: float) -> None:
        successor = Tiny(store, ManualEnv(7), settings=SETTINGS)
        successor.flush()
        collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)
        assert not store.exists(place)
        put(
            store,
            successor,
            int(paths.parse(place).number or 0),
            epoch=2,
            draft=Draft(Kind.BARRIER, Transaction(0), 0, False, env.now()),
        )

    tiny.env._env.sleep = meanwhile  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcomeError):
        tiny.push("counts")
    assert reopened(store) == ["counts"]


def test_a_conflict_with_what_is_gone_at_once_is_not_called_unwritten() -> None:
    """F11: a client below may have sent it twice; what was in the way may have been our own."""
    env = ManualEnv()
    store = MemoryStore(env)
    faulty, tiny = faulty_writer(store)

    class Twice(FaultyStore):
        def put_new(self, path: str, data: object) -> None:
            store.put_new(path, data)  # type: ignore[arg-type]
            Tiny(store, ManualEnv(7), settings=SETTINGS).flush()
            try:
                store.put_new(path, data)  # type: ignore[arg-type]
            finally:
                collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)

    tiny.writer.journal.log.store = Twice(faulty)
    with pytest.raises(UnknownOutcomeError):
        tiny.push("counts")
    assert reopened(store) == ["counts"]


def test_a_fence_after_a_lost_answer_is_certain_while_nothing_was_trimmed() -> None:
    """F11: nothing was ever deleted there, so what lies there was first, and ours is nowhere."""
    store = MemoryStore(ManualEnv())
    faulty, tiny = faulty_writer(store)
    faulty.plan = fail_at(1, "before")
    tiny.env._env.sleep = lambda seconds: Tiny(  # type: ignore[method-assign]
        store, ManualEnv(7), settings=SETTINGS
    )
    with pytest.raises(FencedError):
        tiny.push("refused")
    assert reopened(store) == []


def test_a_barrier_outlives_its_use_and_catches_a_writer_that_slept() -> None:
    """F8: a younger barrier is kept by the collector, so the sleeper runs into it."""
    env, store, sleeper = opened(2)
    successor = Tiny(store, env, settings=SETTINGS)
    successor.flush()
    env.advance(SETTINGS.barrier_keep_s - 1)
    collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)
    left = [item.path for item in store.list("journal/") if item.path.endswith(".arrow")]
    assert left == [paths.entry(Position(1)), paths.entry(sleeper.writer.journal.tip.next)]
    with pytest.raises(FencedError):
        sleeper.push("woken up")


def test_a_writer_that_was_silent_for_long_asks_once_and_continues() -> None:
    """F8: silence alone is not a fence: one look at the manifest, and the append is made."""
    store = MemoryStore(ManualEnv())
    faulty, tiny = faulty_writer(store)
    tiny.env._env.advance(SETTINGS.barrier_keep_s)  # type: ignore[attr-defined]
    tiny.push("a")
    assert [call.operation for call in faulty.calls] == ["list", "put_new"]
    tiny.push("b")
    assert [call.operation for call in faulty.calls] == ["list", "put_new", "put_new"]


def test_a_silent_writer_that_cannot_ask_writes_nothing() -> None:
    """F8, F10, F11: not being able to ask is not permission; the handle can be used again."""
    store = MemoryStore(ManualEnv())
    faulty, tiny = faulty_writer(store)
    tiny.env._env.advance(SETTINGS.barrier_keep_s)  # type: ignore[attr-defined]
    faulty.plan = lambda call: Fault("fail") if call.operation == "list" else None
    with pytest.raises(UnavailableError, match="was not written") as failed:
        tiny.push("a")
    assert failed.value.not_applied
    assert {call.operation for call in faulty.calls} == {"list"}
    faulty.plan = None
    tiny.push("b")
    assert reopened(store) == ["b"]


def test_a_writer_that_slept_inside_its_put_and_cannot_look_is_poisoned() -> None:
    """F8, F10: that the boundary cannot be read is not permission, and the entry may count."""
    env = ManualEnv()
    store = MemoryStore(env)
    tiny = asleep_at_its_next_put(
        store, env, 0, lambda: env.advance(SETTINGS.barrier_keep_s), "before"
    )
    tiny.writer.journal.log.boundary.numbers = FaultyStore(  # type: ignore[method-assign]
        store, lambda call: Fault("fail")
    ).list
    with pytest.raises(UnknownOutcomeError, match="may not count"):
        tiny.push("a")
    assert reopened(store) == ["a"]


def trim_all(store: MemoryStore, env: ManualEnv, up_to: int, **options: int) -> tuple[int, ...]:
    """Trim by age alone, with a keep of ten seconds."""
    return trim(store, env, Position(up_to), barrier_keep_s=10, **{"barriers_kept": 0, **options})


def test_trim_removes_only_what_lies_behind_and_says_what() -> None:
    """F8: nothing above the position given is touched, nor anything that is not an entry."""
    env, store, tiny = opened(4)
    boundary = Log(store).boundary
    store.put_new("journal/notes.txt", b"a person's file")
    assert trim_all(store, env, 3) == (2, 3)
    env.advance(100)
    tiny.push("shows the storage's clock")
    assert trim_all(store, env, 3) == (1,)
    assert boundary.read("journal") == 3
    left = [item.path for item in store.list("journal/")]
    assert left == [
        *[paths.entry(Position(p)) for p in (4, 5, 6)],
        paths.BARRIERS,
        paths.JOURNAL_BOUNDARY,
        paths.IDENTITY,
        "journal/notes.txt",
        paths.WATCH,
    ]
    assert trim_all(store, env, 2) == ()


def test_trim_keeps_a_damaged_entry_that_may_be_a_barrier() -> None:
    """F8: what cannot be told from a barrier is kept as long as one."""
    env, store, tiny = opened()
    store.delete(paths.entry(Position(1)))
    store.put_new(paths.entry(Position(1)), b"damaged")
    assert trim_all(store, env, 1) == ()
    env.advance(11)
    tiny.push("shows the storage's clock")
    assert trim_all(store, env, 1) == (1,)


def test_no_barrier_is_too_large_to_be_taken_for_one() -> None:
    """F8: larger entries are not read before they go. A quarter is left for other libraries."""
    env, store, tiny = opened()
    draft = Draft(Kind.BARRIER, Transaction(0), 0, False, env.now().replace(microsecond=123456))
    put(store, tiny, 10**18, epoch=10**18, draft=draft)
    sizes = [item.size for item in store.list("journal/") if item.path.endswith(".arrow")]
    assert len(sizes) == 2
    assert max(sizes) * 1.25 < _BARRIER_BYTES_MAX


def taken_over(times: int) -> tuple[ManualEnv, MemoryStore, Tiny]:
    """Each writer leaves its barrier and two entries: 1, 4, 7 and so on are barriers."""
    env = ManualEnv()
    store = MemoryStore(env)
    for number in range(times):
        tiny = Tiny(store, env, settings=SETTINGS)
        tiny.push(f"{number}a")
        tiny.push(f"{number}b")
    return env, store, tiny


def entries_left(store: MemoryStore) -> list[int]:
    names = [paths.parse(item.path) for item in store.list(paths.JOURNAL)]
    return [name.number for name in names if name.kind == "entry" and name.number is not None]


def entries_read(faulty: FaultyStore) -> list[str]:
    reads = [call.path for call in faulty.calls if call.operation.startswith("get")]
    return [path for path in reads if path.endswith(".arrow")]


def test_no_entry_is_read_twice_to_know_whether_it_is_a_barrier() -> None:
    """F8: entries never change. The first pass reads each once, the next only what is new."""
    env, store, tiny = taken_over(5)
    first, second, third = FaultyStore(store), FaultyStore(store), FaultyStore(store)
    assert len(trim(first, env, Position(12))) == 8
    assert sorted(entries_read(first)) == [paths.entry(Position(p)) for p in range(1, 13)]
    assert trim(second, env, Position(14)) == (14,)
    assert sorted(entries_read(second)) == [paths.entry(Position(p)) for p in (13, 14)]
    tiny.push("new")
    assert trim(third, env, Position(16)) == (15, 16)
    assert sorted(entries_read(third)) == [paths.entry(Position(p)) for p in (15, 16)]
    assert entries_left(store) == [1, 4, 7, 10, 13]
    # What is known of a barrier does not keep it forever.
    env.advance(100)
    tiny.push("shows the storage's clock")
    assert trim_all(store, env, 16, barriers_kept=2) == (1, 4, 7)


@pytest.mark.parametrize("how", ["above the boundary", "another journal", "damaged", "lost"])
def test_a_note_of_barriers_that_does_not_count_keeps_every_barrier(how: str) -> None:
    """F8: of a journal put back from a backup, or of another one: it is read again."""
    env, store, _ = taken_over(3)
    assert trim(store, env, Position(5)) == (2, 3, 5)
    identity = read_identity(store)
    assert identity is not None
    journal = "another" if how == "another journal" else identity.id
    up_to = 8 if how == "above the boundary" else 5
    store.delete(paths.BARRIERS)
    note = seal(barriers.FORMAT, {"journal": journal, "up_to": up_to, "positions": []})
    if how != "lost":
        store.put_new(paths.BARRIERS, b"damaged" if how == "damaged" else note)
    assert trim(store, env, Position(8)) == (6, 8)
    faulty = FaultyStore(store)
    assert trim(faulty, env, Position(9)) == (9,)
    assert entries_read(faulty) == [paths.entry(Position(9))], "there is a new note"
    assert entries_left(store) == [1, 4, 7]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_trim_killed_at_any_call_leaves_no_note_that_costs_a_barrier(when: When) -> None:
    """F8: of a note that does not count yet none is left when the boundary gets there."""
    for number in range(1, 100):
        env, store, _ = taken_over(3)
        identity = read_identity(store)
        assert identity is not None
        note = {"journal": identity.id, "up_to": 8, "positions": []}
        store.put_new(paths.BARRIERS, seal(barriers.FORMAT, note))
        faulty = FaultyStore(store, crash_at(number, when))
        with suppress(Crash):
            trim(faulty, env, Position(8))
        trim(store, env, Position(9))
        assert entries_left(store) == [1, 4, 7]
        if not faulty.dead:
            return
    pytest.fail("it never got to its end")


@dataclass
class Watched:
    """A stalled writer, the barrier of its successor, and what three clocks say between two looks.

    The storage's clock is that of `storage`, the collector's are those of `env`.
    """

    storage: ManualEnv
    store: MemoryStore
    env: ManualEnv
    stalled: Tiny
    successor: Tiny

    @classmethod
    def begun(cls) -> Watched:
        storage, env = ManualEnv(), ManualEnv(3)
        store = MemoryStore(storage)
        stalled = Tiny(store, ManualEnv(4), settings=SETTINGS)
        stalled.push("a")
        successor = Tiny(store, ManualEnv(5), settings=SETTINGS)
        successor.flush()
        made = cls(storage, store, env, stalled, successor)
        assert made.collect() == (2,), "barriers stay"
        return made

    def collect(self, barriers_kept: int = 0) -> tuple[int, ...]:
        latest = Manifests(self.store, self.env).latest()
        assert latest is not None
        return trim(
            self.store,
            self.env,
            latest.manifest.replay.position,
            barrier_keep_s=SETTINGS.barrier_keep_s,
            barriers_kept=barriers_kept,
        )

    def time_passes(self, *, uptime: float, wall: float, storage: float) -> None:
        """In units of `barrier_keep`, by each clock."""
        self.env.up += uptime * SETTINGS.barrier_keep_s
        self.env.time += timedelta(seconds=wall * SETTINGS.barrier_keep_s)
        self.storage.time += timedelta(seconds=storage * SETTINGS.barrier_keep_s)
        self.successor.push("shows the storage's clock")
        self.successor.flush()


@pytest.mark.parametrize("ahead", [1.0, 30.0])
@pytest.mark.parametrize(
    "right", [("uptime",), ("wall",), ("storage",), ("uptime", "wall"), ("uptime", "storage")]
)
def test_no_clock_that_is_ahead_makes_a_barrier_old(right: tuple[str, ...], ahead: float) -> None:
    """F8, F12, scenario 98: for minutes, for days, the storage's too: one clock that is right is
    enough to keep the barrier, and the stalled writer runs into it.
    """
    watched = Watched.begun()
    clocks = ("uptime", "wall", "storage")
    watched.time_passes(**{clock: 0.1 if clock in right else ahead for clock in clocks})
    assert watched.collect() == (4,), "entries with data need no clock"
    with pytest.raises(FencedError):
        watched.stalled.push("too late")
    # The clocks are set right again, and time does pass.
    watched.time_passes(**{clock: 1.0 if clock in right else 1.0 - ahead for clock in clocks})
    for _ in range(3):
        watched.collect()
        watched.time_passes(uptime=1.0, wall=1.0, storage=1.0)
    watched.collect()
    assert not watched.store.exists(paths.entry(Position(3))), "it goes in the end"


def test_a_barrier_that_all_three_clocks_call_old_goes() -> None:
    """F8: one does not stay forever; its writer asks by then."""
    watched = Watched.begun()
    watched.time_passes(uptime=1.0, wall=1.0, storage=1.0)
    assert watched.collect() == (1, 3, 4)


def test_the_last_barriers_stay_whatever_their_age() -> None:
    """F8, F12, scenario 98: no clock decides about them: it takes 32 takeovers during one append,
    and three wrong clocks.
    """
    watched = Watched.begun()
    for number in range(3):
        watched.successor = Tiny(watched.store, ManualEnv(6 + number), settings=SETTINGS)
        watched.successor.push(f"{number}")
        watched.successor.flush()
    watched.collect(barriers_kept=5)
    for _ in range(3):
        watched.time_passes(uptime=100.0, wall=100.0, storage=100.0)
        watched.collect(barriers_kept=4)
    left = [Log(watched.store).read(Position(p)) for p in (3, 4, 6, 8)]
    assert [found is not None and found.entry.epoch for found in left] == [2, 3, 4, 5]
    with pytest.raises(FencedError):
        watched.stalled.push("too late")
    watched.time_passes(uptime=1.0, wall=1.0, storage=1.0)
    assert 3 in watched.collect(barriers_kept=3)


def test_a_collector_on_another_machine_does_not_count_with_this_ones_clock() -> None:
    """F12: a clock since boot means nothing elsewhere. A note that looks abandoned is replaced."""
    watched = Watched.begun()
    watched.env = ManualEnv(9, host="elsewhere")
    watched.env.advance(100 * SETTINGS.barrier_keep_s)
    watched.time_passes(uptime=1.0, wall=1.0, storage=1.0)
    assert 3 not in watched.collect()
    watched.time_passes(uptime=1.0, wall=1.0, storage=1.0)
    assert 3 not in watched.collect(), "now it counts by its own clock"
    watched.time_passes(uptime=1.0, wall=1.0, storage=1.0)
    assert 3 in watched.collect()


def test_a_damaged_note_costs_time_only() -> None:
    """F12: nothing depends on it but when barriers go."""
    watched = Watched.begun()
    watched.store.delete(paths.WATCH)
    watched.store.put_new(paths.WATCH, b"damaged")
    watched.time_passes(uptime=1.0, wall=1.0, storage=1.0)
    assert 3 not in watched.collect()
    watched.time_passes(uptime=1.0, wall=1.0, storage=1.0)
    assert 3 in watched.collect()


@pytest.mark.parametrize("clock", ["wall", "uptime"])
def test_a_writer_asks_if_either_of_its_clocks_says_that_it_was_silent_for_long(clock: str) -> None:
    """F8, F12: while a hypervisor pauses a machine its boot clock stands still, and the wall clock
    may be set back by days: neither alone lets a writer be acknowledged.
    """
    store = MemoryStore(ManualEnv())
    for away in (timedelta(0), timedelta(days=-3)):
        faulty, tiny = faulty_writer(store)
        env = tiny.env._env
        if clock == "wall":
            env.time += timedelta(seconds=SETTINGS.barrier_keep_s)  # type: ignore[attr-defined]
        else:
            env.up += SETTINGS.barrier_keep_s  # type: ignore[attr-defined]
            env.time += away  # type: ignore[attr-defined]
        tiny.push("a")
        assert [call.operation for call in faulty.calls] == ["list", "put_new"]


@pytest.mark.parametrize("clock", ["wall", "uptime"])
def test_a_writer_looks_if_either_of_its_clocks_says_that_its_put_took_long(clock: str) -> None:
    """F8, F12: the same after the PUT, where the boundary tells."""
    env = ManualEnv()
    store = MemoryStore(env)
    sleeper_env = ManualEnv(6)

    def meanwhile() -> None:
        overtake(store, env)
        if clock == "wall":
            sleeper_env.time += timedelta(seconds=SETTINGS.barrier_keep_s)
        else:
            sleeper_env.up += SETTINGS.barrier_keep_s

    sleeper = asleep_at_its_next_put(store, sleeper_env, 1, meanwhile, "before")
    with pytest.raises(UnknownOutcomeError):
        sleeper.push("in a hole")
    assert reopened(store) == ["row-0", "new"]


def test_a_reader_does_not_believe_what_a_sleeper_left_in_a_hole() -> None:
    """F8: garbage behind the boundary fits the chain perfectly, and still is not shown."""
    env = ManualEnv()
    store = MemoryStore(env)
    sleeper = asleep_at_its_next_put(store, env, 2, lambda: overtake(store, env), "before")
    reader = follow(store, env)
    assert len(reader.poll()) == 2
    with pytest.raises(UnknownOutcomeError):
        sleeper.push("rubbish")
    assert store.exists(paths.entry(Position(4))), "the rubbish is there"
    with pytest.raises(TruncatedError):
        reader.poll()
