"""Two real processes and one sink: a writer is stopped inside its delivery, another takes over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from stepwell.connectors import files_sink
from stepwell.connectors import postgres as connector
from stepwell.errors import UnavailableError
from tests.connectors.conftest import make_place
from tests.connectors.sinks import Place, in_turn, mark, put_together
from tests.connectors.stopped import Stopped, stopping

PLACES = [
    *("files-json", "files-json-bulk", "delta-key", "delta-changes"),
    *("iceberg-key", "postgres-key", "postgres-changes", "kafka-key"),
]


@pytest.fixture(autouse=True)
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power here, and syncing takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda opened: None)


@pytest.fixture(scope="module")
def stopped() -> Iterator[Stopped]:
    with stopping() as process:
        yield process


@pytest.fixture(scope="module")
def other() -> Iterator[Stopped]:
    with stopping() as process:
        yield process


def go_on(place: Place, up_to: int) -> None:
    """Take over as a new writer does: ask what the sink holds, and send what comes after it."""
    sink = place.make()
    held = sink.last()
    for number in range(1 if held is None else held.transaction + 1, up_to + 1):
        sink.write(held, mark(number), in_turn(number))
        held = mark(number)
    sink.close()


def stop_everywhere(
    stopped: Stopped, make: Callable[[], Place], between: Callable[[Place], int]
) -> int:
    """Stop a writer of transaction 3 before each of its calls in turn, and wake it afterwards.

    `between` does what happens while it is stopped, and says how far the sink got.
    """
    stop_at, ended = 1, ""
    while ended != "written at once":
        place = make()
        go_on(place, 2)
        ended = stopped.write(place, 3, stop_at)
        if ended == "stopped":
            last = between(place)
            ended = stopped.go_on()
            assert ended in ("written", "ConflictError", "UnavailableError"), ended
        else:
            assert ended == "written", ended
            last, ended = 3, "written at once"
        sink = place.make()
        held = sink.last()
        sink.close()
        assert held == mark(max(last, 3)), f"stopped before call {stop_at}"
        check(place, max(last, 3), stop_at)
        stop_at += 1
    return stop_at


def check(place: Place, last: int, stop_at: int) -> None:
    steps = {number: in_turn(number) for number in range(1, last + 1)}
    assert place.content() == place.expected(steps), f"stopped before call {stop_at}"


COALESCING = [
    *("files-coalesce", "delta-key", "iceberg-key", "postgres-key"),
    *(pytest.param(f"{kind}-changes", marks=pytest.mark.slow) for kind in ("delta", "postgres")),
    pytest.param("kafka-key", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("word", COALESCING)
def test_a_writer_stopped_inside_a_commit_of_several_is_too_late_when_it_wakes_up(
    word: str,
    stopped: Stopped,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenario 93, J7, J16: it was to write 3 to 5 as one; its successor writes 3 and 4 as one.
    Whichever is first, each transaction is there once, and the next writer goes on from there.
    """
    monkeypatch.setitem(connector._WAITS_MS, "lock_timeout", 30)
    stop_at, ended, held = 1, "", set()
    while ended != "written at once":
        place = make_place(word, request, tmp_path / str(stop_at))
        go_on(place, 2)
        ended = stopped.write(place, 3, stop_at, together=3)
        if ended == "stopped":
            with suppress(UnavailableError):  # A database holds the lock of the first.
                take_over(place, 3, 4)
            ended = stopped.go_on()
            assert ended in ("written", "ConflictError", "UnavailableError"), ended
        else:
            assert ended == "written", ended
            ended = "written at once"
        sink = place.make()
        found = sink.last()
        sink.close()
        assert found in (mark(4), mark(5)), f"stopped before call {stop_at}"
        assert found is not None
        check(place, found.transaction, stop_at)
        go_on(place, 7)
        check(place, 7, stop_at)
        held.add(int(found.transaction))
        stop_at += 1
    assert held == {4, 5}, "both were first, in turn"


def take_over(place: Place, first: int, last: int) -> None:
    """Write transactions as one, unless the sink holds them."""
    sink = place.make()
    try:
        held = sink.last()
        if held is not None and held.transaction < first:
            put_together(sink, range(first, last + 1), in_turn)
    finally:
        sink.close()


