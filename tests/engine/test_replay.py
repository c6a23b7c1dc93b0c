"""Replay: recorded inputs, boundaries and times; what differs is named and stops everything."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.engine.events import Replayed, RolledBack, Settled
from stepwell.engine.open import open_writer
from stepwell.engine.payload import PUSHED, input_line
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Intake, Limits
from stepwell.engine.replay import Sum, compare, sum_inputs
from stepwell.errors import CorruptError, ReplayMismatchError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.journal import paths
from stepwell.journal.entry import Draft, Input, Kind
from stepwell.journal.log import Log
from stepwell.lsm.change import Change
from stepwell.manifest.manifest import Manifests
from stepwell.model import Checksum, Position, Transaction
from stepwell.testing import Call, Crash, Fault, FaultyStore, crash_at
from tests.engine.doubles import SETTINGS, SQL, Feed, World, click, contents, everything, order

TX = Transaction
A, B = Checksum("a" * 32), Checksum("b" * 32)
TEXTS = (pa.string(), pa.large_string())
Row = dict[str, object]


def fed() -> World:
    world = World()
    world.feeds = {"files": Feed("orders").put(*(order(id, "a", id) for id in range(6)))}
    return world


def lost(world: World) -> None:
    """A process that takes everything in and dies without having flushed."""
    pipeline = world.open()
    with pytest.raises(Crash):
        pipeline._session.checkpointer.flush = crash  # type: ignore[method-assign]
        pipeline.run(once=True)


def crash() -> bool:
    raise Crash


def test_a_file_changed_after_it_was_read_stops_replay() -> None:
    """Scenario 86, J5: source, transaction, both counts and both checksums are named, and nothing
    of it is published.
    """
    world = fed()
    lost(world)
    world.shelves.clear()
    world.feeds["files"].events[4] = ("put", order(4, "a", 400))
    with pytest.raises(ReplayMismatchError) as mismatch:
        world.open(sinks={})
    text = str(mismatch.value)
    assert "transaction 2: source files recorded 3 rows with checksum" in text
    assert "replay found 3 rows with checksum" in text
    assert len({part[:32] for part in text.split("checksum ")[1:]}) == 2
    world.feeds["files"].events[4] = ("put", order(4, "a", 4))
    assert len(contents(world.open(sinks={}), "orders")) == 6


def test_a_file_cut_off_or_gone_stops_replay_and_names_the_transaction() -> None:
    """Scenario 86, J5: what the source says is passed on together with the transaction."""
    world = fed()
    lost(world)
    del world.feeds["files"].events[5]
    with pytest.raises(ReplayMismatchError, match="transaction 2, source files: files ends before"):
        world.open(sinks={})
    world.feeds.clear()
    with pytest.raises(ReplayMismatchError, match=r"transaction 1, source files: .* no such"):
        world.open(sinks={})


def test_a_transaction_whose_input_differs_is_not_published() -> None:
    """Scenario 86, J6: what came before it is, and the sink can go on once the file is back."""
    world = fed()
    pipeline = world.open(sinks={"one": "revenue"})
    world.sinks["one"].down = True
    pipeline.run(once=True, max_transactions=1)
    lost_after = len(world.shelves["one"].batches)
    pipeline._session.settings = replace(SETTINGS, checkpoint_every_s=1e9)
    with pytest.raises(Crash):
        pipeline._session.checkpointer.flush = crash  # type: ignore[method-assign]
        pipeline.run(once=True)
    assert lost_after == len(world.shelves["one"].batches) == 0
    world.feeds["files"].events[5] = ("put", order(5, "b", 5))
    with pytest.raises(ReplayMismatchError, match="transaction 2"):
        world.open(sinks={"one": "revenue"})
    assert [number for number, _ in world.shelves["one"].batches] in ([], [1])
    world.feeds["files"].events[5] = ("put", order(5, "a", 5))
    with world.open(sinks={"one": "revenue"}) as again:
        world.check(again)
    assert [number for number, _ in world.shelves["one"].batches] == [1, 2]


@pytest.mark.parametrize(
    ("recorded", "found", "said"),
    [
        ({"x": Sum(1, A)}, {"x": Sum(2, A)}, f"recorded 1 rows with checksum {A}, replay found 2"),
        ({"x": Sum(1, A)}, {"x": Sum(1, B)}, f"found 1 rows with checksum {B}"),
        ({"x": Sum(1, A)}, {}, "source x is in the journal only"),
        ({}, {"x": Sum(1, A)}, "source x is in replay, but not in the journal"),
    ],
)
def test_every_difference_is_named(
    recorded: dict[str, Sum], found: dict[str, Sum], said: str
) -> None:
    """J5: a source present on one side only is named as such."""
    with pytest.raises(ReplayMismatchError, match="transaction 7") as mismatch:
        compare(TX(7), recorded, found)
    assert said in str(mismatch.value)
    compare(TX(7), recorded, recorded)


def test_checksums_are_summed_up_per_source_over_the_steps_of_a_transaction() -> None:
    """J5: how a transaction was cut into steps makes no difference."""
    rows = pa.table({"a": [1, 2, 3]})
    whole = input_line(Intake("x", "t", Change(rows), 3, 1, "r"))
    parts = [input_line(Intake("x", "t", Change(rows.slice(at, 1)), 1, 1, "r")) for at in range(3)]
    assert sum_inputs(parts) == sum_inputs([whole])


def test_transactions_are_fed_together_where_no_sink_needs_their_output() -> None:
    """J2, J6: faster, and the same state; where a sink does, one by one at their boundaries."""
    world = fed()
    lost(world)
    replayed = [event for event in world.events if isinstance(event, Replayed)]
    assert replayed == []
    alone = world.open(sinks={})
    assert [e for e in world.events if isinstance(e, Replayed)] == [Replayed(TX(2), 2, 6)]
    together = everything(alone)
    world.events.clear()
    one_by_one = world.open(settings=replace(SETTINGS, replay_rows_max=1), sinks={})
    assert [e.together for e in world.events if isinstance(e, Replayed)] == [1, 1]
    assert everything(one_by_one) == together


CUSTOMERS = st.sampled_from(["a", "b", None])
ORDERS = st.builds(order, st.integers(0, 3), CUSTOMERS, st.sampled_from([0, 1, None]))
CLICKS = st.builds(click, st.sampled_from(["a", "b"]), st.sampled_from(["/", "/x"]))
KEYS = st.builds(lambda id: {"id": id}, st.integers(0, 3))
STEP = st.one_of(
    st.tuples(
        st.just("orders"),
        st.lists(ORDERS, max_size=3),
        st.lists(KEYS, max_size=3),
        st.lists(KEYS, max_size=1),
    ),
    st.tuples(
        st.just("clicks"),
        st.lists(CLICKS, max_size=3),
        st.lists(CLICKS, max_size=3),
        st.just([]),
    ),
).filter(lambda step: any(step[1:]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(STEP, min_size=1, max_size=3), min_size=1, max_size=8), st.integers(1, 9))
def test_fed_together_or_apart_the_state_is_the_same(
    transactions: list[list[tuple[str, list[Row], list[Row], list[Row]]]], rows_max: int
) -> None:
    """J2, J13: keys replaced, deleted, discarded and put again, bags that shrink and grow; a delete
    is a dead letter if its row was not there when it happened.
    """
    world = World()
    pipeline = world.open(sinks={})
    for steps in transactions:
        with pipeline.transaction() if len(steps) > 1 else nullcontext(pipeline) as into:
            for table, put, gone, away in steps:
                into.push(table, put or None, delete=gone or None, discard=away or None)
    before = everything(pipeline)
    dead = pipeline.status().dead_letters
    for limit, batches in ((1, None), (rows_max, None), (10**6, [len(transactions)])):
        world.events.clear()
        again = world.open(settings=replace(SETTINGS, replay_rows_max=limit), sinks={})
        assert everything(again) == before
        assert again.status().dead_letters == dead
        fed = [event.together for event in world.events if isinstance(event, Replayed)]
        assert sum(fed) == len(transactions)
        assert batches is None or fed == batches, "deletes are fed together as well"


def test_rows_whose_types_differ_are_not_fed_together() -> None:
    """J2: of values with different types nobody knows here whether they are equal in the table."""
    world = World()
    pipeline = world.open(sinks={})
    pages = [pa.table({"customer": ["a"], "page": pa.array(["/"], kind)}) for kind in TEXTS]
    for page in pages:
        pipeline.push("clicks", page)
    pipeline.push("clicks", delete=pages[0])
    with pipeline.transaction() as transaction:
        transaction.push("clicks", pages[0])
        transaction.push("clicks", pages[1].set_column(1, "page", pages[0].column(1)))
    before = everything(pipeline)
    world.events.clear()
    assert everything(world.open(sinks={})) == before
    fed = [event.together for event in world.events if isinstance(event, Replayed)]
    assert fed == [1, 1, 2]


def test_a_file_changed_among_deletes_is_named() -> None:
    """J5: what is fed together is compared one by one, before any of it is computed."""
    world = World()
    feed = Feed("orders").put(*(order(id, "a", id) for id in range(3)))
    world.feeds = {"files": feed.delete({"id": 1}, {"id": 7}, {"id": 2}).put(order(1), order(2))}
    lost(world)
    state = everything(world.open(sinks={}))
    feed.events[3] = ("delete", {"id": 0})
    with pytest.raises(ReplayMismatchError, match="transaction 2: source files recorded 3 rows"):
        world.open(sinks={})
    feed.events[3] = ("delete", {"id": 1})
    world.events.clear()
    again = world.open(sinks={})
    assert everything(again) == state
    assert len(state["orders$errors"]) == 1
    assert [e.together for e in world.events if isinstance(e, Replayed)] == [3]


def test_the_recorded_time_is_the_time_of_replay() -> None:
    """J11: what a view takes for now does not move when it is computed again."""
    world = World()
    pipeline = world.open(settings=replace(SETTINGS, checkpoint_every_s=1e9), sinks={})
    times = []

    def spy(inner: object) -> object:
        execute = inner.execute  # type: ignore[attr-defined]

        def run(changes: object, time: object, bad: object = None) -> object:
            times.append(time)
            return execute(changes, time, bad)

        inner.execute = run  # type: ignore[attr-defined]
        return inner

    spy(pipeline._session.state.executor)
    recorded = []
    for id in range(2):
        world.env.advance(100)
        recorded.append(world.env.now())
        pipeline.push("orders", [order(id)], delete=[{"id": 7}])
    assert times == recorded
    times.clear()
    world.env.advance(1000)
    Pipeline(
        world.store,
        world.env,
        executor=lambda store, env: spy(ReferenceExecutor(SQL, store, env)),  # type: ignore[arg-type,return-value]
        settings=replace(SETTINGS, replay_rows_max=1),
    )
    assert times == recorded


def test_an_explicit_transaction_left_open_is_rolled_back_and_its_sources_rewound() -> None:
    """Scenario 83, J4, J10: at every step; its files need not even be there any more."""
    for steps in range(4):
        world = fed()
        pipeline = world.open()
        transaction = pipeline.transaction()
        for step in range(steps):
            if step == 1:
                assert transaction.take() == 3
            else:
                transaction.push("orders", [order(100 + step)])
        kept, world.feeds["files"].events = world.feeds["files"].events, []
        again = world.open()
        assert contents(again, "orders") == []
        assert Settled(TX(1), 0, committed=False) in world.events
        world.feeds["files"].events = kept
        again.run(once=True)
        assert [row[0] for row in contents(again, "orders")] == list(range(6))
        world.check(again)
        assert [n for n, _ in world.shelves["revenue"].batches] == [1, 2]
        assert world.open().transaction_number == 2


def test_an_automatic_transaction_left_open_is_verified_and_committed() -> None:
    """J4: as far as it was recorded, because that much was acknowledged."""
    world = fed()
    latency = replace(SETTINGS, latency_s_max=100.0, limits=Limits(2), checkpoint_every_s=1e9)
    barrier = world.open(settings=latency, sinks={"one": "revenue"})._session.tip.position
    # Its own barrier, the first step; then it dies.
    third = ("put_new", paths.entry(Position(barrier + 3)))

    def dies(call: Call) -> Fault | None:
        return Fault("crash") if (call.operation, call.path) == third else None

    dying = FaultyStore(world.store, dies)
    with pytest.raises(Crash):
        world.open(dying, latency, sinks={"one": "revenue"}, strike=False).run(once=True)
    recorded = [
        found.entry.draft
        for position in range(1, 20)
        if (found := Log(world.store).read(Position(position))) is not None
        and not found.entry.is_barrier
    ]
    assert recorded
    assert not any(draft.closes for draft in recorded)
    assert [draft.step for draft in recorded] == list(range(1, len(recorded) + 1))
    taken = sum(item.rows for draft in recorded for item in draft.inputs)
    changed, world.feeds["files"].events[0] = world.feeds["files"].events[0], ("put", order(77))
    with pytest.raises(ReplayMismatchError, match="transaction 1"):
        world.open(sinks={"one": "revenue"})
    world.feeds["files"].events[0] = changed
    again = world.open(sinks={"one": "revenue"})
    assert len(contents(again, "orders")) == taken
    assert Settled(TX(1), len(recorded), committed=True) in world.events
    assert [n for n, _ in world.shelves["one"].batches] == [1]
    assert world.open(sinks={"one": "revenue"}).transaction_number == 1


def test_what_was_aborted_stays_so_and_its_number_is_used_again() -> None:
    """J10, J1: an abort leaves no trace, not even a gap."""
    world = fed()
    pipeline = world.open()
    with pytest.raises(ZeroDivisionError), pipeline.transaction() as transaction:
        transaction.push("orders", [order(50)])
        transaction.take()
        raise ZeroDivisionError
    assert RolledBack(TX(1), 2) in world.events
    assert pipeline.push("orders", [order(60)]) == 1
    pipeline.run(once=True)
    state = everything(pipeline)
    assert 50 not in [row[0] for row in state["orders"]]
    again = world.open()
    assert everything(again) == state
    world.check(again)


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (Draft(Kind.STEP, TX(2), 1, True, World().env.now()), "transaction"),
        (Draft(Kind.STEP, TX(1), 2, True, World().env.now()), "step"),
        (Draft(Kind.CLOSE, TX(1), 1, True, World().env.now()), "step"),
        (Draft(Kind.ABORT, TX(1), 1, False, World().env.now()), "step"),
    ],
)
def test_entries_that_make_no_sense_are_named(draft: Draft, field: str) -> None:
    """K2: a journal that another hand wrote is refused, not guessed at."""
    world = World()
    world.open(sinks={}).close()
    open_writer(world.store, world.env).append(draft)
    with pytest.raises(CorruptError, match="journal entry") as corrupt:
        world.open(sinks={})
    assert corrupt.value.field == field


def test_a_damaged_payload_is_named() -> None:
    """K2: the entry's seal is right, and what is in it is not."""
    world = World()
    world.open(sinks={}).close()
    item = Input(PUSHED, "orders", 1, A, None, b"not arrow")
    now = world.env.now()
    open_writer(world.store, world.env).append(Draft(Kind.STEP, TX(1), 1, True, now, (item,)))
    with pytest.raises(CorruptError, match="the data of source push"):
        world.open(sinks={})


