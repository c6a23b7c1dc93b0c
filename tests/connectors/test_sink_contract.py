"""What the engine may expect of every sink, wherever it writes to."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stepwell.engine.ports import Delivered
from stepwell.errors import BugError, ConflictError, InvalidError, UnavailableError
from stepwell.model import Transaction
from tests.connectors.conftest import make_place
from tests.connectors.killed import victims
from tests.connectors.sinks import LINEAGE, OTHER, Place, alone, change, in_turn


def write(place: Place, *numbers: int) -> None:
    sink = place.make()
    for number in numbers:
        sink.write(LINEAGE, Transaction(number), alone(number))
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
        sink.write(LINEAGE, Transaction(number), alone(number))
        assert sink.last() == Delivered(LINEAGE, Transaction(number))
        assert last(place) == Delivered(LINEAGE, Transaction(number))
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
        sink.write(LINEAGE, Transaction(number), rows)
        done[number] = rows
        if place.options.get("format") not in ("csv", "json"):
            assert place.content() == place.expected(done)
    sink.close()


def test_a_transaction_is_never_written_twice(place: Place) -> None:
    """Scenario 84, J7: a writer that was fenced may be late with what its successor delivered."""
    write(place, 1, 2, 5)
    late = place.make()
    late.last()
    write(place, 6)
    for sink in (late, place.make()):
        for number in (6, 5, 2):
            # A database may find out only when it commits, and not say more than that it failed.
            with pytest.raises((ConflictError, UnavailableError)):
                sink.write(LINEAGE, Transaction(number), alone(number))
            assert sink.last() == Delivered(LINEAGE, Transaction(6))
        sink.close()
    assert held(place, 1, 2, 5, 6)
    assert last(place) == Delivered(LINEAGE, Transaction(6))


def test_a_number_that_does_not_rise_is_a_conflict(place: Place) -> None:
    """J7: the guard raises what tells the engine to ask how far the sink got."""
    write(place, 3)
    sink = place.make()
    for number in (3, 2):
        with pytest.raises(ConflictError, match=f"holds transaction 3, and was given {number}"):
            sink.write(LINEAGE, Transaction(number), alone(number))
    sink.write(LINEAGE, Transaction(4), alone(4))
    sink.close()
    assert held(place, 3, 4)


def test_the_output_of_another_pipeline_is_refused(place: Place) -> None:
    """J7: a pipeline that was reset begins at 1 again, and must not be dropped as known."""
    write(place, 7)
    sink = place.make()
    with pytest.raises(InvalidError, match=f"another pipeline: expected lineage {OTHER}"):
        sink.write(OTHER, Transaction(8), alone(8))
    with pytest.raises(InvalidError):
        sink.write(OTHER, Transaction(1), alone(1))
    sink.close()
    assert held(place, 7)
    assert last(place) == Delivered(LINEAGE, Transaction(7))


def test_an_empty_change_is_a_bug(place: Place) -> None:
    """J7: a sink gets exactly one non-empty batch per transaction that changed its view."""
    sink = place.make()
    with pytest.raises(BugError):
        sink.write(LINEAGE, Transaction(1), alone(1).slice(0, 0))
    sink.close()
    assert last(place) is None


def rounds_of_killing(place: Place, rounds: int, seed: int) -> None:
    """Kill a writer at a random moment, look, and let the next one go on."""
    chance = random.Random(seed)
    done = finished = 0
    with victims() as process:
        for _ in range(rounds):
            # A write takes some milliseconds; Delta's first one in a process many.
            delay_s = chance.uniform(0, 0.06 if place.kind == "delta" else 0.01)
            numbers = chance.choice([1, 1, 2, 3])
            finished += numbers - 1  # All that it told but the last, at least.
            given = {"options": place.options, "keyed": place.keyed, "first": done + 1}
            begun = process.kill("write", numbers, delay_s, **given)
            found = last(place)
            now = 0 if found is None else int(found.transaction)
            assert now in (begun - 1, begun), "what was begun last is there whole, or not at all"
            if now:
                steps = {n: in_turn(n) for n in range(1, now + 1)}
                assert place.content() == place.expected(steps)
            done = now
    assert done >= finished > 1, "the writer never got anywhere, so nothing was tested"


KILLED = ["files-json", "delta-key", "delta-changes", "postgres-key", "postgres-changes"]


@pytest.mark.parametrize("word", KILLED)
def test_a_writer_killed_inside_its_commit_leaves_all_of_it_or_nothing(
    word: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Scenario 84, J7: SIGKILL anywhere inside a write; each transaction is there exactly once."""
    rounds_of_killing(make_place(word, request, tmp_path), 6 if "delta" in word else 12, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("word", [*KILLED, "files-parquet", "delta-bag"])
def test_a_writer_killed_many_times(
    word: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Scenario 84, J7: the same, often enough to meet the short moments, too."""
    rounds_of_killing(make_place(word, request, tmp_path), 60, seed)
