"""What the engine may expect of every sink, wherever it writes to."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stepwell.engine.outbox import Outbox
from stepwell.engine.ports import Coalesces, Delivered
from stepwell.errors import BugError, ConflictError, InvalidError, UnavailableError
from stepwell.manifest.progress import SinkAt
from stepwell.model import Transaction
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.connectors.conftest import make_place
from tests.connectors.killed import victims
from tests.connectors.sinks import (
    LINEAGE,
    OTHER,
    Place,
    alone,
    change,
    in_turn,
    mark,
    put,
    put_together,
)


def write(place: Place, *numbers: int) -> None:
    sink = place.make()
    for number in numbers:
        put(sink, number, alone(number))
    sink.close()


def last(place: Place) -> Delivered | None:
    sink = place.make()
    try:
        return sink.last()
    finally:
        sink.close()


def held(place: Place, *numbers: int) -> bool:
    """Whether it holds exactly these transactions."""
    return place.content() == place.expected({n: alone(n) for n in numbers})


def test_an_empty_sink_holds_nothing(place: Place) -> None:
    """J7: a sink that was never written to must not claim a transaction, nor be made by asking."""
    assert last(place) is None
    assert last(place) is None


def test_a_sink_says_how_far_it_got(place: Place) -> None:
    """J7: the number is stored with the rows, and another process finds both."""
    sink = place.make()
    for number in (1, 2, 3, 8, 13, 14):
        put(sink, number, alone(number))
        assert sink.last() == mark(number)
        assert last(place) == mark(number)
    sink.close()
    assert held(place, 1, 2, 3, 8, 13, 14)


def test_a_view_is_kept_through_inserts_updates_and_deletes(place: Place) -> None:
    """J7: what the sink holds is the view, or all of its changes, NULLs included."""
    changes = {
        1: change(("ada", "1.00", 1, 1), ("bob", "2.00", 1, 1), (None, "3.00", 1, 1)),
        2: change(("ada", "1.00", 1, -1), ("ada", "1.50", 2, 1)),
        3: change(("bob", "2.00", 1, -1), (None, "3.00", 1, -1), (None, "4.00", 2, 1)),
        4: change((None, "4.00", 2, -1), ("ada", "1.50", 2, -1), ("", "0.00", 0, 1)),
        5: change(("", "0.00", 0, -1)),
        6: change(("x'\";\\,\n\r\t%s{}", "0.10", -1, 1)),
    }
    sink = place.make()
    done = {}
    for number, rows in changes.items():
        put(sink, number, rows)
        done[number] = rows
        if place.options.get("format") not in ("csv", "json"):
            assert place.content() == place.expected(done)
    sink.close()


def test_a_transaction_is_never_written_twice(place: Place) -> None:
    """Scenario 84, J7: a writer that was fenced may be late with what its successor delivered."""
    write(place, 1, 2, 5)
    late = place.make()
    believed = late.last()
    write(place, 6)
    for sink in (late, place.make()):
        for number in (6, 7):
            # A database may find out only when it commits, and not say more than that it failed.
            with pytest.raises((ConflictError, UnavailableError)):
                sink.write(believed, mark(number), alone(number))
            assert sink.last() == mark(6)
        sink.close()
    assert held(place, 1, 2, 5, 6)
    assert last(place) == mark(6)


WRONG = {
    "it went back": mark(3),
    "it ran ahead": mark(1),
    "it is empty": None,
    "a copy": mark(2, history="that"),
}


@pytest.mark.parametrize("word", WRONG)
def test_a_sink_that_holds_another_mark_than_believed_changes_nothing(
    place: Place, word: str
) -> None:
    """J16, scenario 99, scenario 101: the mark is compared for equality where it is replaced."""
    write(place, 1, 2)
    sink = place.make()
    with pytest.raises(ConflictError, match=r"holds transaction 2 \(entry 9"):
        sink.write(WRONG[word], mark(4), alone(4))
    sink.last()
    with pytest.raises(ConflictError):
        sink.write(WRONG[word], mark(4), alone(4))
    assert sink.last() == mark(2)
    sink.write(mark(2), mark(4), alone(4))
    sink.close()
    assert held(place, 1, 2, 4)


def test_a_sink_that_was_emptied_is_not_begun_again_in_the_middle(place: Place) -> None:
    """J16, scenario 99: dropped behind the connection, it would hold the last changes only."""
    sink = place.make()
    sink.last()
    with pytest.raises(ConflictError, match="holds nothing, not transaction 7"):
        sink.write(mark(7), mark(8), alone(8))
    assert sink.last() is None
    sink.close()


def test_numbers_that_do_not_rise_are_a_bug(place: Place) -> None:
    """J7: the guard raises, and nothing is written."""
    write(place, 3)
    sink = place.make()
    for number in (3, 2):
        with pytest.raises(BugError, match="rising transactions"):
            sink.write(mark(3), mark(number), alone(number))
    sink.close()
    assert held(place, 3)


def test_the_output_of_another_pipeline_is_refused(place: Place) -> None:
    """J7: a pipeline that was reset begins at 1 again, and must not be dropped as known."""
    write(place, 7)
    sink = place.make()
    with pytest.raises(InvalidError, match=f"another pipeline: expected lineage {OTHER}"):
        put(sink, 8, alone(8), OTHER)
    with pytest.raises(InvalidError):
        put(sink, 1, alone(1), OTHER)
    sink.close()
    assert held(place, 7)
    assert last(place) == mark(7)


def test_an_empty_change_is_a_bug(place: Place) -> None:
    """J7: a sink gets exactly one non-empty batch per transaction that changed its view."""
    sink = place.make()
    with pytest.raises(BugError):
        put(sink, 1, alone(1).slice(0, 0))
    sink.close()
    assert last(place) is None


COALESCING = [
    *("files-coalesce", "delta-key", "delta-bag", "delta-changes"),
    *("iceberg-key", "iceberg-changes"),
    *("postgres-key", "postgres-changes", "kafka-key", "kafka-changes"),
]


@pytest.mark.parametrize("word", COALESCING)
def test_transactions_that_come_together_leave_what_they_leave_one_by_one(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """J7: in whatever groups they come; a log of changes keeps the number of each."""
    place = make_place(word, request, tmp_path)
    chance, sink, number = random.Random(word), place.make(), 0
    for size in [chance.choice([1, 2, 3, 12]) for _ in range(8)]:
        put_together(sink, range(number + 1, number + size + 1), in_turn)
        number += size
        assert sink.last() == mark(number)
        steps = {n: in_turn(n) for n in range(1, number + 1)}
        assert place.content() == place.expected(steps)
    sink.close()


@pytest.mark.parametrize("word", COALESCING)
def test_transactions_that_cancel_out_move_the_mark(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """J7: nothing is left to write, and the number must be there anyway."""
    place = make_place(word, request, tmp_path)
    sink = place.make()
    put(sink, 1, alone(1))
    come = change(("x", "1.00", 1, 1))
    go = change(("x", "1.00", 1, -1))
    put_together(sink, [2, 3], lambda number: come if number == 2 else go)
    assert sink.last() == mark(3)
    put(sink, 4, alone(4))
    sink.close()
    assert last(place) == mark(4)
    assert place.content() == place.expected({1: alone(1), 2: come, 3: go, 4: alone(4)})


@pytest.mark.parametrize("word", COALESCING)
def test_transactions_that_come_together_are_compared_as_one_is(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """J16: upon another mark than believed nothing is written; numbers rise, and none is empty."""
    place = make_place(word, request, tmp_path)
    write(place, 1, 2)
    sink = place.make()
    assert isinstance(sink, Coalesces)
    pair = [(mark(4), alone(4)), (mark(5), alone(5))]
    for believed in WRONG.values():
        with pytest.raises(ConflictError):
            sink.write_together(believed if believed != mark(3) else mark(1), pair)
    for wrong in ([], [pair[1], pair[0]], [pair[0], (mark(5), alone(5).slice(0, 0))]):
        with pytest.raises(BugError):
            sink.write_together(mark(2), wrong)
    sink.close()
    assert held(place, 1, 2)


def test_a_thousand_transactions_behind_a_delta_table_makes_one_commit(tmp_path: Path) -> None:
    """J7: each commit costs a file in the table's log and a merge; pinned by counting them."""
    env = ManualEnv()
    options = {"type": "delta", "path": str(tmp_path), "mode": "table", "key": "customer"}
    place = Place("delta", dict(options), keyed=True)
    sink = place.make()
    outbox = Outbox(sink, LINEAGE, MemoryStore(env), env, at=SinkAt("out"))
    outbox.settle(Transaction(0))
    for number in range(1, 1001):
        outbox.offer(mark(number), in_turn(number))
    assert outbox.status().pending == 1000
    assert outbox.deliver()
    commits = list((tmp_path / "_delta_log").glob("*.json"))
    assert len(commits) == 2, "the table was made, and filled"
    assert place.content() == place.expected({n: in_turn(n) for n in range(1, 1001)})