def test_a_long_replay_is_flushed_on_the_way() -> None:
    """Scenario 30, J2: and a crash in it begins again from what was flushed, not from the start."""
    world = World()
    pipeline = world.open(sinks={"one": "revenue"})
    for id in range(6):
        pipeline.push("orders", [order(id, "a", id)])
    expected = everything(pipeline)
    small = replace(SETTINGS, memory_bytes_max=1, replay_rows_max=2)
    flushed = set()
    for number in range(1, 200):
        faulty = FaultyStore(world.store, crash_at(number, "after"))
        try:
            world.open(faulty, small, sinks={"one": "revenue"}, strike=False)
        except Crash:
            latest = Manifests(world.store, world.env).latest()
            assert latest is not None
            flushed.add(latest.manifest.transaction)
            if latest.manifest.transaction >= 4:
                break
        else:
            break
    assert len(flushed) > 2, "it got further each time"
    again = world.open(sinks={"one": "revenue"})
    assert everything(again) == expected
    world.check(again)
    assert [n for n, _ in world.shelves["one"].batches] == [1, 2, 3, 4, 5, 6]


def test_opening_again_and_again_costs_nothing_and_moves_nothing() -> None:
    """Scenarios 34, 35: barriers only; no transaction, no batch, no run."""
    world = fed()
    with world.open() as pipeline:
        pipeline.run(once=True)
        state = everything(pipeline)
    runs = len(world.store.list("runs/"))
    for _ in range(20):
        world.open()
    with world.open() as pipeline:
        assert everything(pipeline) == state
        assert not pipeline.flush()
    assert len(world.store.list("runs/")) == runs
    assert [n for n, _ in world.shelves["revenue"].batches] == [1, 2]