@pytest.mark.parametrize(
    ("word", "goes_to"),
    [
        *((word, 5) for word in PLACES),
        *(("files-json", 3), ("delta-key", 3)),
        *(
            pytest.param(f"{kind}-changes", 5, marks=pytest.mark.slow)
            for kind in ("iceberg", "kafka")
        ),
    ],
)
def test_a_writer_stopped_inside_its_delivery_is_too_late_when_it_wakes_up(
    word: str,
    goes_to: int,
    stopped: Stopped,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenario 93, J7, J16: stopped before each call in turn, while another process takes over and
    goes on; each transaction is there once, and the mark never goes back.
    """
    monkeypatch.setitem(connector._WAITS_MS, "lock_timeout", 30)
    numbers = iter(range(1, 1000))

    def make() -> Place:
        return make_place(word, request, tmp_path / str(next(numbers)))

    def successor(place: Place) -> int:
        try:
            go_on(place, goes_to)
        except UnavailableError:  # The database holds the lock of the first.
            assert place.kind in ("postgres", "iceberg")
            return 2
        return goes_to

    calls = stop_everywhere(stopped, make, successor)
    assert calls > 5, "the writer was never stopped"


def test_a_long_log_still_refuses_a_stopped_writer(
    stopped: Stopped,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenario 93, J16: the number it would take was trimmed, and its folders were read away."""
    monkeypatch.setattr(files_sink, "_KEEP", 2)
    numbers = iter(range(1, 1000))
    came_back: list[Path] = []

    def make() -> Place:
        return make_place("files-json", request, tmp_path / str(next(numbers)))

    def successor(place: Place) -> int:
        go_on(place, 7)
        read_away(place)
        return 7

    def read_away(place: Place) -> None:
        for folder in Path(str(place.options["path"])).glob("[0-9]*"):
            shutil.rmtree(folder)

    stop_at, ended = 1, ""
    while ended != "written at once":
        place = make()
        go_on(place, 2)
        ended = stopped.write(place, 3, stop_at)
        if ended == "stopped":
            last = successor(place)
            ended = stopped.go_on()
            came_back += Path(str(place.options["path"])).glob("[0-9]*")
            assert place.make().last() == mark(last)
            go_on(place, last + 1)
            left = Path(str(place.options["path"]))
            assert not list(left.glob(".tmp-*")), "its hidden folder is cleared away"
        else:
            ended = "written at once"
        stop_at += 1
    assert stop_at > 10
    assert not came_back, "a transaction that was read is written again"


def test_a_hidden_folder_of_a_living_writer_is_left_alone(
    stopped: Stopped, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Scenario 93, J7: a writer that is only slow would commit a folder that was swept away."""
    place = make_place("files-json", request, tmp_path)
    path = Path(str(place.options["path"]))
    seen = 0
    for stop_at in range(1, 100):
        shutil.rmtree(path, ignore_errors=True)
        go_on(place, 2)
        if stopped.write(place, 3, stop_at) != "stopped":
            break
        hidden = list(path.glob(".tmp-*/*"))
        place.make()._sweep()  # type: ignore[attr-defined]
        assert all(file.exists() for file in hidden)
        if hidden:
            assert stopped.go_on() == "written"
            check(place, 3, stop_at)
            seen += 1
        else:  # Perhaps it was empty, and not locked yet; then it tries again.
            assert stopped.go_on() in ("written", "UnavailableError")
    assert seen > 5


@pytest.mark.parametrize(
    "word",
    ["files-json", "delta-key", "iceberg-key", "postgres-key", "postgres-changes", "kafka-key"],
)
def test_of_two_writers_at_once_one_wins(
    word: str, stopped: Stopped, other: Stopped, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """J16, J7: both have found the sink as they believe it; a transaction is written once.

    Without the comparison inside the sink's own commit both would write it.
    """
    place = make_place(word, request, tmp_path)
    go_on(place, 2)
    both = (stopped, other)
    for number in range(3, 9):
        assert [process.write(place, number, stop_at=1) for process in both] == ["stopped"] * 2
        for process in both:
            process.wake()
        ended = {process.answer() for process in both}
        assert "written" in ended
        assert ended & {"ConflictError", "UnavailableError"}
    check(place, 8, 0)


def test_a_stopped_writer_does_not_hold_the_database_forever(
    postgres: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 93: the server ends the transaction of a client that says nothing for a minute."""
    place = make_place("postgres-key", request, tmp_path)
    sink = place.make()
    seen: list[object] = []

    def stage(*given: object) -> list[object]:
        cursor = given[1]
        assert isinstance(cursor, psycopg.Cursor)
        for name in ("lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute("SELECT current_setting(%s)", [name])
            seen.append(cursor.fetchone())
        return original(*given)  # type: ignore[arg-type]

    original = connector.PostgresSink._stage_rows
    monkeypatch.setattr(connector.PostgresSink, "_stage_rows", stage)
    sink.write(None, mark(1), in_turn(1))
    sink.close()
    assert seen == [("10s",), ("1min",)]
