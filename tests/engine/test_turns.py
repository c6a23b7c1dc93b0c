"""Taking turns: one at a time, in the order of arrival, and nobody is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stepwell.engine.turns import Turns
from stepwell.errors import BugError, InvalidError


def in_line(turns: Turns, count: int) -> None:
    waiting = threading.Event()
    for _ in range(6000):
        if len(turns._line) == count:
            return
        waiting.wait(0.01)
    raise AssertionError(f"{count} threads did not come in a minute")


def start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_turns_are_taken_in_the_order_of_arrival() -> None:
    """J3: a loop that takes the next turn at once goes to the end of the line."""
    turns = Turns()
    seen: list[int] = []

    def work(number: int) -> None:
        turns.take("test")
        seen.append(number)
        turns.give_back()

    turns.take("test")
    threads = []
    for number in range(5):
        threads.append(start(lambda: work(number)))
        in_line(turns, number + 1)
    turns.give_back()
    turns.take("the loop again")
    assert seen == [0, 1, 2, 3, 4]
    turns.give_back()
    for thread in threads:
        thread.join(timeout=60)
    assert not turns.taken


def test_only_one_has_the_turn() -> None:
    """J3: two transactions at once would both build upon the same state."""
    turns = Turns()
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            turns.take("test")
            inside += 1
            most = max(most, inside)
            inside -= 1
            turns.give_back()

    threads = [start(work) for _ in range(8)]
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert most == 1
    assert not turns.taken


def test_a_thread_that_has_the_turn_is_told_rather_than_hung() -> None:
    """J10: a push beside one's own open transaction would wait for itself."""
    turns = Turns()
    turns.take("first")
    assert turns.mine
    with pytest.raises(InvalidError, match="second: this thread has the pipeline already"):
        turns.take("second")
    other = start(turns.give_back)
    other.join(timeout=60)
    assert not turns.taken, "another thread may give it back"
    with pytest.raises(BugError, match="given back once"):
        turns.give_back()


def test_a_thread_interrupted_in_line_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 38: the next in line is called, not the one that went away."""
    turns = Turns()
    turns.take("test")
    failed: list[str] = []

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    def interrupted() -> None:
        try:
            turns.take("test")
        except KeyboardInterrupt:
            failed.append("interrupted")

    event = threading.Event
    monkeypatch.setattr("stepwell.engine.turns.threading.Event", Interrupted)
    thread = threading.Thread(target=interrupted)
    thread._started = event()  # type: ignore[attr-defined]
    thread.start()
    thread.join(timeout=60)
    monkeypatch.undo()
    assert failed == ["interrupted"]
    assert not turns._line
    turns.give_back()
    turns.take("test")
    turns.give_back()
