"""The writer's end: one PUT an append, lost answers, poison, void entries, long silence."""

from __future__ import annotations

import threading
from array import array
from dataclasses import replace
from itertools import pairwise

import pytest

from stepwell.engine.open import Writer, open_writer
from stepwell.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    StepwellError,
    TruncatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.journal import codec, paths
from stepwell.journal.entry import Cursor, Draft, Entry, Input, Kind
from stepwell.journal.journal import Settings
from stepwell.journal.log import JournalReader, Log
from stepwell.manifest.manifest import Manifests
from stepwell.model import NO_CHECKSUM, Epoch, Position, Transaction
from stepwell.store.base import Listed
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import Call, Fault, FaultyStore, ManualEnv, fail_at, short_read_at, storm
from tests.tiny import Tiny, collect, draft, rows_of, stored_rows

SETTINGS = Settings(barrier_keep_s=3600, retry=Retry(patience_s=0.06))


def opened(rows: int = 0) -> tuple[ManualEnv, MemoryStore, Tiny]:
    env = ManualEnv()
    store = MemoryStore(env)
    tiny = Tiny(store, env, settings=SETTINGS)
    for number in range(rows):
        tiny.push(f"row-{number}")
    return env, store, tiny


def reopened(store: MemoryStore) -> list[str]:
    return Tiny(store, ManualEnv(99), settings=SETTINGS).rows()


def faulty_writer(store: MemoryStore) -> tuple[FaultyStore, Tiny]:
    """A writer on a store whose faults are set once it is open."""
    faulty = FaultyStore(store)
    tiny = Tiny(faulty, ManualEnv(1, host="faulty"), settings=SETTINGS)
    faulty.calls.clear()
    return faulty, tiny


def test_an_append_is_one_conditional_put_and_nothing_else() -> None:
    """F4: the append path reads no manifest: one request per entry."""
    faulty, tiny = faulty_writer(MemoryStore(ManualEnv()))
    for number in range(5):
        tiny.push(str(number))
    assert [(call.operation, call.path) for call in faulty.calls] == [
        ("put_new", paths.entry(Position(2 + number))) for number in range(5)
    ]


def test_an_append_whose_answer_was_lost_is_there_once() -> None:
    """F7: recognised as our own by its put_id: neither written twice nor taken for a fence."""
    store = MemoryStore(ManualEnv())
    faulty, tiny = faulty_writer(store)
    faulty.plan = fail_at(1, "after")
    tiny.push("lost answer")
    tiny.push("next")
    assert stored_rows(store, ManualEnv()) == ["lost answer", "next"]
    assert reopened(store) == ["lost answer", "next"]


def test_an_append_that_was_not_applied_is_sent_again_to_the_same_position() -> None:
    """F7: an error before the store saw anything leaves no gap."""
    store = MemoryStore(ManualEnv())
    faulty, tiny = faulty_writer(store)
    faulty.plan = storm(1, 2)
    tiny.push("third time lucky")
    assert [call.path for call in faulty.calls] == [paths.entry(Position(2))] * 3
    assert reopened(store) == ["third time lucky"]


def test_a_lost_answer_and_an_unreadable_entry_end_in_an_unknown_outcome() -> None:
    """F7, F10: while the entry that is there cannot be read it is nobody's; then it is ours."""
    store = MemoryStore(ManualEnv())
    faulty, tiny = faulty_writer(store)
    faulty.plan = lambda call: Fault("fail", "after" if call.operation == "put_new" else "before")
    with pytest.raises(UnknownOutcomeError):
        tiny.push("a")
    faulty.plan = None
    with pytest.raises(UnknownOutcomeError):
        tiny.push("b")
    assert reopened(store) == ["a"]


def test_spent_retries_poison_the_writer_for_reads_and_writes() -> None:
    """F3, F7: after an unknown outcome nothing on the handle works; reopening tells the truth."""
    for when, expected in (("before", []), ("after", ["a"])):
        store = MemoryStore(ManualEnv())
        faulty, tiny = faulty_writer(store)
        faulty.plan = lambda call, when=when: Fault("fail", when)
        with pytest.raises(UnknownOutcomeError) as unknown:
            tiny.push("a")
        assert "hint:" in str(unknown.value)
        faulty.plan = None
        for later in (lambda: tiny.push("b"), tiny.flush, tiny.rows, lambda: tiny.writer.manifest):
            with pytest.raises(UnknownOutcomeError):
                later()
        assert reopened(store) == expected


