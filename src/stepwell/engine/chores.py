"""Work beside the transactions: merging runs, in a thread of its own, so that nobody waits for it.

An executor says what there is to do (`Executor.chore`). It is done in another thread while
transactions go on, and adopted between two of them, which takes no time. What is done changes no
result: a crash, or a failure, leaves the state as it was, and the work to be done again.
"""

from __future__ import annotations

import threading

from stepwell import threads
from stepwell.engine.events import ChoreFailed, Events
from stepwell.engine.ports import Chore, Executor


class Chores:
    """One piece of work at a time. Used by the thread that has the pipeline's turn."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._chore: Chore | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def beat(self, executor: Executor) -> None:
        """Adopt what is done, and begin the next; never waits."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._adopt()
        self._chore = executor.chore()
        if self._chore is not None:
            self._thread = threads.start("stepwell-chore", self._chore.run, failed=self._failed)

    def finish(self) -> None:
        """Wait for what is under way, and adopt it."""
        if self._thread is not None:
            self._thread.join()
            self._adopt()

    def end(self) -> None:
        """Wait for what is under way, and forget it: its executor is not used any more."""
        if self._thread is not None:
            self._thread.join()
        self._thread = self._chore = self._error = None

    def _failed(self, error: BaseException) -> None:
        self._error = error

    def _adopt(self) -> None:
        chore, error = self._chore, self._error
        self._thread = self._chore = self._error = None
        if chore is not None and error is None:
            chore.adopt()
        if error is not None:
            self._events.emit(ChoreFailed(str(getattr(error, "message", error))))
