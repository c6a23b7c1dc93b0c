"""The contract of every store, where several threads use it at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stepwell.errors import ConflictError
from stepwell.store.base import Store
from tests.store.conftest import Open
from tests.store.test_contract import content, etag


def race(shared: Open, writers: int, write: Callable[[Store, int], None]) -> list[int]:
    """Let all of them loose at once; who did not get a conflict?"""
    handles = [shared(), shared()]
    gate = threading.Barrier(writers)

    def run(number: int) -> bool:
        gate.wait()
        try:
            write(handles[number % 2], number)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(writers) as pool:
        return [number for number, won in enumerate(pool.map(run, range(writers))) if won]


def test_of_32_writers_exactly_one_creates_an_object(shared: Open) -> None:
    """F1: all fencing rests on put-if-absent; one writer wins, and its bytes are the object's."""
    store = shared()
    for number in range(30 if store.uri.startswith("s3:") else 100):
        path = f"journal/{number:020}"

        def create(handle: Store, writer: int, path: str = path) -> None:
            handle.put_new(path, [b"writer ", b"%d" % writer])

        winners = race(shared, 32, create)
        assert len(winners) == 1
        assert content(store, path) == b"writer %d" % winners[0]


def test_of_8_writers_exactly_one_swaps_a_version(shared: Open) -> None:
    """F1: two claims of one epoch would be two writers."""
    store = shared()
    store.put_new("a/b", b"start")
    for number in range(10):
        old = etag(store, "a/b")

        def swap(handle: Store, writer: int, old: str = old, number: int = number) -> None:
            handle.replace_if("a/b", b"%d %d" % (number, writer), old)

        winners = race(shared, 8, swap)
        assert len(winners) == 1
        assert content(store, "a/b") == b"%d %d" % (number, winners[0])


def test_an_object_becomes_visible_whole(shared: Open) -> None:
    """K8: a reader that sees a name sees every byte, of a new object and of a replaced one."""
    size = 300_000
    rounds = 10
    writer, reader = shared(), shared()
    done = threading.Event()

    def write() -> None:
        try:
            for number in range(rounds):
                writer.put_new(f"a/{number}", [b"x" * 1000] * (size // 1000))
            for letter in b"abcdefghij":
                writer.replace_if("a/0", bytes([letter]) * size, etag(writer, "a/0"))
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        looks = 0
        while not done.is_set() or looks == 0:
            looks += 1
            found = [content(reader, f"a/{number}") for number in range(rounds)]
            assert all(data is None or data == data[:1] * size for data in found)
            assert {item.size for item in reader.list()} <= {size}
        writing.result()
    assert content(reader, "a/0") == b"j" * size
