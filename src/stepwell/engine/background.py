"""Background tasks of an executor, such as compaction, in a thread of their own.

`Executor.background_task` returns the next task. It runs while transactions continue, and its
result is adopted between two of them, which takes no time. A task changes no result: a crash or a
failure leaves the state unchanged, and the task is done again.
"""

from __future__ import annotations

import threading

from stepwell import threads
from stepwell.engine.events import BackgroundTaskFailed, Events
from stepwell.execution.executor import BackgroundTask, Executor


class BackgroundTasks:
    """Runs one task at a time. Used by the thread that holds the pipeline."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._task: BackgroundTask | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def advance(self, executor: Executor) -> None:
        """Adopt a finished task, and start the next; never waits."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._adopt()
        self._task = executor.background_task()
        if self._task is not None:
            self._thread = threads.start("stepwell-background", self._task.run, failed=self._failed)

    def finish(self) -> None:
        """Wait for the running task, and adopt it."""
        if self._thread is not None:
            self._thread.join()
            self._adopt()

    def end(self) -> None:
        """Wait for the running task, and discard it: its executor is no longer used."""
        if self._thread is not None:
            self._thread.join()
        self._thread = self._task = self._error = None

    def _failed(self, error: BaseException) -> None:
        self._error = error

    def _adopt(self) -> None:
        task, error = self._task, self._error
        self._thread = self._task = self._error = None
        if task is not None and error is None:
            task.adopt()
        if error is not None:
            self._events.emit(BackgroundTaskFailed(str(getattr(error, "message", error))))
