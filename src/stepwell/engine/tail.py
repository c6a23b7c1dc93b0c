"""Follow a view: its changes as they are committed, transaction by transaction."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa

from stepwell.engine.transaction import Done
from stepwell.errors import UnavailableError
from stepwell.lsm.large_change import as_table
from stepwell.model import Transaction

Changed: TypeAlias = "tuple[Transaction, pa.Table]"
_WAITING_MAX = 1000
"""Buffered changes. A slower reader loses the rest, and gets an error."""


class Tail:
    """The changes of one view, for one reader."""

    def __init__(self, view: str, forget: Callable[[Tail], None]) -> None:
        self.view = view
        self._forget = forget
        self._waiting: queue.SimpleQueue[Changed | None] = queue.SimpleQueue()
        self._lost = False

    def offer(self, done: Done) -> None:
        """Called by the pipeline; never blocks and never fails."""
        if self._waiting.qsize() >= _WAITING_MAX:
            self._lost = True
            return
        for view, change in done.executed.changes.items():
            if view.lower() == self.view.lower() and change.num_rows and not self._lost:
                self._waiting.put((done.transaction, as_table(change)))

    def take(self, timeout_s: float | None = 0.0) -> Changed | None:
        """The next change; None after the timeout, or if the tail was closed."""
        if self._lost and self._waiting.empty():
            raise UnavailableError(
                f"tail of {self.view}: changes came faster than they were read, and some were lost",
                hint="read the view, and follow it from there",
            )
        try:
            return self._waiting.get(block=timeout_s != 0.0, timeout=timeout_s or None)
        except queue.Empty:
            return None

    def __iter__(self) -> Iterator[Changed]:
        """Every change, until the tail is closed."""
        while (changed := self.take(None)) is not None:
            yield changed

    def close(self) -> None:
        self._forget(self)
        self._waiting.put(None)
