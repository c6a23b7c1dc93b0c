"""A thread that collects garbage periodically while the loop runs (`gc.every`).

A collector needs no lock: it is safe together with flushes, checkpoints, readers and other
collectors (`manifest/gc.py`), so no transaction waits for it. A failure is reported and harms
nothing; the next pass tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stepwell import threads
from stepwell.engine.events import Collected, CollectFailed, Events
from stepwell.manifest.gc import Collector


class GcThread:
    def __init__(
        self, collector: Collector, events: Events, every_s: float, failed: threads.Failed
    ) -> None:
        self._collector = collector
        self._events = events
        self._every_s = every_s
        self._ending = threading.Event()
        self._thread = threads.start("stepwell-gc", self._run, failed=failed)

    def end(self) -> None:
        """Stop; a running pass ends before its next delete."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            collect_once(self._collector, self._events, self._ending.is_set)


def collect_once(
    collector: Collector, events: Events, stopping: Callable[[], bool] = lambda: False
) -> None:
    """One pass; never raises."""
    try:
        done = collector.collect(stopping)
    except Exception as error:  # noqa: BLE001 - garbage costs space, and must not stop a pipeline
        events.emit(CollectFailed(str(getattr(error, "message", error))))
        return
    if done.deleted:
        events.emit(Collected(done.deleted, sum(i.size for i in done.plan.garbage[: done.deleted])))
    if done.problem is not None:
        events.emit(CollectFailed(done.problem.message))