def rounds_of_killing(place: Place, rounds: int, seed: int, together: int = 1) -> None:
    """Kill a writer at a random moment, look, and let the next one go on."""
    chance = random.Random(seed)
    done = finished = 0
    with victims() as process:
        for _ in range(rounds):
            # A write takes some milliseconds; Delta's first one in a process many.
            delay_s = chance.uniform(
                0, 0.06 if place.kind in ("delta", "iceberg", "kafka") else 0.01
            )
            numbers = chance.choice([2, 3] if place.kind == "kafka" else [1, 1, 2, 3])
            finished += numbers - 1  # All that it told but the last, at least.
            given = {"options": place.options, "keyed": place.keyed, "first": done + 1}
            given["together"] = together
            begun = process.kill("write", numbers, delay_s, **given)
            found = last(place)
            now = 0 if found is None else int(found.transaction)
            assert now in (begun - together, begun), (
                "what was begun last is there whole, or not at all"
            )
            if now:
                steps = {n: in_turn(n) for n in range(1, now + 1)}
                assert place.content() == place.expected(steps)
            done = now
    assert done >= finished > 1, "the writer never got anywhere, so nothing was tested"


KILLED = [
    *("files-json", "files-json-bulk"),
    *("delta-key", "delta-changes", "postgres-key", "postgres-changes"),
    *("iceberg-key", "iceberg-changes", "kafka-key", "kafka-changes"),
]


