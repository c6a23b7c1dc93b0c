"""Taking turns: one at a time, in the order of arrival, and nobody is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stepwell.engine.fair_lock import FairLock
from stepwell.errors import BugError, InvalidError


def in_line(turns: FairLock, count: int) -> None:
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
    turns = FairLock()
    seen: list[int] = []

    def work(number: int) -> None:
        turns.acquire("test")
        seen.append(number)
        turns.release()

    turns.acquire("test")
    threads = []
    for number in range(5):
        threads.append(start(lambda: work(number)))
        in_line(turns, number + 1)
    turns.release()
    turns.acquire("the loop again")
    assert seen == [0, 1, 2, 3, 4]
    turns.release()
    for thread in threads:
        thread.join(timeout=60)
    assert is_free(turns)


def is_free(turns: FairLock) -> bool:
    return turns._owner is None


def test_only_one_has_the_turn() -> None:
    """J3: two transactions at once would both build upon the same state."""
    turns = FairLock()
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            turns.acquire("test")
            inside += 1
            most = max(most, inside)
            inside -= 1
            turns.release()

    threads = [start(work) for _ in range(8)]
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert most == 1
    assert is_free(turns)


def test_a_thread_that_has_the_turn_is_told_rather_than_hung() -> None:
    """J10: a push next to one's own open transaction would wait for itself."""
    turns = FairLock()
    turns.acquire("first")
    assert turns.is_mine
    with pytest.raises(InvalidError, match="second: this thread holds the pipeline already"):
        turns.acquire("second")
    other = start(turns.release)
    other.join(timeout=60)
    assert is_free(turns), "another thread may give it back"
    with pytest.raises(BugError, match="released once"):
        turns.release()


def test_a_thread_interrupted_in_line_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 38: the next in line is called, not the one that went away."""
    turns = FairLock()
    turns.acquire("test")
    failed: list[str] = []

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    def interrupted() -> None:
        try:
            turns.acquire("test")
        except KeyboardInterrupt:
            failed.append("interrupted")

    event = threading.Event
    monkeypatch.setattr("stepwell.engine.fair_lock.threading.Event", Interrupted)
    thread = threading.Thread(target=interrupted)
    thread._started = event()  # type: ignore[attr-defined]
    thread.start()
    thread.join(timeout=60)
    monkeypatch.undo()
    assert failed == ["interrupted"]
    assert not turns._line
    turns.release()
    turns.acquire("test")
    turns.release()
