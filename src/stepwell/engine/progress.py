"""Progress of long work as events: loading, compaction, the current transaction.

The executor reports how much of the total is done (`Report`). Nothing is computed or emitted
without a listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepwell.engine.events import Events, OpeningAt, TransactionAt, Working
from stepwell.env import Env
from stepwell.model import Transaction

_LOADING = (40, 50)
"""Percent of an opening at which loading begins and ends."""


class Work:
    """Used by the thread that holds the pipeline, and by threads that it waits for."""

    def __init__(self, events: Events, env: Env) -> None:
        self._events = events
        self._env = env
        self._taken: tuple[Transaction, int] | None = None
        self._polled_s = 0.0
        self.opening = True
        """Whether the pipeline is still being opened, which includes loading."""

    def report(self, what: str, done: int, total: int, unit: str) -> None:
        """Report progress; called by an executor."""
        if not self._events.heard or not total:
            return
        if what == "computing":
            if self._taken is not None:
                number, rows = self._taken
                self._events.emit(TransactionAt(number, rows * done // total, rows))
        elif what == "loading" and self.opening:
            first, last = _LOADING
            percent = first + (last - first) * done // total
            self._events.emit(OpeningAt(what, percent, done, total, unit))
        else:
            self._events.emit(Working(what, done, total, unit))

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Count the time to read input as part of the next transaction."""
        began = self._env.uptime()
        yield
        self._polled_s = self._env.uptime() - began

    @contextmanager
    def transaction(self, number: Transaction, rows: int) -> Iterator[Callable[[], float]]:
        """Track a transaction; yields a function that returns the seconds it has taken."""
        began = self._env.uptime() - self._polled_s
        self._taken, self._polled_s = (number, rows), 0.0
        try:
            self.report("computing", 0, 1, "view")
            yield lambda: self._env.uptime() - began
        finally:
            self._taken = None