def test_an_interrupt_during_an_append_poisons_the_writer() -> None:
    """F7: Ctrl-C while the PUT is on its way is an unknown outcome like any other."""
    store = MemoryStore(ManualEnv())
    faulty, tiny = faulty_writer(store)

    def interrupt(call: object) -> None:
        raise KeyboardInterrupt

    faulty.plan = interrupt
    with pytest.raises(KeyboardInterrupt):
        tiny.push("a")
    faulty.plan = None
    with pytest.raises(UnknownOutcomeError):
        tiny.push("b")


def test_a_writer_fenced_after_a_lost_answer_still_knows_its_own_entry() -> None:
    """F7: the successor's barrier comes after the entry; the lost answer was a yes."""
    env, store, _ = opened()
    faulty, tiny = faulty_writer(store)
    faulty.plan = fail_at(1, "after")
    taken: list[Tiny] = []
    tiny.env._env.sleep = lambda seconds: taken.append(  # type: ignore[method-assign]
        Tiny(store, ManualEnv(7))
    )
    tiny.push("acknowledged")
    assert taken[0].rows() == ["acknowledged"]
    with pytest.raises(FencedError):
        tiny.push("refused")
    assert reopened(store) == ["acknowledged"]


def test_every_waiting_thread_is_woken_when_the_writer_is_fenced() -> None:
    """F3: threads that wait for their turn fail at once too; none hangs, none is acknowledged."""
    env, store, tiny = opened()
    Tiny(store, ManualEnv(5))
    errors: list[BaseException] = []

    def push(number: int) -> None:
        try:
            tiny.writer.append(draft(env, f"late-{number}"))
        except StepwellError as error:
            errors.append(error)

    threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(errors) == 8
    assert {type(error) for error in errors} == {FencedError}
    assert reopened(store) == []


