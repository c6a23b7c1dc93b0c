"""A pipeline killed at every call on store, sinks, sources and executor, then opened again.

The work is repeated until it is done, each piece only if it is not there yet. Whatever happened,
tables, views, dead letters and every sink must be as if nothing had.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.engine.sources import SourceStatus
from stepwell.errors import StepwellError, UnavailableError, UnknownOutcomeError
from stepwell.lsm.dead_letter import ERRORS
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore
from stepwell.testing import (
    Crash,
    FaultyStore,
    ManualEnv,
    SimulatedDisk,
    When,
    crash_at,
    fail_at,
)
from tests.engine.doubles import SETTINGS, Feed, World, click, contents, everything, order
from tests.engine.test_crash import STRIDES, Plug

Acknowledged = list[tuple[str, tuple[object, ...]]]
Relations = dict[str, list[tuple[object, ...]]]


def world() -> World:
    made = World()
    made.feeds = {
        "files": Feed("orders")
        .put(order(1, "a", 5), order(2, "b", 6), order(1, "a", 7), order(3, "c", 1))
        .delete({"id": 2})
        .bad("{not json")
        .put(order(4, "a", 2)),
        "socket": Feed("clicks", again=False).put(
            click("a", "/x"), click("a", "/y"), click("b", "/x")
        ),
    }
    return made


def work(pipeline: Pipeline, acknowledged: Acknowledged) -> None:
    """Everything a pipeline does. Done again it does only what is missing."""
    pipeline.run(once=True)
    push(pipeline, acknowledged, order(10, "a", 1))
    if not there(pipeline, "orders", 11):
        with pipeline.transaction() as both:
            both.push("orders", [order(11, "b", 4)])
            both.push("orders", [order(12, "b", 4)])
            both.push("clicks", [click("b", "/z"), click("b", "/z")])
        acknowledged += [("orders", (11, "b", 4)), ("orders", (12, "b", 4))]
    aborted = pipeline.transaction()
    aborted.push("orders", [order(99, "never", 1)])
    aborted.take()
    aborted.abort()
    pipeline.flush()
    push(pipeline, acknowledged, order(13, None, None))
    if there(pipeline, "orders", 10):
        pipeline.push("orders", delete=[{"id": 10}])
    push(pipeline, [], order(14, "d", 3))
    pipeline.close()


def push(pipeline: Pipeline, acknowledged: Acknowledged, row: dict[str, object]) -> None:
    # Row 14 comes last: where it is, the others were there, and 10 is gone for good.
    if there(pipeline, "orders", row["id"]) or there(pipeline, "orders", 14):
        return
    if row["id"] == 10 and there(pipeline, "orders", 13):
        return
    pipeline.push("orders", [row])
    if row["id"] != 10:
        acknowledged.append(("orders", tuple(row.values())))


def there(pipeline: Pipeline, table: str, id: object) -> bool:
    return any(row[0] == id for row in contents(pipeline, table))


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that can be seen of a pipeline from outside."""

    relations: Relations
    dead_letters: Mapping[str, int]
    sources: tuple[SourceStatus, ...]
    transaction: int
    batches: dict[str, list[object]]


def outcome(made: World, settings: Settings) -> Outcome:
    pipeline = made.open(settings=settings)
    made.check(pipeline)
    status = pipeline.status()
    batches = {name: list(shelf.batches) for name, shelf in made.shelves.items()}
    # Waiting for a call that failed moves the clock; `test_letter_crash.py` compares times.
    relations = without(everything(pipeline), 1)
    if settings.latency_s_max:
        # Where a crash cuts a transaction, it is two: only the sum is the same.
        return Outcome(without(relations, 1), status.dead_letters, status.sources, 0, {})
    return Outcome(relations, status.dead_letters, status.sources, status.transaction, batches)


def without(relations: Relations, columns: int) -> Relations:
    """Without the first columns of dead letters, which are time and transaction."""
    return {
        name: sorted((row[columns:] for row in rows), key=repr) if ERRORS in name else rows
        for name, rows in relations.items()
    }


def uninterrupted(settings: Settings = SETTINGS) -> tuple[Outcome, int]:
    """The same without any fault, and how many calls there are to die at."""
    made = world()
    counting = FaultyStore(made.store)
    work(made.open(counting, settings), [])
    return outcome(made, settings), len(counting.calls)


