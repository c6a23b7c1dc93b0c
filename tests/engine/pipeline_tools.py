"""Tools for tests of a pipeline: read its entries, hold a turn, wait for a condition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepwell.engine.pipeline import Pipeline
from stepwell.journal.log import Log
from stepwell.model import Position
from tests.engine.doubles import (
    World,
)


def entries(world: World) -> list[Any]:
    found = (Log(world.store).read(Position(number)) for number in range(1, 100))
    return [item.entry.draft for item in found if item and not item.entry.is_barrier]


@contextmanager
def holding(pipeline: Pipeline) -> Iterator[None]:
    """Nobody else gets a turn meanwhile."""
    pipeline._turns.acquire("test")
    try:
        yield
    finally:
        pipeline._turns.release()


def until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(6000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not happen in a minute")