def test_threads_take_turns_and_leave_no_gap() -> None:
    """F1: concurrent appends on one handle are each there once, at positions without a gap."""
    env, store, tiny = opened()

    def push(name: str) -> None:
        for number in range(20):
            tiny.writer.append(draft(env, f"{name}-{number}"))

    threads = [threading.Thread(target=push, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = reopened(store)
    assert sorted(rows) == sorted(f"{name}-{number}" for name in "abcd" for number in range(20))
    for name in "abcd":
        mine = [row for row in rows if row.startswith(name)]
        assert mine == [f"{name}-{number}" for number in range(20)]


def test_the_fence_message_says_who_what_and_what_next() -> None:
    """F3: the message names epoch, host, pid, time of the new writer, what is undone, a hint."""
    env, store, tiny = opened(2)
    env.advance(90)
    successor = ManualEnv(3, host="db-2", pid=4711)
    successor.advance(90)
    Tiny(store, successor)
    with pytest.raises(FencedError) as fenced:
        tiny.push("too late")
    text = str(fenced.value)
    for part in ("epoch 2", "host db-2", "pid 4711", "2026-01-01T00:01:30", "entry 4", "epoch 1"):
        assert part in text
    assert text.splitlines()[1].startswith("hint: stop this process")


def test_a_fence_is_certain_even_if_the_manifest_cannot_be_read() -> None:
    """F3: the entry in our place proves the fence, whether or not we can learn whose it is."""
    store = MemoryStore(ManualEnv())
    faulty, tiny = faulty_writer(store)
    Tiny(store, ManualEnv(3))
    faulty.plan = lambda call: Fault("fail") if call.operation == "list" else None
    with pytest.raises(FencedError) as fenced:
        tiny.push("too late")
    assert fenced.value.epoch == 2


def put(store: MemoryStore, tiny: Tiny, position: int, epoch: int, **changes: object) -> None:
    """An entry somebody else put at a position."""
    entry = Entry(
        lineage=tiny.writer.manifest.lineage,
        epoch=Epoch(epoch),
        position=Position(position),
        put_id=ManualEnv(123).new_id(),
        previous=tiny.writer.journal.tip.checksum,
        draft=draft(tiny.env, "foreign"),
    )
    entry = replace(entry, **changes)
    store.put_new(paths.entry(Position(position)), codec.encode(entry).parts)


def test_a_void_barrier_is_stepped_over_by_writer_replay_and_reader() -> None:
    """F5: a barrier put by a writer that had lost already fences nobody and counts for nothing."""
    env, store, _ = opened()
    tiny = Tiny(store, env, settings=SETTINGS)
    tiny.push("before")
    barrier = Draft(Kind.BARRIER, Transaction(0), 0, False, env.now())
    put(store, tiny, tiny.writer.journal.tip.next, epoch=1, draft=barrier, previous=NO_CHECKSUM)
    tiny.push("after")
    assert reopened(store) == ["before", "after"]
    manifests = Manifests(store, env)
    latest = manifests.latest()
    assert latest is not None
    reader = JournalReader(Log(store), latest.manifest.replay)
    assert [row for item in reader.poll() for row in rows_of(item)] == ["before", "after"]


def test_data_of_a_lower_epoch_above_our_barrier_is_never_skipped() -> None:
    """F2: it was acknowledged once; that it lies above a barrier proves that an entry was lost."""
    env, store, _ = opened()
    tiny = Tiny(store, env, settings=SETTINGS)
    tiny.push("mine")
    put(store, tiny, tiny.writer.journal.tip.next, epoch=1)
    with pytest.raises(CorruptError) as corrupt:
        tiny.push("next")
    assert corrupt.value.field == "epoch"
    with pytest.raises(CorruptError):
        reopened(store)
    with pytest.raises(CorruptError):
        follow(store, env).poll()


@pytest.mark.parametrize("lost", range(2, 8))
def test_a_lost_entry_is_never_taken_for_the_end_of_the_journal(lost: int) -> None:
    """F10: a barrier in the place of a lost entry would bury those behind it; opening stops
    instead.
    """
    env, store, _ = opened(6)
    store.delete(paths.entry(Position(lost)))
    before = [item.path for item in store.list("journal/")]
    if lost == 7:
        assert reopened(store) == [f"row-{n}" for n in range(5)], "the last one leaves no trace"
        return
    with pytest.raises(TruncatedError) as truncated:
        reopened(store)
    assert paths.entry(Position(lost)) in str(truncated.value)
    after = [item.path for item in store.list("journal/")]
    assert paths.entry(Position(lost)) not in after, "a backup can still be put in its place"
    assert set(before) <= set(after)


@pytest.mark.parametrize("width", [1, 2, 5, 10, 63, 64, 65, 100])
@pytest.mark.parametrize("first", [2, 3, 17, 40])
def test_a_hole_of_any_width_is_found_before_the_pipeline_is_claimed(
    first: int, width: int
) -> None:
    """F10, scenario 102: one listing shows it, the message names it, nobody is fenced, and what
    lies behind it is not buried under a barrier.
    """
    _, store, tiny = opened(150)
    for lost in range(first, first + width):
        store.delete(paths.entry(Position(lost)))
    before = [item.path for item in store.list()]
    with pytest.raises(TruncatedError) as truncated:
        reopened(store)
    assert paths.entry(Position(first)) in str(truncated.value)
    assert f"an entry {first + width}" in str(truncated.value)
    assert [item.path for item in store.list()] == before
    with pytest.raises(TruncatedError) as truncated:
        followed(store)
    assert paths.entry(Position(first)) in str(truncated.value)
    tiny.push("its writer still has the pipeline")


def followed(store: MemoryStore) -> list[str]:
    """What a reader sees that takes an empty poll for the end."""
    reader = follow(store, ManualEnv())
    rows: list[str] = []
    while seen := reader.poll():
        rows += [row for item in seen for row in rows_of(item)]
    return rows


def test_opening_lists_the_journal_once_to_find_its_end_and_every_hole() -> None:
    """F10, scenario 102: the certainty costs one request, in the place of a search of many."""
    _, store, _ = opened(300)
    watched = FaultyStore(store)
    assert Log(watched).survey(Position(0), Position(0)) == 301
    assert [(call.operation, call.path) for call in watched.calls] == [("list", paths.JOURNAL)]


def test_an_entry_put_while_the_journal_is_listed_is_not_a_hole() -> None:
    """F10: a listing is not a snapshot; what it passed over and is there now was not lost."""
    _, store, tiny = opened(3)

    class Torn(FaultyStore):
        """Its first listing passed the place of the last entry but one before that was put."""

        def list(self, *arguments: object, **options: object) -> tuple[Listed, ...]:
            found = super().list(*arguments, **options)  # type: ignore[arg-type]
            if len([call for call in self.calls if call.operation == "list"]) > 1:
                return found
            tiny.push("meanwhile")
            return tuple(item for item in found if item.path != paths.entry(Position(3)))

    assert Log(Torn(store)).survey(Position(1)) == 5


def test_a_reader_passes_any_number_of_barriers_in_one_poll() -> None:
    """F5: a poll is empty only at the end; else a reader that stops at an empty poll would stop
    too soon."""
    _, store, tiny = opened(1)
    for _ in range(5):
        Tiny(store, ManualEnv(4), settings=SETTINGS)
    Tiny(store, ManualEnv(4), settings=SETTINGS).push("after many takeovers")
    reader = follow(store, ManualEnv())
    assert [rows_of(item) for item in reader.poll(1)] == [["row-0"]]
    assert [rows_of(item) for item in reader.poll(1)] == [["after many takeovers"]]


def test_a_writer_that_continues_during_the_search_for_the_end_leaves_no_hole() -> None:
    """F2: entries added while a successor searches are not mistaken for entries behind a hole."""
    env, store, tiny = opened(3)

    def plan(call: Call) -> None:
        if call.operation == "exists" and len(tiny.unflushed) < 40:
            tiny.push("meanwhile")

    assert Log(FaultyStore(store, plan)).last(Position(1)) >= 5


def test_a_barrier_that_finds_its_place_taken_steps_forward_and_asks_each_time() -> None:
    """F2: entries of an old writer that never pauses are passed, the epoch checked at each."""
    env, store, tiny = opened(1)
    ahead = iter(range(10))

    def plan(call: Call) -> None:
        if call.operation == "put_new" and call.path.startswith("journal/"):
            for number in ahead:
                tiny.push(f"meanwhile-{number}")
                tiny.push(f"meanwhile-{number}-too")
                return

    watched = FaultyStore(store, plan)
    successor = Tiny(watched, ManualEnv(1), settings=SETTINGS)
    assert successor.writer.barrier == 1 + 1 + 20 + 1
    assert len(successor.rows()) == 21
    puts = [n for n, call in enumerate(watched.calls) if call.path.endswith(".arrow")]
    attempts = [n for n in puts if watched.calls[n].operation == "put_new"]
    assert len(attempts) == 11
    for first, second in pairwise(attempts):
        assert "list" in {call.operation for call in watched.calls[first:second]}


def test_an_entry_of_our_own_epoch_by_another_hand_stops_hard() -> None:
    """F6: two writers with one epoch mean a copied or shared store: nothing more is written."""
    env, store, tiny = opened()
    put(store, tiny, tiny.writer.journal.tip.next, epoch=1)
    with pytest.raises(CorruptError) as corrupt:
        tiny.push("mine")
    assert "our own epoch 1" in str(corrupt.value)


def test_an_entry_of_an_unclaimed_epoch_stops_hard() -> None:
    """F6: a journal ahead of the manifest means that the manifest's store went back in time."""
    env, store, tiny = opened()
    put(store, tiny, tiny.writer.journal.tip.next, epoch=9)
    with pytest.raises(CorruptError) as corrupt:
        tiny.push("mine")
    assert "back in time" in str(corrupt.value)


def follow(store: MemoryStore, env: ManualEnv) -> JournalReader:
    manifests = Manifests(store, env)
    latest = manifests.latest()
    assert latest is not None
    return JournalReader(Log(store), latest.manifest.replay)


def test_a_reader_follows_across_writers_and_writes_nothing() -> None:
    """F5: barriers of new writers are invisible to a reader, and a reader to the store."""
    env, store, tiny = opened(1)
    watched = FaultyStore(store)
    reader = follow(watched, env)  # type: ignore[arg-type]
    seen: list[str] = []
    for number in range(4):
        seen += [row for item in reader.poll() for row in rows_of(item)]
        tiny = Tiny(store, env, settings=SETTINGS)
        tiny.push(f"after-{number}")
    seen += [row for item in reader.poll() for row in rows_of(item)]
    assert seen == ["row-0", "after-0", "after-1", "after-2", "after-3"]
    assert reader.poll() == ()
    assert {call.operation for call in watched.calls} <= {"get", "list", "exists"}


def test_a_reader_left_behind_by_the_collector_is_told() -> None:
    """F8: a trimmed entry is neither the end nor damage; after a new start the reader goes on."""
    env, store, tiny = opened(3)
    reader = follow(store, env)
    tiny.flush()
    env.advance(SETTINGS.barrier_keep_s + 1)
    collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)
    with pytest.raises(TruncatedError) as truncated:
        reader.poll()
    assert "hint:" in str(truncated.value)
    reader = follow(store, env)
    tiny.push("new")
    assert [row for item in reader.poll() for row in rows_of(item)] == ["new"]


def damaged_journal(damage: str) -> MemoryStore:
    env, store, tiny = opened(4)
    path = paths.entry(Position(3))
    found = store.get(path)
    other = store.get(paths.entry(Position(4)))
    assert found is not None
    assert other is not None
    store.delete(path)
    if damage == "flipped":
        store.put_new(path, found.data[:500] + b"\xff" + found.data[501:])
    elif damage == "cut":
        store.put_new(path, found.data[:-1])
    elif damage == "empty":
        store.put_new(path, b"")
    elif damage == "swapped":
        store.put_new(path, other.data)
    elif damage == "rewritten":
        entry, _ = codec.decode(found.data, path)
        store.put_new(path, codec.encode(replace(entry, put_id=env.new_id())).parts)
    elif damage == "foreign":
        entry, _ = codec.decode(found.data, path)
        store.put_new(path, codec.encode(replace(entry, lineage=env.new_id())).parts)
    return store


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "swapped", "rewritten", "foreign"])
def test_damage_in_the_middle_of_the_journal_is_never_skipped(damage: str) -> None:
    """K2: opening stops at the object; nothing is replayed past it and nothing is guessed."""
    store = damaged_journal(damage)
    with pytest.raises(CorruptError) as corrupt:
        Tiny(store, ManualEnv(9), settings=SETTINGS)
    named = 4 if damage == "rewritten" else 3
    assert paths.entry(Position(named)) in str(corrupt.value)
    with pytest.raises(CorruptError):
        follow(store, ManualEnv()).poll()


