"""Threads that empty the outboxes while the loop runs, one for each sink.

A slow sink delays neither the pipeline nor another sink, as long as its outbox has room. The
threads only send; the outbox makes every decision about its sink.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from stepwell import threads
from stepwell.engine.outbox import Outbox
from stepwell.engine.stopping import Stop

_WAIT_S_MAX = 1.0


class SinkThreads:
    def __init__(self, outboxes: Sequence[Outbox], stop: Stop, failed: threads.Failed) -> None:
        self._stop = stop
        self._ending = False
        self._at_once = False
        self._wakes = [threading.Event() for _ in outboxes]
        self._threads = [
            threads.start(
                f"stepwell-sink-{outbox.sink.name}",
                partial(self._run, outbox, wake),
                failed=failed,
            )
            for outbox, wake in zip(outboxes, self._wakes, strict=True)
        ]

    def wake(self) -> None:
        """Wake the threads: output was offered."""
        for wake in self._wakes:
            wake.set()

    def end(self, *, at_once: bool) -> None:
        """Wait for the running commit, and stop; the rest stays in the outbox.

        Unless `at_once`, the threads keep sending while the stop allows it.
        """
        self._at_once = at_once
        self._ending = True
        self.wake()
        for thread in self._threads:
            thread.join()

    def _run(self, outbox: Outbox, wake: threading.Event) -> None:
        while not self._ending:
            wake.clear()
            if outbox.deliver(self._may_send) or outbox.stopped is not None:
                wake.wait(_WAIT_S_MAX)
            else:
                wake.wait(min(_WAIT_S_MAX, max(0.01, outbox.retry_in_s)))
        if not self._at_once:
            outbox.deliver(self._stop.allows)

    def _may_send(self) -> bool:
        return not self._ending and self._stop.allows()
