"""How far long work is, told as events: loading, compacting, the transaction under way.

Whoever works reports (`Report`): how much of how much. Nothing is computed or told if nobody
listens.
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
    """Used by the thread that has the pipeline's turn, and those it waits for."""

    def __init__(self, events: Events, env: Env) -> None:
        self._events = events
        self._env = env
        self._taken: tuple[Transaction, int] | None = None
        self._polled_s = 0.0
        self.opening = True
        """Whether the pipeline is not open yet: loading is a part of that."""

    def report(self, what: str, done: int, total: int, unit: str) -> None:
        """For an executor: how far it is."""
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
        """Reading input is part of the work on the next transaction, if there is any."""
        began = self._env.uptime()
        yield
        self._polled_s = self._env.uptime() - began

    @contextmanager
    def transaction(self, number: Transaction, rows: int) -> Iterator[Callable[[], float]]:
        """The transaction under way; gives what tells how long it has taken so far."""
        began = self._env.uptime() - self._polled_s
        self._taken, self._polled_s = (number, rows), 0.0
        try:
            self.report("computing", 0, 1, "view")
            yield lambda: self._env.uptime() - began
        finally:
            self._taken = None