def test_an_entry_missing_in_the_middle_is_data_loss_not_the_end() -> None:
    """F10: with later entries behind it, a hole is an error that names the entry, never a shorter
    log.
    """
    env, store, tiny = opened(6)
    writer = Tiny(store, ManualEnv(1), settings=SETTINGS).writer
    store.delete(paths.entry(Position(3)))
    with pytest.raises(TruncatedError) as truncated:
        list(writer.journal.replay())
    assert paths.entry(Position(3)) in str(truncated.value)


def test_an_entry_missing_because_another_writer_collected_it_is_a_fence() -> None:
    """F6: a writer still replaying when its entries go was fenced, and is told so."""
    env, store, _ = opened(3)
    slow = Tiny(store, env, settings=SETTINGS)
    quick = Tiny(store, env, settings=SETTINGS)
    quick.flush()
    env.advance(SETTINGS.barrier_keep_s + 1)
    collect(store, env, barrier_keep_s=SETTINGS.barrier_keep_s)
    with pytest.raises(FencedError):
        list(slow.writer.journal.replay())


def test_a_body_cut_off_on_the_way_is_read_again() -> None:
    """F10: a short body on its way is neither damage nor the end."""
    env, store, _ = opened(3)
    watched = FaultyStore(store)
    Tiny(watched, ManualEnv(1), settings=SETTINGS)
    reads = [call.number for call in watched.calls if call.operation == "get"]
    for number in reads:
        _, store, _ = opened(3)
        faulty = FaultyStore(store, short_read_at(number))
        assert Tiny(faulty, ManualEnv(1), settings=SETTINGS).rows() == ["row-0", "row-1", "row-2"]