@pytest.mark.parametrize("word", KILLED)
def test_a_writer_killed_inside_its_commit_leaves_all_of_it_or_nothing(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Scenario 84, J7: SIGKILL anywhere inside a write; each transaction is there exactly once."""
    rounds = 4 if "kafka" in word else 6 if "delta" in word or "iceberg" in word else 12
    rounds_of_killing(make_place(word, request, tmp_path), rounds, seed=7)


@pytest.mark.parametrize(
    "word", ["files-coalesce", "delta-key", "iceberg-key", "postgres-key", "kafka-key"]
)
def test_a_writer_killed_inside_a_commit_of_several_leaves_all_of_them_or_none(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Scenario 84, J7: SIGKILL anywhere; never some of the transactions of one commit."""
    rounds = 3 if "kafka" in word else 5
    rounds_of_killing(make_place(word, request, tmp_path), rounds, seed=11, together=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("word", [*KILLED, "files-parquet", "delta-bag"])
def test_a_writer_killed_many_times(
    word: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Scenario 84, J7: the same, often enough to meet the short moments, too."""
    rounds_of_killing(make_place(word, request, tmp_path), 60, seed)
    if word in COALESCING:
        rounds_of_killing(make_place(word, request, tmp_path / "more"), 60, seed, together=3)