def finish(made: World, expected: Outcome, acknowledged: Acknowledged, settings: Settings) -> None:
    made.env = ManualEnv(77)
    pipeline = made.open(settings=settings)
    for table, row in acknowledged:
        assert row in contents(pipeline, table), f"{row} was acknowledged and is lost"
    assert not there(pipeline, "orders", 99)
    work(pipeline, [])
    assert outcome(made, settings) == expected


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_the_outcome_is_that_of_a_run_without_a_crash(
    when: When, stride: int
) -> None:
    """Scenarios 26-30, 34, 73, 75, 83, 84, J1, J3, J4, J6, J7, J10: whatever call of the store, a
    sink, a source or the executor a process dies at, tables, views, dead letters and sinks are, to
    the number and the row, those of a run that did not die; nothing acknowledged is lost.
    """
    expected, calls = uninterrupted()
    assert calls > 110
    for number in range(1 + (when == "after"), calls + 1, stride):
        made, acknowledged = world(), list[tuple[str, tuple[object, ...]]]()
        dying = FaultyStore(made.store, crash_at(number, when))
        with pytest.raises(Crash):
            work(made.open(dying), acknowledged)
        finish(made, expected, acknowledged, SETTINGS)


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_while_transactions_stay_open(when: When, stride: int) -> None:
    """Scenario 83, J4: a transaction of the loop that the crash left open is committed as far as it
    was recorded; state and sinks come out the same, though in other batches.
    """
    settings = replace(SETTINGS, latency_s_max=60.0)
    expected, calls = uninterrupted(settings)
    for number in range(1 + (when == "after"), calls + 1, stride):
        made, acknowledged = world(), list[tuple[str, tuple[object, ...]]]()
        dying = FaultyStore(made.store, crash_at(number, when))
        with pytest.raises(Crash):
            work(made.open(dying, settings), acknowledged)
        finish(made, expected, acknowledged, settings)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_again_while_recovering(when: When) -> None:
    """Scenario 30, J2, J4: a crash in the middle of replay is a crash like any other."""
    expected, calls = uninterrupted()
    for number in range(40, calls + 1, 17):
        made, acknowledged = world(), list[tuple[str, tuple[object, ...]]]()
        with pytest.raises(Crash):
            work(made.open(FaultyStore(made.store, crash_at(number, "after"))), acknowledged)
        for second in range(1, 60, 5):
            with suppress(Crash):
                made.open(FaultyStore(made.store, crash_at(second, when)))
        finish(made, expected, acknowledged, SETTINGS)


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_fails_at_any_point_loses_and_doubles_nothing(when: When, stride: int) -> None:
    """Scenarios 15-18, 38, 88, K1: after any failed call or lost answer, memory and store agree, or
    the handle is ended and opening again completes the work.
    """
    expected, calls = uninterrupted()
    for number in range(1 + (when == "after"), calls + 1, stride):
        made, acknowledged = world(), list[tuple[str, tuple[object, ...]]]()
        failing = FaultyStore(made.store, fail_at(number, when))
        with suppress(UnavailableError, UnknownOutcomeError):
            work(made.open(failing), acknowledged)
        wanted, settings = expected, SETTINGS
        if failing.calls[number - 1].operation == "poll":
            # The other source goes on alone, so that what comes in is cut elsewhere.
            settings = replace(SETTINGS, latency_s_max=1e-9)
            relations = without(expected.relations, 1)
            wanted = replace(expected, relations=relations, transaction=0, batches={})
        try:
            finish(made, wanted, acknowledged, settings)
        except (AssertionError, StepwellError) as error:
            raise AssertionError(f"call {failing.calls[number - 1]}: {error}") from error


def test_flushing_at_every_transaction_or_never_makes_no_difference() -> None:
    """J6, scenario 31: when the replay position moves is nobody's business."""
    expected, _ = uninterrupted()
    for bytes_max, every_s in ((0, 0.0), (1, 1e9), (10**9, 1e9)):
        settings = replace(SETTINGS, memory_bytes_max=bytes_max, checkpoint_every_s=every_s)
        made = world()
        work(made.open(settings=settings), [])
        assert outcome(made, SETTINGS) == expected


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_of_a_separate_journal_store(when: When, stride: int) -> None:
    """Scenarios 26, 27, J3: a journal store of its own has its own calls to die at."""
    expected, _ = uninterrupted()
    counted = world()
    counting = FaultyStore(MemoryStore(counted.env, "journal"))
    work(counted.open(journal_store=counting), [])
    for number in range(1 + (when == "after"), len(counting.calls) + 1, stride):
        made, acknowledged = world(), list[tuple[str, tuple[object, ...]]]()
        journal = MemoryStore(made.env, "journal")
        dying = FaultyStore(journal, crash_at(number, when))
        with pytest.raises(Crash):
            work(made.open(journal_store=dying), acknowledged)
        pipeline = made.open(journal_store=journal)
        for table, row in acknowledged:
            assert row in contents(pipeline, table)
        work(pipeline, [])
        again = made.open(journal_store=journal)
        made.check(again)
        assert without(everything(again), 1) == expected.relations
        for name, batches in expected.batches.items():
            assert made.shelves[name].batches == batches


@STRIDES
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_power_cut_at_any_system_call_loses_nothing_acknowledged(
    after: bool, stride: int
) -> None:
    """Scenario 89, K8: what was not synced is gone or torn; rows and output are all there, once."""
    expected, _ = uninterrupted()
    counted = world()
    plug = Plug(SimulatedDisk(counted.env), None)
    counted.store = LocalStore("/data/pipeline", counted.env, plug)  # type: ignore[arg-type]
    work(counted.open(), [])
    assert plug.count > 200
    for number in range(1 + after, plug.count + 1, 3 * stride):
        made, acknowledged = world(), list[tuple[str, tuple[object, ...]]]()
        disk = SimulatedDisk(made.env, seed=number)
        dying = Plug(disk, number, after=after)
        made.store = LocalStore("/data/pipeline", made.env, dying)  # type: ignore[arg-type]
        with pytest.raises(Crash):
            work(made.open(), acknowledged)
        disk.cut_power()
        made.store = LocalStore("/data/pipeline", made.env, disk)
        finish(made, expected, acknowledged, SETTINGS)