def test_the_end_is_found_in_a_logarithmic_number_of_requests() -> None:
    """F2: a successor of a writer with many unflushed entries finds its place in few requests."""
    env, store, tiny = opened(300)
    watched = FaultyStore(store)
    Log(watched).last(Position(1))
    assert {call.operation for call in watched.calls} == {"exists"}
    assert len(watched.calls) <= 2 * 9 + 2 + 4


def test_a_failed_look_up_while_searching_the_end_is_an_error() -> None:
    """F10: a HEAD that failed is never a free position."""
    env, store, _ = opened(5)
    watched = FaultyStore(store)
    Log(watched).last(Position(0))
    for number in range(1, len(watched.calls) + 1):
        with pytest.raises(UnavailableError):
            Log(FaultyStore(store, fail_at(number, "before"))).last(Position(0))


def test_nothing_works_before_the_barrier_is_placed() -> None:
    """F2: a journal handle that has not taken over cannot append."""
    from stepwell.journal.journal import Journal

    env, store, tiny = opened()
    journal = Journal(
        store,
        env,
        lineage=tiny.writer.manifest.lineage,
        epoch=Epoch(5),
        replayed=Cursor(),
        guard=tiny.writer._holder,
    )
    with pytest.raises(UnknownOutcomeError):
        journal.append(Draft(Kind.CLOSE, Transaction(1), 0, True, env.now()))


