"""Taking turns: one at a time, in the order of arrival.

A plain lock would let the loop of a busy pipeline take it again and again, and whoever pushes would
wait for ever. Here everybody goes to the end of the line. A turn belongs to whoever took it until
it is given back, by whichever thread: an explicit transaction keeps its turn between its steps.
"""

from __future__ import annotations

import threading
from collections import deque

from stepwell.errors import InvalidError, ensure


class Turns:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()
        self._owner: int | None = None

    @property
    def mine(self) -> bool:
        """Whether the turn was taken by this very thread."""
        return self._owner == threading.get_ident()

    @property
    def taken(self) -> bool:
        return self._owner is not None

    def take(self, what: str) -> None:
        """Wait for one's turn. A thread that has it would wait for itself, and is told so."""
        if self.mine:
            raise InvalidError(
                f"{what}: this thread has the pipeline already, and would wait for itself",
                hint="use the transaction that is open, or commit it first; and do not call the "
                "pipeline from its own listener",
            )
        with self._lock:
            if self._owner is None:
                self._owner = threading.get_ident()
                return
            called = threading.Event()
            self._line.append(called)
        try:
            called.wait()
        except BaseException:
            # Interrupted while waiting: leave the line, or pass on a turn that has just come.
            with self._lock:
                if called in self._line:
                    self._line.remove(called)
                    raise
            self.give_back()
            raise
        self._owner = threading.get_ident()

    def give_back(self) -> None:
        """The next in line is called."""
        with self._lock:
            ensure(self._owner is not None, "a turn is given back once")
            if self._line:
                # Nobody can come between: the turn stays taken until the one called has it.
                self._owner = 0
                self._line.popleft().set()
            else:
                self._owner = None