@pytest.mark.parametrize(
    "bad",
    [
        Draft(Kind.BARRIER, Transaction(1), 0, True, ManualEnv().now()),
        Draft(Kind.STEP, Transaction(-1), 0, True, ManualEnv().now()),
        Draft(Kind.STEP, Transaction(1), -1, True, ManualEnv().now()),
        Draft(
            Kind.STEP,
            Transaction(1),
            0,
            True,
            ManualEnv().now(),
            (Input("a\ud800", "t", 1, NO_CHECKSUM),),
        ),
        Draft(
            Kind.STEP,
            Transaction(1),
            0,
            True,
            ManualEnv().now(),
            (Input("a", "t", 2**63, NO_CHECKSUM),),
        ),
    ],
    ids=["barrier", "transaction", "step", "surrogate", "overflow"],
)
def test_what_could_not_be_read_again_is_never_written(bad: Draft) -> None:
    """K2: it is refused before anything is sent, and the writer can go on."""
    env, store, tiny = opened()
    before = store.list()
    with pytest.raises(InvalidError):
        tiny.writer.append(bad)
    assert store.list() == before
    tiny.push("good")
    assert reopened(store) == ["good"]


def test_a_view_of_numbers_is_written_whole() -> None:
    """F1: its length in items is not its length in bytes."""
    env, store, tiny = opened()
    numbers = array("q", [1, 2, 3])
    item = Input("push", "t", 3, NO_CHECKSUM, None, memoryview(numbers))
    recorded = tiny.writer.append(Draft(Kind.STEP, Transaction(1), 0, True, env.now(), (item,)))
    found = Log(store).read(recorded.entry.position)
    assert found is not None
    assert bytes(found.entry.draft.inputs[0].data or b"") == numbers.tobytes()


def test_a_fenced_handle_keeps_no_frames_alive() -> None:
    """F3: the same error is raised again and again; its traceback must not grow with each time."""
    env, store, tiny = opened()
    Tiny(store, ManualEnv(1))
    for _ in range(50):
        with pytest.raises(FencedError) as fenced:
            tiny.push("late")
    assert len(fenced.traceback) < 10


def test_a_closed_writer_refuses_with_a_hint() -> None:
    env, store, tiny = opened(1)
    tiny.close()
    with pytest.raises(StepwellError) as closed:
        tiny.push("late")
    assert "closed" in str(closed.value)
    assert isinstance(open_writer(store, env), Writer)
